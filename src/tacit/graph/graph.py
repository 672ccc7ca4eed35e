"""The graph a user brings, and the facts about it that are public."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tacit.errors import GraphError

MAX_NODES = 2**31 - 1
"""Arcs are stored as 32-bit node indices."""

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]


def _freeze(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _typed(value: object, dtype: type, what: str) -> np.ndarray:
    """A read-only view of the given type; converts only where no value changes."""
    array = np.asarray(value)
    if array.dtype == dtype:
        return _freeze(array)
    if array.dtype.kind not in "biuf" or (dtype is np.bool_ and array.dtype.kind != "b"):
        raise GraphError(f"{what} cannot be of type {array.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        converted: np.ndarray = array.astype(dtype)
    # Features may lose digits on their way to 32-bit floats; counts and indices may not change.
    if np.dtype(dtype).kind == "i" and not np.array_equal(converted, array):
        raise GraphError(
            f"{what} hold a value that does not fit {np.dtype(dtype).name}",
            why="identifiers beyond 32 bits, or fractions, would be silently changed",
            remedy="number the nodes 0..n-1, or load tables, which take any identifier",
        )
    return _freeze(converted)


def all_finite(rows: np.ndarray) -> np.ndarray:
    """Whether each row is free of NaN and infinities, in blocks so that memory stays small."""
    good = np.empty(len(rows), dtype=bool)
    step = max(1, (1 << 22) // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        good[start : start + step] = np.isfinite(rows[start : start + step]).all(axis=1)
    return good


def transpose(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """CSR of the transposed links, rows sorted, by counting: O(nodes + arcs)."""
    from scipy.sparse import csr_array

    n = len(indptr) - 1
    small = indptr if len(indices) > MAX_NODES else indptr.astype(np.int32)
    flipped = csr_array((np.ones(len(indices), np.bool_), indices, small), shape=(n, n)).tocsc()
    return flipped.indptr.astype(np.int64), flipped.indices.astype(np.int32, copy=False)


@dataclass(frozen=True)
class PublicFacts:
    """What may be used without spending privacy: sizes, widths and promises, never contents.

    Attributes:
        nodes: Number of nodes.
        train_nodes: Number of nodes whose label may be trained on.
        features: Width of a feature row.
        classes: Number of classes.
        directed: Whether an arc may exist without its reverse.
        mean_degree: The owner's public estimate of the mean out-degree, if there is one. It is
            never computed from a private graph.
        public_nodes: Number of nodes of the public graph beside it; 0 where there is none.
    """

    nodes: int
    train_nodes: int
    features: int
    classes: int
    directed: bool = False
    mean_degree: float | None = None
    public_nodes: int = 0

    def __post_init__(self) -> None:
        for name in ("nodes", "train_nodes", "features"):
            if getattr(self, name) < 1:
                raise GraphError(
                    f"a graph needs at least one of {name.replace('_', ' ')}",
                    why=f"{name} is {getattr(self, name)}",
                )
        if self.classes < 2:
            raise GraphError(f"{self.classes} class cannot be told apart from anything")
        if self.train_nodes > self.nodes:
            raise GraphError(f"{self.train_nodes} training nodes are more than {self.nodes} nodes")


@dataclass(frozen=True, eq=False)
class Graph:
    """An attributed graph with links in compressed sparse rows. Immutable.

    Row u of the CSR structure is the *out-list* of u: the nodes that u reports. Aggregation at v
    sums over the nodes that list v (the paper's ``A^T X``). A symmetric graph stores every link as
    two arcs. Arrays are read-only views: a transform returns a new graph.

    Attributes:
        indptr: Row pointers, ``nodes + 1`` long.
        indices: Targets of the arcs, sorted within each row, without duplicates or self-loops.
        features: One float32 row per node.
        labels: One class per node, -1 where unknown.
        train: Nodes whose labels may be trained on.
        val: Nodes held out for choosing.
        test: Nodes held out for reporting.
        directed: Whether an arc may exist without its reverse.
        classes: Number of classes.
        ids: The owner's identifiers in node order, when they are not 0..n-1.
        name: Where the graph came from.
        class_names: What the owner calls each class, when it is not its number.
        notes: What a reader changed on the way in, such as merged duplicates. They describe the
            private graph, so they are as private as the graph is.
        public: A public graph beside this private one, for methods that learn for one. Whatever
            is done to this graph leaves it as it is.
    """

    indptr: IntArray
    indices: NDArray[np.int32]
    features: FloatArray
    labels: IntArray
    train: BoolArray
    val: BoolArray
    test: BoolArray
    directed: bool
    classes: int
    ids: np.ndarray | None = None
    name: str = field(default="graph")
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    public: Graph | None = None

    def __post_init__(self) -> None:
        for key, dtype in _TYPES.items():
            object.__setattr__(self, key, _typed(getattr(self, key), dtype, key))
        if self.ids is not None:
            object.__setattr__(self, "ids", _freeze(np.asarray(self.ids)))
        self._check_links()
        self._check_rows()
        self._check_labels()

    def _check_links(self) -> None:
        n = len(self.indptr) - 1 if self.indptr.ndim == 1 else 0
        if n < 1:
            raise GraphError("the graph has no nodes", remedy="check that the file is not empty")
        if n > MAX_NODES:
            raise GraphError(f"{n:,} nodes are more than {MAX_NODES:,}")
        if self.indices.ndim != 1:
            raise GraphError("the CSR arcs must be one-dimensional")
        if self.indptr[0] != 0 or self.indptr[-1] != len(self.indices):
            raise GraphError("the CSR row pointers do not span the arcs")
        if np.any(np.diff(self.indptr) < 0):
            raise GraphError("the CSR row pointers decrease")
        if len(self.indices) and (self.indices.min() < 0 or self.indices.max() >= n):
            raise GraphError(
                "an arc points to a node that does not exist",
                why=f"node indices must lie in 0..{n - 1}",
                remedy="drop dangling links or add the missing nodes",
            )
        self._check_lists()

    def _check_lists(self) -> None:
        """Each list sorted, without duplicates or self-loops, and symmetric unless directed."""
        step = self.indices[1:] > self.indices[:-1]
        starts = self.indptr[1:-1]
        step[starts[(starts > 0) & (starts < self.arcs)] - 1] = True
        if not step.all():
            raise GraphError(
                "an out-list is not sorted or names a node twice",
                why="a link counted twice would move every sum by more than its sensitivity",
                remedy="build the graph with tacit.graph.from_arcs",
            )
        sources = np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.indptr))
        if np.any(sources == self.indices):
            raise GraphError(
                "a node links to itself",
                why="a self-loop carries no relation between two individuals",
                remedy="build the graph with tacit.graph.from_arcs, which drops self-loops",
            )
        if not self.directed:
            indptr, indices = transpose(self.indptr, self.indices)
            if not (np.array_equal(indptr, self.indptr) and np.array_equal(indices, self.indices)):
                raise GraphError(
                    "the graph is declared symmetric but an arc has no reverse",
                    why="a link that one side lists and the other does not is a directed arc",
                    remedy="set directed=True, or add the reverses with tacit.graph.symmetrize",
                )

    def _check_rows(self) -> None:
        n = self.nodes
        if self.features.ndim != 2 or len(self.features) != n:
            raise GraphError(f"features must have one row for each of the {n} nodes")
        finite = all_finite(self.features)
        if not finite.all():
            bad = int(np.argmin(finite))
            raise GraphError(
                "a feature is NaN or infinite",
                why=f"the first such row is node {bad}, and one NaN poisons every sum it enters",
                remedy="impute or drop it before loading",
            )
        if self.ids is not None and self.ids.shape != (n,):
            raise GraphError(f"ids must have one entry for each of the {n} nodes")

    def _check_labels(self) -> None:
        n = self.nodes
        if self.class_names is not None and len(self.class_names) != self.classes:
            raise GraphError(f"{len(self.class_names)} class names for {self.classes} classes")
        for key in ("labels", "train", "val", "test"):
            if getattr(self, key).shape != (n,):
                raise GraphError(f"{key} must have one entry for each of the {n} nodes")
        if len(self.labels) and (self.labels.min() < -1 or self.labels.max() >= self.classes):
            raise GraphError(
                "a label is out of range",
                why=f"labels must lie in 0..{self.classes - 1}, or be -1 for unknown",
                remedy="number the classes from 0, and mark unknown labels with -1",
            )
        if np.any(self.labels[self.train] < 0):
            raise GraphError(
                "a training node has no label",
                remedy="leave unlabelled nodes out of the training mask",
            )

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    @property
    def arcs(self) -> int:
        """Number of stored arcs; a symmetric graph has two for each link."""
        return len(self.indices)

    @cached_property
    def out_degrees(self) -> IntArray:
        """Length of every out-list. Private."""
        return np.diff(self.indptr)

    @cached_property
    def in_lists(self) -> tuple[IntArray, NDArray[np.int32]]:
        """CSR of the transpose: row v holds the nodes that list v."""
        if not self.directed:
            return self.indptr, self.indices
        indptr, sources = transpose(self.indptr, self.indices)
        return _freeze(indptr), _freeze(sources)

    def facts(self, mean_degree: float | None = None) -> PublicFacts:
        """The public facts of this graph: sizes only, no contents."""
        return PublicFacts(
            nodes=self.nodes,
            train_nodes=int(self.train.sum()),
            features=self.features.shape[1],
            classes=self.classes,
            directed=self.directed,
            mean_degree=mean_degree,
            public_nodes=0 if self.public is None else self.public.nodes,
        )

    def with_(self, **changes: object) -> Graph:
        """A copy with some fields replaced; untouched arrays are shared and not checked again."""
        known = {item.name for item in fields(self)}
        if not set(changes) <= known:
            raise GraphError(f"a graph has no {', '.join(sorted(set(changes) - known))}")
        new = object.__new__(Graph)
        for key in known:
            value = changes.get(key, getattr(self, key))
            if key in changes and key in _TYPES:
                value = _typed(value, _TYPES[key], key)
            object.__setattr__(new, key, value)
        if changes.keys() & {"indptr", "indices", "directed"}:
            new._check_links()
        if changes.keys() & {"indptr", "features", "ids"}:
            new._check_rows()
        if changes.keys() & {"indptr", "labels", "train", "val", "test", "classes", "class_names"}:
            new._check_labels()
        return new

    def __repr__(self) -> str:
        kind = "directed" if self.directed else "symmetric"
        return (
            f"Graph({self.name}: {self.nodes:,} nodes, {self.arcs:,} {kind} arcs, "
            f"{self.features.shape[1]:,} features, {self.classes} classes)"
        )


_TYPES: dict[str, type] = {
    "indptr": np.int64,
    "indices": np.int32,
    "features": np.float32,
    "labels": np.int64,
    "train": np.bool_,
    "val": np.bool_,
    "test": np.bool_,
}
