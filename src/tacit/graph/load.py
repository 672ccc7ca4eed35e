"""One call that recognises what the user brings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from tacit.errors import GraphError
from tacit.graph.checks import check_training
from tacit.graph.graph import Graph
from tacit.graph.readers.facebook100 import is_mat, read_facebook100
from tacit.graph.readers.limits import MAX_BYTES
from tacit.graph.readers.musae import musae_names, read_musae
from tacit.graph.readers.npz import is_npz, read_npz
from tacit.graph.readers.planetoid import planetoid_names, read_planetoid
from tacit.graph.readers.pyg import from_pyg, is_pyg
from tacit.graph.readers.tables import SUFFIXES, Columns, read_tables

if TYPE_CHECKING:
    from torch_geometric.data import Data

_LAYOUTS = (
    "an npz file; a pair (nodes, edges) of CSV or Parquet tables, or a folder with "
    "nodes.csv|parquet and edges.csv|parquet; a PyTorch Geometric Data; a folder of planetoid "
    "files ind.NAME.*; a Facebook-100 .mat file; a folder of MUSAE files musae_NAME_*"
)
_FOREIGN = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF8": "a GIF picture",
    b"%PDF": "a PDF document",
    b"\x1f\x8b": "a gzip file",
    b"\x89HDF": "an HDF5 file (MATLAB 7.3 files are: save with -v7 instead)",
    b"\x93NUM": "a single numpy array",
    b"\x80\x02": "a pickle, which can run any program",
    b"\x80\x03": "a pickle, which can run any program",
    b"\x80\x04": "a pickle, which can run any program",
    b"\x80\x05": "a pickle, which can run any program",
}


def load(
    source: str | Path | tuple[str | Path, str | Path] | Graph | Data,
    *,
    directed: bool | None = None,
    symmetrize: bool | None = None,
    ignore_weights: bool = False,
    label: str | None = None,
    features: Sequence[str] | None = None,
    node_id: str = "id",
    source_column: str = "source",
    target_column: str = "target",
    split_column: str | None = None,
    weight_column: str | None = None,
    classes: int | None = None,
    pyg_split: int | None = None,
    max_bytes: int = MAX_BYTES,
) -> Graph:
    """Loads a graph from whatever it is in.

    Args:
        source: A path, a pair of paths (nodes, edges), a PyTorch Geometric ``Data``, or a Graph,
            which is returned as it is.
        directed: None finds out: arcs that are symmetric make a symmetric graph. False insists.
            True keeps directed lists.
        symmetrize: Add the reverse of every arc, for files that list each link once.
        ignore_weights: Read every listed link as a link; otherwise weights other than 1 are
            refused.
        label: The column to predict, in tables (``label``), Facebook-100 (``year``) and MUSAE.
        features: The columns to learn from, in tables and Facebook-100; None takes all others.
        node_id: Identifier column of the nodes table.
        source_column: Column of the edges table with the node that reports the link.
        target_column: Column of the edges table with the node it names.
        split_column: Column of the nodes table with train, val or test (``split``).
        weight_column: Column of the edges table with the weight to check (``weight``).
        classes: Number of classes, where the labels do not show it.
        pyg_split: Which split of a Data whose masks hold several.
        max_bytes: The most memory a file may ask for.

    Returns:
        The graph. Where the file brings a split, every class has a training node; otherwise all
        masks are empty and :func:`tacit.graph.split` makes them.

    Raises:
        GraphError: There is no such file, it is of another kind, or what it holds cannot be used.
    """
    if isinstance(source, Graph):
        return source
    both = bool(symmetrize)
    found = _Found("pyg", Path()) if is_pyg(source) else _find(source)
    _check_options(
        found.kind,
        {
            "ignore_weights": ignore_weights,
            "label": label is not None,
            "features": features is not None,
            "node_id": node_id != "id",
            "source_column": source_column != "source",
            "target_column": target_column != "target",
            "split_column": split_column is not None,
            "weight_column": weight_column is not None,
            "classes": classes is not None,
            "pyg_split": pyg_split is not None,
        },
    )
    if found.kind == "pyg":
        graph = from_pyg(
            cast("Data", source),
            directed=directed,
            symmetrize=both,
            ignore_weights=ignore_weights,
            classes=classes,
            split=pyg_split,
        )
    elif found.kind == "npz":
        graph = read_npz(
            found.path,
            directed=directed,
            symmetrize=both,
            ignore_weights=ignore_weights,
            classes=classes,
            max_bytes=max_bytes,
        )
    elif found.kind == "mat":
        graph = read_facebook100(
            found.path,
            label=label or "year",
            features=features,
            directed=directed,
            symmetrize=both,
            ignore_weights=ignore_weights,
            max_bytes=max_bytes,
        )
    elif found.kind == "planetoid":
        graph = read_planetoid(
            found.path, found.name, directed=directed, symmetrize=both, max_bytes=max_bytes
        )
    elif found.kind == "musae":
        graph = read_musae(
            found.path,
            found.name,
            label=label,
            directed=directed,
            symmetrize=symmetrize,
            classes=classes,
            max_bytes=max_bytes,
        )
    else:
        graph = read_tables(
            found.path,
            found.edges,
            Columns(
                node_id=node_id,
                label=label or "label",
                features=features,
                split=split_column,
                source=source_column,
                target=target_column,
                weight=weight_column,
            ),
            directed=directed,
            symmetrize=both,
            ignore_weights=ignore_weights,
            classes=classes,
            max_bytes=max_bytes,
        )
    return _checked(graph)


_OPTIONS = {
    "npz": {"ignore_weights", "classes"},
    "pyg": {"ignore_weights", "classes", "pyg_split"},
    "mat": {"ignore_weights", "label", "features"},
    "planetoid": set[str](),
    "musae": {"label", "classes"},
    "tables": {
        "ignore_weights",
        "label",
        "features",
        "node_id",
        "source_column",
        "target_column",
        "split_column",
        "weight_column",
        "classes",
    },
}


def _check_options(kind: str, given: dict[str, bool]) -> None:
    """Refuses options that the layout has no use for, rather than ignoring what the user said."""
    idle = [option for option, used in given.items() if used and option not in _OPTIONS[kind]]
    if idle:
        raise GraphError(
            f"{', '.join(idle)} has no meaning for this layout ({kind})",
            why="it would be silently ignored",
            remedy=f"leave it out; {kind} takes "
            + (", ".join(sorted(_OPTIONS[kind])) or "no options of its own"),
        )


@dataclass(frozen=True)
class _Found:
    """What a source is: its layout, and where the reader of that layout should look."""

    kind: str
    path: Path
    name: str = ""
    edges: Path = Path()

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


def _find(source: object) -> _Found:
    if isinstance(source, tuple):
        return _pair(source)
    path = _existing(source)
    if not path.is_dir():
        return _kind_of_file(path)
    found = [_Found("planetoid", path, name) for name in planetoid_names(path)]
    found += [_Found("musae", path, name) for name in musae_names(path)]
    tables = _tables_in(path)
    if tables is not None:
        found.append(tables)
    if not found:
        raise GraphError(f"{path} holds no graph", remedy=f"Tacit loads {_LAYOUTS}")
    if len(found) > 1:
        raise GraphError(
            f"{path} holds {len(found)} graphs",
            why=", ".join(str(one) for one in found),
            remedy="pass one of its files, such as ind.cora.graph or musae_ES_edges.csv",
        )
    return found[0]


def _checked(graph: Graph) -> Graph:
    brings_split = bool(np.any(graph.train | graph.val | graph.test))
    return check_training(graph) if brings_split else graph


def _existing(source: object) -> Path:
    if not isinstance(source, str | Path):
        raise GraphError(
            f"a {type(source).__name__} is not a graph",
            remedy=f"Tacit loads {_LAYOUTS}",
        )
    path = Path(source).expanduser()
    try:
        found = path.exists()
    except (OSError, ValueError) as error:
        raise GraphError(f"{str(path)[:200]!r} is not a path", why=str(error)) from error
    if not found:
        raise GraphError(f"{path} does not exist", remedy="check the path and its spelling")
    return path


def _pair(source: tuple[object, ...]) -> _Found:
    if len(source) != 2:
        raise GraphError(
            f"a tuple of {len(source)} is not a pair of tables",
            remedy="write load((nodes, edges))",
        )
    nodes, edges = (_existing(part) for part in source)
    for path in (nodes, edges):
        if not path.is_file() or not path.name.lower().endswith(SUFFIXES):
            raise GraphError(
                f"{path.name} is not a table",
                why=f"a table is a file that ends in {', '.join(SUFFIXES)}",
            )
    return _Found("tables", nodes, edges=edges)


def _tables_in(folder: Path) -> _Found | None:
    """The nodes and edges tables of a folder, or None when it has neither."""
    found: dict[str, list[Path]] = {}
    for stem in ("nodes", "edges"):
        candidates = (folder / f"{stem}{suffix}" for suffix in SUFFIXES)
        found[stem] = [path for path in candidates if path.is_file()]
    if not any(found.values()):
        return None
    for stem, paths in found.items():
        if len(paths) != 1:
            raise GraphError(
                f"{folder} has {len(paths)} tables of {stem}",
                why=", ".join(path.name for path in paths) or f"no {stem}.csv or {stem}.parquet",
                remedy="name the two files: load((nodes, edges))",
            )
    return _Found("tables", found["nodes"][0], edges=found["edges"][0])


def _kind_of_file(path: Path) -> _Found:
    """What a file is, by its first bytes, and the path to read: for some its folder."""
    name = path.name
    if name.startswith("ind.") and len(name.split(".")) >= 3:
        stem = name.removesuffix(".test.index") if name.endswith(".test.index") else path.stem
        return _Found("planetoid", path.parent, stem.removeprefix("ind."))
    for ending in ("_edges.csv", "_target.csv", "_features.json"):
        if name.startswith("musae_") and name.endswith(ending):
            stem = name.removeprefix("musae_").removesuffix(ending)
            return _Found("musae", path.parent, stem)
    if not path.is_file():
        raise GraphError(f"{path} is not a regular file")
    try:
        if is_npz(path):
            return _Found("npz", path)
        if is_mat(path):
            return _Found("mat", path)
        with path.open("rb") as stream:
            start = stream.read(4)
    except OSError as error:
        raise GraphError(f"{path} cannot be read", why=str(error)) from error
    if not start:
        raise GraphError(f"{path.name} is empty", remedy="fetch or write the file again")
    if name.lower().endswith(SUFFIXES):
        raise GraphError(
            f"{name} is one table, and a graph is two",
            remedy="pass both: load((nodes, edges)), or a folder with nodes.csv and edges.csv",
        )
    foreign = next((kind for magic, kind in _FOREIGN.items() if start.startswith(magic)), None)
    damaged = "its first bytes are not those of a zip archive, so the npz is truncated or damaged"
    raise GraphError(
        f"{name} is not a graph file",
        why=f"it is {foreign}" if foreign else (damaged if path.suffix == ".npz" else ""),
        remedy=f"Tacit loads {_LAYOUTS}",
    )
