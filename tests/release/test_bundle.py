import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from release_models import fitted
from safetensors.numpy import load_file

import tacit
from tacit import Edge, Node
from tacit.errors import ReleaseError
from tacit.graph import Graph
from tacit.methods import Method
from tacit.release import inspect_bundle, release

CASES = {
    "gap-edge": ("gap", Edge(), {}),
    "gap-node": ("gap", Node(), {}),
    "gap-node-both": ("gap", Node(), {"carry": "both"}),
    "gap-node-all": ("gap", Node(links="all", max_degree=60), {}),
    "mlp-edge": ("mlp", Edge(), {}),
    "mlp-node": ("mlp", Node(), {}),
}
STATEMENT_KEYS = {
    "method", "unit", "relation", "unit_words", "epsilon", "delta", "epsilon_rdp", "accountant",
    "events", "accounting", "private_noise", "noise", "trust_model", "assumptions", "not_covered",
    "theorems", "releasable", "stamp", "membership_success",
}  # fmt: skip
PLAN_KEYS = {
    "method", "unit", "facts", "epsilon", "delta", "accounting", "stages", "settings", "cost",
    "charged",
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, graph: Graph) -> Method:
    name, unit, options = CASES[request.param]
    return fitted(name, unit, graph, **options)


def content(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.iterdir()))


def test_nothing_private_leaves(case: Method, graph: Graph, tmp_path: Path) -> None:
    run = case.fitted
    # Values that nothing else can spell, beside those the run really left.
    planted = replace(
        run,
        metrics={**run.metrics, "test_accuracy": 0.731234567},
        run="the-run-of-tuesday",
        seconds=98765.4321,
        seed=918273645,
        outcome=replace(run.outcome, notes=("a note about the graph",)),
        extra={"curve": [0.123454321]},
    )
    model = type(case)(case.unit, 4.0, 1e-5).restore(planted)
    everything = content(release(model, tmp_path / "b"))
    forbidden = [planted.data, run.run, *graph.ids, *planted.metrics, 'accuracy"', '"seed"']
    forbidden += ["731234567", planted.run, "98765", "918273645", "a note about", "123454321"]
    forbidden += ['"seconds"', '"fingerprint"', '"run"', '"data"', '"metrics"', '"notes"']
    for text in forbidden:
        assert text.encode() not in everything, text
    for row in graph.features:
        assert row.tobytes() not in everything
        assert row[:3].tobytes() not in everything
    assert graph.labels.tobytes() not in everything
    assert graph.indices[:24].tobytes() not in everything


def test_no_number_is_a_private_number(case: Method, graph: Graph, tmp_path: Path) -> None:
    arrays = load_file(release(case, tmp_path / "b") / "model.safetensors")
    raw = set(np.unique(np.concatenate([graph.features, graph.features * 0.5])).tolist())
    raw |= set(np.unique(tacit.aggregate.unit_rows(graph.features)).tolist())
    raw -= {0.0, 1.0}
    for name, array in arrays.items():
        shared = raw & set(np.asarray(array, np.float64).ravel().tolist())
        # Two of a few thousand float32 numbers may be equal by chance; a copied row has eleven.
        assert len(shared) < 5, (name, shared)


def test_only_listed_keys_leave(case: Method, tmp_path: Path) -> None:
    folder = release(case, tmp_path / "b")
    data = json.loads((folder / "manifest.json").read_text())
    assert set(data) == {
        "format", "version", "method", "plan", "statement", "classes", "public_posteriors", "files",
    }  # fmt: skip
    assert set(data["statement"]) == STATEMENT_KEYS
    assert set(data["plan"]) == PLAN_KEYS
    assert set(data["plan"]["facts"]) == {
        "nodes", "train_nodes", "features", "classes", "directed", "mean_degree", "public_nodes",
    }  # fmt: skip
    assert sorted(path.name for path in folder.iterdir()) == [
        "CARD.md", "manifest.json", "model.safetensors",
    ]  # fmt: skip
    arrays = load_file(folder / "model.safetensors")
    kinds = {name.split("/")[0] for name in arrays}
    unit, own = case.unit.name, case.fitted.outcome.public_posteriors
    allowed = {"weights"} | ({"posteriors"} if own else set())
    if case.name == "gap" and unit != "node-all":
        allowed |= {"released"}
    assert kinds == allowed
    assert data["classes"] == ["north", "south", "east", "west"]


