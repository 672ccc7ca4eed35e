"""Golden values carry their provenance in tests/golden/accounting.json."""

import json
import math
import time
from functools import partial
from pathlib import Path

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as google
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import fft, optimize, special

from tacit.errors import PlanError
from tacit.privacy import losses
from tacit.privacy.accounting import (
    ORDERS,
    calibrate,
    calibrate_rdp,
    cost,
    epsilon_pld,
    epsilon_rdp,
)
from tacit.privacy.losses import Loss

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "accounting.json").read_text())
FOUR_DIGITS = 1e-4


def gaussian(noise, count=1):
    return dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise), count)


def sampled(noise, rate, steps):
    event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))
    return dp.SelfComposedDpEvent(event, steps)


def gap_ndp(noise, steps=781, rate=256 / 20000):
    return dp.ComposedDpEvent(
        [sampled(noise, rate, steps), gaussian(noise, 2), sampled(noise, rate, steps)]
    )


def balle_wang(noise, delta):
    """Exact epsilon of one Gaussian mechanism (Balle & Wang 2018, Theorem 8): the oracle."""
    mu = 1 / noise

    def excess(epsilon):
        near = special.ndtr(mu / 2 - epsilon / mu)
        return near - math.exp(epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)) - delta

    return optimize.brentq(excess, 0, 700, xtol=1e-14) if excess(0.0) > 0 else 0.0


def close(value, expected):
    return value == pytest.approx(expected, rel=FOUR_DIGITS)


@pytest.mark.parametrize(
    "row", GOLDEN["gaussian_composed"], ids=lambda r: f"K{r['K']}-e{r['eps']}-d{r['delta']}"
)
def test_composed_gaussians_calibrate_to_the_golden_noise(row):
    found = calibrate(lambda noise: gaussian(noise, row["K"]), row["eps"], row["delta"])
    assert close(found, row["exact"])
    assert close(found, row["pld"])
    assert found >= row["exact"] * (1 - 1e-12)  # Never less noise than the truth asks for.
    renyi = calibrate_rdp(lambda noise: gaussian(noise, row["K"]), row["eps"], row["delta"])
    assert close(renyi, row["rdp"])


PIPELINE = {k: v for k, v in GOLDEN["gap_ndp_pipeline"].items() if "eps" in v}


@pytest.mark.parametrize("row", PIPELINE.values(), ids=PIPELINE.keys())
def test_gap_ndp_calibrates_to_the_golden_noise(row):
    event = partial(gap_ndp, steps=row["steps"])
    assert close(calibrate(event, row["eps"], row["delta"]), row["sigma_pld"])
    assert close(epsilon_rdp(event(row["sigma_rdp"]), row["delta"]), row["eps"])
    assert close(epsilon_pld(event(row["sigma_rdp"]), row["delta"]), row["pld_eps_at_sigma_rdp"])


def test_gap_ndp_renyi_calibration_of_the_design():
    assert close(calibrate_rdp(gap_ndp, 8.0, 1e-5), 1.00185)
    assert close(calibrate(gap_ndp, 8.0, 1e-5), 0.94855)


def test_steps_that_ran_but_were_not_counted():
    row = GOLDEN["gap_ndp_pipeline"]["accounted781_executed790"]
    noise = GOLDEN["gap_ndp_pipeline"]["eps8.0_steps781"]["sigma_pld"]
    assert close(epsilon_pld(gap_ndp(noise, steps=781), 1e-5), row["pld_claim"])
    assert close(epsilon_pld(gap_ndp(noise, steps=790), 1e-5), row["pld_true"])


