"""New graphs from old ones. Nothing is changed in place, and masks follow their nodes.

Self-loops and duplicate arcs never get as far as a Graph: the builder drops them
(:func:`tacit.graph.build.drop_self_loops`, :func:`tacit.graph.build.drop_duplicates`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import GraphError
from tacit.graph.build import rows_of, with_reverses
from tacit.graph.graph import Graph


def subgraph(graph: Graph, nodes: ArrayLike) -> Graph:
    """The graph induced on some nodes, which are renumbered in the order given.

    Args:
        graph: The graph.
        nodes: A boolean mask over the nodes, or distinct node indices.

    Returns:
        A graph with these nodes and the arcs among them. Classes keep their numbers.
    """
    chosen = np.asarray(nodes)
    if chosen.dtype == bool:
        if chosen.shape != (graph.nodes,):
            raise GraphError(f"a mask must have one entry for each of the {graph.nodes} nodes")
        chosen = np.flatnonzero(chosen)
    if chosen.size == 0:
        raise GraphError("no node is left", remedy="choose at least one node")
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise GraphError("nodes must be a mask or a list of node indices")
    if chosen.min() < 0 or chosen.max() >= graph.nodes:
        raise GraphError(f"node indices must lie in 0..{graph.nodes - 1}")
    place = np.full(graph.nodes, -1, dtype=np.int32)
    place[chosen] = np.arange(len(chosen), dtype=np.int32)
    if np.count_nonzero(place >= 0) != len(chosen):
        raise GraphError("a node is chosen twice")
    tail, head = place[arc_sources(graph)], place[graph.indices]
    kept = (tail >= 0) & (head >= 0)
    tail, head = tail[kept], head[kept]
    if np.any(chosen[1:] < chosen[:-1]):  # a new order leaves the arcs unsorted
        order = np.lexsort((head, tail))
        tail, head = tail[order], head[order]
    indptr, indices = rows_of(tail, head, len(chosen))
    return graph.with_(
        indptr=indptr,
        indices=indices,
        features=graph.features[chosen],
        labels=graph.labels[chosen],
        train=graph.train[chosen],
        val=graph.val[chosen],
        test=graph.test[chosen],
        ids=chosen.astype(np.int64) if graph.ids is None else graph.ids[chosen],
    )


def drop_isolated(graph: Graph) -> Graph:
    """Without the nodes that neither list nor are listed by anyone."""
    linked = graph.out_degrees > 0
    linked[graph.indices] = True
    return graph if linked.all() else subgraph(graph, linked)


def keep_classes(graph: Graph, min_nodes: int, *, keep_unlabelled: bool = False) -> Graph:
    """Keeps the nodes of classes that have at least ``min_nodes`` of them.

    Args:
        graph: The graph.
        min_nodes: The least number of labelled nodes a class needs to stay.
        keep_unlabelled: Whether nodes without a label stay. GAP's preparation of Facebook drops
            them, which is the default.

    Returns:
        A graph whose classes are renumbered from 0 in their old order; ``class_names`` says what
        they were.
    """
    counts = np.bincount(graph.labels[graph.labels >= 0], minlength=graph.classes)
    kept = np.flatnonzero((counts >= min_nodes) & (counts > 0))
    if len(kept) == 0:
        raise GraphError(
            f"no class has {min_nodes} nodes", why=f"the largest has {counts.max(initial=0)}"
        )
    number = np.full(graph.classes + 1, -1, dtype=np.int64)  # the last entry serves label -1
    number[kept] = np.arange(len(kept))
    labels = number[graph.labels]
    names = graph.class_names or tuple(str(c) for c in range(graph.classes))
    stays = (labels >= 0) | (keep_unlabelled & (graph.labels < 0))
    relabelled = graph
    if len(kept) < graph.classes:
        relabelled = graph.with_(
            labels=labels,
            classes=len(kept),
            class_names=tuple(names[c] for c in kept),
            train=graph.train & (labels >= 0),
            val=graph.val & (labels >= 0),
            test=graph.test & (labels >= 0),
        )
    return relabelled if stays.all() else subgraph(relabelled, stays)


def symmetrize(graph: Graph) -> Graph:
    """The graph with the reverse of every arc added."""
    if not graph.directed:
        return graph
    indptr, indices = rows_of(*with_reverses(arc_sources(graph), graph.indices), graph.nodes)
    return graph.with_(indptr=indptr, indices=indices, directed=False)


def split(graph: Graph, ratios: Sequence[float] = (75, 10, 15), seed: int = 0) -> Graph:
    """Gives every labelled node one of the roles train, val and test, at random.

    Args:
        graph: The graph.
        ratios: Shares of train, val and test; only their proportions count.
        seed: Which split. The same seed gives the same split on every machine.

    Returns:
        The graph with new masks. Nodes without a label have no role.
    """
    shares = np.asarray(ratios, dtype=float)
    if shares.shape != (3,) or not np.isfinite(shares).all() or (shares < 0).any():
        raise GraphError(
            f"a split needs three shares of at least 0, not {tuple(ratios)}",
            remedy="write ratios=(75, 10, 15) for train, val and test",
        )
    if shares[0] == 0:
        raise GraphError("the share of training nodes is 0", remedy="write ratios=(75, 10, 15)")
    labelled = np.flatnonzero(graph.labels >= 0)
    if len(labelled) == 0:
        raise GraphError("no node has a label", why="there is nothing to train on or to score")
    order = np.random.default_rng(seed).permutation(labelled)
    cuts = np.rint(np.cumsum(shares / shares.sum()) * len(order)).astype(int)
    roles = np.split(order, cuts[:2])
    masks = []
    for members in roles:
        mask = np.zeros(graph.nodes, dtype=bool)
        mask[members] = True
        masks.append(mask)
    return graph.with_(train=masks[0], val=masks[1], test=masks[2])


def bound_out_lists(graph: Graph, max_degree: int, seed: int) -> Graph:
    r"""Cuts every out-list that is longer than D to D of its entries, as :func:`kept_entries` says.

    Formal guarantees:
        Under ``Node(links="own")`` one individual controls one out-list, so the cut graph of a
        neighbouring data set differs in that list alone, and at most D terms of any sum over
        arcs move, for every seed and also for whoever knows it. It gives NO bound under
        ``Node(links="all")``, where removing one node changes many lists: see proofs/hop_sums.md,
        "Why truncation cannot give links=all".

    Args:
        graph: The graph.
        max_degree: D, the most entries a list keeps.
        seed: Of the choice; public.

    Returns:
        A graph with ``directed=True``, also where nothing had to be cut: which lists are long is
        private, so the flag must not depend on it.
    """
    if max_degree < 0:
        raise GraphError(f"a list cannot be bounded to {max_degree} entries")
    owners = np.arange(graph.nodes)
    kept = kept_entries(owners, graph.indptr, graph.indices, max_degree, seed)
    indptr = np.zeros(graph.nodes + 1, dtype=np.int64)
    np.cumsum(np.minimum(graph.out_degrees, max_degree), out=indptr[1:])
    return graph.with_(indptr=indptr, indices=graph.indices[kept], directed=True)


def kept_entries(
    owners: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    most: int,
    seed: int,
) -> NDArray[np.bool_]:
    """Which entries of each own list stay where it is longer than ``most``.

    Every entry has a fixed priority, mixed from the seed, the list's owner and the entry, and a
    list keeps its smallest: over seeds, a uniformly random subset. So a list is cut by reading that
    list alone, whatever others do, also for whoever knows the seed: drawing the coins of all lists
    from one generator would let one list's length decide which coins the next one gets.

    Args:
        owners: Owners of the lists.
        indptr: Row pointers.
        indices: Entries.
        most: How many stay.
        seed: Public.
    """
    lengths = np.diff(indptr)
    kept = np.ones(len(indices), bool)
    places = np.flatnonzero(np.repeat(lengths > most, lengths))
    rows = np.repeat(np.arange(len(owners)), lengths)[places]
    entries = indices[places].astype(np.uint64)
    start = np.uint64(seed % 2**64)
    priority = _mixed(_mixed(owners[rows].astype(np.uint64) ^ start) ^ entries)
    order = np.lexsort((priority, rows))
    # Places of one list are consecutive in both orders; its first by priority stay.
    rank = np.arange(len(places)) - np.searchsorted(rows, rows, side="left")
    kept[places[order[rank >= most]]] = False
    return kept


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function (Steele, Lea, Flood, 2014): a bijection that mixes well."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def arc_sources(graph: Graph) -> np.ndarray:
    """The source of every arc, in the order of ``graph.indices``."""
    return np.repeat(np.arange(graph.nodes, dtype=np.int32), graph.out_degrees)
