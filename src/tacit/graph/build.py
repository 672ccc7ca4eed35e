"""From a list of arcs to a graph: the one builder that every reader and generator goes through."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from tacit.errors import GraphError
from tacit.graph.graph import (
    MAX_NODES,
    BoolArray,
    FloatArray,
    Graph,
    IntArray,
    transpose,
)

_LOW = np.int64(0xFFFFFFFF)


def from_arcs(
    sources: ArrayLike,
    targets: ArrayLike,
    *,
    features: np.ndarray,
    labels: np.ndarray,
    directed: bool | None = None,
    symmetrize: bool = False,
    classes: int | None = None,
    train: np.ndarray | None = None,
    val: np.ndarray | None = None,
    test: np.ndarray | None = None,
    ids: np.ndarray | None = None,
    class_names: tuple[str, ...] | None = None,
    name: str = "graph",
    notes: tuple[str, ...] = (),
) -> Graph:
    """Builds a graph from arcs ``sources[i] -> targets[i]`` in O(arcs log arcs).

    The graph is binary: an arc given twice is one arc. Self-loops are dropped, because a loop
    says nothing about a relation between two individuals. Both are recorded in ``Graph.notes``.

    Args:
        sources: The node that reports each arc, as an index into ``features``.
        targets: The node that each arc names.
        features: One row per node. Their number is the number of nodes.
        labels: One class per node, -1 where unknown.
        directed: None finds out: a symmetric set of arcs is a symmetric graph. False insists on
            symmetry. True keeps the arcs as out-lists even where they happen to be symmetric.
        symmetrize: Add the reverse of every arc. For files that list each link once.
        classes: Number of classes; None takes the largest label plus one.
        train: Training mask; None for an empty one.
        val: Validation mask.
        test: Test mask.
        ids: The owner's identifiers.
        class_names: The owner's names of the classes.
        name: Where the graph came from.
        notes: Notes so far.

    Returns:
        The graph.

    Raises:
        GraphError: An arc names a node that does not exist, the arcs are not symmetric although
            ``directed=False``, or any field is invalid.
    """
    n = len(features)
    labels = np.asarray(labels)
    if n == 0:
        raise GraphError(
            "the graph has no nodes", remedy="check that the file is the one you meant"
        )
    if directed and symmetrize:
        raise GraphError(
            "directed=True and symmetrize=True contradict each other",
            remedy="choose one of them",
        )
    tail, head = _endpoints(sources, n, "source"), _endpoints(targets, n, "target")
    if tail.shape != head.shape:
        raise GraphError(f"{len(tail)} sources do not match {len(head)} targets")
    tail, head, found = clean_arcs(tail, head)
    if symmetrize:
        tail, head = with_reverses(tail, head)
        directed = False
    indptr, indices = rows_of(tail, head, n)
    del tail, head
    offence = None if directed else asymmetric_arc(indptr, indices)
    if offence is not None and directed is False:
        raise _not_symmetric(offence, ids)
    if offence is not None:
        found = (
            *found,
            "some arcs have no reverse, so the graph is directed; "
            "symmetrize=True reads files that list each link once",
        )
    return Graph(
        indptr=indptr,
        indices=indices,
        features=cast(FloatArray, features),
        labels=cast(IntArray, labels),
        train=_mask(train, n),
        val=_mask(val, n),
        test=_mask(test, n),
        directed=bool(directed) or offence is not None,
        classes=count_classes(labels, n, classes),
        ids=ids,
        name=name,
        class_names=class_names,
        notes=(*notes, *found),
    )


def drop_self_loops(tail: np.ndarray, head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The arcs that join two different nodes, in the order given."""
    keep = tail != head
    return (tail, head) if keep.all() else (tail[keep], head[keep])


