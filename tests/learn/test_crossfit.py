import numpy as np
import torch

from tacit.learn.crossfit import crossfit
from tacit.learn.networks import MLP
from tacit.learn.train import TrainConfig, predict_logits


def data(rows: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    inputs = torch.tensor(rng.standard_normal((rows, 30)), dtype=torch.float32)
    return inputs, torch.tensor(rng.integers(0, 2, rows))


def make(seed: int) -> MLP:
    return MLP(30, 32, 2, 2, seed=seed)


CONFIG = TrainConfig(epochs=60, learning_rate=0.01)


def test_labels_that_cannot_be_learnt_are_not_claimed_to_be_known() -> None:
    """On random labels one network knows its training rows by heart; cross-fitting does not."""
    inputs, targets = data()
    rows = np.arange(150)
    alone, _ = crossfit(make, inputs, targets, rows, CONFIG, folds=1, seed=0)
    folded, networks = crossfit(make, inputs, targets, rows, CONFIG, folds=3, seed=0)
    assert len(networks) == 3
    assert (alone[:150].argmax(1) == targets[:150]).double().mean() > 0.95
    assert (folded[:150].argmax(1) == targets[:150]).double().mean() < 0.65


def test_other_rows_get_the_mean_of_all_networks() -> None:
    inputs, targets = data()
    posteriors, networks = crossfit(
        make, inputs, targets, np.arange(150), CONFIG, folds=3, seed=0, val=np.arange(150, 170)
    )
    mean = torch.stack([predict_logits(n, (inputs,)).softmax(1) for n in networks]).mean(0)
    assert torch.equal(posteriors[150:], mean[150:])
    assert torch.allclose(posteriors.sum(1), torch.ones(200))


def test_each_training_row_is_answered_by_the_network_that_has_not_seen_it() -> None:
    inputs, targets = data()
    rows = np.arange(150)
    before, _ = crossfit(make, inputs, targets, rows, CONFIG, folds=3, seed=0)
    flipped = targets.clone()
    flipped[7] = 1 - flipped[7]
    after, _ = crossfit(make, inputs, flipped, rows, CONFIG, folds=3, seed=0)
    assert torch.equal(before[7], after[7])
    assert not torch.equal(before, after)
