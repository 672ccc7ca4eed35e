"""What other programs may rely on: names in the JSON, exit codes, one line for a refusal."""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import QUICK, Command, answer, npz

import tacit
from tacit.privacy import Ledger

STATEMENT = {"unit", "relation", "epsilon", "delta", "accountant", "releasable"}


def test_fit_answers_one_json_object_last(tacit_command: Command, graph_file: Path) -> None:
    words = ("fit", graph_file, "--unit", "edge", "--epsilon", 2, "--out", "run", *QUICK)
    found = answer(tacit_command(*words, "--json"))
    assert found["method"] == "gap"
    assert 0 <= found["metrics"]["test_accuracy"] <= 1
    assert 0 <= found["metrics"]["val_accuracy"] <= 1
    assert found["seconds"] > 0
    assert found["peak_rss_bytes"] > 2**20
    assert set(found["statement"]) >= STATEMENT
    assert found["statement"]["unit"] == "edge"
    assert found["statement"]["epsilon"] <= 2
    assert found["statement"]["delta"] == 1e-6
    assert found["statement"]["releasable"] is True


@pytest.mark.parametrize(("unit", "more"), [("node", ()), ("node-all", ("--set", "max_degree=60"))])
def test_every_unit_fits(
    tacit_command: Command, graph_file: Path, unit: str, more: tuple[str, ...]
) -> None:
    words = ("fit", graph_file, "--unit", unit, "--epsilon", 8, "--delta", 1e-5, *more, *QUICK)
    found = answer(tacit_command(*words, "--relation", "replace", "--out", "run", "--json"))
    assert (found["statement"]["unit"], found["statement"]["relation"]) == (unit, "replace")


def test_the_same_command_in_a_file(tacit_command: Command, graph_file: Path) -> None:
    Path("c.toml").write_text(
        'method = "mlp"\nunit = "node"\nepsilon = 4\nsplit = "60/20/20"\nseed = 3\n'
        "[set]\nsteps = 3\n"
    )
    found = answer(tacit_command("fit", graph_file, "--config", "c.toml", "--out", "r", "--json"))
    assert (found["method"], found["seed"]) == ("mlp", 3)
    assert found["plan"]["settings"]["steps"] == 3
    assert found["plan"]["facts"]["train_nodes"] == 72


def test_plan_touches_no_data(tacit_command: Command, own_ledger: Path) -> None:
    words = "plan --method gap --unit node --epsilon 8 --delta 1e-5 --nodes 20000 --train 15000"
    found = answer(tacit_command(*words.split(), "--features", 500, "--classes", 6, "--json"))
    assert 7.99 < found["cost"]["epsilon"] <= 8
    assert [stage["name"] for stage in found["stages"]] == ["aggregation", "classifier"]
    assert not own_ledger.exists()


def test_paper_accounting_and_seeded_noise_never_leave(
    tacit_command: Command, graph_file: Path
) -> None:
    fit = ("fit", graph_file, "--epsilon", 4, *QUICK)
    for name, option in (("paper", ("--accounting", "paper")), ("seeded", ("--noise", "seeded"))):
        found = answer(tacit_command(*fit, *option, "--out", name, "--json"))
        assert found["statement"]["releasable"] is False
        refused = tacit_command("release", name, f"{name}-bundle")
        assert refused.exit_code == 1
        assert refused.stderr.startswith("tacit: ")
        assert not Path(f"{name}-bundle").exists()


