"""What tests of the command line share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import Result

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


def answer(result: Result) -> dict[str, Any]:
    """The JSON object at the end of standard output."""
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found
