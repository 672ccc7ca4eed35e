"""What a command prints: panels and progress for people, one JSON object for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from tacit.errors import TacitError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from tacit.privacy import Plan
    from tacit.study.cells import Cell


class Screen:
    """Where a command writes.

    Args:
        as_json: Whether standard output is for a program.
        quiet: Whether people are told nothing but errors.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet

    def console(self, *, error: bool = False) -> Console:
        """The console for people: standard error where standard output is for a program."""
        from rich.console import Console

        return Console(stderr=error or self.as_json, highlight=False, soft_wrap=False)

    def show(self, *things: Any) -> None:
        """Print panels, tables or plain sentences for people."""
        if self.quiet:
            return
        console = self.console()
        for thing in things:
            if isinstance(thing, str):
                console.print(thing, markup=False)
            else:
                console.print(thing)

    def tell(self, text: str) -> None:
        """One sentence on standard error."""
        if not self.quiet:
            self.console(error=True).print(text, markup=False)

    def result(self, data: Mapping[str, Any], line: str = "") -> None:
        """The outcome: one JSON object, or one line for people even where they asked for quiet."""
        if self.as_json:
            typer.echo(json.dumps(plain(data), ensure_ascii=False, allow_nan=False))
        elif line:
            typer.echo(line)

    @contextmanager
    def stages(self) -> Iterator[Any]:
        """A progress callback that draws one bar for each stage on standard error."""
        if self.quiet:
            yield None
            return
        with self._bars() as bars:
            tasks: dict[str, TaskID] = {}

            def report(stage: str, done: int, total: int) -> None:
                if stage not in tasks:
                    tasks[stage] = bars.add_task(stage, total=total)
                bars.update(tasks[stage], completed=done, total=total)

            yield report
            for task in tasks.values():
                # Training may stop early; its bar is then done as well.
                bars.update(task, total=bars.tasks[task].completed)

    @contextmanager
    def cells(self) -> Iterator[Any]:
        """A callback for studies: one bar over all cells, with the time left."""
        if self.quiet:
            yield None
            return
        with self._bars() as bars:
            task = bars.add_task("starting", total=None)

            def report(cell: Cell, done: int, total: int) -> None:
                recipe = cell.recipe
                words = f"{cell.data} {recipe.method} {recipe.unit} ε={recipe.epsilon:g}"
                end = "finished" if done == total else f"{words} #{cell.repeat + 1}"
                bars.update(task, description=end, completed=done, total=total)

            yield report

    def _bars(self) -> Progress:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        return Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console(error=True),
        )


@contextmanager
def guarded(debug: bool) -> Iterator[None]:
    """Exit code 1 and one line for whatever is refused or fails; the trace with ``--debug``."""
    try:
        yield
    except KeyboardInterrupt as error:
        said = error.args[0] if error.args and isinstance(error.args[0], str) else ""
        typer.echo(f"tacit: interrupted. {said}".rstrip(), err=True)
        raise typer.Exit(1) from None
    except TacitError as error:
        _fail(str(error), debug)
    except (OSError, MemoryError) as error:
        _fail(f"{type(error).__name__}: {error}", debug)
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        _fail(f"{type(error).__name__}: {error} (a bug: --debug shows the trace)", debug)


def _fail(text: str, debug: bool) -> None:
    if debug:
        import traceback

        typer.echo(traceback.format_exc(), err=True)
    typer.echo(f"tacit: {' '.join(text.split())}", err=True)
    raise typer.Exit(1)


def plain(value: Any) -> Any:
    """The same data for JSON: infinity becomes the string ``inf``, what is not a number null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return "inf" if math.isinf(value) else value
    if value == "infinity":
        return "inf"
    if isinstance(value, str | int | bool) or value is None:
        return value
    return str(value)


def peak_memory() -> int:
    """The most memory that this process held, in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def plan_table(plan: Plan) -> Table:
    """A plan's stages, for a terminal."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name in ("stage", "rounds", "sampling", "noise / sensitivity", "noise"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for stage in plan.stages:
        bare = stage.noise_multiplier <= 0
        table.add_row(
            stage.name,
            f"{stage.rounds:,}",
            "all" if stage.sampling_rate >= 1 else f"{stage.sampling_rate:.4g}",
            "none" if bare else f"{stage.noise_multiplier:.4g}",
            "none" if bare else f"{stage.noise_std:.4g}",
        )
    return table


def plan_words(plan: Plan) -> list[str]:
    """What a plan costs and what it was made from, in lines."""
    cost, facts = plan.cost, plan.facts
    budget = "no privacy (epsilon is infinite)" if math.isinf(plan.epsilon) else "asked"
    asked = "" if math.isinf(plan.epsilon) else f" {plan.epsilon:g}"
    lines = [
        f"{plan.method} under {plan.unit.name} ({plan.unit.relation}), {plan.accounting} "
        f"accounting: {budget}{asked} at delta {plan.delta:g}",
        plan.unit.words(facts.directed),
        f"made from public facts alone: {facts.nodes:,} nodes, {facts.train_nodes:,} for training, "
        f"{facts.features:,} features, {facts.classes} classes, "
        f"{'directed' if facts.directed else 'symmetric'} links"
        + (f"; a public graph of {facts.public_nodes:,} nodes" if facts.public_nodes else ""),
    ]
    if not plan.stages:
        return [*lines, "reads nothing that this unit protects: epsilon 0, nothing is charged"]
    if math.isfinite(cost.epsilon):
        lines.append(
            f"epsilon {cost.epsilon:.4f} by privacy loss distribution, {cost.epsilon_rdp:.4f} by "
            f"Renyi, at delta {cost.delta:g}; "
            + ("the first decides" if plan.accounting == "sound" else "the second decides")
        )
    return lines


def settings_words(plan: Plan) -> str:
    """A plan's settings as one line that ``--set`` would take."""
    from dataclasses import asdict

    degree = getattr(plan.unit, "max_degree", None)
    chosen = {**asdict(plan.settings), **({} if degree is None else {"max_degree": degree})}
    shown = (
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in chosen.items()
    )
    return "settings: " + " ".join(shown)
