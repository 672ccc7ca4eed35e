"""One hop: exact integer sums over neighbours of rows on a fixed-point grid.

The mechanism is an integer computation, so that "sum" means the mathematical sum: it does not
depend on the order of the links, on threads or on the machine, and no float's low bits can betray
a link. ``proofs/fixed_point.md`` shows that the grid costs no privacy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import GraphError, NoiseError

Grid = NDArray[np.signedinteger]
Sums = NDArray[np.signedinteger]

_T = TypeVar("_T")

MAX_BITS = 24
"""Most fraction bits a grid may have, as many as float32 has; up to 14 a row is stored as int16."""

_SMALL_BITS = 14
_INT32_END = 2**31
_SAFE_END = 2**62  # int64 sums stay below it, so that noise (below 2^48) cannot wrap them
_SERIAL = 1 << 15  # below this many operations threads cost more than they bring


def to_grid(rows: NDArray[np.floating], bits: int, weights: ArrayLike | None = None) -> Grid:
    """Rows times weight times ``2**bits``, truncated toward zero.

    Args:
        rows: One row per node, of L2 norm at most 1 up to float32 rounding.
        bits: Fraction bits of the grid, 1 to 24.
        weights: One factor in [0, 1] per row, or None for 1.

    Returns:
        int16 rows for up to 14 bits, else int32.

    Raises:
        NoiseError: A row is longer than 1 or not a number, a weight is outside [0, 1], or the
            grid is out of range.

    Formal guarantees:
        ``sum(q**2) <= (weight * 2**bits)**2`` for every integer row ``q``, exactly; every entry
        keeps its sign or becomes zero; a row depends on its own input alone. Hence sensitivities
        proved for real rows of norm at most 1 hold without a charge (proofs/fixed_point.md).
    """
    if not 1 <= bits <= MAX_BITS:
        raise NoiseError(
            f"a grid of {bits} fraction bits is not supported", remedy=f"use 1 to {MAX_BITS} bits"
        )
    rows = _matrix(rows)
    factors = np.empty(0) if weights is None else np.ascontiguousarray(weights, np.float64)
    if weights is not None and factors.shape != (len(rows),):
        raise NoiseError(f"weights must be one number for each of the {len(rows)} rows")
    if not ((factors >= 0) & (factors <= 1)).all():
        raise NoiseError(
            "a weight lies outside [0, 1]",
            why="a row must not count for more than the sensitivity allows it",
        )
    from tacit.aggregate.kernels import truncate_rows

    grid = np.empty(rows.shape, np.int16 if bits <= _SMALL_BITS else np.int32)
    bad = _over_rows(
        lambda start, stop: truncate_rows(
            _constant(rows), _constant(factors), 2.0**bits, grid, start, stop
        ),
        *rows.shape,
    )
    if bad >= 0:
        raise NoiseError(
            f"row {bad} has a norm above 1, or is not finite",
            why="noise is scaled for rows of norm at most 1",
            remedy="normalise the rows with tacit.aggregate.unit_rows",
        )
    return grid


def unit_rows(rows: NDArray[np.floating]) -> NDArray[np.float32]:
    """Rows divided by their L2 norm, as float32. Zero rows stay zero.

    Raises:
        GraphError: An entry is NaN or infinite.
    """
    from tacit.aggregate.kernels import normalise_rows

    rows = _matrix(rows)
    out = np.empty(rows.shape, np.float32)
    bad = _over_rows(
        lambda start, stop: normalise_rows(_constant(rows), out, start, stop), *rows.shape
    )
    if bad >= 0:
        raise GraphError(f"row {bad} is NaN or infinite", why="it has no direction to keep")
    return out


@dataclass(frozen=True)
class InLists:
    """Checked in-lists: row v of the CSR structure holds the nodes that list v.

    Attributes:
        indptr: Row pointers, one more than there are rows.
        indices: Entries of the lists. Their range is checked where they are used.
        longest: Length of the longest list. Private.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    longest: int

    @classmethod
    def check(cls, indptr: ArrayLike, indices: ArrayLike) -> InLists:
        """Check the structure of the lists, copying nothing that already has the right type.

        Raises:
            GraphError: The pointers do not describe lists, or ids need more than 31 bits.
        """
        pointers = np.ascontiguousarray(indptr, np.int64)
        entries = np.asarray(indices)
        if pointers.ndim != 1 or entries.ndim != 1 or len(pointers) < 1:
            raise GraphError("in-lists must be two flat arrays, with at least one row pointer")
        if pointers[0] != 0 or pointers[-1] != len(entries):
            raise GraphError("the row pointers do not span the arcs")
        lengths = np.diff(pointers)
        if len(lengths) and lengths.min() < 0:
            raise GraphError("the row pointers decrease")
        if entries.dtype != np.int32:
            if len(entries) and not (entries.min() >= 0 and entries.max() < _INT32_END):
                raise GraphError("a list names a node that does not exist")
            entries = entries.astype(np.int32)
        longest = int(lengths.max()) if len(lengths) else 0
        return cls(pointers, np.ascontiguousarray(entries), longest)

    @property
    def nodes(self) -> int:
        """Number of lists."""
        return len(self.indptr) - 1

    def accumulator(self, grid: Grid) -> type[np.int32] | type[np.int64]:
        """The narrowest integer in which no sum of this grid over these lists can wrap.

        Raises:
            NoiseError: Not even int64 is wide enough.
        """
        # The type's own bound answers for nearly every graph without a pass over the grid.
        if self.longest * 2 ** (8 * grid.itemsize - 1) < _INT32_END:
            return np.int32
        peak = max(abs(int(grid.min())), abs(int(grid.max()))) if grid.size else 0
        if self.longest * peak < _INT32_END:
            return np.int32 if grid.itemsize == 2 else np.int64
        if self.longest * peak < _SAFE_END:
            return np.int64
        raise NoiseError(
            f"a sum over {self.longest:,} neighbours does not fit into 62 bits",
            remedy="use fewer fraction bits",
        )

    def sums(self, grid: Grid, out: Sums, start: int = 0) -> None:
        """Fill ``out`` with the sums of rows ``start, start + 1, ...``.

        Args:
            grid: Integer rows, C-contiguous.
            out: One row per list summed, of a type that :meth:`accumulator` allows.
            start: The list that the first row of ``out`` belongs to.

        Raises:
            GraphError: A list names a row that the grid does not have.
        """
        from tacit.aggregate.kernels import sum_rows

        stop = start + len(out)
        first_arc, last_arc = int(self.indptr[start]), int(self.indptr[stop])
        work = (last_arc - first_arc + len(out)) * max(grid.shape[1], 1)
        parts = 1 if work < _SERIAL else 8 * _threads()
        # Equal shares of arcs plus rows: a few long lists must not leave one thread behind.
        wanted = np.linspace(0, last_arc - first_arc + len(out), parts + 1)[1:-1]
        arcs = self.indptr[start : stop + 1]
        cuts = np.searchsorted(arcs - first_arc + np.arange(len(arcs)), wanted) + start
        ends = [start, *cuts.tolist(), stop]
        indptr, indices, grid = _constant(self.indptr), _constant(self.indices), _constant(grid)
        done = _run(
            lambda a, b: sum_rows(indptr, indices, grid, out, start, a, b),
            pairwise(ends),
        )
        if not all(done):
            raise GraphError(
                "a list names a node that does not exist",
                why=f"entries must lie in 0..{len(grid) - 1}",
            )


