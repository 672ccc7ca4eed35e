"""DPDGC's own promises; what every method must do is in test_dpdgc_conformance.py."""

import math
from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit.errors import PlanError, UnitError
from tacit.graph import Graph, PublicFacts, subgraph, synthetic
from tacit.release import load_bundle, release

FAST = {"epochs": 3, "folds": 2, "hidden": 8, "steps": 5, "embedding_steps": 3}
FACTS = PublicFacts(nodes=20_000, train_nodes=15_000, features=50, classes=6)
K1, ALL = tacit.KNeighbors(k=1), tacit.Node(links="all", max_degree=100)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return synthetic.communities(300, mean_degree=12, classes=3, features=8, seed=1)


def plan(unit: tacit.Edge | tacit.Node | tacit.KNeighbors, epsilon: float = 8.0, **more: object):
    facts = more.pop("facts", FACTS)
    return tacit.DPDGC(unit, epsilon, 1e-5, **more).plan(facts)


def test_auto_chooses_by_public_facts_alone() -> None:
    def chosen(unit: object, epsilon: float = 16.0, **more: object) -> str:
        return plan(unit, epsilon, **more).settings.embedding

    assert chosen(tacit.Edge(), math.inf) == chosen(K1, math.inf) == "both"
    assert chosen(tacit.Edge()) == "classes"
    assert chosen(K1) == chosen(tacit.KNeighbors(k=25)) == "labels"
    assert chosen(tacit.Node()) == "sketch"
    assert chosen(ALL) == "none"
    # A budget or a typical node far above the promise's noise brings the links back.
    assert chosen(ALL, 200.0) == "labels"
    many = PublicFacts(20_000, 15_000, 50, 6, mean_degree=60.0)
    assert chosen(ALL, facts=many) == "labels"
    lonely = PublicFacts(20_000, 15_000, 50, 6, mean_degree=0.5)
    assert chosen(K1, 1.0, facts=lonely) == "none"
    # Many classes make a label's row dearer than a sketch's.
    wide = PublicFacts(20_000, 15_000, 50, 400)
    assert chosen(K1, facts=wide) == "sketch"


def test_an_unread_graph_leaves_the_whole_budget_to_the_classifier() -> None:
    mine = plan(ALL, 16.0)
    baseline = tacit.MLP(ALL, 16.0, 1e-5).plan(FACTS)
    assert [stage.name for stage in mine.stages] == ["classifier"]
    assert mine.stages[0].noise_std == pytest.approx(baseline.stages[0].noise_std, rel=1e-4)
    assert any("Links were not read" in x for x in tacit.DPDGC(ALL, 16.0, 1e-5).caveats(mine))


def test_own_lists_cost_nothing_beyond_dp_sgd() -> None:
    mine = plan(tacit.Node(), 8.0)
    assert [stage.name for stage in mine.stages] == ["classifier"]
    trained = plan(tacit.Node(), 8.0, embedding="trained")
    assert [(stage.name, stage.group) for stage in trained.stages] == [
        ("training", 0),
        ("classifier", 0),
    ]


@pytest.mark.parametrize(
    ("unit", "directed", "reach"),
    [
        (tacit.Edge(), True, 1.0),
        (tacit.Edge(), False, math.sqrt(2)),
        (tacit.KNeighbors(k=5), False, math.sqrt(5)),
        (tacit.Node("replace", links="all", max_degree=50), False, 10.0),
    ],
)
def test_noise_of_a_sketch_follows_theorem_1(unit, directed: bool, reach: float) -> None:
    facts = PublicFacts(20_000, 15_000, 50, 6, directed=directed)
    stage = plan(unit, 4.0, embedding="sketch", facts=facts).stage("embedding")
    assert stage.noise_std == pytest.approx(reach * stage.noise_multiplier)


def test_sound_edge_noise_is_the_golden_gaussian() -> None:
    # golden: gaussian_composed, K=1, delta=1e-5, eps=1: 3.73063
    stage = plan(tacit.Edge(), 1.0).stage("embedding")
    assert stage.noise_multiplier == pytest.approx(3.73063, rel=1e-4)


