"""Sums over a node's own list: ``A W`` with one row of W for each node that the list names.

Three kinds of rows. A *sketch*: public random signs, generated from a public seed a block of
columns at a time and never stored. *Fixed rows*: learnt before and released, or functions of public
data. *Records*: one-hot labels, weighed so that nobody's label counts for more than D in squared
norm, however many lists name it. What one unit can move is in proofs/dpdgc.md.
"""

from __future__ import annotations

import math

import numpy as np

from tacit.aggregate.hop import InLists
from tacit.aggregate.pma import Progress
from tacit.errors import NoiseError
from tacit.graph import Graph
from tacit.graph.graph import FloatArray
from tacit.privacy.noise import NoiseSource

GRID_BITS = 14
BLOCK = 64
"""Columns of a sketch that are generated at once: one random word per node."""


def sign_step(width: int) -> int:
    """An entry of a sketch in grid steps: ``h`` squares of it stay within the squared unit."""
    return math.isqrt(2 ** (2 * GRID_BITS) // width)


def signs(nodes: int, block: int, seed: int) -> np.ndarray:
    """Random signs of one block of columns, one row per node.

    Row v depends on the seed, the block and v alone: a graph that grows keeps its old rows.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, block]))
    words = generator.integers(0, 2**64, size=nodes, dtype=np.uint64)
    bits = np.unpackbits(words.astype("<u8").view(np.uint8).reshape(nodes, 8), axis=1)
    return bits.astype(np.int16) * 2 - 1


def sketch_sums(
    graph: Graph,
    width: int,
    seed: int,
    *,
    std: float,
    source: NoiseSource | None,
    progress: Progress | None = None,
) -> FloatArray:
    """The noisy sketch ``A W + N`` with public random rows of norm at most 1.

    Formal guarantees:
        The Gaussian mechanism with standard deviation ``std`` on ``A W``; entries of W are
        ``±sign_step(h) / 2^14``, so that rows have norm at most 1 exactly. Spends nothing by
        itself: charge the ledger first.

    Args:
        graph: The graph; row v of the result sums over the out-list of v.
        width: h, a multiple of 64.
        seed: Of the public rows.
        std: Of the noise, in units where a row of W has norm 1; 0 for none.
        source: Of noise.
        progress: Called with the blocks done and the blocks in all.
    """
    if width < BLOCK or width % BLOCK:
        raise NoiseError(
            f"a sketch cannot have {width} columns", remedy=f"use a multiple of {BLOCK}"
        )
    if std > 0 and source is None:
        raise NoiseError("noise was asked for without a source", remedy="pass NoiseSource.fresh()")
    lists = InLists.check(graph.indptr, graph.indices)
    out = np.empty((graph.nodes, width), np.float32)
    step = np.int16(sign_step(width))
    for block in range(width // BLOCK):
        grid = signs(graph.nodes, block, seed) * step
        sums = np.empty(grid.shape, lists.accumulator(grid))
        lists.sums(grid, sums)
        noisy = sums if std == 0 or source is None else source.gaussian(
            std * 2.0**GRID_BITS, grid.shape
        ) + sums  # fmt: skip
        out[:, block * BLOCK : (block + 1) * BLOCK] = noisy * 2.0**-GRID_BITS
        if progress is not None:
            progress(block + 1, width // BLOCK)
    return out


def label_weights(graph: Graph, limit: int) -> FloatArray:
    """Weights ``min(1, sqrt(D / d_u))``, ``d_u`` the number of lists that name u.

    All lists together then carry u's row at most with squared norm D.
    """
    return _weights(np.diff(graph.in_lists[0]), limit)


def _weights(named: np.ndarray, limit: int) -> FloatArray:
    weights = np.minimum(1.0, np.sqrt(limit / np.maximum(named, 1).astype(np.float64)))
    # Rounded towards zero, so that float32 cannot lift the bound.
    return np.nextafter(weights.astype(np.float32), np.float32(0))


def weight_slack(limit: int, nodes: int) -> float:
    """How far one list more or less can move a one-hot row's weight, summed over its other lists.

    ``max over n < nodes of sqrt(n) (q(n) - q(n+1))`` with q the weight on the grid: the k entries
    of a changed node's own list change the weights of k others (proofs/dpdgc.md, Theorem 2).
    """
    most = 1 << 22
    if nodes > most:
        raise NoiseError(
            f"weights for more than {most:,} nodes are not supported",
            remedy="use embedding=sketch",
        )
    named = np.arange(1, nodes + 1)
    grid = np.floor(_weights(named, limit).astype(np.float64) * 2.0**GRID_BITS)
    return float((np.sqrt(named[:-1]) * (grid[:-1] - grid[1:])).max(initial=0.0) / 2.0**GRID_BITS)
