"""Attacks that guess links: which nodes, which pairs, and how right the guesses are.

A *pair* is two different nodes, in no order; a directed graph links a pair where an arc goes either
way. An attack gives every pair a score, and calls the ``m`` highest linked, with
``m = density * n (n - 1) / 2`` for n attacked nodes and the density that the attacker believes in
(LinkTeller, Algorithm 1, lines 12 to 15).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tacit.attacks import curves
from tacit.errors import AttackError
from tacit.graph import Graph

Pick = Literal["random", "low", "high"]
PICKS: tuple[Pick, ...] = get_args(Pick)
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""What a believed density is multiplied with, to see what a wrong belief costs."""


@dataclass(frozen=True)
class Finding:
    """What an attack on links came to. Private: it says where links are.

    Attributes:
        name: Of the attack.
        scores: One per pair, in the order of ``numpy.triu_indices(n, 1)``.
        linked: Whether the pair is linked.
        density: What the attacker believed.
        guesses: By factor on that density.
        auc: Area under the ROC curve.
    """

    name: str
    scores: NDArray[np.float64]
    linked: NDArray[np.bool_]
    density: float
    guesses: Mapping[float, curves.Guess]
    auc: float

    @property
    def guess(self) -> curves.Guess:
        """The guess at the believed density itself."""
        return self.guesses[1.0]

    def roc(self) -> curves.Curve:
        """True positive rate against false positive rate."""
        return curves.roc(self.scores, self.linked)

    def precision_recall(self) -> curves.Curve:
        """Precision against recall."""
        return curves.precision_recall(self.scores, self.linked)

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data."""
        return {
            "attack": self.name,
            "auc": self.auc,
            "precision": self.guess.precision,
            "recall": self.guess.recall,
            "f1": self.guess.f1,
            "density": self.density,
            "pairs": len(self.scores),
            "links": int(self.linked.sum()),
            "f1_at": {f"{factor:g}": guess.f1 for factor, guess in self.guesses.items()},
        }


def choose(graph: Graph, count: int, pick: Pick = "random", seed: int = 0) -> NDArray[np.int64]:
    """The nodes to attack, in increasing order.

    Args:
        graph: The graph.
        count: How many; all if it has fewer.
        pick: At ``random``; or at random among the quarter of the linked nodes with the fewest
            links (``low``) or the most (``high``), or the ``count`` of them if that is more.
        seed: Of the choice.

    Raises:
        AttackError: There are not two nodes to choose.
    """
    if pick not in PICKS:
        raise AttackError(f"unknown pick {pick!r}", remedy=f"use {', '.join(PICKS)}")
    rng = np.random.default_rng(seed)
    found = rng.permutation(graph.nodes)
    if pick != "random":
        degrees = np.diff(graph.indptr) + np.diff(graph.in_lists[0])
        found = found[degrees[found] > 0]
        found = found[np.argsort(degrees[found] if pick == "low" else -degrees[found])]
        found = rng.permutation(found[: max(count, len(found) // 4)])
    if count < 2 or len(found) < 2:
        raise AttackError(
            f"{min(count, len(found))} attacked nodes have no pairs", remedy="attack 2 or more"
        )
    return np.sort(found[:count]).astype(np.int64)


def linked(graph: Graph, nodes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each pair of the nodes is linked, in the order of ``numpy.triu_indices``."""
    place = np.full(graph.nodes, -1, np.int64)
    place[nodes] = np.arange(len(nodes))
    found = np.zeros((len(nodes), len(nodes)), bool)
    for row, node in enumerate(nodes):
        listed = place[graph.indices[graph.indptr[node] : graph.indptr[node + 1]]]
        found[row, listed[listed >= 0]] = True
    both: NDArray[np.bool_] = found | found.T
    return both[np.triu_indices(len(nodes), 1)]


def judge(
    name: str,
    matrix: NDArray[np.float64],
    truth: NDArray[np.bool_],
    density: float | None = None,
    seed: int = 0,
) -> Finding:
    """Score every pair by both of its entries in a matrix, and compare with the truth.

    Args:
        name: Of the attack.
        matrix: One score for each ordered pair of attacked nodes.
        truth: From :func:`linked`.
        density: What the attacker believes; the true density among these nodes if None.
        seed: Of the lot among equal scores.
    """
    rows, columns = np.triu_indices(len(matrix), 1)
    scores = (matrix[rows, columns] + matrix[columns, rows]) / 2
    believed = float(truth.mean()) if density is None else density
    if not 0 <= believed <= 1:
        raise AttackError(f"a density of {believed}", remedy="give a share of all pairs, or true")
    rng = np.random.default_rng(seed)
    guesses = {
        factor: curves.top(scores, truth, round(factor * believed * len(scores)), rng)
        for factor in FACTORS
    }
    return Finding(name, scores, truth, believed, guesses, curves.auc(scores, truth))
