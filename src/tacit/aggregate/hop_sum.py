"""The neighbour sum as a query that knows its sensitivity, and how far one list may count.

``A^T W X``: node v receives the rows of the nodes that list it, each times the weight of its
sender. Weights bound one person's contribution under ``Node(links="own")``: either all ones with
lists cut to D random entries (the paper), or ``w_u = min(1, sqrt(D / deg_u))`` with lists whole.
Both give every record at most D in squared norm per hop; the second loses no link, and wins because
the sum of what a long list says grows with its length while its norm does not (proofs/hop_sums.md,
Theorem 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tacit.aggregate.hop import sum_neighbours, to_grid
from tacit.errors import UnitError
from tacit.graph import Graph
from tacit.graph.graph import FloatArray
from tacit.privacy.sensitivity import Sensitivity, hop_sums
from tacit.privacy.units import Edge, Node, Unit

GRID_BITS = 14
"""Rows of norm one are 2^14 grid steps long, so that an entry fits 16 bits."""


def list_weights(graph: Graph, max_degree: int) -> FloatArray:
    """Weights ``min(1, sqrt(D / deg_u))``: each reads its own out-list's length and nothing else.

    ``w_u^2 deg_u <= D``, so a record contributes at most D in squared norm. Rounded towards zero,
    so that float32 cannot lift the bound.
    """
    degree = np.maximum(graph.out_degrees, 1).astype(np.float64)
    weights = np.minimum(1.0, np.sqrt(max_degree / degree))
    return np.nextafter(weights.astype(np.float32), np.float32(0))


def own_list_sums(graph: Graph, sums: FloatArray, own: FloatArray) -> FloatArray:
    """For every node the mean over its own out-list of released sums, its own share taken out.

    Node v lists u, so v's own row is in u's sum; what the neighbours know besides v is
    ``sum over u in list(v) of (M_u - own_v)``. This reads v's record and what was released, and
    nothing else: it is a feature of v's own record, as X_v is.

    Args:
        graph: The graph; only out-lists are read.
        sums: Released noisy sums, one row per node.
        own: What each node itself contributed to each sum it is in.

    Returns:
        One row per node, zero for a node without links.
    """
    from scipy.sparse import csr_array

    shape = (graph.nodes, graph.nodes)
    ones = np.ones(graph.arcs, np.float32)
    lists = csr_array((ones, graph.indices, graph.indptr), shape=shape)
    degree = graph.out_degrees[:, None].astype(np.float32)
    share = np.reciprocal(np.maximum(degree, np.float32(1)))
    return ((lists @ sums - degree * own) * share).astype(np.float32, copy=False)


def check_promise(graph: Graph, unit: Unit) -> None:
    """Refuse a graph that breaks the degree promise of ``Node(links="all")``.

    Raises:
        UnitError: The promise is broken. That a graph is refused is itself a fact about it; the
            error is for the owner's eyes. (A promise that is missing where one is needed is
            refused when the plan is made.)
    """
    if not (isinstance(unit, Node) and unit.links == "all") or unit.max_degree is None:
        return
    longest = max(
        int(graph.out_degrees.max(initial=0)), int(np.diff(graph.in_lists[0]).max(initial=0))
    )
    if longest > unit.max_degree:
        raise UnitError(
            f"the promise max_degree={unit.max_degree} is broken: a node has {longest} links",
            why='under links="all" the bound is a promise about the input; cutting lists down to '
            "it would read other nodes' records (proofs/hop_sums.md)",
            remedy=f'promise {longest}, remove the node, or use Node(links="own")',
        )


@dataclass(frozen=True)
class NeighbourSum:
    """One hop: the sum over the nodes that list v of their rows. A query.

    Attributes:
        rows: How a graph gives one row per node, of norm at most 1. For hop 1 a function of each
            node's own record; for a later hop a constant, what earlier hops released.
        directed: Whether a link is one arc.
        max_degree: Scale own lists to D (``Node(links="own")`` only); None leaves weights at one.
        nonnegative: Whether no entry of the rows is ever negative.
    """

    rows: Callable[[Graph], FloatArray]
    directed: bool
    max_degree: int | None = None
    nonnegative: bool = False

    def __call__(self, graph: Graph) -> np.ndarray:
        """The exact sums as integers on the grid: a row of norm one is 2^14 long."""
        weights = None if self.max_degree is None else list_weights(graph, self.max_degree)
        return sum_neighbours(*graph.in_lists, to_grid(self.rows(graph), GRID_BITS, weights))

    def sensitivity(self, unit: Unit) -> Sensitivity:
        """The bound for one hop, in units where a row has norm 1."""
        if isinstance(unit, Edge) and self.max_degree is not None:
            raise UnitError(
                "weighted lists promise nothing under Edge",
                why="a weight reads the list's length, so one link moves all its neighbours' sums",
                remedy="leave max_degree out under the edge unit",
            )
        if isinstance(unit, Node) and unit.links == "all" and self.max_degree is not None:
            raise UnitError(
                'weighted lists promise nothing under Node(links="all")',
                why="a node that vanishes from a list changes that list's weight, and with it "
                "every sum its owner is in",
                remedy='leave max_degree out, or use Node(links="own")',
            )
        if isinstance(unit, Node) and self.max_degree is not None:
            # What bounds a list is the weight this query gives it, not what the unit asks for.
            unit = replace(unit, max_degree=self.max_degree)
        return hop_sums(
            unit,
            directed=self.directed,
            hops=1,
            nonnegative=self.nonnegative,
            bounded=self.max_degree is not None,
        )
