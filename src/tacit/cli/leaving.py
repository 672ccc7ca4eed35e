"""``tacit release`` and ``tacit inspect``: what may leave, and what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli import options as o
from tacit.cli.output import Screen, guarded, plan_table, plan_words, settings_words


def release(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that fit wrote.")],
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="A new folder, or a file that ends in .zip.")
    ],
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Write what may leave: weights, noisy sums, hashes, and the statement as a model card.

    Runs stamped "not private", "paper accounting" or without privacy are refused.
    """
    screen = Screen(as_json=as_json, quiet=quiet)
    with guarded(debug):
        from tacit.methods import load_run
        from tacit.release import inspect_bundle
        from tacit.release import release as write

        target = write(load_run(run), bundle)
        info = inspect_bundle(target)
        screen.show(info.panel())
        screen.result({"bundle": str(target), **info.to_dict()}, str(target) if quiet else "")


def inspect(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE|RUN", help="What release or fit wrote.")],
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Verify a bundle and explain it, or explain a run folder."""
    screen = Screen(as_json=as_json, quiet=quiet)
    with guarded(debug):
        from tacit.methods.run import RUN_FILE
        from tacit.study.attempt import STARTED_FILE

        if (path / RUN_FILE).is_file():
            _inspect_run(path, screen)
        elif (path / STARTED_FILE).is_file():
            _inspect_started(path / STARTED_FILE, screen)
        else:
            from tacit.release import inspect_bundle

            info = inspect_bundle(path)
            screen.show(info.panel())
            screen.result({"kind": "bundle", **info.to_dict()}, "verified" if quiet else "")


def _inspect_run(path: Path, screen: Screen) -> None:
    from tacit.cli.running import accuracy_words
    from tacit.methods import load_run

    fitted = load_run(path).fitted
    screen.show(*plan_words(fitted.plan))
    if fitted.plan.stages:
        screen.show(plan_table(fitted.plan))
    screen.show(
        settings_words(fitted.plan),
        fitted.statement.panel(),
        f"run {fitted.run} on data {fitted.data[:12]}, seed {fitted.seed}, {fitted.seconds:.1f} s",
        f"Accuracy (private, for you alone): {accuracy_words(fitted.metrics)}",
    )
    screen.result(
        {
            "kind": "run",
            "method": fitted.plan.method,
            "run": fitted.run,
            "data": fitted.data,
            "metrics": fitted.metrics,
            "seconds": fitted.seconds,
            "seed": fitted.seed,
            "statement": fitted.statement.to_dict(),
            "plan": fitted.plan.to_dict(),
        },
        str(fitted.statement) if screen.quiet else "",
    )


def _inspect_started(path: Path, screen: Screen) -> None:
    import json

    from tacit.errors import PlanError
    from tacit.methods.run import plan_from_dict

    try:
        data: Any = json.loads(path.read_text())
        plan, run, at = plan_from_dict(data["plan"]), str(data["run"]), str(data["at"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(f"{path} cannot be read", why=str(error)) from error
    screen.show(
        f"interrupted run {run}, started {at}; repeat its fit command to resume it",
        *plan_words(plan),
        plan_table(plan),
    )
    screen.result({"kind": "started", "run": run, "data": data["data"], "plan": plan.to_dict()})
