"""The demonstration: what Tacit does, on a generated graph, with a report to keep."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.study.cells import OnCell
from tacit.study.compare import METHOD_WORDS, Comparison, Grid, compare
from tacit.study.folders import write_whole
from tacit.study.recipe import DELTA, Recipe, number

if TYPE_CHECKING:
    from tacit.graph import Graph
    from tacit.methods import Fitted

GRID = Grid(epsilons=(0.5, 1.0, 2.0, 4.0, 8.0, math.inf), repeats=3)
FITS = (("edge", 4.0), ("node", 8.0))


@dataclass(frozen=True)
class Report:
    """What the demonstration left behind.

    Attributes:
        page: The report as HTML, complete in one file.
        runs: The fitted runs.
        comparison: The curves.
        summary: What came out, in sentences.
    """

    page: Path
    runs: tuple[Fitted, ...]
    comparison: Comparison
    summary: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "report": str(self.page),
            "picture": str(self.comparison.picture),
            "csv": str(self.comparison.table),
            "runs": [
                {
                    "method": run.plan.method,
                    "metrics": run.metrics,
                    "seconds": run.seconds,
                    "statement": run.statement.to_dict(),
                    "run": run.run,
                }
                for run in self.runs
            ],
        }


def demo_graph() -> Graph:
    """The generated graph: communities whose features alone say too little."""
    from tacit.graph import synthetic

    made = synthetic.communities(
        1_800, mean_degree=30.0, classes=5, features=48, feature_signal=1.2, seed=7
    )
    return made.with_(name="demo")


def demo(
    folder: Path, *, say: Callable[[str], None] | None = None, on_cell: OnCell | None = None
) -> Report:
    """Plan, fit, release and compare on a generated graph, and write a report.

    Args:
        folder: Where everything goes, its own ledger too: the graph is nobody's.
        say: Told what happens, one sentence at a time.
        on_cell: Told which cell of the comparison starts.

    Returns:
        Where the report is and what is in it.
    """
    from tacit.graph import save, split
    from tacit.methods import save_run
    from tacit.privacy import Ledger

    tell = say or (lambda words: None)
    folder.mkdir(parents=True, exist_ok=True)
    graph, ledger = demo_graph(), Ledger(folder / "ledger.sqlite")
    save(graph, folder / "graph.npz")
    tell(f"1. A generated graph, so that nobody's data are needed: {graph!r}")
    divided, fitted = split(graph), []
    for unit, epsilon in FITS:
        for method in ("gap", "mlp"):
            model = Recipe(method, unit, epsilon, DELTA[unit]).model(seed=0)
            plan = model.plan(divided.facts())
            cost = "spends nothing" if not plan.stages else f"plans epsilon {plan.cost.epsilon:.3f}"
            run = model.fit(divided, plan, ledger).fitted
            save_run(model, folder / "runs" / f"{method}-{unit}")
            fitted.append(run)
            tell(
                f"2. {METHOD_WORDS[method]} under {unit} privacy {cost} at delta {plan.delta:g}; "
                f"test accuracy {100 * run.metrics['test_accuracy']:.1f} %"
            )
    tell("3. Accuracy against epsilon, every run charged to the ledger of the demonstration")
    curves = compare(graph, GRID, folder / "comparison", ledger, on_cell=on_cell)
    bundle = _release(folder, tell)
    summary = _summary(fitted, bundle)
    page = _write(folder, graph, tuple(fitted), curves, summary)
    return Report(page, tuple(fitted), curves, summary)


def _release(folder: Path, tell: Callable[[str], None]) -> Path:
    """The bundle of the GAP run under node privacy, written once."""
    from tacit.methods import load_run
    from tacit.release import release

    target = folder / "bundles" / "gap-node"
    number = 1
    while target.exists():
        number += 1
        target = folder / "bundles" / f"gap-node-{number}"
    target.parent.mkdir(exist_ok=True)
    release(load_run(folder / "runs" / "gap-node"), target)
    tell(f"4. What may leave is in {target}: weights, noisy sums, hashes and the statement")
    return target


def _summary(fitted: list[Fitted], bundle: Path) -> tuple[str, ...]:
    score = {(r.plan.method, r.plan.unit.name): 100 * r.metrics["test_accuracy"] for r in fitted}
    lines = []
    for unit, epsilon in FITS:
        gain = score["gap", unit] - score["mlp", unit]
        lines.append(
            f"Under {unit} privacy at epsilon {number(epsilon)} GAP reaches "
            f"{score['gap', unit]:.1f} %, {gain:+.1f} points against the MLP that reads no links."
        )
    return (*lines, f"The bundle {bundle} may leave; everything else stays with the owner.")


def _next_steps(folder: Path) -> tuple[tuple[str, str], ...]:
    graph, run = folder / "graph.npz", folder / "my-run"
    return (
        ("See what a fit would cost, without data",
         "tacit plan --unit node --epsilon 8 --nodes 15000 --train 11000 --features 346 "
         "--classes 6"),
        ("Fit on a graph: yours, or this one",
         f"tacit fit {graph} --unit edge --epsilon 2 --out {run}"),
        ("Predict for the nodes of that graph, free", f"tacit predict {run} --out labels.csv"),
        ("Write what may leave, and read what it says",
         f"tacit release {run} my-bundle && tacit inspect my-bundle"),
        ("See what the demonstration spent",
         f"tacit ledger total --ledger {folder / 'ledger.sqlite'}"),
    )  # fmt: skip


def _write(
    folder: Path,
    graph: Graph,
    fitted: tuple[Fitted, ...],
    curves: Comparison,
    summary: tuple[str, ...],
) -> Path:
    rows: list[tuple[str, ...]] = [
        (
            METHOD_WORDS[run.plan.method],
            run.plan.unit.name,
            f"{run.statement.epsilon:.3f}",
            f"{run.statement.delta:g}",
            f"{100 * run.metrics['test_accuracy']:.1f} %",
            f"{run.seconds:.1f} s",
        )
        for run in fitted
    ]
    shown = [run for run in fitted if run.plan.method == "gap"]
    write_whole(folder / "index.md", _markdown(folder, graph, rows, shown, curves, summary))
    page = folder / "index.html"
    write_whole(page, _html(folder, graph, rows, shown, curves, summary))
    return page


_TITLE = "Tacit: a demonstration"
_HEADS = ("method", "unit", "epsilon", "delta", "test accuracy", "time")
_INTRO = (
    "A graph was generated, so no person is in it. Every figure below that reads the graph, the "
    "accuracies above all, would be private if it were real."
)
_CAPTION = (
    "Accuracy against the privacy budget: mean and 95 % t interval over 3 splits and seeds. The "
    "dashed lines are the same methods without privacy."
)


def _markdown(
    folder: Path,
    graph: Graph,
    rows: list[tuple[str, ...]],
    shown: list[Fitted],
    curves: Comparison,
    summary: tuple[str, ...],
) -> str:
    parts = [f"# {_TITLE}", "", _INTRO, "", f"`{graph!r}`", ""]
    parts += [f"- {line}" for line in summary]
    picture = curves.picture.relative_to(folder).as_posix()
    parts += ["", f"![{_CAPTION}]({picture})", "", _CAPTION, ""]
    parts += [f"| {' | '.join(_HEADS)} |", "|" + "---|" * len(_HEADS)]
    parts += [f"| {' | '.join(row)} |" for row in rows]
    parts += ["", "## What to do next", ""]
    for words, command in _next_steps(folder):
        parts += [f"{words}:", "", f"    {command}", ""]
    for run in shown:
        title = f"{METHOD_WORDS[run.plan.method]} under {run.plan.unit.name} privacy"
        statement = run.statement.to_markdown().replace("\n## ", "\n### ")
        parts += [statement.replace("# Privacy statement", f"## Privacy statement: {title}", 1)]
    return "\n".join(parts).rstrip() + "\n"


_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, sans-serif; color: #222; background: #fff; max-width: 62rem;
  margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin-bottom: .4rem; } h2 { margin-top: 2.2rem; font-size: 1.25rem; }
h3 { margin: 1rem 0 .2rem; font-size: 1rem; }
img { width: 100%; height: auto; } figure { margin: 1.5rem 0; }
figcaption, .faint { color: #5b5b5b; font-size: .92rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .35rem .6rem;
  border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums; }
pre { background: #f4f4f2; padding: .6rem .8rem; overflow-x: auto; border-radius: 4px;
  margin: .3rem 0; }
details { border: 1px solid #ccc; border-radius: 6px; padding: .6rem 1rem; margin: .8rem 0; }
summary { cursor: pointer; font-weight: 600; } ul { margin: .2rem 0; padding-left: 1.2rem; }
"""


