"""Pairs of neighbouring graphs that a claim has to survive: the worst known ones, and samples.

A sensitivity is reached by few graphs. What breaks wrong ones is known from the proofs: links
between strangers (both rows move by their full norm), records turned to their opposite, stars (one
record reaches as many others as it may), twins (two nodes with equal neighbours, so that without
noise their rows are equal) and displaced links (a list that has to drop an entry for another).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from tacit.graph import Graph, from_arcs
from tacit.graph.transforms import arc_sources
from tacit.privacy.units import Edge, KNeighbors, Node, Unit, zero_record

WITHOUT_PROMISE = 5
"""Links of a star's centre where the unit promises no bound."""

PUBLIC_NODES = 8
"""Nodes of the public graph beside the witnesses of a method that learns for one."""


@dataclass(frozen=True)
class Pair:
    """Two graphs that differ by one unit, or by a few.

    Attributes:
        name: What they are.
        first: One graph.
        second: The other, with as many nodes.
        hidden: The node whose rows are shown to nobody else, under ``Node(links="all")``.
        steps: How many units they are apart.
    """

    name: str
    first: Graph
    second: Graph
    hidden: int | None = None
    steps: int = 1


def drawn(
    arcs: list[tuple[int, int]],
    signs: list[int],
    *,
    directed: bool,
    train: list[int] | None = None,
) -> Graph:
    """A graph of two classes with opposite features: sign 1 is class 1, sign -1 is class 0.

    Args:
        arcs: The links; a symmetric graph gets the reverses too.
        signs: The class of every node.
        directed: Whether links go one way.
        train: Nodes to train on; all if None.
    """
    n = len(signs)
    links = sorted(set(arcs) if directed else {*arcs, *((b, a) for a, b in arcs)})
    ends = np.array(links, np.int64).reshape(-1, 2)
    features = np.zeros((n, 2), np.float32)
    features[:, 0] = signs
    mask = np.zeros(n, bool)
    mask[list(range(n)) if train is None else train] = True
    return from_arcs(
        ends[:, 0],
        ends[:, 1],
        features=features,
        labels=np.where(mask, (np.array(signs) > 0).astype(np.int64), -1),
        classes=2,
        directed=directed,
        train=mask,
    )


def witnesses(unit: Unit, *, directed: bool) -> tuple[Pair, ...]:
    """The worst pairs known for a unit, as small as they get. All have unit rows.

    Args:
        unit: What one individual is.
        directed: Whether links go one way (``Node(links="own")`` always has own lists).
    """
    if isinstance(unit, Edge):
        return _edge(unit, directed)
    if isinstance(unit, Node) and unit.links == "own":
        return _own(unit)
    if isinstance(unit, Node):
        return _all(unit, directed)
    if isinstance(unit, KNeighbors):
        return _k_neighbours(unit, directed)
    return ()


def _edge(unit: Edge, directed: bool) -> tuple[Pair, ...]:
    if unit.relation == "add-remove":
        strangers = [1, 1], [(0, 1)]
        twins = [1, -1, 1, 1], [(0, 2), (0, 3), (1, 2)]
        return (
            Pair(
                "a link between strangers",
                drawn([], strangers[0], directed=directed),
                drawn(strangers[1], strangers[0], directed=directed),
            ),
            Pair(
                "a link that parts twins",
                drawn([*twins[1], (1, 3)], twins[0], directed=directed),
                drawn(twins[1], twins[0], directed=directed),
            ),
        )
    opposite, apart = [1, 1, -1], [1, -1, 1, -1]
    return (
        Pair(
            "a link moved to a node of the opposite kind",
            drawn([(0, 1)], opposite, directed=directed),
            drawn([(2, 1)], opposite, directed=directed),
        ),
        Pair(
            "a link moved elsewhere",
            drawn([(0, 1)], apart, directed=directed),
            drawn([(2, 3)], apart, directed=directed),
        ),
    )


def crowd(*, directed: bool, nodes: int = 24) -> Pair:
    """One link more among half of all possible ones: where a noisy number of links matters little.

    For mechanisms that answer with as many links as a noisy count says.
    """
    cells = [(u, v) for u in range(nodes) for v in range(u)]
    half = [cell for index, cell in enumerate(cells[1:]) if index % 2]
    signs = [1 - 2 * (v % 2) for v in range(nodes)]
    return Pair(
        "a link in a crowd",
        drawn(half, signs, directed=directed),
        drawn([*half, cells[0]], signs, directed=directed),
    )


