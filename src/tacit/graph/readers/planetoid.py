"""The raw planetoid files of Cora, Citeseer and Pubmed: ``ind.NAME.x`` and its seven siblings.

They are Python pickles; :mod:`tacit.graph.readers.pickles` reads them without running anything.
The public split (Yang, Cohen, Salakhutdinov, ICML 2016) comes with them: the rows of ``x`` train,
the next 500 validate, ``test.index`` tests. In Citeseer some test nodes have no row; they keep
their place with zero features, no label and no role.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tacit.errors import GraphError
from tacit.graph.build import from_arcs
from tacit.graph.graph import Graph
from tacit.graph.readers.limits import MAX_BYTES, check_room
from tacit.graph.readers.pickles import array_of, parse, rows_of

_PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
_VALIDATION = 500


def read_planetoid(
    folder: Path,
    name: str,
    *,
    directed: bool | None = None,
    symmetrize: bool = False,
    max_bytes: int = MAX_BYTES,
) -> Graph:
    """Reads ``ind.NAME.*`` from a folder, with the public split.

    Args:
        folder: Where the eight files are.
        name: Such as ``cora``.
        directed: None finds out from the arcs.
        symmetrize: Add the reverse of every arc.
        max_bytes: The most memory the features may ask for.

    Returns:
        The graph.

    Raises:
        GraphError: A file is missing or damaged, does not fit the others, or asks for code to run.
    """
    paths = {part: folder / f"ind.{name}.{part}" for part in _PARTS}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise GraphError(
            f"{', '.join(missing)} not found in {folder}",
            why="a planetoid graph is eight files",
            remedy="fetch the missing files into the same folder",
        )
    test = _test_index(paths["test.index"])
    values = {part: parse(paths[part].read_bytes(), paths[part].name) for part in _PARTS[:-1]}
    rows = {part: rows_of(values[part], paths[part].name, max_bytes) for part in ("tx", "allx")}
    classes = {part: array_of(values[part], paths[part].name) for part in ("y", "ty", "ally")}
    _check_sizes(rows, classes, test, name)
    tail, head = _arcs(values["graph"], paths["graph"])
    top = max(test.max(initial=-1), tail.max(initial=-1), head.max(initial=-1))
    known = len(rows["allx"])
    # Every node has a line in the graph file, so no index can pass the lines by more than the
    # nodes that planetoid left out, all of them among the test nodes.
    if top >= known + 2 * len(test) + len(values["graph"]):
        raise GraphError(f"ind.{name}.graph names node {top}, which does not exist")
    n = max(known, int(top) + 1)
    check_room(n, rows["allx"].shape[1], max_bytes)
    features = np.zeros((n, rows["allx"].shape[1]), dtype=np.float32)
    labels = np.full(n, -1, dtype=np.int64)
    features[:known], features[test] = rows["allx"], rows["tx"]
    labels[:known], labels[test] = _labels(classes["ally"]), _labels(classes["ty"])
    masks = np.zeros((3, n), dtype=bool)
    trained = len(classes["y"])
    masks[0, :trained] = True
    masks[1, trained : min(trained + _VALIDATION, known)] = True
    masks[2, test] = True
    masks &= labels >= 0
    return from_arcs(
        tail,
        head,
        features=features,
        labels=labels,
        directed=directed,
        symmetrize=symmetrize,
        classes=classes["ally"].shape[1],
        train=masks[0],
        val=masks[1] & ~masks[2],
        test=masks[2],
        name=name,
    )


def planetoid_names(folder: Path) -> list[str]:
    """The graphs whose planetoid files lie in a folder."""
    return sorted(
        path.name.removeprefix("ind.").removesuffix(".graph") for path in folder.glob("ind.*.graph")
    )


def _test_index(path: Path) -> np.ndarray:
    try:
        index = np.array([int(line) for line in path.read_text("ascii").split()], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise GraphError(f"{path.name} must hold one whole number a line") from error
    if len(index) == 0 or index.min() < 0 or index.max() > 2**31 - 2:
        raise GraphError(f"{path.name} holds no usable node numbers")
    if len(np.unique(index)) < len(index):
        raise GraphError(f"{path.name} names a node twice")
    return index


def _check_sizes(
    rows: dict[str, np.ndarray], classes: dict[str, np.ndarray], test: np.ndarray, name: str
) -> None:
    fits = (
        all(part.ndim == 2 and part.dtype.kind in "biuf" for part in classes.values())
        and len({part.shape[1] for part in classes.values()}) == 1
        and rows["tx"].shape[1] == rows["allx"].shape[1]
        and len(rows["tx"]) == len(classes["ty"]) == len(test)
        and len(rows["allx"]) == len(classes["ally"]) >= len(classes["y"])
        and test.min() >= len(rows["allx"])
    )
    if not fits:
        shapes = {key: part.shape for key, part in (rows | classes).items()}
        raise GraphError(
            f"the files of ind.{name} do not fit each other",
            why=f"{shapes}, {len(test)} test nodes",
            remedy="fetch all eight files from the same source",
        )


def _labels(one_hot: np.ndarray) -> np.ndarray:
    """The class of each one-hot row, -1 for a row of zeros."""
    if one_hot.shape[1] == 0:
        raise GraphError("the label files have no classes")
    return np.where((one_hot != 0).any(axis=1), one_hot.argmax(axis=1), -1)


def _arcs(links: Any, path: Path) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(links, dict):
        raise GraphError(f"{path.name} must hold a dictionary of neighbour lists")
    tails: list[int] = []
    heads: list[int] = []
    room = path.stat().st_size  # an entry takes at least a byte, unless a list is reused
    for tail, neighbours in links.items():
        if type(tail) is not int or not isinstance(neighbours, list):
            raise GraphError(f"{path.name} must map node numbers to lists of node numbers")
        if len(heads) + len(neighbours) > room:
            raise GraphError(f"{path.name} holds more arcs than bytes")
        tails.extend([tail] * len(neighbours))
        heads.extend(neighbours)
    if any(type(node) is not int or not 0 <= node < 2**31 - 1 for node in (*tails, *heads)):
        raise GraphError(f"{path.name} holds something that is not a node number")
    return np.array(tails, dtype=np.int64), np.array(heads, dtype=np.int64)
