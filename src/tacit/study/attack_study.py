"""LinkTeller against victims that learn on one graph and serve another: attack and utility.

Each cell is one victim at one budget, trained on one graph and serving another. Victims are charged
like any run, and so is each graph they serve; what the attack finds is private, for the owner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.errors import PlanError
from tacit.methods import METHOD_NAMES
from tacit.study.folders import append_line, locked, write_whole
from tacit.study.recipe import Recipe, number, parse_split, typed_settings

if TYPE_CHECKING:
    from rich.table import Table

    from tacit.attacks.linkteller import Probe
    from tacit.graph import Graph
    from tacit.methods import Method
    from tacit.methods.base import Progress
    from tacit.privacy import Ledger

CELLS_FILE, REPORT_FILE, PICTURE_FILE = "cells.jsonl", "report.md", "linkteller.png"
_ATTACK = ("AUC", "F1", "relative", "similar")
HEADS = ("victim", "ε", *_ATTACK, "accuracy", "macro F1")


@dataclass(frozen=True)
class Victim:
    """A line of the table: one method at several budgets.

    Attributes:
        label: What it is called.
        method: Its name.
        settings: By name.
        epsilons: Its budgets.
        own: Whether it learns on the very graph that it serves, because it knows its nodes alone.
    """

    label: str
    method: str
    settings: Mapping[str, Any]
    epsilons: tuple[float, ...]
    own: bool = False


@dataclass(frozen=True)
class AttackStudy:
    """A configuration as read.

    Attributes:
        title: Of the paper.
        train: The graph that victims learn on, by file name without ending.
        attacked: The graphs that they serve, with words.
        victims: Who is attacked.
        repeats: Seeds.
        seed: The first of them.
        split: Of the graph that victims learn on.
        delta: Of every budget.
        nodes: How many nodes are attacked.
        quick: What ``--quick`` leaves: ``attacked`` and ``epsilons``.
    """

    title: str
    train: str
    attacked: Mapping[str, str]
    victims: tuple[Victim, ...]
    repeats: int
    seed: int
    split: tuple[float, float, float]
    delta: float
    nodes: int
    quick: Mapping[str, Any]


@dataclass(frozen=True)
class Attacked:
    """One finished cell. Every figure but the first five is private."""

    label: str
    method: str
    epsilon: float
    data: str
    seed: int
    auc: float
    f1: float
    relative_f1: float
    similarity_f1: float
    accuracy: float
    macro_f1: float

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells this cell from all others."""
        return self.label, self.epsilon, self.data, self.seed


@dataclass(frozen=True)
class AttackReport:
    """What a study came to.

    Attributes:
        study: What was run.
        cells: Every finished cell asked for.
        report: The Markdown file.
        picture: Attack and utility against epsilon.
        remarks: What the reader has to know, in sentences.
    """

    study: AttackStudy
    cells: tuple[Attacked, ...]
    report: Path
    picture: Path
    remarks: tuple[str, ...]

    def grids(self) -> list[tuple[str, list[list[str]]]]:
        """A table for each attacked graph: its title, and its rows as text."""
        made = []
        for data in dict.fromkeys(cell.data for cell in self.cells):
            rows = [
                [label, number(epsilon), *(f"{100 * mean:.1f}" for mean in means)]
                for (label, epsilon), means in means_of(self.cells, data).items()
            ]
            made.append((f"LinkTeller on {data}, victims trained on {self.study.train} (%)", rows))
        return made

    def tables(self) -> list[Table]:
        """Every table for a terminal."""
        from rich import box
        from rich.table import Table

        made = []
        for title, rows in self.grids():
            table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
            for index, head in enumerate(HEADS):
                table.add_column(head, justify="right" if index else "left", no_wrap=True)
            for row in rows:
                table.add_row(*row)
            made.append(table)
        return made

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "title": self.study.title,
            "report": str(self.report),
            "pictures": {"linkteller": str(self.picture)},
            "remarks": list(self.remarks),
            "cells": [asdict(cell) for cell in self.cells],
        }


