"""DPDGC under every unit it supports, through the public conformance suite."""

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

import tacit
from tacit import DPDGC, Edge, Graph, KNeighbors, Node, Plan
from tacit.aggregate import to_grid
from tacit.aggregate.list_sums import GRID_BITS, label_weights, sign_step, signs
from tacit.methods import Method
from tacit.methods.base import Noise
from tacit.methods.dpdgc_network import DpdgcNetwork
from tacit.privacy.units import Unit, zero_record
from tacit.testing import CHECKS, Case, Maker, NotApplicable, Witness

QUICK = {"epochs": 2, "steps": 3, "embedding_steps": 2, "hidden": 8, "folds": 2}
D = 4


def made(**options: Any) -> Maker:
    def make(unit: Unit, epsilon: float, *, seed: int, noise: Noise) -> Method:
        chosen = {**QUICK, **options.get("overrides", {})}
        kept = {key: value for key, value in options.items() if key != "overrides"}
        return DPDGC(unit, epsilon, 1e-5, overrides=chosen, seed=seed, noise=noise, **kept)

    return make


def communities() -> Graph:
    found = tacit.graph.synthetic.communities(60, mean_degree=4, features=7, classes=3, seed=2)
    return tacit.graph.split(found, seed=0)


GRAPH = communities()


def arcs(graph: Graph) -> csr_array:
    ones = np.ones(graph.arcs, np.int64)
    return csr_array((ones, graph.indices, graph.indptr), shape=(graph.nodes, graph.nodes))


def fixed_rows(plan: Plan, graph: Graph) -> np.ndarray:
    """The rows of W on the grid: a sketch, or (trained, classes) any unit rows that stay."""
    if plan.settings.sketches:
        return signs(graph.nodes, 0, plan.settings.sketch_seed).astype(np.int64) * sign_step(64)
    return to_grid(np.eye(graph.nodes, dtype=np.float32), GRID_BITS).astype(np.int64)


def label_rows(plan: Plan, graph: Graph) -> np.ndarray:
    rows = np.zeros((graph.nodes, graph.classes), np.float32)
    rows[graph.train, graph.labels[graph.train]] = 1
    weights = None
    if isinstance(plan.unit, KNeighbors):
        weights = label_weights(graph, plan.settings.limit)
    return to_grid(rows, GRID_BITS, weights).astype(np.int64)


def list_answers(rows: Any) -> Any:
    """The sums over own lists by scipy, in units where a row has norm 1."""

    def answers(plan: Plan, graph: Graph, seed: int) -> list[np.ndarray]:
        return [arcs(graph) @ rows(plan, graph) / 2.0**GRID_BITS]

    return answers


def sizes(method: Method) -> dict[str, int]:
    outcome = method.fitted.outcome
    head = sum(a.size for k, a in outcome.weights.items() if k.startswith("head."))
    trained = sum(a.size for k, a in outcome.weights.items() if k.startswith("embedding."))
    return {
        "embedding": sum(x.size for x in outcome.released.values()),
        "classifier": head,
        "training": trained,
    }


class PlainNetwork(DpdgcNetwork):
    """DPDGC without privacy, its sums by another program."""

    def embed(self, graph: Graph) -> dict[str, np.ndarray]:
        found, rows = {}, self._class_rows(graph)
        for hop in range(self.settings.hops):
            grid = to_grid(rows, GRID_BITS).astype(np.int64)
            sums = (arcs(graph) @ grid / 2.0**GRID_BITS).astype(np.float32)
            found[f"hop.{hop + 1}"] = sums
            rows = tacit.aggregate.unit_rows(sums)
        sketch = np.hstack([signs(graph.nodes, 0, 0)]) * sign_step(64)
        found["sketch"] = (arcs(graph) @ sketch.astype(np.int64) * 2.0**-GRID_BITS).astype(
            np.float32
        )
        return found


def twin(graph: Graph, seed: int) -> np.ndarray:
    plan = made()(Edge(), float("inf"), seed=seed, noise="secure").plan(graph.facts())
    network = PlainNetwork(plan, seed, None, lambda stage, done, total: None)
    network.fit_encoder(graph)
    sums = network.embed(graph)
    network.fit_head(graph, sums)
    return network.posteriors(graph, sums)


