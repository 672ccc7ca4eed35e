"""Report noisy max on the simplex: its epsilon, that it is enough, and that less is not."""

import itertools
import math

import numpy as np
import pytest

from tacit.errors import PlanError
from tacit.privacy.noise import NoiseSource
from tacit.privacy.noisy_max import NoisyMax

# By an independent quadrature (shared golden values, key privgnn.rnm).
KNOWN = {
    (2, 0.1): 0.0999245, (2, 1.0): 0.9648431, (5, 0.4): 0.4664661, (10, 0.1): 0.1114204,
    (10, 0.2): 0.2238646, (10, 0.4): 0.4513656, (10, 0.8): 0.9103694, (10, 1.0): 1.1373617,
    (34, 0.2): 0.2067318, (41, 0.8): 0.8311135, (47, 0.1): 0.1022889, (47, 1.0): 1.0380584,
}  # fmt: skip


@pytest.mark.parametrize(("classes", "lam"), KNOWN)
def test_epsilon_agrees_with_an_independent_quadrature(classes, lam):
    found = NoisyMax(classes, lam).epsilon
    assert found == pytest.approx(KNOWN[classes, lam], abs=2e-6)
    # Power: two thirds or three halves of the noise are other numbers.
    for wrong in (lam * 1.5, lam / 1.5):
        assert abs(NoisyMax(classes, wrong).epsilon - KNOWN[classes, lam]) > 0.01


@pytest.mark.parametrize("lam", [0.1, 0.7, 3.0])
def test_two_classes_have_a_closed_form(lam):
    # The difference of two Laplace variables exceeds -1 with probability 1 - e^-lam (2 + lam)/4.
    wrong = math.exp(-lam) * (2 + lam) / 4
    assert NoisyMax(2, lam).probabilities() == pytest.approx((1 - wrong, wrong), rel=1e-12)


def test_what_is_drawn_survives_as_often_as_is_claimed():
    answer, rounds = NoisyMax(10, 1.0), 40_000
    corner = np.zeros(10, np.int64)
    corner[0] = 2**answer.bits
    noise = NoiseSource.seeded(5).laplace(answer.scale, (rounds, 10))
    kept = ((corner + noise).argmax(axis=1) == 0).mean()
    most, least = answer.probabilities()
    deviation = math.sqrt(most * (1 - most) / rounds)
    assert abs(kept - most) < 6 * deviation
    assert abs(kept - least) > 6 * deviation, "the check has no power"


def test_no_two_points_of_the_simplex_are_further_apart_than_two_corners():
    answer, rng = NoisyMax(4, 0.9), np.random.default_rng(0)
    at = np.linspace(-40, 40, 8001) / answer.lam
    density = answer.lam / 2 * np.exp(-answer.lam * np.abs(at))

    def below(x: np.ndarray) -> np.ndarray:
        tail = np.exp(-answer.lam * np.abs(x)) / 2
        return np.where(x < 0, tail, 1 - tail)

    def chance(p: np.ndarray) -> float:
        others = np.prod([below(at + p[0] - p[i]) for i in (1, 2, 3)], axis=0)
        return float((density * others).sum() * (at[1] - at[0]))

    points = [*np.eye(4), np.full(4, 0.25), *rng.dirichlet(np.full(4, 0.4), 40)]
    chances = [chance(p) for p in points]
    worst = max(math.log(a / b) for a, b in itertools.permutations(chances, 2))
    assert worst == pytest.approx(answer.epsilon, abs=1e-4)
    assert worst > answer.lam * 0.95
    assert worst < 2 * answer.lam * 0.7, "releasing the vector costs twice lambda"


def test_ties_are_charged_and_little_noise_promises_nothing():
    assert 0 < NoisyMax(10, 0.2).ties < 1e-9
    assert math.isinf(NoisyMax(47, 60.0).epsilon)
    assert NoisyMax(10, 1e-4).scale <= 2**40


@pytest.mark.parametrize(("classes", "lam"), [(1, 1.0), (10, 0.0), (10, 65.0), (10, math.nan)])
def test_what_cannot_be_drawn_is_refused(classes, lam):
    with pytest.raises(PlanError):
        NoisyMax(classes, lam)