def _star(
    leaves: int, signs: list[int], *, directed: bool, train: list[int] | None = None
) -> Graph:
    """Node 0 linked to nodes 1 to ``leaves``."""
    arcs = [(0, leaf) for leaf in range(1, leaves + 1)]
    return drawn(arcs, signs, directed=directed, train=train)


def _own(unit: Node) -> tuple[Pair, ...]:
    degree = unit.max_degree or 1
    star = _star(degree, [1] * (degree + 1), directed=True)
    if unit.relation == "add-remove":
        # Nodes 3 and 4 are listed by 1 and 2 alike, and by 0 the second of them too.
        parted = drawn([(0, 4), (1, 3), (2, 3), (1, 4), (2, 4)], [1] * 5, directed=True)
        return (
            Pair("a list as long as it may be", star, zero_record(star, 0, column=False)),
            Pair("a list that parts twins", parted, zero_record(parted, 0, column=False)),
        )
    turned = _star(degree, [-1] + [1] * degree, directed=True)
    wide = _star(degree, [1] * (2 * degree + 1), directed=True)
    moved = drawn(
        [(0, leaf) for leaf in range(degree + 1, 2 * degree + 1)],
        [1] * (2 * degree + 1),
        directed=True,
    )
    return (
        Pair("a record turned to its opposite", star, turned),
        Pair("a list with other entries", wide, moved),
    )


def _all(unit: Node, directed: bool) -> tuple[Pair, ...]:
    degree = unit.max_degree or WITHOUT_PROMISE
    star = _star(degree, [1] * (degree + 1), directed=directed)
    if unit.relation == "add-remove":
        return (Pair("the centre of a star", star, zero_record(star, 0, column=True), hidden=0),)
    turned = _star(degree, [-1] + [1] * degree, directed=directed)
    wide = [1] * (2 * degree + 1)
    return (
        Pair("the centre of a star turned to its opposite", star, turned, hidden=0),
        Pair(
            "the centre of a star moved to other leaves",
            _star(degree, wide, directed=directed),
            drawn(
                [(0, leaf) for leaf in range(degree + 1, 2 * degree + 1)], wide, directed=directed
            ),
            hidden=0,
        ),
    )


def _k_neighbours(unit: KNeighbors, directed: bool) -> tuple[Pair, ...]:
    linked = _star(unit.k, [1] * (unit.k + 1), directed=directed)
    if unit.relation == "add-remove":
        gone = zero_record(linked, 0, column=True)
        return (Pair("a record and all its links", linked, gone),)
    alone = drawn([], [-1] + [1] * unit.k, directed=directed)
    return (Pair("a record turned to its opposite without its links", linked, alone),)


def sampled(unit: Unit, *, directed: bool, count: int, seed: int) -> Iterator[Pair]:
    """Neighbours that the unit itself samples, of one small graph on which all nodes train."""
    rng = np.random.default_rng(seed)
    directed = directed or (isinstance(unit, Node) and unit.links == "own")
    n = 5
    arcs = [(u, v) for u in range(n) for v in range(u) if rng.random() < 0.5]
    promise = isinstance(unit, Node) and unit.links == "all" and unit.max_degree is not None
    if promise and isinstance(unit, Node):
        arcs = _within(arcs, n, unit.max_degree or 1)
    base = drawn(arcs, [1 - 2 * (v % 2) for v in range(n)], directed=directed)
    for index, other in enumerate(islice(unit.neighbours(base, rng), count)):
        hidden = None
        if isinstance(unit, Node) and unit.links == "all":
            hidden = changed_node(base, other)
        yield Pair(f"sampled neighbour {index + 1}", base, other, hidden)


def _within(arcs: list[tuple[int, int]], nodes: int, degree: int) -> list[tuple[int, int]]:
    """Links kept as long as no node has more than ``degree``."""
    used, kept = np.zeros(nodes, int), []
    for u, v in arcs:
        if max(used[u], used[v]) < degree:
            used[[u, v]] += 1
            kept.append((u, v))
    return kept


def changed_node(first: Graph, second: Graph) -> int:
    """The node whose record differs most between two neighbouring graphs."""
    moved = 1000.0 * np.any(first.features != second.features, axis=1)
    moved += 1000.0 * (first.labels != second.labels)
    for v in range(first.nodes):
        mine = first.indices[first.indptr[v] : first.indptr[v + 1]]
        other = second.indices[second.indptr[v] : second.indptr[v + 1]]
        moved[v] += len(np.setxor1d(mine, other))
    return int(np.argmax(moved))


