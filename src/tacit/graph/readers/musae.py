"""MUSAE graphs (Rozemberczki, Allen, Sarkar, 2021): Facebook pages, GitHub, Twitch, Wikipedia.

A folder holds ``musae_X_edges.csv``, ``musae_X_features.json`` (node to the list of its
attributes) and ``musae_X_target.csv``. Each link is listed once, so the reverses are added unless
``directed=True``, except for Wikipedia, whose links have a direction.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tacit.errors import GraphError
from tacit.graph.build import from_arcs
from tacit.graph.graph import Graph
from tacit.graph.readers.limits import MAX_BYTES, check_room
from tacit.graph.readers.tables import number_classes

_LABELS = ("page_type", "ml_target", "mature", "target")
_WIKIPEDIA = ("chameleon", "crocodile", "squirrel")
_TRAFFIC_CLASSES = 5


def read_musae(
    folder: Path,
    name: str,
    *,
    label: str | None = None,
    directed: bool | None = None,
    symmetrize: bool | None = None,
    classes: int | None = None,
    max_bytes: int = MAX_BYTES,
) -> Graph:
    """Reads ``musae_NAME_*`` from a folder.

    Args:
        folder: Where the three files are.
        name: Such as ``facebook`` or ``ES``.
        label: Column of the target file to predict; None takes the one the collection is known
            for: ``page_type``, ``ml_target``, ``mature``, or ``target``. Wikipedia's ``target``
            is a count of visits and is cut into five classes of equal size.
        directed: None finds out from the arcs. True keeps a list-once file as it is.
        symmetrize: Add the reverses; None does so unless the graph is Wikipedia's or directed.
        classes: Number of classes; for Wikipedia's ``target`` the number of equal parts.
        max_bytes: The most memory the features may ask for.

    Returns:
        The graph.

    Raises:
        GraphError: A file is missing or damaged, or the files do not fit each other.
    """
    paths = {
        part: folder / f"musae_{name}_{part}"
        for part in ("edges.csv", "features.json", "target.csv")
    }
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise GraphError(f"{', '.join(missing)} not found in {folder}")
    wikipedia = name.lower() in _WIKIPEDIA
    if symmetrize is None:
        symmetrize = not wikipedia and directed is not True
    columns, rows = _table(paths["target.csv"])
    label = label or next((key for key in _LABELS if key in columns), "target")
    key = "new_id" if "new_id" in columns else "id"
    for column in (key, label):
        if column not in columns:
            raise GraphError(
                f"{paths['target.csv'].name} has no column {column}",
                why=f"its columns are {', '.join(columns)}",
                remedy="name one of them with label=",
            )
    ids = [row[columns.index(key)] for row in rows]
    place = _places(ids, paths["target.csv"])
    texts = [row[columns.index(label)] for row in rows]
    class_names: tuple[str, ...] | None = None
    if wikipedia and label == "target":
        labels = _quantiles(texts, classes or _TRAFFIC_CLASSES, name)
    else:
        number, class_names = number_classes(sorted(set(texts)), paths["target.csv"].name, classes)
        labels = np.array([number[text] for text in texts], dtype=np.int64)
    tail, head = _links(paths["edges.csv"], place)
    return from_arcs(
        tail,
        head,
        features=_features(paths["features.json"], place, max_bytes),
        labels=labels,
        directed=directed,
        symmetrize=symmetrize,
        ids=_numbered(ids),
        class_names=class_names,
        name=f"musae_{name}",
    )


def musae_names(folder: Path) -> list[str]:
    """The graphs whose MUSAE files lie in a folder."""
    return sorted(
        path.name.removeprefix("musae_").removesuffix("_edges.csv")
        for path in folder.glob("musae_*_edges.csv")
    )


def _places(ids: list[str], path: Path) -> dict[str, int]:
    if not ids:
        raise GraphError(f"{path.name} has no nodes", remedy="fetch the file again")
    place: dict[str, int] = {}
    for index, node in enumerate(ids):
        if place.setdefault(node, index) != index:
            raise GraphError(
                f"{path.name} has duplicate node ids",
                why=f"{node} stands in rows {place[node] + 1} and {index + 1}",
                remedy="merge or remove the extra rows",
            )
    return place


def _numbered(ids: list[str]) -> np.ndarray | None:
    """The identifiers as numbers where all are, and None where they only count the nodes."""
    if not all(node.isascii() and node.isdecimal() and len(node) < 19 for node in ids):
        return np.array(ids, dtype=object)
    numbers = np.array([int(node) for node in ids], dtype=np.int64)
    return None if np.array_equal(numbers, np.arange(len(ids))) else numbers


def _table(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = [row for row in csv.reader(stream, strict=True) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise GraphError(f"{path.name} is not a CSV file in UTF-8", why=str(error)) from error
    if not rows:
        raise GraphError(f"{path.name} is empty")
    short = next((place for place, row in enumerate(rows) if len(row) != len(rows[0])), None)
    if short is not None:
        raise GraphError(
            f"row {short} of {path.name} has {len(rows[short])} cells, not {len(rows[0])}"
        )
    return rows[0], rows[1:]


def _links(path: Path, place: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    _, rows = _table(path)
    arcs = np.empty((len(rows), 2), dtype=np.int64)
    for index, row in enumerate(rows):
        try:
            arcs[index] = place[row[0]], place[row[1]]
        except (KeyError, IndexError) as error:
            raise GraphError(
                f"row {index + 1} of {path.name} names a node that does not exist",
                why=f"it reads {', '.join(row)[:80]}",
                remedy="add the missing node, or remove the row",
            ) from error
    return arcs[:, 0], arcs[:, 1]


def _features(path: Path, place: dict[str, int], max_bytes: int) -> np.ndarray:
    try:
        held = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise GraphError(f"{path.name} is not valid JSON", why=str(error)[:200]) from error
    if not isinstance(held, dict) or not all(isinstance(row, list) for row in held.values()):
        raise GraphError(f"{path.name} must map each node to a list of attributes")
    unknown = [node for node in held if node not in place]
    absent = len(place.keys() - held.keys())
    if unknown or absent:
        raise GraphError(
            f"{path.name} does not fit the target file",
            why=f"{len(unknown)} of its nodes are unknown, {absent} nodes have no attributes",
            remedy="fetch all three files from the same source",
        )
    width = _width(held.values(), path)
    check_room(len(place), width, max_bytes)
    features = np.zeros((len(place), width), dtype=np.float32)
    for node, row in held.items():
        features[place[node], row] = 1
    return features


def _width(rows: Iterable[list[object]], path: Path) -> int:
    top = -1
    for row in rows:
        for attribute in row:
            if type(attribute) is not int or attribute < 0:
                raise GraphError(
                    f"{path.name} holds {str(attribute)[:40]!r}",
                    why="an attribute is a number from 0",
                )
            top = max(top, attribute)
    return max(1, top + 1)


def _quantiles(texts: list[str], parts: int, name: str) -> np.ndarray:
    """Classes of equal size by rank; ties stay in file order."""
    try:
        visits = np.array([float(text) for text in texts])
    except ValueError as error:
        raise GraphError(f"the target of musae_{name} must be numbers", why=str(error)) from error
    if not np.isfinite(visits).all():
        raise GraphError(f"the target of musae_{name} has a value that is not finite")
    rank = np.empty(len(visits), dtype=np.int64)
    rank[np.argsort(visits, kind="stable")] = np.arange(len(visits))
    return rank * parts // len(visits)
