"""Graph networks on perturbed graphs: the law of what is drawn, who pays, and who may ask what."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom

import tacit
from tacit import Edge, Graph, Ledger, Node
from tacit.aggregate.perturbation import Cells
from tacit.errors import NoiseError, PlanError
from tacit.graph import PublicFacts, fingerprint
from tacit.learn.graph_networks import Links
from tacit.methods import METHODS, Method, load_run, save_run
from tacit.methods.perturb import GCN, EdgeRand, LapGraph, PerturbedGraph
from tacit.methods.responses import epsilon_of, uniform_share
from tacit.methods.sage_edge import SageEdge
from tacit.release import load_bundle, release

QUICK = {"epochs": 3, "hidden": 8}


def communities(nodes: int = 60, seed: int = 2, degree: float = 4) -> Graph:
    found = tacit.graph.synthetic.communities(
        nodes, mean_degree=degree, features=7, classes=3, seed=seed
    )
    return tacit.graph.split(found, seed=0)


GRAPH = communities()


def fitted(kind: type[PerturbedGraph], epsilon: float, graph: Graph = GRAPH) -> PerturbedGraph:
    return kind(Edge(), epsilon, 1e-6, overrides=QUICK).fit(graph)


def perturbed_links(model: Method, graph: Graph) -> np.ndarray:
    """Numbers of the links that the network was trained on."""
    weights = model.fitted.outcome.weights
    found = graph.with_(indptr=weights["links.indptr"], indices=weights["links.indices"])
    return Cells(graph.nodes, graph.directed).of(found)


def kept_share_is(kind: type[PerturbedGraph], epsilon: float, claimed: float) -> bool:
    """Whether the kept links are as many as a claimed epsilon says, at p = 1e-9."""
    graph = communities(400, degree=20)
    cells = Cells(graph.nodes, graph.directed)
    links = cells.of(graph)
    kept = np.isin(links, perturbed_links(fitted(kind, epsilon, graph), graph)).sum()
    low, high = binom.interval(1 - 1e-9, len(links), 1 / (1 + math.exp(-claimed)))
    return bool(low <= kept <= high)


def test_edge_rand_keeps_as_many_links_as_its_epsilon_says() -> None:
    """The published Theorem 4, and the power to tell 2/3 and 3/2 of it."""
    assert kept_share_is(EdgeRand, 1.0, 1.0)
    assert not kept_share_is(EdgeRand, 1.0, 2 / 3)
    assert not kept_share_is(EdgeRand, 1.0, 3 / 2)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 10.0])
def test_what_is_planned_is_the_published_epsilon(epsilon: float) -> None:
    """Golden: LinkTeller's Theorem 4, epsilon = ln(2/s - 1); LapGraph's epsilons add up."""
    facts = PublicFacts(60, 45, 7, 3)
    stage = EdgeRand(Edge(), epsilon, 1e-6).plan(facts).stage("perturbation")
    assert math.log(2 / stage.noise_std - 1) == pytest.approx(epsilon, rel=1e-4)
    assert epsilon_of(uniform_share(epsilon)) == pytest.approx(epsilon, rel=1e-12)
    count, cells = LapGraph(Edge(), epsilon, 1e-6).plan(facts).stages
    assert 1 / count.noise_std + 1 / cells.noise_std == pytest.approx(epsilon, rel=1e-4)
    assert 1 / count.noise_std == pytest.approx(0.01 * epsilon, rel=1e-4)
    for plan in (EdgeRand, LapGraph, SageEdge):
        assert plan(Edge(), epsilon, 1e-6).plan(facts).cost.epsilon <= epsilon


def test_a_moved_link_costs_two_coins() -> None:
    facts = PublicFacts(60, 45, 7, 3)
    once = EdgeRand(Edge(), 2.0, 1e-6).plan(facts).stages[0]
    moved = EdgeRand(Edge("replace"), 4.0, 1e-6).plan(facts).stages[0]
    assert moved.noise_std == pytest.approx(once.noise_std, rel=1e-3)
    assert epsilon_of(moved.noise_multiplier) == pytest.approx(4.0, rel=1e-3)


def test_paper_accounting_of_the_asymmetric_response_is_charged_twice_on_symmetric_graphs(
    tmp_path: Path,
) -> None:
    """One link is two arcs: the published code counts and answers them one by one."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    model = SageEdge(Edge(), 4.0, 1e-6, accounting="paper", overrides=QUICK)
    model.fit(GRAPH, ledger=ledger)
    assert model.statement.epsilon <= 4.0
    assert model.statement.stamp == "paper accounting"
    spent = ledger.total(fingerprint(GRAPH), "edge", 1e-6).epsilon
    assert spent == pytest.approx(8.0, rel=0.02)
    facts = PublicFacts(60, 45, 7, 3, directed=True)
    plan = SageEdge(Edge(), 4.0, 1e-6, accounting="paper").plan(facts)
    assert plan.charged == plan.stages


@pytest.mark.parametrize("kind", [LapGraph, SageEdge])
def test_sparse_answers_stay_sparse(kind: type[PerturbedGraph]) -> None:
    graph = communities(400, degree=10)
    answered = len(perturbed_links(fitted(kind, 2.0, graph), graph))
    assert 0.5 * graph.arcs / 2 < answered < 2 * graph.arcs / 2


def test_the_network_sees_the_perturbed_graph_alone() -> None:
    """Posteriors are a function of the released links and of public features: nothing else."""
    model = fitted(EdgeRand, 2.0)
    weights = model.fitted.outcome.weights
    again = model.serve(features=GRAPH.features).predict_proba()
    assert np.array_equal(again, model.predict_proba())
    assert set(weights) >= {"links.indptr", "links.indices", "scale"}
    assert not np.array_equal(perturbed_links(model, GRAPH), Cells(60, False).of(GRAPH))
    with pytest.raises(PlanError, match="does not keep the features"):
        model.serve()


