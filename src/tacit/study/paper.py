"""A paper's configuration: which recipes make up its tables and figures, on which data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import PlanError
from tacit.methods import CATALOGUE
from tacit.study.recipe import Recipe, number, parse_split, setting_types, typed_settings

if TYPE_CHECKING:
    from tacit.graph import Graph

CONFIG_FILE, EXPECTED_FILE = "config.toml", "expected.json"


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
        generated: Families of generated graphs by name: ``words``; ``kind``, a function of
            :mod:`tacit.graph.synthetic`; ``vary``, the argument that ``values`` are given to; and
            any other argument of that function.
        ways: In which ways each recipe runs: words, accounting, settings.
        experiments: Tables and sweeps by name. A table has ``rows``: label, method, unit, epsilon
            and, where it has any, settings and ways of its own. A sweep has ``epsilons`` by unit,
            ``lines`` (methods, or tables of a method, a label and settings), and a ``setting`` with
            its ``values``.
        quick: What ``--quick`` leaves.
        expected: The paper's figures.
    """

    title: str
    repeats: int
    seed: int
    split: tuple[float, float, float]
    delta: Mapping[str, float]
    data: Mapping[str, str]
    generated: Mapping[str, Mapping[str, Any]]
    ways: Mapping[str, Mapping[str, Any]]
    experiments: Mapping[str, Mapping[str, Any]]
    quick: Mapping[str, Any]
    expected: Mapping[str, Any]

    def words(self, family: str) -> str:
        """What a data set or a family of generated graphs is."""
        if family in self.generated:
            return str(self.generated[family].get("words", "generated"))
        return self.data[family]

    def members(self, family: str) -> list[tuple[str, float | None]]:
        """The graphs of a family and the value each was made with; a data set is its own."""
        if family not in self.generated:
            return [(family, None)]
        made = self.generated[family]
        return [(f"{family} {made['vary']}={v:g}", float(v)) for v in made["values"]]

    def generate(self, member: str) -> Graph:
        """The graph of a family's member."""
        from tacit.graph import synthetic

        for family, made in self.generated.items():
            for name, value in self.members(family):
                if name != member:
                    continue
                own = ("words", "kind", "vary", "values")
                options = {key: v for key, v in made.items() if key not in own}
                graph: Graph = getattr(synthetic, made["kind"])(**{made["vary"]: value, **options})
                return graph
        raise PlanError(f"the study has no data named {member!r}")


@dataclass(frozen=True)
class Line:
    """One recipe of an experiment and what it is called there.

    Attributes:
        experiment: The table or sweep.
        family: The data set or family of generated graphs.
        data: The graph itself.
        way: In which way it runs.
        label: What the row or curve is called.
        x: Where it stands on a sweep's axis.
        recipe: What runs.
    """

    experiment: str
    family: str
    data: str
    way: str
    label: str
    x: float | bool
    recipe: Recipe


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
            data=data.get("data", {}),
            generated=data.get("generated", {}),
            ways=data["ways"],
            experiments=data["experiments"],
            quick=data.get("quick", {}),
            expected=expected,
        )
    except (OSError, ValueError, KeyError) as error:
        raise PlanError(f"{path} is not a configuration of a study", why=repr(error)) from error


def lines_of(study: Study, name: str, kept: Sequence[str]) -> list[Line]:
    """Every recipe of an experiment on the families that are kept."""
    try:
        experiment = study.experiments[name]
    except KeyError as error:
        raise PlanError(
            f"there is no experiment {name!r}", remedy=f"one of {', '.join(study.experiments)}"
        ) from error
    made = []
    for family in (d for d in experiment["data"] if d in kept):
        for data, value in study.members(family):
            for way in experiment["ways"]:
                for row in experiment.get("rows", ()):
                    if way not in row.get("ways", experiment["ways"]):
                        continue
                    recipe = _recipe(
                        study, way, row["method"], row["unit"], row["epsilon"], row.get("settings")
                    )
                    x = recipe.epsilon if value is None else value
                    made.append(Line(name, family, data, way, row["label"], x, recipe))
                made += _swept(study, name, family, data, value, way)
    return made


def _swept(
    study: Study, name: str, family: str, data: str, at: float | None, way: str
) -> list[Line]:
    made = []
    experiment = study.experiments[name]
    setting, values = experiment.get("setting"), experiment.get("values", (None,))
    for unit, budgets in experiment.get("epsilons", {}).items():
        for line in experiment.get("lines", ("gap",)):
            own = line if isinstance(line, Mapping) else {"method": line}
            method = own["method"]
            for value in values:
                for epsilon in budgets:
                    chosen = {
                        **own.get("settings", {}),
                        **({} if setting is None else {setting: value}),
                    }
                    recipe = _recipe(study, way, method, unit, epsilon, chosen)
                    label, x = own.get("label", CATALOGUE[method].title), recipe.epsilon
                    if at is not None:
                        label, x = f"{label}, ε = {number(recipe.epsilon)}", at
                    elif isinstance(value, bool):
                        label = f"{setting} {'on' if value else 'off'}"
                    elif setting is not None:
                        several = len(experiment.get("lines", ("gap",))) > 1
                        label = f"{label}, " if several else ""
                        label, x = f"{label}ε = {number(recipe.epsilon)}", float(value)
                    made.append(Line(name, family, data, way, label, x, recipe))
    return made


def _recipe(
    study: Study,
    way: str,
    method: str,
    unit: str,
    epsilon: float,
    chosen: Mapping[str, Any] | None,
) -> Recipe:
    made = Recipe(
        method,
        unit,
        float(epsilon),
        study.delta[unit],
        accounting=study.ways[way]["accounting"],
    )
    # A way's settings go to every method that knows them: the paper's network width to a baseline.
    known = setting_types(method)
    shared = {k: v for k, v in study.ways[way]["settings"].items() if k in known}
    return made.with_settings(typed_settings(method, {**shared, **(chosen or {})}))
