"""How well scores tell truths apart: ROC and precision-recall curves, and one cut by density.

All functions take one score and one truth per candidate. Equal scores are one step of a curve, and
where a cut falls among them the choice is by lot, so a score that says nothing gets what guessing
gets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import AttackError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A line from cut to cut, strictest cut first.

    Attributes:
        x: False positive rate of a ROC curve, recall of a precision-recall curve.
        y: True positive rate, or precision.
    """

    x: Floats
    y: Floats


@dataclass(frozen=True)
class Guess:
    """The candidates with the highest scores, and how many of them are right.

    Attributes:
        chosen: How many were called positive.
        right: How many of these are.
        positives: How many there are to find.
    """

    chosen: int
    right: int
    positives: int

    @property
    def precision(self) -> float:
        """Share of the chosen that are right; 0 where none was chosen."""
        return self.right / self.chosen if self.chosen else 0.0

    @property
    def recall(self) -> float:
        """Share of the positives that were chosen."""
        return self.right / self.positives

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.right / (self.chosen + self.positives)


def auc(scores: ArrayLike, truth: ArrayLike) -> float:
    """Probability that a positive scores above a negative, ties counted one half."""
    from scipy.stats import rankdata

    values, right = _checked(scores, truth)
    positives = int(right.sum())
    ranks = float(rankdata(values)[right].sum()) - positives * (positives + 1) / 2
    return ranks / (positives * (len(right) - positives))


def roc(scores: ArrayLike, truth: ArrayLike) -> Curve:
    """True positive rate against false positive rate, from (0, 0) to (1, 1)."""
    hits, misses, right = _steps(scores, truth)
    zero = np.zeros(1)
    return Curve(
        np.concatenate([zero, misses / (len(right) - right.sum())]),
        np.concatenate([zero, hits / right.sum()]),
    )


def precision_recall(scores: ArrayLike, truth: ArrayLike) -> Curve:
    """Precision against recall, at every cut between different scores."""
    hits, misses, right = _steps(scores, truth)
    return Curve(hits / right.sum(), hits / (hits + misses))


def top(scores: ArrayLike, truth: ArrayLike, count: int, rng: np.random.Generator) -> Guess:
    """Call the ``count`` highest scores positive; among equal scores at the cut, by lot.

    Args:
        scores: One per candidate, higher for more likely.
        truth: One per candidate.
        count: How many to call positive.
        rng: Of the lot.
    """
    values, right = _checked(scores, truth)
    count = min(max(count, 0), len(values))
    order = np.lexsort((rng.random(len(values)), -values))
    return Guess(count, int(right[order[:count]].sum()), int(right.sum()))


def true_positive_rate(scores: ArrayLike, truth: ArrayLike, at: float) -> float:
    """The true positive rate at a false positive rate of at most ``at``."""
    curve = roc(scores, truth)
    return float(curve.y[curve.x <= at].max())


def _steps(scores: ArrayLike, truth: ArrayLike) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Right and wrong candidates above each cut between different scores."""
    values, right = _checked(scores, truth)
    order = np.argsort(-values, kind="stable")
    values, right = values[order], right[order]
    last = np.append(values[1:] != values[:-1], True)
    hits = np.cumsum(right)[last].astype(float)
    return hits, np.flatnonzero(last) + 1.0 - hits, right


def _checked(scores: ArrayLike, truth: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    values, right = np.asarray(scores, float), np.asarray(truth, bool)
    if values.ndim != 1 or values.shape != right.shape:
        raise AttackError(f"{values.shape} scores for {right.shape} candidates")
    if not np.isfinite(values).all():
        raise AttackError(
            "a score is not a finite number",
            why="the model answered with NaN or infinities",
            remedy="check that its posteriors are probabilities",
        )
    if right.all() or not right.any():
        raise AttackError(
            "there is nothing to tell apart",
            why=f"all {len(right):,} candidates are {'positive' if right.any() else 'negative'}",
            remedy="attack more nodes, or others",
        )
    return values, right
