"""``tacit dpa``: sessions between processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli import options as o
from tacit.cli.output import Screen, guarded

RoleFile = Annotated[
    Path,
    typer.Option("--config", "-c", metavar="FILE", help="TOML file of the role."),
]
UntilEof = Annotated[
    bool, typer.Option("--until-eof", help="End when standard input does.", hidden=True)
]

app = typer.Typer(
    help="Distributed private aggregation between processes: parties that hold only shares.",
    no_args_is_help=True,
)


@app.command("up")
def up(
    graph: Annotated[
        list[str], typer.Option("--graph", metavar="GRAPH", help="What tacit.load reads.")
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="DIR", help="Folder of keys, state and sums."),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="TOML file: epsilon, delta, split, seed, a table \\[set] of DPA's settings, and a "
            "table \\[session] with agents, connections, seconds and most_seconds.",
        ),
    ] = None,
    parties: Annotated[
        int | None, typer.Option("--parties", metavar="M", min=2, help="Parties. \\[3]")
    ] = None,
    settings: o.Settings = None,
    read: o.Read = None,
    split: o.Split = None,
    seed: o.Seed = None,
    epsilon: o.Epsilon = None,
    delta: o.Delta = None,
    relation: o.Relation = None,
    accounting: o.Accounting = None,
    ledger: o.LedgerPath = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Run a whole session on this machine, every role its own process, with mutual TLS.

    Repeat the command after an interruption: what was acknowledged is kept, noise is not drawn
    twice, and no round is charged twice.

    Example: tacit dpa up --graph graph.npz --parties 3 --config session.toml --out session
    """
    screen = Screen(as_json=as_json, quiet=quiet)
    with guarded(debug):
        table = o.read_config(config)
        spread = table.pop("session", {})
        asked = o.Asked(
            "dpa", "node", epsilon, delta, relation, accounting, None, split, seed, None
        )
        asked, recipe = asked.over(None, settings, table=table)
        if parties is not None:
            recipe = recipe.with_settings({**dict(recipe.settings), "parties": parties})
        from tacit.methods.dpa import DPA
        from tacit.study.deployment import Processes, run_session

        processes = o.usage(lambda: _processes(Processes, spread))
        number = asked.seed or 0
        loaded = o.with_split(o.load_graph(graph, read), o.shares(asked.split), number)
        account, model = o.open_ledger(ledger), recipe.model(number)
        if not isinstance(model, DPA):
            raise typer.BadParameter("method can only be dpa here")
        stood: list[Any] = []

        def told(said: dict[str, Any]) -> None:
            now = (said["round"], said["phase"])
            if stood[-1:] != [now]:
                stood.append(now)
                screen.tell(f"round {now[0]}: {now[1]}")

        screen.show(f"{loaded!r}; session in {out}; ledger {account.path}")
        try:
            found = run_session(loaded, model, out, account, processes, told)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                "Every process has ended; repeat the command to go on."
            ) from None
        accuracy = found["metrics"]["test_accuracy"]
        screen.show(
            f"test accuracy {'unknown' if accuracy is None else f'{100 * accuracy:.1f} %'} "
            f"(private); {found['bytes_uploaded'] / 1e6:,.1f} MB uploaded, "
            f"{found['payload_mb_per_s']:.1f} MB/s of payload, {found['seconds']:.1f} s"
        )
        screen.result(found, str(out) if quiet else "")


def _processes(kind: Callable[..., Any], spread: dict[str, Any]) -> Any:
    known = ("agents", "connections", "seconds", "most_seconds", "leave_out")
    if unknown := sorted(set(spread) - set(known)):
        raise typer.BadParameter(f"[session] has no {unknown[0]!r}: {', '.join(known)}")
    return kind(**spread)


@app.command("status")
def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A session's folder.")],
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Show where a session stands: state, bytes, pairs a second, rejects by cause. No keys."""
    screen = Screen(as_json=as_json, quiet=quiet)
    with guarded(debug):
        from tacit.multiparty.reporting import lines, overview

        found = overview(folder)
        screen.show(*lines(found))
        screen.result(found, str(found["session"].get("phase", "unknown")) if quiet else "")


def _role(name: str, what: str) -> None:
    def command(config: RoleFile, until_eof: UntilEof = False, debug: o.Debug = False) -> None:
        with guarded(debug):
            from tacit.errors import SessionError
            from tacit.multiparty.config import RoleConfig
            from tacit.multiparty.serve import Ending, run_role

            said = RoleConfig.load(config)
            if said.role != name:
                raise SessionError(
                    f"{config} is the file of a {said.role}", remedy=f"tacit dpa {said.role}"
                )
            code = run_role(said, Ending(until_eof=until_eof))
        raise typer.Exit(code)

    command.__doc__ = f"{what}\n\nRuns until its part is over or it is told to stop."
    app.command(name)(command)


_role("registry", "Enrol roles: check tokens and sign certificates.")
_role("coordinator", "Decide when rounds close, agree and are released. Sees metadata only.")
_role("shuffler", "Take users' sealed uploads and pass them on without saying whose they are.")
_role("party", "Hold shares, add them up by key, add noise and a mask.")
_role("server", "Put released shares together; give users their own rows.")
_role("user", "Act for one or many users: make slots, seal and send values.")
