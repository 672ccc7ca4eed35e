"""A paper's tables and figures, run from a configuration and put beside the paper's own figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import PlanError
from tacit.study.cells import Cell, OnCell, carry_out
from tacit.study.compare import METHOD_WORDS, UNIT_WORDS, Point, points
from tacit.study.folders import write_whole
from tacit.study.pictures import Panel, Series, draw
from tacit.study.recipe import Recipe, number, parse_split, typed_settings

if TYPE_CHECKING:
    from rich.table import Table

    from tacit.graph import Graph
    from tacit.privacy import Ledger

CONFIG_FILE, EXPECTED_FILE, REPORT_FILE = "config.toml", "expected.json", "report.md"


@dataclass(frozen=True)
class Study:
    """A configuration as read.

    Attributes:
        title: Of the paper.
        repeats: Seeds.
        seed: The first of them.
        split: Shares of training, validation and test nodes.
        delta: By unit.
        data: What each data set is, by file name without ending.
        ways: In which ways each recipe runs: words, accounting, settings.
        experiments: Tables and sweeps by name.
        quick: What ``--quick`` leaves.
        expected: The paper's figures.
    """

    title: str
    repeats: int
    seed: int
    split: tuple[float, float, float]
    delta: Mapping[str, float]
    data: Mapping[str, str]
    ways: Mapping[str, Mapping[str, Any]]
    experiments: Mapping[str, Mapping[str, Any]]
    quick: Mapping[str, Any]
    expected: Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """One recipe of an experiment and what it is called there."""

    experiment: str
    data: str
    way: str
    label: str
    x: float | bool
    recipe: Recipe


@dataclass(frozen=True)
class Reproduced:
    """What a reproduction came to.

    Attributes:
        study: What was run.
        lines: Every recipe with its place.
        found: Mean and interval of each line.
        remarks: What the reader has to know, in sentences.
        report: The Markdown file with all tables.
        pictures: PNG files by experiment.
    """

    study: Study
    lines: tuple[Line, ...]
    found: Mapping[tuple[str, Recipe], Point]
    remarks: tuple[str, ...]
    report: Path
    pictures: Mapping[str, Path]

    def point(self, line: Line) -> Point:
        """The mean of a line."""
        return self.found[line.data, line.recipe]

    def grids(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Every table as title, heads and rows of text."""
        return [
            grid
            for name in dict.fromkeys(line.experiment for line in self.lines)
            for data in dict.fromkeys(x.data for x in self.lines if x.experiment == name)
            for grid in (_table2(self, data) if name == "table2" else _sweep(self, name, data),)
        ]

    def tables(self) -> list[Table]:
        """Every table for a terminal."""
        from rich import box
        from rich.table import Table

        made = []
        for title, heads, rows in self.grids():
            table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
            for index, head in enumerate(heads):
                table.add_column(head, justify="left" if index == 0 else "right")
            for row in rows:
                table.add_row(*row)
            made.append(table)
        return made

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "title": self.study.title,
            "report": str(self.report),
            "pictures": {name: str(path) for name, path in self.pictures.items()},
            "remarks": list(self.remarks),
            "expected": self.study.expected,
            "lines": [
                {
                    "experiment": line.experiment,
                    "data": line.data,
                    "way": line.way,
                    "label": line.label,
                    "x": line.x,
                    "unit": line.recipe.unit,
                    "epsilon": line.recipe.epsilon,
                    "mean": self.point(line).mean,
                    "low": self.point(line).low,
                    "high": self.point(line).high,
                    "repeats": self.point(line).repeats,
                }
                for line in self.lines
            ],
        }


def find_config(paper: str, given: Path | None) -> Path:
    """The paper's configuration: the one given, in ``papers/`` here, or in Tacit's checkout."""
    if given is not None:
        return given
    checkout = Path(__file__).resolve().parents[3]
    for root in (Path.cwd(), checkout):
        path = root / "papers" / paper / CONFIG_FILE
        if path.is_file():
            return path
    raise PlanError(
        f"there is no papers/{paper}/{CONFIG_FILE} here",
        why="papers are part of Tacit's checkout, not of an installed wheel",
        remedy="run this in a checkout, or name the file with --config",
    )


def read_study(path: Path) -> Study:
    """Read a configuration and the expected figures beside it.

    Raises:
        PlanError: The file cannot be read or lacks something.
    """
    import tomllib

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        beside = path.with_name(EXPECTED_FILE)
        expected = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else {}
        return Study(
            title=data["title"],
            repeats=data["repeats"],
            seed=data["seed"],
            split=parse_split(data["split"]),
            delta=data["delta"],
            data=data["data"],
            ways=data["ways"],
            experiments=data["experiments"],
            quick=data.get("quick", {}),
            expected=expected,
        )
    except (OSError, ValueError, KeyError) as error:
        raise PlanError(f"{path} is not a configuration of a study", why=repr(error)) from error


