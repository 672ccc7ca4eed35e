"""Accounting: what an event costs, and the noise that meets a budget.

Two accountants read the same event. The privacy-loss-distribution accountant decides; a Renyi
accountant, which shares no code with it, cross-checks. Both are upper bounds of the true cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import special

from tacit.errors import PlanError
from tacit.privacy import losses as grid
from tacit.privacy.events import describe, simplify
from tacit.privacy.losses import Floats, Loss

if TYPE_CHECKING:
    from dp_accounting import DpEvent

ORDERS: tuple[float, ...] = (
    *(1 + k / 10 for k in range(1, 100)),
    *range(11, 64),
    *(64, 80, 96, 128, 192, 256, 512, 1024, 2048),
)
"""The Renyi orders at which every figure is computed."""

_SEARCH_ORDERS: tuple[float, ...] = (2, 3, 4, 5, 6, 8, 10, 13, 17, 24, 32, 48, 64, 128, 256)
_CLOSE = 5e-5
"""Calibration stops when epsilon is below the target by at most this share of it."""

Composition = tuple[tuple[Loss, int], ...]


@dataclass(frozen=True)
class Cost:
    """What an event costs. Never shown without the unit of privacy it refers to.

    Args:
        epsilon: By privacy loss distributions: the figure that decides.
        epsilon_rdp: By Renyi differential privacy: the cross-check.
        delta: The delta of both.
    """

    epsilon: float
    epsilon_rdp: float
    delta: float


def cost(event: DpEvent, delta: float) -> Cost:
    """The cost of an event by both accountants.

    Args:
        event: What was, or will be, done.
        delta: The public delta, in [0, 1).

    Returns:
        Both figures; infinite for an event without privacy.

    Raises:
        PlanError: The event is unknown or delta is out of range.
    """
    return Cost(epsilon_pld(event, delta), epsilon_rdp(event, delta), delta)


def epsilon_pld(
    event: DpEvent, delta: float, *, resolution: Literal["fine", "coarse"] = "fine"
) -> float:
    """Epsilon by privacy loss distributions: an upper bound, within 1e-4 of tight.

    Args:
        event: What was, or will be, done.
        delta: The public delta, in [0, 1).
        resolution: ``coarse`` is ten times as fast and may answer about a thousandth more.

    Returns:
        The smallest epsilon shown; infinite for an event without privacy.

    Raises:
        PlanError: The event is unknown or delta is out of range.

    Formal guarantees:
        A mechanism that this event describes is (epsilon, delta)-differentially private for the
        unit and relation to which the event's noise multipliers and sampling rates refer. Poisson
        sampling refers to one record present or absent, never to a replaced one.
    """
    _check_delta(delta)
    composition = simplify(event)
    return math.inf if composition is None else _pld(composition, delta, resolution == "fine")


def epsilon_rdp(event: DpEvent, delta: float) -> float:
    """Epsilon by Renyi differential privacy at :data:`ORDERS`.

    Sampled Gaussians follow Mironov, Talwar, Zhang 2019 (https://arxiv.org/abs/1908.10530) and the
    conversion to epsilon Proposition 12 of Canonne, Kamath, Steinke 2020
    (https://arxiv.org/abs/2004.00010), both as dp-accounting implements them.

    Args:
        event: What was, or will be, done.
        delta: The public delta, in [0, 1). At 0 both accountants add up pure epsilons.

    Returns:
        An upper bound of epsilon; infinite for an event without privacy.

    Raises:
        PlanError: The event is unknown or delta is out of range.
    """
    _check_delta(delta)
    composition = simplify(event)
    return math.inf if composition is None else _rdp(composition, delta, ORDERS)


def calibrate(
    make_event: Callable[[float], DpEvent],
    epsilon: float,
    delta: float,
    *,
    low: float = 1e-2,
    high: float = 1e4,
) -> float:
    """The smallest noise scale found whose event costs at most epsilon.

    Args:
        make_event: The event at a noise scale; its cost must not grow with the scale.
        epsilon: The target.
        delta: The public delta, in [0, 1).
        low: Smallest scale considered; returned if it already meets the target.
        high: Largest scale considered.

    Returns:
        A scale within 1e-4 of the smallest possible one.

    Raises:
        PlanError: No scale up to ``high`` meets the target.

    Formal guarantees:
        ``epsilon_pld(make_event(scale), delta) <= epsilon`` was evaluated for the scale returned:
        the target is never overshot, however the search went.
    """

    def rough(scale: float) -> float:
        composition = simplify(make_event(scale))
        return math.inf if composition is None else _rdp(composition, delta, _SEARCH_ORDERS)

    _check_search(epsilon, delta, low, high)
    # Renyi brackets the answer at any scale in milliseconds; the coarse grid comes within a
    # thousandth; two or three evaluations of the fine one decide.
    guess, _ = _search(rough, epsilon, low, high, 1e-2, None)
    guess, slope = _search(
        lambda scale: epsilon_pld(make_event(scale), delta, resolution="coarse"),
        epsilon, low, high, 1e-3, (guess if guess is not None else high, -1.0),
    )  # fmt: skip
    fine, _ = _search(
        lambda scale: epsilon_pld(make_event(scale), delta),
        epsilon, low, high, _CLOSE, (guess if guess is not None else high, slope),
    )  # fmt: skip
    return _found(fine, make_event, epsilon, delta, high)


def calibrate_rdp(
    make_event: Callable[[float], DpEvent],
    epsilon: float,
    delta: float,
    *,
    low: float = 1e-2,
    high: float = 1e4,
) -> float:
    """The same as :func:`calibrate` by the Renyi accountant, to compare with published noise.

    Args:
        make_event: The event at a noise scale; its cost must not grow with the scale.
        epsilon: The target.
        delta: The public delta, in [0, 1).
        low: Smallest scale considered; returned if it already meets the target.
        high: Largest scale considered.

    Returns:
        A scale within 1e-6 of the smallest one whose Renyi epsilon is at most the target.

    Raises:
        PlanError: No scale up to ``high`` meets the target.
    """
    _check_search(epsilon, delta, low, high)
    found, _ = _search(
        lambda scale: epsilon_rdp(make_event(scale), delta), epsilon, low, high, 1e-6, None
    )
    return _found(found, make_event, epsilon, delta, high)


def _found(
    scale: float | None,
    make_event: Callable[[float], DpEvent],
    epsilon: float,
    delta: float,
    high: float,
) -> float:
    if scale is None:
        raise PlanError(
            f"no noise scale up to {high:g} brings {describe(make_event(high))} to epsilon "
            f"{epsilon:g} at delta {delta:g}",
            why="some part of the plan costs more than the whole budget at any noise",
            remedy="raise epsilon or delta, run fewer steps, or shrink the fixed part of the plan",
        )
    return scale


def _check_delta(delta: float) -> None:
    if not 0.0 <= delta < 1.0:
        raise PlanError(
            f"delta cannot be {delta!r}",
            why="it is the probability with which the promise may fail",
            remedy="choose a public number well below 1/n, such as 1e-6",
        )


def _check_search(epsilon: float, delta: float, low: float, high: float) -> None:
    _check_delta(delta)
    if not (epsilon > 0.0 and math.isfinite(epsilon)):
        raise PlanError(
            f"no noise can be calibrated to epsilon {epsilon!r}",
            why="the target is a positive finite number",
            remedy="for a run without privacy, plan no noise at all",
        )
    if not 0.0 < low < high < math.inf:
        raise PlanError(f"noise scales from {low!r} to {high!r} cannot be searched")


@lru_cache(maxsize=4096)
def _pld(composition: Composition, delta: float, fine: bool) -> float:
    return grid.epsilon(composition, delta, grid.FINE if fine else grid.COARSE)


@lru_cache(maxsize=4096)
def _rdp(composition: Composition, delta: float, orders: tuple[float, ...]) -> float:
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    if not composition:
        return 0.0
    if delta == 0.0:
        return math.fsum(count * loss.pure_epsilon for loss, count in composition)
    total = np.zeros(len(orders))
    for loss, count in composition:
        total = total + count * _curve(loss, orders)
    with _quiet():
        return float(compute_epsilon(orders, np.maximum(total, 0.0), delta)[0])


@lru_cache(maxsize=4096)
def _curve(loss: Loss, orders: tuple[float, ...]) -> Floats:
    """Renyi divergence of one mechanism at each order."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    if loss.kind == "group":
        return _group_curve(loss, np.array(orders, dtype=np.float64))
    if loss.kind != "gaussian":
        return grid.renyi(loss, np.array(orders, dtype=np.float64))
    event = dp.GaussianDpEvent(loss.noise)
    if loss.rate != 1.0:
        event = dp.PoissonSampledDpEvent(loss.rate, event)
    with _quiet():
        return np.asarray(RdpAccountant(orders).compose(event).rdp)


def _group_curve(loss: Loss, orders: Floats) -> Floats:
    """Renyi divergence of a sampled group, in closed form, its number in the sample revealed.

    ``E[e^(a(a-1) J^2 / 2s^2)]`` over J; more than the loss distribution charges, because a sample
    that holds none of the group is revealed too (proofs/dpdgc.md, Theorem 2).
    """
    sizes, weights = loss.members()
    exponents = np.outer(orders * (orders - 1) / 2, (sizes / loss.noise) ** 2)
    terms = np.log(weights * loss.rate) + exponents
    absent = np.full((len(orders), 1), loss.width * np.log1p(-loss.each))
    return special.logsumexp(np.hstack([absent, terms]), axis=1) / (orders - 1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Orders at which a series does not converge are left out; nobody needs to read about it."""
    from absl import logging

    level = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        logging.set_verbosity(level)


def _search(
    measure: Callable[[float], float],
    target: float,
    low: float,
    high: float,
    close: float,
    start: tuple[float, float] | None,
) -> tuple[float | None, float]:
    """The smallest scale found with ``measure(scale) <= target``, and the slope there.

    Epsilon is close to a power of the scale, so the secant through the two nearest points runs on
    logarithms; the bracket halves whenever the secant leaves it, so the search always ends.

    Args:
        measure: Decreasing in the scale; may be infinite.
        target: What it must not exceed.
        low: Smallest scale.
        high: Largest scale.
        close: Enough when the measure is within this share below the target.
        start: First guess and its logarithmic slope, if known.

    Returns:
        The scale, or None where even ``high`` exceeds the target, and d ln(measure)/d ln(scale).
    """
    guess, slope = start or (math.sqrt(low * high), -1.0)
    bottom, top = math.log(low), math.log(high)
    below: float | None = None  # ln of the smallest scale known to meet the target
    above: float | None = None  # ln of the largest scale known to exceed it
    at = min(max(math.log(guess), bottom), top)
    last: tuple[float, float] | None = None
    for _ in range(200):
        value = measure(math.exp(at))
        gap = (
            math.log(value / target)
            if 0 < value < math.inf
            else math.copysign(99.0, value - target)
        )
        if value <= target:
            below = at
            if at <= bottom or -gap <= close:
                break
        else:
            above = at
            if at >= top:
                return None, slope
        if last is not None and abs(gap) < 90 and abs(last[1]) < 90 and at != last[0]:
            seen = (gap - last[1]) / (at - last[0])
            slope = seen if -50 < seen < -1e-3 else slope
        last = (at, gap)
        # Aim slightly below the target, so that the last step lands on the permitted side.
        step = at - (gap + close * 0.4) / slope if abs(gap) < 90 else math.nan
        under = bottom if above is None else above
        over = top if below is None else below
        if above is not None and below is not None and over - under < 1e-9:
            break
        if above is None and not math.isnan(step) and step <= bottom:
            step = bottom
        elif below is None and not math.isnan(step) and step >= top:
            step = top
        elif math.isnan(step) or not under < step < over:
            # An end that was never evaluated may itself be the answer.
            step = (under + over) / 2 if over - under > 1e-9 else (over if below is None else under)
        at = step
    return (None if below is None else math.exp(below)), slope