@pytest.mark.parametrize("name", ["N20000", "facebook"])
def test_gap_ndp_against_autodp(name):
    row = GOLDEN["gap_ndp_autodp"][name]
    rate, steps = 256 / row["N"], row["steps"]
    event = partial(gap_ndp, steps=steps, rate=rate)
    found = calibrate(event, 8.0, 1e-5)
    assert close(found, row["sigma_pld"])
    assert close(epsilon_rdp(event(row["sigma_rdp"]), 1e-5), 8.0)
    # autodp, another implementation of the Renyi bound, asks for up to a thousandth more noise.
    assert row["sigma_rdp"] <= row["sigma_autodp"] <= row["sigma_rdp"] * 1.002
    assert close(calibrate(lambda s: gaussian(s, 2), 8.0, 1e-5), row["pld_pma_only"])
    assert close(calibrate(lambda s: sampled(s, rate, 2 * steps), 8.0, 1e-5), row["pld_sgd_only"])
    assert close(10 * found, row["noise_std_PMA_pld(D=100)"])


@pytest.mark.parametrize("row", GOLDEN["gap_edp_undirected"], ids=str)
def test_true_epsilon_of_an_undirected_edge_where_a_directed_one_was_charged(row):
    noise = optimize.brentq(lambda s: balle_wang(s, row["delta"]) - row["claim"], 0.1, 100)
    assert close(epsilon_pld(gaussian(noise / math.sqrt(2)), row["delta"]), row["true_undirected"])


@pytest.mark.parametrize("row", GOLDEN["gap_ndp_pma_only_replace"], ids=str)
def test_true_epsilon_of_replaced_records(row):
    noise = optimize.brentq(lambda s: balle_wang(s, 1e-5) - row["claim"], 0.1, 100)
    assert close(epsilon_pld(gaussian(noise / 2), 1e-5), row["replace_signed"])
    assert close(epsilon_pld(gaussian(noise / math.sqrt(2)), 1e-5), row["replace_nonneg"])


@pytest.mark.parametrize(("sgd", "hops"), GOLDEN["gap_decoupled"].items())
def test_splitting_the_noise_scale(sgd, hops):
    training = sampled(float(sgd), 256 / 20000, 1562)
    found = calibrate(lambda s: dp.ComposedDpEvent([training, gaussian(s, 2)]), 8.0, 1e-5)
    assert close(found, hops)


@pytest.mark.parametrize("row", GOLDEN["dpa_sigma_table"], ids=lambda r: f"e{r['eps']}")
def test_layers_of_gaussian_noise(row):
    for key in ("analytic_L1", "analytic_L4", "analytic_L10"):
        layers = int(key.removeprefix("analytic_L"))
        assert close(epsilon_pld(gaussian(row[key], layers), 1e-5), row["eps"])


@pytest.mark.parametrize("row", GOLDEN["sampled_laplace"], ids=str)
def test_sampled_laplace_composed(row):
    for sensitivity in (1, 2):
        noise = 1 / (row["lam"] * sensitivity)
        event = dp.PoissonSampledDpEvent(row["gamma"], dp.LaplaceDpEvent(noise))
        found = epsilon_pld(dp.SelfComposedDpEvent(event, row["Q"]), row["delta"])
        assert close(found, row[f"pld_lap_sens{sensitivity}"])


@settings(max_examples=50, deadline=None)
@given(st.floats(-1.2, 4.0), st.floats(-10, -2))
def test_gaussian_epsilon_is_the_exact_one(log_noise, log_delta):
    noise, delta = 10**log_noise, 10**log_delta
    exact = balle_wang(noise, delta)
    found = epsilon_pld(dp.GaussianDpEvent(noise), delta)
    assert exact - 1e-9 <= found <= exact * (1 + FOUR_DIGITS) + 1e-9
    coarse = epsilon_pld(dp.GaussianDpEvent(noise), delta, resolution="coarse")
    assert exact - 1e-9 <= coarse <= exact * 1.01 + 1e-9


