"""Grids of runs that survive interruption: one cell is one recipe on one data set with one seed.

Finished cells are rows of ``results.csv`` and are never run again. An interrupted cell stored
nothing, so it runs again under the same name in the ledger and is not charged twice.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import PlanError
from tacit.study.folders import append_line, locked, write_json
from tacit.study.recipe import Recipe, number
from tacit.study.roles import with_roles

if TYPE_CHECKING:
    from tacit.graph import Graph
    from tacit.privacy import Ledger, Plan

RESULTS_FILE = "results.csv"
STUDY_FILE = "study.json"
COLUMNS = (
    "data",
    "method",
    "unit",
    "relation",
    "epsilon",
    "delta",
    "accounting",
    "noise",
    "settings",
    "split",
    "repeat",
    "seed",
    "test_accuracy",
    "val_accuracy",
    "epsilon_spent",
    "seconds",
    "run",
    "fingerprint",
)

OnCell = Callable[["Cell", int, int], None]
"""Called with the cell that starts, how many were done before it, and how many there are."""
OnStage = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        data: Name of the data set within the study.
        recipe: What runs.
        repeat: Which repetition, from 0.
        seed: Of split, weights and order.
        split: Shares of training, validation and test nodes.
    """

    data: str
    recipe: Recipe
    repeat: int
    seed: int
    split: tuple[float, float, float] = (75, 10, 15)

    @property
    def columns(self) -> dict[str, str]:
        """What tells this cell from all others, as text."""
        recipe = self.recipe
        return {
            "data": self.data,
            "method": recipe.method,
            "unit": recipe.unit,
            "relation": recipe.relation,
            "epsilon": number(recipe.epsilon),
            "delta": number(recipe.delta),
            "accounting": recipe.accounting,
            "noise": recipe.noise,
            "settings": " ".join(f"{key}={value}" for key, value in recipe.settings),
            "split": "/".join(number(share) for share in self.split),
            "repeat": str(self.repeat),
            "seed": str(self.seed),
        }

    @property
    def key(self) -> tuple[str, ...]:
        """The columns as something to look up by."""
        return tuple(self.columns.values())

    def run_name(self, study: str) -> str:
        """The name under which the ledger is charged: one study, one cell, one charge."""
        digest = hashlib.sha256(json.dumps(self.key).encode()).hexdigest()[:8]
        recipe = self.recipe
        words = f"{recipe.method}-{recipe.unit}-{number(recipe.epsilon)}-r{self.repeat}"
        return f"{study}/{words}-{digest}"


@dataclass(frozen=True)
class Result:
    """What a cell came to. Accuracies read private data: they are for the owner.

    Attributes:
        cell: The cell.
        test_accuracy: On test nodes.
        val_accuracy: On validation nodes; NaN without any.
        epsilon_spent: What the statement says.
        seconds: Wall time of the fit.
        run: Name in the ledger; of the run it was copied from, where epsilon does not matter.
        fingerprint: Of the graph.
    """

    cell: Cell
    test_accuracy: float
    val_accuracy: float
    epsilon_spent: float
    seconds: float
    run: str
    fingerprint: str

    def row(self) -> str:
        """One line of CSV."""
        text = io.StringIO()
        values = {
            **self.cell.columns,
            "test_accuracy": f"{self.test_accuracy:.6f}",
            "val_accuracy": f"{self.val_accuracy:.6f}",
            "epsilon_spent": f"{self.epsilon_spent:.6g}",
            "seconds": f"{self.seconds:.3f}",
            "run": self.run,
            "fingerprint": self.fingerprint,
        }
        csv.writer(text, lineterminator="").writerow([values[name] for name in COLUMNS])
        return text.getvalue()


class Sheet:
    """The rows of a study's finished cells.

    Args:
        folder: The study's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / RESULTS_FILE
        self._rows: dict[tuple[str, ...], dict[str, str]] = {}
        text = self._whole_lines()
        if not text:
            append_line(self.path, ",".join(COLUMNS))
            return
        reader = csv.DictReader(io.StringIO(text))
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise PlanError(
                f"{self.path} is not a sheet of results",
                why="its columns are not those Tacit writes",
                remedy="name another folder with --out",
            )
        for row in reader:
            self._rows[tuple(row[name] for name in COLUMNS[:12])] = row

    def find(self, cell: Cell) -> Result | None:
        """The result of a cell, if it has finished."""
        row = self._rows.get(cell.key)
        if row is None:
            return None
        return Result(
            cell,
            test_accuracy=float(row["test_accuracy"]),
            val_accuracy=float(row["val_accuracy"]),
            epsilon_spent=float(row["epsilon_spent"]),
            seconds=float(row["seconds"]),
            run=row["run"],
            fingerprint=row["fingerprint"],
        )

    def add(self, result: Result) -> None:
        """Store a result; on disk when this returns."""
        line = result.row()
        append_line(self.path, line)
        values = next(csv.reader([line]))
        self._rows[result.cell.key] = dict(zip(COLUMNS, values, strict=True))

    def _whole_lines(self) -> str:
        """The file's text; a last line that a crash cut short is removed."""
        if not self.path.exists():
            return ""
        raw = self.path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):
            with self.path.open("r+b") as stream:
                stream.truncate(len(whole))
        return whole.decode()


