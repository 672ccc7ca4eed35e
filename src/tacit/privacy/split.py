"""Splitting a budget over stages: noise multipliers up to one common factor.

A Gaussian composition with parameter mu splits as ``mu^2 = sum of share_i mu^2``. T rounds at
multiplier m have ``mu = sqrt(T)/m``; T steps of DP-SGD at rate q have, in the central limit,
``mu = q sqrt(T (exp(1/m^2) - 1))`` (Bu, Dong, Long, Su, 2020). The limit only sets the ratio: the
exact accountant then calibrates the common factor, so an inexact ratio costs accuracy and never
privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """What one stage gets.

    Attributes:
        name: Of the stage.
        share: Of the squared Gaussian signal; those of all stages add up to 1.
        rounds: How many times noise is drawn.
        rate: Poisson sampling rate; 1 for none.
        group: Records that change together, at least 1.
    """

    name: str
    share: float
    rounds: int = 1
    rate: float = 1.0
    group: int = 1


def multipliers(shares: Sequence[Share], epsilon: float, delta: float) -> dict[str, float]:
    """A noise multiplier for each stage that meets the budget in the central limit."""
    if math.isinf(epsilon):
        return {part.name: 1.0 for part in shares}
    mu = gaussian_mu(epsilon, delta)
    found = {}
    for part in shares:
        per_round = mu * math.sqrt(part.share / part.rounds)
        if part.rate < 1:
            per_round = math.sqrt(math.log1p((per_round / part.rate) ** 2))
        found[part.name] = part.group / per_round
    return found


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu of one Gaussian mechanism that costs (epsilon, delta): Balle and Wang, 2018."""
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, ndtr

    def excess(mu: float) -> float:
        left = ndtr(mu / 2 - epsilon / mu)
        return left - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)) - delta

    return float(brentq(excess, 1e-6, 60.0))
