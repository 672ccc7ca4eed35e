import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import tacit
from tacit.cli import app
from tacit.graph import Graph

QUICK = ("--set", "epochs=3", "--set", "steps=4")
Command = Callable[..., Result]


def npz(graph: Graph, path: Path) -> Path:
    """A graph as the gnn-benchmark collection stores it."""
    shape = np.array([graph.nodes, graph.nodes])
    np.savez(
        path,
        adj_data=np.ones(graph.arcs, np.float32),
        adj_indices=graph.indices,
        adj_indptr=graph.indptr,
        adj_shape=shape,
        attr_matrix=graph.features,
        labels=graph.labels,
    )
    return path


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


def answer(result: Result) -> dict[str, Any]:
    """The JSON object at the end of standard output."""
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found