def sum_neighbours(in_indptr: ArrayLike, in_indices: ArrayLike, grid: Grid) -> Sums:
    """Exact integer neighbour sums: row v is the sum of ``grid[u]`` over the in-list of v.

    The work is linear in arcs times columns. Sums are int32 where none can wrap, else int64.

    Args:
        in_indptr: Row pointers of the in-lists.
        in_indices: Entries of the in-lists; a repeated entry counts repeatedly.
        grid: int16 or int32 rows, as :func:`to_grid` makes them.

    Raises:
        GraphError: The lists are damaged or name a row that does not exist.
        NoiseError: The grid is not of integers, or a sum does not fit into 62 bits.
    """
    if grid.ndim != 2 or grid.dtype not in (np.int16, np.int32):
        raise NoiseError("neighbour sums need a matrix of int16 or int32", remedy="use to_grid")
    lists = InLists.check(in_indptr, in_indices)
    grid = np.ascontiguousarray(grid)
    out = np.empty((lists.nodes, grid.shape[1]), lists.accumulator(grid))
    lists.sums(grid, out)
    return out


def _matrix(rows: NDArray[np.floating]) -> NDArray[np.float32]:
    matrix = np.ascontiguousarray(rows, np.float32)
    if matrix.ndim != 2:
        raise GraphError(f"rows must form a matrix, not an array of {matrix.ndim} dimensions")
    return matrix


def _constant(array: Any) -> Any:
    """A read-only view. numba compiles anew for read-only arrays; this way it does so once."""
    view = array.view()
    view.flags.writeable = False
    return view


def _threads() -> int:
    """Threads to use: the processors this process may run on, or fewer by OMP_NUM_THREADS."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(allowed or 1, int(wanted)) if wanted.isdecimal() and int(wanted) else allowed or 1


def _run(task: Callable[[int, int], _T], spans: Iterable[tuple[int, int]]) -> list[_T]:
    """Run a compiled loop over every span, in threads: the loops release the interpreter's lock."""
    todo = [(a, b) for a, b in spans if a < b]
    if len(todo) < 2 or _threads() < 2:
        return [task(a, b) for a, b in todo]
    with ThreadPoolExecutor(_threads()) as pool:
        return list(pool.map(task, *zip(*todo, strict=True)))


def _over_rows(task: Callable[[int, int], int], rows: int, columns: int) -> int:
    """Run a row loop in parts; the first bad row it reports, or -1."""
    parts = 1 if rows * columns < _SERIAL else 4 * _threads()
    ends = np.linspace(0, rows, parts + 1).astype(int).tolist()
    found = _run(task, pairwise(ends))
    return min((row for row in found if row >= 0), default=-1)
