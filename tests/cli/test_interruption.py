"""Ctrl-C: what was paid for is not paid for again."""

from pathlib import Path

import pytest
from command_line import QUICK, Command, answer

from tacit.methods import GAP, gap_network
from tacit.privacy import Ledger


def interrupted(*args: object, **kwargs: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_fit_resumes_with_one_charge(
    tacit_command: Command, graph_file: Path, own_ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = ("fit", graph_file, "--epsilon", 2, "--out", "run", *QUICK)
    with monkeypatch.context() as patch:
        patch.setattr(gap_network.GapNetwork, "fit_classifier", interrupted)
        stopped = tacit_command(*fit)
    assert stopped.exit_code == 1
    assert "Repeat the same command" in " ".join(stopped.stderr.split())
    assert len(Ledger(own_ledger).entries()) == 1
    other = tacit_command(*fit[:2], "--epsilon", 3, *fit[4:])
    assert other.exit_code == 1
    assert "differs in" in other.stderr
    answer(tacit_command(*fit, "--json"))
    assert len(Ledger(own_ledger).entries()) == 1
    again = tacit_command(*fit)
    assert again.exit_code == 1
    assert "finished run" in again.stderr


def test_an_interrupted_comparison_resumes_without_a_second_charge(
    tacit_command: Command, graph_file: Path, own_ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("compare", graph_file, "--methods", "gap,mlp", "--units", "node", "--epsilons", "1,4")
    words += ("--repeats", 2, "--out", "study", *QUICK)
    real, calls = GAP._run, []

    def second_stops(*args: object) -> object:
        calls.append(1)
        return interrupted() if len(calls) == 2 else real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(GAP, "_run", second_stops)
        stopped = tacit_command(*words)
    assert stopped.exit_code == 1
    found = answer(tacit_command(*words, "--json"))
    assert found["cells"] == 8
    assert len(Ledger(own_ledger).entries()) == 8
    assert Path(found["png"]).stat().st_size > 10_000
    assert len(Path(found["csv"]).read_text().splitlines()) == 9
    assert all(0 <= point["low"] <= point["mean"] <= point["high"] for point in found["points"])
