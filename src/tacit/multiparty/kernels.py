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
