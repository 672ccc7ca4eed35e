import numpy as np
import pytest

from tacit.errors import TrainingError
from tacit.learn.counts import posterior_counts, shares


def noisy(scale: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    true = rng.poisson(12, (60, 8)) * (rng.random((60, 8)) < 0.2)
    p = 1 - np.exp(-1 / scale)
    return true, true + rng.geometric(p, true.shape) - rng.geometric(p, true.shape)


@pytest.mark.parametrize("scale", [0.5, 2.0, 4.0])
def test_posterior_means_are_closer_than_clipping(scale: float) -> None:
    true, seen = noisy(scale)
    found = posterior_counts(seen, scale)
    assert (found >= 0).all()
    assert np.square(found - true).mean() < 0.9 * np.square(np.maximum(seen, 0) - true).mean()
    # Empty entries add up to little; clipping leaves them the positive half of the noise.
    empty = true == 0
    assert found[empty].mean() < 0.6 * np.maximum(seen, 0)[empty].mean()


def test_it_is_bayes_rule_under_the_prior_it_ends_with() -> None:
    """Two well separated counts: the estimate is the one that was there, by hand."""
    seen = np.array([[0] * 50 + [40] * 50, [0] * 50 + [40] * 50])
    found = posterior_counts(seen, 0.3)
    assert found[seen == 0] == pytest.approx(0, abs=0.01)
    assert found[seen == 40] == pytest.approx(40, abs=0.01)


def test_without_noise_counts_are_what_they_are() -> None:
    true, _ = noisy(1.0)
    assert np.array_equal(posterior_counts(true, 0.0), true)


def test_a_scale_that_is_none_is_refused() -> None:
    with pytest.raises(TrainingError, match="scale of noise"):
        posterior_counts(np.zeros((2, 2), np.int64), -1.0)


def test_shares_lean_on_the_whole() -> None:
    found = shares(np.array([[8.0, 0.0], [0.0, 0.0]]), prior=2.0)
    assert found.sum(axis=1) == pytest.approx(1)
    assert found[1] == pytest.approx([1, 0], abs=1e-6)
    found = shares(np.array([[6.0, 0.0], [0.0, 2.0]]), prior=2.0)
    assert found == pytest.approx(np.array([[7.5 / 8, 0.5 / 8], [1.5 / 4, 2.5 / 4]]), abs=1e-6)
