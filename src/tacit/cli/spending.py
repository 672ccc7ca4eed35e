"""``tacit ledger``: what was spent, by which run, for which unit; and the owner's budgets."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli import options as o
from tacit.cli.output import Screen, guarded
from tacit.errors import LedgerError
from tacit.study.recipe import DELTA

if TYPE_CHECKING:
    from tacit.privacy import Ledger

_DATA = "A graph, or the first digits of its fingerprint."
Data = Annotated[
    str | None, typer.Argument(metavar="[DATA]", help=f"{_DATA} \\[all]", show_default=False)
]


def show(
    data: Data = None,
    ledger: o.LedgerPath = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """List every charge: when, which run, which data, for which unit, at what cost."""
    screen = Screen(as_json=as_json)
    with guarded(debug):
        account = o.open_ledger(ledger)
        chosen = _matching(account, data)
        entries = [entry for name in chosen for entry in account.entries(name)]
        entries.sort(key=lambda entry: entry.at)
        screen.show(
            _table(
                ("when (UTC)", "data", "unit", "epsilon", "delta", "run", "note"),
                [
                    (
                        entry.at[:19].replace("T", " "),
                        entry.fingerprint[:12],
                        entry.unit,
                        _figure(entry.epsilon),
                        f"{entry.delta:g}",
                        entry.run,
                        entry.note,
                    )
                    for entry in entries
                ],
                f"{len(entries)} charges in {account.path}",
            )
        )
        screen.result({"ledger": str(account.path), "entries": [vars(entry) for entry in entries]})


def budget(
    data: Annotated[str, typer.Argument(metavar="DATA", help=_DATA, show_default=False)],
    unit: Annotated[str, typer.Option("--unit", "-u", help="Unit of privacy: edge, node, ...")],
    epsilon: Annotated[
        float,
        typer.Option("--epsilon", "-e", metavar="E", help="The most all runs may cost together."),
    ],
    delta: o.Delta = None,
    ledger: o.LedgerPath = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """As the owner of the data: set what all runs on it may cost together.

    The latest budget for a unit and delta counts.
    """
    screen = Screen(as_json=as_json)
    with guarded(debug):
        if unit not in DELTA:
            raise typer.BadParameter(f"unit is one of {', '.join(DELTA)}")
        account = o.open_ledger(ledger)
        names = _matching(account, data)
        if len(names) != 1:
            raise typer.BadParameter(f"{data!r} names {len(names)} data sets, not one")
        stored = account.set_budget(names[0], unit, epsilon, delta or DELTA[unit])
        screen.result(
            {"ledger": str(account.path), **vars(stored)},
            f"budget of data {names[0][:12]}: epsilon {epsilon:g} at delta {stored.delta:g}, "
            f"unit {unit}",
        )


def total(
    data: Data = None,
    delta: o.Delta = None,
    ledger: o.LedgerPath = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Compose all charges of each data set and unit, and show what is left of its budget."""
    screen = Screen(as_json=as_json)
    with guarded(debug):
        account = o.open_ledger(ledger)
        rows = []
        for name in _matching(account, data):
            entries, limits = account.entries(name), account.budgets(name)
            units = [entry.unit for entry in entries] + [limit.unit for limit in limits]
            for unit in dict.fromkeys(units):
                limit = next((b for b in limits if b.unit == unit), None)
                at = delta or (limit.delta if limit else DELTA.get(unit, 1e-6))
                runs = sum(entry.unit == unit for entry in entries)
                # Left is what one more Gaussian run may cost; costs of runs do not simply add up.
                left = account.remaining(name, unit) if limit else math.inf
                cost = account.total(name, unit, at) if runs else None
                rows.append(
                    {
                        "data": name,
                        "unit": unit,
                        "runs": runs,
                        "epsilon": cost.epsilon if cost else 0.0,
                        "epsilon_rdp": cost.epsilon_rdp if cost else 0.0,
                        "delta": at,
                        "budget": limit.epsilon if limit else None,
                        "left": left if limit else None,
                    }
                )
        screen.show(
            _table(
                ("data", "unit", "runs", "epsilon", "delta", "budget", "left for one run"),
                [
                    (
                        str(row["data"])[:12],
                        str(row["unit"]),
                        str(row["runs"]),
                        _figure(row["epsilon"]),
                        f"{row['delta']:g}",
                        _figure(row["budget"]),
                        _figure(row["left"]),
                    )
                    for row in rows
                ],
                f"composed, not added; {account.path}",
            )
        )
        screen.result({"ledger": str(account.path), "totals": rows})


def _matching(account: Ledger, data: str | None) -> list[str]:
    """Fingerprints in the ledger that were asked for, or that of a graph."""
    held = [entry.fingerprint for entry in account.entries()]
    known = list(dict.fromkeys(held + [budget.fingerprint for budget in account.budgets()]))
    if data is None:
        return known
    if Path(data).exists():
        from tacit.graph import fingerprint

        return [fingerprint(o.load_graph([data], None))]
    found = [name for name in known if name.startswith(data)]
    if not found:
        raise LedgerError(
            f"{data!r} is neither a graph nor the fingerprint of data in {account.path}",
            remedy="see 'tacit ledger list'",
        )
    return found


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]], caption: str) -> object:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left", pad_edge=False)
    for head in heads:
        right = head in ("epsilon", "delta", "budget", "runs", "left for one run")
        table.add_column(head, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _figure(value: object) -> str:
    if not isinstance(value, float | int):
        return "none set"
    return "inf" if math.isinf(value) else f"{value:.4g}"
