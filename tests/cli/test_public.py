"""Methods that learn for a public graph, on the command line."""

from pathlib import Path

import pytest
from command_line import Command, answer, npz

import tacit
from tacit.graph import Cut, cut

CENSUS = ("--method", "census", "--set", "epochs=3", "--set", "encoder_epochs=2")
SIZES = ("--set", "private_nodes=50", "--set", "public_train=30", "--set", "public_test=30")
STATEMENT = {"unit", "relation", "epsilon", "delta", "accountant", "releasable"}


@pytest.fixture
def parts(tmp_path: Path, graph_file: Path) -> tuple[Path, Path]:
    both = cut(tacit.load(graph_file), Cut(60, 30, 30))
    return npz(both, tmp_path / "private.npz"), npz(both.public, tmp_path / "public.npz")


def test_two_files(tacit_command: Command, parts: tuple[Path, Path], own_ledger: Path) -> None:
    words = ("fit", parts[0], *CENSUS, "--public", parts[1], "--epsilon", 2, "--out", "run")
    found = answer(tacit_command(*words, "--json"))
    assert found["statement"]["unit"] == "node-all"
    assert found["statement"]["epsilon"] <= 2
    assert found["plan"]["facts"]["train_nodes"] == 60
    assert 0 <= found["metrics"]["test_accuracy"] <= 1
    assert len(tacit.Ledger(own_ledger).entries()) == 1
    released = answer(tacit_command("release", "run", "bundle", "--json"))
    assert "posteriors" in released["arrays"]
    assert answer(tacit_command("inspect", "bundle", "--json"))["verified"]
    # Another public graph costs nothing.
    predicted = answer(tacit_command("predict", "run", parts[1], "--out", "l.csv", "--json"))
    assert (predicted["charged"], predicted["nodes"]) == (None, 60)
    assert predicted["public"] is True


def test_one_file_cut_in_two(tacit_command: Command, graph_file: Path) -> None:
    words = ("fit", graph_file, *CENSUS, *SIZES, "--epsilon", 2, "--seed", 4)
    found = answer(tacit_command(*words, "--out", "run", "--json"))
    facts = found["plan"]["facts"]
    assert (facts["nodes"], facts["train_nodes"], facts["public_nodes"]) == (50, 50, 60)
    whole = tacit.load(graph_file)
    private = cut(whole, Cut(50, 30, 30), 4)
    assert found["data"] == tacit.graph.fingerprint(private)
    again = answer(tacit_command(*words, "--out", "other", "--json"))
    assert again["data"] == found["data"]


def test_plan_wants_the_facts_that_the_method_plans_with(tacit_command: Command) -> None:
    words = ("plan", "--method", "census", "--epsilon", 1, "--classes", 10)
    found = answer(tacit_command(*words, "--train", 2500, "--public-nodes", 6000, "--json"))
    assert found["settings"]["cells"] == 125
    assert set(found["statement"]) >= STATEMENT
    assert 0.99 < found["statement"]["epsilon"] <= 1
    sizes = ("private_nodes=2500", "public_train=3000", "public_test=3000")
    cuts = [word for size in sizes for word in ("--set", size)]
    assert answer(tacit_command(*words, *cuts, "--json"))["stages"] == found["stages"]
    missing = tacit_command(*words, "--train", 2500)
    assert missing.exit_code == 2
    assert "--public-nodes" in missing.output


def test_every_plan_has_a_statement(tacit_command: Command) -> None:
    facts = ("--nodes", 900, "--train", 700, "--features", 9, "--classes", 3)
    for method in ("gap", "mlp"):
        found = answer(tacit_command("plan", "-m", method, "-e", 2, *facts, "--json"))
        assert set(found["statement"]) >= STATEMENT
    for lacking in (facts[:2] + facts[4:], facts[2:]):
        assert tacit_command("plan", "-m", "gap", "-e", 2, *lacking).exit_code == 2
    assert "give --epsilon" in tacit_command("plan", "-m", "gap", *facts).output


def test_what_does_not_belong_together_is_refused(
    tacit_command: Command, graph_file: Path, parts: tuple[Path, Path]
) -> None:
    both = tacit_command("fit", parts[0], *CENSUS, *SIZES, "--public", parts[1], "-e", 2)
    assert both.exit_code == 1
    assert "cut in two" in both.output
    some = tacit_command("fit", graph_file, *CENSUS, *SIZES[:4], "-e", 2)
    assert some.exit_code == 1
    assert "public_test is missing" in some.output
    alone = tacit_command("fit", graph_file, *CENSUS, "-e", 2)
    assert "learns for a public graph, and there is none" in alone.output
    gap = tacit_command("fit", parts[0], "--public", parts[1], "-e", 2)
    assert "has no use for a public one" in gap.output
    assert tacit_command("fit", graph_file, *SIZES, "-e", 2).exit_code == 2
