"""``tacit attack``: what an enemy gets out of a run, a bundle or a service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tacit.cli import options as o
from tacit.cli.output import Screen, guarded

if TYPE_CHECKING:
    from tacit.attacks.curves import Curve
    from tacit.attacks.membership import Membership
    from tacit.attacks.pairs import Finding

_PRIVATE = "These figures read the private graph: they are for you alone, and never enter a bundle."

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A run folder, a bundle, or the address of a service (http://...).",
        show_default=False,
    ),
]
Nodes = Annotated[int, typer.Option(metavar="N", min=2, help="How many nodes to attack.")]
Density = Annotated[
    str,
    typer.Option(
        metavar="K", help="The share of pairs that the attacker takes to be linked, or true."
    ),
]
Pick = Annotated[
    Literal["random", "low", "high"],
    typer.Option(help="Which nodes: at random, with few links, or with many."),
]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for figures and pictures.")
]


def linkteller(
    target: Target,
    graph: o.Graphs,
    nodes: Nodes = 500,
    density: Density = "true",
    pick: Pick = "random",
    reweight: Annotated[
        float,
        typer.Option(
            metavar="D", help="Features of a node are multiplied by 1 + D; 32-bit services: 1e-2."
        ),
    ] = 1e-4,
    probe: Annotated[
        Literal["scale", "shift"],
        typer.Option(help="Multiply a row, or shift it: for models that normalise rows."),
    ] = "scale",
    queries: Annotated[
        bool,
        typer.Option("--queries", help="Ask once per node, also where our own model knows."),
    ] = False,
    read: o.Read = None,
    seed: o.Seed = None,
    ledger: o.LedgerPath = None,
    out: Out = Path("attacked"),
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Guess links by how far changing one node moves the answer for another.

    Free where answers come from what was released; a new graph is charged once, as for predict.

    Example: tacit attack linkteller run graph.npz --nodes 500 --density true --out attacked
    """
    screen = Screen(as_json=as_json, quiet=quiet)
    with guarded(debug):
        believed = _density(density)
        import numpy as np

        from tacit.attacks.black_box import open_target
        from tacit.attacks.linkteller import linkteller as attack

        loaded = o.load_graph(graph, read)
        box = open_target(target, loaded, ledger=o.open_ledger(ledger))
        with screen.stages() as progress:
            found = attack(
                box,
                loaded,
                nodes=nodes,
                density=believed,
                delta=reweight,
                probe=probe,
                pick=pick,
                seed=seed or 0,
                fast=not queries,
                progress=progress,
            )
        out.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(out / "linkteller.npz", nodes=found.nodes, influence=found.influence)
        findings = [found.finding, found.relative]
        figures = {
            **found.finding.to_dict(),
            "relative": found.relative.to_dict(),
            "nodes": len(found.nodes),
            "queries": found.queries,
            "seconds": found.seconds,
        }
        _report_links(
            screen, "linkteller", findings, figures, out, f"LinkTeller on {_named(target)}"
        )


