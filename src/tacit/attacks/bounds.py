"""From counted answers to a lower bound on epsilon: Clopper and Pearson, and the claim as a curve.

A test looks at the release and answers "second graph" on a set E. If the release is
(epsilon, delta)-DP, then ``P(E) <= e^epsilon Q(E) + delta`` both ways; so the rates of any test
bound epsilon from below (Wasserman and Zhou 2010; Kairouz, Oh, Viswanath 2015; Jagielski, Ullman,
Oprea 2020). Proofs: proofs/audit.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import PlanError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Floats = NDArray[np.float64]

DELTAS = (1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Deltas, beside the claimed one, at which a claim made by events is put to the test."""


@dataclass(frozen=True)
class Point:
    """One promise: (epsilon, delta)."""

    delta: float
    epsilon: float


@dataclass(frozen=True)
class Claim:
    """What a mechanism is said to promise.

    Attributes:
        points: Pairs of delta and epsilon, all of which are promised at once; the first is the
            one that a user is told.
    """

    points: tuple[Point, ...]

    @classmethod
    def of(cls, epsilon: float, delta: float) -> Claim:
        """The bare promise of one (epsilon, delta)."""
        return cls((Point(delta, epsilon),))

    @classmethod
    def by_events(cls, event: DpEvent, delta: float, epsilon: float | None = None) -> Claim:
        """The whole curve that a mechanism's event promises.

        A ledger composes events, not pairs of numbers: a mechanism that keeps one (epsilon, delta)
        but not the curve of its event makes every later total wrong.

        Args:
            event: What the mechanism is charged as.
            delta: The delta of the first point.
            epsilon: What was said at ``delta``; what the accountant says if None.
        """
        from tacit.privacy.accounting import epsilon_pld

        told = epsilon_pld(event, delta) if epsilon is None else epsilon
        rest = [Point(d, epsilon_pld(event, d)) for d in DELTAS if d > delta]
        return cls((Point(delta, told), *rest))

    @property
    def epsilon(self) -> float:
        """What a user is told."""
        return self.points[0].epsilon

    @property
    def delta(self) -> float:
        """The delta of what a user is told."""
        return self.points[0].delta


def clopper_pearson(hits: ArrayLike, runs: int, alpha: float) -> tuple[Floats, Floats]:
    """Lower and upper limits of a probability, each wrong with probability at most ``alpha``.

    Clopper and Pearson, "The use of confidence or fiducial limits", Biometrika 26, 1934.

    Args:
        hits: How often something happened, of ``runs`` independent trials.
        runs: The number of trials.
        alpha: Error of each side.
    """
    from scipy.special import betaincinv

    k = np.asarray(hits, np.float64)
    low = np.where(k > 0, betaincinv(np.maximum(k, 1), runs - k + 1, alpha), 0.0)
    high = np.where(k < runs, betaincinv(k + 1, np.maximum(runs - k, 1), 1 - alpha), 1.0)
    return low, high


def epsilon_at(rate: ArrayLike, other: ArrayLike, delta: float) -> Floats:
    """The smallest epsilon that allows a set to have these two probabilities, 0 if any does.

    ``log((rate - delta) / other)``; give a lower limit of the first rate and an upper limit of the
    second.
    """
    p, q = np.asarray(rate, np.float64) - delta, np.asarray(other, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(p > 0, np.log(np.maximum(p, 1e-300)) - np.log(q), 0.0)
    return np.maximum(found, 0.0)


def mu_at(rate: float, other: float) -> float:
    """The smallest mu for which Gaussian DP allows these two probabilities (Dong, Roth, Su 2022).

    The trade-off of ``mu``-GDP is ``Phi(Phi^-1(rate) - mu) <= other``.
    """
    from scipy.special import ndtri

    if rate <= 0 or other >= 1:
        return 0.0
    return max(0.0, float(ndtri(min(rate, 1 - 1e-16)) - ndtri(max(other, 1e-300))))


@dataclass(frozen=True)
class Cut:
    """A test: name a graph where the score is at least ``level``, or at most, if ``below``.

    Attributes:
        level: The threshold.
        below: Which side of it.
        second: Which graph is named.
    """

    level: float
    below: bool = False
    second: bool = True

    def count(self, scores: Floats) -> int:
        """How many scores get the answer."""
        hit = scores <= self.level if self.below else scores >= self.level
        return int(hit.sum())


@dataclass(frozen=True)
class Counted:
    """One test on runs that had no part in choosing it.

    Attributes:
        cut: The test.
        hits: Its answers on the graph that it points at, of ``runs``.
        misses: Its answers on the other graph, of ``runs``.
        runs: Runs on each graph.
        alpha: Error that the two limits may have together.
    """

    cut: Cut
    hits: int
    misses: int
    runs: int
    alpha: float

    @property
    def limits(self) -> tuple[float, float]:
        """A lower limit of the first rate and an upper limit of the second."""
        low, _ = clopper_pearson(self.hits, self.runs, self.alpha / 2)
        _, high = clopper_pearson(self.misses, self.runs, self.alpha / 2)
        return float(low), float(high)

    def epsilon(self, delta: float) -> float:
        """The lower bound at a delta. All deltas share the same two limits."""
        return float(epsilon_at(*self.limits, delta))

    @property
    def mu(self) -> float:
        """The lower bound on mu of Gaussian DP."""
        return mu_at(*self.limits)


@dataclass(frozen=True)
class Candidate:
    """A test and what it showed on the runs that it was chosen by."""

    cut: Cut
    margin: float


def best_cut(
    first: Floats, second: Floats, points: tuple[Point, ...], alpha: float, grid: int = 400
) -> Candidate:
    """The threshold and direction whose bound exceeds the claim by most, on pilot scores.

    Bounds are taken with the limits of Clopper and Pearson here too, so that a level beyond which
    a handful of scores lie by chance is not preferred.

    Args:
        first: Scores of runs on the first graph.
        second: Scores of as many runs on the second.
        points: The claim.
        alpha: Error of both limits.
        grid: Number of thresholds considered, denser towards both ends.

    Raises:
        PlanError: There are no scores.
    """
    runs = len(first)
    if not runs or len(second) != runs:
        raise PlanError("an audit needs as many runs of one graph as of the other, and some")
    ends = np.geomspace(0.5 / runs, 0.5, grid // 2)
    shares = np.concatenate([ends, 1 - ends[::-1]])
    low, high = np.sort(first), np.sort(second)
    both = np.sort(np.concatenate([low, high]))
    levels = np.unique(both[(shares * (2 * runs - 1)).round().astype(np.int64)])
    best = Candidate(Cut(float(levels[-1])), -math.inf)
    for below, named in product((False, True), repeat=2):
        side: Literal["left", "right"] = "right" if below else "left"
        counts = [np.searchsorted(scores, levels, side) for scores in (low, high)]
        if not below:
            counts = [runs - under for under in counts]
        rate, _ = clopper_pearson(counts[named], runs, alpha / 2)
        _, other = clopper_pearson(counts[not named], runs, alpha / 2)
        for point in points:
            # Not cut off at zero: a test that says "second" always must not look good where
            # nothing is claimed, and what is far from showing anything must be ordered too.
            left = np.maximum(rate - point.delta, 1e-12)
            margins = np.log(left) - np.log(other) - point.epsilon
            at = int(margins.argmax())
            if margins[at] > best.margin:
                best = Candidate(Cut(float(levels[at]), below, named), float(margins[at]))
    return best