def carry_out(
    cells: Sequence[Cell],
    folder: Path,
    graphs: Callable[[str], Graph],
    ledger: Ledger,
    *,
    on_cell: OnCell | None = None,
    on_stage: OnStage | None = None,
) -> list[Result]:
    """Run the cells that have not finished yet and return the results of all.

    Every plan is made before the first charge, so that a recipe that cannot run costs nothing.

    Args:
        cells: What to run.
        folder: Where results are kept.
        graphs: The graph of a data set by its name.
        ledger: Where to charge.
        on_cell: Told which cell starts, and once more with the last cell at the end.
        on_stage: Told what is done within a cell.

    Returns:
        One result for each cell, in the order given.
    """
    with locked(folder):
        study, sheet = _study_name(folder), Sheet(folder)
        work = _Work(graphs, ledger, study, sheet)
        pending = [cell for cell in cells if sheet.find(cell) is None]
        work.check(cells)
        for cell in pending:
            work.plan(cell)
        done = len(cells) - len(pending)
        for cell in pending:
            if on_cell is not None:
                on_cell(cell, done, len(cells))
            sheet.add(work.result(cell, on_stage))
            done += 1
        if on_cell is not None and cells:
            on_cell(cells[-1], done, len(cells))
        return [found for cell in cells if (found := sheet.find(cell)) is not None]


class _Work:
    """Plans and splits that many cells share."""

    def __init__(
        self, graphs: Callable[[str], Graph], ledger: Ledger, study: str, sheet: Sheet
    ) -> None:
        self.graphs, self.ledger, self.study, self.sheet = graphs, ledger, study, sheet
        self._plans: dict[Any, Plan] = {}
        self._fingerprints: dict[Any, str] = {}
        self._split: tuple[Any, Graph] | None = None

    def check(self, cells: Iterable[Cell]) -> None:
        """Refuse to mix results of two versions of the data in one sheet."""
        for cell in cells:
            found = self.sheet.find(cell)
            if found is not None and found.fingerprint != self.fingerprint(cell):
                raise PlanError(
                    f"{self.sheet.path} holds results of another graph named {cell.data!r}",
                    why="the contents changed since",
                    remedy="name another folder with --out",
                )

    def fingerprint(self, cell: Cell) -> str:
        from tacit.graph import fingerprint

        # A split leaves the data as they are; a cut makes other data with every seed.
        name = (cell.data, cell.recipe.cut, cell.seed) if cell.recipe.cut else cell.data
        if name not in self._fingerprints:
            graph = self.graph(cell) if cell.recipe.cut else self.graphs(cell.data)
            self._fingerprints[name] = fingerprint(graph)
        return self._fingerprints[name]

    def graph(self, cell: Cell) -> Graph:
        """The cell's graph with its roles; the last one is kept."""
        name = (cell.data, cell.recipe.cut, cell.split, cell.seed)
        if self._split is None or self._split[0] != name:
            whole = self.graphs(cell.data)
            ratios = None if whole.public is not None else cell.split
            self._split = (name, with_roles(whole, cell.recipe, ratios, cell.seed))
        return self._split[1]

    def plan(self, cell: Cell) -> Plan:
        facts = self.graph(cell).facts()
        if (cell.recipe, facts) not in self._plans:
            self._plans[cell.recipe, facts] = cell.recipe.model(cell.seed).plan(facts)
        return self._plans[cell.recipe, facts]

    def result(self, cell: Cell, on_stage: OnStage | None) -> Result:
        plan = self.plan(cell)
        if not plan.stages and (twin := self._twin(cell)) is not None:
            return replace(twin, cell=cell, seconds=0.0)
        model = cell.recipe.model(cell.seed)
        run = cell.run_name(self.study)
        fitted = model.fit(self.graph(cell), plan, self.ledger, run=run, progress=on_stage).fitted
        return Result(
            cell,
            fitted.metrics.get("test_accuracy", math.nan),
            fitted.metrics.get("val_accuracy", math.nan),
            fitted.statement.epsilon,
            fitted.seconds,
            run,
            fitted.data,
        )

    def _twin(self, cell: Cell) -> Result | None:
        """A finished cell that differs in epsilon alone, for recipes that spend nothing."""
        for (recipe, _), plan in self._plans.items():
            same = replace(recipe, epsilon=cell.recipe.epsilon, delta=cell.recipe.delta)
            if plan.stages or same != cell.recipe:
                continue
            found = self.sheet.find(replace(cell, recipe=recipe))
            if found is not None:
                return found
        return None


def _study_name(folder: Path) -> str:
    """The study's own name, made once: two folders never share a charge."""
    path = folder / STUDY_FILE
    if not path.exists():
        note = "Accuracies in this folder read private data; they are for the owner alone."
        write_json(path, {"study": f"study-{uuid.uuid4().hex[:8]}", "private": note})
    try:
        return str(json.loads(path.read_text())["study"])
    except (ValueError, KeyError, TypeError) as error:
        raise PlanError(
            f"{path} cannot be read", why=str(error), remedy="name another folder with --out"
        ) from error
