"""``tacit plan``, ``tacit fit`` and ``tacit predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options as o
from tacit.cli.output import (
    Screen,
    guarded,
    peak_memory,
    plan_table,
    plan_words,
    settings_words,
)

if TYPE_CHECKING:
    from tacit.graph import Graph
    from tacit.methods import Method
    from tacit.study.attempt import Attempt

_FACTS = "Public facts"


def plan(
    classes: Annotated[int, typer.Option(help="Number of classes.", rich_help_panel=_FACTS, min=2)],
    nodes: Annotated[
        int | None, typer.Option(help="Number of nodes.", rich_help_panel=_FACTS, min=1)
    ] = None,
    train: Annotated[
        int | None, typer.Option(help="Number of training nodes.", rich_help_panel=_FACTS, min=1)
    ] = None,
    features: Annotated[
        int | None, typer.Option(help="Width of a feature row.", rich_help_panel=_FACTS, min=1)
    ] = None,
    public_nodes: Annotated[
        int | None,
        typer.Option(help="Number of nodes of a public graph.", rich_help_panel=_FACTS, min=1),
    ] = None,
    directed: Annotated[
        bool, typer.Option("--directed", help="Links go one way.", rich_help_panel=_FACTS)
    ] = False,
    method: o.Method = None,
    settings: o.Settings = None,
    config: o.Config = None,
    unit: o.Unit = None,
    epsilon: o.Epsilon = None,
    delta: o.Delta = None,
    relation: o.Relation = None,
    accounting: o.Accounting = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Show what a fit would do and cost. Touches no data, charges nothing.

    Of the public facts a method wants those it plans with.

    Example: tacit plan --unit node --epsilon 8 --nodes 15000 --train 11000 --features 346
    --classes 6
    """
    screen = Screen(as_json=as_json, quiet=quiet)
    with guarded(debug):
        asked = o.Asked(method, unit, epsilon, delta, relation, accounting)
        _, recipe = asked.over(config, settings)
        facts = o.public_facts(
            recipe,
            classes,
            directed,
            nodes=nodes,
            train=train,
            features=features,
            public_nodes=public_nodes,
        )
        model = recipe.model(0)
        made = model.plan(facts)
        if recipe.cut is None and None in (nodes, train, features):
            screen.tell(f"{recipe.method} plans without the facts left out: 1 stands for them")
        screen.show(*plan_words(made))
        if made.stages:
            screen.show(plan_table(made))
        screen.show(settings_words(made))
        statement = model.promise(made)
        screen.result(
            {**made.to_dict(), "statement": statement.to_dict()},
            "" if not quiet else f"epsilon {statement.epsilon:.4f}",
        )


