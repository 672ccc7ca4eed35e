"""Cells of a space: k-means, and the nearest centre of any row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.errors import TrainingError

Rows = NDArray[np.float32]


def centres(rows: Rows, count: int, *, seed: int, rounds: int = 25) -> Rows:
    """Centres of k-means, seeded far apart (Lloyd 1982; Arthur and Vassilvitskii 2007).

    Args:
        rows: What is clustered.
        count: How many centres; at most one for each distinct row.
        seed: Of the first centres.
        rounds: Steps of Lloyd's iteration, at most.

    Returns:
        One row for each centre.
    """
    if not 1 <= count <= len(rows):
        raise TrainingError(
            f"{len(rows)} rows cannot make {count} cells", remedy="ask for fewer, give more rows"
        )
    rng = np.random.default_rng(seed)
    found = np.empty((count, rows.shape[1]), np.float32)
    found[0] = rows[rng.integers(len(rows))]
    far = _squared(rows, found[0])
    for index in range(1, count):
        total = far.sum()
        chosen = rng.choice(len(rows), p=far / total) if total > 0 else rng.integers(len(rows))
        found[index] = rows[chosen]
        far = np.minimum(far, _squared(rows, found[index]))
    before = None
    for _ in range(rounds):
        mine = nearest(rows, found)
        if before is not None and np.array_equal(mine, before):
            break
        before = mine
        sizes = np.bincount(mine, minlength=count)
        order = np.argsort(mine, kind="stable")
        held = np.flatnonzero(sizes)
        starts = np.concatenate([[0], np.cumsum(sizes[held])[:-1]])
        sums = np.add.reduceat(rows[order], starts, axis=0)
        found[held] = sums / sizes[held, None]
    return found


def nearest(rows: Rows, cores: Rows) -> NDArray[np.int64]:
    """The nearest centre of each row by Euclidean distance. Each answer reads its own row."""
    distance = (cores**2).sum(axis=1)[None] - 2 * (rows @ cores.T)
    return distance.argmin(axis=1)


def _squared(rows: Rows, core: Rows) -> NDArray[np.float64]:
    return ((rows - core) ** 2).sum(axis=1, dtype=np.float64)
