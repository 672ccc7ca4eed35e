"""Accuracy against epsilon, or against k: methods by units by budgets, over splits and seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import PlanError
from tacit.methods import CATALOGUE
from tacit.study.cells import RESULTS_FILE, Cell, OnCell, OnStage, Result, carry_out
from tacit.study.pictures import Panel, Series, draw
from tacit.study.recipe import DELTA, Recipe, number, setting_types, typed_settings

if TYPE_CHECKING:
    from tacit.graph import Graph
    from tacit.privacy import Ledger

PICTURE_FILE = "accuracy.png"
UNIT_WORDS = {
    "edge": "Edge privacy: one link",
    "node": "Node privacy: one own record",
    "node-all": "Node privacy: one node with all its links",
    "k-neighbours": "Node privacy: one record with k links each way",
}
METHOD_WORDS = {name: entry.title for name, entry in CATALOGUE.items()}


@dataclass(frozen=True)
class Grid:
    """What to compare.

    Attributes:
        methods: Names of methods.
        units: Names of units.
        epsilons: Budgets; infinity for none.
        repeats: How often each is run, each time with its own split and seed.
        deltas: Delta by unit; :data:`~tacit.study.recipe.DELTA` where missing.
        seed: Of the first repeat; the others count on.
        split: Shares of training, validation and test nodes.
        relation: Which inputs count as neighbours.
        accounting: ``sound`` or ``paper``.
        noise: ``secure`` or ``seeded``.
        settings: Settings by name; one goes to every method and unit that knows it.
        ks: Links each way of the unit ``k-neighbours``; more than one draws accuracy against k.
    """

    methods: Sequence[str] = ("gap", "mlp")
    units: Sequence[str] = ("edge", "node")
    epsilons: Sequence[float] = (1.0, 4.0, 8.0)
    repeats: int = 3
    deltas: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    split: tuple[float, float, float] = (75, 10, 15)
    relation: str = "add-remove"
    accounting: str = "sound"
    noise: str = "secure"
    settings: Mapping[str, Any] = field(default_factory=dict)
    ks: Sequence[int] = ()

    def delta(self, unit: str) -> float:
        """The delta of a unit."""
        return self.deltas.get(unit, DELTA[unit])

    def cells(self, data: str) -> list[Cell]:
        """Every cell; the repeats come one after the other, so that each completes the picture."""
        if self.repeats < 1:
            raise PlanError(f"{self.repeats} repeats measure nothing", remedy="use 1 or more")
        if self.ks and ("k-neighbours" not in self.units or "k" in self.settings):
            raise PlanError(
                "ks were given, but not for the unit k-neighbours alone",
                why="k says how many of a node's links change with it",
                remedy="add the unit k-neighbours, and give k in one place only",
            )
        recipes = [
            Recipe(
                method,
                unit,
                epsilon,
                self.delta(unit),
                relation=self.relation,
                accounting=self.accounting,
                noise=self.noise,
            ).with_settings({**self._settings_of(method, unit), **k})
            for unit in self.units
            for method in self.methods
            for epsilon in self.epsilons
            for k in self._ks_of(unit)
        ]
        return [
            Cell(data, recipe, repeat, self.seed + repeat, self.split)
            for repeat in range(self.repeats)
            for recipe in recipes
        ]

    def _ks_of(self, unit: str) -> list[dict[str, int]]:
        return [{"k": k} for k in self.ks] if self.ks and unit == "k-neighbours" else [{}]

    def _settings_of(self, method: str, unit: str) -> dict[str, Any]:
        types = {name: setting_types(name) for name in self.methods}
        for key in self.settings:
            if not any(key in known for known in types.values()):
                typed_settings(self.methods[0], {key: self.settings[key]})
        mine = {k: v for k, v in self.settings.items() if k in types[method]}
        if not unit.startswith("node"):
            mine.pop("max_degree", None)
        if unit != "k-neighbours":
            mine.pop("k", None)
        return typed_settings(method, mine)


@dataclass(frozen=True)
class Point:
    """The mean of one recipe's repeats.

    Attributes:
        data: Name of the data set.
        recipe: What ran.
        repeats: How often.
        mean: Mean test accuracy.
        low: Lower end of the 95 % t interval of the mean; the mean itself for one repeat.
        high: Upper end.
        epsilon_spent: The largest epsilon that a statement gave.
    """

    data: str
    recipe: Recipe
    repeats: int
    mean: float
    low: float
    high: float
    epsilon_spent: float


@dataclass(frozen=True)
class Comparison:
    """What a comparison came to.

    Attributes:
        points: Means and intervals.
        results: Every cell.
        table: The CSV file.
        picture: The PNG file.
    """

    points: tuple[Point, ...]
    results: tuple[Result, ...]
    table: Path
    picture: Path


def compare(
    graph: Graph,
    grid: Grid,
    folder: Path,
    ledger: Ledger,
    *,
    on_cell: OnCell | None = None,
    on_stage: OnStage | None = None,
) -> Comparison:
    """Run a grid on a graph, resume what was interrupted, and draw accuracy.

    A unit is drawn against epsilon; with several ``ks`` the unit ``k-neighbours`` is drawn against
    k instead, one picture for each epsilon.

    Args:
        graph: The graph; its own split is replaced.
        grid: What to compare.
        folder: Where CSV and PNG go.
        ledger: Where every cell is charged.
        on_cell: Told which cell starts.
        on_stage: Told what is done within a cell.

    Returns:
        The points and where the files are.
    """
    results = carry_out(
        grid.cells(graph.name),
        folder,
        lambda name: graph,
        ledger,
        on_cell=on_cell,
        on_stage=on_stage,
    )
    found = points(results)
    picture = draw(panels(found), folder / PICTURE_FILE, note=_note(grid, graph.name))
    return Comparison(tuple(found), tuple(results), folder / RESULTS_FILE, picture)


def points(results: Iterable[Result]) -> list[Point]:
    """Mean and 95 % t interval over the repeats of each recipe on each data set."""
    groups: dict[tuple[str, Recipe], list[Result]] = {}
    for result in results:
        groups.setdefault((result.cell.data, result.cell.recipe), []).append(result)
    found = []
    for (data, recipe), members in groups.items():
        mean, low, high = interval([result.test_accuracy for result in members])
        spent = max(result.epsilon_spent for result in members)
        found.append(Point(data, recipe, len(members), mean, low, high, spent))
    return found


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval by Student's t; no width for a single value."""
    from scipy.special import stdtrit

    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return mean, mean, mean
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = float(stdtrit(count - 1, 0.975)) * deviation / math.sqrt(count)
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def panels(found: Sequence[Point]) -> list[Panel]:
    """One panel for each unit, one line for each method; no privacy is a dashed level."""
    units = list(dict.fromkeys(point.recipe.unit for point in found))
    methods = list(dict.fromkeys(point.recipe.method for point in found))
    made = []
    for unit in units:
        if len({k_of(p) for p in found if p.recipe.unit == unit}) > 1:
            made += _panels_by_k([p for p in found if p.recipe.unit == unit], methods)
            continue
        series = []
        for style, method in enumerate(methods):
            mine = [p for p in found if (p.recipe.unit, p.recipe.method) == (unit, method)]
            series.append(_series(METHOD_WORDS.get(method, method), style, mine))
        deltas = {point.recipe.delta for point in found if point.recipe.unit == unit}
        label = f"privacy budget ε per {unit} (δ = {', '.join(f'{d:g}' for d in sorted(deltas))})"
        made.append(Panel(UNIT_WORDS.get(unit, unit), label, tuple(series)))
    return made