def _html(
    folder: Path,
    graph: Graph,
    rows: list[tuple[str, ...]],
    shown: list[Fitted],
    curves: Comparison,
    summary: tuple[str, ...],
) -> str:
    say = html.escape
    image = base64.b64encode(curves.picture.read_bytes()).decode()
    heads = "".join(f"<th scope='col'>{say(head)}</th>" for head in _HEADS)
    body = "".join(f"<tr>{''.join(f'<td>{say(x)}</td>' for x in row)}</tr>\n" for row in rows)
    steps = "".join(
        f"<p>{say(words)}:</p><pre>{say(command)}</pre>\n" for words, command in _next_steps(folder)
    )
    statements = "".join(_details(run) for run in shown)
    points = "".join(f"<li>{say(line)}</li>" for line in summary)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{say(_TITLE)}</title><style>{_STYLE}</style></head><body>
<h1>{say(_TITLE)}</h1>
<p>{say(_INTRO)}</p>
<p class="faint">{say(repr(graph))}</p>
<ul>{points}</ul>
<figure><img alt="{say(_CAPTION)}" src="data:image/png;base64,{image}">
<figcaption>{say(_CAPTION)}</figcaption></figure>
<table><thead><tr>{heads}</tr></thead><tbody>
{body}</tbody></table>
<h2>What was promised</h2>
{statements}
<h2>What to do next</h2>
{steps}</body></html>
"""


def _details(run: Fitted) -> str:
    say = html.escape
    title = f"{METHOD_WORDS[run.plan.method]} under {run.plan.unit.name} privacy"
    sections = "".join(
        f"<h3>{say(heading)}</h3><ul>{''.join(f'<li>{say(x)}</li>' for x in items)}</ul>"
        for heading, items in run.statement.sections()
    )
    return f"<details open><summary>{say(title)}</summary>{sections}</details>\n"
