"""One-layer GraphSAGE under node privacy: conformance, and how far one record reaches."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import tacit
from tacit import Edge, Graph, KNeighbors, Ledger, Node, Plan
from tacit.aggregate import to_grid, unit_rows
from tacit.aggregate.hop_sum import GRID_BITS
from tacit.errors import PlanError, UnitError
from tacit.graph import PublicFacts, bound_out_lists, fingerprint
from tacit.learn.train import TrainConfig, train
from tacit.methods import Method
from tacit.methods.base import Noise
from tacit.methods.sage_network import OneLayer, SageNetwork, signal_share
from tacit.methods.sage_node import SageNode
from tacit.privacy.units import Unit, zero_record
from tacit.release import load_bundle, release
from tacit.testing import CHECKS, Case, Maker, NotApplicable, Witness

D = 4
FACTS = PublicFacts(60, 45, 7, 3)
QUICK = {"epochs": 2, "steps": 3}
OWN, OWN_REPLACE = Node(max_degree=D), Node("replace", max_degree=D)
ALL = Node(links="all", max_degree=30)
REFUSED = (Edge(), KNeighbors(k=2), Node(links="all"))


def communities() -> Graph:
    found = tacit.graph.synthetic.communities(60, mean_degree=4, features=7, classes=3, seed=2)
    return tacit.graph.split(found, seed=0)


GRAPH = communities()


def maker(**options: Any) -> Maker:
    def make(unit: Unit, epsilon: float, *, seed: int, noise: Noise) -> Method:
        return SageNode(unit, epsilon, 1e-5, overrides=QUICK, seed=seed, noise=noise, **options)

    return make


def sizes(method: Method) -> dict[str, int]:
    outcome = method.fitted.outcome
    return {
        "network": sum(a.size for key, a in outcome.weights.items() if key != "share"),
        "inference": outcome.released["inference"].size,
    }


def message_sums(plan: Plan, graph: Graph, seed: int) -> list[np.ndarray]:
    """The exact sums that an answer reads, by scipy; the weights are constants, as if released."""
    rng = np.random.default_rng(seed)
    heard = unit_rows(graph.features) @ rng.standard_normal((7, 3)).astype(np.float32)
    lists = bound_out_lists(graph, plan.unit.max_degree, 3) if plan.unit.links == "own" else graph
    arcs = csr_array(
        (np.ones(lists.arcs, np.int64), lists.indices, lists.indptr),
        shape=(graph.nodes, graph.nodes),
    )
    grid = to_grid(unit_rows(heard), GRID_BITS).astype(np.int64)
    return [arcs.T @ grid / 2.0**GRID_BITS]


def star(leaves: int) -> Graph:
    """Node 0 lists some others; every row is the same."""
    n = leaves + 4
    found = tacit.graph.from_arcs(
        np.zeros(leaves, int), np.arange(1, leaves + 1), directed=True,
        features=np.tile(np.eye(7, dtype=np.float32)[0], (n, 1)), labels=np.arange(n) % 3,
    )  # fmt: skip
    return found.with_(train=np.ones(n, bool), val=np.zeros(n, bool), test=np.zeros(n, bool))


def twin(graph: Graph, seed: int) -> np.ndarray:
    """One linear layer on a row and the mean of its neighbours, by scipy and by hand."""
    x = unit_rows(graph.features)
    indptr, indices = graph.in_lists
    sums = csr_array(
        (np.ones(len(indices), np.float32), indices, indptr), shape=(graph.nodes, graph.nodes)
    )
    means = np.float32(sums @ x / np.maximum(np.diff(indptr), 1)[:, None])
    inputs, labels = (torch.from_numpy(x), torch.from_numpy(means)), torch.tensor(graph.labels)
    rows, held = (torch.from_numpy(np.flatnonzero(m)) for m in (graph.train, graph.val))
    model = OneLayer(7, 3, seed)
    train(
        model, tuple(part[rows] for part in inputs), labels[rows],
        TrainConfig(2, 0.1, 1e-4, patience=20), seed=seed,
        val=(tuple(part[held] for part in inputs), labels[held]),
    )  # fmt: skip
    with torch.no_grad():
        return model(*inputs).softmax(1).numpy()


SUMS = {"stage": "inference", "answers": message_sums, "sizes": sizes, "refused": REFUSED}
LONG, SHORT = star(2 * D), star(D)
CASES = {
    "own": Case(
        maker(), OWN, GRAPH, relations=(OWN_REPLACE, ALL), twin=twin, **SUMS,
        witnesses=tuple(Witness(g, zero_record(g, 0, column=False)) for g in (LONG, SHORT)),
    ),
    "own-replace": Case(maker(), OWN_REPLACE, GRAPH, **SUMS),
    "all": Case(maker(), ALL, GRAPH, relations=(Node("replace", "all", 30),), **SUMS),
    "all-tight": Case(
        maker(), Node(links="all", max_degree=D), SHORT, **SUMS,
        witnesses=(Witness(SHORT, zero_record(SHORT, 0, column=True)),),
    ),
    "own-paper": Case(
        maker(accounting="paper", preset="paper"), OWN, GRAPH, sizes=sizes, refused=REFUSED
    ),
}  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
@pytest.mark.parametrize("name", CASES)
def test_conformance(name: str, check: Callable[[Case], None]) -> None:
    try:
        check(CASES[name])
    except NotApplicable as reason:
        pytest.skip(str(reason))


def clipped_sum(graph: Graph, unit: Node, weights: OneLayer, clip: float = 1.0) -> torch.Tensor:
    """The sum of clipped gradients of all training nodes, one autograd call each."""
    plan = SageNode(unit, 4.0, 1e-5).plan(FACTS)
    network = SageNetwork(plan, 3, None, lambda stage, done, total: None)
    x = unit_rows(graph.features)
    s = network._exact(graph, x)
    total = torch.zeros(sum(p.numel() for p in weights.parameters()))
    for v in np.flatnonzero(graph.train):
        scores = weights(torch.from_numpy(x[v : v + 1]), torch.from_numpy(s[v : v + 1]))
        loss = torch.nn.functional.cross_entropy(scores, torch.tensor(graph.labels[v : v + 1]))
        parts = torch.autograd.grad(loss, list(weights.parameters()))
        row = torch.cat([part.flatten() for part in parts])
        total += row * min(1.0, clip / float(row.norm()))
    return total


@pytest.mark.parametrize("unit", [OWN, OWN_REPLACE], ids=["add-remove", "replace"])
def test_one_record_moves_the_clipped_sum_by_no_more_than_the_theorem_says(unit: Node) -> None:
    """Sampled neighbours, and a hub that flips the sign of all D others' rows.

    A bound of C (ordinary DP-SGD) is exceeded several times over: the group has to be paid for.
    """
    stage = SageNode(unit, 4.0, 1e-5).plan(FACTS).stage("network")
    claim = stage.noise_std / stage.noise_multiplier
    assert claim == (2 * D + 1 if unit.relation == "add-remove" else 4 * D + 2)
    weights = OneLayer(7, 3, 0)
    with torch.no_grad():
        weights.heard.weight.mul_(40)  # so that what is heard decides the class
    before = clipped_sum(GRAPH, unit, weights)
    rng = np.random.default_rng(0)
    for other in islice(unit.neighbours(GRAPH, rng), 15):
        assert float((clipped_sum(other, unit, weights) - before).norm()) <= claim + 1e-4
    blank = SHORT.features.copy()
    blank[1:] = 0
    hub = SHORT.with_(features=blank)
    flipped = hub.with_(features=-blank)
    moved = float((clipped_sum(hub, unit, weights) - clipped_sum(flipped, unit, weights)).norm())
    if unit.relation == "replace":
        assert 3.0 < moved <= claim


def test_what_the_paper_claims_for_cut_links_is_charged_as_nothing_finite(tmp_path: Path) -> None:
    """Truncation bounds nothing where others' lists are part of the node."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    model = SageNode(
        Node(links="all", max_degree=2), 8.0, 1e-5, accounting="paper", overrides=QUICK
    ).fit(GRAPH, ledger=ledger)
    assert model.statement.stamp == "paper accounting"
    assert model.statement.epsilon <= 8.0
    assert ledger.total(fingerprint(GRAPH), "node-all", 1e-5).epsilon == float("inf")
    with pytest.raises(UnitError, match="promise"):
        SageNode(Node(links="all", max_degree=2), 8.0, 1e-5).fit(GRAPH, ledger=ledger)