def test_release_then_inspect_then_predict(tacit_command: Command, graph_file: Path) -> None:
    answer(tacit_command("fit", graph_file, "--epsilon", 4, "--out", "run", *QUICK, "--json"))
    released = tacit_command("release", "run", "bundle")
    assert released.exit_code == 0, released.output
    names = {path.name for path in Path("bundle").iterdir()}
    assert names == {"CARD.md", "manifest.json", "model.safetensors"}
    assert "epsilon" in tacit_command("inspect", "bundle").output
    predicted = answer(tacit_command("predict", "run", "--out", "labels.csv", "--json"))
    assert predicted["charged"] is None
    with Path("labels.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == predicted["nodes"] == 120
    weights = Path("bundle") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    broken = tacit_command("inspect", "bundle")
    assert broken.exit_code == 1
    assert "Traceback" not in broken.output


def test_a_new_graph_is_charged_to_its_own_account(
    tacit_command: Command, graph_file: Path, tmp_path: Path, own_ledger: Path
) -> None:
    other = tacit.graph.synthetic.communities(90, mean_degree=6, features=9, classes=3, seed=8)
    new = npz(other, tmp_path / "new.npz")
    answer(tacit_command("fit", graph_file, "--epsilon", 4, "--out", "run", *QUICK, "--json"))
    found = answer(tacit_command("predict", "run", new, "--out", "labels.csv", "--json"))
    assert found["charged"]
    assert found["epsilon"] <= 4
    assert len({entry.fingerprint for entry in Ledger(own_ledger).entries()}) == 2


def test_the_owners_budget_holds(tacit_command: Command, graph_file: Path) -> None:
    fit = ("fit", graph_file, "--epsilon", 1, *QUICK, "--budget", 1.2, "--json")
    answer(tacit_command(*fit, "--out", "first"))
    refused = tacit_command(*fit, "--out", "second")
    assert refused.exit_code == 1
    assert "budget" in refused.stderr
    assert refused.stderr.splitlines()[-1].startswith("tacit: ")
    assert not Path("second").exists()
    listed = tacit_command("ledger", "list")
    assert listed.exit_code == 0
    assert "gap" in listed.output


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("fit nowhere.npz --epsilon 1", 1),
        ("fit GRAPH --epsilon 0", 1),
        ("fit GRAPH", 2),
        ("fit GRAPH --epsilon one", 2),
        ("fit GRAPH --epsilon 1 --method nothing", 2),
        ("fit GRAPH --epsilon 1 --set nothing=1", 2),
        ("fit GRAPH --epsilon 1 --set hops=many", 2),
        ("fit GRAPH --epsilon 1 --split 75/10", 2),
        ("fit GRAPH --epsilon 1 --unit k-neighbours", 1),
        ("fit GRAPH --epsilon 1 --unit node-all", 1),
        ("predict nowhere", 1),
        ("release nowhere bundle", 1),
        ("inspect nowhere", 1),
        ("reproduce nothing --data .", 1),
        ("compare GRAPH --out c --methods nothing", 2),
        ("compare GRAPH --out c --units edge --ks 1,5", 2),
        ("compare GRAPH --out c --units k-neighbours --ks 0.5", 2),
        ("nothing", 2),
    ],
)
def test_exit_codes(tacit_command: Command, graph_file: Path, words: str, code: int) -> None:
    result = tacit_command(*(graph_file if w == "GRAPH" else w for w in words.split()))
    assert result.exit_code == code, result.output
    assert result.stderr.strip()
    assert "Traceback" not in result.output
    if code == 1:
        assert [x for x in result.stderr.splitlines() if x.startswith("tacit: ")]


def test_debug_shows_the_trace(tacit_command: Command) -> None:
    assert "Traceback" in tacit_command("fit", "nowhere.npz", "--epsilon", 1, "--debug").stderr


def test_infinite_epsilon_is_spelt_out(tacit_command: Command, graph_file: Path) -> None:
    found = answer(
        tacit_command("fit", graph_file, "--epsilon", "inf", "--out", "run", *QUICK, "--json")
    )
    assert math.isinf(float(found["statement"]["epsilon"]))
    assert found["statement"]["releasable"] is False


def test_help_needs_nothing_heavy() -> None:
    program = (
        "import sys\nfrom typer.testing import CliRunner\nfrom tacit.cli import app\n"
        "for words in (['--help'], ['fit', '--help'], ['compare', '--help']):\n"
        "    assert CliRunner().invoke(app, words).exit_code == 0\n"
        "print([m for m in ('torch', 'numpy', 'scipy', 'numba', 'duckdb', 'matplotlib')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_command_explains_itself(tacit_command: Command) -> None:
    for command in ("demo", "plan", "fit", "predict", "release", "inspect", "ledger", "compare"):
        text = tacit_command(command, "--help").output
        assert "Usage" in text
        assert len(text.splitlines()) > 8


def test_json_stays_clean_under_progress(graph_file: Path, tmp_path: Path) -> None:
    """A real process: what stands on standard output parses as a whole."""
    words = ["fit", str(graph_file), "--method", "mlp", "--epsilon", "1", *QUICK]
    done = subprocess.run(
        [sys.executable, "-m", "tacit.cli", *words, "--out", str(tmp_path / "run"), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["statement"]["epsilon"] == 0
    assert "run" in done.stderr
