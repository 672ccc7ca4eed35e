import numpy as np
import pytest

from tacit.errors import GraphError
from tacit.graph import Graph, PublicFacts
from tacit.graph.graph import all_finite, transpose


def parts(**changes):
    held = {
        "indptr": np.array([0, 1, 2]),
        "indices": np.array([1, 0], dtype=np.int32),
        "features": np.ones((2, 1), dtype=np.float32),
        "labels": np.array([0, 1]),
        "train": np.array([True, False]),
        "val": np.zeros(2, dtype=bool),
        "test": np.zeros(2, dtype=bool),
        "directed": False,
        "classes": 2,
    }
    return held | changes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"indptr": np.array([0])}, "no nodes"),
        ({"indptr": np.array([0, 1, 3])}, "do not span"),
        ({"indptr": np.array([0, 3, 2])}, "decrease"),
        ({"indices": np.array([1, 2])}, "does not exist"),
        ({"indices": np.array([0, 1])}, "links to itself"),
        (
            {"indptr": np.array([0, 2, 4]), "indices": np.array([1, 1, 0, 0])},
            "names a node twice",
        ),
        ({"indptr": np.array([0, 1, 1]), "indices": np.array([1])}, "no reverse"),
        ({"features": np.ones((3, 1))}, "one row for each"),
        ({"features": np.array([[1.0], [np.nan]])}, "the first such row is node 1"),
        ({"features": np.array([[1.0], [1e300]])}, "NaN or infinite"),
        ({"features": np.array([["a"], ["b"]])}, "features cannot be of type"),
        ({"labels": np.array([0, 2])}, "label is out of range"),
        ({"labels": np.array([0, -2])}, "label is out of range"),
        ({"labels": np.array([0.5, 1])}, "does not fit int64"),
        ({"labels": np.array([0])}, "labels must have one entry"),
        ({"labels": np.array([-1, 1])}, "training node has no label"),
        ({"train": np.array([2, 0])}, "train cannot be of type"),
        ({"indices": np.array([1, 2**32], dtype=np.int64)}, "does not fit int32"),
        ({"ids": np.array([5])}, "ids must have"),
        ({"class_names": ("a",)}, "1 class names"),
    ],
)
def test_refuses_what_is_not_a_graph(changes, says):
    with pytest.raises(GraphError, match=says):
        Graph(**parts(**changes))


def test_lists_may_end_and_begin_anywhere():
    # Row ends must not be taken for unsorted entries, also with empty rows in between.
    graph = Graph(
        **parts(
            indptr=np.array([0, 0, 1, 1, 3]),
            indices=np.array([3, 0, 1]),
            features=np.ones((4, 1)),
            labels=np.zeros(4, dtype=int),
            train=np.ones(4, dtype=bool),
            val=np.zeros(4, dtype=bool),
            test=np.zeros(4, dtype=bool),
            directed=True,
        )
    )
    assert graph.out_degrees.tolist() == [0, 1, 0, 2]
    indptr, sources = graph.in_lists
    assert indptr.tolist() == [0, 1, 2, 2, 3]
    assert sources.tolist() == [3, 3, 1]


def test_arrays_are_read_only_and_inputs_stay_writeable():
    held = parts()
    graph = Graph(**held)
    for key in ("indptr", "indices", "features", "labels", "train"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(graph, key)[0] = 0
        held[key][0] = held[key][0]


def test_with_checks_what_changed(small):
    assert small.with_(name="other").features is small.features
    with pytest.raises(GraphError, match="out of range"):
        small.with_(labels=np.full(7, 9))
    with pytest.raises(GraphError, match="no reverse"):
        small.with_(indices=small.indices[1:], indptr=np.maximum(small.indptr - 1, 0))
    with pytest.raises(GraphError, match="has no colour"):
        small.with_(colour="red")
    cut = small.with_(train=np.zeros(7, dtype=bool))
    assert not cut.train.any()
    assert small.train.any()


def test_facts_hold_sizes_only(small):
    facts = small.facts(mean_degree=2.0)
    assert facts == PublicFacts(
        nodes=7, train_nodes=2, features=3, classes=2, directed=False, mean_degree=2.0
    )
    with pytest.raises(GraphError, match="train nodes"):
        PublicFacts(nodes=5, train_nodes=0, features=1, classes=2)
    with pytest.raises(GraphError, match="more than"):
        PublicFacts(nodes=5, train_nodes=6, features=1, classes=2)


def test_transpose_is_that_of_scipy():
    from scipy.sparse import random_array

    matrix = random_array((50, 50), density=0.1, format="csr", rng=np.random.default_rng(1))
    matrix.sort_indices()
    indptr, indices = transpose(matrix.indptr, matrix.indices)
    expected = matrix.T.tocsr()
    expected.sort_indices()
    assert np.array_equal(indptr, expected.indptr)
    assert np.array_equal(indices, expected.indices)


def test_all_finite_looks_at_every_block():
    rows = np.zeros((9, 1 << 21), dtype=np.float32)
    rows[8, -1] = np.inf
    assert all_finite(rows).tolist() == [True] * 8 + [False]


def test_repr_names_size_and_kind(small):
    assert repr(small) == "Graph(small: 7 nodes, 14 symmetric arcs, 3 features, 2 classes)"