def test_a_service_is_charged_once_and_answers_for_other_features(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    model = EdgeRand(Edge(), 2.0, 1e-6, overrides=QUICK).fit(GRAPH, ledger=ledger)
    other = communities(50, seed=9)
    service = model.serve(other, ledger=ledger)
    spent = ledger.total(fingerprint(other), "edge", 1e-6).epsilon
    assert spent == pytest.approx(model.statement.epsilon)
    first = service.predict_proba([3, 4])
    changed = other.features.copy()
    changed[7] *= 2
    assert np.array_equal(first, service.predict_proba([3, 4]))
    moved = (service.predict_proba(features=changed) != service.predict_proba()).any(axis=1)
    assert moved.any()
    assert len(ledger.entries(fingerprint(other))) == 1
    with pytest.raises(PlanError, match="one row for every node"):
        service.predict_proba(features=changed[:5])
    with pytest.raises(PlanError, match="does not fit"):
        model.serve(other.with_(features=other.features[:, :3]), ledger=ledger)


def test_overlapping_graphs_charge_both_accounts(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    model = EdgeRand(Edge(), 2.0, 1e-6, overrides=QUICK).fit(GRAPH, ledger=ledger)
    part = tacit.graph.transforms.subgraph(GRAPH, np.arange(30))
    model.serve(part, overlaps=True, ledger=ledger)
    for graph, times in ((part, 1), (GRAPH, 2)):
        spent = ledger.total(fingerprint(graph), "edge", 1e-6).epsilon
        assert spent == pytest.approx(2.0 * times, rel=1e-3)


def test_the_influence_of_a_node_ends_after_as_many_links_as_there_are_layers() -> None:
    n, ends = 9, np.arange(8)
    path = tacit.graph.symmetrize(
        tacit.graph.from_arcs(ends, ends + 1, features=np.ones((n, 3)), labels=np.arange(n) % 2)
    )
    model = GCN(layers=2, overrides=QUICK).fit(tacit.graph.split(path, seed=0))
    service = model.serve(path)
    changed = path.features.copy()
    changed[0] = 5.0
    moved = (service.predict_proba(features=changed) != service.predict_proba()).any(axis=1)
    assert not moved[3:].any()


def test_a_graph_that_would_not_fit_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    """A million nodes at epsilon 1 have 10^11 answered links; the plan already says so."""
    facts = PublicFacts(1_000_000, 10, 7, 3)
    with pytest.raises(NoiseError, match="GiB"):
        EdgeRand(Edge(), 1.0, 1e-6).plan(facts)
    LapGraph(Edge(), 1.0, 1e-6).plan(facts)
    SageEdge(Edge(), 1.0, 1e-6).plan(facts)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    model = EdgeRand(Edge(), 1.0, 1e-6, overrides=QUICK).fit(GRAPH, ledger=ledger)
    n = 400_000
    huge = tacit.graph.from_arcs(
        [], [], features=np.ones((n, 7), np.float32), labels=np.zeros(n, int), classes=3,
        directed=False,
    )  # fmt: skip
    for ask in (model.predict_proba, model.serve):
        with pytest.raises(NoiseError, match="raise epsilon"):
            ask(huge, ledger=ledger)
    assert ledger.entries(fingerprint(huge)) == []


class Mean(torch.nn.Module):
    """A third party's backbone."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.map = torch.nn.Linear(features, classes)

    def forward(self, x: torch.Tensor, adj: Links) -> torch.Tensor:
        return adj.mean @ self.map(x)


def own(features: int, classes: int, seed: int) -> torch.nn.Module:
    torch.random.default_generator.manual_seed(seed)
    return Mean(features, classes)


def test_a_module_of_ones_own_takes_the_place_of_a_backbone(tmp_path: Path) -> None:
    model = EdgeRand(Edge(), 2.0, 1e-6, network=own, overrides={"epochs": 3}).fit(GRAPH)
    assert model.fitted.plan.settings.backbone == "own"
    loaded = load_run(save_run(model, tmp_path / "run"))
    assert np.array_equal(loaded.predict_proba(), model.predict_proba())
    assert isinstance(loaded, EdgeRand)
    with pytest.raises(PlanError, match="backbone of its own"):
        loaded.serve(features=GRAPH.features)
    loaded.network = own
    again = loaded.serve(features=GRAPH.features).predict_proba()
    assert np.array_equal(again, model.predict_proba())


def test_a_bundle_answers_for_the_whole_graph_with_other_features(tmp_path: Path) -> None:
    model = fitted(LapGraph, 4.0)
    bundle = load_bundle(release(model, tmp_path / "bundle"))
    assert "perturbed links" in (tmp_path / "bundle" / "CARD.md").read_text()
    assert np.array_equal(bundle.predict_proba(), model.predict_proba())
    assert np.array_equal(bundle.predict_proba(GRAPH.features), model.predict_proba())
    with pytest.raises(PlanError, match="features of all nodes"):
        bundle.predict_proba(GRAPH.features[:5], nodes=[0, 1, 2, 3, 4])


@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_a_victim_learns_and_is_stamped(name: str) -> None:
    graph = communities(300, degree=10)
    model: Callable[..., Method] = METHODS[name]
    found = model(Edge(), math.inf, 1e-6).fit(graph)
    assert found.fitted.metrics["test_accuracy"] > 0.7
    assert not found.statement.releasable
    assert model(Node(), math.inf, 1e-6).plan(graph.facts()).stages
