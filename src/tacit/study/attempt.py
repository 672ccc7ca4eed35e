"""One fit into a run folder, which an interruption may cut short and the same command resumes.

The charge comes before the noise, so an interrupted run has paid. It may resume under the same run
name without paying twice only because *nothing noisy was shown*: the noise drawn when it resumes is
the only noise that anyone ever sees. A method that trains for long draws its noise at the start and
keeps it in the run folder (``answers.npz``); when it resumes it reads that noise and draws none.
Where noisy results did reach the disk, resuming is refused: a second draw would be a second
release.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import LedgerError, PlanError
from tacit.study.folders import LOCK_FILE, locked, write_json

if TYPE_CHECKING:
    from tacit.graph import Graph
    from tacit.methods import Method
    from tacit.methods.base import Progress
    from tacit.privacy import Ledger, Plan

STARTED_FILE = "started.json"
KEPT_FILE = "answers.npz"
"""What a method that trains for long keeps: its noise, drawn once, and what it has finished."""
FORMAT = 1
_CALIBRATED = ("stages", "cost", "charged")


@dataclass(frozen=True)
class Attempt:
    """A run that was started and may be resumed.

    Attributes:
        folder: Where it will be stored.
        run: Its name in the ledger.
        plan: What runs, and what was or will be charged.
        data: The fingerprint of its graph.
        resumed: Whether an earlier process started it.
    """

    folder: Path
    run: str
    plan: Plan
    data: str
    resumed: bool

    def paid(self, ledger: Ledger) -> bool:
        """Whether the ledger was charged for it."""
        return any(entry.run == self.run for entry in ledger.entries(self.data))


def fit_into(
    folder: Path,
    model: Method,
    graph: Graph,
    ledger: Ledger,
    *,
    asked: dict[str, Any],
    progress: Progress | None = None,
    on_start: Any = None,
) -> Attempt:
    """Fit and store a run; resumes the one that was interrupted in this folder.

    Args:
        folder: The run folder.
        model: An unfitted method.
        graph: The graph, with its split.
        ledger: Where to charge.
        asked: Plain data that must be the same when the run resumes: seed, split and so on.
        progress: Told what is done.
        on_start: Called with the attempt before anything is charged.

    Returns:
        The attempt; the model is fitted.

    Raises:
        PlanError: The folder holds a finished run, another run, or something else.
        KeyboardInterrupt: With the attempt as its argument, once it may be resumed.
    """
    from tacit.methods import save_run

    with _started(folder, model, graph, asked) as attempt:
        try:
            if on_start is not None:
                on_start(attempt)
            model.workspace = folder
            model.fit(graph, attempt.plan, ledger, run=attempt.run, progress=progress)
            save_run(model, folder)
        except BaseException as error:
            _forget_unpaid(attempt, ledger)
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(attempt) from error
            raise
        (folder / STARTED_FILE).unlink()
    (folder / LOCK_FILE).unlink(missing_ok=True)
    return attempt


@contextmanager
def _started(folder: Path, model: Method, graph: Graph, asked: dict[str, Any]) -> Iterator[Attempt]:
    from tacit.graph import fingerprint

    _check_vacant(folder)
    plan = model.plan(graph.facts())
    data = fingerprint(graph)
    with locked(folder):
        _check_vacant(folder)
        path = folder / STARTED_FILE
        if path.exists():
            yield _resumed(folder, path, plan, data, asked)
            return
        run = uuid.uuid4().hex[:16]
        write_json(
            path,
            {
                "format": FORMAT,
                "run": run,
                "data": data,
                "asked": asked,
                "plan": plan.to_dict(),
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        )
        yield Attempt(folder, run, plan, data, resumed=False)


def _check_vacant(folder: Path) -> None:
    """Refuse a folder with anything in it that is not an interrupted run."""
    from tacit.methods.run import RUN_FILE, TENSORS_FILE

    if folder.exists() and not folder.is_dir():
        raise PlanError(f"{folder} is not a folder", remedy="name a new folder with --out")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if RUN_FILE in names:
        raise PlanError(
            f"{folder} already holds a finished run",
            why="fitting again draws noise again, which is another release and is charged",
            remedy="name a new folder with --out, or use the run with 'tacit predict'",
        )
    if TENSORS_FILE in names:
        raise PlanError(
            f"{folder} holds half of a run: noisy results were stored before it was interrupted",
            why="drawing the noise again would be a second release under one charge",
            remedy="name a new folder with --out; that run is charged anew",
        )
    kept = {KEPT_FILE, f"{KEPT_FILE}.part"} if STARTED_FILE in names else set()
    if names - kept - {LOCK_FILE, STARTED_FILE, f"{STARTED_FILE}.part"}:
        raise PlanError(f"{folder} is not empty", remedy="name a new folder with --out")


def _resumed(folder: Path, path: Path, plan: Plan, data: str, asked: dict[str, Any]) -> Attempt:
    """The attempt that was started here, if this is the same one."""
    from tacit.methods.run import plan_from_dict

    try:
        stored = json.loads(path.read_text())
        run, earlier = str(stored["run"]), stored["plan"]
        changed = _differences(
            {**stored["asked"], **_wanted(earlier)}, {**asked, **_wanted(plan.to_dict())}
        )
        restored = plan_from_dict(earlier)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(
            f"{path} cannot be read", why=str(error), remedy="name a new folder with --out"
        ) from error
    if stored.get("data") != data:
        changed = ["the graph", *changed]
    if changed:
        raise PlanError(
            f"{folder} holds an interrupted run that differs in {', '.join(changed)}",
            why="a run name stands for one plan on one graph",
            remedy="repeat the command that was interrupted, or name a new folder with --out",
        )
    return Attempt(folder, run, restored, data, resumed=True)


def _wanted(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan without what calibration found, which may differ in the last digit elsewhere."""
    return {key: value for key, value in plan.items() if key not in _CALIBRATED}


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))


def _forget_unpaid(attempt: Attempt, ledger: Ledger) -> None:
    """A run that was refused or stopped before its charge leaves nothing behind."""
    try:
        if attempt.resumed or attempt.paid(ledger):
            return
    except LedgerError:
        return
    for name in (STARTED_FILE, LOCK_FILE):
        (attempt.folder / name).unlink(missing_ok=True)
    if not any(attempt.folder.iterdir()):
        attempt.folder.rmdir()
