"""Limits, cuts and claims against independent computations."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from scipy.stats import binomtest, norm

from tacit.attacks.bounds import (
    Claim,
    Counted,
    Cut,
    Point,
    best_cut,
    clopper_pearson,
    epsilon_at,
    mu_at,
)
from tacit.attacks.statistics import learnt
from tacit.errors import PlanError


@pytest.mark.parametrize(("hits", "runs"), [(0, 50), (1, 50), (17, 50), (50, 50), (12_345, 10**6)])
def test_limits_are_those_of_an_independent_program(hits: int, runs: int) -> None:
    low, high = clopper_pearson(hits, runs, 0.025)
    exact = binomtest(hits, runs).proportion_ci(0.95, "exact")
    assert float(low) == pytest.approx(exact.low, rel=1e-9, abs=1e-15)
    assert float(high) == pytest.approx(exact.high, rel=1e-9)


def test_limits_cover_and_would_not_at_half_their_width() -> None:
    rng = np.random.default_rng(0)
    hits = rng.binomial(200, 0.07, 20_000)
    low, high = clopper_pearson(hits, 200, 0.025)
    assert (low > 0.07).mean() <= 0.025
    assert (high < 0.07).mean() <= 0.025
    middle = hits / 200
    narrow = (np.abs(0.07 - middle) > (high - low) / 4).mean()
    assert narrow > 0.1


def test_no_false_hit_still_bounds() -> None:
    # The rule of three: none of n has an upper limit of about -ln(alpha) / n.
    _, high = clopper_pearson(0, 10_000, 0.05)
    assert float(high) == pytest.approx(-math.log(0.05) / 10_000, rel=1e-3)


def test_epsilon_of_rates() -> None:
    assert float(epsilon_at(0.5, 0.1, 0.1)) == pytest.approx(math.log(4))
    assert float(epsilon_at(0.05, 0.001, 0.1)) == 0.0  # delta alone allows it
    assert float(epsilon_at(0.1, 0.5, 0.0)) == 0.0


def test_mu_of_rates_is_the_gaussian_shift() -> None:
    assert mu_at(norm.sf(1.0 - 0.7), norm.sf(1.0)) == pytest.approx(0.7)
    assert mu_at(0.0, 0.3) == 0.0


def test_one_pair_of_limits_serves_every_delta() -> None:
    test = Counted(Cut(0.0), hits=900, misses=100, runs=1000, alpha=0.05)
    low, high = test.limits
    for delta in (1e-6, 0.1, 0.5):
        assert test.epsilon(delta) == pytest.approx(math.log((low - delta) / high))
    assert test.epsilon(0.95) == 0.0


def test_a_claim_by_events_is_the_curve_of_its_event() -> None:
    # Balle and Wang, 2018: delta of the Gaussian mechanism at epsilon, in closed form.
    sigma = 1.08116  # golden: gaussian_composed, K=1, delta=1e-5, eps=4
    claim = Claim.by_events(dp.GaussianDpEvent(sigma), 1e-5)
    assert claim.epsilon == pytest.approx(4.0, rel=1e-4)
    for point in claim.points:
        if point.epsilon > 0:
            delta = norm.cdf(0.5 / sigma - point.epsilon * sigma)
            delta -= math.exp(point.epsilon) * norm.cdf(-0.5 / sigma - point.epsilon * sigma)
            assert delta == pytest.approx(point.delta, rel=1e-2)


def test_cuts_find_the_direction_that_shows_more() -> None:
    rng = np.random.default_rng(1)
    # Only the first graph ever gives scores below -3: the answer "first" is then sure.
    first = np.where(rng.random(5000) < 0.2, -4.0, rng.normal(size=5000))
    second = np.clip(rng.normal(size=5000), -3, None)
    found = best_cut(first, second, (Point(1e-6, 0.0),), 0.05)
    assert found.cut.below
    assert not found.cut.second
    assert found.cut.level < -3
    # The same with the scores or the graphs the other way round.
    turned = best_cut(-first, -second, (Point(1e-6, 0.0),), 0.05).cut
    assert (turned.below, turned.second) == (False, False)
    swapped = best_cut(second, first, (Point(1e-6, 0.0),), 0.05).cut
    assert (swapped.below, swapped.second) == (True, True)


def test_cuts_need_scores_of_both() -> None:
    with pytest.raises(PlanError, match="as many runs"):
        best_cut(np.zeros(3), np.zeros(0), (Point(0.0, 1.0),), 0.05)


def test_few_outcomes_are_told_apart_by_how_often_they_occur() -> None:
    """A fault that moves no mean and no spread: three answers, of which two change places."""
    rng = np.random.default_rng(0)
    answers = np.array([[0.0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 1, 1]])
    drawn = [
        answers[rng.choice(4, 2000, p=p)] for p in ([0.4, 0.1, 0.1, 0.4], [0.1, 0.4, 0.4, 0.1])
    ]
    statistics = dict(learnt(drawn[0][:1000], drawn[1][:1000]))
    first, second = (statistics["outcomes"](part[1000:]) for part in drawn)
    assert second.mean() - first.mean() > 1.5
    # Among noise no outcome comes twice, and there is no such table.
    noise = rng.normal(size=(500, 3))
    assert "outcomes" not in dict(learnt(noise, noise + 1))
