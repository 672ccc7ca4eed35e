"""Privacy loss distributions on a grid: one mechanism's loss, and the composition of many.

A mechanism is described by the worst pair of output distributions ``P, Q`` of two neighbouring
inputs. Its privacy loss is ``L = ln P/Q``; Poisson sampling at rate ``q`` replaces ``P`` by
``M = (1-q) Q + q P``. Everything below is *pessimistic*: it may overstate a cost, never understate
it. Three steps:

1. **Discretise** by connecting the dots (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022,
   https://arxiv.org/abs/2207.04380): the mass of a cell of losses moves to the cell's two ends so
   that both its ``P``- and its ``Q``-mass are kept. The grid pair dominates the true one.
2. **Compose** by one fast Fourier transform over a window that holds all but a chosen mass of the
   sum of losses (Chernoff's bound on the grid distributions themselves); what lies outside counts
   as an infinite loss.
3. **Read** ``delta(eps) = sum_L p(L) (1 - e^(eps-L))_+`` off the grid, exactly.

Google's dp-accounting discretises the same way and is the oracle of the tests. This module exists
because it evaluates in a tenth of the time, bounds its memory, chooses the grid to suit very small
and very large losses, and counts repeated randomized response (dp-accounting 0.6.0 does not). One
repeated mechanism of two outcomes is not put on a grid: :mod:`tacit.privacy.two_point` sums it
exactly. See ``proofs/composition.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import fft, signal, special

from tacit.privacy import two_point

Floats = NDArray[np.float64]
Kind = Literal["gaussian", "laplace", "discrete-laplace", "randomized-response", "group"]

# Losses beyond this in one step are rounded up whole: e^loss leaves the range of a double.
_EXPONENT_LIMIT = 600.0
_SKETCH_CELLS = 1024
# Frequencies whose amplitude falls below this cannot change a mass by more than this.
_SILENT = 1e-22
# Sizes of a group that occur less often than this in a step are left out; all of them together are
# far below what _rounding gives away.
_UNHEARD = 1e-22


@dataclass(frozen=True, order=True)
class Loss:
    """The privacy loss of one mechanism, after Poisson sampling at ``rate``.

    Args:
        kind: Which noise. ``group`` is Gaussian noise on a Poisson sample in which a group of
            records is replaced; it is the same in both directions (proofs/dpdgc.md, Theorem 3).
        noise: Gaussian and Laplace: noise scale over sensitivity. Discrete Laplace: its parameter
            ``a`` (``P(k) ~ e^(-a|k|)``). Randomized response: the probability of a uniform answer.
            Group: noise scale over what one record of the group can change.
        width: Discrete Laplace: the integer sensitivity. Randomized response: number of answers.
            Group: number of records in it.
        rate: Poisson sampling rate; 1 means no sampling. Group: the probability that at least one
            of its records is in the sample.
        each: Group: the sampling rate of one record.
    """

    kind: Kind
    noise: float
    width: int = 1
    rate: float = 1.0
    each: float = 0.0

    @property
    def largest(self) -> float:
        """Largest ``|ln P/Q|`` before sampling: the pure epsilon, infinite for Gaussian noise."""
        if self.kind in ("gaussian", "group"):
            return math.inf
        if self.kind == "laplace":
            return 1.0 / self.noise
        if self.kind == "discrete-laplace":
            return self.noise * self.width
        share = self.noise / self.width
        return math.log1p(-self.noise + share) - math.log(share)

    @property
    def pure_epsilon(self) -> float:
        """Epsilon of this mechanism at delta 0, after sampling: ``ln(1 + q (e^eps - 1))``."""
        return float(self.sampled(np.float64(self.largest)))

    def sampled(self, losses: Floats | np.float64) -> Floats:
        """``ln M/Q`` where ``ln P/Q`` is given: ``ln(1 - q + q e^L)``, without overflow."""
        values = np.asarray(losses, dtype=np.float64)
        if self.rate == 1.0:
            return values
        return np.asarray(np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + values))

    def unsampled(self, losses: Floats) -> Floats:
        """The ``ln P/Q`` at which ``ln M/Q`` takes the given values; ``-inf`` below its range."""
        if self.rate == 1.0:
            return losses
        floor = math.log1p(-self.rate)
        inside = losses > floor
        out = np.full(losses.shape, -np.inf)
        x = losses[inside]
        # Where e^x would overflow, ln(1 + (e^x - 1)/q) is x - ln q to the last digit.
        argument = np.expm1(np.minimum(x, _EXPONENT_LIMIT)) / self.rate
        small = np.log1p(np.maximum(argument, -1.0 + 1e-16))
        out[inside] = np.where(x < _EXPONENT_LIMIT, small, x - math.log(self.rate))
        return out

    def span(self, tail: float) -> tuple[float, float]:
        """Bounds on ``ln P/Q``: each side leaves at most ``tail`` of ``P`` and of ``Q`` outside."""
        if self.kind == "group":
            sizes, weights = self.members()
            beyond = np.cumsum(weights[::-1])[::-1] - weights
            mu = float(sizes[int(np.argmax(beyond <= tail / 2))]) / self.noise
            reach = mu * mu / 2 - mu * float(special.ndtri(tail / 2))
            return -reach, reach
        if self.kind != "gaussian":
            return -self.largest, self.largest
        mu = 1.0 / self.noise
        reach = mu * mu / 2 - mu * float(special.ndtri(tail))
        return -reach, reach

    def members(self) -> tuple[Floats, Floats]:
        """Group: how many of its records are in the sample, given one is, with probabilities.

        Numbers of probability below 1e-22 are left out.
        """
        sizes = np.arange(1.0, self.width + 1.0)
        chances = (
            special.gammaln(self.width + 1)
            - special.gammaln(sizes + 1)
            - special.gammaln(self.width - sizes + 1)
            + sizes * math.log(self.each)
            + (self.width - sizes) * math.log1p(-self.each)
        )
        weights = np.exp(chances - math.log(self.rate))
        kept = weights > _UNHEARD
        return sizes[kept], weights[kept]

    def atoms(self) -> tuple[Floats, Floats, Floats]:
        """Point masses: ``(P-mass, Q-mass, ln P/Q)`` of the outcomes of positive probability."""
        if self.kind in ("gaussian", "group"):
            return np.empty(0), np.empty(0), np.empty(0)
        if self.kind == "laplace":
            ends = np.array([1.0, -1.0]) / self.noise
            far = math.exp(-1.0 / self.noise) / 2
            return np.array([0.5, far]), np.array([far, 0.5]), ends
        if self.kind == "randomized-response":
            share = self.noise / self.width
            keep = 1.0 - self.noise + share
            rest = (self.width - 2) * share
            top = self.largest
            return (
                np.array([keep, share, rest]),
                np.array([share, keep, rest]),
                np.array([top, -top, 0.0]),
            )
        # P is centred at 0, Q at width: below 0 and above width the ratio is constant.
        a, steps = self.noise, np.arange(self.width + 1, dtype=np.float64)
        weight = -math.expm1(-a) / (1 + math.exp(-a)) * np.exp(-a * steps)
        weight[[0, -1]] /= -math.expm1(-a)
        return weight, weight[::-1].copy(), a * (self.width - 2.0 * steps)

    def between(self, edges: Floats) -> tuple[Floats, Floats]:
        """``P``- and ``Q``-mass of the continuous part of ``ln P/Q`` between consecutive edges."""
        if self.kind == "group":
            near, far = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
            for size, weight in zip(*self.members(), strict=True):
                mu = float(size) / self.noise
                for masses, sign in ((near, -1.0), (far, 1.0)):
                    scaled = (edges + sign * mu * mu / 2) / mu
                    # Cells 40 standard deviations away hold nothing that a double can show.
                    low, high = np.searchsorted(scaled, (-40.0, 40.0))
                    inside = slice(max(0, low - 1), high + 1)
                    cells = _normal_cells(scaled[inside])
                    masses[inside.start : inside.start + len(cells)] += weight * cells
            return near, far
        if self.kind == "gaussian":
            mu = 1.0 / self.noise
            return _normal_cells((edges - mu * mu / 2) / mu), _normal_cells(
                (edges + mu * mu / 2) / mu
            )
        if self.kind == "laplace":
            # Between the two centres, x in (0, 1): ln P/Q = (1 - 2x)/b, P has density e^(-x/b)/2b.
            x = np.clip((1.0 - self.noise * edges) / 2, 0.0, 1.0)
            near = np.diff(np.expm1(-x / self.noise)) / 2
            far = -np.diff(np.expm1((x - 1.0) / self.noise)) / 2
            return np.maximum(near, 0.0), np.maximum(far, 0.0)
        return np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)


@dataclass(frozen=True)
class Resolution:
    """How fine the grid is.

    Args:
        interval: Largest distance between grid points.
        relative: The same, in units of the typical standard deviation of one step's loss.
        points: Most grid points of a composition: bounds memory and time.
    """

    interval: float
    relative: float
    points: int


FINE = Resolution(1e-4, 0.01, 1 << 20)
COARSE = Resolution(1e-3, 0.1, 1 << 16)
# Beyond this many different mechanisms the sum is smooth and the grid need not be as fine.
_MANY = 16


def epsilon(losses: Sequence[tuple[Loss, int]], delta: float, resolution: Resolution) -> float:
    """The smallest epsilon at which the composition is shown to be (epsilon, delta)-DP.

    Args:
        losses: Each mechanism with the number of its (adaptive) repetitions.
        delta: The public delta; 0 asks for pure differential privacy.
        resolution: Of the grid.

    Returns:
        An upper bound of the true epsilon; infinite where none can be shown.

    Formal guarantees:
        For every pair of neighbouring inputs whose steps are each dominated by the given pairs,
        the adaptive composition is (epsilon, delta)-DP (domination composes: Zhu, Dong, Wang
        2022, https://arxiv.org/abs/2106.08567).
    """
    if not losses:
        return 0.0
    pure = math.fsum(count * loss.pure_epsilon for loss, count in losses)
    if delta == 0.0:
        return pure
    if len(losses) == 1 and losses[0][0].kind == "randomized-response" and losses[0][0].width == 2:
        ((only, count),) = losses
        return min(two_point.epsilon(1.0 - only.noise / 2, only.rate, count, delta), pure)
    symmetric = all(loss.rate == 1.0 or loss.kind == "group" for loss, _ in losses)
    worst = 0.0
    for removing in (True,) if symmetric else (True, False):
        worst = max(worst, _epsilon_one_way(losses, delta, resolution, removing))
    return min(worst, pure)


def renyi(loss: Loss, orders: Floats) -> Floats:
    """Renyi divergences ``R_alpha`` of a mechanism without Gaussian noise, the worse direction.

    ``R_alpha(M|Q) = ln(sum p e^((alpha-1) L)) / (alpha-1)``. Exact where outcomes are discrete; for
    Laplace noise the sum runs over its grid distribution, which dominates it.
    """
    out = np.zeros(len(orders))
    for removing in (True, False):
        if loss.kind == "laplace":
            interval = 2 * loss.largest / (16 * _SKETCH_CELLS)
            start, mass, _ = _grid(loss, interval, 1e-300, removing)
            points = interval * (start + np.arange(len(mass)))
        else:
            upper, lower, points = loss.atoms()
            upper = (1.0 - loss.rate) * lower + loss.rate * upper
            points = loss.sampled(points)
            mass, points = (upper, points) if removing else (lower, -points)
        keep = mass > 0
        exponents = np.log(mass[keep]) + np.outer(orders - 1, points[keep])
        out = np.maximum(out, special.logsumexp(exponents, axis=1) / (orders - 1))
    return np.minimum(out, loss.pure_epsilon)


def _normal_cells(edges: Floats) -> Floats:
    """Standard normal mass between consecutive edges, accurate in both tails."""
    below, above = special.ndtr(edges), special.ndtr(-edges)
    return np.where(edges[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])


def _grid(loss: Loss, interval: float, tail: float, removing: bool) -> tuple[int, Floats, float]:
    """One step's loss on the grid: ``(first index, masses, mass of the infinite loss)``."""
    low, high = (float(v) for v in loss.sampled(np.array(loss.span(tail))))
    first, last = math.floor(low / interval), math.floor(high / interval) + 1
    edges = interval * np.arange(first, last + 1, dtype=np.float64)
    inner = loss.unsampled(edges)
    # The outermost cells of a bounded loss reach to infinity, so rounding loses nothing.
    p_mass, q_mass = loss.between(inner)
    p_atoms, q_atoms, at = loss.atoms()
    cell = np.clip(
        np.floor(loss.sampled(at) / interval).astype(np.int64) - first, 0, last - first - 1
    )
    np.add.at(p_mass, cell, p_atoms)
    np.add.at(q_mass, cell, q_atoms)
    mixed = p_mass if loss.rate == 1.0 else (1.0 - loss.rate) * q_mass + loss.rate * p_mass
    # What lies below the grid is rounded up to its first point; what lies above is infinite.
    if removing or loss.kind == "group":
        start, mass = first, _split(mixed, q_mass, edges, interval)
    else:
        start, mass = -last, _split(q_mass[::-1], mixed[::-1], -edges[::-1], interval)
    infinite = 0.0 if math.isfinite(loss.largest) else tail
    if loss.kind == "group":
        start, mass = _mirrored(start, mass, infinite, interval)
    mass[0] += max(0.0, 1.0 - infinite - float(mass.sum()))
    return start, mass, infinite


def _mirrored(start: int, mass: Floats, infinite: float, interval: float) -> tuple[int, Floats]:
    """The loss whose profile above 1 is given and which is its own reverse.

    Above loss 0 the masses stay; a loss of ``-x`` gets ``e^-x`` times the mass of ``x``; what is
    left of 1 has loss 0 (proofs/dpdgc.md, Theorem 3).
    """
    above = mass[max(0, 1 - start) :]
    if start > 0:
        above = np.concatenate([np.zeros(start - 1), above])
    steps = np.arange(1, len(above) + 1, dtype=np.float64)
    below = above * np.exp(-interval * steps)
    middle = max(0.0, 1.0 - infinite - float(above.sum()) - float(below.sum()))
    return -len(above), np.concatenate([below[::-1], [middle], above])


def _split(upper: Floats, lower: Floats, edges: Floats, interval: float) -> Floats:
    """Moves each cell's mass to its ends, keeping the mass under both distributions.

    With ``u, r`` the upper and lower mass of ``[e, e+h]``: ``w_hi = (u - r e^e)/(1 - e^-h)`` and
    ``w_lo = u - w_hi``. Where ``e^e`` overflows the whole mass goes up, which is pessimistic.
    """
    left = edges[:-1]
    safe = np.abs(left) < _EXPONENT_LIMIT
    scaled = np.where(safe, lower * np.exp(np.where(safe, left, 0.0)), 0.0)
    up = np.clip((upper - scaled) / -math.expm1(-interval), 0.0, upper)
    up = np.where(safe & (lower > 1e-290), up, upper)
    mass = np.zeros(len(edges))
    mass[1:] += up
    mass[:-1] += upper - up
    return mass


@lru_cache(maxsize=1024)
def _sketch(loss: Loss, removing: bool) -> tuple[Floats, Floats, float, float]:
    """A few thousand weighted losses: enough to choose grid and window, not to decide anything.

    Returns:
        Losses, log weights, mean and variance.
    """
    low, high = loss.span(1e-40)
    edges = np.linspace(low, high, _SKETCH_CELLS + 1)
    p_mass, q_mass = loss.between(edges)
    p_atoms, q_atoms, at = loss.atoms()
    p_mass, q_mass = np.concatenate([p_mass, p_atoms]), np.concatenate([q_mass, q_atoms])
    points = loss.sampled(np.concatenate([(edges[1:] + edges[:-1]) / 2, at]))
    mixed = (1.0 - loss.rate) * q_mass + loss.rate * p_mass
    points, mass = (points, mixed) if removing or loss.kind == "group" else (-points, q_mass)
    if loss.kind == "group":
        points, mass = points[points > 0], mass[points > 0]
        below = mass * np.exp(-points)
        rest = max(0.0, 1.0 - float(mass.sum()) - float(below.sum()))
        points, mass = np.append(-points, [*points, 0.0]), np.append(below, [*mass, rest])
    keep = mass > 0
    points, mass = points[keep], mass[keep]
    mean = float(points @ mass)
    return points, np.log(mass), mean, float(((points - mean) ** 2) @ mass)


def _window(
    losses: Sequence[tuple[Loss, int]], log_tail: float, removing: bool, jitter: float
) -> tuple[float, float, float]:
    """Chernoff's best exponents for the upper and the lower end of the sum, and its width.

    Args:
        losses: The composition.
        log_tail: Log of the mass that may lie beyond each end.
        removing: The direction.
        jitter: Standard deviation that rounding to the grid may add to each step.
    """
    sketches = [(_sketch(loss, removing), count) for loss, count in losses]
    variance = math.fsum(count * (sketch[3] + jitter**2) for sketch, count in sketches)
    centre = math.sqrt(-2 * log_tail / variance)
    best_high, best_low = (math.inf, centre), (-math.inf, centre)
    tilts = centre * np.exp2(np.arange(-6.0, 2.5, 0.5))
    both = np.concatenate([tilts, -tilts])
    growth = np.zeros(len(both))
    for (points, log_mass, _, _), count in sketches:
        exponents = np.outer(both, points) + log_mass
        peaks = exponents.max(axis=1)
        growth += count * (peaks + np.log(np.exp(exponents - peaks[:, None]).sum(axis=1)))
    for tilt, grow, shrink in zip(tilts, growth[: len(tilts)], growth[len(tilts) :], strict=True):
        best_high = min(best_high, ((grow - log_tail) / tilt, float(tilt)))
        best_low = max(best_low, (-(shrink - log_tail) / tilt, float(tilt)))
    return best_high[1], best_low[1], float(best_high[0] - best_low[0])


def _epsilon_one_way(
    losses: Sequence[tuple[Loss, int]], delta: float, resolution: Resolution, removing: bool
) -> float:
    """Epsilon in one direction; the grid widens until the composition fits its memory."""
    steps = sum(count for _, count in losses)
    if len(losses) > _MANY:
        resolution = replace(
            resolution,
            relative=max(resolution.relative, COARSE.relative / 3),
            points=min(resolution.points, 1 << 18),
        )
    # Mass given away as infinite loss: a millionth of delta for the window, the same for tails.
    outside = max(delta * 1e-6, 1e-300)
    variance = math.fsum(count * _sketch(loss, removing)[3] for loss, count in losses) / steps
    widest = max(
        float(np.ptp(loss.sampled(np.array(loss.span(outside / steps))))) for loss, _ in losses
    )
    smallest = 1.1 * widest / resolution.points
    interval = min(resolution.interval, resolution.relative * math.sqrt(variance))
    interval = max(interval, smallest)
    up, down, width = _window(losses, math.log(outside / 2), removing, interval)
    interval = max(interval, 1.1 * width / resolution.points)
    for _ in range(8):
        found = _compose(
            losses, delta, outside, interval, (up, down), 2 * resolution.points, removing
        )
        if found is not None:
            return found
        interval *= 4
    return math.inf


def _compose(
    losses: Sequence[tuple[Loss, int]],
    delta: float,
    outside: float,
    interval: float,
    tilts: tuple[float, float],
    limit: int,
    removing: bool,
) -> float | None:
    """Epsilon on one grid; None where the window would hold more than ``limit`` points."""
    steps = sum(count for _, count in losses)
    up, down = tilts
    grids = [(_grid(loss, interval, outside / steps, removing), count) for loss, count in losses]
    first, last, log_finite = 0, 0, 0.0
    bottom = top = -math.log(outside / 2)
    for (begin, mass, infinite), count in grids:
        first += count * begin
        last += count * (begin + len(mass) - 1)
        points = interval * (begin + np.arange(len(mass), dtype=np.float64))
        top += count * _log_mgf(points, mass, up)
        bottom += count * _log_mgf(points, mass, -down)
        log_finite += count * math.log1p(-infinite)
    start = max(first, math.floor(-bottom / down / interval))
    stop = min(last, math.ceil(top / up / interval))
    longest = max(len(mass) for (_, mass, _), _ in grids)
    if max(stop - start + 1, longest) > limit:
        return None
    size = fft.next_fast_len(max(stop - start + 1, longest), real=True)
    product = np.ones(size // 2 + 1, dtype=np.complex128)
    heard = np.arange(size // 2 + 1)
    # A sum of many losses has few audible frequencies, so the powers after the first are cheap.
    for (_, mass, _), count in sorted(grids, key=lambda pair: -pair[1]):
        factor = fft.rfft(mass, size)[heard]
        loud = np.abs(factor) > _SILENT ** (1.0 / count)
        product[heard[~loud]] = 0.0
        heard = heard[loud]
        product[heard] *= factor[loud] ** count
        heard = heard[np.abs(product[heard]) > _SILENT]
    mass = np.roll(fft.irfft(product, size), -((start - first) % size))[: stop - start + 1]
    infinite = outside - math.expm1(log_finite) + _rounding(steps, size)
    return _read(start, np.maximum(mass, 0.0), infinite, interval, delta)


def _log_mgf(points: Floats, mass: Floats, tilt: float) -> float:
    peak = float(np.max(tilt * points[[0, -1]]))
    total = float(np.exp(tilt * points - peak) @ mass)
    return peak + math.log(total) if total > 0 else peak


def _rounding(steps: int, size: int) -> float:
    """Mass that rounding in the transforms may move into a tail.

    Measured against long-double transforms (tests): never above a quarter of this.
    """
    return 1e-15 * (steps + math.log2(size))


def _read(start: int, mass: Floats, infinite: float, interval: float, delta: float) -> float:
    """The smallest ``eps >= 0`` with ``infinite + sum p (1 - e^(eps-L))_+ <= delta``."""
    if infinite > delta:
        return math.inf
    skip = max(0, -start)
    start, mass = start + skip, mass[skip:]
    if not len(mass):
        return 0.0
    # Suffix sums of p, and of p e^(e_j - L) by the recurrence t_j = p_j + e^-h t_(j+1).
    reverse = mass[::-1]
    upper = infinite + np.cumsum(reverse)[::-1]
    lower = signal.lfilter([1.0], [1.0, -math.exp(-interval)], reverse)[::-1]
    enough = upper - lower <= delta
    if not enough.any():
        return math.inf
    j = int(np.argmax(enough))
    if upper[j] <= delta:
        return 0.0  # Only at j = 0: otherwise the point before would have been enough.
    here = (start + j) * interval + math.log((upper[j] - delta) / lower[j])
    return max(0.0, here)
