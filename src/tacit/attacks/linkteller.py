"""LinkTeller: a link is where changing one node's features moves another node's answer.

Wu, Long, Zhang, Li, "LinkTeller: Recovering Private Edges from Graph Neural Networks via Influence
Analysis", IEEE S&P 2022, Algorithm 1. The attacker knows all features and may ask a service
``G(V, X)`` for posteriors of nodes V under features X of its choosing; the service knows the links.
For every attacked node v it reweighs ``x_v`` to ``(1 + Delta) x_v`` and measures the influence of v
on u, ``|| (P' - P)[u] / Delta ||``; the pairs of highest influence are called linked.

A k-layer network gives no influence beyond k links (Theorem 1), and one layer gives influence to
linked pairs alone (Proposition 1): tests/attacks/test_linkteller.py.

What it costs: nothing, where the service answers from what was already released. Where the service
has to read the private graph afresh, it charges for that once and keeps what it drew.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.attacks.pairs import Finding, Pick, choose, judge, linked
from tacit.errors import AttackError
from tacit.graph import Graph

Nodes = NDArray[np.int64]
Floats = NDArray[np.float64]
BlackBox = Callable[[Nodes, np.ndarray], ArrayLike]
"""``predict(nodes, X) -> posteriors``: one row per node asked for, X a row for every node."""

Probe = Literal["scale", "shift"]
PROBES: tuple[Probe, ...] = get_args(Probe)
DELTA = 1e-4
"""The reweighting of Algorithm 1. A service that answers in 32 bits wants 1e-2."""


@runtime_checkable
class Traceable(Protocol):
    """A black box of our own that knows how far each answer moves without being asked n times."""

    def __call__(self, nodes: Nodes, features: np.ndarray) -> np.ndarray:
        """Posteriors of the nodes, as of any black box."""

    def distances(self, nodes: Nodes, features: np.ndarray, rows: np.ndarray) -> Floats | None:
        """How far the answer for node j moves when row i alone replaces that of node i.

        Args:
            nodes: The attacked nodes.
            features: All feature rows.
            rows: A new row for each attacked node.

        Returns:
            L2 norms [i, j], or None if it has to be asked like any other black box.
        """


@dataclass(frozen=True)
class LinkTeller:
    """What LinkTeller found. Private.

    Attributes:
        finding: Scores and figures of Algorithm 1.
        relative: The same of the relative influence (:func:`relative_influence`).
        nodes: The attacked nodes.
        influence: The influence of node i on node j at [i, j].
        queries: Questions that were put to the black box.
        seconds: Wall time of the influence matrix.
    """

    finding: Finding
    relative: Finding
    nodes: Nodes
    influence: Floats
    queries: int
    seconds: float


def probes(
    features: np.ndarray, nodes: Nodes, delta: float, probe: Probe = "scale", seed: int = 0
) -> Floats:
    """The changed row of each node.

    Args:
        features: All feature rows.
        nodes: Whose rows to change.
        delta: The reweighting.
        probe: ``scale`` is Algorithm 1: ``(1 + delta) x``. ``shift`` adds ``delta`` times one
            random direction of the rows' mean length, for models that bring rows to unit length
            first, which undoes a scaling.
        seed: Of that direction.
    """
    if probe not in PROBES:
        raise AttackError(f"unknown probe {probe!r}", remedy=f"use {', '.join(PROBES)}")
    if not delta or not np.isfinite(delta):
        raise AttackError(f"a reweighting of {delta}", remedy="give a small number, such as 1e-4")
    rows = features[nodes].astype(float)
    if probe == "scale":
        return rows * (1 + delta)
    direction = np.random.default_rng(seed).standard_normal(rows.shape[1])
    length = float(np.linalg.norm(rows, axis=1).mean()) or 1.0
    return rows + delta * length / np.linalg.norm(direction) * direction


def influence_matrix(
    predict: BlackBox | Traceable,
    nodes: Nodes,
    features: np.ndarray,
    *,
    delta: float = DELTA,
    probe: Probe = "scale",
    seed: int = 0,
    fast: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Floats, int]:
    """The influence of each attacked node on each other (Algorithm 1, lines 1 to 11).

    Args:
        predict: The black box.
        nodes: The attacked nodes.
        features: All feature rows.
        delta: The reweighting.
        probe: See :func:`probes`.
        seed: Of a random direction.
        fast: Whether one of our own models may answer all questions at once (equal answers).
        progress: Told what is done.

    Returns:
        The influence of node i on node j at [i, j], and how many questions were put.
    """
    rows = probes(features, nodes, delta, probe, seed)
    if fast and isinstance(predict, Traceable):
        found = predict.distances(nodes, features, rows)
        if found is not None:
            return found / abs(delta), 0
    changed = features.astype(float)
    before = _asked(predict, nodes, changed)
    moved = np.empty((len(nodes), len(nodes)))
    for index, (node, row) in enumerate(zip(nodes, rows, strict=True)):
        old = changed[node].copy()
        changed[node] = row
        moved[index] = np.linalg.norm(_asked(predict, nodes, changed) - before, axis=1)
        changed[node] = old
        if progress is not None:
            progress("queries", index + 1, len(nodes))
    return moved / abs(delta), len(nodes) + 1


def linkteller(
    predict: BlackBox | Traceable,
    graph: Graph,
    *,
    nodes: int | Nodes = 500,
    density: float | None = None,
    delta: float = DELTA,
    probe: Probe = "scale",
    pick: Pick = "random",
    seed: int = 0,
    fast: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> LinkTeller:
    """Attack the links among some nodes, and compare with the graph.

    Args:
        predict: The black box, which answers on this graph.
        graph: Features, which the attacker knows, and links, which the guesses are compared with.
        nodes: How many nodes to attack, or which.
        density: The believed density; the true density among these nodes if None.
        delta: The reweighting.
        probe: See :func:`probes`.
        pick: How nodes are chosen.
        seed: Of all choices.
        fast: As in :func:`influence_matrix`.
        progress: Told what is done.
    """
    chosen = choose(graph, nodes, pick, seed) if isinstance(nodes, int) else nodes
    truth = linked(graph, chosen)
    started = time.perf_counter()
    influence, queries = influence_matrix(
        predict,
        chosen,
        graph.features,
        delta=delta,
        probe=probe,
        seed=seed,
        fast=fast,
        progress=progress,
    )
    seconds = time.perf_counter() - started
    finding = judge("linkteller", influence, truth, density, seed)
    relative = judge(
        "linkteller, relative influence", relative_influence(influence), truth, density, seed
    )
    return LinkTeller(finding, relative, chosen, influence, queries, seconds)


def relative_influence(influence: Floats) -> Floats:
    r"""Influence against the influence of each node on itself, which the matrix holds as well.

    A GCN weighs a link by ``1 / sqrt(d_u d_v)`` and a node itself by ``1 / d_u``, so that Algorithm
    1 ranks links of busy nodes low. :math:`\sqrt{i_{uv} i_{vu} / (i_{uu} i_{vv})}` takes degrees
    and the size of the features out again. Not in the paper; a stronger attack on deeper networks.
    """
    own = np.diag(influence)
    both = np.outer(own, own)
    squares = np.divide(influence * influence.T, both, out=np.zeros_like(both), where=both > 0)
    found: Floats = np.sqrt(squares)
    return found


def _asked(predict: BlackBox | Traceable, nodes: Nodes, features: np.ndarray) -> Floats:
    answers: Any = np.asarray(predict(nodes, features), float)
    if answers.ndim != 2 or len(answers) != len(nodes):
        raise AttackError(
            f"the black box answered {len(nodes)} nodes with an array of shape {answers.shape}",
            remedy="let it return one row of posteriors per node asked for",
        )
    return np.asarray(answers)
