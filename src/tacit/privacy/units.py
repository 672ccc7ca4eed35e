"""Units of privacy: what is one individual, and which graphs differ by one.

A unit is an argument, never a subclass of a method: the method asks its queries how far one unit
can move them (``Query.sensitivity(unit)``) and refuses what it cannot promise. ``neighbours``
samples adjacent graphs; tests and audits use it to try to break a claimed sensitivity.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tacit.errors import UnitError
from tacit.graph import Graph
from tacit.graph.build import drop_duplicates, rows_of
from tacit.graph.transforms import arc_sources

Relation = Literal["add-remove", "replace"]
RELATIONS: tuple[Relation, ...] = ("add-remove", "replace")


@dataclass(frozen=True)
class Unit(ABC):
    """One individual, and the relation between neighbouring graphs.

    Attributes:
        relation: ``"add-remove"`` (one individual is there or not) or ``"replace"`` (there, with
            another record).
    """

    relation: Relation = "add-remove"

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise UnitError(
                f"unknown relation {self.relation!r}", remedy=f"use one of {', '.join(RELATIONS)}"
            )

    @property
    @abstractmethod
    def name(self) -> str:
        """Short name, as on the command line and in the ledger."""

    @abstractmethod
    def words(self, directed: bool) -> str:
        """One sentence that says what is protected."""

    @abstractmethod
    def neighbours(self, graph: Graph, rng: np.random.Generator) -> Iterator[Graph]:
        """An endless sample of graphs adjacent to ``graph``."""


@dataclass(frozen=True)
class Edge(Unit):
    """One link: an arc of a directed graph, both arcs of an undirected one.

    Features, labels and the number of nodes are public under this unit.
    """

    @property
    def name(self) -> str:
        """``edge``."""
        return "edge"

    def words(self, directed: bool) -> str:
        """One sentence that says what is protected."""
        link = "directed link (one arc)" if directed else "link between two nodes (both its arcs)"
        change = "appears or disappears" if self.relation == "add-remove" else "is moved elsewhere"
        return f"One {link} {change}; features and labels are treated as public."

    def neighbours(self, graph: Graph, rng: np.random.Generator) -> Iterator[Graph]:
        """Graphs with one link added or removed, or (replace) one link moved."""
        while True:
            add = bool(rng.integers(2)) if self.relation == "add-remove" else True
            remove = not add or self.relation == "replace"
            out = graph
            if remove:
                if graph.arcs == 0:
                    continue
                out = _without_link(out, *_random_arc(graph, rng))
            if add:
                link = _random_absent_link(graph, rng)
                if link is None:
                    continue
                out = _with_link(out, *link)
            yield out


@dataclass(frozen=True)
class Node(Unit):
    """One node with everything it owns (``links="own"``) or everything attached (``"all"``).

    Attributes:
        links: ``"own"``: features, label and the links this node itself reports (its out-list);
            other nodes' lists are theirs. ``"all"``: features, label, row and column.
        max_degree: For ``"all"``, a PROMISE about the input that is checked and refused if
            broken; methods that sum over links need one. For ``"own"``, how strongly one
            out-list may count (optional).
    """

    links: Literal["own", "all"] = "own"
    max_degree: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.links not in ("own", "all"):
            raise UnitError(f"unknown links={self.links!r}", remedy='use "own" or "all"')
        if self.max_degree is not None and self.max_degree < 1:
            raise UnitError(f"max_degree must be at least 1, not {self.max_degree}")

    @property
    def name(self) -> str:
        """``node`` or ``node-all``."""
        return "node" if self.links == "own" else "node-all"

    def words(self, directed: bool) -> str:
        """One sentence that says what is protected."""
        change = "is zeroed" if self.relation == "add-remove" else "is replaced by any other"
        if self.links == "own":
            return (
                f"One person's own record {change}: features, label and the links that person "
                "reports. Links that other people report belong to their records."
            )
        whole = f"One node's whole presence {change}: features, label and every link to or from it"
        if self.max_degree is None:
            return f"{whole}, however many."
        return f"{whole}, given the promise that no node has more than {self.max_degree} each way."

    def neighbours(self, graph: Graph, rng: np.random.Generator) -> Iterator[Graph]:
        """Graphs in which one node's record is zeroed or replaced."""
        while True:
            v = int(rng.integers(graph.nodes))
            if self.relation == "add-remove":
                yield zero_record(graph, v, column=self.links == "all")
            else:
                yield _replace_record(graph, v, self, rng)


@dataclass(frozen=True)
class KNeighbors(Unit):
    """Features, label and k entries of one node's row and of its column (DPDGC, Definition 4.1).

    Attributes:
        k: How many links may change with the node.
    """

    k: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1:
            raise UnitError(f"k must be at least 1, not {self.k}")

    @property
    def name(self) -> str:
        """``k-neighbours``."""
        return "k-neighbours"

    def words(self, directed: bool) -> str:
        """One sentence that says what is protected."""
        change = "are zeroed" if self.relation == "add-remove" else "are replaced by any others"
        return (
            f"One node's features and label {change}, with up to {self.k} of the links it reports "
            f"and {self.k} of the links reported to it."
        )

    def neighbours(self, graph: Graph, rng: np.random.Generator) -> Iterator[Graph]:
        """Graphs in which one node's features, label and up to k of its links each way change."""
        while True:
            v = int(rng.integers(graph.nodes))
            zeroed = self.relation == "add-remove"
            out = _zero_attributes(graph, v) if zeroed else _new_attributes(graph, v, rng)
            sources, targets = arcs_of(out)
            keep = np.ones(len(sources), bool)
            for mine in (np.flatnonzero(sources == v), np.flatnonzero(targets == v)):
                if graph.directed and len(mine):
                    keep[rng.choice(mine, min(self.k, len(mine)), replace=False)] = False
            if not graph.directed:
                mine = np.flatnonzero(sources == v)
                gone = rng.choice(mine, min(self.k, len(mine)), replace=False)
                lost = np.isin(sources, targets[gone]) & (targets == v)
                keep[gone] = False
                keep[lost] = False
            yield rebuild(out, sources[keep], targets[keep], graph.directed)