GOOGLE_CASES = {
    "laplace": (dp.LaplaceDpEvent(2.0), 30),
    "laplace-strong": (dp.LaplaceDpEvent(0.2), 3),
    "sampled-laplace": (dp.PoissonSampledDpEvent(0.2, dp.LaplaceDpEvent(1.0)), 50),
    "geometric": (DiscreteLaplaceDpEvent(0.5, 1), 40),
    "geometric-wide": (DiscreteLaplaceDpEvent(0.3, 4), 20),
    "sampled-gaussian": (dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(0.8)), 200),
    "often-sampled": (dp.PoissonSampledDpEvent(0.9, dp.GaussianDpEvent(4.0)), 60),
}


@pytest.mark.parametrize(("event", "count"), GOOGLE_CASES.values(), ids=GOOGLE_CASES.keys())
def test_agrees_with_googles_accountant(event, count):
    repeated = dp.SelfComposedDpEvent(event, count)
    accountant = PLDAccountant().compose(repeated)
    for delta in (1e-3, 1e-6):
        theirs = accountant.get_epsilon(delta)
        # Theirs rounds discrete losses up to its grid; ours keeps both masses of a cell.
        rel = 1e-5 if isinstance(event, DiscreteLaplaceDpEvent) else 2e-6
        assert epsilon_pld(repeated, delta) == pytest.approx(theirs, rel=rel)


def test_mixed_composition_agrees_with_googles_accountant():
    event = dp.ComposedDpEvent([GOOGLE_CASES[k][0] for k in GOOGLE_CASES])
    theirs = PLDAccountant().compose(event).get_epsilon(1e-5)
    assert epsilon_pld(event, 1e-5) == pytest.approx(theirs, rel=1e-5)


def test_repeated_randomized_response_is_counted():
    """dp-accounting 0.6.0's PLDAccountant charges it once, whatever the count."""
    event = dp.SelfComposedDpEvent(dp.RandomizedResponseDpEvent(0.5, 2), 10)
    once = google.from_randomized_response(0.5, 2, value_discretization_interval=1e-5)
    assert epsilon_pld(event, 1e-5) == pytest.approx(
        once.self_compose(10).get_epsilon_for_delta(1e-5), rel=1e-4
    )
    # Exact, by the binomial sum of ten answers that each shift the loss by +-ln 3.
    k, up = np.arange(11), math.log(3)
    mass, loss = special.comb(10, k) * 0.75**k * 0.25 ** (10 - k), (2 * k - 10) * up
    found = epsilon_pld(event, 1e-5)
    delta = float(np.sum(mass * np.maximum(0, -np.expm1(found - loss))))
    assert delta == pytest.approx(1e-5, rel=1e-3)


@settings(max_examples=12, deadline=None)
@given(
    st.floats(0.001, 0.6), st.floats(0.4, 20.0), st.integers(1, 3000), st.sampled_from([1e-4, 1e-7])
)
def test_the_deciding_accountant_is_never_far_above_the_renyi_one(rate, noise, steps, delta):
    event = sampled(noise, rate, steps)
    found = epsilon_pld(event, delta)
    assert found <= epsilon_rdp(event, delta) * (1 + 1e-3) + 1e-6


@pytest.mark.parametrize(
    "event",
    [dp.LaplaceDpEvent(0.5), dp.LaplaceDpEvent(7.0)],
    ids=["strong", "weak"],
)
def test_renyi_of_laplace_agrees_with_google(event):
    theirs = RdpAccountant(ORDERS).compose(event, 20).get_epsilon(1e-6)
    assert epsilon_rdp(dp.SelfComposedDpEvent(event, 20), 1e-6) == pytest.approx(theirs, rel=1e-4)


def test_renyi_of_randomized_response_agrees_with_google():
    relation = dp.NeighboringRelation.REPLACE_ONE
    event = dp.RandomizedResponseDpEvent(0.3, 5)
    theirs = RdpAccountant(ORDERS, relation).compose(event, 9).get_epsilon(1e-6)
    assert epsilon_rdp(dp.SelfComposedDpEvent(event, 9), 1e-6) == pytest.approx(theirs, rel=1e-9)


