"""Students: what counts and labels say, the public map, and pre-training."""

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit.errors import TrainingError
from tacit.learn import student
from tacit.learn.graph_networks import Links
from tacit.learn.student import HopNetwork, StudentConfig, embed, fit_student, unit

GRAPH = tacit.graph.synthetic.communities(300, mean_degree=8, features=20, classes=3, seed=1)
ADJ = Links.of(*GRAPH.in_lists)
MAP = embed(GRAPH.features, 8)
ROWS = torch.tensor(MAP(GRAPH.features), dtype=torch.float32)
CONFIG = StudentConfig(80)


def score(posteriors: np.ndarray) -> float:
    return float((posteriors.argmax(axis=1) == GRAPH.labels).mean())


def taught(loss: student.Losses) -> np.ndarray:
    model = HopNetwork(8, 16, 3, dropout=0.0, seed=0)
    return fit_student(model, ROWS, ADJ, loss, CONFIG, seed=0)


def test_mixtures_tell_what_their_parts_are():
    rng = np.random.default_rng(0)
    kernel = rng.random((60, 300)) < 0.3
    counts = kernel @ np.eye(3)[GRAPH.labels] * 0.5
    noisy = counts + rng.normal(0, 2, counts.shape)
    assert score(taught(student.counts_loss(kernel, noisy, 0.5, 4.0))) > 0.7
    shuffled = rng.permutation(noisy)
    assert score(taught(student.counts_loss(kernel, shuffled, 0.5, 4.0))) < 0.6


def test_labels_pass_through_the_noise_they_had():
    rng = np.random.default_rng(1)
    truth = GRAPH.labels[:200]
    said = np.where(rng.random(200) < 0.55, truth, rng.integers(3, size=200))
    rows = np.arange(200)
    assert score(taught(student.labels_loss(rows, said, 0.7, 0.15))) > 0.6
    scores = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    loss = student.labels_loss(np.array([0]), np.array([1]), 0.7, 0.15)(scores)
    assert float(loss) == pytest.approx(-np.log(0.7 * 0.3 + 0.15 * 0.5 + 0.15 * 0.2))
    plain = student.labels_loss(np.array([0]), np.array([1]), 1.0, 0.0)(scores)
    assert float(plain) == pytest.approx(-np.log(0.3), rel=1e-6)


def test_the_map_is_that_of_a_full_decomposition():
    weights = MAP.weights
    rows = unit(GRAPH.features * weights)
    _, _, turn = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    overlap = np.linalg.svd(MAP.basis.T @ turn[:8].T, compute_uv=False)
    assert overlap.min() > 0.9
    np.testing.assert_allclose(MAP.basis.T @ MAP.basis, np.eye(8), atol=1e-4)
    again = embed(GRAPH.features, 8)
    assert np.array_equal(again.basis, MAP.basis)
    # One row's place reads that row alone.
    np.testing.assert_allclose(MAP(GRAPH.features[:3]), MAP(GRAPH.features)[:3], atol=1e-6)


def test_signed_and_narrow_features_have_a_map_too():
    rng = np.random.default_rng(0)
    found = embed(rng.standard_normal((30, 3)).astype(np.float32), 64)
    assert found.basis.shape == (3, 3)
    assert np.all(found.weights == 1)
    assert np.isfinite(found(np.zeros((2, 3), np.float32))).all()


def test_pretraining_brings_linked_nodes_together():
    model = HopNetwork(8, 16, 3, dropout=0.0, seed=0)
    heads, tails = ADJ.targets.long(), ADJ.indices.long()

    def gap() -> float:
        with torch.no_grad():
            z = nn.functional.normalize(model.encode(ROWS, ADJ), dim=1)
        linked = float((z[heads] * z[tails]).sum(dim=1).mean())
        return linked - float((z @ z.T).mean())

    before, state = gap(), torch.get_rng_state()
    student.pretrain(
        lambda: model.encode(ROWS, ADJ), list(model.first.parameters()), ADJ, CONFIG, seed=0
    )
    assert gap() > before + 0.1
    assert torch.equal(torch.get_rng_state(), state)


def test_a_loss_that_is_no_number_is_refused():
    with pytest.raises(TrainingError, match="loss is nan"):
        taught(lambda scores: scores.sum() * float("nan"))
