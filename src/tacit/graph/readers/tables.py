"""A table of nodes and a table of edges, CSV or Parquet, streamed through DuckDB.

Identifiers are compared as the text they are, so strings, 64-bit integers and integers longer
than any machine word all work, and ``007`` is not ``7``. Nodes keep the order of their file.
"""

from __future__ import annotations

import csv
import gzip
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.errors import GraphError
from tacit.graph.build import from_arcs
from tacit.graph.graph import Graph
from tacit.graph.readers.limits import MAX_BYTES, check_room, constant_features

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
_BATCH = 1 << 16
_MAX_HEADER = 1 << 20
_ROLES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}


@dataclass(frozen=True)
class Columns:
    """Which column holds what.

    Attributes:
        node_id: Identifier, in the nodes table.
        label: Class, in the nodes table; empty where unknown.
        features: Feature columns; None takes every column that has no other role.
        split: Column with train, val or test; None takes a column named ``split`` if there is one.
        source: Identifier of the node that reports the link, in the edges table.
        target: Identifier of the node it names.
        weight: Link weight; None checks a column named ``weight`` if there is one.
    """

    node_id: str = "id"
    label: str = "label"
    features: Sequence[str] | None = None
    split: str | None = None
    source: str = "source"
    target: str = "target"
    weight: str | None = None


def read_tables(
    nodes: Path,
    edges: Path,
    columns: Columns,
    *,
    directed: bool | None = None,
    symmetrize: bool = False,
    ignore_weights: bool = False,
    classes: int | None = None,
    max_bytes: int = MAX_BYTES,
    name: str | None = None,
    features: np.ndarray | None = None,
) -> Graph:
    """Reads a graph from two tables.

    Args:
        nodes: CSV (also gzipped or tab-separated) or Parquet, one row per node.
        edges: The same, one row per arc.
        columns: Which column holds what.
        directed: None finds out from the arcs.
        symmetrize: Add the reverse of every arc: for tables that list each link once.
        ignore_weights: Read every row as a link, whatever its weight.
        classes: Number of classes; labels must then be whole numbers below it.
        max_bytes: The most memory the features may ask for.
        name: Name of the graph; None takes the folder's.
        features: One row per node, read elsewhere; the nodes table then holds none.

    Returns:
        The graph. Labels 0..C-1 keep their numbers; any others are numbered in sorted order and
        ``class_names`` holds what they were.

    Raises:
        GraphError: A table is missing, damaged, lacks a column, repeats a node, or names a node
            that does not exist.
    """
    import duckdb

    with _database() as base:
        try:
            found = _open(base, "nodes", nodes, (columns.node_id, columns.label))
            _open(base, "edges", edges, (columns.source, columns.target))
            n = _number_nodes(base, nodes, columns)
            notes: tuple[str, ...] = ()
            if features is None:
                features, notes = _features(base, nodes, columns, found, n, max_bytes)
            elif len(features) != n:
                raise GraphError(f"{len(features)} feature rows do not match {n} nodes")
            labels, class_names = _labels(base, nodes, columns.label, n, classes)
            masks = _split(base, nodes, columns, found, n)
            if not ignore_weights:
                _check_weights(base, edges, columns)
            tail, head = _arcs(base, edges, columns)
            ids = _ids(base, n)
        except duckdb.Error as error:
            raise GraphError(
                f"{nodes.name} and {edges.name} cannot be read as tables",
                why=str(error).splitlines()[0],
                remedy="write both as CSV with a header line, or as Parquet",
            ) from error
    return from_arcs(
        tail,
        head,
        features=features,
        labels=labels,
        directed=directed,
        symmetrize=symmetrize,
        classes=classes if class_names is None else None,
        train=masks.get("train"),
        val=masks.get("val"),
        test=masks.get("test"),
        ids=ids,
        class_names=class_names,
        name=name or nodes.resolve().parent.name,
        notes=notes,
    )


