"""DP-Emb on sparse rows, against a loop over single records with autograd."""

import math

import numpy as np
import pytest
import torch

from tacit.errors import NoiseError, TrainingError
from tacit.learn.dpsgd import DpSgdConfig
from tacit.learn.embedding import Embedding, train_embedding
from tacit.privacy.noise import NoiseSource

NODES, WIDTH, CLASSES = 12, 5, 3


def lists(rng: np.random.Generator, records: int) -> tuple[np.ndarray, np.ndarray]:
    rows = [np.sort(rng.choice(NODES, rng.integers(0, 6), replace=False)) for _ in range(records)]
    indptr = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
    return indptr, np.concatenate(rows).astype(np.int32)


def one_gradient(units, bias, head, norm, row, target) -> tuple[torch.Tensor, torch.Tensor]:
    units, bias = units.clone().requires_grad_(), bias.clone().requires_grad_()
    hidden = norm * units[torch.from_numpy(row.astype(np.int64))].sum(dim=0) + bias
    logits = torch.nn.functional.selu(hidden) @ head
    loss = torch.nn.functional.cross_entropy(logits[None], torch.tensor([target]))
    loss.backward()
    grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in (units, bias)]
    return grads[0], grads[1]


@pytest.mark.parametrize("clip", [0.05, 0.5, math.inf])
@pytest.mark.parametrize("norm", [1.0, 0.3])
def test_one_step_is_the_loop_over_records(clip: float, norm: float) -> None:
    rng = np.random.default_rng(5)
    data, targets = lists(rng, 9), rng.integers(0, CLASSES, 9)
    made = Embedding(NODES, WIDTH, CLASSES, norm, seed=1)
    start, units = made.weights.clone(), made.unit_rows().clone()
    config = DpSgdConfig(1.0, 1, 0.0, clip, 0.1, optimizer="sgd", average_last=0.0)
    report = train_embedding(made, data, targets, config, source=None, seed=0)
    total, bias = torch.zeros(NODES, WIDTH), torch.zeros(WIDTH)
    clipped = 0
    for i in range(9):
        row = data[1][data[0][i] : data[0][i + 1]]
        a, b = one_gradient(units, torch.zeros(WIDTH), made.head, norm, row, targets[i])
        size = math.sqrt(float(a.square().sum() + b.square().sum()))
        factor = min(1.0, clip * (1 - 2.0**-10) / size)
        clipped += factor < 1
        total += factor * a
        bias += factor * b
    # Carried over to V by autograd's own derivative of the division.
    raw = start.clone().requires_grad_()
    (torch.nn.functional.normalize(raw, dim=1) * total).sum().backward()
    torch.testing.assert_close(made.weights, start - 0.1 / 9 * raw.grad, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(made.bias, -0.1 / 9 * bias, atol=1e-6, rtol=1e-5)
    assert report.records_clipped == clipped


def test_row_norms_hold_whatever_was_learnt() -> None:
    rng = np.random.default_rng(2)
    made = Embedding(NODES, WIDTH, CLASSES, 1.0, seed=1)
    config = DpSgdConfig(0.5, 30, 2.0, 1.0, 0.5)
    data, targets = lists(rng, 20), rng.integers(0, CLASSES, 20)
    report = train_embedding(made, data, targets, config, source=NoiseSource.seeded(1), seed=0)
    assert report.noise_std == 2.0
    assert report.normaliser == 10.0
    torch.testing.assert_close(made.unit_rows().norm(dim=1), torch.ones(NODES))
    assert float(made.weights.norm(dim=1).max()) > 1.5


def test_noise_has_the_planned_scale() -> None:
    """Two empty batches in a row are noise alone; two thirds of it would be noticed."""
    made = Embedding(200, 50, CLASSES, 1.0, seed=1)
    start = made.bias.clone()
    config = DpSgdConfig(1e-15, 1, 3.0, 0.5, 1e-15, optimizer="sgd")
    train_embedding(
        made, (np.zeros(2, np.int64), np.zeros(0, np.int32)), np.zeros(1, np.int64), config,
        source=NoiseSource.seeded(4), seed=0,
    )  # fmt: skip
    assert 0.7 * 1.5 < float((made.bias - start).std()) < 1.3 * 1.5


def test_learns_who_lists_whom() -> None:
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 2, 200)
    rows = [np.sort(rng.choice(6, 3, replace=False)) + 6 * t for t in targets]
    indptr = 3 * np.arange(201, dtype=np.int64)
    indices = np.concatenate(rows).astype(np.int32)
    made = Embedding(NODES, 16, 2, 1.0, seed=3)
    config = DpSgdConfig(1.0, 60, 0.0, math.inf, 0.05)
    train_embedding(made, (indptr, indices), targets, config, source=None, seed=0)
    hidden = made.unit_rows()[torch.from_numpy(indices.astype(np.int64))].view(200, 3, -1).sum(1)
    logits = torch.nn.functional.selu(hidden + made.bias) @ made.head
    assert float((logits.argmax(1).numpy() == targets).mean()) > 0.95


def test_what_does_not_fit_is_refused() -> None:
    made = Embedding(NODES, WIDTH, CLASSES, 1.0, seed=1)
    data = (np.array([0, 1]), np.array([2], np.int32))
    with pytest.raises(TrainingError, match="lists"):
        train_embedding(
            made, data, np.zeros(2, np.int64), DpSgdConfig(1, 1, 0.0), source=None, seed=0
        )
    with pytest.raises(NoiseError, match="source"):
        train_embedding(
            made, data, np.zeros(1, np.int64), DpSgdConfig(1, 1, 1.0), source=None, seed=0
        )
