"""``tacit dpa``: roles, status, and what is refused."""

from __future__ import annotations

import json
import time

import pytest
from typer.testing import CliRunner

from tacit.cli import app

RUN = CliRunner()


def test_a_role_takes_its_own_file_and_no_other(tmp_path):
    path = tmp_path / "role.toml"
    path.write_text('role = "party"\nfolder = "p"\nauthority = "a.pem"\nregistry = "127.0.0.1:1"\n')
    said = RUN.invoke(app, ["dpa", "shuffler", "--config", str(path)])
    assert said.exit_code == 1
    assert "is the file of a party" in said.output
    path.write_text('role = "party"\nlisten = "x"\nport = 3\n')
    said = RUN.invoke(app, ["dpa", "party", "--config", str(path)])
    assert said.exit_code == 1
    assert "no role has the setting 'port'" in said.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epsilon = 8\nport = 1\n", "no option 'port'"),
        ("epsilon = 8\n[session]\nhosts = 3\n", "[session] has no 'hosts'"),
        ("epsilon = 8\n[session]\nagents = 0\n", "at least one agent"),
        ("epsilon = 8\n[set]\nhidden_size = 3\n", "no setting 'hidden_size'"),
        ("delta = 1e-5\n", "give --epsilon"),
    ],
)
def test_mistakes_in_a_session_file_are_wrong_usage(tmp_path, text, words):
    path = tmp_path / "session.toml"
    path.write_text(text)
    out = str(tmp_path / "out")
    said = RUN.invoke(
        app, ["dpa", "up", "--graph", "none.npz", "--config", str(path), "--out", out],
        terminal_width=200,
    )  # fmt: skip
    assert said.exit_code == 2
    assert words in " ".join(said.output.replace("│", " ").split())
    assert not (tmp_path / "out").exists()


def test_status_adds_up_what_the_roles_say(tmp_path):
    session = {"round": 1, "phase": "frozen", "done": False, "why": ""}
    counts = {
        "coordinator": {"refused certificate": 1},
        "shuffler": {"bytes received": 2_000_000, "refused late": 2, "milliseconds sending": 500},
        "party-0": {"pairs kept": 100, "refused garbage": 3},
        "party-1": {"pairs kept": 150},
    }
    for name, counted in counts.items():
        (tmp_path / name).mkdir()
        said = {
            "role": name.partition("-")[0], "number": 0, "process": 1, "at": time.time(),
            "session": session, "trouble": "", "counts": counted,
        }  # fmt: skip
        (tmp_path / name / "status.json").write_text(json.dumps(said))
    said = RUN.invoke(app, ["dpa", "status", str(tmp_path), "--json"])
    found = json.loads(said.stdout)
    assert found["session"]["phase"] == "frozen"
    assert (found["pairs"], found["pairs_per_second"]) == (250, 500.0)
    assert found["rejects"] == {"certificate": 1, "late": 2, "garbage": 3}
    words = RUN.invoke(app, ["dpa", "status", str(tmp_path)]).output
    assert "round 1: frozen" in words
    empty = RUN.invoke(app, ["dpa", "status", str(tmp_path / "party-0")])
    assert empty.exit_code == 1
    assert "no role has written" in empty.output