def star(directed: bool, leaves: int = D) -> Graph:
    """Every leaf lists node 0, and node 0 every leaf unless links are directed."""
    sources, targets = np.arange(1, leaves + 1), np.zeros(leaves, np.int64)
    n = leaves + 4
    found = tacit.graph.from_arcs(
        sources,
        targets,
        features=np.ones((n, 7), np.float32),
        labels=np.arange(n) % 3,
        directed=True,
    )
    found = found if directed else tacit.graph.symmetrize(found)
    masks = {"train": np.ones(n, bool), "val": np.zeros(n, bool), "test": np.zeros(n, bool)}
    return found.with_(**masks)


def without(graph: Graph, links: int) -> Graph:
    """Without the first arcs into node 0 and, in a symmetric graph, their reverses."""
    sources = np.repeat(np.arange(graph.nodes), graph.out_degrees)
    gone = (graph.indices == 0) & (sources <= links)
    gone |= (sources == 0) & (graph.indices <= links)
    return tacit.graph.from_arcs(
        sources[~gone],
        graph.indices[~gone],
        features=graph.features,
        labels=graph.labels,
        directed=graph.directed,
    ).with_(train=graph.train, val=graph.val, test=graph.test)


def blank(graph: Graph) -> Graph:
    features = graph.features.copy()
    features[0] = 0
    return graph.with_(features=features)


ONE, TWO = star(directed=True), star(directed=False)
FIXED = {"stage": "embedding", "answers": list_answers(fixed_rows), "sizes": sizes}
LABELS = {**FIXED, "answers": list_answers(label_rows)}
REFUSED = (Node(links="all"),)
ALL, K2 = Node(links="all", max_degree=30), KNeighbors(k=2)
EDGES = tuple(Witness(graph, without(graph, 1)) for graph in (ONE, TWO))
CASES = {
    "edge": Case(
        made(), Edge(), GRAPH, relations=(Node(), ALL, K2), witnesses=EDGES, twin=twin,
        refused=REFUSED, **FIXED,
    ),
    "edge-replace": Case(made(), Edge("replace"), GRAPH, refused=REFUSED, **LABELS),
    "edge-both": Case(made(embedding="both"), Edge(), GRAPH, refused=(K2, Node())),
    "edge-trained": Case(
        made(embedding="trained"), Edge(), GRAPH, witnesses=EDGES, refused=REFUSED, **FIXED,
    ),
    "edge-paper": Case(
        made(preset="paper", overrides={"steps": 3, "embedding_rate": 0.3}), Edge(), GRAPH,
        refused=REFUSED, **FIXED,
    ),
    "edge-paper-accounting": Case(
        made(preset="paper", accounting="paper"), Edge(), GRAPH, refused=REFUSED, sizes=sizes,
    ),
    "k": Case(
        made(), K2, GRAPH, relations=(KNeighbors("replace", k=2),), refused=REFUSED, **LABELS,
    ),
    "k-replace": Case(made(), KNeighbors("replace", k=2), GRAPH, refused=REFUSED, **LABELS),
    "k-sketch": Case(
        made(embedding="sketch"), K2, GRAPH, refused=REFUSED,
        witnesses=tuple(Witness(g, without(blank(g), 2)) for g in (ONE, TWO)),
        **{**FIXED, "answers": list_answers(
            lambda plan, graph: to_grid(np.eye(graph.nodes, dtype=np.float32), GRID_BITS)
        )},
    ),
    "k-trained": Case(
        made(embedding="trained"), K2, GRAPH, refused=REFUSED, **FIXED,
    ),
    "k-paper-accounting": Case(
        made(preset="paper", accounting="paper", overrides={"embedding_rate": 0.3}), K2, GRAPH,
        refused=REFUSED, sizes=sizes,
    ),
    "own": Case(made(), Node(), GRAPH, relations=(Node("replace"),), refused=REFUSED),
    "own-trained": Case(
        made(embedding="trained"), Node("replace"), GRAPH, relations=(Node(),), refused=REFUSED,
    ),
    "all": Case(made(), ALL, GRAPH, refused=REFUSED, sizes=sizes),
    "all-labels": Case(
        made(embedding="labels"), Node(links="all", max_degree=D), TWO, refused=REFUSED,
        witnesses=(Witness(TWO, zero_record(TWO, 0, column=True)),), **LABELS,
    ),
    "all-sketch-replace": Case(
        made(embedding="sketch"), Node("replace", links="all", max_degree=30), GRAPH,
        refused=REFUSED, **FIXED,
    ),
    "all-trained": Case(made(embedding="trained"), ALL, GRAPH, refused=REFUSED, **FIXED),
}  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_dpdgc_conforms(case: Case, check: Any) -> None:
    try:
        check(case)
    except NotApplicable as reason:
        pytest.skip(str(reason))
