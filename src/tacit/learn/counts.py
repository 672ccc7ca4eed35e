"""What noisy counts say about true ones: empirical Bayes under geometric noise.

Post-processing: it reads noisy counts and the noise's known scale, nothing else.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tacit.errors import TrainingError

Table = NDArray[np.float64]

_FINE = 60  # counts below this are told apart one by one
_COARSE = 120  # grid points above


def posterior_counts(noisy: NDArray[np.int64], scale: float, *, rounds: int = 200) -> Table:
    """The posterior mean of every count, under a prior that the noisy counts themselves suggest.

    The prior is the nonparametric maximum likelihood estimate of how true counts are distributed
    over the entries (Kiefer and Wolfowitz 1956), found by EM on a grid of non-negative integers,
    with a thousandth kept uniform. Clipping at zero would instead count the positive half of the
    noise in every empty entry.

    Args:
        noisy: Counts plus two-sided geometric noise.
        scale: Of the noise, ``P(z) ~ exp(-|z|/scale)``; zero for none.
        rounds: Steps of EM.

    Returns:
        Non-negative numbers of the same shape.
    """
    if scale < 0 or not math.isfinite(scale):
        raise TrainingError(f"the scale of noise cannot be {scale}")
    if scale == 0:
        return np.maximum(noisy, 0).astype(np.float64)
    seen, place = np.unique(noisy, return_inverse=True)
    times = np.bincount(place.ravel())
    grid = _grid(max(int(seen.max(initial=0)), 1))
    apart = np.abs(seen[:, None] - grid[None]) / scale
    likelihood = np.exp(apart.min(axis=1, keepdims=True) - apart)
    prior = np.full(len(grid), 1 / len(grid))
    for _ in range(rounds):
        given = likelihood * prior
        given /= given.sum(axis=1, keepdims=True)
        prior = 0.999 * (times @ given) / times.sum() + 0.001 / len(grid)
    given = likelihood * prior
    means = (given @ grid) / given.sum(axis=1)
    return means[place].reshape(noisy.shape)


def shares(counts: Table, *, prior: float = 1.0) -> Table:
    """Shares of the columns in each row, with ``prior`` counts of the overall shares added."""
    overall = counts.sum(axis=0) + 1e-9
    filled = counts + prior * overall / overall.sum()
    return filled / filled.sum(axis=1, keepdims=True)


def _grid(top: int) -> Table:
    fine = np.arange(min(top, _FINE) + 1, dtype=np.float64)
    if top <= _FINE:
        return fine
    return np.unique(np.concatenate([fine, np.round(np.geomspace(_FINE, top, _COARSE))]))
