"""Pictures of attacks: ROC and precision-recall curves. Private, as the figures in them are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.study.pictures import COLOURS, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tacit.attacks.curves import Curve
    from tacit.study.attack_study import Attacked

_MANY = (*COLOURS, "#000000", "#8C6D31", "#999999")
_INK, _FAINT = "#333333", "#DDDDDD"
_STYLES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1)), (0, (4, 1, 1, 1)))
_NOTE = "private: read off the true links and members"


def draw_curves(
    roc: Mapping[str, Curve],
    path: Path,
    *,
    title: str,
    precision_recall: Mapping[str, Curve] | None = None,
) -> Path:
    """Draw ROC curves, and precision-recall curves beside them.

    Args:
        roc: By label.
        path: The PNG file.
        title: Above.
        precision_recall: By label; None for none.

    Returns:
        The path.
    """
    # The object interface: it needs no display and leaves matplotlib's global state alone.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = 1 if precision_recall is None else 2
    figure = Figure(figsize=(0.6 + 4.6 * panels, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    _lines(axes[0], roc, "false positive rate", "true positive rate")
    axes[0].plot([0, 1], [0, 1], color="#999999", linewidth=1, linestyle=(0, (2, 2)), zorder=1)
    if precision_recall is not None:
        _lines(axes[1], precision_recall, "recall", "precision")
    axes[0].legend(frameon=False, fontsize=9, loc="lower right")
    figure.suptitle(title, fontsize=11.5, color=_INK)
    figure.supxlabel(_NOTE, fontsize=8.5, color="#666666")
    return _written(figure, path)


def _written(figure: Figure, path: Path) -> Path:
    """Write a picture, all of it or nothing."""
    part = path.with_name(f"{path.name}.part")
    figure.savefig(part, dpi=150, format="png", facecolor="white")
    part.replace(path)
    return path


def _lines(axes: Axes, found: Mapping[str, Curve], x_label: str, y_label: str) -> None:
    for index, (label, curve) in enumerate(found.items()):
        axes.plot(
            curve.x,
            curve.y,
            label=label,
            color=COLOURS[index % len(COLOURS)],
            linestyle=_STYLES[index % len(_STYLES)],
            linewidth=1.8,
        )
    axes.set_xlim(-0.01, 1.01)
    axes.set_ylim(-0.01, 1.01)
    _dress(axes, x_label, y_label)


def _dress(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(x_label, fontsize=10, color=_INK)
    axes.set_ylabel(y_label, fontsize=10, color=_INK)
    axes.grid(color=_FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelsize=9.5, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw_tradeoff(cells: Sequence[Attacked], path: Path) -> Path:
    """Draw F1 of the attack above and accuracy of the victim below, against epsilon.

    Victims without privacy are dashed levels. One column for each attacked graph.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from tacit.study.attack_study import means_of

    graphs = list(dict.fromkeys(cell.data for cell in cells))
    labels = list(dict.fromkeys(cell.label for cell in cells))
    figure = Figure(figsize=(2.2 + 4.8 * len(graphs), 8.2), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, len(graphs), squeeze=False, sharex=True)
    for column, data in enumerate(graphs):
        means = means_of(cells, data)
        for row, (place, words) in enumerate(
            ((1, "F1 of the attack (%)"), (4, "accuracy of the victim (%)"))
        ):
            axes = grid[row][column]
            for style, label in enumerate(labels):
                points = sorted((e, 100 * m[place]) for (n, e), m in means.items() if n == label)
                _victim(axes, points, label, style)
            _dress(axes, "privacy budget ε" if row else "", words if column == 0 else "")
            low, high = axes.get_ylim()
            spare = max(0.0, 5.0 - (high - low)) / 2  # fewer than five points are one level
            axes.set_ylim(low - spare, high + spare)
        grid[0][column].set_title(data, fontsize=11.5, color=_INK, loc="left")
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(
        handles,
        names,
        loc="outside upper center",
        ncols=min(2 * len(graphs), 4),
        frameon=False,
        fontsize=9.5,
    )
    figure.supxlabel(_NOTE, fontsize=8.5, color="#666666")
    return _written(figure, path)


def _victim(axes: Axes, points: list[tuple[float, float]], label: str, style: int) -> None:
    """One victim: a line over its budgets, or a level where it has no privacy."""
    colour = _MANY[style % len(_MANY)]
    for x, y in points:
        if math.isinf(x):
            name = f"{label}, no privacy"
            axes.axhline(y, color=colour, linestyle=_STYLES[1 + style % 3], label=name)
    finite = [(x, y) for x, y in points if math.isfinite(x)]
    if finite:
        marker = MARKERS[style % len(MARKERS)]
        xs, ys = zip(*finite, strict=True)
        axes.plot(xs, ys, color=colour, marker=marker, markersize=5, linewidth=1.8, label=label)