def reproduce(
    study: Study,
    data: Path,
    folder: Path,
    ledger: Ledger,
    *,
    only: Sequence[str] | None = None,
    quick: bool = False,
    repeats: int | None = None,
    on_cell: OnCell | None = None,
) -> Reproduced:
    """Run a study on the data sets that are there; finished cells are not run again.

    Args:
        study: What to run.
        data: Folder with the data sets.
        folder: Where results go.
        ledger: Where runs are charged.
        only: Which experiments; all if None.
        quick: One seed and few cells.
        repeats: Seeds; the study's if None.
        on_cell: Told which cell starts.

    Returns:
        Tables, pictures, and what to know about them.
    """
    there = {name: path for name in study.data if (path := data / f"{name}.npz").is_file()}
    if not there:
        raise PlanError(
            f"{data} holds none of the study's data sets",
            why=", ".join(f"{name}.npz" for name in study.data),
            remedy="name the folder that holds them with --data",
        )
    names = only or (study.quick.get("only") if quick else None) or list(study.experiments)
    kept = [n for n in there if not quick or n in study.quick.get("data", there)] or list(there)[:1]
    lines = tuple(line for name in names for line in _lines(study, name, kept))
    times = repeats or (study.quick.get("repeats", 1) if quick else study.repeats)
    recipes = list(dict.fromkeys((line.data, line.recipe) for line in lines))
    cells = [
        Cell(name, recipe, repeat, study.seed + repeat, study.split)
        for name in kept
        for repeat in range(times)
        for at, recipe in recipes
        if at == name
    ]
    graphs: dict[str, Graph] = {}

    def graph(name: str) -> Graph:
        from tacit.graph import load

        if name not in graphs:
            graphs[name] = load(there[name])
        return graphs[name]

    folder.mkdir(parents=True, exist_ok=True)
    results = carry_out(cells, folder, graph, ledger, on_cell=on_cell)
    found = {(point.data, point.recipe): point for point in points(results)}
    missing = [name for name in study.data if name not in there]
    remarks = tuple(f"{name}: {study.data[name]}." for name in kept)
    remarks += tuple(
        f"{name}: {claim}"
        for name, claim in study.expected.get("claims", {}).items()
        if name in names
    )
    if missing:
        remarks += (f"Not found in {data}: {', '.join(missing)}.",)
    remarks += (f"Mean and 95 % t interval over {times} splits and seeds.",)
    made = Reproduced(study, lines, found, remarks, folder / REPORT_FILE, {})
    pictures = {
        name: draw(_panels(made, name), folder / f"{name}.png", note=made.remarks[-1])
        for name in names
        if name != "table2" and any(line.experiment == name for line in lines)
    }
    made = Reproduced(study, lines, found, remarks, folder / REPORT_FILE, pictures)
    write_whole(made.report, _markdown(made))
    return made


def _lines(study: Study, name: str, kept: Sequence[str]) -> list[Line]:
    try:
        experiment = study.experiments[name]
    except KeyError as error:
        raise PlanError(
            f"there is no experiment {name!r}", remedy=f"one of {', '.join(study.experiments)}"
        ) from error
    made = []
    for data in (d for d in experiment["data"] if d in kept):
        for way in experiment["ways"]:
            for row in experiment.get("rows", ()):
                recipe = _recipe(study, way, row["method"], row["unit"], row["epsilon"], {})
                made.append(Line(name, data, way, row["label"], recipe.epsilon, recipe))
            made += _swept(study, name, experiment, data, way)
    return made


def _swept(
    study: Study, name: str, experiment: Mapping[str, Any], data: str, way: str
) -> list[Line]:
    made = []
    setting, values = experiment.get("setting"), experiment.get("values", (None,))
    for unit, budgets in experiment.get("epsilons", {}).items():
        for method in experiment.get("lines", ("gap",)):
            for value in values:
                for epsilon in budgets:
                    chosen = {} if setting is None else {setting: value}
                    recipe = _recipe(study, way, method, unit, epsilon, chosen)
                    if setting is None:
                        label, x = METHOD_WORDS[method], recipe.epsilon
                    elif isinstance(value, bool):
                        label, x = f"{setting} {'on' if value else 'off'}", recipe.epsilon
                    else:
                        label, x = f"ε = {number(recipe.epsilon)}", float(value)
                    made.append(Line(name, data, way, label, x, recipe))
    return made


