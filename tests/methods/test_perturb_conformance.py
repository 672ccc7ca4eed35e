"""The methods on a perturbed graph through the public conformance suite."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit import Edge, Graph, KNeighbors, Node, Plan
from tacit.errors import PlanError, UnitError
from tacit.graph import PublicFacts
from tacit.learn.graph_networks import GraphNetwork, Links, predict_on_links, train_on_links
from tacit.learn.train import TrainConfig
from tacit.methods import METHODS, Method
from tacit.methods.base import Noise
from tacit.methods.perturb import EdgeRand
from tacit.methods.sage_edge import rates
from tacit.privacy.units import Unit
from tacit.testing import CHECKS, Case, Maker, NotApplicable

QUICK = {"epochs": 3, "hidden": 8}
REFUSED = (KNeighbors(k=2), Node(), Node(links="all", max_degree=9))


def communities(directed: bool = False) -> Graph:
    found = tacit.graph.synthetic.communities(60, mean_degree=4, features=7, classes=3, seed=2)
    if directed:
        kept = np.random.default_rng(0).random(found.arcs) < 0.6
        found = tacit.graph.from_arcs(
            np.repeat(np.arange(60), found.out_degrees)[kept], found.indices[kept],
            features=found.features, labels=found.labels, directed=True,
        )  # fmt: skip
    return tacit.graph.split(found, seed=0)


GRAPH, DIRECTED = communities(), communities(directed=True)


def maker(name: str, **options: Any) -> Maker:
    def make(unit: Unit, epsilon: float, *, seed: int, noise: Noise) -> Method:
        overrides = {**QUICK, **options.get("overrides", {})}
        kept = {key: value for key, value in options.items() if key != "overrides"}
        return METHODS[name](
            unit, epsilon, 1e-6, overrides=overrides, seed=seed, noise=noise, **kept
        )

    return make


def links_in(graph: Graph) -> int:
    return graph.arcs if graph.directed else graph.arcs // 2


def edge_rand_coins(graph: Graph) -> Any:
    def coins(method: Method) -> dict[float, int]:
        share = method.fitted.plan.stage("perturbation").noise_std
        return {1 - share / 2: links_in(graph)}

    return coins


def lap_graph_sizes(graph: Graph) -> Any:
    def sizes(method: Method) -> dict[str, int]:
        return {"count": 1, "perturbation": links_in(graph)}

    return sizes


def twin(kind: str) -> Any:
    """The network on the graph itself, put together by hand."""

    def train(graph: Graph, seed: int) -> np.ndarray:
        scale = np.float32(np.linalg.norm(graph.features.astype(float), axis=1).mean())
        x, adj = torch.tensor(graph.features / scale), Links.of(*graph.in_lists)
        labels = torch.tensor(graph.labels)
        rows, held = (torch.from_numpy(np.flatnonzero(m)) for m in (graph.train, graph.val))
        model = GraphNetwork(kind, 7, 8, 3, seed=seed)
        config = TrainConfig(3, 0.01, 5e-4, patience=30)
        train_on_links(
            model, x, adj, rows, labels[rows], config, seed=seed, val=(held, labels[held])
        )
        return predict_on_links(model, x, adj).softmax(1).numpy()

    return train


def sparse_coins(method: Method) -> dict[float, int]:
    """Not a function of the plan alone: the rate comes from the noisy count."""
    return dict.fromkeys(SEEN, links_in(GRAPH))


SEEN: list[float] = []
RELATIONS = (Edge("replace"),)
CASES = {
    "edgerand": Case(
        maker("edgerand"), Edge(), GRAPH, relations=RELATIONS, refused=REFUSED,
        coins=edge_rand_coins(GRAPH), twin=twin("gcn"),
    ),
    "edgerand-directed": Case(
        maker("edgerand", backbone="gat"), Edge(), DIRECTED, refused=REFUSED,
        coins=edge_rand_coins(DIRECTED), twin=twin("gat"),
    ),
    "lapgraph": Case(
        maker("lapgraph", overrides={"count_share": 0.3}), Edge(), GRAPH, relations=RELATIONS,
        refused=REFUSED, sizes=lap_graph_sizes(GRAPH), twin=twin("gcn"), epsilon=8.0,
    ),
    "lapgraph-directed-replace": Case(
        maker("lapgraph", overrides={"count_share": 0.3}, backbone="sage"), Edge("replace"),
        DIRECTED, refused=REFUSED, sizes=lap_graph_sizes(DIRECTED), twin=twin("sage"),
        epsilon=8.0,
    ),
    "sage-edge": Case(
        maker("sage-edge"), Edge(), GRAPH, relations=RELATIONS, refused=REFUSED,
        twin=twin("sage"), sizes=lambda method: {"count": 1}, coins=sparse_coins,
    ),
    "sage-edge-directed": Case(
        maker("sage-edge"), Edge(), DIRECTED, refused=REFUSED, twin=twin("sage"),
    ),
    "sage-edge-paper": Case(
        maker("sage-edge", accounting="paper"), Edge(), GRAPH, refused=REFUSED,
    ),
}  # fmt: skip
DATA_DEPENDENT = ("sage-edge-directed", "sage-edge-paper")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
@pytest.mark.parametrize("name", CASES)
def test_conformance(
    name: str, check: Callable[[Case], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.startswith("sage-edge"):
        SEEN.clear()
        monkeypatch.setattr("tacit.methods.sage_edge.rates", noted)
    if name in DATA_DEPENDENT and "every_draw" in check.__name__:
        pytest.skip("covered by the symmetric case: the coin's rate is a noisy number")
    try:
        check(CASES[name])
    except NotApplicable as reason:
        pytest.skip(str(reason))


def noted(plan: Any, density: float) -> tuple[float, float]:
    """The rates, written down, so that the suite can ask for just these coins."""
    found = rates(plan, density)
    SEEN.append(found[0])
    return found


@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_methods_without_privacy_conform_where_they_promise_nothing(name: str) -> None:
    """They take no finite budget, so the checks of budgets and noise have nothing to look at."""
    case = Case(
        maker(name), Edge(), GRAPH, epsilon=float("inf"), twin=twin(name), relations=(Node(),)
    )
    wanted = (
        "plan_reads_public", "infinite_epsilon", "inputs_are_not_mutated", "saved_runs",
        "new_graph_is_charged", "global_randomness",
    )  # fmt: skip
    ran = [check for check in CHECKS if any(part in check.__name__ for part in wanted)]
    assert len(ran) == len(wanted)
    for check in ran:
        check(case)
    with pytest.raises(PlanError, match="adds no noise"):
        METHODS[name](Edge(), 4.0, 1e-6).plan(PublicFacts(60, 45, 7, 3))


class WeakCoins(EdgeRand):
    """Flips coins that keep more than the plan says."""

    def _perturbed(self, graph: Graph, plan: Plan, source: Any) -> Graph:
        weaker = tuple(replace(s, noise_std=s.noise_std * 2 / 3) for s in plan.stages)
        return super()._perturbed(graph, replace(plan, stages=weaker), source)


class TwoAnswers(EdgeRand):
    """Perturbs twice and keeps the second graph."""

    def _perturbed(self, graph: Graph, plan: Plan, source: Any) -> Graph:
        super()._perturbed(graph, plan, source)
        return super()._perturbed(graph, plan, source)


class Leak(EdgeRand):
    """Answers from the true graph."""

    def _perturbed(self, graph: Graph, plan: Plan, source: Any) -> Graph:
        return graph


@pytest.mark.parametrize("broken", [WeakCoins, TwoAnswers, Leak], ids=lambda kind: kind.__name__)
def test_the_suite_catches_a_broken_perturbation(broken: type[EdgeRand]) -> None:
    def make(unit: Unit, epsilon: float, *, seed: int, noise: Noise) -> Method:
        return broken(unit, epsilon, 1e-6, overrides=QUICK, seed=seed, noise=noise)

    case = Case(make, Edge(), GRAPH, coins=edge_rand_coins(GRAPH))
    check = next(found for found in CHECKS if "every_draw" in found.__name__)
    with pytest.raises(AssertionError):
        check(case)


def test_refusals_say_why() -> None:
    facts = PublicFacts(60, 45, 7, 3)
    with pytest.raises(UnitError, match="as many of them as there are nodes"):
        METHODS["lapgraph"](Node(), 4.0, 1e-6).plan(facts)
    with pytest.raises(PlanError, match="no setting 'hops'"):
        METHODS["edgerand"](Edge(), 4.0, 1e-6, overrides={"hops": 2})
    with pytest.raises(PlanError, match="unknown backbone"):
        METHODS["edgerand"](Edge(), 4.0, 1e-6, backbone="transformer")
