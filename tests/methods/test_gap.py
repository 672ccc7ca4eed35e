"""GAP's own promises; what every method must do is in tests/test_conformance.py."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import tacit
from tacit.errors import PlanError, UnitError
from tacit.graph import Graph, PublicFacts, synthetic
from tacit.learn.networks import HopClassifier
from tacit.methods.gap_settings import choose
from tacit.privacy.events import event_to_json

FAST = {"epochs": 3, "folds": 1, "hidden": 8}
FAST_NODE = {"steps": 5, "hidden": 8}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return synthetic.communities(300, mean_degree=12, classes=3, features=8, seed=1)


FACTS = PublicFacts(nodes=20_000, train_nodes=15_000, features=50, classes=6)


def test_edge_plan_on_a_symmetric_graph_charges_two_arcs() -> None:
    sound = tacit.GAP(tacit.Edge(), 4.0, 1e-5, hops=2).plan(FACTS).stage("aggregation")
    assert sound.noise_std == pytest.approx(sound.noise_multiplier * math.sqrt(2))
    # golden: gaussian_composed, K=2, delta=1e-5, eps=4: 1.52899 per hop
    assert sound.noise_multiplier == pytest.approx(1.52899, rel=1e-4)


def test_paper_accounting_claims_one_arc_and_the_ledger_is_charged_for_two() -> None:
    plan = tacit.GAP(tacit.Edge(), 4.0, 1e-5, hops=2, preset="paper", accounting="paper").plan(
        FACTS
    )
    claimed, charged = plan.stages[0], plan.charged[0]
    # golden: gaussian_composed, K=2, Renyi 1.6370
    assert claimed.noise_std == pytest.approx(1.6370, rel=1e-4)
    assert charged.noise_std == claimed.noise_std
    assert charged.noise_multiplier == pytest.approx(claimed.noise_multiplier / math.sqrt(2))


@pytest.mark.parametrize("max_degree", [1, 100])
def test_node_noise_grows_with_the_root_of_the_degree_bound(max_degree: int) -> None:
    unit = tacit.Node(max_degree=max_degree)
    stage = tacit.GAP(unit, 8.0, 1e-5).plan(FACTS).stage("aggregation")
    assert stage.noise_std == pytest.approx(stage.noise_multiplier * math.sqrt(max_degree))


def test_one_noise_scale_under_node_privacy_agrees_with_the_golden_pipeline() -> None:
    # golden: "GAP under node privacy as a whole", Renyi 1.00185: 781 steps each, q=256/20000.
    facts = PublicFacts(nodes=30_000, train_nodes=20_000, features=50, classes=6)
    model = tacit.GAP(
        tacit.Node(max_degree=100),
        8.0,
        1e-5,
        preset="paper",
        accounting="paper",
        overrides={"steps": 781},
    )
    multipliers = {stage.noise_multiplier for stage in model.plan(facts).stages}
    assert len(multipliers) == 1
    assert multipliers.pop() == pytest.approx(1.00185, rel=1e-4)
    sound = tacit.GAP(
        tacit.Node(max_degree=100), 8.0, 1e-5, preset="paper", overrides={"steps": 781}
    )
    assert sound.plan(facts).stages[0].noise_multiplier == pytest.approx(0.94855, rel=1e-4)


def test_splitting_the_budget_leaves_less_noise_on_the_hops() -> None:
    split = tacit.GAP(tacit.Node(), 8.0, 1e-5).plan(FACTS)
    one = tacit.GAP(tacit.Node(), 8.0, 1e-5, overrides={"aggregation_share": 0.0}).plan(FACTS)
    assert split.stage("aggregation").noise_std < one.stage("aggregation").noise_std
    assert split.cost.epsilon <= 8.0


def test_infinite_epsilon_equals_plain_computation(graph: Graph) -> None:
    """The non-private twin, written again with scipy and without any privacy machinery."""
    overrides = {"epochs": 4, "hidden": 8}
    model = tacit.GAP(
        tacit.Edge(), math.inf, 1e-6, hops=2, carry="labels", preset="paper", overrides=overrides
    ).fit(graph)
    labels = np.eye(graph.classes, dtype=np.float32)[graph.labels] * graph.train[:, None]
    ones = np.ones(graph.arcs, np.float32)
    matrix = csr_array((ones, graph.indices, graph.indptr), shape=(graph.nodes,) * 2)

    def unit(x: np.ndarray) -> np.ndarray:
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        return np.divide(x, norms, out=np.zeros_like(x), where=norms > 0)

    first = matrix.T @ labels
    second = matrix.T @ unit(first)
    np.testing.assert_allclose(model.fitted.outcome.released["hop.1"], first, atol=1e-6)
    # Rows are cut to a grid of 2^-14: at most 2^-14 for each of a row's neighbours.
    bound = graph.out_degrees.max() / 2**14
    np.testing.assert_allclose(model.fitted.outcome.released["hop.2"], second, atol=bound)


def test_edge_predictions_do_not_read_links_after_the_release(graph: Graph) -> None:
    """Two graphs with other links but the same released sums get the same classifier."""
    model = tacit.GAP(tacit.Edge(), 1.0, 1e-6, overrides=FAST, noise="seeded", seed=3)
    before = graph.indices.copy()
    model.fit(graph)
    assert np.array_equal(before, graph.indices)
    assert model.fitted.outcome.public_posteriors


def test_node_predictions_are_marked_as_each_nodes_own(graph: Graph) -> None:
    own = tacit.GAP(tacit.Node(), 8.0, 1e-5, overrides=FAST_NODE).fit(graph)
    assert not own.fitted.outcome.public_posteriors
    assert any("alone" in sentence for sentence in own.statement.assumptions)
    public = tacit.GAP(
        tacit.Node(),
        8.0,
        1e-5,
        overrides={**FAST_NODE, "own_list": False, "self_features": False},
    ).fit(graph)
    assert public.fitted.outcome.public_posteriors


def test_own_list_is_refused_where_the_list_is_not_the_nodes_own() -> None:
    for unit in (tacit.Edge(), tacit.Node(links="all", max_degree=10)):
        with pytest.raises(PlanError, match="own_list"):
            tacit.GAP(unit, 8.0, 1e-5, overrides={"own_list": True}).plan(FACTS)


def test_batch_norm_and_sampled_replacement_are_refused_under_node_units() -> None:
    with pytest.raises(PlanError, match="batch norm"):
        tacit.GAP(tacit.Node(), 8.0, 1e-5, overrides={"batch_norm": True}).plan(FACTS)
    with pytest.raises(PlanError, match="replace"):
        tacit.GAP(tacit.Node(relation="replace"), 8.0, 1e-5, overrides={"sampling_rate": 0.1}).plan(
            FACTS
        )


def test_replace_charges_twice_the_clip_and_every_record() -> None:
    stage = tacit.GAP(tacit.Node(relation="replace"), 8.0, 1e-5).plan(FACTS).stage("classifier")
    assert stage.sampling_rate == 1.0
    assert stage.noise_std == pytest.approx(2 * stage.noise_multiplier)
    assert "PoissonSampled" not in json.dumps(event_to_json(stage.event))


def test_k_neighbours_are_refused_with_the_reason() -> None:
    with pytest.raises(UnitError, match="nothing bounds"):
        tacit.GAP(tacit.KNeighbors(k=1), 8.0, 1e-5).plan(FACTS)


def test_a_broken_degree_promise_is_refused(graph: Graph) -> None:
    model = tacit.GAP(tacit.Node(links="all", max_degree=2), 8.0, 1e-5, overrides=FAST_NODE)
    with pytest.raises(UnitError, match="promise"):
        model.fit(graph)


def test_a_new_graph_is_charged_to_its_own_account(graph: Graph) -> None:
    ledger = tacit.Ledger()
    other = synthetic.communities(200, mean_degree=12, classes=3, features=8, seed=9)
    model = tacit.GAP(tacit.Edge(), 1.0, 1e-6, overrides=FAST).fit(graph)
    assert len(ledger.entries(tacit.graph.fingerprint(other))) == 0
    answers = model.predict_proba(other)
    assert answers.shape == (200, 3)
    assert len(ledger.entries(tacit.graph.fingerprint(other))) == 1
    assert len(ledger.entries(tacit.graph.fingerprint(graph))) == 1
    model.predict()
    assert len(ledger.entries()) == 2


def test_a_graph_of_another_width_is_refused(graph: Graph) -> None:
    model = tacit.GAP(tacit.Edge(), 1.0, 1e-6, overrides=FAST).fit(graph)
    other = synthetic.communities(200, mean_degree=12, classes=3, features=9, seed=9)
    with pytest.raises(PlanError, match="does not fit"):
        model.predict(other)


@pytest.mark.parametrize("combine", ["concat", "sum", "attention"])
@pytest.mark.parametrize("carry", ["features", "labels", "both", "classes"])
def test_every_carry_and_combine_runs_under_both_units(
    graph: Graph, carry: str, combine: str
) -> None:
    edge = {**FAST, "combine": combine, "carry": carry}
    tacit.GAP(tacit.Edge(), 4.0, 1e-6, hops=2, overrides=edge).fit(graph)
    node = {**FAST_NODE, "combine": combine, "carry": carry}
    model = tacit.GAP(tacit.Node(), 8.0, 1e-5, hops=2, overrides=node).fit(graph)
    names = [stage.name for stage in model.fitted.plan.stages]
    assert names == (
        ["aggregation", "classifier"]
        if carry == "labels"
        else ["aggregation", "encoder", "classifier"]
    )


def test_without_an_encoder_raw_rows_are_carried(graph: Graph) -> None:
    """The paper's ablation: features go to the hops as they are."""
    overrides = {**FAST, "encoder": False, "carry": "features"}
    model = tacit.GAP(tacit.Edge(), 4.0, 1e-6, preset="paper", overrides=overrides).fit(graph)
    assert model.fitted.outcome.released["hop.1"].shape[1] == 8


