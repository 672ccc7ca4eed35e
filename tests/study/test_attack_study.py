"""The study of attacks: it resumes, charges once, and puts attack beside utility."""

import json
from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit.errors import PlanError
from tacit.graph import Graph
from tacit.privacy import Ledger
from tacit.study import attack_study
from tacit.study.attack_study import macro_f1, read_attack_study, reproduce_attacks
from tacit.study.paper import find_config

CONFIG = """
kind = "attack"
title = "A small one"
repeats = 1
seed = 0
split = "75/10/15"
delta = 1e-6
nodes = 60
train = "seen"
attacked = { served = "made", elsewhere = "not there" }
quick = { attacked = ["served"], epsilons = [inf] }

[[victims]]
label = "GCN"
method = "gcn"
settings = { layers = 2, epochs = 15, hidden = 8 }
epsilons = [inf]

[[victims]]
label = "LapGraph"
method = "lapgraph"
settings = { epochs = 5, hidden = 8 }
epsilons = [0.5, 4]

[[victims]]
label = "GAP"
method = "gap"
settings = { epochs = 3, hidden = 8 }
epsilons = [1]

[[victims]]
label = "not made yet"
method = "nothing"
epsilons = [1]
"""


def save(graph: Graph, path: Path) -> None:
    np.savez(
        path,
        adj_data=np.ones(graph.arcs, np.float32),
        adj_indices=graph.indices,
        adj_indptr=graph.indptr,
        adj_shape=np.array([graph.nodes, graph.nodes]),
        attr_matrix=graph.features,
        labels=graph.labels,
    )


@pytest.fixture
def study(tmp_path: Path) -> attack_study.AttackStudy:
    for seed, name in enumerate(("seen", "served")):
        made = tacit.graph.synthetic.communities(
            150, mean_degree=8, features=9, classes=3, seed=seed
        )
        save(made, tmp_path / f"{name}.npz")
    (tmp_path / "config.toml").write_text(CONFIG)
    found = read_attack_study(tmp_path / "config.toml")
    assert found is not None
    return found


def test_it_attacks_every_victim_and_resumes(
    study: attack_study.AttackStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, out = Ledger(tmp_path / "own.sqlite"), tmp_path / "out"
    made = reproduce_attacks(study, tmp_path, out, ledger)
    by_label = {(cell.label, cell.epsilon): cell for cell in made.cells}
    assert len(by_label) == 4
    assert by_label["GCN", float("inf")].auc > 0.9
    assert by_label["GAP", 1.0].auc == 0.5
    assert by_label["LapGraph", 0.5].auc < by_label["GCN", float("inf")].auc
    assert all(0 <= cell.accuracy <= 1 for cell in made.cells)
    assert made.picture.read_bytes()[1:4] == b"PNG"
    text = made.report.read_text()
    assert "| LapGraph | 0.5 |" in text
    assert "Not here: nothing." in text
    charges = len(ledger.entries())
    assert charges == 2 * 4  # the graph learnt from, and the graph served

    lines = (out / "cells.jsonl").read_text().splitlines()
    (out / "cells.jsonl").write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:20])
    monkeypatch.setattr(attack_study, "_victim", _only(attack_study._victim, "GAP"))
    again = reproduce_attacks(study, tmp_path, out, ledger)
    assert [cell.key for cell in again.cells] == [cell.key for cell in made.cells]
    assert len(ledger.entries()) == charges
    assert len((out / "cells.jsonl").read_text().splitlines()) == 4


def _only(function, label: str):
    def called(study, victim, *rest):
        assert victim.label == label
        return function(study, victim, *rest)

    return called


def test_quick_leaves_few_cells(study: attack_study.AttackStudy, tmp_path: Path) -> None:
    made = reproduce_attacks(
        study, tmp_path, tmp_path / "out", Ledger(tmp_path / "own.sqlite"), quick=True
    )
    assert [cell.label for cell in made.cells] == ["GCN"]
    json.dumps(made.to_dict()["pictures"])


def test_missing_data_are_named(study: attack_study.AttackStudy, tmp_path: Path) -> None:
    (tmp_path / "seen.npz").unlink()
    with pytest.raises(PlanError, match=r"seen\.npz"):
        reproduce_attacks(study, tmp_path, tmp_path / "out", Ledger(tmp_path / "own.sqlite"))


def test_other_configurations_are_left_to_others(tmp_path: Path) -> None:
    assert read_attack_study(find_config("gap", None)) is None
    shipped = read_attack_study(find_config("linkteller", None))
    assert shipped is not None
    assert (shipped.train, list(shipped.attacked)) == ("twitch_es", ["twitch_ru", "twitch_ptbr"])
    with pytest.raises(PlanError, match="not a configuration"):
        read_attack_study(tmp_path / "nothing.toml")


def test_macro_f1_is_the_mean_over_classes() -> None:
    guessed, labels = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    assert macro_f1(guessed, labels, 3) == pytest.approx((2 / 3 + 4 / 5) / 2)