@contextmanager
def _database() -> Iterator[DuckDBPyConnection]:
    """A database in memory that fetches nothing and leaves nothing behind."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="tacit-") as spill:
        base = duckdb.connect(
            ":memory:",
            config={
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "temp_directory": spill,
            },
        )
        try:
            yield base
        finally:
            base.close()


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _open(base: DuckDBPyConnection, table: str, path: Path, required: tuple[str, ...]) -> list[str]:
    """Makes a view of one file and returns its columns."""
    # A path is a pattern to DuckDB, so the characters that mean something in one are bracketed.
    exact = "".join(f"[{c}]" if c in "*?[" else c for c in str(path.resolve()))
    if path.name.lower().endswith(".parquet"):
        source = f"read_parquet({_text(exact)}, hive_partitioning=false)"
        found = [row[0] for row in base.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()]
    else:
        delimiter, found = _header(path, required)
        types = ", ".join(f"{_text(column)}: 'VARCHAR'" for column in found)
        packing = "gzip" if path.name.lower().endswith(".gz") else "none"
        # Nothing is guessed: a guess may skip lines it takes for comments, and lose nodes.
        source = (
            f"read_csv({_text(exact)}, auto_detect=false, header=true, delim={_text(delimiter)}, "
            f"quote='\"', escape='\"', columns={{{types}}}, hive_partitioning=false, "
            f"compression='{packing}', strict_mode=true)"
        )
    missing = [column for column in required if column not in found]
    if missing:
        raise _missing(path, missing, found)
    base.execute(f"CREATE VIEW {table} AS SELECT * FROM {source}")
    return found


def _header(path: Path, required: tuple[str, ...]) -> tuple[str, list[str]]:
    """The delimiter and the column names of a CSV file."""
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rb") as stream:
            line = stream.readline(_MAX_HEADER)
        text = line.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise GraphError(
            f"{path.name} is not a CSV file in UTF-8", why=str(error), remedy="save it as UTF-8"
        ) from error
    if not text.strip():
        raise GraphError(f"{path.name} is empty", remedy="write a header line and the rows")
    best: list[str] = []
    chosen = ","
    for delimiter in ",\t;|":
        try:
            fields = next(csv.reader([text.rstrip("\r\n")], delimiter=delimiter, strict=True))
        except csv.Error:
            continue
        if (sum(key in fields for key in required), len(fields)) > (
            sum(key in best for key in required),
            len(best),
        ):
            best, chosen = fields, delimiter
    if not best or "\x00" in text or any(not field for field in best):
        raise GraphError(
            f"{path.name} has a column without a name in its header line",
            remedy="write a header line that names every column",
        )
    if len({field.lower() for field in best}) < len(best):
        raise GraphError(f"{path.name} names a column twice in its header line")
    return chosen, best


def _missing(path: Path, missing: list[str], found: list[str]) -> GraphError:
    shown = ", ".join(found[:8]) + (", ..." if len(found) > 8 else "")
    return GraphError(
        f"{path.name} has no column {' or '.join(missing)}",
        why=f"its columns are {shown}",
        remedy="say which columns to use: node_id=, label=, source=, target=, features=, split=",
    )


def _number_nodes(base: DuckDBPyConnection, path: Path, columns: Columns) -> int:
    """Copies the nodes into a table, whose row number becomes the node's index."""
    base.execute(
        f"CREATE TABLE known AS SELECT CAST({_name(columns.node_id)} AS VARCHAR) AS tacit_key, "
        "* FROM nodes"
    )
    count, filled, distinct = _row(
        base, "SELECT count(*), count(tacit_key), count(DISTINCT tacit_key) FROM known"
    )
    if count == 0:
        raise GraphError(f"{path.name} has no nodes", remedy="write one row for each node")
    if filled < count:
        raise GraphError(f"{count - filled} rows of {path.name} have no {columns.node_id}")
    if distinct < count:
        twice = _row(
            base,
            "SELECT tacit_key, count(*) FROM known GROUP BY 1 HAVING count(*) > 1 "
            "ORDER BY 2 DESC, 1 LIMIT 1",
        )
        raise GraphError(
            f"{path.name} has duplicate node ids",
            why=f"{columns.node_id} {twice[0]} stands in {twice[1]} rows",
            remedy="merge or remove the extra rows",
        )
    return int(count)


def _row(base: DuckDBPyConnection, query: str) -> tuple[Any, ...]:
    return base.execute(query).fetchall()[0]


def _batches(base: DuckDBPyConnection, query: str) -> Iterator[Any]:
    """Record batches of a query, streamed, on a cursor of their own: errors ask more queries."""
    cursor = base.cursor()
    try:
        yield from cursor.sql(query).to_arrow_reader(_BATCH)
    finally:
        cursor.close()