def drop_duplicates(tail: np.ndarray, head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each arc once, sorted by source and then target."""
    keys = (tail.astype(np.int64) << 32) | head
    if not np.all(keys[1:] > keys[:-1]):
        keys.sort()
        fresh = np.ones(len(keys), dtype=bool)
        np.not_equal(keys[1:], keys[:-1], out=fresh[1:])
        if not fresh.all():
            keys = keys[fresh]
        tail, head = (keys >> 32).astype(np.int32), (keys & _LOW).astype(np.int32)
    return tail, head


def with_reverses(tail: np.ndarray, head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The arcs and their reverses, each once, sorted by source and then target."""
    return drop_duplicates(np.concatenate([tail, head]), np.concatenate([head, tail]))


def clean_arcs(
    tail: np.ndarray, head: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Sorted arcs without self-loops and duplicates, and notes on what was dropped."""
    notes = []
    before = len(tail)
    tail, head = drop_self_loops(tail, head)
    if len(tail) < before:
        notes.append(f"{before - len(tail):,} self-loops were dropped")
    before = len(tail)
    tail, head = drop_duplicates(tail, head)
    if len(tail) < before:
        notes.append(f"{before - len(tail):,} duplicate arcs were merged")
    return tail, head, tuple(notes)


def rows_of(tail: np.ndarray, head: np.ndarray, nodes: int) -> tuple[IntArray, np.ndarray]:
    """CSR of arcs that are sorted by source and then target."""
    indptr = np.zeros(nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(tail, minlength=nodes), out=indptr[1:])
    return indptr, head


def asymmetric_arc(indptr: np.ndarray, indices: np.ndarray) -> tuple[int, int] | None:
    """The first arc that has no reverse, or None when the links are symmetric."""
    back_indptr, back_indices = transpose(indptr, indices)
    if np.array_equal(indptr, back_indptr) and np.array_equal(indices, back_indices):
        return None
    nodes = np.arange(len(indptr) - 1, dtype=np.int64)
    forward = (np.repeat(nodes, np.diff(indptr)) << 32) | indices
    back = (np.repeat(nodes, np.diff(back_indptr)) << 32) | back_indices
    lonely = forward[~np.isin(forward, back, assume_unique=True)]
    return int(lonely[0] >> 32), int(lonely[0] & _LOW)


def count_classes(labels: np.ndarray, nodes: int, declared: int | None = None) -> int:
    """The number of classes: as declared, or the largest label plus one."""
    if labels.dtype.kind not in "iu":
        raise GraphError(
            f"labels of type {labels.dtype} are not class numbers",
            remedy="number the classes from 0, and mark unknown labels with -1",
        )
    classes = int(labels.max(initial=-1)) + 1 if declared is None else declared
    if classes > max(nodes, 2):
        raise GraphError(
            f"label {classes - 1} is out of range",
            why=f"a graph of {nodes} nodes cannot have {classes} classes",
            remedy="number the classes from 0, and mark unknown labels with -1",
        )
    return classes


def _endpoints(ends: ArrayLike, nodes: int, what: str) -> np.ndarray:
    array = np.asarray(ends)
    if array.size == 0:
        return np.zeros(0, dtype=np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise GraphError(
            f"the {what}s of the arcs must be a list of whole numbers",
            why=f"found {array.dtype} of shape {array.shape}",
        )
    if nodes > MAX_NODES:
        raise GraphError(f"{nodes:,} nodes are more than {MAX_NODES:,}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= nodes:
        raise GraphError(
            f"an arc has {what} {low if low < 0 else high}, which is not a node",
            why=f"the {nodes:,} nodes are numbered 0..{nodes - 1}",
            remedy="drop dangling arcs or add the missing nodes; tables take any identifier",
        )
    return array.astype(np.int32, copy=False)


def _mask(mask: np.ndarray | None, nodes: int) -> BoolArray:
    return np.zeros(nodes, dtype=bool) if mask is None else mask


def _not_symmetric(arc: tuple[int, int], ids: np.ndarray | None) -> GraphError:
    tail, head = arc if ids is None else (ids[arc[0]], ids[arc[1]])
    return GraphError(
        f"the graph was declared undirected, but it has the arc {tail} -> {head} "
        f"and not {head} -> {tail}",
        why="an undirected link must be listed by both ends",
        remedy="pass symmetrize=True if the file lists each link once, or directed=True",
    )
