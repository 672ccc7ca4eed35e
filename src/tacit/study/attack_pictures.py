"""Pictures of attacks: ROC and precision-recall curves. Private, as the figures in them are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.study.pictures import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tacit.attacks.curves import Curve

_INK, _FAINT = "#333333", "#DDDDDD"
_STYLES = ("-", (0, (5, 2)), (0, (1, 1)), (0, (4, 1, 1, 1)))
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
    axes.set_xlabel(x_label, fontsize=10, color=_INK)
    axes.set_ylabel(y_label, fontsize=10, color=_INK)
    axes.grid(color=_FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelsize=9.5, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