def test_noise_grows_with_the_lists_that_count() -> None:
    stds = [
        SageNode(Node(max_degree=d), 8.0, 1e-5).plan(FACTS).stage("network").noise_std
        for d in (1, 2, 7)
    ]
    assert np.allclose(np.divide(stds, stds[0]), [1, 5 / 3, 5], rtol=1e-3)


def test_refusals_name_the_reason() -> None:
    with pytest.raises(PlanError, match="2 hops"):
        SageNode(overrides={"hops": 2})
    with pytest.raises(PlanError, match="no setting 'layers'"):
        SageNode(overrides={"layers": 2})
    with pytest.raises(UnitError, match="cutting links"):
        SageNode(Node(links="all"), 8.0).plan(FACTS)


def test_a_person_answers_for_oneself_from_a_bundle(tmp_path: Path) -> None:
    model = SageNode(OWN, 8.0, 1e-5, overrides=QUICK).fit(GRAPH)
    bundle = load_bundle(release(model, tmp_path / "bundle"))
    answer = bundle.predict_record(GRAPH.features[7], node=7)
    np.testing.assert_allclose(answer, model.predict_proba()[7], atol=1e-6)


def test_sums_that_are_all_noise_are_left_out() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 3, (500, 4)).astype(np.float32)
    assert signal_share(noise, 3.0) < 0.1
    # 16 of 25 parts of the energy are signal.
    assert signal_share(np.float32(4.0) + noise, 3.0) == pytest.approx(0.64, abs=0.03)
    assert signal_share(noise, 30.0) == 0.0
    assert signal_share(0 * noise, 1.0) == 0.0


def test_without_privacy_it_learns() -> None:
    found = tacit.graph.synthetic.communities(300, mean_degree=10, seed=1)
    model = SageNode(epsilon=float("inf")).fit(tacit.graph.split(found, seed=0))
    assert model.fitted.metrics["test_accuracy"] > 0.5