def means_of(cells: Sequence[Attacked], data: str) -> dict[tuple[str, float], tuple[float, ...]]:
    """Means over seeds of every figure, by victim and budget."""
    found: dict[tuple[str, float], list[Attacked]] = {}
    for cell in cells:
        if cell.data == data:
            found.setdefault((cell.label, cell.epsilon), []).append(cell)
    names = ("auc", "f1", "relative_f1", "similarity_f1", "accuracy", "macro_f1")
    return {
        key: tuple(float(np.mean([getattr(cell, name) for cell in mine])) for name in names)
        for key, mine in found.items()
    }


def read_attack_study(path: Path) -> AttackStudy | None:
    """Read a configuration; None if it is not one of attacks.

    Raises:
        PlanError: The file cannot be read or lacks something.
    """
    import tomllib

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        if data.get("kind") != "attack":
            return None
        return AttackStudy(
            title=data["title"],
            train=data["train"],
            attacked=data["attacked"],
            victims=tuple(
                Victim(
                    row["label"],
                    row["method"],
                    row.get("settings", {}),
                    tuple(float(epsilon) for epsilon in row["epsilons"]),
                    row.get("own", False),
                )
                for row in data["victims"]
            ),
            repeats=data["repeats"],
            seed=data["seed"],
            split=parse_split(data["split"]),
            delta=data["delta"],
            nodes=data["nodes"],
            quick=data.get("quick", {}),
        )
    except (OSError, ValueError, KeyError) as error:
        raise PlanError(f"{path} is not a configuration of a study", why=repr(error)) from error


def reproduce_attacks(
    study: AttackStudy,
    data: Path,
    folder: Path,
    ledger: Ledger,
    *,
    quick: bool = False,
    repeats: int | None = None,
    progress: Progress | None = None,
) -> AttackReport:
    """Train and attack every victim; finished cells are not run again.

    Args:
        study: What to run.
        data: Folder with the graphs.
        folder: Where victims and results go.
        ledger: Where victims, and the graphs they serve, are charged.
        quick: Few cells.
        repeats: Seeds; the study's if None.
        progress: Told what is done.
    """
    from tacit.graph import load, split

    wanted = [name for name in study.attacked if not quick or name in study.quick["attacked"]]
    there = [name for name in wanted if (data / f"{name}.npz").is_file()]
    if not there or not (data / f"{study.train}.npz").is_file():
        raise PlanError(
            f"{data} does not hold the study's data sets",
            why=", ".join(f"{name}.npz" for name in (study.train, *study.attacked)),
            remedy="name the folder that holds them with --data",
        )
    graphs = {name: load(data / f"{name}.npz") for name in (study.train, *there)}
    times = repeats or (1 if quick else study.repeats)
    todo = [
        (victim, epsilon, study.seed + repeat)
        for repeat in range(times)
        for victim in study.victims
        if victim.method in METHOD_NAMES
        for epsilon in victim.epsilons
        if not quick or epsilon in study.quick["epsilons"]
    ]
    cells = []
    with locked(folder):
        done = _finished(folder / CELLS_FILE)
        for index, (victim, epsilon, seed) in enumerate(todo):
            missing = [n for n in there if (victim.label, epsilon, n, seed) not in done]
            for name in missing:
                learnt = name if victim.own else study.train
                graph = split(graphs[learnt], study.split, seed)
                where = folder / "runs" / learnt
                model = _victim(study, victim, epsilon, seed, graph, where, ledger)
                cell = _cell(study, victim, epsilon, seed, model, name, graphs[name], ledger)
                row = {**asdict(cell), "epsilon": number(epsilon)}
                append_line(folder / CELLS_FILE, json.dumps(row, allow_nan=False))
                done[cell.key] = cell
            cells += [done[victim.label, epsilon, name, seed] for name in there]
            if progress is not None:
                progress("victims", index + 1, len(todo))
    absent = sorted({victim.method for victim in study.victims} - set(METHOD_NAMES))
    remarks: tuple[str, ...] = (
        *(f"{name}: {study.attacked[name]}." for name in there),
        f"{study.nodes} random nodes, true density among them, mean over {times} seeds. AUC and F1 "
        "of Algorithm 1, F1 of the relative influence and of the best of 16 similarity attacks; "
        "accuracy and macro F1 of the victim on the graph it serves.",
        "Figures of an attack read the true links: they are private.",
    )
    if absent:
        remarks += (f"Not here: {', '.join(absent)}.",)
    from tacit.study.attack_pictures import draw_tradeoff

    picture = draw_tradeoff(cells, folder / PICTURE_FILE)
    made = AttackReport(study, tuple(cells), folder / REPORT_FILE, picture, remarks)
    write_whole(made.report, _markdown(made))
    return made


