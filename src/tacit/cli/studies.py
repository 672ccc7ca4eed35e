"""``tacit compare``, ``tacit reproduce`` and ``tacit demo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options as o
from tacit.cli.output import Screen, guarded, plain
from tacit.methods import METHOD_NAMES
from tacit.study.recipe import DELTA, number

if TYPE_CHECKING:
    from tacit.study.compare import Comparison

_RESUME = "Interrupted. Finished cells are kept; repeat the same command to go on. A cell that was "
_RESUME += "cut short resumes under the same ledger name and is not charged twice."


def compare(
    graph: o.Graphs,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for CSV and PNG.")
    ],
    methods: Annotated[str, typer.Option(metavar="A,B", help="Methods.")] = "gap,mlp",
    units: Annotated[str, typer.Option(metavar="A,B", help="Units of privacy.")] = "edge,node",
    epsilons: Annotated[
        str, typer.Option(metavar="E,E", help="Budgets; inf is drawn as a dashed line.")
    ] = "1,4,8",
    ks: Annotated[
        str | None,
        typer.Option(
            metavar="K,K",
            help="Links each way of the unit k-neighbours; several draw accuracy against k.",
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(metavar="R", min=1, help="Runs of each, with a split and seed each.")
    ] = 3,
    deltas: Annotated[
        str | None,
        typer.Option(metavar="UNIT=D,...", help="Deltas. \\[edge=1e-6,node=1e-5,node-all=1e-5]"),
    ] = None,
    settings: o.Settings = None,
    read: o.Read = None,
    split: o.Split = None,
    seed: o.Seed = None,
    relation: o.Relation = None,
    accounting: o.Accounting = None,
    noise: o.Noise = None,
    ledger: o.LedgerPath = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Draw accuracy against epsilon (or k), with confidence bands. Every run is charged.

    Example: tacit compare graph.npz --epsilons 1,4,8,inf --repeats 5 --out comparison
    Example: tacit compare graph.npz --units k-neighbours --epsilons 16 --ks 1,5,25 --out by-k
    """
    screen = Screen(as_json=as_json, quiet=quiet)
    with guarded(debug):
        wanted = o.listed(units, "--units", tuple(DELTA))
        given = {k: o.numbers(v, "--deltas")[0] for k, v in _by_unit(deltas).items()}
        asked = o.listed(methods, "--methods", METHOD_NAMES), o.numbers(epsilons, "--epsilons")
        ratios = o.shares(split) or (75, 10, 15)
        from tacit.study.compare import Grid
        from tacit.study.compare import compare as carry_out

        grid = Grid(
            methods=asked[0],
            units=wanted,
            epsilons=asked[1],
            repeats=repeats,
            deltas=given,
            seed=seed or 0,
            split=ratios,
            relation=relation or "add-remove",
            accounting=accounting or "sound",
            noise=noise or "secure",
            settings=o.pairs(settings, "--set"),
            ks=_whole(ks) if ks else (),
        )
        o.usage(lambda: grid.cells(""))
        loaded, account = o.load_graph(graph, read), o.open_ledger(ledger)
        shown = ", ".join(f"{unit} {grid.delta(unit):g}" for unit in wanted)
        screen.tell(f"{loaded!r}; delta by unit: {shown}; ledger {account.path}")
        try:
            with screen.cells() as on_cell:
                found = carry_out(loaded, grid, out, account, on_cell=on_cell)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_RESUME) from None
        screen.show(_points_table(found), "Accuracies read private data: for you alone.")
        screen.result(
            {
                "points": point_rows(found),
                "csv": str(found.table),
                "png": str(found.picture),
                "cells": len(found.results),
            },
            f"{found.picture}\n{found.table}",
        )