def link_stealing(
    target: Target,
    graph: o.Graphs,
    nodes: Nodes = 500,
    density: Density = "true",
    pick: Pick = "random",
    read: o.Read = None,
    seed: o.Seed = None,
    ledger: o.LedgerPath = None,
    out: Out = Path("attacked"),
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Guess links by how alike two nodes' answers are, and how alike their features are.

    Example: tacit attack link-stealing run graph.npz --out attacked
    """
    screen = Screen(as_json=as_json, quiet=quiet)
    with guarded(debug):
        believed = _density(density)
        import time

        from tacit.attacks.black_box import open_target
        from tacit.attacks.link_stealing import best
        from tacit.attacks.link_stealing import link_stealing as attack
        from tacit.attacks.pairs import choose, linked

        loaded, number = o.load_graph(graph, read), seed or 0
        box = open_target(target, loaded, ledger=o.open_ledger(ledger))
        chosen = choose(loaded, nodes, pick, number)
        truth = linked(loaded, chosen)
        started = time.perf_counter()
        findings = [
            finding
            for source, rows in (
                ("posteriors", box(chosen, loaded.features)),
                ("features", loaded.features[chosen]),
            )
            for finding in attack(rows, truth, source=source, density=believed, seed=number)
        ]
        top = best(tuple(findings))
        figures = {
            **top.to_dict(),
            "distances": [finding.to_dict() for finding in findings],
            "nodes": len(chosen),
            "seconds": time.perf_counter() - started,
        }
        drawn = sorted(findings, key=lambda finding: -finding.auc)[:6]
        _report_links(
            screen,
            "link-stealing",
            findings,
            figures,
            out,
            f"Link stealing on {_named(target)}",
            drawn,
        )


def membership(
    target: Target,
    graph: o.Graphs,
    attack: Annotated[
        Literal["shadow", "lira"],
        typer.Option(help="Shadow models and a network, or the likelihood ratio."),
    ] = "shadow",
    runs: Annotated[int, typer.Option(metavar="R", min=1, help="Shadow models of shadow.")] = 10,
    models: Annotated[int, typer.Option(metavar="M", min=8, help="Shadow models of lira.")] = 16,
    split: o.Split = None,
    read: o.Read = None,
    seed: o.Seed = None,
    out: Out = Path("attacked"),
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Guess which nodes a run was trained on, from its own answers. Free.

    GRAPH is the graph it was trained on; give the same --split and --seed as for fit.

    Example: tacit attack membership run graph.npz --attack lira --out attacked
    """
    screen = Screen(as_json=as_json, quiet=quiet)
    with guarded(debug):
        from tacit.attacks.likelihood_ratio import likelihood_ratio_attack
        from tacit.attacks.membership import on_graph, shadow_attack
        from tacit.attacks.run_target import known_run
        from tacit.study.roles import with_split

        number = seed or 0
        loaded = with_split(o.load_graph(graph, read), o.shares(split), number)
        aim = known_run(target, loaded)
        expose = on_graph(aim.make)
        with screen.stages() as progress:
            if attack == "shadow":
                found = shadow_attack(
                    expose,
                    loaded,
                    share=aim.share,
                    target=aim.exposed,
                    runs=runs,
                    seed=number,
                    progress=progress,
                )
            else:
                found = likelihood_ratio_attack(
                    expose,
                    loaded,
                    share=aim.share,
                    target=(aim.posteriors, loaded.train),
                    models=models,
                    seed=number,
                    progress=progress,
                )
        _report_members(screen, found, out, target)


def _named(target: str) -> str:
    """A target's name for the title of a picture: no path of the machine."""
    return target if "://" in target else Path(target).resolve().name


def _density(text: str) -> float | None:
    """The believed density, None for the true one."""
    if text == "true":
        return None
    value = o.numbers(text, "--density")[0]
    if not 0 <= value <= 1:
        raise typer.BadParameter("--density is a share of all pairs, or true")
    return value


def _report_links(
    screen: Screen,
    name: str,
    findings: list[Finding],
    figures: dict[str, Any],
    out: Path,
    title: str,
    drawn: list[Finding] | None = None,
) -> None:
    from tacit.study.attack_pictures import draw_curves

    out.mkdir(parents=True, exist_ok=True)
    shown = drawn or findings
    picture = draw_curves(
        {f"{x.name}: AUC {x.auc:.3f}": x.roc() for x in shown},
        out / f"{name}.png",
        title=title,
        precision_recall={x.name: x.precision_recall() for x in shown},
    )
    screen.show(_links_table(findings), _PRIVATE)
    _finish(screen, name, figures, out, picture)


def _report_members(screen: Screen, found: Membership, out: Path, target: str) -> None:
    from tacit.study.attack_pictures import draw_curves

    out.mkdir(parents=True, exist_ok=True)
    curve: Curve = found.roc()
    picture = draw_curves(
        {f"{found.name}: AUC {found.auc:.3f}": curve},
        out / "membership.png",
        title=f"Node membership on {_named(target)}",
    )
    screen.show(f"{found.name}: AUC {found.auc:.3f} over {len(found.aucs)} runs", _PRIVATE)
    _finish(screen, "membership", found.to_dict(), out, picture)


def _finish(screen: Screen, name: str, figures: dict[str, Any], out: Path, picture: Path) -> None:
    from tacit.cli.output import plain
    from tacit.study.folders import write_json

    report = out / f"{name}.json"
    write_json(report, plain({**figures, "private": _PRIVATE}))
    screen.result({**figures, "out": str(report), "png": str(picture)}, f"{picture}\n{report}")


def _links_table(findings: list[Finding]) -> object:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("attack", no_wrap=True)
    for head in ("AUC", "precision", "recall", "F1", "at k/4", "at 4k"):
        table.add_column(head, justify="right", no_wrap=True)
    for finding in findings:
        guess = finding.guess
        others = [finding.guesses[factor].f1 for factor in (0.25, 4.0)]
        values = [finding.auc, guess.precision, guess.recall, guess.f1, *others]
        table.add_row(finding.name, *(f"{value:.3f}" for value in values))
    return table
