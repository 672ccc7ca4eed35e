"""Compiled loops of the ring. Import this module late: it loads numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def _compiled(function: Callable[..., Any]) -> Any:
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither the package nor the user has a folder that can be written
        return njit(nogil=True)(function)


@_compiled
def scatter_add(totals: Any, keys: Any, rows: Any) -> None:
    """``totals[keys[j]] += rows[j]`` modulo the words' size."""
    for j in range(len(keys)):
        total, row = totals[keys[j]], rows[j]
        for c in range(len(row)):
            total[c] += row[c]


@_compiled
def share_and_add(
    totals: Any,
    grid: Any,
    senders: Any,
    indptr: Any,
    chosen: Any,
    words: Any,
    lo: int,
    key: int,
    first: int,
) -> None:
    """Split the pairs ``lo, lo + 1, ...`` into shares and add each to its party's total.

    Pair j carries row ``senders[j]`` of the grid to the key whose in-list holds it.

    Args:
        totals: Words by party, key and column, as signed numbers of the ring's width: arithmetic
            on them wraps around as that on words does.
        grid: Signed rows.
        senders: Which row each pair carries.
        indptr: Row pointers of the in-lists.
        chosen: The parties of each pair from ``lo`` on; the last gets what is missing.
        words: The uniform shares by pair, share and column, signed too. Overwritten.
        lo: The first pair.
        key: The key of that pair.
        first: The key of the totals' first row.
    """
    shares = chosen.shape[1]
    for j in range(len(chosen)):
        while indptr[key + 1] <= lo + j:
            key += 1
        values = grid[senders[lo + j]]
        drawn = words[j, 0]
        total = totals[chosen[j, 0], key - first]
        for c in range(len(total)):
            total[c] += drawn[c]
        for s in range(1, shares - 1):
            more, total = words[j, s], totals[chosen[j, s], key - first]
            for c in range(len(total)):
                total[c] += more[c]
                drawn[c] += more[c]
        total = totals[chosen[j, shares - 1], key - first]
        for c in range(len(total)):
            total[c] += values[c] - drawn[c]
