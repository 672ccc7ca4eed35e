"""The graph a user brings, and the facts about it that are public."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tacit.errors import GraphError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]


def _freeze(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


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
    """

    nodes: int
    train_nodes: int
    features: int
    classes: int
    directed: bool = False
    mean_degree: float | None = None

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

    def __post_init__(self) -> None:
        for key in ("indptr", "indices", "features", "labels", "train", "val", "test"):
            object.__setattr__(self, key, _freeze(np.asarray(getattr(self, key))))
        self._validate()

    def _validate(self) -> None:
        n = len(self.indptr) - 1
        if n < 1:
            raise GraphError("the graph has no nodes", remedy="check that the file is not empty")
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
        if self.features.ndim != 2 or len(self.features) != n:
            raise GraphError(f"features must have one row for each of the {n} nodes")
        if not np.isfinite(self.features).all():
            bad = int(np.flatnonzero(~np.isfinite(self.features).all(axis=1))[0])
            raise GraphError(
                "a feature is NaN or infinite",
                why=f"the first such row is node {bad}, and one NaN poisons every sum it enters",
                remedy="impute or drop it before loading",
            )
        for key in ("labels", "train", "val", "test"):
            if getattr(self, key).shape != (n,):
                raise GraphError(f"{key} must have one entry for each of the {n} nodes")
        if len(self.labels) and (self.labels.min() < -1 or self.labels.max() >= self.classes):
            raise GraphError(
                "a label is out of range",
                why=f"labels must lie in 0..{self.classes - 1}, or be -1 for unknown",
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
        counts = np.bincount(self.indices, minlength=self.nodes)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        sources = np.repeat(np.arange(self.nodes, dtype=np.int32), self.out_degrees)
        order = np.argsort(self.indices, kind="stable")
        return _freeze(indptr), _freeze(sources[order])

    def facts(self, mean_degree: float | None = None) -> PublicFacts:
        """The public facts of this graph: sizes only, no contents."""
        return PublicFacts(
            nodes=self.nodes,
            train_nodes=int(self.train.sum()),
            features=self.features.shape[1],
            classes=self.classes,
            directed=self.directed,
            mean_degree=mean_degree,
        )

    def with_(self, **changes: object) -> Graph:
        """A copy with some fields replaced; untouched arrays are shared."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        kind = "directed" if self.directed else "symmetric"
        return (
            f"Graph({self.name}: {self.nodes:,} nodes, {self.arcs:,} {kind} arcs, "
            f"{self.features.shape[1]:,} features, {self.classes} classes)"
        )
