"""How far one unit can move sums over a node's own list, and the group that one unit is in DP-SGD.

DPDGC answers ``Z = A W + N``: row v sums the rows of W of the nodes that v lists. The theorems are
those of proofs/dpdgc.md; what no page covers is refused with the reason.
"""

from __future__ import annotations

import math
from typing import Literal

from tacit.errors import UnitError
from tacit.privacy.sensitivity import Sensitivity, hop_sums
from tacit.privacy.units import Edge, KNeighbors, Node, Unit

Rows = Literal["fixed", "labels"]
"""What a row of W is: ``fixed`` given what was released and is public, or a node's own label."""

PAGE = "proofs/dpdgc.md"


def list_sums(
    unit: Unit,
    *,
    directed: bool,
    rows: Rows,
    hops: int = 1,
    nonnegative: bool = False,
    limit: int = 1,
    slack: float = 0.0,
) -> Sensitivity:
    """L2 sensitivity of the sums, the changed node's own row left out where it is its own.

    Args:
        unit: What one individual is.
        directed: Whether a link is one arc.
        rows: ``fixed`` or ``labels``; under ``Edge`` labels are public, so both are fixed there.
        hops: How many sums are released one after the other (``Edge`` only).
        nonnegative: Whether rows of the first sum have no negative entry.
        limit: D of the labels' weights (``KNeighbors`` only).
        slack: What one list more or less moves a weight (``KNeighbors`` with labels only).

    Returns:
        The bound; 0 where the unit moves nobody else's row.
    """
    if isinstance(unit, Edge):
        found = hop_sums(unit, directed=directed, hops=hops, nonnegative=nonnegative)
        words = "Theorem 1 (an arc moves its source's row by at most 1, a link two rows)"
        return Sensitivity(found.l2, words, PAGE)
    if hops != 1:
        raise UnitError(
            f"{hops} sums promise nothing under {unit.name}",
            why="a second sum would carry a node's own row on to all who list it",
            remedy="use one",
        )
    if isinstance(unit, KNeighbors):
        return _k_neighbours(unit, rows, limit, slack)
    if not isinstance(unit, Node):
        raise UnitError(f"nothing is proved under {unit.name}", why="it is new", remedy="use Edge")
    if unit.links == "own":
        return _own(unit, rows)
    if unit.max_degree is None:
        raise UnitError(
            'links="all" needs max_degree',
            why="without a promised bound one node can be in every other node's list",
            remedy='promise a bound, Node(links="all", max_degree=D), or use Node(links="own")',
        )
    rows_moved = unit.max_degree * (1 if unit.relation == "add-remove" else 2)
    words = (
        "Theorem 1 (at most D other rows lose a row of norm 1; own row excepted)"
        if unit.relation == "add-remove"
        else "Theorem 1 (at most 2D rows of norm 1 come or go in others' rows; own row excepted)"
    )
    return Sensitivity(math.sqrt(rows_moved), words, PAGE)


def _k_neighbours(unit: KNeighbors, rows: Rows, limit: int, slack: float) -> Sensitivity:
    if rows == "fixed":
        words = "Theorem 1 (k other lists gain or lose the node, each a row of norm 1)"
        return Sensitivity(math.sqrt(unit.k), words, PAGE)
    own = limit if unit.relation == "add-remove" else 2 * limit
    words = (
        "Theorem 2 (a weighed label counts for D in squared norm however many lists name it, and "
        "k entries of a list move k other weights)"
    )
    return Sensitivity(math.sqrt(own) + unit.k * slack, words, PAGE, tight=False)


def _own(unit: Node, rows: Rows) -> Sensitivity:
    if rows == "labels":
        raise UnitError(
            'rows that carry labels promise nothing under Node(links="own")',
            why="a node's label reaches everyone who lists it, and no promise bounds how many",
            remedy="use embedding=sketch, or GAP, which sums over those who list a node",
        )
    return Sensitivity(0.0, "Theorem 1 (a record's own list is read by its own row alone)", PAGE)


def rows_retrained(unit: Unit, *, directed: bool) -> int:
    """Theorem 4: how many training rows of DP-Emb one unit can replace; 0 if one comes or goes."""
    moved = unit.relation == "replace"
    if isinstance(unit, Edge):
        return (1 if directed else 2) * (2 if moved else 1)
    if isinstance(unit, KNeighbors):
        return unit.k + 1
    if isinstance(unit, Node) and unit.links == "own":
        return 1 if moved else 0
    if isinstance(unit, Node) and unit.max_degree is not None:
        return unit.max_degree * (2 if moved else 1) + 1
    raise UnitError(
        f"training on lists promises nothing under {unit.name}",
        why="nothing bounds how many lists one unit is in",
        remedy="promise a bound, max_degree=D",
    )