def test_pure_mechanisms_at_delta_zero_add_up():
    event = dp.ComposedDpEvent(
        [
            dp.LaplaceDpEvent(2.0),
            DiscreteLaplaceDpEvent(0.25, 2),
            dp.RandomizedResponseDpEvent(0.5, 2),
            dp.PoissonSampledDpEvent(0.1, dp.LaplaceDpEvent(1.0)),
        ]
    )
    expected = 0.5 + 0.5 + math.log(3) + math.log1p(0.1 * math.expm1(1.0))
    assert cost(event, 0.0).epsilon == pytest.approx(expected, rel=1e-12)
    assert cost(event, 0.0).epsilon_rdp == pytest.approx(expected, rel=1e-12)
    assert epsilon_pld(event, 1e-9) <= expected
    assert math.isinf(epsilon_pld(dp.GaussianDpEvent(5.0), 0.0))


def test_no_noise_costs_everything_and_nothing_costs_nothing():
    spoiled = dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), dp.NonPrivateDpEvent()])
    for event in (dp.NonPrivateDpEvent(), spoiled, dp.GaussianDpEvent(0.0), dp.LaplaceDpEvent(0.0)):
        found = cost(event, 1e-5)
        assert math.isinf(found.epsilon)
        assert math.isinf(found.epsilon_rdp)
    for event in (dp.NoOpDpEvent(), dp.ComposedDpEvent([]), gaussian(1.0, 0), sampled(1.0, 0.0, 9)):
        assert cost(event, 1e-5).epsilon == 0.0
        assert cost(event, 1e-5).epsilon_rdp == 0.0


@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan, math.inf])
def test_delta_out_of_range_is_refused(delta):
    with pytest.raises(PlanError, match="delta"):
        cost(dp.GaussianDpEvent(1.0), delta)
    with pytest.raises(PlanError, match="delta"):
        calibrate(dp.GaussianDpEvent, 1.0, delta)


def test_calibration_never_overshoots_and_is_tight():
    for epsilon in (0.1, 16.0):
        for rate, steps in ((1e-3, 2000), (0.25, 80), (1.0, 7)):
            event = partial(sampled, rate=rate, steps=steps)
            scale = calibrate(event, epsilon, 1e-6)
            assert epsilon_pld(event(scale), 1e-6) <= epsilon
            assert epsilon_pld(event(scale * (1 - 2e-4)), 1e-6) > epsilon


def test_calibration_reports_what_cannot_be_met():
    fixed = dp.GaussianDpEvent(0.5)
    with pytest.raises(PlanError, match="no noise scale"):
        calibrate(lambda s: dp.ComposedDpEvent([fixed, dp.GaussianDpEvent(s)]), 1.0, 1e-5)
    with pytest.raises(PlanError, match="no noise scale"):
        calibrate(lambda _: dp.NonPrivateDpEvent(), 1.0, 1e-5)
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(PlanError, match="calibrated"):
            calibrate(dp.GaussianDpEvent, epsilon, 1e-5)
    with pytest.raises(PlanError, match="searched"):
        calibrate(dp.GaussianDpEvent, 1.0, 1e-5, low=2.0, high=1.0)


def test_calibration_returns_the_lower_end_where_anything_will_do():
    assert calibrate(lambda _: dp.NoOpDpEvent(), 1.0, 1e-5) == pytest.approx(1e-2)
    assert calibrate(dp.GaussianDpEvent, 1.0, 1e-5, low=50.0) == pytest.approx(50.0)


def test_gap_ndp_calibrates_within_two_seconds():
    losses._sketch.cache_clear()
    start = time.perf_counter()
    calibrate(lambda s: gap_ndp(s, rate=256 / 20001), 8.0, 1e-5)
    assert time.perf_counter() - start < 2.0


EXTREMES = [
    *[(0.3, rate, steps) for rate in (0.01, 0.5) for steps in (1000, 10000)],
    *[(100.0, 0.01, 100_000), (100.0, 1e-4, 1000), (0.01, 0.1, 1000), (5.0, 1e-7, 10**6)],
    *[(1.0, 0.999, 100), (2.0, 1.0, 10**6), (1e-3, 0.5, 10)],
]


