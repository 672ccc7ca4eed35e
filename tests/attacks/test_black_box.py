"""Our own models as services: one draw of noise, one charge, and no links where none are read."""

import math
from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit.attacks.black_box import NetworkBox, RowBox, of_bundle, of_model, open_target
from tacit.attacks.linkteller import influence_matrix, linkteller
from tacit.attacks.pairs import choose
from tacit.attacks.remote import RemoteBox
from tacit.errors import AttackError, TacitError
from tacit.graph import Graph, synthetic
from tacit.methods import METHODS
from tacit.privacy import Ledger
from tacit.release import load_bundle, release

QUICK = {"epochs": 8, "hidden": 8}


@pytest.fixture(scope="module")
def graphs() -> tuple[Graph, Graph]:
    made = [
        synthetic.communities(200, mean_degree=8, classes=3, features=10, seed=seed)
        for seed in (1, 2)
    ]
    return made[0], made[1]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "own.sqlite")


def fitted(name: str, graph: Graph, epsilon: float, ledger: Ledger) -> tacit.Method:
    model = METHODS[name](tacit.Edge(), epsilon, 1e-6, overrides=QUICK)
    return model.fit(graph, ledger=ledger)


def test_a_graph_network_leaks_on_its_own_and_on_a_new_graph(
    graphs: tuple[Graph, Graph], ledger: Ledger
) -> None:
    model = fitted("gcn", graphs[0], math.inf, ledger)
    for graph in graphs:
        box = of_model(model, graph, ledger=ledger)
        assert isinstance(box, NetworkBox)
        nodes = choose(graph, 30)
        answers = model.predict_proba(graph, ledger=ledger)[nodes]
        np.testing.assert_allclose(box(nodes, graph.features), answers, atol=1e-5)
        assert linkteller(box, graph, nodes=100).finding.auc > 0.9


def test_a_perturbed_graph_is_drawn_and_charged_once(
    graphs: tuple[Graph, Graph], ledger: Ledger
) -> None:
    model = fitted("lapgraph", graphs[0], 1.0, ledger)
    before = len(ledger.entries())
    known = of_model(model, graphs[0], ledger=ledger)
    assert len(ledger.entries()) == before
    np.testing.assert_allclose(
        known(np.arange(200), graphs[0].features), model.predict_proba(), atol=1e-5
    )
    new = of_model(model, graphs[1], ledger=ledger)
    assert len(ledger.entries()) == before + 1
    nodes = np.arange(20)
    first = new(nodes, graphs[1].features)
    np.testing.assert_array_equal(first, new(nodes, graphs[1].features))
    assert len(ledger.entries()) == before + 1


def test_gap_gives_no_influence_from_node_to_node(
    graphs: tuple[Graph, Graph], ledger: Ledger
) -> None:
    model = fitted("gap", graphs[0], 1.0, ledger)
    before = len(ledger.entries())
    for graph, charges in ((graphs[0], 0), (graphs[1], 1)):
        box = of_model(model, graph, ledger=ledger)
        assert isinstance(box, RowBox)
        assert len(ledger.entries()) == before + charges
        nodes = choose(graph, 12)
        slow, _ = influence_matrix(box, nodes, graph.features, delta=0.1, probe="shift", fast=False)
        fast, _ = influence_matrix(box, nodes, graph.features, delta=0.1, probe="shift")
        assert (slow[~np.eye(12, dtype=bool)] == 0).all()
        np.testing.assert_allclose(fast, slow, atol=1e-5)
        found = linkteller(box, graph, nodes=150, probe="shift")
        assert found.finding.auc == found.relative.auc == 0.5
        assert len(ledger.entries()) == before + charges


def test_a_model_that_reads_no_links(graphs: tuple[Graph, Graph], ledger: Ledger) -> None:
    model = fitted("mlp", graphs[0], 1.0, ledger)
    box = of_model(model, graphs[1])
    nodes = np.arange(5)
    expected = model.predict_proba(graphs[1])[:5]
    np.testing.assert_allclose(box(nodes, graphs[1].features), expected, atol=1e-6)


def test_runs_bundles_and_addresses_are_opened(
    graphs: tuple[Graph, Graph], ledger: Ledger, tmp_path: Path
) -> None:
    graph = graphs[0]
    nodes = np.arange(10)
    for name, kind in (("gap", RowBox), ("lapgraph", NetworkBox)):
        model = fitted(name, graph, 4.0, ledger)
        tacit.save_run(model, tmp_path / name)
        release(model, tmp_path / f"{name}.bundle")
        run = open_target(str(tmp_path / name), graph)
        bundle = open_target(str(tmp_path / f"{name}.bundle"), graph)
        assert isinstance(run, kind)
        assert isinstance(bundle, kind)
        np.testing.assert_allclose(
            run(nodes, graph.features), bundle(nodes, graph.features), atol=1e-5
        )
    assert isinstance(open_target("http://127.0.0.1:1/ask", graph), RemoteBox)
    with pytest.raises(TacitError):
        open_target(str(tmp_path / "nothing"), graph)
    assert of_bundle(load_bundle(tmp_path / "gap.bundle"), graph) is not None


def test_a_graph_of_another_form_is_refused(graphs: tuple[Graph, Graph], ledger: Ledger) -> None:
    model = fitted("gap", graphs[0], 1.0, ledger)
    wide = synthetic.communities(50, mean_degree=4, classes=3, features=12, seed=3)
    with pytest.raises(AttackError, match="does not fit"):
        of_model(model, wide, ledger=ledger)
