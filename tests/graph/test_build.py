import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import GraphError
from tacit.graph import drop_duplicates, drop_self_loops, from_arcs


def build(arcs, nodes, **options):
    arcs = np.array(arcs, dtype=np.int64).reshape(-1, 2)
    return from_arcs(
        arcs[:, 0],
        arcs[:, 1],
        features=np.ones((nodes, 1), dtype=np.float32),
        labels=np.zeros(nodes, dtype=np.int64),
        **options,
    )


def arcs_of(graph):
    return {
        (u, int(v))
        for u in range(graph.nodes)
        for v in graph.indices[graph.indptr[u] : graph.indptr[u + 1]]
    }


@st.composite
def arc_lists(draw):
    nodes = draw(st.integers(1, 12))
    node = st.integers(0, nodes - 1)
    return nodes, draw(st.lists(st.tuples(node, node), max_size=60))


@settings(max_examples=50, deadline=None)
@given(arc_lists())
def test_builds_the_set_of_arcs(case):
    nodes, arcs = case
    expected = {(u, v) for u, v in arcs if u != v}
    graph = build(arcs, nodes, directed=True)
    assert arcs_of(graph) == expected
    assert graph.arcs == len(expected)
    for u in range(nodes):
        assert np.all(np.diff(graph.indices[graph.indptr[u] : graph.indptr[u + 1]]) > 0)
    both = build(arcs, nodes, symmetrize=True)
    assert arcs_of(both) == expected | {(v, u) for u, v in expected}
    assert not both.directed
    detected = build(arcs, nodes)
    assert detected.directed == (arcs_of(both) != expected)
    assert arcs_of(detected) == expected


def test_notes_say_what_was_dropped():
    graph = build([(0, 1), (1, 0), (0, 1), (2, 2)], 3)
    assert graph.notes == ("1 self-loops were dropped", "1 duplicate arcs were merged")
    assert build([(0, 1), (1, 0)], 2).notes == ()


def test_an_undirected_claim_names_the_offending_arc_and_the_remedy():
    with pytest.raises(GraphError, match=r"arc 1 -> 2 and not 2 -> 1.*symmetrize=True"):
        build([(0, 1), (1, 0), (1, 2)], 3, directed=False)
    with pytest.raises(GraphError, match="arc bob -> eve"):
        build([(0, 1)], 2, directed=False, ids=np.array(["bob", "eve"], dtype=object))
    assert "directed" in build([(0, 1)], 2).notes[0]


def test_a_symmetric_file_may_be_told_to_be_directed():
    assert build([(0, 1), (1, 0)], 2, directed=True).directed
    with pytest.raises(GraphError, match="contradict"):
        build([(0, 1)], 2, directed=True, symmetrize=True)


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        (np.array([3]), "source 3, which is not a node"),
        (np.array([-1]), "source -1, which is not a node"),
        (np.array([2**32]), "source 4294967296"),
        (np.array([2**64 - 1], dtype=np.uint64), "source 18446744073709551615"),
        (np.array([0.0]), "whole numbers"),
        (np.array([[0]]), "whole numbers"),
        (np.array([0, 1]), "do not match"),
    ],
)
def test_refuses_dangling_and_odd_ends(sources, says):
    with pytest.raises(GraphError, match=says):
        from_arcs(sources, np.array([0]), features=np.ones((3, 1)), labels=np.zeros(3, dtype=int))


def test_refuses_an_empty_graph_and_absurd_classes():
    with pytest.raises(GraphError, match="no nodes"):
        build([], 0)
    for labels, classes in ((np.array([0, 10**9]), None), (np.array([0, 1]), 10**9)):
        with pytest.raises(GraphError, match="out of range"):
            from_arcs([0], [1], features=np.ones((2, 1)), labels=labels, classes=classes)
    with pytest.raises(GraphError, match="not class numbers"):
        from_arcs([0], [1], features=np.ones((2, 1)), labels=np.array(["a", "b"]))


def test_arc_transforms_keep_their_inputs():
    tail, head = np.array([2, 0, 0], dtype=np.int32), np.array([2, 1, 1], dtype=np.int32)
    before = tail.copy(), head.copy()
    assert [part.tolist() for part in drop_self_loops(tail, head)] == [[0, 0], [1, 1]]
    assert [part.tolist() for part in drop_duplicates(tail, head)] == [[0, 2], [1, 2]]
    assert np.array_equal(tail, before[0])
    assert np.array_equal(head, before[1])
