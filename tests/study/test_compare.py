"""Accuracy against k, over the unit of k links each way."""

import csv
from pathlib import Path

import pytest

import tacit
from tacit.errors import PlanError
from tacit.privacy import Ledger
from tacit.study.compare import Grid, compare, k_of, panels

QUICK = {"steps": 2, "epochs": 2}


def grid(**options: object) -> Grid:
    kept = {"methods": ("mlp",), "units": ("k-neighbours",), "epsilons": (4.0, 16.0), "repeats": 2}
    return Grid(**{**kept, "ks": (25, 1, 5), "settings": QUICK, **options})


def test_several_ks_are_drawn_against_k(tmp_path: Path) -> None:
    graph = tacit.graph.synthetic.communities(80, features=6, classes=3, seed=1)
    found = compare(graph, grid(), tmp_path, Ledger(tmp_path / "ledger.sqlite"))
    assert len(found.results) == 3 * 2 * 2
    assert sorted({k_of(point) for point in found.points}) == [1, 5, 25]
    by_epsilon = panels(found.points)
    assert [panel.title.rsplit(" ", 1)[1] for panel in by_epsilon] == ["4", "16"]
    assert all(panel.series[0].x == (1.0, 5.0, 25.0) for panel in by_epsilon)
    assert all("k (δ" in panel.x_label for panel in by_epsilon)
    assert found.picture.stat().st_size > 10_000
    with found.table.open() as file:
        settings = [row["settings"] for row in csv.DictReader(file)]
    assert sum("k=25" in text for text in settings) == 4
    again = compare(graph, grid(), tmp_path, Ledger(tmp_path / "ledger.sqlite"))
    assert again.points == found.points


def test_other_units_are_still_drawn_against_epsilon() -> None:
    cells = grid(units=("edge", "k-neighbours"), repeats=1).cells("")
    assert len([c for c in cells if c.recipe.unit == "edge"]) == 2
    assert len([c for c in cells if c.recipe.unit == "k-neighbours"]) == 6


def test_ks_without_their_unit_are_refused() -> None:
    with pytest.raises(PlanError, match="k-neighbours"):
        grid(units=("edge",)).cells("")
    with pytest.raises(PlanError, match="one place"):
        grid(settings={"k": 3}).cells("")