def _features(
    base: DuckDBPyConnection,
    path: Path,
    columns: Columns,
    found: list[str],
    nodes: int,
    max_bytes: int,
) -> tuple[np.ndarray, tuple[str, ...]]:
    roles = {columns.node_id, columns.label, columns.split or "split"}
    wanted = columns.features
    if wanted is None:
        wanted = [column for column in found if column not in roles]
    missing = [column for column in wanted if column not in found]
    if missing:
        raise _missing(path, missing, found)
    if not wanted:
        return constant_features(nodes)
    check_room(nodes, len(wanted), max_bytes)
    features = np.empty((nodes, len(wanted)), dtype=np.float32)
    casts = ", ".join(f"TRY_CAST({_name(column)} AS DOUBLE)" for column in wanted)
    for batch in _batches(base, f"SELECT rowid, {casts} FROM known"):
        rows = batch.column(0).to_numpy()
        for position, column in enumerate(wanted):
            values = batch.column(position + 1)
            if values.null_count:
                raise _not_a_number(base, path, column)
            with np.errstate(over="ignore"):
                features[rows, position] = values.to_numpy()
    return features, ()


def _not_a_number(base: DuckDBPyConnection, path: Path, column: str) -> GraphError:
    key, value = _row(
        base,
        f"SELECT tacit_key, CAST({_name(column)} AS VARCHAR) FROM known "
        f"WHERE TRY_CAST({_name(column)} AS DOUBLE) IS NULL ORDER BY rowid LIMIT 1",
    )
    return GraphError(
        f"feature column {column} of {path.name} is "
        + ("empty" if value is None else f"{value!r}")
        + f" for node {key}",
        why="a feature must be a finite number for every node",
        remedy="impute or one-hot encode it, or name the columns to use with features=[...]",
    )