def _whole(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1 from a list with commas."""
    found = o.numbers(text, "--ks")
    if not all(k.is_integer() and k >= 1 for k in found):
        raise typer.BadParameter(f"--ks takes whole numbers of at least 1, not {text!r}")
    return tuple(int(k) for k in found)


def _by_unit(text: str | None) -> dict[str, str]:
    found = o.pairs(text.split(","), "--deltas") if text else {}
    for unit in found:
        o.listed(unit, "--deltas", tuple(DELTA))
    return found


def point_rows(found: Comparison) -> list[dict[str, Any]]:
    """The means and intervals of a comparison as plain data."""
    from tacit.study.compare import k_of

    return [
        {
            "method": point.recipe.method,
            "unit": point.recipe.unit,
            "epsilon": point.recipe.epsilon,
            "delta": point.recipe.delta,
            "repeats": point.repeats,
            "mean": point.mean,
            "low": point.low,
            "high": point.high,
            "epsilon_spent": point.epsilon_spent,
            **({} if k_of(point) is None else {"k": k_of(point)}),
        }
        for point in found.points
    ]


def _points_table(found: Comparison) -> object:
    from rich import box
    from rich.table import Table

    from tacit.study.compare import k_of

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("unit")
    table.add_column("method")
    swept = any(k_of(point) for point in found.points)
    for head in (
        *(["k"] if swept else []),
        "epsilon",
        "spent per run",
        "test accuracy %",
        "95 % interval",
        "runs",
    ):
        table.add_column(head, justify="right")
    for point in found.points:
        table.add_row(
            point.recipe.unit,
            point.recipe.method,
            *([str(k_of(point) or "")] if swept else []),
            number(point.recipe.epsilon),
            f"{point.epsilon_spent:.4g}",
            f"{100 * point.mean:.1f}",
            f"{100 * point.low:.1f} to {100 * point.high:.1f}" if point.repeats > 1 else "",
            str(point.repeats),
        )
    return table


def reproduce(
    paper: Annotated[
        str, typer.Argument(metavar="PAPER", help="Which paper: a folder of papers/, such as gap.")
    ],
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with the data sets; missing ones are left.")
    ],
    quick: Annotated[bool, typer.Option("--quick", help="One seed, few cells.")] = False,
    only: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Which experiments. \\[all of the configuration]"),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(metavar="R", min=1, help="Seeds. \\[the configuration's]")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Configuration. \\[papers/PAPER/config.toml here or in Tacit's checkout]",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for results.")
    ] = Path("reproduced"),
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where runs are charged. \\[DIR/ledger.sqlite]",
        ),
    ] = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Run a paper's tables and figures, and print ours beside the paper's.

    Example: tacit reproduce gap --data data --quick
    """
    screen = Screen(as_json=as_json, quiet=quiet)
    with guarded(debug):
        from tacit.study.paper import find_config, read_study
        from tacit.study.reproduce import reproduce as carry_out

        path = find_config(paper, config)
        if _attacks(screen, path, data, out, ledger, quick=quick, repeats=repeats):
            return
        study = read_study(path)
        names = o.listed(only, "--only", tuple(study.experiments)) if only else None
        account = o.open_ledger(ledger or _made(out) / "ledger.sqlite")
        try:
            with screen.cells() as on_cell:
                found = carry_out(
                    study,
                    data,
                    out,
                    account,
                    only=names,
                    quick=quick,
                    repeats=repeats,
                    on_cell=on_cell,
                )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_RESUME) from None
        screen.show(*found.tables(), *found.remarks)
        screen.result(plain(found.to_dict()), f"{found.report}")


def _attacks(
    screen: Screen,
    path: Path,
    data: Path,
    out: Path,
    ledger: Path | None,
    *,
    quick: bool,
    repeats: int | None,
) -> bool:
    """Run a configuration of attacks; False if it is of another kind."""
    from tacit.study.attack_study import read_attack_study, reproduce_attacks

    study = read_attack_study(path)
    if study is None:
        return False
    account = o.open_ledger(ledger or _made(out) / "ledger.sqlite")
    try:
        with screen.stages() as progress:
            found = reproduce_attacks(
                study, data, out, account, quick=quick, repeats=repeats, progress=progress
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_RESUME) from None
    screen.show(*found.tables(), *found.remarks)
    screen.result(plain(found.to_dict()), f"{found.report}")
    return True


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the report.")
    ] = Path("demo-out"),
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """See it work: plan, fit and compare on a generated graph, and write a report.

    Takes about a minute; needs no data.
    """
    screen = Screen(as_json=as_json, quiet=quiet)
    with guarded(debug):
        from tacit.study.demo import demo as show

        try:
            with screen.cells() as on_cell:
                report = show(out, say=screen.tell, on_cell=on_cell)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_RESUME) from None
        for run in report.runs:
            if not run.statement.epsilon:
                continue
            screen.show(run.statement.panel())
        screen.show(*report.summary)
        screen.result(report.to_dict(), f"report: {report.page}")
