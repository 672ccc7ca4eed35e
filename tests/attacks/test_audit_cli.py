"""``tacit audit`` as other programs meet it."""

import json

import pytest
from typer.testing import CliRunner, Result

from tacit.cli import app


def audit(words: str) -> Result:
    return CliRunner().invoke(app, ["audit", "--seed", "1", *words.split()])


def test_a_claim_that_holds_answers_and_exits_0() -> None:
    result = audit("--method gap --unit edge --epsilon 1 --runs 40000 --json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["verdict"] == "holds"
    assert 0.2 < found["epsilon_lower"] <= found["epsilon_claimed"] <= 1
    assert (found["confidence"], found["delta"]) == (0.95, 1e-6)
    (target,) = found["targets"]
    assert target["target"] == "aggregation"
    assert target["runs"] == 40_000


def test_a_broken_claim_exits_1_and_still_answers() -> None:
    result = audit("--unit edge --epsilon 1 --accounting paper --runs 60000 --json")
    assert result.exit_code == 1
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["verdict"] == "broken"
    assert found["targets"][0]["broken_at"] > 0
    assert "BROKEN" in result.stderr


def test_an_audit_repeats_by_its_seed() -> None:
    words = "--unit edge --epsilon 2 --runs 2000 --json --quiet"
    assert audit(words).stdout == audit(words).stdout


def test_quiet_prints_the_verdict_alone() -> None:
    assert audit("--unit edge --epsilon 2 --runs 2000 --quiet").stdout == "holds\n"


def test_one_run_on_the_command_line() -> None:
    result = audit("--unit edge --epsilon 4 --one-run --canaries 2000 --json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["canaries"] == 2000
    assert found["epsilon_lower"] < found["epsilon_claimed"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--unit edge --epsilon inf", 1, "nothing is claimed"),
        ("--unit k-neighbours --epsilon 1", 1, "promise nothing"),
        ("--unit edge", 2, "--epsilon"),
        ("--unit edge --epsilon 1 --runs 3", 2, "--runs"),
        ("--unit edge --epsilon 1 --set epoch=2", 2, "epoch"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(words: str, code: int, said: str) -> None:
    result = audit(words)
    assert result.exit_code == code
    assert said in " ".join(result.stderr.split())