def _labels(
    base: DuckDBPyConnection, path: Path, column: str, nodes: int, classes: int | None
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    numbers = np.full(nodes, -1, dtype=np.int64)
    seen: dict[str, int] = {}
    query = f"SELECT rowid, CAST({_name(column)} AS VARCHAR) AS label FROM known"
    for batch in _batches(base, query):
        coded = batch.column(1).dictionary_encode()
        place = np.array(
            [seen.setdefault(text, len(seen)) for text in coded.dictionary.to_pylist()],
            dtype=np.int64,
        )
        codes = coded.indices.fill_null(-1).to_numpy()
        known = codes >= 0
        numbers[batch.column(0).to_numpy()[known]] = place[codes[known]]
    number, names = number_classes(list(seen), path.name, classes)
    table = np.array([*(number[text] for text in seen), -1], dtype=np.int64)
    return table[numbers], names


def number_classes(
    texts: list[str], where: str, classes: int | None = None
) -> tuple[dict[str, int], tuple[str, ...] | None]:
    """Gives each spelling of a label its class.

    Args:
        texts: The distinct labels as text.
        where: The file, for errors.
        classes: The declared number of classes, or None.

    Returns:
        Class of each text, -1 for unknown (``-1`` and ``nan``), and the names of the classes, or
        None where the labels were 0..C-1 already.
    """
    known = [text for text in texts if text.lower() not in ("nan", "-1", "-1.0")]
    number = dict.fromkeys(texts, -1)
    whole = {text: _whole(text) for text in known}
    values = sorted({value for value in whole.values() if value is not None})
    if None in whole.values():
        if classes is not None:
            raise _out_of_range(next(t for t, v in whole.items() if v is None), where, classes)
        names = sorted(known)
        number.update({text: place for place, text in enumerate(names)})
        return number, tuple(names)
    for text, value in whole.items():
        if value is not None and (value < 0 or (classes is not None and value >= classes)):
            raise _out_of_range(text, where, classes)
    if classes is not None or values == list(range(len(values))):
        number.update({text: value for text, value in whole.items() if value is not None})
        return number, None
    rank = {value: place for place, value in enumerate(values)}
    number.update({text: rank[value] for text, value in whole.items() if value is not None})
    return number, tuple(str(value) for value in values)


def _whole(text: str) -> int | None:
    """The whole number a text spells, also as pandas writes it (``3.0``), or None."""
    head, dot, tail = text.strip().partition(".")
    if dot and tail.strip("0"):
        return None
    if not head.lstrip("-").isdecimal() or not head.isascii() or len(head) > 18:
        return None
    try:
        return int(head)
    except ValueError:
        return None


def _out_of_range(text: str, where: str, classes: int | None) -> GraphError:
    top = "" if classes is None else str(classes - 1)
    return GraphError(
        f"label {text!r} in {where} is out of range",
        why=f"labels must lie in 0..{top}, or be empty or -1 for unknown",
        remedy="number the classes from 0, or leave classes= out to number them by name",
    )


def _split(
    base: DuckDBPyConnection, path: Path, columns: Columns, found: list[str], nodes: int
) -> dict[str, np.ndarray]:
    column = columns.split or "split"
    if column not in found:
        if columns.split is not None:
            raise _missing(path, [column], found)
        return {}
    masks = {role: np.zeros(nodes, dtype=bool) for role in ("train", "val", "test")}
    query = f"SELECT rowid, CAST({_name(column)} AS VARCHAR) FROM known"
    for batch in _batches(base, query):
        rows = batch.column(0).to_numpy()
        coded = batch.column(1).dictionary_encode()
        codes = coded.indices.fill_null(-1).to_numpy()
        for code, text in enumerate(coded.dictionary.to_pylist()):
            role = _ROLES.get(text.strip().lower())
            if role is None:
                raise GraphError(
                    f"column {column} of {path.name} says {text!r}",
                    why="a role must be train, val or test, or empty",
                )
            masks[role][rows[codes == code]] = True
    return masks


def _check_weights(base: DuckDBPyConnection, path: Path, columns: Columns) -> None:
    found = [row[0] for row in base.execute("DESCRIBE edges").fetchall()]
    column = columns.weight or "weight"
    if column not in found:
        if columns.weight is not None:
            raise _missing(path, [column], found)
        return
    odd = base.execute(
        f"SELECT {_name(columns.source)}, {_name(columns.target)}, {_name(column)} FROM edges "
        f"WHERE TRY_CAST({_name(column)} AS DOUBLE) IS DISTINCT FROM 1 LIMIT 1"
    ).fetchall()
    if odd:
        raise GraphError(
            f"the link {odd[0][0]} -> {odd[0][1]} in {path.name} has weight {odd[0][2]}",
            why="a sum over weighted links moves by more than the sensitivity that is charged for",
            remedy="threshold the weights yourself, or pass ignore_weights=True to read every "
            "listed link as a link",
        )


def _arcs(base: DuckDBPyConnection, path: Path, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    tails, heads = [], []
    tail, head = (f"CAST({_name(c)} AS VARCHAR)" for c in (columns.source, columns.target))
    query = (
        "SELECT CAST(coalesce(a.rowid, -1) AS INTEGER), CAST(coalesce(b.rowid, -1) AS INTEGER) "
        f"FROM (SELECT {tail} AS tacit_s, {head} AS tacit_t FROM edges) AS e "
        "LEFT JOIN known AS a ON a.tacit_key = tacit_s "
        "LEFT JOIN known AS b ON b.tacit_key = tacit_t"
    )
    for batch in _batches(base, query):
        part = batch.column(0).to_numpy(), batch.column(1).to_numpy()
        if min(part[0].min(initial=0), part[1].min(initial=0)) < 0:
            raise _dangling(base, path, columns)
        tails.append(part[0])
        heads.append(part[1])
    empty = np.zeros(0, dtype=np.int32)
    return np.concatenate([empty, *tails]), np.concatenate([empty, *heads])


def _dangling(base: DuckDBPyConnection, path: Path, columns: Columns) -> GraphError:
    ends = " UNION ALL ".join(
        f"SELECT CAST({_name(c)} AS VARCHAR) AS tacit_key FROM edges"
        for c in (columns.source, columns.target)
    )
    unknown = f"({ends}) AS e WHERE NOT EXISTS (FROM known WHERE known.tacit_key = e.tacit_key)"
    count = _row(base, f"SELECT count(*) FROM {unknown}")[0]
    first = _row(base, f"SELECT min(e.tacit_key) FROM {unknown}")[0]
    return GraphError(
        f"{count} ends of links in {path.name} name a node that does not exist",
        why="one of them is " + ("empty" if first is None else repr(first)),
        remedy="add the missing nodes, or remove those rows",
    )


def _ids(base: DuckDBPyConnection, nodes: int) -> np.ndarray | None:
    """The identifiers in node order: 64-bit integers where all are, else texts."""
    whole = _row(
        base,
        "SELECT bool_and(coalesce(CAST(TRY_CAST(tacit_key AS BIGINT) AS VARCHAR) = tacit_key, "
        "false)) FROM known",
    )[0]
    ids = np.empty(nodes, dtype=np.int64 if whole else object)
    key = "CAST(tacit_key AS BIGINT)" if whole else "tacit_key"
    for batch in _batches(base, f"SELECT rowid, {key} FROM known"):
        ids[batch.column(0).to_numpy()] = batch.column(1).to_numpy(zero_copy_only=False)
    return None if whole and np.array_equal(ids, np.arange(nodes)) else ids
