"""One number from a release: how much more it looks like the second graph than like the first.

Where the mechanism is known, a game brings its exact likelihood ratio, which no test beats (Neyman
and Pearson). For everything else these are learnt on runs set apart. A bad statistic costs power,
never validity: the bound holds for any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tacit.attacks.bounds import Floats

Statistic = Callable[[np.ndarray], Floats]

WIDEST = 256
"""Most numbers that a learnt statistic reads; those that differ most are kept."""

FEWEST = 8
"""Numbers that it may read however few runs there are; else a quarter as many as runs."""


def learnt(
    first: np.ndarray, second: np.ndarray, front: int | None = None
) -> Iterator[tuple[str, Statistic]]:
    """Statistics fitted on some runs of each graph.

    Args:
        first: Releases of the first graph, one per row of the leading axis.
        second: Releases of the second.
        front: How many numbers at the front say most: what noise was added to, before what was
            made of it. A statistic is learnt on these alone, too.

    Yields:
        A name and the statistic.
    """
    a, b = _flat(first), _flat(second)
    if front and front < a.shape[1]:
        for words, statistic in learnt(a[:, :front], b[:, :front]):
            yield f"{words} of what was released", _fronted(statistic, front)
    yield "projection", _projection(a, b)
    yield "spread", _spread(a, b)
    if first.ndim > 2:
        yield "equal rows", equal_rows
    table = _outcomes(a, b)
    if table is not None:
        yield "outcomes", table


def equal_rows(release: np.ndarray) -> Floats:
    """Minus the number of pairs of rows that are exactly equal: twins that parted look larger."""
    rows = release.reshape(len(release), -1, release.shape[-1])
    found = np.zeros(len(rows))
    for v in range(rows.shape[1] - 1):
        found -= (rows[:, v + 1 :] == rows[:, v : v + 1]).all(axis=2).sum(axis=1)
    return found


def _projection(first: Floats, second: Floats) -> Statistic:
    """Fisher's direction with a shrunk covariance: the ratio of two shifted Gaussian clouds."""
    moved = second.mean(axis=0) - first.mean(axis=0)
    spread = (first.var(axis=0) + second.var(axis=0)) / 2
    scale = np.sqrt(spread) + 1e-9 * (1 + np.abs(moved))
    chosen = np.argsort(-np.abs(moved / scale), kind="stable")[: _width(len(first))]
    scale, moved = scale[chosen], moved[chosen] / scale[chosen]
    parts = [(x[:, chosen] - x[:, chosen].mean(axis=0)) / scale for x in (first, second)]
    rest = np.vstack(parts)
    runs, width = len(rest), len(chosen)
    covariance = rest.T @ rest / runs
    # Shrinkage towards the diagonal by how few runs there are for each number.
    keep = runs / (runs + 10.0 * width)
    covariance = keep * covariance + (1 - keep) * np.eye(width)
    covariance[np.diag_indices(width)] += 1e-6
    direction = np.linalg.solve(covariance, moved) / scale
    return lambda release: _flat(release)[:, chosen] @ direction


def _spread(first: Floats, second: Floats) -> Statistic:
    """The ratio of two Gaussians with their own means and variances, coordinate by coordinate."""
    means = first.mean(axis=0), second.mean(axis=0)
    floor = 1e-9 * (1 + np.abs(means[0]) + np.abs(means[1]))
    spreads = first.std(axis=0) + floor, second.std(axis=0) + floor
    seen = np.abs(np.log(spreads[1] / spreads[0]))
    seen += np.abs(means[1] - means[0]) / np.minimum(*spreads)
    chosen = np.argsort(-seen, kind="stable")[: _width(len(first))]

    def score(release: np.ndarray) -> Floats:
        values = _flat(release)[:, chosen]
        logs = [
            ((values - mean[chosen]) / spread[chosen]) ** 2 / 2 + np.log(spread[chosen])
            for mean, spread in zip(means, spreads, strict=True)
        ]
        found: Floats = np.clip(logs[0] - logs[1], -1e6, 1e6).sum(axis=1)
        return found

    return score


def _outcomes(first: Floats, second: Floats) -> Statistic | None:
    """The ratio of how often each outcome was seen, where there are few: answers and small graphs.

    Laplace's rule of succession; an outcome that was never seen speaks for neither.
    """
    rows = np.vstack([first, second]) + 0.0
    seen, place = np.unique(rows, axis=0, return_inverse=True)
    if len(seen) * 8 > len(first):
        return None
    place = place.ravel()
    counts = [
        np.bincount(part, minlength=len(seen))
        for part in (place[: len(first)], place[len(first) :])
    ]
    logs = np.log((counts[1] + 1.0) / (counts[0] + 1.0))
    known = {row.tobytes(): value for row, value in zip(seen, logs.tolist(), strict=True)}

    def score(release: np.ndarray) -> Floats:
        rows = np.ascontiguousarray(_flat(release)) + 0.0  # adding 0 turns -0 into 0
        return np.array([known.get(row.tobytes(), 0.0) for row in rows])

    return score


def _fronted(statistic: Statistic, front: int) -> Statistic:
    return lambda release: statistic(_flat(release)[:, :front])


def _width(runs: int) -> int:
    return min(WIDEST, max(FEWEST, runs // 4))


def _flat(release: np.ndarray) -> Floats:
    return release.reshape(len(release), -1).astype(np.float64, copy=False)
