from pathlib import Path

import pytest
from command_line import Command, npz
from typer.testing import CliRunner, Result

import tacit
from tacit.cli import app


@pytest.fixture(scope="session")
def graph_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = tacit.graph.synthetic.communities(120, mean_degree=8, features=9, classes=3, seed=4)
    return npz(graph, tmp_path_factory.mktemp("graph") / "small.npz")


@pytest.fixture
def tacit_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command line in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Result:
        return CliRunner().invoke(app, [str(word) for word in words])

    return run
