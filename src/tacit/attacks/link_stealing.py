"""Link stealing by similarity: linked nodes look alike, and get answers that look alike.

He, Jia, Backes, Gong, Zhang, "Stealing Links from Graph Neural Networks", USENIX Security 2021:
the score of a pair is minus a distance between two posteriors (their Attack-0) or between two
feature rows. These are the baselines that LinkTeller has to beat: they ask once per node and change
nothing.

What it costs: nothing; one answer per node is read, or none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.attacks.pairs import Finding, judge
from tacit.errors import AttackError

DISTANCES = (
    "cosine",
    "euclidean",
    "correlation",
    "chebyshev",
    "braycurtis",
    "cityblock",
    "canberra",
    "sqeuclidean",
)
"""The eight distances, by their names in SciPy; ``cityblock`` is also called Manhattan."""

WORDS = {name: "manhattan" if name == "cityblock" else name for name in DISTANCES}

Floats = NDArray[np.float64]


def distances(rows: ArrayLike, name: str) -> Floats:
    """The distance between every two rows.

    Rows that a distance cannot compare (the cosine of a zero row, the correlation of a constant
    one) are as far apart as two rows that it can compare ever are.

    Args:
        rows: One row per attacked node.
        name: One of :data:`DISTANCES`.
    """
    from scipy.spatial.distance import pdist, squareform

    if name not in DISTANCES:
        raise AttackError(f"unknown distance {name!r}", remedy=f"use {', '.join(DISTANCES)}")
    values = np.asarray(rows, float)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = pdist(values, name)
    sound = np.isfinite(found)
    found[~sound] = found[sound].max(initial=0.0)
    return np.asarray(squareform(found), float)


def link_stealing(
    rows: ArrayLike,
    truth: NDArray[np.bool_],
    *,
    source: str,
    density: float | None = None,
    seed: int = 0,
) -> tuple[Finding, ...]:
    """Guess links by each of the eight distances.

    Args:
        rows: Posteriors or features of the attacked nodes.
        truth: Whether each pair is linked (:func:`tacit.attacks.pairs.linked`).
        source: What the rows are, such as ``posteriors``; part of each finding's name.
        density: The believed density; the true one if None.
        seed: Of the lot among equal scores.

    Returns:
        One finding for each distance, in the order of :data:`DISTANCES`.
    """
    return tuple(
        judge(f"{WORDS[name]} of {source}", -distances(rows, name), truth, density, seed)
        for name in DISTANCES
    )


def best(findings: tuple[Finding, ...]) -> Finding:
    """The finding with the highest F1: what the strongest of these attackers would have had."""
    return max(findings, key=lambda finding: (finding.guess.f1, finding.auc))