def trainable(unit: Unit, *, directed: bool, samples: int, seed: int) -> tuple[Pair, ...]:
    """Pairs that a whole fit can be run on: equal public facts, and every class has a label.

    A zeroed record has no label, so the number of training nodes, which is public, would differ.
    Under add/remove the changed node therefore has no label at all, or its record is turned to its
    opposite: that is one record removed and another added, two units apart.
    """
    pairs = list(witnesses(unit, directed=directed))
    if isinstance(unit, Node | KNeighbors) and unit.relation == "add-remove":
        pairs = [_unlabelled(pair) for pair in pairs]
        opposite = replace(unit, relation="replace")
        pairs += [replace(p, steps=2) for p in witnesses(opposite, directed=directed)]
    pairs += sampled(unit, directed=directed, count=samples, seed=seed)
    nodes = max(pair.first.nodes for pair in pairs)
    train = nodes + 3
    grown = [in_company(pair, nodes + 4, train) for pair in pairs]
    return tuple(p for p in grown if p.first.facts() == p.second.facts() == grown[0].first.facts())


def _unlabelled(pair: Pair) -> Pair:
    """The pair with a centre that nobody trains on."""

    def bare(graph: Graph) -> Graph:
        labels, train = graph.labels.copy(), graph.train.copy()
        labels[0], train[0] = -1, False
        return graph.with_(labels=labels, train=train)

    return replace(
        pair, name=f"{pair.name}, without a label", first=bare(pair.first), second=bare(pair.second)
    )


def in_company(pair: Pair, nodes: int, train: int) -> Pair:
    """The pair among more nodes of both classes, without links, so that it can be trained on.

    Args:
        pair: The pair.
        nodes: Nodes in all, at least two more than the pair has.
        train: Nodes to train on.
    """

    def grown(graph: Graph) -> Graph:
        others = nodes - graph.nodes
        signs = np.array([1 - 2 * (i % 2) for i in range(others)])
        mine = np.arange(others) < train - int(graph.train.sum())
        features = np.zeros((others, 2), np.float32)
        features[:, 0] = signs
        return from_arcs(
            arc_sources(graph),
            graph.indices,
            features=np.vstack([graph.features, features]),
            labels=np.concatenate([graph.labels, np.where(mine, signs > 0, -1)]),
            classes=2,
            directed=graph.directed,
            train=np.concatenate([graph.train, mine]),
        )

    return replace(pair, first=grown(pair.first), second=grown(pair.second))


def beside_public(pair: Pair) -> Pair:
    """The pair with a small public graph beside both its graphs, for methods that learn for one.

    Only what is said of public nodes leaves then, so no row belongs to the changed node.
    """
    links = [(v, (v + 2) % PUBLIC_NODES) for v in range(PUBLIC_NODES)] + [(0, 1)]
    signs = [1 - 2 * (v % 2) for v in range(PUBLIC_NODES)]
    known = drawn(links, signs, directed=pair.first.directed)
    none = np.zeros(known.nodes, bool)
    public = known.with_(train=none, test=~none)
    return replace(
        pair,
        first=pair.first.with_(public=public),
        second=pair.second.with_(public=public),
        hidden=None,
    )


def copies(pair: Pair, sides: np.ndarray) -> tuple[Graph, np.ndarray]:
    """Many copies of a pair side by side in one graph, each its first or its second graph.

    Args:
        pair: The pair.
        sides: For each copy, whether it is the second graph.

    Returns:
        The graph, and for each copy the place where it stands.
    """
    parts = [(pair.first, int((~sides).sum())), (pair.second, int(sides.sum()))]
    nodes = pair.first.nodes

    def tiled(name: str) -> np.ndarray:
        arrays = [(getattr(graph, name), times) for graph, times in parts]
        return np.concatenate(
            [np.tile(array, (times,) + (1,) * (array.ndim - 1)) for array, times in arrays]
        )

    degrees = np.concatenate([np.tile(graph.out_degrees, times) for graph, times in parts])
    indices = np.concatenate([np.tile(graph.indices, times) for graph, times in parts])
    owner = np.concatenate(
        [
            np.repeat(np.arange(start, start + times), graph.arcs)
            for (graph, times), start in zip(parts, (0, parts[0][1]), strict=True)
        ]
    )
    whole = Graph(
        indptr=np.concatenate([[0], np.cumsum(degrees)]),
        indices=(indices + owner * nodes).astype(np.int32),
        features=tiled("features"),
        labels=tiled("labels"),
        train=tiled("train"),
        val=tiled("val"),
        test=tiled("test"),
        directed=pair.first.directed or pair.second.directed,
        classes=pair.first.classes,
    )
    # A stable sort puts all first graphs before all second ones.
    place = np.empty(len(sides), np.int64)
    place[np.argsort(sides, kind="stable")] = np.arange(len(sides))
    return whole, place
