import json
import math
from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit.errors import PlanError
from tacit.graph import Graph, synthetic


@pytest.fixture(scope="module")
def graph() -> Graph:
    return synthetic.communities(200, mean_degree=10, classes=3, features=8, seed=1)


def models() -> list[tacit.Method]:
    fast = {"epochs": 3, "folds": 2, "hidden": 8}
    node = {"steps": 4, "hidden": 8}
    return [
        tacit.GAP(tacit.Edge(), 2.0, 1e-6, overrides=fast),
        tacit.GAP(tacit.Edge(), math.inf, 1e-6, overrides=fast),
        tacit.GAP(tacit.Node(), 8.0, 1e-5, overrides=node),
        tacit.GAP(tacit.Node(relation="replace", max_degree=5), 8.0, 1e-5, overrides=node),
        tacit.MLP(tacit.Edge(), 2.0, 1e-6, overrides={"epochs": 3}),
        tacit.MLP(tacit.Node(), 8.0, 1e-5, overrides={"steps": 4}),
    ]


@pytest.mark.parametrize("index", range(6))
def test_a_run_comes_back_as_it_was(graph: Graph, tmp_path: Path, index: int) -> None:
    model = models()[index].fit(graph)
    tacit.save_run(model, tmp_path / "run")
    again = tacit.load_run(tmp_path / "run")
    assert type(again) is type(model)
    assert again.fitted.plan == model.fitted.plan
    assert again.statement == model.statement
    assert again.fitted.metrics == model.fitted.metrics
    assert np.array_equal(again.predict_proba(), model.predict_proba())
    for key, value in model.fitted.outcome.released.items():
        assert np.array_equal(again.fitted.outcome.released[key], value)
    # The plan of the model that comes back is the plan that ran.
    assert again.plan(graph.facts()).stages == model.fitted.plan.stages


def test_inference_on_a_new_graph_agrees_without_noise(graph: Graph, tmp_path: Path) -> None:
    other = synthetic.communities(150, mean_degree=10, classes=3, features=8, seed=2)
    fast = {"epochs": 3, "folds": 2, "hidden": 8}
    model = tacit.GAP(tacit.Edge(), math.inf, 1e-6, overrides=fast).fit(graph)
    tacit.save_run(model, tmp_path / "run")
    again = tacit.load_run(tmp_path / "run")
    assert np.array_equal(again.predict_proba(other), model.predict_proba(other))


def test_an_unfinished_folder_is_no_run(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no finished run"):
        tacit.load_run(tmp_path)
    model = models()[4].fit(graph)
    folder = tacit.save_run(model, tmp_path / "run")
    (folder / "run.json").write_text("{")
    with pytest.raises(PlanError, match="no finished run"):
        tacit.load_run(folder)


def test_a_run_of_another_format_is_refused(graph: Graph, tmp_path: Path) -> None:
    folder = tacit.save_run(models()[4].fit(graph), tmp_path / "run")
    data = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**data, "format": 99}))
    with pytest.raises(PlanError, match="format 99"):
        tacit.load_run(folder)


def test_infinity_is_written_as_valid_json(graph: Graph, tmp_path: Path) -> None:
    folder = tacit.save_run(models()[1].fit(graph), tmp_path / "run")
    json.loads((folder / "run.json").read_text(), parse_constant=lambda x: pytest.fail(x))
