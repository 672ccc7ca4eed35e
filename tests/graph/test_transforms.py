import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import GraphError
from tacit.graph import (
    bound_out_lists,
    drop_isolated,
    from_arcs,
    keep_classes,
    split,
    subgraph,
    symmetrize,
)
from tacit.graph.transforms import kept_entries


def lists_of(graph):
    return [
        graph.indices[graph.indptr[u] : graph.indptr[u + 1]].tolist() for u in range(graph.nodes)
    ]


@st.composite
def graphs(draw):
    nodes = draw(st.integers(3, 10))
    node = st.integers(0, nodes - 1)
    arcs = np.array(draw(st.lists(st.tuples(node, node), max_size=50)), dtype=int).reshape(-1, 2)
    return from_arcs(
        arcs[:, 0],
        arcs[:, 1],
        features=np.arange(nodes, dtype=np.float32)[:, None],
        labels=np.array(draw(st.lists(st.integers(-1, 2), min_size=nodes, max_size=nodes))),
        classes=3,
        symmetrize=draw(st.booleans()),
    )


@settings(max_examples=50, deadline=None)
@given(graphs(), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_bounding_keeps_d_entries_of_every_list(graph, bound, seed):
    before = graph.indices.copy()
    cut = bound_out_lists(graph, bound, seed)
    for whole, kept in zip(lists_of(graph), lists_of(cut), strict=True):
        assert len(kept) == min(bound, len(whole))
        assert set(kept) <= set(whole)
    assert cut.directed
    assert np.array_equal(graph.indices, before)


def test_bounding_is_uniform_in_every_list_also_the_last():
    # Lists of length 6, 0, 2, 6; D = 2: each of the 15 pairs of a long list is equally likely.
    lists = [[1, 2, 3, 4, 5, 6], [], [0, 1], [], [], [], [0, 1, 2, 3, 4, 5]]
    arcs = np.array([(u, v) for u, row in enumerate(lists) for v in row])
    graph = from_arcs(
        arcs[:, 0], arcs[:, 1], features=np.ones((7, 1)), labels=np.zeros(7, dtype=int)
    )
    counts = {0: {}, 6: {}}
    joint = {}
    draws = 6000
    for seed in range(draws):
        kept = lists_of(bound_out_lists(graph, 2, seed))
        assert kept[2] == [0, 1]
        for u in counts:
            counts[u][tuple(kept[u])] = counts[u].get(tuple(kept[u]), 0) + 1
        key = (1 in kept[0], 5 in kept[6])
        joint[key] = joint.get(key, 0) + 1
    for table in counts.values():
        assert len(table) == 15
        statistic = sum((seen - draws / 15) ** 2 / (draws / 15) for seen in table.values())
        assert statistic < 50  # chi-squared, 14 degrees of freedom: p < 1e-5 beyond 48.7
    independent = draws / 9  # both kept with chance 1/3 each
    assert abs(joint[True, True] - independent) < 6 * np.sqrt(independent)


def test_bounding_reads_each_list_on_its_own():
    """A shared stream of coins was shifted by another list's length, for whoever knew the seed."""
    rng = np.random.default_rng(3)
    tails, heads = rng.integers(0, 12, (2, 90))
    options = {"features": np.ones((12, 1)), "labels": np.zeros(12, dtype=int), "directed": True}
    graph = from_arcs(tails, heads, **options)
    for v in range(12):
        without = from_arcs(tails[tails != v], heads[tails != v], **options)
        first, second = (lists_of(bound_out_lists(g, 2, 1)) for g in (graph, without))
        assert all(first[u] == second[u] for u in range(12) if u != v)


def test_one_list_alone_is_cut_as_among_others():
    n, k = 4000, 3
    indptr, owners = np.arange(n + 1) * 10, np.arange(n)
    indices = np.tile(np.arange(10, dtype=np.int32), n)
    kept = kept_entries(owners, indptr, indices, k, 1)
    share = kept.reshape(n, 10).mean(axis=0)
    assert np.abs(share - 0.3).max() < 6 * np.sqrt(0.21 / n)
    alone = kept_entries(owners[9:10], np.array([0, 10]), indices[:10], k, 1)
    assert np.array_equal(alone, kept[90:100])


def test_bounding_refuses_a_negative_bound(small):
    with pytest.raises(GraphError, match="-1 entries"):
        bound_out_lists(small, -1, 0)


@settings(max_examples=50, deadline=None)
@given(graphs(), st.data())
def test_subgraph_is_the_induced_one(graph, data):
    order = data.draw(st.permutations(range(graph.nodes)))
    chosen = order[: data.draw(st.integers(1, graph.nodes))]
    part = subgraph(graph, chosen)
    for new, old in enumerate(chosen):
        expected = sorted(chosen.index(v) for v in lists_of(graph)[old] if v in chosen)
        assert lists_of(part)[new] == expected
    assert part.features[:, 0].tolist() == [float(u) for u in chosen]
    assert part.labels.tolist() == graph.labels[chosen].tolist()
    assert part.ids.tolist() == list(chosen)
    assert part.directed == graph.directed


def test_subgraph_takes_masks_and_refuses_nonsense(small):
    mask = np.array([1, 1, 0, 0, 0, 0, 0], dtype=bool)
    assert lists_of(subgraph(small, mask)) == [[1], [0]]
    for nodes, says in (
        ([], "no node is left"),
        ([0, 0], "chosen twice"),
        ([7], "0..6"),
        ([0.5], "mask or a list"),
        (mask[:3], "one entry for each"),
    ):
        with pytest.raises(GraphError, match=says):
            subgraph(small, nodes)


def test_drop_isolated_keeps_everyone_with_a_link(small):
    kept = drop_isolated(small)
    assert kept.ids.tolist() == [0, 1, 2, 3, 4, 6]
    assert drop_isolated(kept) is kept
    only_listed = from_arcs([0], [1], features=np.ones((3, 1)), labels=np.zeros(3, dtype=int))
    assert drop_isolated(only_listed).nodes == 2


def test_keep_classes_renumbers_and_remembers():
    labels = np.array([0, 0, 1, 2, 2, -1])
    graph = from_arcs([0], [3], features=np.ones((6, 1)), labels=labels, train=labels >= 0)
    kept = keep_classes(graph, 2)
    assert kept.labels.tolist() == [0, 0, 1, 1]
    assert (kept.classes, kept.class_names) == (2, ("0", "2"))
    assert kept.ids.tolist() == [0, 1, 3, 4]
    assert kept.train.all()
    wide = keep_classes(graph, 2, keep_unlabelled=True)
    assert wide.labels.tolist() == [0, 0, 1, 1, -1]
    assert keep_classes(graph, 1).nodes == 5
    assert keep_classes(graph, 1, keep_unlabelled=True) is graph
    with pytest.raises(GraphError, match="no class has 3 nodes"):
        keep_classes(graph, 3)


def test_symmetrize_adds_reverses_once(small):
    graph = from_arcs([0, 1, 1], [1, 0, 2], features=np.ones((3, 1)), labels=np.zeros(3, dtype=int))
    assert graph.directed
    both = symmetrize(graph)
    assert lists_of(both) == [[1], [0, 2], [1]]
    assert not both.directed
    assert symmetrize(small) is small


@settings(max_examples=50, deadline=None)
@given(graphs(), st.integers(0, 99))
def test_split_gives_every_labelled_node_one_role(graph, seed):
    if not (graph.labels >= 0).any():
        with pytest.raises(GraphError, match="no node has a label"):
            split(graph, seed=seed)
        return
    done = split(graph, seed=seed)
    roles = done.train.astype(int) + done.val + done.test
    assert np.array_equal(roles == 1, graph.labels >= 0)
    assert roles.max() == 1


def test_split_is_fair_and_seeded(small):
    graph = from_arcs([0], [1], features=np.ones((1000, 1)), labels=np.zeros(1000, dtype=int))
    done = split(graph, seed=5)
    assert [int(m.sum()) for m in (done.train, done.val, done.test)] == [750, 100, 150]
    assert np.array_equal(done.train, split(graph, (15, 2, 3), seed=5).train)
    assert not np.array_equal(done.train, split(graph, seed=6).train)
    # Golden: numpy's PCG64 permutation of 0..999 with seed 5 begins with these nodes.
    first = np.random.default_rng(5).permutation(1000)[:750]
    assert np.array_equal(np.flatnonzero(done.train), np.sort(first))
    for ratios, says in (((1, 1), "three shares"), ((0, 1, 1), "is 0"), ((1, -1, 1), "three")):
        with pytest.raises(GraphError, match=says):
            split(graph, ratios)
