"""The noisy multi-hop pass: Algorithm 1 of GAP (PMA, private multi-hop aggregation)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import isfinite

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.aggregate.hop import Grid, InLists, to_grid, unit_rows
from tacit.errors import GraphError, NoiseError
from tacit.privacy.noise import NoiseSource

FloatArray = NDArray[np.float32]
Progress = Callable[[int, int], None]

_BLOCK = 1 << 19  # entries of one block: sums, noise and normalisation of it take about 20 MB


def noisy_hops(
    in_lists: tuple[ArrayLike, ArrayLike],
    rows: NDArray[np.floating],
    *,
    stds: Sequence[float],
    source: NoiseSource | None,
    weights: ArrayLike | None = None,
    bits: int = 14,
    normalise: bool = True,
    progress: Progress | None = None,
) -> list[FloatArray]:
    """Aggregate unit rows over neighbours K times, with noise on every sum.

    With ``X_0`` the rows and ``A`` the in-lists, hop ``k`` is::

        S_k = A q(X_{k-1}) + round(N(0, (stds[k-1] 2^bits)²))     exact integers
        X_k = S_k with every row divided by its norm

    where ``q`` truncates to the grid (:func:`tacit.aggregate.to_grid`). Sajadmanesh et al., "GAP:
    Differentially Private Graph Neural Networks with Aggregation Perturbation" (USENIX Security
    2023), Algorithm 1.

    Rows are worked on in blocks. Beyond its input and what it returns the pass holds one grid, half
    a feature matrix for up to 14 bits, and about 20 MB.

    Args:
        in_lists: CSR of the nodes that list each node, as :attr:`tacit.Graph.in_lists`.
        rows: One row of norm at most 1 per node (:func:`tacit.aggregate.unit_rows`).
        stds: Standard deviation of the noise of each hop, in units where a row has norm 1; their
            number is the number of hops. 0 means no noise.
        source: Where noise comes from; may be None only if every entry of ``stds`` is 0.
        weights: Factor in [0, 1] for each node's row, the same at every hop.
        bits: Fraction bits of the grid.
        normalise: Whether to return the unit rows ``X_k``; if not, the noisy sums ``S_k / 2^bits``.
            What the next hop starts from is the same in both cases.
        progress: Called after every block with the rows done and the rows in all.

    Returns:
        One float32 matrix per hop.

    Raises:
        NoiseError: A standard deviation is negative or not finite, noise is asked for without a
            source, a row is longer than 1, or a sum does not fit.
        GraphError: The in-lists are damaged.

    Formal guarantees:
        ``S_k`` is the Gaussian mechanism with standard deviation ``stds[k-1]`` on a sum of rows of
        norm at most 1, given what was released before; everything else is post-processing. The
        cost of ``K`` hops is the composition of ``K`` Gaussian mechanisms of noise multiplier
        ``stds[k-1] / Δ``, where the unit of privacy sets ``Δ`` (proofs/noise.md,
        proofs/fixed_point.md). The function itself spends nothing: charge the ledger first.
    """
    _check_noise(stds, source)
    lists = InLists.check(*in_lists)
    if len(rows) != lists.nodes:
        raise GraphError(f"{len(rows)} rows do not fit {lists.nodes} in-lists")
    hops: list[FloatArray] = []
    total = lists.nodes * len(stds)
    for hop, std in enumerate(stds):
        before = rows if not hops else hops[-1] if normalise else unit_rows(hops[-1])
        grid = to_grid(before, bits, weights)
        # From here on `before` lives on only where it is owned: by the caller or in the result.
        del before

        def report(done: int, offset: int = hop * lists.nodes) -> None:
            if progress is not None:
                progress(offset + done, total)

        hops.append(_one_hop(lists, grid, bits, std, source, normalise, report))
    return hops


def _one_hop(
    lists: InLists,
    grid: Grid,
    bits: int,
    std: float,
    source: NoiseSource | None,
    normalise: bool,
    report: Callable[[int], None],
) -> FloatArray:
    nodes, columns = lists.nodes, grid.shape[1]
    accumulator = lists.accumulator(grid)
    released = np.empty((nodes, columns), np.float32)
    # An even number of rows per block keeps blocks of noise equal to one draw for the whole hop.
    step = max(2, _BLOCK // max(columns, 1) // 2 * 2)
    with ThreadPoolExecutor(1) as pool:  # noise is drawn while sums are gathered
        for start in range(0, nodes, step):
            stop = min(start + step, nodes)
            shape = (stop - start, columns)
            noise = None
            if std > 0 and source is not None:
                noise = pool.submit(source.gaussian, std * 2.0**bits, shape)
            sums = np.empty(shape, accumulator)
            lists.sums(grid, sums, start)
            noisy = sums if noise is None else noise.result() + sums
            part = released[start:stop]
            np.multiply(noisy, 2.0**-bits, out=part, casting="same_kind")
            if normalise:
                part[:] = unit_rows(part)
            report(stop)
    return released


def _check_noise(stds: Sequence[float], source: NoiseSource | None) -> None:
    if not len(stds):
        raise NoiseError("an aggregation needs at least one hop", remedy="give one std per hop")
    for std in stds:
        if not (isfinite(std) and std >= 0):
            raise NoiseError(f"noise of standard deviation {std} cannot be drawn")
        if std > 0 and source is None:
            raise NoiseError(
                "noise was asked for without a source",
                remedy="pass NoiseSource.fresh(), or only zeros for no privacy",
            )
