"""Bounds of neighbour sums: no sampled neighbour exceeds them, a witness reaches them.

The sums are computed here by dense matrices, not by the code under test.
"""

import math
from itertools import islice

import numpy as np
import pytest

from tacit import Edge, Graph, KNeighbors, Node
from tacit.errors import UnitError
from tacit.graph.build import from_arcs
from tacit.privacy.sensitivity import hop_sums
from tacit.privacy.units import Unit

D = 3
UNITS = [
    Edge(),
    Edge(relation="replace"),
    Node(max_degree=D),
    Node(relation="replace", max_degree=D),
    Node(links="all", max_degree=D),
    Node(relation="replace", links="all", max_degree=D),
]


def dense(graph: Graph) -> np.ndarray:
    found = np.zeros((graph.nodes, graph.nodes))
    for u in range(graph.nodes):
        found[u, graph.indices[graph.indptr[u] : graph.indptr[u + 1]]] = 1
    return found


def graph_of(arcs: np.ndarray, features: np.ndarray, *, directed: bool) -> Graph:
    sources, targets = np.nonzero(arcs)
    labels = np.zeros(len(features), np.int64)
    return from_arcs(
        sources, targets, features=features, labels=labels, directed=directed, classes=2
    )


def unit_rows(features: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return np.divide(features, norms, out=np.zeros_like(features), where=norms > 0)


def sums(graph: Graph, unit: Unit, later: np.ndarray, hops: int) -> list[np.ndarray]:
    """Every hop; rows of later hops are constants, as they are once released."""
    arcs = dense(graph)
    if isinstance(unit, Node) and unit.links == "own":
        arcs *= np.sqrt(np.minimum(1, D / np.maximum(arcs.sum(1), 1)))[:, None]
    rows = [unit_rows(np.asarray(graph.features, np.float64)), *[later] * (hops - 1)]
    return [arcs.T @ row for row in rows]


def moved(first: Graph, second: Graph, unit: Unit, hops: int, own: int | None = None) -> float:
    later = unit_rows(np.random.default_rng(9).normal(size=(first.nodes, 4)))
    if isinstance(unit, Node) and unit.relation == "replace":
        later[:] = later[0]
    total = 0.0
    for a, b in zip(sums(first, unit, later, hops), sums(second, unit, later, hops), strict=True):
        difference = a - b
        if own is not None:
            difference[own] = 0
        total += float((difference**2).sum())
    return math.sqrt(total)


def changed(first: Graph, second: Graph) -> int | None:
    rows = np.any(first.features != second.features, axis=1)
    return int(np.argmax(rows)) if rows.any() else None


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_no_neighbour_exceeds_the_bound(unit: Unit, hops: int, directed: bool) -> None:
    rng = np.random.default_rng(0)
    arcs = np.zeros((8, 8))
    for u in range(8):
        for v in rng.permutation(8):
            room = arcs[u].sum() < D and arcs[:, v].sum() < D
            if u != v and room and (directed or (arcs[v].sum() < D and arcs[:, u].sum() < D)):
                arcs[u, v] = 1
                arcs[v, u] = max(arcs[v, u], 0 if directed else 1)
    graph = graph_of(arcs, rng.normal(size=(8, 4)).astype(np.float32), directed=directed)
    bound = hop_sums(unit, directed=directed, hops=hops).l2
    whole = isinstance(unit, Node) and unit.links == "all"
    for other in islice(unit.neighbours(graph, rng), 200):
        own = changed(graph, other) if whole else None
        if whole and own is None:
            continue
        assert moved(graph, other, unit, hops, own) <= bound + 1e-9


@pytest.mark.parametrize(
    ("unit", "directed", "hops", "squared"),
    [
        (Edge(), True, 3, 3),
        (Edge(), False, 3, 6),
        (Edge(relation="replace"), True, 2, 8),
        (Edge(relation="replace"), False, 2, 12),
        (Node(max_degree=100), True, 2, 200),
        (Node(relation="replace", max_degree=100), True, 1, 400),
        (Node(relation="replace", max_degree=100), True, 2, 400),
        (Node(relation="replace", max_degree=100), True, 3, 600),
        (Node(links="all", max_degree=100), False, 2, 200),
        (Node(links="all", relation="replace", max_degree=100), False, 2, 800),
    ],
)
def test_bounds_of_the_table(unit: Unit, directed: bool, hops: int, squared: int) -> None:
    """Delta squared by hand: K, 2K, D K, max(2K, 4) D and 4 D K of the design's table."""
    assert hop_sums(unit, directed=directed, hops=hops).l2 ** 2 == pytest.approx(squared)


def test_one_link_of_a_symmetric_graph_reaches_root_two() -> None:
    features = np.eye(4, dtype=np.float32)
    empty = np.zeros((4, 4))
    empty[2, 3] = empty[3, 2] = 1
    linked = empty.copy()
    linked[0, 1] = linked[1, 0] = 1
    first, second = (graph_of(a, features, directed=False) for a in (empty, linked))
    assert moved(first, second, Edge(), 1) == pytest.approx(math.sqrt(2))
    assert moved(first, second, Edge(), 1) > hop_sums(Edge(), directed=True, hops=1).l2


def test_an_own_record_reaches_root_d() -> None:
    features = np.ones((5, 4), np.float32)
    full = np.zeros((5, 5))
    full[0, 1:4] = 1
    full[1, 4] = 1
    without = full.copy()
    without[0] = 0
    blank = features.copy()
    blank[0] = 0
    first = graph_of(full, features, directed=True)
    second = graph_of(without, blank, directed=True)
    unit = Node(max_degree=D)
    bound = hop_sums(unit, directed=True, hops=2).l2
    assert moved(first, second, unit, 2) == pytest.approx(bound) == math.sqrt(2 * D)


def test_truncation_does_not_bound_a_whole_node() -> None:
    """Displaced links (proofs/hop_sums.md): a thousand lists of W and r, cut to D = 10 entries.

    The golden shift, 285.17 in one simulation and 287.48 in expectation, is 91 times the claim.
    """
    m, degree, rng = 1000, 10, np.random.default_rng(0)
    dropped = rng.integers(degree + 1, size=m)
    lost = np.bincount(dropped, minlength=degree + 1)[:degree]
    shift = float(np.linalg.norm(lost))
    assert shift == pytest.approx(m * math.sqrt(degree) / (degree + 1), rel=0.05)
    assert shift > 85 * math.sqrt(degree)
    with pytest.raises(UnitError, match="needs max_degree"):
        hop_sums(Node(links="all"), directed=True, hops=1)


def test_what_is_refused_says_why() -> None:
    for unit, options in (
        (KNeighbors(k=2), {}),
        (Node(), {"bounded": False}),
        (Edge(), {"hops": 0}),
    ):
        with pytest.raises(UnitError) as caught:
            hop_sums(unit, **{"directed": True, "hops": 1, **options})
        assert caught.value.remedy
