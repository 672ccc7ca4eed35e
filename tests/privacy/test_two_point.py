"""Sampled pure mechanisms by the binomial sum, against other ways to the same number."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from scipy import stats

from tacit.privacy.accounting import cost, epsilon_pld, epsilon_rdp
from tacit.privacy.noisy_max import NoisyMax
from tacit.privacy.two_point import epsilon, response_probability

# Computed independently as binomial sums: 1000 queries at rate .3, delta 1e-4, ten classes.
SOUND = {0.1: 4.065, 0.2: 9.595, 0.4: 24.497, 0.8: 69.375, 1.0: 98.814}


def event(pure: float, rate: float, rounds: int) -> dp.DpEvent:
    one = dp.RandomizedResponseDpEvent(response_probability(pure), 2)
    return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, one), rounds)


@pytest.mark.parametrize("lam", SOUND)
def test_the_paper_s_queries_cost_what_an_independent_sum_says(lam):
    pure = NoisyMax(10, lam).epsilon
    assert epsilon_pld(event(pure, 0.3, 1000), 1e-4) == pytest.approx(SOUND[lam], abs=6e-4)
    # Power: the paper's claim of lam itself, and twice it, are other numbers.
    for wrong in (lam, 2 * lam):
        assert abs(epsilon_pld(event(wrong, 0.3, 1000), 1e-4) - SOUND[lam]) > 0.01


@pytest.mark.parametrize(("pure", "rate", "rounds"), [(0.7, 1.0, 3), (0.7, 0.4, 3), (2.0, 0.1, 5)])
@pytest.mark.parametrize("delta", [1e-3, 0.05])
def test_few_rounds_agree_with_listing_every_outcome(pure, rate, rounds, delta):
    keep = 1 / (1 + math.exp(-pure))
    one = np.array([keep, 1 - keep])
    mixed, plain = rate * one + (1 - rate) * one[::-1], one[::-1]
    upper, lower = np.ones(1), np.ones(1)
    for _ in range(rounds):
        upper, lower = np.outer(upper, mixed).ravel(), np.outer(lower, plain).ravel()

    def excess(eps: float) -> float:
        forth = np.maximum(upper - math.exp(eps) * lower, 0).sum()
        back = np.maximum(lower - math.exp(eps) * upper, 0).sum()
        return max(forth, back) - delta

    found = epsilon(keep, rate, rounds, delta)
    assert excess(found) <= 1e-9
    assert found == 0 or excess(found - 1e-4) > 0


def test_the_grid_and_the_other_accountant_agree():
    pure = 0.3
    exact = cost(event(pure, 0.2, 200), 1e-5)
    # Beside another mechanism it goes through the grid, which may only answer more.
    beside = dp.ComposedDpEvent([event(pure, 0.2, 200), dp.GaussianDpEvent(1e5)])
    assert exact.epsilon <= epsilon_pld(beside, 1e-5) <= exact.epsilon + 1e-4
    assert exact.epsilon < exact.epsilon_rdp < 1.3 * exact.epsilon


def test_renyi_of_a_sampled_response_is_its_definition():
    pure, rate = 0.9, 0.25
    keep = 1 / (1 + math.exp(-pure))
    mixed = rate * keep + (1 - rate) * (1 - keep)
    pairs = [(mixed, 1 - keep), (1 - mixed, keep)]

    def divergence(order: float) -> float:
        return max(
            math.log(sum(p**order * q ** (1 - order) for p, q in pairs)),
            math.log(sum(q**order * p ** (1 - order) for p, q in pairs)),
        ) / (order - 1)

    one, many = (epsilon_rdp(event(pure, rate, n), 1e-6) for n in (1, 50))
    best = min(
        50 * divergence(a) + math.log1p(-1 / a) - math.log(1e-6 * a) / (a - 1)
        for a in [1 + k / 10 for k in range(1, 100)]
    )
    assert one < many == pytest.approx(best, rel=1e-6)


def test_sampling_every_time_is_no_sampling_and_never_is_free():
    assert epsilon_pld(event(0.5, 1.0, 1), 0.0) == pytest.approx(0.5)
    assert epsilon_pld(event(0.5, 0.0, 9), 1e-6) == 0
    assert epsilon_pld(event(0.5, 0.5, 7), 0.0) == pytest.approx(
        7 * math.log(1 + 0.5 * (math.exp(0.5) - 1))
    )


def test_tails_are_binomial():
    assert epsilon(0.6, 1.0, 400, 1e-5) == pytest.approx(
        max(
            math.log((stats.binom.sf(k - 1, 400, 0.6) - 1e-5) / stats.binom.sf(k - 1, 400, 0.4))
            for k in range(1, 290)
            if stats.binom.sf(k - 1, 400, 0.6) > 1e-5
        ),
        rel=1e-6,
    )
