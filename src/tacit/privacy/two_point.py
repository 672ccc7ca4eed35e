"""The exact cost of a pure mechanism that is Poisson-sampled and repeated: a binomial sum.

Every mechanism of pure epsilon ``e`` is dominated by randomised response with that ``e``: a pair
``P = (a, 1-a)``, ``Q = (1-a, a)`` with ``a = e^e / (1 + e^e)``. Sampled at rate ``q`` the pair is
``M = (1-q) Q + q P`` against ``Q``. After n rounds the number of first outcomes tells everything,
and its likelihood ratio grows with it, so the worst event is "at least k" (removing a record), or
"at most k" (adding one):

    epsilon = max over k of ln((M^n(K >= k) - delta) / Q^n(K >= k)),   and likewise the other way.

No grid, no transform: the sums are regularised incomplete beta functions. See
``proofs/privgnn.md``, Theorem 2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

MARGIN = 1e-9
"""Relative error granted to the incomplete beta functions, always against the claim."""

_UNITS = 1e-300
"""Tails below this are left out of the search: their events are rarer than any delta."""


def response_probability(epsilon: float) -> float:
    """The probability of a uniform answer that gives randomised response of two answers epsilon.

    ``1 - p/2 = e^epsilon p/2``, so ``p = 2 / (1 + e^epsilon)``.
    """
    return float(2.0 * special.expit(-epsilon))


def epsilon(keep: float, rate: float, rounds: int, delta: float) -> float:
    """The exact epsilon of ``rounds`` Poisson-sampled randomised responses of two answers.

    Args:
        keep: ``a``: the probability of the true answer, at least one half.
        rate: Poisson sampling rate ``q``.
        rounds: n.
        delta: The public delta, above 0.

    Returns:
        The larger of the two directions, rounded up by :data:`MARGIN`.
    """
    mixed = (1.0 - rate) * (1.0 - keep) + rate * keep
    plain = 1.0 - keep
    k = np.arange(rounds + 1, dtype=np.float64)
    removing = _worst(_at_least(k, rounds, mixed), _at_least(k, rounds, plain), delta)
    adding = _worst(_at_most(k, rounds, plain), _at_most(k, rounds, mixed), delta)
    return max(removing, adding)


def _worst(upper: NDArray[np.float64], lower: NDArray[np.float64], delta: float) -> float:
    """The largest ``ln((upper - delta) / lower)``, at least 0."""
    above = upper * (1.0 + MARGIN) - delta
    known = (above > 0) & (lower > _UNITS)
    if not known.any():
        return 0.0
    return max(0.0, float(np.log(above[known] / (lower[known] * (1.0 - MARGIN))).max()))


def _at_least(k: NDArray[np.float64], rounds: int, share: float) -> NDArray[np.float64]:
    """``P(K >= k)`` of a binomial variable: ``I_share(k, n-k+1)``."""
    return np.where(k > 0, special.betainc(np.maximum(k, 1.0), rounds - k + 1.0, share), 1.0)


def _at_most(k: NDArray[np.float64], rounds: int, share: float) -> NDArray[np.float64]:
    """``P(K <= k)``: ``I_{1-share}(n-k, k+1)``."""
    left = rounds - k
    return np.where(left > 0, special.betainc(np.maximum(left, 1.0), k + 1.0, 1.0 - share), 1.0)
