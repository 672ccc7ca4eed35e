"""Sparse and dense numeric matrices from a MATLAB 5 file (``save -v5``, ``-v6``, ``-v7``).

The format is MathWorks' "MAT-File Format", level 5. scipy reads more of it, but a damaged file can
crash it: one changed byte in a tag ended the process. This reader knows numeric matrices only and
holds every claim of the file against the bytes that are there.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tacit.errors import GraphError

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_SPARSE = 5
_DENSE = range(6, 16)  # mxDOUBLE_CLASS to mxUINT64_CLASS
_COMPLEX = 0x08
_TYPES = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}


@dataclass(frozen=True)
class Sparse:
    """A sparse matrix by columns, checked: coordinates lie within the shape."""

    shape: tuple[int, int]
    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray


def read_mat5(content: bytes, wanted: set[str], max_bytes: int) -> dict[str, Sparse | np.ndarray]:
    """Reads the wanted matrices.

    Args:
        content: The whole file.
        wanted: Names of the matrices to read; all others are skipped.
        max_bytes: The most that compressed parts may inflate to.

    Returns:
        The matrices found among the wanted ones. Those that are not numeric are left out.

    Raises:
        GraphError: The file is truncated, damaged, or inflates to more than allowed.
    """
    if content[126:128] == b"IM":
        order = "<"
    elif content[126:128] == b"MI":
        order = ">"
    else:
        raise _damaged("the header does not say its byte order")
    found: dict[str, Sparse | np.ndarray] = {}
    room = max_bytes
    for kind, body in _elements(memoryview(content)[_HEADER:], order):
        if kind == _COMPRESSED:
            inflated = _inflate(body, room)
            room -= len(inflated)
            kind, body = next(_elements(memoryview(inflated), order), (0, body))
        if kind == _MATRIX:
            name, matrix = _matrix(body, order, wanted)
            if matrix is not None:
                found[name] = matrix
    return found


def _damaged(why: str) -> GraphError:
    return GraphError(
        "a MATLAB file is truncated or damaged", why=why, remedy="fetch the file again"
    )


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Type and body of each element, in order."""
    word = np.dtype(order + "u4")
    while len(data) >= 8:
        first, second = (int(x) for x in np.frombuffer(data[:8], dtype=word))
        if first >> 16:  # up to four bytes, packed into the tag itself
            kind, size, start, step = first & 0xFFFF, first >> 16, 4, 8
            if size > 4:
                raise _damaged(f"a small element claims {size} bytes")
        else:
            kind, size, start = first, second, 8
            step = 8 + (size if kind == _COMPRESSED else -(-size // 8) * 8)
        if start + size > len(data):
            raise _damaged(f"an element claims {size:,} bytes where {len(data) - start:,} are left")
        yield kind, data[start : start + size]
        data = data[step:]
    if any(data):
        raise _damaged("it ends within an element")


def _inflate(body: memoryview, room: int) -> bytes:
    machine = zlib.decompressobj()
    try:
        inflated = machine.decompress(body, max(1, room))
    except zlib.error as error:
        raise _damaged(str(error)) from error
    if machine.unconsumed_tail or len(inflated) >= max(1, room):
        raise GraphError(
            f"a MATLAB file inflates to more than {room:,} bytes",
            remedy="raise max_bytes if the size is right",
        )
    if not machine.eof:
        raise _damaged("a compressed part ends too early")
    return inflated


def _matrix(
    body: memoryview, order: str, wanted: set[str]
) -> tuple[str, Sparse | np.ndarray | None]:
    parts = _elements(body, order)
    flags = _numbers(*_next(parts), order)
    shape = tuple(int(size) for size in _numbers(*_next(parts), order))
    name = bytes(_next(parts)[1]).decode("latin1")
    if name not in wanted:
        return name, None
    if len(flags) < 1 or len(shape) != 2 or min(shape) < 0:
        raise _damaged(f"matrix {name[:20]} has the shape {shape}")
    kind, marks = int(flags[0]) & 0xFF, int(flags[0]) >> 8 & 0xFF
    if marks & _COMPLEX or (kind != _SPARSE and kind not in _DENSE):
        return name, None
    if kind == _SPARSE:
        rows, starts, values = [_numbers(*_next(parts), order) for _ in range(3)]
        return name, _sparse((shape[0], shape[1]), rows, starts, values)
    values = _numbers(*_next(parts), order)
    if len(values) != shape[0] * shape[1]:
        raise _damaged(f"{name} has {len(values)} values for the shape {shape}")
    return name, values.reshape(shape, order="F")


def _next(parts: Iterator[tuple[int, memoryview]]) -> tuple[int, memoryview]:
    part = next(parts, None)
    if part is None:
        raise _damaged("a matrix lacks a part")
    return part


def _numbers(kind: int, body: memoryview, order: str) -> np.ndarray:
    if kind not in _TYPES:
        raise _damaged(f"found type {kind} where numbers are due")
    dtype = np.dtype(order + _TYPES[kind])
    if len(body) % dtype.itemsize:
        raise _damaged("an array ends within a number")
    return np.frombuffer(body, dtype=dtype).astype(dtype.newbyteorder("="))


def _sparse(
    shape: tuple[int, int], rows: np.ndarray, starts: np.ndarray, values: np.ndarray
) -> Sparse:
    height, width = shape
    if rows.dtype.kind not in "iu" or starts.dtype.kind not in "iu" or len(starts) != width + 1:
        raise _damaged(f"a sparse matrix of {width:,} columns has {len(starts):,} column pointers")
    pointers: np.ndarray = starts.astype(np.int64)
    counts: np.ndarray = pointers[1:] - pointers[:-1]
    total = int(starts[-1])
    # MATLAB reserves room: rows and values may be longer than what the columns use.
    if starts[0] != 0 or np.any(counts < 0) or total > len(rows) or total > len(values):
        raise _damaged("the column pointers of a sparse matrix do not span its entries")
    rows = rows[:total].astype(np.int64)
    if total and (rows.min() < 0 or rows.max() >= height):
        raise GraphError(
            f"a sparse matrix of {height:,} rows has an entry in row {rows.max():,}",
            remedy="drop dangling links or add the missing nodes",
        )
    return Sparse(shape, rows, np.repeat(np.arange(width), counts), values[:total])