def _recipe(
    study: Study, way: str, method: str, unit: str, epsilon: float, chosen: Mapping[str, Any]
) -> Recipe:
    made = Recipe(
        method,
        unit,
        float(epsilon),
        study.delta[unit],
        accounting=study.ways[way]["accounting"],
    )
    return made.with_settings(typed_settings(method, {**study.ways[way]["settings"], **chosen}))


def _shown(point: Point) -> str:
    text = f"{100 * point.mean:.1f}"
    return text if point.repeats < 2 else f"{text} ± {100 * (point.high - point.mean):.1f}"


def _table2(made: Reproduced, data: str) -> tuple[str, list[str], list[list[str]]]:
    study, lines = made.study, [x for x in made.lines if (x.experiment, x.data) == ("table2", data)]
    figures = study.expected.get("table2", {}).get(data, {})
    sources = list(dict.fromkeys(source for row in figures.values() for source in row))
    ways = list(dict.fromkeys(line.way for line in lines))
    rows = []
    for label in dict.fromkeys(line.label for line in lines):
        mine = {line.way: line for line in lines if line.label == label}
        recipe = next(iter(mine.values())).recipe
        free = recipe.method == "mlp" and recipe.unit == "edge"
        theirs = [figures.get(label, {}).get(source) for source in sources]
        rows.append(
            [
                label,
                "0" if free else number(recipe.epsilon),
                *("" if value is None else f"{value:.1f}" for value in theirs),
                *(_shown(made.point(mine[way])) for way in ways),
            ]
        )
    heads = ["method", "ε", *sources, *(study.ways[way]["words"] for way in ways)]
    return f"{study.experiments['table2']['title']}, {data}", heads, rows


def _sweep(made: Reproduced, name: str, data: str) -> tuple[str, list[str], list[list[str]]]:
    lines = [line for line in made.lines if (line.experiment, line.data) == (name, data)]
    xs = sorted({float(line.x) for line in lines})
    groups: dict[tuple[str, str, str], dict[float, Line]] = {}
    for line in lines:
        group = groups.setdefault((line.recipe.unit, line.way, line.label), {})
        group[float(line.x)] = line
    rows = [
        [
            f"{unit}, {label} ({way})",
            *(_shown(made.point(group[x])) if x in group else "" for x in xs),
        ]
        for (unit, way, label), group in groups.items()
    ]
    heads = [_axis(made.study, name), *(number(x) for x in xs)]
    return f"{made.study.experiments[name]['title']}, {data}", heads, rows


def _axis(study: Study, name: str) -> str:
    setting = study.experiments[name].get("setting")
    return {"hops": "hops K", "max_degree": "degree bound D"}.get(str(setting), "privacy budget ε")


def _panels(made: Reproduced, name: str) -> list[Panel]:
    lines = [line for line in made.lines if line.experiment == name]
    labels = list(dict.fromkeys(line.label for line in lines))
    panels = []
    for data, unit, way in dict.fromkeys((x.data, x.recipe.unit, x.way) for x in lines):
        series = []
        for style, label in enumerate(labels):
            mine = sorted(
                (
                    x
                    for x in lines
                    if (x.data, x.recipe.unit, x.way, x.label) == (data, unit, way, label)
                ),
                key=lambda line: float(line.x),
            )
            if not mine:
                continue
            found = [made.point(line) for line in mine]
            series.append(
                Series(
                    label,
                    style,
                    tuple(float(line.x) for line in mine),
                    tuple(point.mean for point in found),
                    tuple(point.low for point in found),
                    tuple(point.high for point in found),
                )
            )
        title = f"{UNIT_WORDS[unit]}\n{made.study.ways[way]['words']}, {data}"
        axis = _axis(made.study, name)
        panels.append(Panel(title, axis, tuple(series), x_log=axis != "hops K"))
    return panels


def _markdown(made: Reproduced) -> str:
    parts = [f"# {made.study.title}", ""]
    for title, heads, rows in made.grids():
        parts += [f"## {title}", "", f"| {' | '.join(heads)} |"]
        parts += ["|" + "---|" * len(heads)]
        parts += [f"| {' | '.join(row)} |" for row in rows] + [""]
    for name, path in made.pictures.items():
        parts += [f"![{made.study.experiments[name]['title']}]({path.name})", ""]
    parts += [f"- {remark}" for remark in made.remarks]
    return "\n".join(parts) + "\n"
