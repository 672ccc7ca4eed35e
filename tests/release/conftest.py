from pathlib import Path

import numpy as np
import pytest
from release_models import fitted

import tacit
from tacit import Edge, Node
from tacit.graph import Graph
from tacit.methods import Method
from tacit.release import release


@pytest.fixture(scope="session")
def graph() -> Graph:
    found = tacit.graph.synthetic.communities(150, mean_degree=8, features=11, classes=4, seed=3)
    # Features that no compiler could invent: searched for, byte by byte, in what leaves.
    features = np.random.default_rng(5).normal(size=found.features.shape).astype(np.float32)
    names = ("north", "south", "east", "west")
    ids = np.array([f"person-{k:04d}" for k in range(150)])
    return tacit.graph.split(found.with_(features=features, class_names=names, ids=ids), seed=1)


@pytest.fixture(scope="session", autouse=True)
def session_ledger(tmp_path_factory: pytest.TempPathFactory) -> None:
    # Models that several tests share are fitted before each test's own ledger exists.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_LEDGER", str(tmp_path_factory.mktemp("ledger") / "l.sqlite"))
        yield


@pytest.fixture(scope="session")
def edge_model(graph: Graph) -> Method:
    return fitted("gap", Edge(), graph)


@pytest.fixture(scope="session")
def own_model(graph: Graph) -> Method:
    return fitted("gap", Node(), graph)


@pytest.fixture
def edge_bundle(edge_model: Method, tmp_path: Path) -> Path:
    return release(edge_model, tmp_path / "bundle")
