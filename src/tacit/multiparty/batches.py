"""Arrow batches whose columns are bytes of a fixed width: on disk, and between enrolled roles.

Everything that is read is checked before it is believed: names, widths, lengths, missing values.
Import this module late: it loads pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.errors import SessionError
from tacit.multiparty.disk import checksum
from tacit.multiparty.refusals import RefusedError

Bytes = NDArray[np.uint8]

_FRAMING = 4096  # bytes that Arrow adds to a batch of a few columns, and to a file


def schema_of(widths: Mapping[str, int]) -> Any:
    """The schema of a batch with these columns."""
    return pa.schema([pa.field(name, pa.binary(width), False) for name, width in widths.items()])


def make(columns: Mapping[str, Bytes]) -> Any:
    """A record batch over the arrays' own memory; each is (rows, width)."""
    arrays = []
    for array in columns.values():
        rows, width = array.shape
        buffer = pa.py_buffer(np.ascontiguousarray(array).data) if rows else pa.py_buffer(b"")
        arrays.append(pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [None, buffer]))
    schema = schema_of({name: array.shape[1] for name, array in columns.items()})
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def columns_of(batch: Any, widths: Mapping[str, int], most: int) -> dict[str, Bytes]:
    """The columns of a batch that somebody sent, without copying.

    Raises:
        RefusedError: Names, widths or length differ from what is expected, or values are missing.
    """
    if not batch.schema.equals(schema_of(widths)):
        raise RefusedError("length", f"a batch with the columns {batch.schema.names}")
    if batch.num_rows > most:
        raise RefusedError("oversize", f"a batch of {batch.num_rows:,} rows")
    found = {}
    for name, width in widths.items():
        column = batch.column(name)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise RefusedError("garbage", f"the column {name} is not what it says it is") from error
        if column.null_count:
            raise RefusedError("garbage", f"the column {name} has missing values")
        start = column.offset * width
        raw = np.frombuffer(column.buffers()[1] or b"", np.uint8)
        found[name] = raw[start : start + len(column) * width].reshape(len(column), width)
    return found


def encode(batches: list[Any]) -> memoryview:
    """The bytes of an Arrow file."""
    # A buffer that grows copies what it holds; this one is as large as the file can be.
    most = sum(batch.nbytes for batch in batches) + _FRAMING * (1 + len(batches))
    buffer = pa.allocate_buffer(most)
    sink = pa.FixedSizeBufferWriter(buffer)
    with pa.ipc.new_file(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return memoryview(buffer)[: sink.tell()]


def load(path: Path, widths: Mapping[str, int], known: str) -> list[dict[str, Bytes]]:
    """The batches of a file, mapped into memory and checked against its checksum.

    Raises:
        SessionError: The file is not whole: what was acknowledged has been lost.
    """
    try:
        with pa.memory_map(str(path)) as source:
            whole = source.read_buffer()
            if checksum(memoryview(whole)) != known:
                raise RefusedError("garbage", "it is not what was written")
            reader = pa.ipc.open_file(whole)
            read = [reader.get_batch(j) for j in range(reader.num_record_batches)]
        return [columns_of(batch, widths, batch.num_rows) for batch in read]
    except (OSError, pa.ArrowInvalid, RefusedError) as error:
        raise SessionError(
            f"{path.name} is damaged or missing, and what it held was acknowledged",
            why=str(error),
            remedy="the session cannot be completed: abort it and begin another",
        ) from error
