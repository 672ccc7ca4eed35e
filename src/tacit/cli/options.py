"""The options that several commands share, and how their text becomes values.

Nothing heavy may be imported here: ``tacit --help`` reads this module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from tacit.errors import TacitError
from tacit.methods import CATALOGUE, METHOD_NAMES
from tacit.study.recipe import DELTA, Recipe, parse_split, typed_settings

if TYPE_CHECKING:
    from tacit.graph import Graph, PublicFacts
    from tacit.privacy import Ledger

    MethodName: TypeAlias = str
    UnitName: TypeAlias = str
else:
    # The names are listed in one place each; typer checks them and prints them in the help.
    MethodName, UnitName = Literal[METHOD_NAMES], Literal[tuple(DELTA)]

_WHAT, _PROMISE, _MORE = "What to run", "What is promised", "Output"

Graphs = Annotated[
    list[str],
    typer.Argument(
        metavar="GRAPH",
        help="What [b]tacit.load[/] reads: an npz or .mat file, a folder of planetoid, MUSAE or "
        "table files, or two tables (nodes, edges).",
        show_default=False,
    ),
]
Method = Annotated[
    MethodName | None,
    typer.Option("--method", "-m", help="Method. \\[gap]", rich_help_panel=_WHAT),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="A setting of the method, also preset (tacit, paper), max_degree, and private_nodes, "
        "public_train, public_test to cut one file into a private and a public graph; may be "
        "repeated.",
        rich_help_panel=_WHAT,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="TOML file with any of these options by name and a table \\[set]; the command line "
        "goes first.",
        rich_help_panel=_WHAT,
    ),
]
Read = Annotated[
    list[str] | None,
    typer.Option(
        "--read",
        metavar="KEY=VALUE",
        help="How to read the graph, such as label=COLUMN, node_id=COLUMN, symmetrize=true, "
        "directed=true; may be repeated.",
        rich_help_panel=_WHAT,
    ),
]
Public = Annotated[
    str | None,
    typer.Option(
        "--public",
        "-p",
        metavar="GRAPH",
        help="A public graph with the same features and classes, for methods that learn for one; "
        "its labels are never read but to score.",
        rich_help_panel=_WHAT,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        "--split",
        metavar="A/B/C",
        help="Shares of training, validation and test nodes. \\[the graph's own, else 75/10/15]",
        rich_help_panel=_WHAT,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="S",
        help="Of split and weights; never of privacy noise, unless --noise seeded. \\[0]",
        rich_help_panel=_WHAT,
    ),
]
Unit = Annotated[
    UnitName | None,
    typer.Option(
        "--unit",
        "-u",
        help="One individual: a link; a node's own record; a node with all its links (needs "
        "--set max_degree=D for most methods); a record with k links each way (--set k=K). "
        "\\[edge; node-all for methods that learn for a public graph]",
        rich_help_panel=_PROMISE,
    ),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        "--epsilon", "-e", metavar="E", help="Budget; inf for no privacy.", rich_help_panel=_PROMISE
    ),
]
Delta = Annotated[
    float | None,
    typer.Option(
        "--delta",
        "-d",
        metavar="D",
        help="Public number. \\[1e-6 for edges, 1e-5 for nodes]",
        rich_help_panel=_PROMISE,
    ),
]
Relation = Annotated[
    Literal["add-remove", "replace"] | None,
    typer.Option(
        "--relation",
        help="Whether one individual is there or not, or has another record. \\[add-remove]",
        rich_help_panel=_PROMISE,
    ),
]
Accounting = Annotated[
    Literal["sound", "paper"] | None,
    typer.Option(
        "--accounting",
        help="What is proved, or what the paper claims (stamped, never released). \\[sound]",
        rich_help_panel=_PROMISE,
    ),
]
Noise = Annotated[
    Literal["secure", "seeded"] | None,
    typer.Option(
        "--noise",
        help="Fresh secret key, or from the seed (stamped, never released). \\[secure]",
        rich_help_panel=_PROMISE,
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        metavar="EPS",
        help="As the owner of the data: set what all runs on it may cost together, for this unit "
        "and delta, before this one is charged.",
        rich_help_panel=_PROMISE,
    ),
]
LedgerPath = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="FILE",
        help="Where spending is written down. \\[TACIT_LEDGER, else the user's data folder]",
        rich_help_panel=_PROMISE,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="End standard output with one JSON object; all else goes to standard error.",
        rich_help_panel=_MORE,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No progress, no panels.", rich_help_panel=_MORE),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Show the trace of an error.", rich_help_panel=_MORE),
]


@dataclass(frozen=True)
class Asked:
    """The options of one run, from the command line or a TOML file; None where neither says."""

    method: str | None = None
    unit: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    relation: str | None = None
    accounting: str | None = None
    noise: str | None = None
    split: str | None = None
    seed: int | None = None
    budget: float | None = None
    public: str | None = None

    def over(
        self,
        config: Path | None,
        given: Sequence[str] | None,
        *,
        table: dict[str, Any] | None = None,
    ) -> tuple[Asked, Recipe]:
        """These options completed by a file, and the recipe they make.

        Args:
            config: A TOML file.
            given: Settings as ``key=value``.
            table: What the file holds, where it was read already.

        Raises:
            typer.BadParameter: An option is missing, unknown or not of its type.
        """
        table = read_config(config) if table is None else dict(table)
        settings = {**table.pop("set", {}), **pairs(given, "--set")}
        values = {
            field.name: table.get(field.name)
            if getattr(self, field.name) is None
            else getattr(self, field.name)
            for field in fields(self)
        }
        if unknown := sorted(set(table) - set(values)):
            raise typer.BadParameter(
                f"{config} has no option {unknown[0]!r}; it may hold "
                f"{', '.join(values)} and a table [set]"
            )
        asked = _typed(Asked, values)
        method = asked.method or "gap"
        unit, epsilon = asked.unit or CATALOGUE[method].unit, asked.epsilon
        if epsilon is None:
            noise = CATALOGUE[method].noise
            if not settings.keys() & set(noise):
                other = f", or set the noise itself: --set {noise[0]}=..." if noise else ""
                raise typer.BadParameter(f"give --epsilon: a budget, or inf for no privacy{other}")
            epsilon = math.inf
        recipe = Recipe(
            method,
            unit,
            epsilon,
            asked.delta or DELTA[unit],
            relation=asked.relation or "add-remove",
            accounting=asked.accounting or "sound",
            noise=asked.noise or "secure",
        )
        return asked, recipe.with_settings(usage(lambda: typed_settings(method, settings)))


def read_config(path: Path | None) -> dict[str, Any]:
    """The contents of a TOML file."""
    import tomllib

    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path} cannot be read as TOML: {error}") from error


_CHOICES = {
    "method": METHOD_NAMES,
    "unit": tuple(DELTA),
    "relation": ("add-remove", "replace"),
    "accounting": ("sound", "paper"),
    "noise": ("secure", "seeded"),
}


def _typed(kind: type[Asked], values: dict[str, Any]) -> Asked:
    """Check what a file gave; the command line was checked already."""
    for name, value in values.items():
        if value is None:
            continue
        text = name in _CHOICES or name in ("split", "public")
        wanted: tuple[type, ...] = (str,) if text else (int,) if name == "seed" else (int, float)
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise typer.BadParameter(f"{name} cannot be {value!r}")
        if name in _CHOICES and value not in _CHOICES[name]:
            raise typer.BadParameter(
                f"{name} cannot be {value!r}: choose from {', '.join(_CHOICES[name])}"
            )
        if float in wanted and isinstance(value, int | float):
            values[name] = float(value)
    return kind(**values)


def pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """``key=value`` texts as a mapping; a later one replaces an earlier one."""
    found = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{option} takes KEY=VALUE, not {text!r}")
        found[key.strip()] = value.strip()
    return found


def usage(make: Any) -> Any:
    """What ``make`` returns; what it refuses is a mistake in the command line (exit code 2)."""
    try:
        return make()
    except TacitError as error:
        raise typer.BadParameter(str(error)) from error


def listed(text: str, what: str, choices: Sequence[str] = ()) -> list[str]:
    """Names from a list with commas, each one once."""
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    wrong = [name for name in names if choices and name not in choices]
    if wrong or not names:
        hint = f": choose from {', '.join(choices)}" if choices else ""
        raise typer.BadParameter(f"{what} cannot be {text!r}{hint}")
    return names


def numbers(text: str, what: str) -> list[float]:
    """Numbers from a list with commas, ``inf`` among them, each one once."""
    try:
        found = list(dict.fromkeys(float(part) for part in text.split(",") if part.strip()))
    except ValueError as error:
        raise typer.BadParameter(f"{what} takes numbers with commas, not {text!r}") from error
    if not found:
        raise typer.BadParameter(f"{what} is empty")
    return found


def shares(text: str | None) -> tuple[float, float, float] | None:
    """A split, if one was asked for."""
    if text is None:
        return None
    found: tuple[float, float, float] = usage(lambda: parse_split(text))
    return found


def load_graph(paths: Sequence[str], given: Sequence[str] | None) -> Graph:
    """The graph of one path, or of two tables."""
    from tacit.graph import load

    if len(paths) > 2:
        raise typer.BadParameter("GRAPH is one path, or two tables: nodes and edges")
    options = {key: _load_option(key, value) for key, value in pairs(given, "--read").items()}
    return load(paths[0] if len(paths) == 1 else (paths[0], paths[1]), **options)


def _load_option(key: str, value: str) -> Any:
    """One option of ``tacit.load``, as its signature types it."""
    from inspect import signature

    from pydantic import TypeAdapter, ValidationError

    from tacit.graph import load

    known = {name: p.annotation for name, p in signature(load).parameters.items()}
    names = sorted(set(known) - {"source", "pyg_split"})
    if key not in names:
        raise typer.BadParameter(f"--read has no {key!r}: choose from {', '.join(names)}")
    if key == "features":
        return [part.strip() for part in value.split("+")]
    kind: Any = str
    if "bool" in known[key]:
        kind = bool
    elif "int" in known[key]:
        kind = int
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise typer.BadParameter(f"--read {key} cannot be {value!r}") from error


def with_split(graph: Graph, ratios: tuple[float, float, float] | None, seed: int) -> Graph:
    """The graph with the split asked for, its own if it brings one, else 75/10/15."""
    from tacit.graph import split

    if ratios is None and graph.train.any():
        return graph
    return split(graph, ratios or (75, 10, 15), seed)


def with_public(graph: Graph, path: str | None, given: Sequence[str] | None) -> Graph:
    """The graph with the public one beside it, if there is one; both are read the same way."""
    from tacit.graph import beside

    return graph if path is None else beside(graph, load_graph([path], given))


def public_facts(
    recipe: Recipe,
    classes: int,
    directed: bool,
    *,
    nodes: int | None,
    train: int | None,
    features: int | None,
    public_nodes: int | None,
) -> PublicFacts:
    """The public facts of a plan; where a method needs none of a kind, 1 stands in its place.

    Raises:
        typer.BadParameter: One that the method cannot plan without is missing.
    """
    from tacit.graph import PublicFacts

    entry, sizes = CATALOGUE[recipe.method], usage(lambda: recipe.cut)
    if sizes is not None:
        nodes = train = sizes.private_nodes
        public_nodes = sizes.public_train + sizes.public_test
    given = {"nodes": nodes, "train": train, "features": features, "public_nodes": public_nodes}
    for name in entry.facts:
        if given[name] is None:
            option = name.replace("_", "-")
            raise typer.BadParameter(f"give --{option}: {recipe.method} plans with it")
    if public_nodes is not None and not entry.public:
        raise typer.BadParameter(f"{recipe.method} learns for no public graph")
    return PublicFacts(
        nodes=nodes or train or 1,
        train_nodes=train or nodes or 1,
        features=features or 1,
        classes=classes,
        directed=directed,
        public_nodes=public_nodes or int(entry.public),
    )


def open_ledger(path: Path | None) -> Ledger:
    """The ledger asked for, or the default one."""
    from tacit.privacy import Ledger

    return Ledger(path)
