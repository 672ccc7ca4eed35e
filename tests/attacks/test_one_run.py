"""One run with many canaries: the bound against a plain program, coverage, and shipped methods."""

import math

import numpy as np
import pytest

import tacit
from tacit.attacks.audit import Game
from tacit.attacks.one_run import epsilon_of_guesses, guess, one_run, one_run_method, p_value
from tacit.errors import PlanError
from tacit.methods import METHODS


def plain_p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Theorem 5.2 term by term, in integers and logarithms."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    tail = [math.fsum(mass[k:]) for k in range(r + 1)]
    slack = max((tail[v - i] - tail[v]) / i for i in range(1, v + 1))
    return min(1.0, tail[v] + 2 * m * delta * slack)


@pytest.mark.parametrize("v", [60, 75, 90, 100])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.0, 1e-5), (2.0, 1e-4)])
def test_the_p_value_is_that_of_a_plain_program(v: int, epsilon: float, delta: float) -> None:
    assert p_value(1000, 100, v, epsilon, delta) == pytest.approx(
        plain_p_value(1000, 100, v, epsilon, delta), rel=1e-9
    )


def test_all_right_of_r_refutes_what_the_binomial_says() -> None:
    # Without delta: q^r <= 0.05, so epsilon = logit(0.05^(1/r)).
    q = 0.05 ** (1 / 100)
    assert epsilon_of_guesses(1000, 100, 100, 0.0) == pytest.approx(math.log(q / (1 - q)))
    assert epsilon_of_guesses(1000, 100, 55, 0.0) == 0.0
    assert epsilon_of_guesses(1000, 100, 100, 1e-3) < epsilon_of_guesses(1000, 100, 100, 0.0)


def test_more_right_than_guessed_is_refused() -> None:
    with pytest.raises(PlanError, match="right of"):
        p_value(10, 5, 6, 1.0, 0.0)


def test_guesses_are_the_ends_of_the_scores() -> None:
    assert guess(np.array([3.0, -1.0, 0.0, 5.0, -7.0]), 3).tolist() == [1, 0, 0, 1, -1]


def response(epsilon: float, seed: int) -> Game:
    """One run of randomised response on every canary."""
    rng = np.random.default_rng(seed + 10**6)
    stay = 1 / (1 + math.exp(-epsilon))

    def release(sides: np.ndarray) -> np.ndarray:
        return (sides ^ (rng.random(len(sides)) >= stay))[:, None].astype(float)

    return Game("bit", release, ratio=lambda released: released[:, 0])


def test_one_run_of_a_true_claim_is_called_broken_rarely_and_comes_near() -> None:
    found = [
        one_run(response(1.0, s), 1.0, 0.0, canaries=1000, guesses=1000, seed=s) for s in range(60)
    ]
    assert sum(run.verdict == "broken" for run in found) <= 0.05 * 60
    assert np.median([run.epsilon_lower for run in found]) > 0.8


def test_one_run_catches_half_the_noise() -> None:
    run = one_run(response(2.0, 0), 1.0, 0.0, canaries=1000, seed=0)
    assert run.verdict == "broken"
    assert run.to_dict()["epsilon_lower"] > 1.0


def test_one_run_sees_noise_that_canaries_share() -> None:
    """Many runs side by side would call this private: every canary alone looks noisy."""
    rng = np.random.default_rng(0)

    def release(sides: np.ndarray) -> np.ndarray:
        return sides[:, None] + rng.normal(0, 4) + rng.normal(0, 1e-3, (len(sides), 1))

    game = Game("shared", release, ratio=lambda released: released[:, 0] - released.mean())
    assert one_run(game, 1.0, 1e-5, canaries=500, seed=0).verdict == "broken"


@pytest.mark.parametrize(
    "method",
    [
        tacit.GAP(tacit.Edge(), 4.0, 1e-6),
        tacit.GAP(tacit.Node(), 4.0, 1e-5, overrides={"steps": 2}),
        tacit.MLP(tacit.Node(), 8.0, 1e-5, overrides={"steps": 5}),
    ],
    ids=["gap-edge", "gap-node", "mlp-node"],
)
def test_shipped_methods_hold_in_one_run(method: tacit.methods.Method) -> None:
    run = one_run_method(method, seed=2)
    assert run.verdict == "holds"
    assert 0.1 < run.epsilon_lower <= run.epsilon_claimed


def test_one_whole_fit_is_a_run() -> None:
    overrides = {"epochs": 1, "folds": 1, "patience": 0, "hidden": 4}
    method = tacit.GAP(tacit.Edge(), 8.0, 1e-6, overrides=overrides)
    run = one_run_method(method, canaries=250, whole=True, seed=2)
    assert run.verdict == "holds"
    assert run.epsilon_lower > 1.0


def test_one_perturbed_graph_is_a_run() -> None:
    method = METHODS["edgerand"](tacit.Edge(), 4.0, 1e-6, overrides={"epochs": 1})
    run = one_run_method(method, canaries=120, seed=2)
    assert run.verdict == "holds"
    assert run.epsilon_lower > 1.0
