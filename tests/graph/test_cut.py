import numpy as np
import pytest

import tacit
from tacit.errors import GraphError, PlanError
from tacit.graph import Cut, Graph, beside, cut, fingerprint, subgraph, synthetic
from tacit.graph.cut import without_labels
from tacit.methods import Method


@pytest.fixture(scope="module")
def graph() -> Graph:
    found = synthetic.communities(200, mean_degree=10, classes=3, features=6, seed=1)
    unknown, none = np.arange(200) % 20 == 0, np.zeros(200, bool)
    labels = np.where(unknown, -1, found.labels)
    return found.with_(labels=labels, train=none, val=none, test=none, ids=None)


def neighbours(graph: Graph) -> set[tuple[int, int]]:
    sources = np.repeat(graph.ids, graph.out_degrees)
    return set(zip(sources.tolist(), graph.ids[graph.indices].tolist(), strict=True))


def test_parts_are_disjoint_induced_and_of_the_sizes_asked(graph: Graph) -> None:
    private = cut(graph, Cut(50, 40, 30), seed=3)
    public = private.public
    assert public is not None
    assert (private.nodes, public.nodes) == (50, 70)
    assert private.train.all()
    assert (int(public.train.sum()), int(public.test.sum())) == (40, 30)
    assert not (public.train & public.test).any()
    assert not set(private.ids.tolist()) & set(public.ids.tolist())
    assert private.labels.min() >= 0
    assert public.labels.min() >= 0
    links = {
        (u, int(v))
        for u in range(graph.nodes)
        for v in graph.indices[graph.indptr[u] : graph.indptr[u + 1]]
    }
    for part in (private, public):
        inside = set(part.ids.tolist())
        assert neighbours(part) == {(u, v) for u, v in links if u in inside and v in inside}
        assert np.array_equal(part.features, graph.features[part.ids])
        assert np.array_equal(part.labels, graph.labels[part.ids])


def test_a_seed_is_one_cut(graph: Graph) -> None:
    first, again = cut(graph, Cut(50, 40, 30), 3), cut(graph, Cut(50, 40, 30), 3)
    other = cut(graph, Cut(50, 40, 30), 4)
    assert fingerprint(first) == fingerprint(again) != fingerprint(other)
    assert fingerprint(first.public) == fingerprint(again.public)


def test_too_few_nodes_are_refused(graph: Graph) -> None:
    with pytest.raises(GraphError, match="cannot cut 191 nodes out of 190 with a label"):
        cut(graph, Cut(101, 50, 40))
    with pytest.raises(GraphError, match="at least one private and one public test node"):
        Cut(50, 40, 0)


def test_a_public_graph_of_another_kind_is_refused(graph: Graph) -> None:
    public = subgraph(graph, np.arange(100, 200))
    private = subgraph(graph, np.arange(100))
    with pytest.raises(GraphError, match="5 features and the private one 6"):
        beside(private, public.with_(features=public.features[:, :5]))
    with pytest.raises(GraphError, match="4 classes and the private one 3"):
        beside(private, public.with_(classes=4))
    with pytest.raises(GraphError, match="names its classes differently"):
        beside(
            private.with_(class_names=("a", "b", "c")), public.with_(class_names=("b", "a", "c"))
        )
    with pytest.raises(GraphError, match="no public graph of its own"):
        beside(private, private.with_(public=public))


def test_public_nodes_without_roles_are_all_scored(graph: Graph) -> None:
    blank = np.zeros(100, bool)
    public = subgraph(graph, np.arange(100, 200)).with_(train=blank, val=blank, test=blank)
    private = subgraph(graph, np.arange(100)).with_(train=blank, val=blank, test=blank)
    both = beside(private, public)
    assert np.array_equal(both.train, private.labels >= 0)
    assert np.array_equal(both.public.test, public.labels >= 0)
    assert both.facts().public_nodes == 100
    assert both.with_(public=None).facts().public_nodes == 0


def test_a_method_sees_no_public_label(graph: Graph) -> None:
    public = cut(graph, Cut(50, 40, 30)).public
    blind = without_labels(public)
    assert (blind.labels == -1).all()
    assert not blind.train.any()
    assert np.array_equal(blind.test, public.test)


def test_whatever_is_done_to_the_private_graph_leaves_the_public_one(graph: Graph) -> None:
    private = cut(graph, Cut(50, 40, 30))
    changed = tacit.split(subgraph(private, np.arange(40)), (60, 20, 20))
    assert changed.public is private.public
    assert fingerprint(private) == fingerprint(private.with_(public=None))


@pytest.mark.parametrize("method", [tacit.GAP(), tacit.MLP()], ids=lambda m: m.name)
def test_a_method_that_reads_one_graph_refuses_a_second(graph: Graph, method: Method) -> None:
    with pytest.raises(PlanError, match="has no use for a public one"):
        method.fit(cut(graph, Cut(50, 40, 30)))
