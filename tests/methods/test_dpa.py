"""DPA's own promises; what every method must do is in test_dpa_conformance.py."""

import math
from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit.errors import PlanError, UnitError
from tacit.graph import Graph, PublicFacts, synthetic
from tacit.methods.dpa import session_of
from tacit.methods.dpa_claims import claimed_edge
from tacit.privacy.accounting import epsilon_pld
from tacit.privacy.split import gaussian_mu
from tacit.release import load_bundle, release

FACTS = PublicFacts(nodes=2708, train_nodes=1354, features=1433, classes=7)
LAYERS = {"feature_layers": 1, "label_layers": 1}


@pytest.fixture(scope="module")
def graph() -> Graph:
    made = synthetic.communities(300, mean_degree=16, classes=3, features=8, seed=1)
    return tacit.graph.split(made, (50, 25, 25))


def dpa(epsilon: float = 8.0, unit: tacit.Node | None = None, **options) -> tacit.DPA:
    return tacit.DPA(unit or tacit.Node(), epsilon, 1e-5, **options)


def test_all_rounds_together_cost_one_gaussian() -> None:
    plan = dpa().plan(FACTS)
    assert [stage.name for stage in plan.stages] == ["counts", "profile", "labels", "summary"]
    assert {stage.mechanism for stage in plan.stages} == {"gaussian"}
    together = sum(stage.rounds / stage.noise_multiplier**2 for stage in plan.stages)
    # golden: gaussian_composed, K=1, delta=1e-5, eps=8: .600229
    assert together**-0.5 == pytest.approx(0.600229, rel=1e-3)
    assert plan.cost.epsilon <= 8.0


def test_the_mu_of_a_budget_is_the_golden_one() -> None:
    # golden: gaussian_composed, K=1, delta=1e-5, exact
    for epsilon, sigma in ((1.0, 3.73063), (4.0, 1.08116), (8.0, 0.600229)):
        assert 1 / gaussian_mu(epsilon, 1e-5) == pytest.approx(sigma, rel=1e-4)


def test_counts_are_charged_for_the_whole_list_and_dummies_grow_with_it() -> None:
    for longest in (4, 100):
        plan = dpa(overrides={"longest": longest}).plan(FACTS)
        stage = plan.stage("counts")
        assert stage.noise_std == pytest.approx(stage.noise_multiplier * math.sqrt(longest))
        assert session_of(plan).dummies.std == stage.noise_std
        assert session_of(plan).dummies.shift == math.ceil(14 * stage.noise_std)


def test_layers_share_the_budget_of_their_channel() -> None:
    one, four = (
        dpa(overrides={"label_layers": layers}).plan(FACTS).stage("labels") for layers in (1, 4)
    )
    assert four.noise_std == pytest.approx(2 * one.noise_std, rel=1e-3)
    rounds = session_of(dpa(overrides={"label_layers": 4}).plan(FACTS)).rounds
    assert all(turn.noise_std > 0 and turn.normalise for turn in rounds)


@pytest.mark.parametrize("degree", [1, 9])
def test_replace_needs_more_noise(degree: int) -> None:
    """Non-negative one-hot rows: sqrt(2 D); a signed row under one key: 2; counts: sqrt(2 K)."""
    unit = tacit.Node("replace", max_degree=degree)
    plan = dpa(unit=unit, overrides={"longest": 16}).plan(FACTS)
    reach = {stage.name: stage.noise_std / stage.noise_multiplier for stage in plan.stages}
    expected = {"counts": math.sqrt(32), "profile": 2, "labels": math.sqrt(2 * degree)}
    assert reach == pytest.approx({**expected, "summary": 2.0})


def test_the_share_of_features_follows_public_facts() -> None:
    many = PublicFacts(nodes=400_000, train_nodes=200_000, features=1433, classes=7)
    few, lots = (dpa().plan(facts).settings.feature_share for facts in (FACTS, many))
    assert 0.05 == lots < few == 0.2