def test_more_signal_helps(graph: Graph) -> None:
    big = synthetic.communities(1_500, mean_degree=30, classes=4, features=16, seed=2)
    gap = tacit.GAP(tacit.Edge(), 4.0, 1e-6, overrides={"epochs": 40}, noise="seeded").fit(big)
    mlp = tacit.MLP(tacit.Edge(), 4.0, 1e-6, overrides={"epochs": 40}).fit(big)
    assert gap.fitted.metrics["test_accuracy"] > mlp.fitted.metrics["test_accuracy"] + 0.05
    own = tacit.GAP(tacit.Node(), 8.0, 1e-5, noise="seeded").fit(big)
    dp_mlp = tacit.MLP(tacit.Node(), 8.0, 1e-5, noise="seeded").fit(big)
    assert own.fitted.metrics["test_accuracy"] > dp_mlp.fitted.metrics["test_accuracy"] + 0.05


def test_unknown_settings_are_named() -> None:
    with pytest.raises(PlanError, match="no setting 'hop'"):
        tacit.GAP(tacit.Edge(), 1.0, 1e-6, overrides={"hop": 2}).plan(FACTS)
    with pytest.raises(PlanError, match="hops must be at least 1"):
        choose(tacit.Edge(), FACTS, 1.0, preset="tacit", overrides={"hops": 0})


def test_the_published_normalisation_is_available() -> None:
    network = HopClassifier([4, 4], 8, 3, normalise=True)
    assert network(torch.ones(2, 4), torch.ones(2, 4)).shape == (2, 3)