def arcs_of(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Sources and targets of every arc."""
    return arc_sources(graph), graph.indices


def rebuild(graph: Graph, sources: np.ndarray, targets: np.ndarray, directed: bool) -> Graph:
    """The same nodes with other links."""
    tail, head = drop_duplicates(sources.astype(np.int32), targets.astype(np.int32))
    indptr, indices = rows_of(tail, head, graph.nodes)
    return graph.with_(indptr=indptr, indices=indices, directed=directed)


def zero_record(graph: Graph, v: int, *, column: bool) -> Graph:
    """The graph with node v's record zeroed: no features, no label, an empty out-list.

    With ``column`` the links that others report to v vanish too. The node itself stays as an empty
    slot, so that the number of nodes remains public. Without ``column`` the result is directed:
    other people's lists still name v.
    """
    blank = _zero_attributes(graph, v)
    sources, targets = arcs_of(graph)
    keep = sources != v
    if column:
        keep &= targets != v
    return rebuild(blank, sources[keep], targets[keep], graph.directed or not column)


def _random_arc(graph: Graph, rng: np.random.Generator) -> tuple[int, int]:
    arc = int(rng.integers(graph.arcs))
    return int(np.searchsorted(graph.indptr, arc, side="right") - 1), int(graph.indices[arc])


def _has_arc(graph: Graph, u: int, v: int) -> bool:
    row = graph.indices[graph.indptr[u] : graph.indptr[u + 1]]
    return bool(np.any(row == v))


def _random_absent_link(graph: Graph, rng: np.random.Generator) -> tuple[int, int] | None:
    for _ in range(1000):
        u, v = (int(i) for i in rng.integers(graph.nodes, size=2))
        if u != v and not _has_arc(graph, u, v):
            return u, v
    return None


def _without_link(graph: Graph, u: int, v: int) -> Graph:
    sources, targets = arcs_of(graph)
    keep = ~((sources == u) & (targets == v))
    if not graph.directed:
        keep &= ~((sources == v) & (targets == u))
    return rebuild(graph, sources[keep], targets[keep], graph.directed)


def _with_link(graph: Graph, u: int, v: int) -> Graph:
    sources, targets = arcs_of(graph)
    new = [(u, v)] if graph.directed else [(u, v), (v, u)]
    sources = np.concatenate([sources, [a for a, _ in new]])
    targets = np.concatenate([targets, [b for _, b in new]])
    return rebuild(graph, sources, targets, graph.directed)


def _zero_attributes(graph: Graph, v: int) -> Graph:
    """Node v without features, label and role."""
    features, labels = graph.features.copy(), graph.labels.copy()
    train, val, test = graph.train.copy(), graph.val.copy(), graph.test.copy()
    features[v], labels[v], train[v], val[v], test[v] = 0, -1, False, False, False
    return graph.with_(features=features, labels=labels, train=train, val=val, test=test)


def _new_attributes(graph: Graph, v: int, rng: np.random.Generator) -> Graph:
    features, labels = graph.features.copy(), graph.labels.copy()
    # The far corner of the unit ball is as good a replacement as any, and the cruellest.
    features[v] = -features[v] if rng.integers(2) else rng.standard_normal(features.shape[1])
    if labels[v] >= 0:
        labels[v] = rng.integers(graph.classes)
    return graph.with_(features=features, labels=labels)


def _replace_record(graph: Graph, v: int, unit: Node, rng: np.random.Generator) -> Graph:
    out = _new_attributes(graph, v, rng)
    sources, targets = arcs_of(graph)
    longest = unit.max_degree or int(max(graph.out_degrees.max(), 1))
    size = int(rng.integers(0, min(longest, graph.nodes - 1) + 1))
    chosen = rng.choice(np.delete(np.arange(graph.nodes), v), size, replace=False)
    keep = sources != v
    if unit.links == "all":
        keep &= targets != v
        crowded = np.bincount(targets[keep], minlength=graph.nodes) >= longest
        chosen = chosen[~crowded[chosen]]
        out_crowded = np.bincount(sources[keep], minlength=graph.nodes) >= longest
        back = chosen[~out_crowded[chosen]]
        if not graph.directed:
            chosen = back
        sources = np.concatenate([sources[keep], np.full(len(chosen), v), back])
        targets = np.concatenate([targets[keep], chosen, np.full(len(back), v)])
        return rebuild(out, sources, targets, graph.directed)
    sources = np.concatenate([sources[keep], np.full(len(chosen), v)])
    targets = np.concatenate([targets[keep], chosen])
    return rebuild(out, sources, targets, True)
