"""``tacit attack``: what it answers, writes, charges and refuses."""

import json
from pathlib import Path

import numpy as np
from command_line import QUICK, Command, answer, npz

import tacit


def test_linkteller_answers_its_contract(tacit_command: Command, graph_file: Path) -> None:
    run = ("fit", graph_file, "--method", "gcn", "--epsilon", "inf", "--set", "epochs=20")
    answer(tacit_command(*run, "--set", "layers=1", "--out", "victim", "--json"))
    asked = ("attack", "linkteller", "victim", graph_file, "--nodes", 50, "--density", "true")
    found = answer(tacit_command(*asked, "--seed", 1, "--json", "--out", "found"))
    assert found["auc"] == found["precision"] == found["recall"] == found["f1"] == 1.0
    assert found["seconds"] > 0
    assert found["queries"] == 0
    assert json.loads(Path("found/linkteller.json").read_text())["auc"] == 1.0
    assert Path(found["png"]).read_bytes()[1:4] == b"PNG"
    assert np.load("found/linkteller.npz")["influence"].shape == (50, 50)
    slow = answer(tacit_command(*asked, "--seed", 1, "--queries", "--json"))
    assert (slow["auc"], slow["queries"]) == (1.0, 51)
    half = answer(tacit_command(*asked[:-1], 0.01, "--pick", "high", "--json"))
    assert half["density"] == 0.01


def test_link_stealing_compares_sixteen_distances(tacit_command: Command, graph_file: Path) -> None:
    answer(tacit_command("fit", graph_file, "--epsilon", 4, *QUICK[:2], "--out", "run", "--json"))
    found = answer(tacit_command("attack", "link-stealing", "run", graph_file, "--json"))
    assert len(found["distances"]) == 16
    assert found["f1"] == max(row["f1"] for row in found["distances"])
    shown = tacit_command("attack", "link-stealing", "run", graph_file, "--nodes", 40)
    assert "manhattan of features" in shown.stdout
    assert "for you alone" in " ".join(shown.stdout.split())


def test_a_new_graph_is_charged_once_and_an_old_one_not(
    tacit_command: Command, graph_file: Path, tmp_path: Path
) -> None:
    answer(tacit_command("fit", graph_file, "--epsilon", 4, *QUICK[:2], "--out", "run", "--json"))
    other = tacit.graph.synthetic.communities(90, mean_degree=8, features=9, classes=3, seed=5)

    def charges() -> int:
        return len(answer(tacit_command("ledger", "list", "--json"))["entries"])

    before = charges()
    for graph, more in ((graph_file, 0), (npz(other, tmp_path / "other.npz"), 1)):
        found = answer(tacit_command("attack", "linkteller", "run", graph, "--nodes", 60, "--json"))
        assert found["auc"] == 0.5
        assert charges() == before + more


def test_membership_of_a_run(tacit_command: Command, graph_file: Path) -> None:
    fit = ("fit", graph_file, "--epsilon", "inf", *QUICK[:2], "--split", "30/10/60", "--seed", 3)
    answer(tacit_command(*fit, "--out", "run", "--json"))
    asked = ("attack", "membership", "run", graph_file, "--split", "30/10/60")
    for more in (("--runs", 1), ("--attack", "lira", "--models", 8)):
        found = answer(tacit_command(*asked, "--seed", 3, *more, "--json"))
        assert 0 <= found["auc"] <= 1
        assert found["members"] == 36
        assert Path(found["png"]).exists()
    wrong = tacit_command(*asked, "--seed", 4)
    assert wrong.exit_code == 1
    assert "another split" in wrong.stderr


def test_wrong_usage_is_told_apart_from_failure(tacit_command: Command, graph_file: Path) -> None:
    ask = ("attack", "linkteller", "nothing", graph_file)
    assert tacit_command(*ask, "--density", "2").exit_code == 2
    assert tacit_command(*ask, "--pick", "best").exit_code == 2
    assert tacit_command(*ask).exit_code == 1
    assert tacit_command("attack", "linkteller", "http://127.0.0.1:9", graph_file).exit_code == 1
