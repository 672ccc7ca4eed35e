"""How far one unit can move a query, and by which theorem.

Every bound here has its page in ``proofs/``; what no page covers is refused with the reason. A
bound is stated for the *sum of squares over all K hops*, because that is what the Gaussian
mechanism is charged for when every hop gets the same noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tacit.errors import UnitError
from tacit.graph import Graph
from tacit.privacy.units import Edge, KNeighbors, Node, Unit


@dataclass(frozen=True)
class Sensitivity:
    """The largest L2 distance between a query's answers on two neighbouring graphs.

    Attributes:
        l2: The bound.
        theorem: Which statement proves it, for the privacy card.
        page: The page in ``proofs/`` that holds the proof.
        tight: Whether a witness reaches the bound.
    """

    l2: float
    theorem: str
    page: str
    tight: bool = True


class Query(Protocol):
    """A function of the graph that knows how far one unit can move it."""

    def __call__(self, graph: Graph) -> np.ndarray:
        """The exact answer. Private."""

    def sensitivity(self, unit: Unit) -> Sensitivity:
        """The bound under a unit, or :class:`~tacit.errors.UnitError` with the reason."""


def hop_sums(
    unit: Unit, *, directed: bool, hops: int, nonnegative: bool = False, bounded: bool = True
) -> Sensitivity:
    """L2 sensitivity of K adaptive neighbour sums of rows of norm at most 1, taken together.

    Hop k answers ``M_v = sum of row_u over the nodes u that list v``; rows of hop 1 are functions
    of each node's own record, rows of later hops are functions of what earlier hops released. For
    ``Node(links="own")`` the rows of one node, times its weight, have squared norms that add up to
    at most D over its out-list (see :func:`tacit.aggregate.hop_sum.list_weights`).

    Args:
        unit: What one individual is.
        directed: Whether a link is one arc (else two).
        hops: K.
        nonnegative: Whether the rows of hop 1 have no negative entry.
        bounded: For ``Node(links="own")``: whether out-lists were truncated or scaled to D.

    Returns:
        The square root of the largest sum over hops of squared distances.
    """
    if hops < 1:
        raise UnitError(f"{hops} hops aggregate nothing", remedy="use at least one hop")
    if isinstance(unit, Edge):
        return _edge(unit, directed, hops, nonnegative)
    if isinstance(unit, Node) and unit.links == "own":
        if not bounded:
            raise UnitError(
                "an unbounded out-list can move every other node's sum",
                remedy='set bound="scale" or bound="sample"',
            )
        return _own(unit, hops, nonnegative)
    if isinstance(unit, Node):
        return _all(unit, hops)
    if isinstance(unit, KNeighbors):
        raise UnitError(
            "neighbour sums promise nothing under KNeighbors",
            why="the node's features reach everyone it is linked to, and only k of these links are "
            "part of the unit: nothing bounds how many sums the change moves",
            remedy='use Node(links="all", max_degree=D), or a method that does not sum features',
        )
    raise UnitError(f"no sensitivity is proved for the unit {unit!r}")


def _edge(unit: Edge, directed: bool, hops: int, nonnegative: bool) -> Sensitivity:
    page = "proofs/hop_sums.md"
    if unit.relation == "add-remove":
        arcs = 1 if directed else 2
        words = "one arc moves one row" if directed else "one link is two arcs and moves two rows"
        return Sensitivity(math.sqrt(arcs * hops), f"Theorem 1 ({words} by at most 1)", page)
    first, later = (2, 4) if directed else (4, 6)
    # Only hop 1 can be known to be non-negative: later rows carry noise of both signs.
    squared = (first if nonnegative else later) + (hops - 1) * later
    words = "a moved link takes one row of norm 1 away and adds another, in the worst case opposite"
    return Sensitivity(math.sqrt(squared), f"Theorem 2 ({words})", page)


def _own(unit: Node, hops: int, nonnegative: bool) -> Sensitivity:
    degree = unit.max_degree or 1
    if unit.relation == "add-remove":
        squared = degree * hops
        theorem = "Theorem 3 (an own record contributes squared norms of at most D to each hop)"
    else:
        squared = degree * (2 * hops if nonnegative else max(2 * hops, 4))
        theorem = "Theorem 4 (two own records, the second possibly opposite to the first)"
    return Sensitivity(math.sqrt(squared), theorem, "proofs/hop_sums.md")


def _all(unit: Node, hops: int) -> Sensitivity:
    if unit.max_degree is None:
        raise UnitError(
            'links="all" needs max_degree',
            why="without a promised bound one node can move every other node's sum, and truncation "
            "cannot make such a bound: it reads lists the node appears in (proofs/hop_sums.md)",
            remedy='promise a bound, Node(links="all", max_degree=D), or use Node(links="own")',
        )
    if unit.relation == "add-remove":
        squared = unit.max_degree * hops
        theorem = "Theorem 5 (at most D other rows lose one row of norm 1; own row excepted)"
    else:
        squared = 4 * unit.max_degree * hops
        theorem = "Theorem 6 (at most 2D other rows move; own row excepted)"
    return Sensitivity(math.sqrt(squared), theorem, "proofs/hop_sums.md")