def test_parties_that_collude_are_made_up_for() -> None:
    plan = dpa(overrides={"parties": 6, "shares": 3, "colluding": 2}).plan(FACTS)
    deal = session_of(plan)
    for turn in deal.rounds:
        honest = deal.party_std(turn) * math.sqrt(deal.parties - deal.colluding)
        assert honest == pytest.approx(turn.noise_std)
    with pytest.raises(tacit.TacitError, match="colluding"):
        dpa(overrides={"colluding": 2}).plan(FACTS)


@pytest.mark.parametrize(
    "overrides",
    [{"clip_rate": 0.8}, {"clip": "received"}, {"distribution": "laplace"}, {"self_link": True}],
)
def test_what_only_the_paper_claims_is_refused_by_sound_accounting(overrides) -> None:
    with pytest.raises(PlanError):
        dpa(overrides=overrides).plan(FACTS)


@pytest.mark.parametrize(
    "unit", [tacit.Edge(), tacit.KNeighbors(k=1), tacit.Node(links="all", max_degree=5)]
)
def test_units_without_a_proof_are_refused(unit) -> None:
    with pytest.raises(UnitError, match="DPA promises nothing"):
        tacit.DPA(unit, 8.0, 1e-5).plan(FACTS)


def test_the_papers_noise_is_its_own_formula() -> None:
    unit = tacit.Node(max_degree=5)
    plan = dpa(4.0, unit, accounting="paper", overrides={"clip_rate": 0.0}).plan(FACTS)
    # Equations 3, 13 and 30 by hand: S = sqrt(2 (D+1)), eps_e = ln(3.5), eps_h = 5 % of 4.
    edge = math.log(3.5)
    assert claimed_edge(plan.settings) == pytest.approx(edge) == pytest.approx(1.2528, abs=1e-4)
    root = math.sqrt(2 * 6) * math.sqrt(2 * math.log(1.25e5))
    assert plan.stage("features").noise_std == pytest.approx(root / 0.2)
    assert plan.stage("labels").noise_std == pytest.approx(root / (4 - 0.2 - edge))
    deal = session_of(plan)
    assert deal.party_std(deal.rounds[0]) == pytest.approx(root / 0.2 / math.sqrt(3))
    assert [turn.noise_std > 0 for turn in deal.rounds].count(True) == 2
    # What was read off the graph instead of being public only changes D.
    grown = session_of(plan, 11)
    assert grown.rounds[0].noise_std == pytest.approx(root * math.sqrt(2) / 0.2)
    with pytest.raises(PlanError, match="nothing for labels"):
        dpa(1.0, accounting="paper").plan(FACTS)


def test_the_ledger_is_charged_infinity_where_layers_have_no_noise(graph: Graph) -> None:
    ledger = tacit.Ledger()
    model = dpa(4.0, accounting="paper", overrides={"epochs": 1}).fit(graph, ledger=ledger)
    assert math.isinf(ledger.entries()[-1].epsilon)
    assert model.statement.stamp == "paper accounting"
    assert model.statement.epsilon <= 4.0
    assert "Nobody is trusted" in model.statement.trust_model


def test_one_layer_of_the_paper_is_charged_what_is_proved_of_it() -> None:
    """At replace: signed sqrt(4 (D+1)), labels sqrt(2 (D+1)), two of three noises, D counts."""
    unit = tacit.Node("replace", max_degree=10)
    overrides = {**LAYERS, "clip_rate": 0.0, "clip": "sent"}
    plan = dpa(8.0, unit, accounting="paper", overrides=overrides).plan(FACTS)
    charged = {stage.name: stage for stage in plan.charged}
    for name, squared in (("features", 44), ("labels", 22)):
        stage = plan.stage(name)
        left = math.sqrt(2 / 3) * stage.noise_std
        assert charged[name].noise_multiplier == pytest.approx(left / math.sqrt(squared))
    # golden: dpa.node_level_counts, D=10, replace, pure: 17.91759
    counts = charged["counts"]
    assert epsilon_pld(counts.event, 0.0) == pytest.approx(17.91759469, rel=1e-6)
    # golden: eps_e_exact 1.0986 for add/remove of one arc
    one = dpa(8.0, tacit.Node(max_degree=1), accounting="paper", overrides=overrides).plan(FACTS)
    assert epsilon_pld(one.charged[0].event, 0.0) == pytest.approx(1.0986122886, rel=1e-6)


