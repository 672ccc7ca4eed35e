from pathlib import Path

import pytest
from matplotlib.figure import Figure

from tacit.study.pictures import Panel, Series, draw


def test_the_scale_holds_every_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later panel with lower accuracies was once cut off by the first one's scale."""
    seen: list[tuple[float, float]] = []
    real = Figure.savefig

    def look(figure: Figure, *args: object, **options: object) -> None:
        seen.extend(axes.get_ylim() for axes in figure.axes)
        real(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", look)
    panels = [
        Panel(title, "ε", (Series("GAP", 0, (1.0, 2.0), (y, y), (y - 0.05,) * 2, (y + 0.05,) * 2),))
        for title, y in (("high", 0.9), ("low", 0.2))
    ]
    path = draw(panels, tmp_path / "p.png")
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert all(bottom <= 15 and top >= 95 for bottom, top in seen)