@pytest.mark.parametrize(("noise", "rate", "steps"), EXTREMES)
def test_extreme_events_stay_fast_and_sound(noise, rate, steps):
    start = time.perf_counter()
    found = epsilon_pld(sampled(noise, rate, steps), 1e-5)
    assert time.perf_counter() - start < 5.0
    renyi = epsilon_rdp(sampled(noise, rate, steps), 1e-5)
    assert 0.0 <= found <= renyi * 1.01 + 1e-6


def test_a_delta_below_the_rounding_of_the_transform_fails_closed():
    assert math.isinf(epsilon_pld(sampled(1.0, 0.1, 10**6), 1e-12))


@pytest.mark.parametrize(("noise", "rate", "steps"), [(0.95, 0.0128, 1562), (10, 0.1, 5000)])
def test_rounding_of_the_transform_stays_below_what_is_charged_for_it(noise, rate, steps):
    """Against transforms in long double."""
    start, mass, _ = losses._grid(Loss("gaussian", noise, rate=rate), 1e-3, 1e-16, True)
    size = fft.next_fast_len(max(len(mass), 1 << 16), real=True)
    ours = fft.irfft(fft.rfft(mass, size) ** steps, size)
    factor = fft.rfft(mass.astype(np.longdouble), size)
    product, rest = np.ones_like(factor), steps
    while rest:
        product = product * factor if rest % 2 else product
        factor, rest = factor * factor, rest // 2
    error = np.asarray(ours - fft.irfft(product, size), dtype=np.float64)
    assert start < 0
    assert np.abs(np.cumsum(error)).max() < losses._rounding(steps, size) / 2


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(
        [
            Loss("gaussian", 0.7),
            Loss("gaussian", 3.0, rate=0.02),
            Loss("laplace", 0.4),
            Loss("laplace", 2.0, rate=0.3),
            Loss("discrete-laplace", 0.4, 3),
            Loss("randomized-response", 0.4, 6),
        ]
    ),
    st.floats(-4, -0.5),
    st.booleans(),
)
def test_a_grid_distribution_is_one_and_dominates(loss, log_interval, removing):
    """Total mass 1, and E[e^-L] <= 1: the lower distribution loses nothing."""
    interval = 10**log_interval
    start, mass, infinite = losses._grid(loss, interval, 1e-14, removing)
    points = interval * (start + np.arange(len(mass)))
    assert mass.min() >= 0
    assert mass.sum() + infinite == pytest.approx(1.0, abs=1e-12)
    assert float(np.exp(-points) @ mass) <= 1 + 1e-9
    finer = losses._grid(loss, interval / 4, 1e-14, removing)
    fine_points = interval / 4 * (finer[0] + np.arange(len(finer[1])))
    for epsilon in (0.0, 0.3, 1.0):
        coarse_delta = float(mass @ np.maximum(0, -np.expm1(epsilon - points)))
        fine_delta = float(finer[1] @ np.maximum(0, -np.expm1(epsilon - fine_points)))
        assert fine_delta <= coarse_delta + 1e-11


def test_many_different_mechanisms_stay_fast():
    rng = np.random.default_rng(0)
    event = dp.ComposedDpEvent(
        [sampled(rng.uniform(3, 30), 0.0128, int(rng.integers(100, 2000))) for _ in range(100)]
    )
    start = time.perf_counter()
    quick = epsilon_pld(event, 1e-5, resolution="coarse")
    assert time.perf_counter() - start < 2.0
    fine = epsilon_pld(event, 1e-5)
    assert fine <= quick <= fine * 1.005


def test_nothing_is_logged(capfd):
    """dp-accounting warns about orders whose series does not converge."""
    assert epsilon_rdp(sampled(0.35, 0.9, 3), 1e-5) > 0
    assert capfd.readouterr() == ("", "")
