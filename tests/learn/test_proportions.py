import numpy as np
import pytest
import torch

from tacit.errors import TrainingError
from tacit.learn import networks
from tacit.learn.clusters import centres, nearest
from tacit.learn.proportions import Bags, ProportionConfig, train_proportions


def test_the_loss_is_of_the_mean_answer() -> None:
    answers = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.25, 0.75]])
    bags = Bags(
        torch.tensor([0, 0, 2]),
        torch.tensor([[0.5, 0.5], [0.9, 0.1], [1.0, 0.0]]),
        torch.tensor([3.0, 100.0, 1.0]),
    )
    # Bag 1 is empty; the others count 3 to 1.
    expected = (3 * np.log(2) + np.log(4)) / 4
    assert float(bags.loss(answers)) == pytest.approx(expected, abs=1e-4)


def test_mixed_bags_teach_what_every_row_is() -> None:
    """No bag is pure, and yet rows are told apart: only one rule makes all bags add up."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=600)
    rows = (labels[:, None] * 2 - 1) * 1.0 + rng.normal(size=(600, 4)) * 0.7
    bag = np.where(rng.random(600) < 0.3, 1 - labels, labels)
    table = np.zeros((2, 2))
    np.add.at(table, (bag, labels), 1)
    known = torch.tensor(table / table.sum(1, keepdims=True), dtype=torch.float32)
    network = networks.MLP(4, 8, 2, 2, activation="relu", seed=0)
    part = Bags(torch.tensor(bag), known, torch.tensor(table.sum(1), dtype=torch.float32))
    inputs = torch.tensor(rows, dtype=torch.float32)
    train_proportions(
        network, inputs, [part], known[torch.tensor(bag)], ProportionConfig(80, 0.05), seed=0
    )
    answers = network(inputs).softmax(dim=1).detach()
    assert float((answers.argmax(1).numpy() == labels).mean()) > 0.95
    assert float(answers.max(dim=1).values.mean()) > 0.9  # surer than any bag is


def test_bags_that_do_not_fit_are_refused() -> None:
    network = networks.MLP(2, 4, 2, 1)
    part = Bags(torch.zeros(3, dtype=torch.int64), torch.full((1, 2), 0.5), torch.ones(1))
    with pytest.raises(TrainingError, match="speak of every row"):
        train_proportions(
            network, torch.zeros(4, 2), [part], torch.zeros(4, 2), ProportionConfig(1), seed=0
        )


def test_cells_are_found_and_a_row_is_placed_by_itself() -> None:
    rng = np.random.default_rng(1)
    cores = rng.normal(size=(5, 3)).astype(np.float32) * 10
    rows = (cores[rng.integers(5, size=200)] + rng.normal(size=(200, 3))).astype(np.float32)
    found = centres(rows, 5, seed=2)
    distance = np.linalg.norm(found[:, None] - cores[None], axis=2)
    assert sorted(distance.argmin(axis=0).tolist()) == list(range(5))
    assert distance.min(axis=0).max() < 1
    placed = nearest(rows, found)
    other = rows.copy()
    other[17] = np.nan
    assert np.array_equal(np.delete(nearest(other, found), 17), np.delete(placed, 17))
    assert np.array_equal(centres(rows, 5, seed=2), found)


def test_equal_rows_and_too_many_cells() -> None:
    rows = np.ones((4, 2), np.float32)
    assert centres(rows, 3, seed=0).shape == (3, 2)
    with pytest.raises(TrainingError, match="4 rows cannot make 5 cells"):
        centres(rows, 5, seed=0)
