from itertools import islice

import numpy as np
import pytest

import tacit
from tacit.errors import PlanError
from tacit.graph import Graph, PublicFacts, synthetic

FACTS = PublicFacts(nodes=1_000, train_nodes=750, features=8, classes=3)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return synthetic.communities(300, mean_degree=12, classes=3, features=8, seed=1)


def test_edge_reads_no_link_and_costs_nothing(graph: Graph) -> None:
    model = tacit.MLP(tacit.Edge(), 1.0, 1e-6, overrides={"epochs": 3}).fit(graph)
    assert model.fitted.plan.stages == ()
    assert model.statement.epsilon == 0.0
    assert model.statement.releasable
    assert tacit.Ledger().entries() == []


def test_links_do_not_matter(graph: Graph) -> None:
    other = graph.with_(indptr=graph.indptr * 0, indices=graph.indices[:0])
    first = tacit.MLP(tacit.Edge(), 1.0, 1e-6, overrides={"epochs": 3}).fit(graph)
    second = tacit.MLP(tacit.Edge(), 1.0, 1e-6, overrides={"epochs": 3}).fit(other)
    assert (first.predict_proba() == second.predict_proba()).all()


def test_node_units_charge_dp_sgd(graph: Graph) -> None:
    model = tacit.MLP(tacit.Node(), 4.0, 1e-5, overrides={"steps": 5}).fit(graph)
    assert [stage.name for stage in model.fitted.plan.stages] == ["classifier"]
    assert 0 < model.statement.epsilon <= 4.0
    assert not model.fitted.outcome.public_posteriors


def test_links_all_needs_no_degree_promise_because_no_link_is_read(graph: Graph) -> None:
    model = tacit.MLP(tacit.Node(links="all"), 4.0, 1e-5, overrides={"steps": 5}).fit(graph)
    assert model.statement.unit == "node-all"


def test_k_neighbours_protect_one_record_as_a_node_does(graph: Graph) -> None:
    """No link is read and one individual has one row, whatever k: the noise is the node unit's."""
    overrides = {"steps": 5}
    plans = [
        tacit.MLP(unit, 4.0, 1e-5, overrides=overrides).plan(FACTS)
        for unit in (tacit.Node(), tacit.KNeighbors(k=1), tacit.KNeighbors(k=25))
    ]
    assert plans[0].stages == plans[1].stages == plans[2].stages
    model = tacit.MLP(tacit.KNeighbors(k=25), 4.0, 1e-5, overrides=overrides).fit(graph)
    assert model.statement.unit == "k-neighbours"
    assert not model.fitted.outcome.public_posteriors
    rng = np.random.default_rng(0)
    for other in islice(tacit.KNeighbors(k=3).neighbours(graph, rng), 20):
        changed = (graph.features != other.features).any(1) | (graph.labels != other.labels)
        assert changed.sum() == 1
        assert not other.train[changed].any()


def test_paper_settings_run_the_papers_steps() -> None:
    stage = tacit.MLP(tacit.Node(), 8.0, 1e-5, preset="paper").plan(FACTS).stages[0]
    assert stage.rounds == 30
    assert stage.sampling_rate == pytest.approx(256 / 750)


def test_replace_takes_every_record() -> None:
    stage = tacit.MLP(tacit.Node(relation="replace"), 8.0, 1e-5).plan(FACTS).stages[0]
    assert stage.sampling_rate == 1.0
    assert stage.noise_std == pytest.approx(2 * stage.noise_multiplier)
    with pytest.raises(PlanError, match="replace"):
        tacit.MLP(tacit.Node(relation="replace"), 8.0, 1e-5, overrides={"sampling_rate": 0.5}).plan(
            FACTS
        )


def test_refusals_name_the_reason() -> None:
    with pytest.raises(PlanError, match="no setting 'depth'"):
        tacit.MLP(tacit.Edge(), 1.0, 1e-5, overrides={"depth": 3})
    with pytest.raises(PlanError, match="batch norm"):
        tacit.MLP(tacit.Node(), 1.0, 1e-5, overrides={"batch_norm": True}).plan(FACTS)
