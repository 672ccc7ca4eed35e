"""Pictures: lines with confidence bands, in colours that colour-blind readers can tell apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette; markers differ as well, for print in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P")
_INK, _FAINT = "#333333", "#DDDDDD"


@dataclass(frozen=True)
class Series:
    """One line.

    Attributes:
        label: What it is called.
        style: Which colour and marker.
        x: Where its points are.
        mean: Accuracies from 0 to 1.
        low: Lower ends of the intervals.
        high: Upper ends.
        level: Accuracy without privacy, drawn as a dashed level; None for none.
    """

    label: str
    style: int
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    level: float | None = None


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Attributes:
        title: Above it.
        x_label: Below it.
        series: What it shows.
        x_log: Whether equal steps are equal factors.
    """

    title: str
    x_label: str
    series: tuple[Series, ...]
    x_log: bool = True


def draw(panels: Sequence[Panel], path: Path, *, note: str = "") -> Path:
    """Draw panels side by side with one scale of accuracy.

    Args:
        panels: At least one.
        path: The PNG file.
        note: A line below.

    Returns:
        The path.
    """
    # The object interface: it needs no display and leaves matplotlib's global state alone.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(1.0 + 4.6 * columns, 0.6 + 3.7 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for index, axes in enumerate(grid.flat):
        if index < len(panels):
            _panel(axes, panels[index], first=index % columns == 0)
        else:
            axes.set_axis_off()
    _scale(grid.flat[0])
    _legend(figure, grid.flat[0], panels)
    if note:
        figure.supxlabel(note, fontsize=8.5, color="#666666")
    part = path.with_name(f"{path.name}.part")
    figure.savefig(part, dpi=150, format="png", facecolor="white")
    part.replace(path)
    return path


def _panel(axes: Axes, panel: Panel, *, first: bool) -> None:
    for series in panel.series:
        colour = COLOURS[series.style % len(COLOURS)]
        marker = MARKERS[series.style % len(MARKERS)]
        mean, low, high = ([100 * y for y in ys] for ys in (series.mean, series.low, series.high))
        if series.x:
            axes.fill_between(series.x, low, high, color=colour, alpha=0.18, linewidth=0)
            axes.plot(series.x, mean, color=colour, marker=marker, markersize=5.5, linewidth=1.8)
        if series.level is not None:
            axes.axhline(100 * series.level, color=colour, linestyle=(0, (5, 3)), linewidth=1.3)
    ticks = sorted({x for series in panel.series for x in series.x})
    if panel.x_log and ticks and ticks[0] > 0:
        axes.set_xscale("log", base=2)
    if ticks:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_title(panel.title, fontsize=11.5, color=_INK, loc="left")
    axes.set_xlabel(panel.x_label, fontsize=10, color=_INK)
    if first:
        axes.set_ylabel("test accuracy (%)", fontsize=10, color=_INK)
    axes.grid(axis="y", color=_FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelsize=9.5, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")


def _scale(axes: Axes) -> None:
    """Percent from 0 to 100, once every panel is drawn: they share the scale."""
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(0.0, bottom), min(100.0, top))
    if math.isclose(*axes.get_ylim()):
        axes.set_ylim(0.0, 100.0)


def _legend(figure: Figure, axes: Axes, panels: Sequence[Panel]) -> None:
    from matplotlib.lines import Line2D

    handles: list[Line2D] = []
    seen: dict[str, Series] = {}
    for panel in panels:
        for series in panel.series:
            seen.setdefault(series.label, series)
    for label, series in seen.items():
        colour = COLOURS[series.style % len(COLOURS)]
        marker = MARKERS[series.style % len(MARKERS)]
        handles.append(
            Line2D([], [], color=colour, marker=marker, markersize=5.5, linewidth=1.8, label=label)
        )
    if any(s.level is not None for panel in panels for s in panel.series):
        handles.append(
            Line2D([], [], color="#666666", linestyle=(0, (5, 3)), label="no privacy (ε = ∞)")
        )
    if len(handles) > 1:
        figure.legend(
            handles=handles,
            loc="outside upper center",
            ncols=min(len(handles), 4),
            frameon=False,
            fontsize=10,
        )