def k_of(point: Point) -> int | None:
    """The k of a point, where its unit was given one."""
    k: int | None = dict(point.recipe.settings).get("k")
    return k


def _panels_by_k(found: Sequence[Point], methods: Sequence[str]) -> list[Panel]:
    """One panel for each epsilon, one line for each method, over k."""
    made = []
    for epsilon in dict.fromkeys(point.recipe.epsilon for point in found):
        here = [p for p in found if p.recipe.epsilon == epsilon]
        delta = ", ".join(f"{d:g}" for d in sorted({p.recipe.delta for p in here}))
        shown = "∞" if math.isinf(epsilon) else number(epsilon)
        title = f"One record with k links each way: ε = {shown}"
        series = []
        for style, method in enumerate(methods):
            mine = sorted(
                (p for p in here if p.recipe.method == method), key=lambda p: k_of(p) or 1
            )
            series.append(
                Series(
                    METHOD_WORDS.get(method, method),
                    style,
                    tuple(float(k_of(p) or 1) for p in mine),
                    tuple(p.mean for p in mine),
                    tuple(p.low for p in mine),
                    tuple(p.high for p in mine),
                )
            )
        made.append(Panel(title, f"links that change with a node, k (δ = {delta})", tuple(series)))
    return made


def _series(label: str, style: int, mine: Sequence[Point]) -> Series:
    finite = sorted(
        (p for p in mine if math.isfinite(p.recipe.epsilon)), key=lambda p: p.recipe.epsilon
    )
    level = next((p.mean for p in mine if math.isinf(p.recipe.epsilon)), None)
    return Series(
        label,
        style,
        tuple(p.recipe.epsilon for p in finite),
        tuple(p.mean for p in finite),
        tuple(p.low for p in finite),
        tuple(p.high for p in finite),
        level,
    )


def _note(grid: Grid, name: str) -> str:
    shown = f"{name}: mean and 95 % t interval over {grid.repeats} splits and seeds"
    if grid.repeats == 1:
        shown = f"{name}: a single split and seed"
    return f"{shown}, {grid.accounting} accounting, {grid.relation}"
