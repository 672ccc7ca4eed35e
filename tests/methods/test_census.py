import json
import math
from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit import Census, Graph, Node
from tacit.errors import GraphError, PlanError, ReleaseError
from tacit.graph import Cut, PublicFacts, cut, subgraph, synthetic
from tacit.methods.census import cell_count, partition_count, tables
from tacit.methods.census_cells import neighbour_means
from tacit.release import inspect_bundle, load_bundle, release

QUICK = {"epochs": 20, "encoder_epochs": 10, "encoder_hidden": 16, "hidden": 16}
FACTS = PublicFacts(2500, 2500, 767, 10, public_nodes=6000)


@pytest.fixture(scope="module")
def whole() -> Graph:
    return synthetic.communities(900, mean_degree=10, features=12, classes=3, seed=1)


@pytest.fixture(scope="module")
def graph(whole: Graph) -> Graph:
    return cut(whole, Cut(400, 200, 200), seed=0)


@pytest.fixture(scope="module")
def model(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Census:
    ledger = tacit.Ledger(tmp_path_factory.mktemp("ledger") / "l.sqlite")
    return Census(epsilon=2.0, overrides=QUICK).fit(graph, ledger=ledger)


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_the_cost_is_that_of_a_discrete_laplace_mechanism(epsilon: float, delta: float) -> None:
    """Losses are +-a: P(loss = a) = 1/(1 + e^-a), and delta = P (1 - e^(epsilon - a)), by hand."""
    plan = Census(epsilon=epsilon, delta=delta).plan(FACTS)
    exact = epsilon + math.log1p(-delta * (1 + math.exp(-epsilon)))
    assert exact - 1e-9 <= plan.cost.epsilon <= min(epsilon, exact + 1e-3)


def test_noise_has_the_scale_of_what_moves() -> None:
    for epsilon in (0.5, 1.0, 8.0):
        parts = partition_count(epsilon)
        stage = Census(epsilon=epsilon).plan(FACTS).stages[0]
        assert (stage.mechanism, stage.rounds) == ("geometric", 1)
        assert stage.noise_std == pytest.approx(parts / epsilon)
        twice = Census(Node(links="all", relation="replace"), epsilon).plan(FACTS).stages[0]
        assert twice.noise_std == pytest.approx(2 * stage.noise_std)
        assert twice.noise_multiplier == stage.noise_multiplier


def test_cells_follow_from_public_facts() -> None:
    assert [cell_count(FACTS, e) for e in (0.25, 1.0, 100.0, math.inf)] == [62, 125, 300, 300]
    tiny = PublicFacts(100, 100, 5, 10, public_nodes=60)
    assert cell_count(tiny, 0.01) == 20
    assert cell_count(PublicFacts(100, 100, 5, 10, public_nodes=7), 1.0) == 7
    assert [partition_count(e) for e in (0.1, 1.0, 1.4, 3.0, 9.0, math.inf)] == [1, 1, 1, 3, 4, 4]


def test_a_table_counts_training_nodes_alone(graph: Graph) -> None:
    train = graph.train.copy()
    train[::3] = False
    partial = graph.with_(train=train, labels=np.where(train, graph.labels, -1))
    cells = np.arange(graph.nodes)[None] % 4
    found = tables(partial, cells, 5)
    assert found.shape == (1, 5, 3)
    assert found.sum() == train.sum()
    for cell in range(5):
        held = train & (cells[0] == cell)
        assert np.array_equal(found[0, cell], np.bincount(graph.labels[held], minlength=3))


def test_it_learns(model: Census, graph: Graph) -> None:
    metrics = model.fitted.metrics
    chance = np.bincount(graph.public.labels[graph.public.test]).max() / graph.public.test.sum()
    assert metrics["test_accuracy"] > chance + 0.2
    assert model.predict_proba().shape == (400, 3)
    right = model.predict() == graph.public.labels
    assert metrics["test_accuracy"] == pytest.approx(right[graph.public.test].mean())


def test_no_public_label_and_no_private_link_is_read(graph: Graph) -> None:
    def answers(other: Graph) -> np.ndarray:
        small = {**QUICK, "epochs": 2, "encoder_epochs": 2}
        return Census(epsilon=2.0, overrides=small, noise="seeded").fit(other).predict_proba()

    public = graph.public
    relabelled = graph.with_(public=public.with_(labels=(public.labels + 1) % 3))
    bare = graph.with_(indptr=graph.indptr * 0, indices=graph.indices[:0])
    assert np.array_equal(answers(graph), answers(relabelled))
    assert np.array_equal(answers(graph), answers(bare))


def test_the_statement_promises_everything_attached(model: Census) -> None:
    said = model.statement
    assert (said.unit, said.relation, said.stamp) == ("node-all", "add-remove", "")
    assert "however many" in said.unit_words
    assert any("No degree is promised" in line for line in said.assumptions)
    assert any("epsilon 2 at delta 0" in line for line in said.assumptions)


def test_a_bundle_holds_the_student_and_answers_for_another_public_graph(
    model: Census, whole: Graph, graph: Graph, tmp_path: Path
) -> None:
    path = release(model, tmp_path / "bundle")
    info = inspect_bundle(path)
    assert {name.split("/")[0] for name in info.arrays} == {"weights", "released", "posteriors"}
    assert info.public_posteriors
    card = (path / "CARD.md").read_text()
    assert "a public graph of 400 nodes" in card
    assert "predict_graph" in card
    bundle = load_bundle(path)
    assert np.array_equal(bundle.predict(), model.predict())
    assert np.allclose(bundle.predict_graph_proba(graph.public), model.predict_proba(), atol=1e-6)
    taken = np.concatenate([graph.ids, graph.public.ids]) if graph.ids is not None else []
    fresh = subgraph(whole, np.setdiff1d(np.arange(whole.nodes), taken))
    right = bundle.predict_graph(fresh) == fresh.labels
    assert right.mean() > 0.5
    assert np.allclose(bundle.predict_graph_proba(fresh).sum(axis=1), 1, atol=1e-5)
    with pytest.raises(ReleaseError, match="do not fit"):
        bundle.predict_graph(fresh.with_(features=fresh.features[:, :5]))
    # Not one private feature row is in it.
    raw = (path / "model.safetensors").read_bytes()
    assert not any(row.tobytes() in raw for row in graph.features[:50])


def test_bad_input_is_refused_with_the_reason(graph: Graph) -> None:
    alone, public = graph.with_(public=None), graph.public
    with pytest.raises(PlanError, match="learns for a public graph, and there is none"):
        Census().fit(alone)
    with pytest.raises(GraphError, match="4 features and the private one 12"):
        Census().fit(alone, public=public.with_(features=public.features[:, :4]))
    with pytest.raises(GraphError, match="9 classes and the private one 3"):
        Census().fit(alone, public=public.with_(classes=9))
    with pytest.raises(PlanError, match="in no paper"):
        Census(accounting="paper")
    with pytest.raises(PlanError, match="no setting 'depth'"):
        Census(overrides={"depth": 3})
    with pytest.raises(PlanError, match="400 public nodes cannot make 401 cells"):
        Census(overrides={"cells": 401}).plan(graph.facts())


def test_a_class_that_no_private_node_has_is_no_reason_to_refuse(graph: Graph) -> None:
    """The refusal itself would tell something private."""
    train = graph.train & (graph.labels != 2)
    model = Census(epsilon=2.0, overrides={**QUICK, "epochs": 2}).fit(graph.with_(train=train))
    assert model.predict_proba().shape == (400, 3)


def test_signed_features_and_public_graphs_without_links(graph: Graph) -> None:
    def shifted(part: Graph) -> Graph:
        return part.with_(
            features=part.features - 3, indptr=part.indptr * 0, indices=part.indices[:0]
        )

    private = shifted(graph).with_(public=shifted(graph.public))
    model = Census(epsilon=2.0, overrides={**QUICK, "epochs": 2}).fit(private)
    assert np.isfinite(model.predict_proba()).all()


def test_means_over_neighbours(graph: Graph) -> None:
    public = graph.public
    rows = np.random.default_rng(0).normal(size=(public.nodes, 2)).astype(np.float32)
    found = neighbour_means(public, rows, 1)[1]
    for v in (0, 5, 9):
        mine = public.indices[public.indptr[v] : public.indptr[v + 1]]
        expected = rows[mine].mean(axis=0) if len(mine) else rows[v]
        assert found[v] == pytest.approx(expected, abs=1e-5)


def test_settings_survive_a_plan_in_json() -> None:
    plan = Census(epsilon=1.0).plan(FACTS)
    assert json.loads(json.dumps(plan.to_dict()))["settings"]["cells"] == 125