def fit(
    graph: o.Graphs,
    method: o.Method = None,
    settings: o.Settings = None,
    config: o.Config = None,
    read: o.Read = None,
    public: o.Public = None,
    split: o.Split = None,
    seed: o.Seed = None,
    unit: o.Unit = None,
    epsilon: o.Epsilon = None,
    delta: o.Delta = None,
    relation: o.Relation = None,
    accounting: o.Accounting = None,
    noise: o.Noise = None,
    budget: o.Budget = None,
    ledger: o.LedgerPath = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="RUN",
            help="Folder for the run; repeat the command to resume an interrupted one. "
            "\\[runs/METHOD-UNIT-EPSILON]",
            rich_help_panel="Output",
        ),
    ] = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Train on a private graph: plan, charge the ledger, run, state what was promised.

    Example: tacit fit graph.npz --unit edge --epsilon 4 --delta 1e-6 --out run
    """
    screen = Screen(as_json=as_json, quiet=quiet)
    with guarded(debug):
        options = o.Asked(
            method, unit, epsilon, delta, relation, accounting, noise, split, seed, budget, public
        )
        asked, recipe = options.over(config, settings)
        ratios = o.shares(asked.split)
        number = asked.seed or 0
        from tacit.study.roles import with_roles

        loaded = o.with_public(o.load_graph(graph, read), asked.public, read)
        loaded = with_roles(loaded, recipe, ratios, number)
        folder = out or Path("runs") / f"{recipe.method}-{recipe.unit}-{recipe.epsilon:g}"
        account = o.open_ledger(ledger)
        model = recipe.model(number)
        if asked.budget is not None:
            from tacit.graph import fingerprint

            account.set_budget(fingerprint(loaded), model.unit.name, asked.budget, recipe.delta)

        def announce(attempt: Attempt) -> None:
            beside = () if loaded.public is None else (f"public: {loaded.public!r}",)
            screen.show(f"{loaded!r}", *beside, *plan_words(attempt.plan))
            if attempt.plan.stages:
                screen.show(plan_table(attempt.plan))
            again = "resumes, charged once" if attempt.resumed else "charged before noise is drawn"
            screen.tell(f"run {attempt.run} in {folder} ({again}; ledger {account.path})")

        from tacit.study.attempt import fit_into

        try:
            with screen.stages() as progress:
                fit_into(
                    folder,
                    model,
                    loaded,
                    account,
                    asked=_same(loaded, number, asked.split, recipe.noise),
                    progress=progress,
                    on_start=announce,
                )
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(_how_to_resume(stop, account)) from None
        _report(screen, model, folder)


def _same(graph: Graph, seed: int, split: str | None, noise: str) -> dict[str, Any]:
    """What has to be the same when a run resumes, beside its plan and its private graph."""
    from tacit.graph import fingerprint

    asked = {"seed": seed, "split": split, "noise": noise}
    return asked if graph.public is None else {**asked, "public": fingerprint(graph.public)}


def _how_to_resume(stop: KeyboardInterrupt, account: Any) -> str:
    attempt: Any = stop.args[0] if stop.args else None
    if attempt is None or not attempt.paid(account):
        return "Nothing was charged and nothing was stored."
    return (
        f"Run {attempt.run} was charged; nothing noisy was shown. Repeat the same command to "
        f"resume it from {attempt.folder} without a second charge."
    )


def _report(screen: Screen, model: Method, folder: Path) -> None:
    fitted = model.fitted
    on = " on the public graph" if model.learns_for_public else ""
    screen.show(model.statement.panel(), *fitted.outcome.notes)
    screen.show(
        f"Accuracy{on} (private, for you alone): {accuracy_words(fitted.metrics)}. "
        f"{fitted.seconds:.1f} s, peak memory {peak_memory() / 2**20:,.0f} MiB.",
        f"Next: tacit predict {folder}   or   tacit release {folder} BUNDLE"
        if model.statement.releasable
        else f"Next: tacit predict {folder}",
    )
    screen.result(
        {
            "method": fitted.plan.method,
            "metrics": {"test_accuracy": None, "val_accuracy": None, **fitted.metrics},
            "seconds": fitted.seconds,
            "peak_rss_bytes": peak_memory(),
            "statement": fitted.statement.to_dict(),
            "run": fitted.run,
            "out": str(folder),
            "data": fitted.data,
            "seed": fitted.seed,
            "notes": list(fitted.outcome.notes),
            "plan": fitted.plan.to_dict(),
        },
        str(folder) if screen.quiet else "",
    )


def accuracy_words(metrics: dict[str, float]) -> str:
    """Accuracies in one line."""
    parts = (
        f"{name.removesuffix('_accuracy')} {100 * value:.1f} %"
        for name, value in reversed(metrics.items())
    )
    return ", ".join(parts) or "no labelled nodes"


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that fit wrote.")],
    graph: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GRAPH]",
            help="A new graph of the same form; it is read with fresh noise and charged to its own "
            "account. Without it (or with the training graph itself): the training nodes, free.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="CSV", help="Where the labels go."),
    ] = None,
    read: o.Read = None,
    ledger: o.LedgerPath = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Predict classes with a fitted run, as a CSV of node and label.

    Example: tacit predict run --out labels.csv
    """
    screen = Screen(as_json=as_json, quiet=quiet)
    with guarded(debug):
        from tacit.methods import load_run

        model = load_run(run)
        loaded = o.load_graph(graph, read) if graph else None
        known = loaded is None or _is_training_graph(loaded, model)
        if known:
            labels, charged, spent = model.predict(), None, 0.0
            if loaded is not None:
                screen.tell("this is the graph the run was trained on: nothing is charged")
        else:
            with screen.stages() as progress:
                labels, charged, spent = _charged(model, loaded, ledger, progress)
            if charged is None:
                screen.tell("reads nothing of the new graph that the unit protects: free")
            else:
                screen.tell(f"charged epsilon {spent:.4g} to the new graph (run {charged})")
        target = out or run / "labels.csv"
        _write_labels(target, labels, loaded, model.fitted.classes)
        if not model.fitted.outcome.public_posteriors:
            screen.tell(
                "Each label reads its own node's record: show it to that node alone "
                f"(unit {model.statement.unit})."
            )
        screen.result(
            {
                "out": str(target),
                "nodes": len(labels),
                "charged": charged,
                "epsilon": spent,
                "unit": model.statement.unit,
                "delta": model.statement.delta,
                "public": model.fitted.outcome.public_posteriors,
            },
            f"{len(labels):,} labels in {target}",
        )


def _is_training_graph(graph: Graph, model: Method) -> bool:
    from tacit.graph import fingerprint

    return fingerprint(graph) == model.fitted.data


def _charged(
    model: Method, graph: Any, ledger: Path | None, progress: Any
) -> tuple[Any, str | None, float]:
    """Labels of a new graph, the run that paid for them, and what it cost."""
    import uuid

    from tacit.graph import fingerprint

    account, run = o.open_ledger(ledger), uuid.uuid4().hex[:16]
    labels = model.predict(graph, ledger=account, run=run, progress=progress)
    entry = next((e for e in account.entries(fingerprint(graph)) if e.run == run), None)
    return labels, None if entry is None else run, 0.0 if entry is None else entry.epsilon


def _write_labels(path: Path, labels: Any, graph: Graph | None, classes: Any) -> None:
    import csv
    import io

    from tacit.study.folders import write_whole

    names = range(len(labels)) if graph is None or graph.ids is None else graph.ids.tolist()
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("node", "label"))
    rows.writerows(
        (name, classes[label] if classes else label)
        for name, label in zip(names, labels.tolist(), strict=True)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.getvalue())