def test_users_answer_better_than_chance_and_for_themselves_alone(graph: Graph) -> None:
    # Seeded noise: a test of learning must not depend on luck.
    model = dpa(16.0, seed=1, noise="seeded").fit(graph)
    assert model.fitted.metrics["test_accuracy"] > 0.6
    assert not model.fitted.outcome.public_posteriors
    assert any("alone" in sentence for sentence in model.statement.assumptions)


def test_the_server_answers_for_anyone_from_what_was_released(graph: Graph) -> None:
    overrides = {"answer": "server", "feature_layers": 1, "profile": False, "epochs": 5}
    model = dpa(overrides=overrides).fit(graph)
    assert model.fitted.outcome.public_posteriors
    assert set(model.fitted.outcome.released) == {"features.1", "labels.1"}
    with pytest.raises(PlanError, match="needs features"):
        dpa(overrides={"answer": "server"}).plan(FACTS)


def test_without_noise_the_papers_layers_are_scaled_sums(graph: Graph) -> None:
    """l_h = 2 of Equation 23 with the clipped degree, written again with dense matrices."""
    overrides = {
        "feature_layers": 2, "label_layers": 2, "scaling": "clipped", "epochs": 1,
        "clip_rate": 0.0, "clip": "sent",
    }  # fmt: skip
    unit = tacit.Node(max_degree=1000)
    model = dpa(math.inf, unit, accounting="paper", overrides=overrides).fit(graph)
    links = np.zeros((graph.nodes, graph.nodes))
    links[np.repeat(np.arange(graph.nodes), graph.out_degrees), graph.indices] = 1
    links += np.eye(graph.nodes)
    labels = np.eye(3)[graph.labels] * (graph.train | graph.val)[:, None]
    expected = links.T @ (links.T @ labels / links.sum(axis=1, keepdims=True))
    found = model.fitted.outcome.released["labels.2"]
    np.testing.assert_allclose(found, expected, atol=links.sum(axis=0).max() / 2**14)


@pytest.mark.parametrize("projection", ["gaussian", "columns"])
def test_features_can_be_reduced(graph: Graph, projection: str) -> None:
    overrides = {"width": 4, "projection": projection}
    model = dpa(overrides=overrides).fit(graph)
    assert model.fitted.outcome.weights["profile"].shape == (1, 3 * 4)
    with pytest.raises(PlanError, match="no setting"):
        dpa(overrides={"dimensions": 4}).plan(FACTS)


def test_an_answer_from_released_rows_is_the_answer_of_the_fit(graph: Graph) -> None:
    model = dpa().fit(graph)
    fitted = model.fitted
    found = model._answer(fitted, graph, fitted.outcome.released, outsiders=False)
    np.testing.assert_array_equal(found, fitted.outcome.posteriors)


def test_a_released_bundle_answers_for_one_user_what_the_fit_answered(
    graph: Graph, tmp_path: Path
) -> None:
    model = dpa().fit(graph)
    release(model, tmp_path / "bundle")
    bundle = load_bundle(tmp_path / "bundle")
    for v in (*np.flatnonzero(graph.train)[:5].tolist(), *np.flatnonzero(graph.test)[:5].tolist()):
        links = graph.indices[graph.indptr[v] : graph.indptr[v + 1]]
        label = int(graph.labels[v]) if graph.train[v] else None
        found = bundle.predict_record(graph.features[v], links, node=v, label=label)
        np.testing.assert_allclose(found, model.predict_proba()[v], atol=1e-6)
