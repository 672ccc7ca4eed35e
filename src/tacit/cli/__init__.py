"""The command line: parses, calls, prints; holds no logic.

Only light modules may be imported here, so that ``tacit --help`` answers at once: everything that
needs numpy, torch or an accountant is imported inside the command that uses it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tacit.cli import attacking, auditing, leaving, running, sessions, spending, studies

app = typer.Typer(
    name="tacit",
    help="Graph neural networks under differential privacy, with the promise spelt out.",
    epilog="Exit codes: 0 done; 1 refused or failed, with one line why; 2 wrong usage. "
    "Start with: tacit demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
ledger = typer.Typer(
    help="See what was spent, by which run, for which unit; set the owner's budgets.",
    invoke_without_command=True,
)
attack = typer.Typer(
    help="See what an enemy gets out of a run, a bundle or a service.", no_args_is_help=True
)


@app.callback()
def version(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    """Graph neural networks under differential privacy, with the promise spelt out."""
    if show:
        from tacit import __version__

        typer.echo(f"tacit {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@ledger.callback()
def list_by_default(context: typer.Context) -> None:
    """See what was spent, by which run, for which unit; set the owner's budgets."""
    if context.invoked_subcommand is None:
        spending.show()


_FIRST, _RUN, _OUT, _STUDY = "Start here", "Train and predict", "Account and release", "Measure"

app.command("demo", rich_help_panel=_FIRST)(studies.demo)
app.command("plan", rich_help_panel=_RUN)(running.plan)
app.command("fit", rich_help_panel=_RUN)(running.fit)
app.command("predict", rich_help_panel=_RUN)(running.predict)
app.command("release", rich_help_panel=_OUT)(leaving.release)
app.command("inspect", rich_help_panel=_OUT)(leaving.inspect)
app.add_typer(ledger, name="ledger", rich_help_panel=_OUT)
app.add_typer(sessions.app, name="dpa", rich_help_panel=_RUN)
app.command("compare", rich_help_panel=_STUDY)(studies.compare)
app.add_typer(attack, name="attack", rich_help_panel=_STUDY)
app.command("audit", rich_help_panel=_STUDY)(auditing.audit)
app.command("reproduce", rich_help_panel=_STUDY)(studies.reproduce)
attack.command("linkteller")(attacking.linkteller)
attack.command("link-stealing")(attacking.link_stealing)
attack.command("membership")(attacking.membership)
ledger.command("list")(spending.show)
ledger.command("budget")(spending.budget)
ledger.command("total")(spending.total)


def main() -> None:
    """Run the command line."""
    app()
