"""Facebook-100: one ``.mat`` file per university (Traud, Mucha, Porter, 2012).

``A`` holds the friendships and ``local_info`` seven numbers per person, 0 where missing. One of
them becomes the label, the others one-hot features: one column for each value that occurs, no
column for a missing one. To prepare a file as GAP prepares its Facebook graph, go on with
``keep_classes(graph, 1000)`` and ``drop_isolated``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tacit.errors import GraphError
from tacit.graph.build import from_arcs
from tacit.graph.graph import Graph
from tacit.graph.readers.limits import MAX_BYTES, check_binary, check_room
from tacit.graph.readers.mat5 import Sparse, read_mat5

FIELDS = ("student_fac", "gender", "major", "second_major", "dorm", "year", "high_school")


def read_facebook100(
    path: Path,
    *,
    label: str = "year",
    features: Sequence[str] | None = None,
    directed: bool | None = None,
    symmetrize: bool = False,
    ignore_weights: bool = False,
    max_bytes: int = MAX_BYTES,
) -> Graph:
    """Reads a Facebook-100 file.

    Args:
        path: Such as ``Cornell5.mat``.
        label: Which of :data:`FIELDS` to predict. Missing values are unknown labels.
        features: Which of the others become features; None takes all of them.
        directed: None finds out from the arcs (the files are symmetric).
        symmetrize: Add the reverse of every arc.
        ignore_weights: Read every stored entry of ``A`` as a link.
        max_bytes: The most memory the features may ask for.

    Returns:
        The graph, with the values of the label as ``class_names``.

    Raises:
        GraphError: The file is damaged, lacks ``A`` or ``local_info``, or has no such field.
    """
    chosen = tuple(field for field in FIELDS if field != label) if features is None else features
    unknown = [field for field in (label, *chosen) if field not in FIELDS]
    if unknown or label in chosen:
        raise GraphError(
            f"{', '.join(unknown) or label} cannot be used here",
            why="it is no field of Facebook-100, or it is the label and a feature at once",
            remedy=f"choose among {', '.join(FIELDS)}",
        )
    links, info = _matrices(path, max_bytes)
    n = links.shape[0]
    if links.shape != (n, n) or info.shape != (n, len(FIELDS)):
        raise GraphError(
            f"{path.name} holds A of shape {links.shape} and local_info of shape {info.shape}",
            why=f"Facebook-100 has {len(FIELDS)} fields for each person",
        )
    if not ignore_weights:
        check_binary(links.values, path.name)
    target = info[:, FIELDS.index(label)]
    names = np.unique(target[target != 0])
    labels = np.where(target == 0, -1, np.searchsorted(names, target))
    return from_arcs(
        links.rows,
        links.columns,
        features=_one_hot([info[:, FIELDS.index(field)] for field in chosen], n, max_bytes),
        labels=labels.astype(np.int64),
        directed=directed,
        symmetrize=symmetrize,
        classes=len(names),
        class_names=tuple(str(value) for value in names),
        name=path.stem,
    )


def is_mat(path: Path) -> bool:
    """Whether the file begins as a MATLAB 5 file does."""
    with path.open("rb") as stream:
        return stream.read(10) == b"MATLAB 5.0"


def _matrices(path: Path, max_bytes: int) -> tuple[Sparse, np.ndarray]:
    held = read_mat5(path.read_bytes(), {"A", "local_info"}, max_bytes)
    links, info = held.get("A"), held.get("local_info")
    if not isinstance(links, Sparse) or not isinstance(info, np.ndarray):
        raise GraphError(
            f"{path.name} has no sparse A and local_info",
            why="a Facebook-100 file holds both",
            remedy="load it yourself and build the graph with tacit.graph.from_arcs",
        )
    if not np.isfinite(info).all() or not np.array_equal(info, np.rint(info)):
        raise GraphError(f"local_info in {path.name} must hold whole numbers")
    if np.abs(info.astype(np.float64)).max(initial=0) > 2**31:
        raise GraphError(f"local_info in {path.name} holds a number beyond 32 bits")
    return links, info.astype(np.int64)


def _one_hot(columns: list[np.ndarray], nodes: int, max_bytes: int) -> np.ndarray:
    values = [np.unique(column[column != 0]) for column in columns]
    width = sum(len(found) for found in values)
    if width == 0:
        raise GraphError("none of the chosen features has a value")
    check_room(nodes, width, max_bytes)
    features = np.zeros((nodes, width), dtype=np.float32)
    offset = 0
    for column, found in zip(columns, values, strict=True):
        rows = np.flatnonzero(column)
        features[rows, offset + np.searchsorted(found, column[rows])] = 1
        offset += len(found)
    return features
