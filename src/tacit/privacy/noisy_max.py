"""Report noisy max: which entry of a probability vector is largest after Laplace noise.

Only the index leaves. The input is a point of the simplex, and *everything* about it may change
with one individual: no entry-wise sensitivity is used, only that it stays in the simplex. So the
worst pair is two corners (``proofs/privgnn.md``, Theorem 1):

    epsilon = ln P(j | e_j) / P(j | e_k),

which is about ``lam = 1/scale``, while releasing the noisy vector itself would cost ``2 lam``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tacit.errors import PlanError
from tacit.privacy.noise import MAX_SCALE

_NODES = 256
_MARGIN = 1e-11
"""Relative error granted to the quadrature; measured below 1e-13 (tests)."""

FINEST = 36
"""Most fraction bits of the grid on which posteriors and noise are compared."""


@dataclass(frozen=True)
class NoisyMax:
    """The argmax of a probability vector of ``classes`` entries after Laplace noise of 1/lam.

    Attributes:
        classes: C, at least 2.
        lam: The paper's lambda: one over the noise scale.

    Formal guarantees:
        Replacing the vector by any other point of the simplex changes the probability of each
        answer by a factor of at most ``e^epsilon``, ties on the grid and rounding included.
    """

    classes: int
    lam: float

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise PlanError(f"{self.classes} classes leave nothing to choose from")
        if not 1e-4 <= self.lam <= 64:
            raise PlanError(
                f"lam cannot be {self.lam:g}",
                why="it is one over the scale of noise on probabilities",
                remedy="use 0.0001 to 64",
            )

    @property
    def bits(self) -> int:
        """Fraction bits of the grid: as fine as the noise source can draw, 36 at most."""
        return min(FINEST, math.floor(math.log2(MAX_SCALE * self.lam)))

    @property
    def scale(self) -> float:
        """The noise scale in grid steps."""
        return 2.0**self.bits / self.lam

    @property
    def ties(self) -> float:
        """A bound on the probability that two entries tie on the grid.

        The difference of two Laplace variables of scale b has a density of at most 1/(4b), and two
        rounded entries are equal only if they lie within one step: C(C-1)/2 pairs, width 2.
        """
        return self.classes * (self.classes - 1) / (4.0 * self.scale)

    @property
    def epsilon(self) -> float:
        """The pure epsilon of one answer."""
        most, least = self.probabilities()
        high = most * (1 + _MARGIN) + self.ties
        low = least * (1 - _MARGIN) - self.ties
        # So little noise that ties on the grid could tell: nothing is claimed.
        return math.log(high / low) if low > 0 else math.inf

    def probabilities(self) -> tuple[float, float]:
        """``P(j | e_j)`` and ``P(j | e_k)``: how often a certain answer and a wrong one survive.

        With ``u = F(x)`` of the Laplace distribution function F, ``P(j|e_j)`` is the integral of
        ``F(x + lam)^(C-1)`` over u in (0, 1), and ``P(j|e_k)`` that of ``u^(C-2) F(x - lam)``; both
        are smooth between the points where an argument changes sign.
        """
        shrink, c = math.exp(-self.lam), self.classes

        half, last = 0.5, 1 - shrink / 2
        most = (
            _integral(lambda u: (u / shrink) ** (c - 1), 0, shrink / 2)
            + _integral(lambda u: (1 - shrink / (4 * u)) ** (c - 1), shrink / 2, half)
            + _integral(lambda u: (1 - shrink * (1 - u)) ** (c - 1), half, 1)
        )
        least = (
            _integral(lambda u: u ** (c - 1) * shrink, 0, half)
            + _integral(lambda u: u ** (c - 2) * shrink / (4 * (1 - u)), half, last)
            + _integral(lambda u: u ** (c - 2) * (1 - (1 - u) / shrink), last, 1)
        )
        return most, least


def _integral(function: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> float:
    """Gauss and Legendre's rule on sixteen equal parts of an interval."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES // 16)
    edges = np.linspace(low, high, 17)
    half = np.diff(edges)[:, None] / 2
    at = edges[:-1, None] + half * (nodes + 1)
    return float((half * weights * function(at)).sum())