def test_paper_accounting_claims_the_root_and_the_ledger_is_charged_the_group() -> None:
    unit = tacit.KNeighbors(k=24)
    made = plan(unit, 16.0, preset="paper", accounting="paper")
    claimed, charged = made.stages[0], made.charged[0]
    assert (claimed.name, claimed.group, charged.group) == ("training", 0, 25)
    assert claimed.noise_std == charged.noise_std
    assert claimed.noise_std == pytest.approx(2 * 5 * claimed.noise_multiplier)
    assert charged.noise_multiplier == pytest.approx(claimed.noise_multiplier * 5)
    from tacit.privacy.accounting import epsilon_pld

    assert epsilon_pld(made.charged_event, 1e-5, resolution="coarse") > 20


def test_replace_samples_batches_too() -> None:
    stage = plan(tacit.KNeighbors("replace", k=1), 8.0).stage("classifier")
    assert (stage.group, stage.sampling_rate) == (1, 0.25)
    assert stage.noise_std == pytest.approx(2 * stage.noise_multiplier)


def test_what_promises_nothing_is_refused_with_the_reason() -> None:
    with pytest.raises(UnitError, match="private features"):
        plan(K1, embedding="classes")
    with pytest.raises(UnitError, match="everyone who lists it"):
        plan(tacit.Node(), embedding="labels")
    with pytest.raises(PlanError, match="batch norm"):
        plan(K1, overrides={"batch_norm": True})
    with pytest.raises(PlanError, match="multiple of 64"):
        plan(K1, embedding="sketch", overrides={"width": 100})
    with pytest.raises(PlanError, match="no setting 'widht'"):
        plan(K1, overrides={"widht": 64})
    with pytest.raises(PlanError, match="unknown embedding"):
        plan(K1, embedding="magic")
    with pytest.raises(PlanError, match="reads nothing"):
        plan(K1, embedding="none", overrides={"self_features": False})


@pytest.mark.parametrize("embedding", ["trained", "sketch", "classes"])
def test_a_grown_graph_is_predicted_and_charged(graph: Graph, embedding: str) -> None:
    """Incrementally inductive: nodes that took no part in training link and are asked."""
    ledger = tacit.Ledger()
    known = tacit.split(subgraph(graph, np.arange(250)), seed=0)
    model = tacit.DPDGC(tacit.Edge(), 4.0, 1e-6, embedding=embedding, overrides=FAST).fit(known)
    before = len(ledger.entries())
    answers = model.predict_proba(graph)
    assert answers.shape == (300, 3)
    assert len(ledger.entries()) == before + 1
    np.testing.assert_allclose(answers.sum(axis=1), 1, atol=1e-4)


def test_rows_of_a_trained_embedding_have_norm_c(graph: Graph) -> None:
    """With c tiny and no noise, Z is its bias alone: the published trick buys nothing here."""
    settings = {**FAST, "row_norm": 1e-8}
    model = tacit.DPDGC(
        tacit.Edge(), math.inf, 1e-6, preset="paper", overrides={**settings, "embedding_rate": 0.5}
    ).fit(graph)
    rows = model.fitted.outcome.released["embedding"]
    bias = model.fitted.outcome.weights["embedding.bias"]
    np.testing.assert_allclose(rows, np.tile(bias / np.linalg.norm(bias), (300, 1)), atol=1e-3)


def test_an_edge_bundle_answers_without_the_graph(graph: Graph, tmp_path: Path) -> None:
    model = tacit.DPDGC(tacit.Edge(), 4.0, 1e-6, overrides=FAST).fit(graph)
    release(model, tmp_path / "bundle")
    bundle = load_bundle(tmp_path / "bundle")
    assert np.array_equal(bundle.predict(), model.predict())
    assert bundle.predict_proba(graph.features).shape == (300, 3)


@pytest.mark.parametrize("unit", [K1, tacit.Node()])
def test_a_node_bundle_holds_no_rows(graph: Graph, tmp_path: Path, unit) -> None:
    model = tacit.DPDGC(unit, 4.0, 1e-5, overrides=FAST).fit(graph)
    release(model, tmp_path / "bundle")
    bundle = load_bundle(tmp_path / "bundle")
    assert not bundle.released
    assert bundle.posteriors is None
    assert any("alone" in sentence for sentence in bundle.info.audience)


def test_more_links_help_where_they_say_something() -> None:
    big = synthetic.communities(1_500, mean_degree=30, classes=4, features=16, seed=2)
    baseline = tacit.MLP(K1, 16.0, 1e-5).fit(big).fitted.metrics["test_accuracy"]
    for unit in (K1, tacit.Node()):
        mine = tacit.DPDGC(unit, 16.0, 1e-5).fit(big).fitted.metrics["test_accuracy"]
        assert mine > baseline + 0.03
