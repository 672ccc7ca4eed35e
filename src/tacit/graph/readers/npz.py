"""The npz layout of the gnn-benchmark collection, read without ever unpickling.

Members ``adj_data``, ``adj_indices``, ``adj_indptr``, ``adj_shape`` hold the links as CSR,
``attr_*`` the features as CSR (or ``attr_matrix`` as a dense array), ``labels`` one class per
node, -1 for unknown. :func:`save` adds what a Tacit graph knows beyond that: masks, whether it is
directed, identifiers and class names.

A file is checked from the outside in: the zip directory, then each array header against the size
the directory gives, then a limit on the sum, and only then is anything allocated or inflated.
"""

from __future__ import annotations

import ast
import json
import math
import re
import struct
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tacit.errors import GraphError
from tacit.graph.build import from_arcs
from tacit.graph.graph import Graph
from tacit.graph.readers.limits import MAX_BYTES, check_binary, check_room

_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 1 << 14
# Deflate cannot shrink anything to less than 1/1032 of its size (zlib's own limit).
_MAX_RATIO = 1032
_DTYPE = re.compile(r"^[<>|=]?[biuf][1248]$")
_MASKS = ("train", "val", "test")
# zipfile answers damage in many ways; an unknown version of the format is a NotImplementedError.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    OSError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    OverflowError,
    RuntimeError,
)


