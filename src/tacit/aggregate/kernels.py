"""Compiled loops of the neighbour sum. Import this module late: it loads numba.

A hop is a random gather: every arc fetches one row of the grid from wherever it lies in memory, and
at sizes that matter that is main memory. Three things make it fast. The rows are int16, half of
what a float product moves. Coming rows are prefetched: the list of neighbours says which they are.
And the running sum of up to 64 columns stays in vector registers over the whole list, which a
compiler does not arrange by itself from a loop over arrays; so that one loop is written out as LLVM
vector code by :func:`_column_sums`, for whatever vector width the processor has.

The loops release the interpreter's lock and are run from ordinary threads. numba's own parallel
loops would cost seconds of compilation, and their default threading layer aborts the process when
two threads enter it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

WIDE, NARROW = 64, 16
_AHEAD = 16  # arcs between a prefetch and its use: about a memory latency's worth of work
_LINE = 64  # bytes of a cache line
_STRIP = 1024  # columns whose squares, at most 2^48.01 each, cannot wrap an int64
_TOO_LONG = 1.0 + 1e-4  # no rounding of a unit row is as large; a real mistake is larger


def _compiled(function: Callable[..., Any]) -> Any:
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither the package nor the user has a folder that can be written
        return njit(nogil=True)(function)


def _column_sums(width: int) -> Any:
    """Sum ``width`` columns of the listed rows in registers, then store them once.

    The intrinsic ``f(grid, indices, out, lo, hi, last, columns, column, target)`` computes
    ``out.flat[target + c] = sum(grid[indices[j], column + c] for j in lo..hi-1)``, with
    ``columns`` the row length of ``grid`` and ``last`` the last position that may be prefetched.
    Nothing is checked here.
    """

    @intrinsic
    def sums(
        typingctx: Any,
        grid: Any,
        indices: Any,
        out: Any,
        lo: Any,
        hi: Any,
        last: Any,
        columns: Any,
        column: Any,
        target: Any,
    ) -> Any:
        signature = types.void(grid, indices, out, *[types.intp] * 6)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def data(k: int) -> Any:
                return context.make_array(signature.args[k])(context, builder, args[k]).data

            size, i32, byte = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()
            item = signature.args[0].dtype.bitwidth // 8
            total = signature.args[2].dtype.bitwidth // 8
            narrow = ir.VectorType(ir.IntType(8 * item), width)
            wide = ir.VectorType(ir.IntType(8 * total), width)
            prefetch = builder.module.declare_intrinsic(
                "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
            )
            rows, lists, results = builder.bitcast(data(0), byte), data(1), data(2)
            lo, hi, last, columns, column, target = args[3:]

            def address(position: Any) -> Any:
                node = builder.zext(builder.load(builder.gep(lists, [position])), size)
                entry = builder.add(builder.mul(node, columns), column)
                return builder.gep(rows, [builder.mul(entry, size(item))])

            before = builder.block
            loop = builder.append_basic_block("arcs")
            after = builder.append_basic_block("store")
            zero = ir.Constant(wide, [0] * width)
            builder.cbranch(builder.icmp_signed("<", lo, hi), loop, after)
            builder.position_at_end(loop)
            arc, running = builder.phi(size), builder.phi(wide)
            ahead = builder.add(arc, size(_AHEAD))
            ahead = builder.select(builder.icmp_signed("<", ahead, last), ahead, last)
            coming = address(ahead)
            for offset in range(0, width * item, _LINE):
                line = builder.gep(coming, [size(offset)])
                builder.call(prefetch, [line, i32(0), i32(3), i32(1)])  # read, keep, data cache
            values = builder.load(builder.bitcast(address(arc), narrow.as_pointer()), align=item)
            added = builder.add(running, builder.sext(values, wide))
            following = builder.add(arc, size(1))
            for phi, start, again in ((arc, lo, following), (running, zero, added)):
                phi.add_incoming(start, before)
                phi.add_incoming(again, loop)
            builder.cbranch(builder.icmp_signed("<", following, hi), loop, after)
            builder.position_at_end(after)
            result = builder.phi(wide)
            result.add_incoming(zero, before)
            result.add_incoming(added, loop)
            place = builder.gep(results, [target])
            builder.store(result, builder.bitcast(place, wide.as_pointer()), align=total)
            return context.get_dummy_value()

        return signature, generate

    return sums


_sum_wide = _column_sums(WIDE)
_sum_narrow = _column_sums(NARROW)


@_compiled
def sum_rows(
    indptr: Any, indices: Any, grid: Any, out: Any, first: int, start: int, stop: int
) -> bool:
    """``out[v - first] = sum of grid[u] over u in the list of v``, for v in start..stop-1.

    Returns False, with nothing read from outside the grid, if an entry of a list is no row of it.
    """
    nodes, columns = grid.shape
    last = len(indices) - 1
    bad: Any = False
    for arc in range(indptr[start], indptr[stop]):
        bad |= np.uint32(indices[arc]) >= np.uint32(nodes)
    if bad:
        return False
    # A prefetch may look past this range at an unchecked entry: it reads memory for no value and
    # cannot fault, whatever the address.
    for v in range(start, stop):
        lo, hi, row = indptr[v], indptr[v + 1], v - first
        column = 0
        while column + WIDE <= columns:
            _sum_wide(grid, indices, out, lo, hi, last, columns, column, row * columns + column)
            column += WIDE
        while column + NARROW <= columns:
            _sum_narrow(grid, indices, out, lo, hi, last, columns, column, row * columns + column)
            column += NARROW
        if column < columns:
            rest = out[row, column:]
            rest[:] = 0
            for arc in range(lo, hi):
                entries = grid[indices[arc], column:]
                for c in range(len(rest)):
                    rest[c] += entries[c]
    return True


@_compiled
def truncate_rows(rows: Any, weights: Any, unit: Any, out: Any, start: int, stop: int) -> int:
    """Grid rows as in ``proofs/fixed_point.md``; the first row that is too long, or -1."""
    columns = rows.shape[1]
    for v in range(start, stop):
        side = unit
        if len(weights):
            side = unit * weights[v]
        # The largest integer that is certainly at most side squared; exact where side is whole.
        whole = np.int64(side)
        limit = max(whole * whole, np.int64(side * side * (1.0 - 2.0**-52)))
        bound = side * side * _TOO_LONG * _TOO_LONG
        squares = np.int64(0)
        # In strips, because the squares of a very wide row that is far too long could wrap around.
        for strip in range(0, columns, _STRIP):
            # Slices, so that indices count from zero and the compiler can use vectors.
            row, cut = rows[v, strip : strip + _STRIP], out[v, strip : strip + _STRIP]
            wrong: Any = 0
            for c in range(len(row)):
                wrong += not abs(row[c]) <= _TOO_LONG  # true for NaN too
            if wrong:
                return v
            for c in range(len(row)):
                q = np.int32(np.float64(row[c]) * side)  # a cast truncates toward zero
                squares += np.int64(q) * np.int64(q)
                cut[c] = q
            if squares > bound:
                return v
        while squares > limit:
            largest = 0
            for c in range(columns):
                if abs(np.int64(out[v, c])) > abs(np.int64(out[v, largest])):
                    largest = c
            longer = np.int64(out[v, largest])
            shorter = longer - 1 if longer > 0 else longer + 1
            squares += shorter * shorter - longer * longer
            out[v, largest] = shorter
    return -1


@_compiled
def normalise_rows(rows: Any, out: Any, start: int, stop: int) -> int:
    """Rows of norm 1, zero rows as they are; the first row that is not finite, or -1."""
    for v in range(start, stop):
        row, unit = rows[v], out[v]
        squares: Any = 0.0
        for c in range(len(row)):
            x = np.float64(row[c])
            squares += x * x
        if not squares < np.inf:
            return v
        # Dividing by 1 keeps a zero row as it is without a branch in the loop.
        norm = np.sqrt(squares) if squares > 0.0 else 1.0
        for c in range(len(row)):
            unit[c] = row[c] / norm
    return -1
