"""A paper's tables and figures, run from a configuration and put beside the paper's own figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import PlanError
from tacit.study.cells import Cell, OnCell, carry_out
from tacit.study.compare import UNIT_WORDS, Point, points
from tacit.study.folders import write_whole
from tacit.study.paper import Line, Study, lines_of
from tacit.study.pictures import Panel, Series, draw
from tacit.study.recipe import Recipe, number

if TYPE_CHECKING:
    from rich.table import Table

    from tacit.graph import Graph
    from tacit.privacy import Ledger

REPORT_FILE = "report.md"


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
            for family in dict.fromkeys(x.family for x in self.lines if x.experiment == name)
            for grid in (_grid(self, name, family),)
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
    files = {name: path for name in study.data if (path := data / f"{name}.npz").is_file()}
    there = [*files, *study.generated]
    if not there:
        raise PlanError(
            f"{data} holds none of the study's data sets",
            why=", ".join(f"{name}.npz" for name in study.data),
            remedy="name the folder that holds them with --data",
        )
    names = only or (study.quick.get("only") if quick else None) or list(study.experiments)
    kept = [n for n in there if not quick or n in study.quick.get("data", there)] or there[:1]
    lines = tuple(line for name in names for line in lines_of(study, name, kept))
    if not lines:
        raise PlanError(
            f"{data} holds no data set of {', '.join(names)}",
            why=f"found: {', '.join(files) or 'none'}",
            remedy="name the folder that holds them with --data, or other experiments with --only",
        )
    times = repeats or (study.quick.get("repeats", 1) if quick else study.repeats)
    recipes = list(dict.fromkeys((line.data, line.recipe) for line in lines))
    cells = [
        Cell(name, recipe, repeat, study.seed + repeat, study.split)
        for name in dict.fromkeys(at for at, _ in recipes)
        for repeat in range(times)
        for at, recipe in recipes
        if at == name
    ]
    graphs: dict[str, Graph] = {}

    def graph(name: str) -> Graph:
        from tacit.graph import load

        if name not in graphs:
            graphs[name] = load(files[name]) if name in files else study.generate(name)
        return graphs[name]

    folder.mkdir(parents=True, exist_ok=True)
    results = carry_out(cells, folder, graph, ledger, on_cell=on_cell)
    found = {(point.data, point.recipe): point for point in points(results)}
    missing = [name for name in study.data if name not in files]
    used = dict.fromkeys(line.family for line in lines)
    remarks = tuple(f"{name}: {study.words(name)}." for name in used)
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
        if _drawn(study, name) and any(line.experiment == name for line in lines)
    }
    made = Reproduced(study, lines, found, remarks, folder / REPORT_FILE, pictures)
    write_whole(made.report, _markdown(made))
    return made


def _shown(point: Point) -> str:
    text = f"{100 * point.mean:.1f}"
    return text if point.repeats < 2 else f"{text} ± {100 * (point.high - point.mean):.1f}"


def _drawn(study: Study, name: str) -> bool:
    """Whether an experiment has an axis; a plain table has none."""
    experiment = study.experiments[name]
    return "rows" not in experiment or any(data in study.generated for data in experiment["data"])


def _grid(made: Reproduced, name: str, family: str) -> tuple[str, list[str], list[list[str]]]:
    if _drawn(made.study, name):
        return _sweep(made, name, family)
    return _table(made, name, family)


def _table(made: Reproduced, name: str, data: str) -> tuple[str, list[str], list[list[str]]]:
    study, lines = made.study, [x for x in made.lines if (x.experiment, x.data) == (name, data)]
    figures = study.expected.get(name, {}).get(data, {})
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
                *(_shown(made.point(mine[way])) if way in mine else "" for way in ways),
            ]
        )
    heads = ["method", "ε", *sources, *(study.ways[way]["words"] for way in ways)]
    return f"{study.experiments[name]['title']}, {data}", heads, rows


def _sweep(made: Reproduced, name: str, family: str) -> tuple[str, list[str], list[list[str]]]:
    lines = [line for line in made.lines if (line.experiment, line.family) == (name, family)]
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
    return f"{made.study.experiments[name]['title']}, {family}", heads, rows


_AXES = {
    "hops": "hops K",
    "max_degree": "degree bound D",
    "k": "links that change, k",
    "phi": "φ",
    "queries": "queries |Q|",
}


def _axis(study: Study, name: str) -> str:
    """What stands below: the family's varied argument, the setting swept, or epsilon."""
    experiment = study.experiments[name]
    varied = [study.generated[d]["vary"] for d in experiment["data"] if d in study.generated]
    swept = varied[0] if varied else experiment.get("setting")
    return _AXES.get(str(swept), "privacy budget ε")


def _panels(made: Reproduced, name: str) -> list[Panel]:
    lines = [line for line in made.lines if line.experiment == name]
    labels = list(dict.fromkeys(line.label for line in lines))
    panels = []
    for family, unit, way in dict.fromkeys((x.family, x.recipe.unit, x.way) for x in lines):
        series = []
        for style, label in enumerate(labels):
            mine = sorted(
                (
                    x
                    for x in lines
                    if (x.family, x.recipe.unit, x.way, x.label) == (family, unit, way, label)
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
        title = f"{UNIT_WORDS[unit]}\n{made.study.ways[way]['words']}, {family}"
        axis = _axis(made.study, name)
        panels.append(Panel(title, axis, tuple(series), x_log=axis not in ("hops K", "φ")))
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
