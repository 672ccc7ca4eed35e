"""Compiled loop of changes that spread over links. Import this module late: it loads numba."""

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
def spread(
    starts: Any,
    targets: Any,
    values: Any,
    sources: Any,
    changes: Any,
    place: Any,
    touched: Any,
    sums: Any,
    count: int,
) -> int:
    """Add ``values[p] * changes[j]`` to the sum of every node that hears ``sources[j]``.

    ``starts, targets, values`` are compressed columns. Node t has the sum ``sums[place[t]]``;
    ``place[t]`` is -1 for a node that was not touched yet and gets the next of ``count`` places.

    Returns:
        How many places are taken now.
    """
    width = changes.shape[1]
    for j in range(len(sources)):
        for p in range(starts[sources[j]], starts[sources[j] + 1]):
            node = targets[p]
            slot = place[node]
            if slot < 0:
                slot = count
                place[node] = slot
                touched[slot] = node
                for c in range(width):
                    sums[slot, c] = 0.0
                count += 1
            value = values[p]
            for c in range(width):
                sums[slot, c] += value * changes[j, c]
    return count