def _victim(
    study: AttackStudy,
    victim: Victim,
    epsilon: float,
    seed: int,
    graph: Graph,
    folder: Path,
    ledger: Ledger,
) -> Method:
    """The fitted victim, from its run folder if it has one."""
    from tacit.methods import load_run
    from tacit.methods.run import RUN_FILE
    from tacit.study.attempt import fit_into

    words = "".join(c if c.isalnum() else "-" for c in victim.label.lower())
    where = folder / f"{words}-{number(epsilon)}-{seed}"
    if (where / RUN_FILE).is_file():
        return load_run(where)
    recipe = Recipe(victim.method, "edge", epsilon, study.delta)
    model = recipe.with_settings(typed_settings(victim.method, victim.settings)).model(seed)
    where.parent.mkdir(parents=True, exist_ok=True)
    fit_into(where, model, graph, ledger, asked={"seed": seed, "split": list(study.split)})
    return model


def _cell(
    study: AttackStudy,
    victim: Victim,
    epsilon: float,
    seed: int,
    model: Method,
    name: str,
    graph: Graph,
    ledger: Ledger,
) -> Attacked:
    """Serve one graph, attack it, and measure what the service is good for."""
    from tacit.attacks.black_box import ALONE, of_model
    from tacit.attacks.link_stealing import best, link_stealing
    from tacit.attacks.linkteller import linkteller

    # The same name again serves the same cell: nothing of it was stored or shown before.
    box = of_model(model, graph, ledger=ledger, run=f"{model.fitted.run}/{name}")
    # A scaling is undone by models that bring rows to unit length: those are probed by a shift.
    probe: Probe = "shift" if victim.method in ALONE else "scale"
    found = linkteller(box, graph, nodes=study.nodes, probe=probe, seed=seed)
    posteriors = np.asarray(box(np.arange(graph.nodes), graph.features))
    truth = found.finding.linked
    similar = [
        *link_stealing(posteriors[found.nodes], truth, source="posteriors", seed=seed),
        *link_stealing(graph.features[found.nodes], truth, source="features", seed=seed),
    ]
    known = graph.labels >= 0
    guessed, labels = posteriors.argmax(axis=1)[known], graph.labels[known]
    return Attacked(
        label=victim.label,
        method=victim.method,
        epsilon=epsilon,
        data=name,
        seed=seed,
        auc=found.finding.auc,
        f1=found.finding.guess.f1,
        relative_f1=found.relative.guess.f1,
        similarity_f1=best(tuple(similar)).guess.f1,
        accuracy=float((guessed == labels).mean()),
        macro_f1=macro_f1(guessed, labels, graph.classes),
    )


def macro_f1(guessed: np.ndarray, labels: np.ndarray, classes: int) -> float:
    """The mean over classes of F1; a class that is neither there nor guessed does not count."""
    found = []
    for label in range(classes):
        right = int(((guessed == label) & (labels == label)).sum())
        either = int((guessed == label).sum() + (labels == label).sum())
        if either:
            found.append(2 * right / either)
    return float(np.mean(found))


def _finished(path: Path) -> dict[tuple[Any, ...], Attacked]:
    """Finished cells; a last line that a crash cut short is removed."""
    if not path.exists():
        return {}
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        with path.open("r+b") as stream:
            stream.truncate(len(whole))
    rows = [json.loads(line) for line in whole.decode().splitlines()]
    cells = [Attacked(**{**row, "epsilon": float(row["epsilon"])}) for row in rows]
    return {cell.key: cell for cell in cells}


def _markdown(made: AttackReport) -> str:
    parts = [f"# {made.study.title}", ""]
    for title, rows in made.grids():
        parts += [f"## {title}", "", f"| {' | '.join(HEADS)} |", "|" + "---|" * len(HEADS)]
        parts += [f"| {' | '.join(row)} |" for row in rows] + [""]
    parts += [f"![Attack and utility against epsilon]({made.picture.name})", ""]
    parts += [f"- {remark}" for remark in made.remarks]
    return "\n".join(parts) + "\n"
