"""Refusals that every reader shares: what a file may ask to be allocated, and link weights."""

from __future__ import annotations

import numpy as np

from tacit.errors import GraphError

MAX_BYTES = 16 << 30
"""The most memory one file may ask for, unless its reader is told otherwise."""


def check_room(rows: int, width: int, max_bytes: int, what: str = "features") -> None:
    """Refuses a dense float32 matrix larger than ``max_bytes`` before it is allocated."""
    needed = rows * width * 4
    if needed > max_bytes:
        raise GraphError(
            f"{what} of {rows:,} rows and {width:,} columns need {needed / 2**30:,.1f} GiB",
            why=f"more than the {max_bytes / 2**30:,.1f} GiB allowed; "
            "a damaged or hostile file can claim any size",
            remedy="raise max_bytes if the size is right, or reduce the features first",
        )


def check_binary(weights: np.ndarray, where: str) -> None:
    """Refuses link weights other than 1."""
    odd = weights[weights != 1]
    if len(odd):
        raise GraphError(
            f"{len(odd):,} links in {where} have a weight other than 1, the first {odd[0]}",
            why="a sum over weighted links moves by more than the sensitivity that is charged for",
            remedy="threshold the weights yourself, or pass ignore_weights=True to read every "
            "listed link as a link",
        )


def constant_features(nodes: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """What a graph without features gets: the same number for every node, and a note."""
    note = "the graph has no features, so every node has the constant 1"
    return np.ones((nodes, 1), dtype=np.float32), (note,)