@dataclass(frozen=True)
class _Member:
    """One array in the file: where it is, and what its header says."""

    info: zipfile.ZipInfo
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]
    fortran: bool

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_npz(
    path: Path,
    *,
    directed: bool | None = None,
    symmetrize: bool = False,
    ignore_weights: bool = False,
    classes: int | None = None,
    max_bytes: int = MAX_BYTES,
) -> Graph:
    """Reads a graph from an npz file.

    Args:
        path: The file.
        directed: None takes what the file says, or else finds out from the arcs.
        symmetrize: Add the reverse of every arc.
        ignore_weights: Read every stored entry of the adjacency as a link, whatever its weight.
        classes: Number of classes, where the labels do not show it.
        max_bytes: The most memory the file may ask for.

    Returns:
        The graph.

    Raises:
        GraphError: The file is truncated, hostile, or does not hold a graph.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = _read_members(archive, path, max_bytes)
    except _DAMAGE as error:
        raise GraphError(
            f"{path.name} is truncated or damaged",
            why=str(error) or type(error).__name__,
            remedy="fetch or write the file again",
        ) from error
    adjacency = _csr(arrays, "adj", path)
    indptr, indices, weights, (n, m) = adjacency
    if n != m:
        raise GraphError(f"the adjacency in {path.name} is {n} by {m}, not square")
    if not ignore_weights:
        check_binary(weights, path.name)
    if "directed" in arrays and directed is None and not symmetrize:
        directed = bool(arrays["directed"].reshape(-1)[:1].any())
    features = _features(arrays, path, max_bytes)
    labels = _labels(arrays, n, path)
    if len(features) != n:
        raise GraphError(f"{path.name} has {len(features)} feature rows for {n} nodes")
    if "classes" in arrays and classes is None:
        classes = int(arrays["classes"].reshape(-1)[0]) if arrays["classes"].size else None
    return from_arcs(
        np.repeat(np.arange(n), np.diff(indptr)),
        indices,
        features=features,
        labels=labels,
        directed=directed,
        symmetrize=symmetrize,
        classes=classes,
        train=_mask(arrays, "train", n),
        val=_mask(arrays, "val", n),
        test=_mask(arrays, "test", n),
        ids=_ids(arrays, n, path),
        class_names=_texts(arrays, "class_names_json", path),
        name=path.stem,
    )


def save(graph: Graph, path: str | Path) -> Path:
    """Writes a graph in the npz layout, so that :func:`read_npz` gives the same graph back.

    Args:
        graph: The graph. Its contents are written as they are: the file is as private as it is.
        path: Where to; ``.npz`` is appended if it is missing.

    Returns:
        The path written.
    """
    from scipy.sparse import csr_array

    path = Path(path)
    if path.suffix != ".npz":
        path = path.with_name(path.name + ".npz")
    attributes = csr_array(graph.features)
    arrays: dict[str, np.ndarray] = {
        "adj_data": np.ones(graph.arcs, dtype=np.uint8),
        "adj_indices": graph.indices,
        "adj_indptr": graph.indptr,
        "adj_shape": np.array([graph.nodes, graph.nodes], dtype=np.int64),
        "attr_data": attributes.data,
        "attr_indices": attributes.indices,
        "attr_indptr": attributes.indptr.astype(np.int64),
        "attr_shape": np.array(graph.features.shape, dtype=np.int64),
        "labels": graph.labels,
        "classes": np.array([graph.classes], dtype=np.int64),
        "directed": np.array([graph.directed]),
        **{f"{key}_mask": getattr(graph, key) for key in _MASKS},
    }
    if graph.class_names is not None:
        arrays["class_names_json"] = _packed(list(graph.class_names))
    if graph.ids is not None and graph.ids.dtype.kind in "iu":
        arrays["ids"] = graph.ids
    elif graph.ids is not None:
        arrays["ids_json"] = _packed([str(value) for value in graph.ids])
    with path.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)  # type: ignore[arg-type]
    return path


def sparse_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    shape: tuple[int, int],
    where: str,
    max_bytes: int,
) -> np.ndarray:
    """A dense float32 matrix from validated CSR parts; entries given twice are added."""
    from scipy.sparse import csr_array

    check_csr(indptr, indices, data, shape, where)
    check_room(*shape, max_bytes)
    with np.errstate(over="ignore"):
        values = data.astype(np.float32)
    return csr_array((values, indices.astype(np.int64), indptr), shape=shape).toarray()


def check_csr(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, shape: tuple[int, int], where: str
) -> None:
    """Refuses CSR parts that do not fit each other."""
    rows, width = shape
    if any(part.ndim != 1 for part in (indptr, indices, data)):
        raise GraphError(f"{where} must be one-dimensional arrays")
    if indptr.dtype.kind not in "iu" or indices.dtype.kind not in "iu":
        raise GraphError(f"{where} has row pointers or indices that are not whole numbers")
    if data.dtype.kind not in "biuf":
        raise GraphError(f"{where} has values of type {data.dtype}, not numbers")
    if len(indptr) != rows + 1 or len(indices) != len(data):
        raise GraphError(
            f"{where} does not fit its shape",
            why=f"{rows} rows need {rows + 1} row pointers, found {len(indptr)}; "
            f"{len(indices)} indices, {len(data)} values",
        )
    if indptr[0] != 0 or indptr[-1] != len(indices) or np.any(indptr[1:] < indptr[:-1]):
        raise GraphError(f"the row pointers of {where} do not span its entries")
    if len(indices) and (indices.min() < 0 or indices.max() >= width):
        bad = int(np.flatnonzero((indices < 0) | (indices >= width))[0])
        row = int(np.searchsorted(indptr, bad, side="right")) - 1
        raise GraphError(
            f"row {row} of {where} points to {indices[bad]}, which does not exist",
            why=f"indices must lie in 0..{width - 1}",
            remedy="drop dangling links or add the missing nodes",
        )


def _read_members(archive: zipfile.ZipFile, path: Path, max_bytes: int) -> dict[str, np.ndarray]:
    infos = {}
    for info in archive.infolist():
        if info.filename in infos:
            raise GraphError(f"{path.name} holds {info.filename} twice")
        infos[info.filename] = info
    wanted = [f"{matrix}_{part}" for matrix in ("adj", "attr") for part in _PARTS] + ["labels"]
    if "attr_matrix.npy" in infos:
        wanted = [key for key in wanted if not key.startswith("attr_")] + ["attr_matrix"]
    missing = [key for key in wanted if f"{key}.npy" not in infos]
    if missing:
        raise GraphError(
            f"{path.name} has no {', '.join(missing)}",
            why="an npz graph holds adj_data, adj_indices, adj_indptr, adj_shape, the same with "
            "attr_, and labels",
            remedy="write it with tacit.graph.save, or load another layout",
        )
    wanted += [key for key in _EXTRAS if f"{key}.npy" in infos]
    members = {key: _header(archive, infos[f"{key}.npy"]) for key in wanted}
    total = sum(member.nbytes for member in members.values())
    if total > max_bytes:
        raise GraphError(
            f"{path.name} unpacks to {total / 2**30:,.1f} GiB",
            why=f"more than the {max_bytes / 2**30:,.1f} GiB allowed",
            remedy="raise max_bytes if the size is right",
        )
    return {key: _array(archive, member) for key, member in members.items()}


_PARTS = ("data", "indices", "indptr", "shape")
_EXTRAS = (
    *(f"{key}_mask" for key in _MASKS),
    "directed",
    "classes",
    "class_names_json",
    "ids",
    "ids_json",
)


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    """Reads the header of one array and holds it against the zip directory."""
    if info.flag_bits & 1:
        raise GraphError(f"{info.filename} is encrypted", remedy="save the file without a password")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise GraphError(f"{info.filename} is packed in a way that numpy does not write")
    if info.file_size > _MAX_RATIO * info.compress_size + _MAX_HEADER:
        raise GraphError(
            f"{info.filename} claims {info.file_size:,} bytes",
            why=f"the {info.compress_size:,} bytes stored for it cannot unpack to that",
            remedy="fetch the file again from a source you trust",
        )
    with archive.open(info) as stream:
        start = stream.read(8)
        if start[:6] != _MAGIC or len(start) < 8 or start[6] not in (1, 2, 3):
            raise GraphError(f"{info.filename} is not a numpy array")
        width = 2 if start[6] == 1 else 4
        length = int.from_bytes(stream.read(width), "little")
        if length > _MAX_HEADER:
            raise GraphError(f"{info.filename} has a header of {length:,} bytes")
        text = stream.read(length).decode("latin1")
    dtype, shape, fortran = _parse_header(text, info.filename)
    member = _Member(info, 8 + width + length, dtype, shape, fortran)
    if member.offset + member.nbytes != info.file_size:
        raise GraphError(
            f"{info.filename} is truncated or lies about its size",
            why=f"shape {shape} of {dtype} needs {member.nbytes:,} bytes, "
            f"the file has {info.file_size - member.offset:,}",
            remedy="fetch or write the file again",
        )
    return member


def _parse_header(text: str, where: str) -> tuple[np.dtype, tuple[int, ...], bool]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a damaged header may look like odd Python
        try:
            # Python 2 wrote long integers with an L, which older collections still carry.
            header = ast.literal_eval(re.sub(r"(\d+)L\b", r"\1", text.strip()))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise GraphError(f"{where} has a damaged header") from error
    if not isinstance(header, dict):
        raise GraphError(f"{where} has a damaged header")
    descr, shape = header.get("descr"), header.get("shape")
    if isinstance(descr, str) and descr.endswith("O"):
        raise GraphError(
            f"{where} holds Python objects",
            why="reading them would run code from the file",
            remedy="save it with numbers only",
        )
    if not isinstance(descr, str) or not _DTYPE.match(descr):
        raise GraphError(f"{where} is of type {str(descr)[:40]}, not numbers")
    if not isinstance(shape, tuple) or not all(type(k) is int and k >= 0 for k in shape):
        raise GraphError(f"{where} has the shape {str(shape)[:40]}")
    if len(shape) > 2:
        raise GraphError(f"{where} has {len(shape)} dimensions; none of these arrays has over two")
    try:
        dtype = np.dtype(descr)
    except (TypeError, ValueError) as error:
        raise GraphError(f"{where} is of type {descr[:40]}, not numbers") from error
    return dtype, shape, header.get("fortran_order") is True


def _array(archive: zipfile.ZipFile, member: _Member) -> np.ndarray:
    buffer = np.empty(member.nbytes, dtype=np.uint8)
    with archive.open(member.info) as stream:
        stream.read(member.offset)
        filled = 0
        while filled < len(buffer):
            block = stream.read(min(1 << 20, len(buffer) - filled))
            if not block:
                raise EOFError(f"{member.info.filename} ends after {filled:,} bytes")
            buffer[filled : filled + len(block)] = np.frombuffer(block, dtype=np.uint8)
            filled += len(block)
        stream.read(1)  # reach the end, where zipfile compares the checksum
    flat = buffer.view(member.dtype) if member.nbytes else np.empty(0, dtype=member.dtype)
    array = flat.reshape(member.shape, order="F" if member.fortran else "C")
    return array.astype(member.dtype.newbyteorder("="), copy=False)


def _csr(
    arrays: dict[str, np.ndarray], prefix: str, path: Path
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    data, indices, indptr, size = (arrays[f"{prefix}_{part}"] for part in _PARTS)
    if size.shape != (2,) or size.dtype.kind not in "iu" or size.min() < 0:
        raise GraphError(f"{prefix}_shape in {path.name} must be two whole numbers")
    shape = (int(size[0]), int(size[1]))
    check_csr(indptr, indices, data, shape, f"{prefix}_* in {path.name}")
    return indptr.astype(np.int64), indices, data, shape


def _features(arrays: dict[str, np.ndarray], path: Path, max_bytes: int) -> np.ndarray:
    if "attr_matrix" not in arrays:
        indptr, indices, data, shape = _csr(arrays, "attr", path)
        return sparse_rows(indptr, indices, data, shape, f"attr_* in {path.name}", max_bytes)
    matrix = arrays["attr_matrix"]
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise GraphError(f"attr_matrix in {path.name} must be a matrix of numbers")
    check_room(matrix.shape[0], matrix.shape[1], max_bytes)
    with np.errstate(over="ignore"):
        return matrix.astype(np.float32)


def _labels(arrays: dict[str, np.ndarray], nodes: int, path: Path) -> np.ndarray:
    labels = arrays["labels"]
    if labels.shape != (nodes,):
        raise GraphError(f"{path.name} has labels of shape {labels.shape} for {nodes} nodes")
    if labels.dtype.kind == "f" and np.array_equal(labels, np.rint(labels)):
        labels = labels.clip(-(2**40), 2**40).astype(np.int64)
    if labels.dtype.kind == "u" and labels.max(initial=0) > 2**62:
        raise GraphError("a label is out of range", why=f"found {labels.max()}")
    return labels


def _mask(arrays: dict[str, np.ndarray], key: str, nodes: int) -> np.ndarray | None:
    mask = arrays.get(f"{key}_mask")
    if mask is None:
        return None
    if mask.shape != (nodes,) or mask.dtype.kind not in "bu" or mask.max(initial=0) > 1:
        raise GraphError(f"{key}_mask must have one truth value for each of the {nodes} nodes")
    # A damaged byte other than 0 and 1 is no truth value, although numpy would take it for one.
    raw = np.ascontiguousarray(mask).view(np.uint8) if mask.dtype.kind == "b" else mask
    if np.any(raw > 1):
        raise GraphError(f"{key}_mask is damaged", remedy="fetch or write the file again")
    return mask.astype(bool)


def _packed(texts: list[str]) -> np.ndarray:
    return np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8)


def _texts(arrays: dict[str, np.ndarray], key: str, path: Path) -> tuple[str, ...] | None:
    if key not in arrays:
        return None
    try:
        texts = json.loads(arrays[key].tobytes())
    except (ValueError, RecursionError) as error:
        raise GraphError(f"{key} in {path.name} is damaged") from error
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise GraphError(f"{key} in {path.name} must be a list of texts")
    return tuple(texts)


def _ids(arrays: dict[str, np.ndarray], nodes: int, path: Path) -> np.ndarray | None:
    ids = arrays.get("ids")
    texts = _texts(arrays, "ids_json", path)
    if texts is not None:
        ids = np.array(texts, dtype=object)
    if ids is None:
        return None
    if ids.shape != (nodes,) or ids.dtype.kind not in "iuO":
        raise GraphError(f"ids in {path.name} must be one whole number or text per node")
    if len(set(ids.tolist())) != nodes:
        raise GraphError(f"{path.name} has duplicate node ids")
    return ids


def is_npz(path: Path) -> bool:
    """Whether the file begins as a zip archive does."""
    with path.open("rb") as stream:
        return stream.read(4) == b"PK\x03\x04"
