"""``tacit audit``: try to break what a method promises, on generated witnesses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options as o
from tacit.cli.output import Screen, guarded

if TYPE_CHECKING:
    from tacit.attacks.audit import Audit
    from tacit.attacks.one_run import OneRun
    from tacit.study.recipe import Recipe

_HOW = "How to attack"
_BRIEF = {"epochs": 2, "student_epochs": 2, "encoder_epochs": 2, "queries": 8}
"""Settings of whole fits, where a method has them and nobody says otherwise.

Plain training is post-processing, so a short one hides little; eight public nodes can be asked.
"""


def audit(
    method: o.Method = None,
    unit: o.Unit = None,
    epsilon: o.Epsilon = None,
    delta: o.Delta = None,
    relation: o.Relation = None,
    accounting: o.Accounting = None,
    settings: o.Settings = None,
    config: o.Config = None,
    runs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=20,
            help="Runs on each graph that are counted. \\[millions of sums, 300 whole fits]",
            rich_help_panel=_HOW,
        ),
    ] = None,
    confidence: Annotated[
        float,
        typer.Option(
            min=0.5,
            max=0.9999,
            help="Of the verdict and all bounds together.",
            rich_help_panel=_HOW,
        ),
    ] = 0.95,
    whole: Annotated[
        bool,
        typer.Option("--whole", help="Attack whole fits, not single stages.", rich_help_panel=_HOW),
    ] = False,
    one_run: Annotated[
        bool,
        typer.Option(
            "--one-run",
            help="One run with many canaries (Steinke, Nasr, Jagielski 2023).",
            rich_help_panel=_HOW,
        ),
    ] = False,
    canaries: Annotated[
        int | None,
        typer.Option(metavar="M", min=40, help="Canaries of --one-run.", rich_help_panel=_HOW),
    ] = None,
    directed: Annotated[
        bool,
        typer.Option("--directed", help="Links of witnesses go one way.", rich_help_panel=_HOW),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="S", help="Repeat an audit exactly. \\[fresh noise]", rich_help_panel=_HOW
        ),
    ] = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Bound epsilon from below by attacking a method; exit code 1 if its claim is broken.

    Runs on generated graphs alone and charges nothing. That a claim "holds" means that this attack
    failed, not that a proof was found.

    Example: tacit audit --method gap --unit edge --epsilon 1
    """
    screen = Screen(as_json=as_json, quiet=quiet)
    with guarded(debug):
        asked = o.Asked(method, unit, epsilon, delta, relation, accounting)
        _, recipe = asked.over(config, settings)
        from tacit.attacks.audit import audit_method
        from tacit.attacks.one_run import one_run_method

        model = _brief(recipe).model(seed or 0)
        found: Audit | OneRun
        with screen.stages() as progress:
            if one_run:
                found = one_run_method(
                    model,
                    canaries=canaries,
                    confidence=confidence,
                    whole=whole,
                    directed=directed,
                    seed=seed,
                    progress=progress,
                )
            else:
                found = audit_method(
                    model,
                    runs=runs,
                    confidence=confidence,
                    whole=whole,
                    directed=directed,
                    seed=seed,
                    progress=progress,
                )
        data = {"recipe": str(recipe), **found.to_dict()}
        screen.show(*_words(recipe, data))
        screen.result(data, found.verdict if quiet else "")
    if found.verdict == "broken":
        raise typer.Exit(1)


def _brief(recipe: Recipe) -> Recipe:
    """The recipe with short plain training, unless the user said how long."""
    from tacit.study.recipe import setting_types

    known = setting_types(recipe.method)
    brief = {key: value for key, value in _BRIEF.items() if key in known}
    return recipe.with_settings({**brief, **dict(recipe.settings)})


def _words(recipe: Recipe, data: dict[str, Any]) -> list[Any]:
    """What an audit found, for people."""
    from rich import box
    from rich.table import Table

    lines: list[Any] = [
        f"{recipe}: claimed epsilon {data['epsilon_claimed']:.4g}, at least "
        f"{data['epsilon_lower']:.4g} at delta {data['delta']:g}, with {data['confidence']:.4g} "
        "confidence"
    ]
    if "canaries" in data:
        lines.append(
            f"one run: {data['correct']} of {data['guesses']} guesses right at "
            f"{data['canaries']:,} canaries ({data['witness']})"
        )
    if "targets" in data:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for head in ("target", "witness", "delta", "claimed", "at least", "runs"):
            table.add_column(head, justify="left" if head in ("target", "witness") else "right")
        for target in data["targets"]:
            told = target["points"][0]["delta"]
            shown = [p for p in target["points"] if p["delta"] in (told, target["broken_at"])]
            for point in shown:
                table.add_row(
                    target["target"],
                    target["witness"],
                    f"{point['delta']:.3g}",
                    f"{point['claimed']:.4g}",
                    f"{point['lower']:.4g}",
                    f"{target['runs']:,}",
                )
        lines.append(table)
    if data["verdict"] == "broken":
        lines.append(
            "The claim is BROKEN: an adversary tells the two graphs apart better than that."
        )
    else:
        lines.append("The claim held against this attack.")
    return lines