def test_it_verifies_and_the_card_speaks_plainly(case: Method, tmp_path: Path) -> None:
    folder = release(case, tmp_path / "b")
    info = inspect_bundle(folder)
    assert info.statement == case.statement
    assert info.plan == case.fitted.plan
    text = (folder / "CARD.md").read_text()
    for heading in (
        "What this is", "Who is protected", "What epsilon means", "Who may be shown what",
        "What is not covered", "left out on purpose", "How to use it", "How to verify it",
    ):  # fmt: skip
        assert heading in text
    assert case.statement.membership_words in text
    assert case.statement.unit_words in text
    for word in ("anonym", "compliant", "GDPR"):
        assert word.lower() not in text.lower()
    assert ("released sums may be shown" in text) == (
        case.name == "gap" and case.unit.name == "node"
    )


def test_under_node_all_no_row_leaves(graph: Graph, tmp_path: Path) -> None:
    overrides = {"self_features": False}
    model = fitted("gap", Node(links="all", max_degree=60), graph, overrides=overrides)
    # Predictions read the node's own row, so they are not public even without features.
    assert not model.fitted.outcome.public_posteriors
    folder = release(model, tmp_path / "b")
    arrays = load_file(folder / "model.safetensors")
    assert all(name.startswith("weights/") for name in arrays)
    assert np.array_equal(arrays["weights/scale"], [1.0])
    assert "for that node alone" in (folder / "CARD.md").read_text()


def test_predictions_leave_where_they_read_released_sums_only(graph: Graph, tmp_path: Path) -> None:
    overrides = {"self_features": False, "own_list": False}
    model = fitted("gap", Node(), graph, overrides=overrides)
    arrays = load_file(release(model, tmp_path / "b") / "model.safetensors")
    assert np.array_equal(arrays["posteriors"], model.fitted.outcome.posteriors)


def test_paper_network_without_encoder_reads_features_so_predictions_stay(
    graph: Graph, tmp_path: Path
) -> None:
    overrides = {"encoder": False, "carry": "labels"}
    model = fitted("gap", Node(), graph, preset="paper", overrides=overrides)
    arrays = load_file(release(model, tmp_path / "b") / "model.safetensors")
    assert "posteriors" not in arrays


@pytest.mark.parametrize(
    ("options", "epsilon", "words"),
    [
        ({"noise": "seeded"}, 2.0, "not private"),
        ({"accounting": "paper", "preset": "paper"}, 2.0, "paper accounting"),
        ({}, float("inf"), "epsilon is infinite"),
    ],
)
def test_refuses_what_promises_nothing(
    graph: Graph, tmp_path: Path, options: dict, epsilon: float, words: str
) -> None:
    model = tacit.GAP(Edge(), epsilon, 1e-5, overrides={"epochs": 2}, **options).fit(graph)
    with pytest.raises(ReleaseError, match=words) as caught:
        release(model, tmp_path / "b")
    assert caught.value.why
    assert caught.value.remedy
    assert not (tmp_path / "b").exists()


def test_refuses_a_statement_that_is_not_the_plans(edge_model: Method, tmp_path: Path) -> None:
    better = replace(edge_model.statement, epsilon=0.5, epsilon_rdp=0.6)
    liar = tacit.GAP(Edge(), 4.0, 1e-5).restore(replace(edge_model.fitted, statement=better))
    with pytest.raises(ReleaseError, match="not the plan's"):
        release(liar, tmp_path / "b")


def test_refuses_a_path_that_is_taken(edge_model: Method, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("private")
    with pytest.raises(ReleaseError, match="exists already"):
        release(edge_model, tmp_path / "b")
    (tmp_path / "b.zip").write_bytes(b"")
    with pytest.raises(ReleaseError, match="exists already"):
        release(edge_model, tmp_path / "b.zip")
    (tmp_path / "empty").mkdir()
    assert release(edge_model, tmp_path / "empty") == tmp_path / "empty"


def test_same_run_same_bytes_and_the_archive_has_no_dates(
    edge_model: Method, tmp_path: Path
) -> None:
    first, second = (release(edge_model, tmp_path / name) for name in ("a.zip", "b.zip"))
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        assert {entry.date_time[0] for entry in archive.infolist()} == {1980}
    assert inspect_bundle(first).seal == inspect_bundle(release(edge_model, tmp_path / "c")).seal
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]
