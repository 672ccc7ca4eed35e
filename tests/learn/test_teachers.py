"""Batched teachers against PyTorch Geometric's layers, one model at a time."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import tacit
from tacit.errors import TrainingError
from tacit.learn.teachers import Attributed, TeacherConfig, log_posteriors

with warnings.catch_warnings():
    # The peer compiles its layers with a function that this torch calls deprecated.
    warnings.simplefilter("ignore")
    from torch_geometric.nn import SAGEConv

CONFIG = TeacherConfig(hidden=5, epochs=12, dropout=0.0, precision="float32")


def attributed(graph: tacit.Graph) -> Attributed:
    return Attributed(graph.features, *graph.in_lists)


def communities(nodes: int, seed: int) -> tacit.Graph:
    return tacit.graph.synthetic.communities(nodes, mean_degree=5, features=7, classes=3, seed=seed)


PRIVATE, PUBLIC = communities(40, 1), communities(30, 2)
SAMPLES = [np.arange(0, 40, 2), np.arange(5, 38), np.array([3, 4, 9])]
QUERIES = np.array([4, 9, 20])
SEEDS = (11, 12, 13)


def answers(config: TeacherConfig = CONFIG, samples=SAMPLES, queries=QUERIES, seeds=SEEDS):
    return log_posteriors(
        attributed(PRIVATE),
        PRIVATE.labels,
        3,
        samples,
        attributed(PUBLIC),
        queries,
        config,
        seeds=seeds,
    )


class Reference(torch.nn.Module):
    """The paper's teacher in PyTorch Geometric, with the initial weights of a batched one."""

    def __init__(self, seed: int, config: TeacherConfig = CONFIG) -> None:
        super().__init__()
        self.one, self.two = SAGEConv(7, config.hidden), SAGEConv(config.hidden, 3)
        self.norm = torch.nn.BatchNorm1d(config.hidden)
        stream = np.random.default_rng(seed)

        def uniform(rows: int, columns: int, fan: int) -> torch.Tensor:
            drawn = stream.random((rows, columns), dtype=np.float32) * 2 - 1
            return torch.from_numpy(drawn / np.sqrt(np.float32(fan)))

        with torch.no_grad():
            for layer, fan, width in ((self.one, 7, config.hidden), (self.two, config.hidden, 3)):
                both = uniform(fan, 2 * width, fan)
                layer.lin_r.weight.copy_(both[:, :width].T)
                layer.lin_l.weight.copy_(both[:, width:].T)
            # Batch norm takes this bias out: its gradient is rounding, which Adam would amplify.
            self.one.lin_l.bias.zero_()
            self.one.lin_l.bias.requires_grad_(False)
            self.two.lin_l.bias.copy_(uniform(1, 3, config.hidden)[0])

    def forward(self, x: torch.Tensor, links: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.norm(self.one(x, links))), links)


def links_of(graph: tacit.Graph) -> torch.Tensor:
    indptr, sources = graph.in_lists
    targets = np.repeat(np.arange(graph.nodes), np.diff(indptr))
    return torch.tensor(np.stack([sources.astype(np.int64), targets]))


def test_a_batch_answers_as_pytorch_geometric_does_one_by_one():
    found = answers()
    for row, (sample, query, seed) in enumerate(zip(SAMPLES, QUERIES, SEEDS, strict=True)):
        part = tacit.graph.subgraph(PRIVATE, sample)
        model = Reference(seed)
        optimiser = torch.optim.Adam(
            [p for p in model.parameters() if p.requires_grad], lr=CONFIG.learning_rate
        )
        for _ in range(CONFIG.epochs):
            optimiser.zero_grad()
            scores = model(torch.tensor(part.features), links_of(part))
            torch.nn.functional.cross_entropy(scores, torch.tensor(part.labels)).backward()
            optimiser.step()
        model.eval()
        with torch.no_grad():
            right = model(torch.tensor(PUBLIC.features), links_of(PUBLIC))[query]
        right = right.double().log_softmax(0).numpy()
        np.testing.assert_allclose(found[row], right, atol=2e-4)
        wrong = np.roll(right, 1)
        assert np.abs(found[row] - wrong).max() > 2e-4, "the comparison has no power"


def test_teachers_do_not_depend_on_who_shares_their_batch():
    config = replace(CONFIG, dropout=0.5)
    together = answers(config)
    for row in range(3):
        alone = answers(
            config, SAMPLES[row : row + 1], QUERIES[row : row + 1], SEEDS[row : row + 1]
        )
        np.testing.assert_allclose(alone[0], together[row], atol=1e-4)
    assert np.abs(answers(config, seeds=(21, 22, 23)) - together).max() > 1e-3


def test_bfloat16_is_close_to_single_precision():
    exact, rough = answers(), answers(replace(CONFIG, precision="bfloat16"))
    assert 0 < np.abs(np.exp(exact) - np.exp(rough)).max() < 0.1


def test_dropout_keeps_the_mean():
    spread = [
        answers(
            replace(CONFIG, dropout=0.5), SAMPLES[:1] * 40, np.full(40, 4), range(start, start + 40)
        )
        for start in (0, 100)
    ]
    gap = np.abs(np.exp(spread[0]).mean(axis=0) - np.exp(spread[1]).mean(axis=0)).max()
    assert gap < 0.15


def test_an_empty_sample_answers_the_uniform_distribution():
    found = answers(CONFIG, [np.empty(0, np.int64), SAMPLES[0]], QUERIES[:2], SEEDS[:2])
    np.testing.assert_allclose(np.exp(found[0]), 1 / 3)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1)


@pytest.mark.parametrize(
    "wrong", [{"hidden": 0}, {"epochs": 0}, {"batch": 0}, {"dropout": 1.0}, {"learning_rate": 0.0}]
)
def test_settings_without_meaning_are_refused(wrong):
    with pytest.raises(TrainingError):
        replace(CONFIG, **wrong)
