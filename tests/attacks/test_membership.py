"""Membership attacks against models that memorise, and against models that do not."""

import numpy as np
import pytest
import torch

import tacit
from tacit.attacks.likelihood_ratio import confidences, likelihood_ratio_attack, ratios
from tacit.attacks.membership import (
    Exposed,
    Student,
    attack,
    attack_1,
    attack_2,
    candidates_of,
    drawn,
    observed,
    on_graph,
    on_subgraph,
    shadow_attack,
    shadow_nodes,
)
from tacit.errors import AttackError
from tacit.graph import Graph, subgraph, synthetic


@pytest.fixture(scope="module")
def graph() -> Graph:
    made = synthetic.communities(400, mean_degree=8, classes=3, features=12, seed=1)
    return made.with_(val=np.zeros(400, bool))


def memoriser(strength: float):
    """A model that is surer of its members' true classes by ``strength``."""

    def expose(graph: Graph, members: np.ndarray, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        logits = rng.standard_normal((graph.nodes, graph.classes))
        logits[np.arange(graph.nodes), graph.labels] += 1 + strength * members
        return torch.tensor(logits).softmax(dim=1).numpy()

    return expose


def test_shadow_models_find_members_of_a_model_that_memorises(graph: Graph) -> None:
    found = shadow_attack(memoriser(3.0), graph, runs=3)
    assert found.auc > 0.9
    assert len(found.aucs) == 3
    assert np.trapezoid(found.roc().y, found.roc().x) == pytest.approx(found.auc, abs=0.05)
    assert found.to_dict()["candidates"] == 400


def test_shadow_models_find_nothing_in_a_model_that_does_not(graph: Graph) -> None:
    assert shadow_attack(memoriser(0.0), graph, runs=6).auc == pytest.approx(0.5, abs=0.06)


def test_the_likelihood_ratio_finds_what_one_node_changes(graph: Graph) -> None:
    # Every node has its own level, which hides membership from an attack on confidence alone.
    level = np.random.default_rng(9).standard_normal(graph.nodes) * 4

    def expose(graph: Graph, members: np.ndarray, seed: int) -> np.ndarray:
        noise = np.random.default_rng(seed).standard_normal(graph.nodes) * 0.3
        logits = np.zeros((graph.nodes, graph.classes))
        logits[np.arange(graph.nodes), graph.labels] = level + members + noise
        return torch.tensor(logits).softmax(dim=1).numpy()

    ratio = likelihood_ratio_attack(expose, graph, models=16)
    assert ratio.auc > 0.95
    assert len(ratio.aucs) == 4
    assert shadow_attack(expose, graph, runs=2).auc < 0.7
    silent = likelihood_ratio_attack(memoriser(0.0), graph, models=16, targets=20)
    assert silent.auc == pytest.approx(0.5, abs=0.03)


def test_the_likelihood_ratio_of_one_target(graph: Graph) -> None:
    expose = memoriser(4.0)
    members = drawn(candidates_of(graph), 0.5, np.random.default_rng(3))
    found = likelihood_ratio_attack(
        expose, graph, target=(expose(graph, members, 77), members), models=8
    )
    assert found.auc > 0.9
    assert len(found.scores) == 400


def test_ratios_are_those_of_two_normal_distributions() -> None:
    from scipy.stats import norm

    rng = np.random.default_rng(0)
    inside = rng.random((80, 5)) < 0.5
    seen = rng.standard_normal((80, 5)) * 2 + inside
    aim = rng.standard_normal(5)
    for node in range(5):
        mine, rest = seen[inside[:, node], node], seen[~inside[:, node], node]
        wanted = norm.logpdf(aim[node], mine.mean(), mine.std(ddof=1)) - norm.logpdf(
            aim[node], rest.mean(), rest.std(ddof=1)
        )
        assert ratios(aim, seen, inside)[node] == pytest.approx(wanted, abs=1e-4)


def test_confidence_is_a_logit() -> None:
    posteriors = np.array([[0.8, 0.2], [1.0, 0.0]])
    found = confidences(posteriors, np.array([0, 1]))
    assert found[0] == pytest.approx(np.log(4))
    assert np.isfinite(found[1])


def test_a_real_model_is_trained_on_the_subgraph_and_asked_on_the_whole(graph: Graph) -> None:
    small = subgraph(graph, np.arange(120))

    def make(seed: int) -> tacit.Method:
        return tacit.GAP(
            epsilon=float("inf"), preset="paper", overrides={"epochs": 60, "hidden": 16}, seed=seed
        )

    members = drawn(candidates_of(small), 0.3, np.random.default_rng(0))
    for protocol in (on_subgraph, on_graph):
        seen = observed(protocol(make), small, members, 0)
        assert seen.posteriors.shape == (120, 3)
        right = seen.posteriors.argmax(axis=1) == seen.labels
        assert right[members].mean() > right[~members].mean() + 0.1


def test_shadow_nodes_are_of_every_class(graph: Graph) -> None:
    chosen = shadow_nodes(graph, 20, np.random.default_rng(0))
    assert np.bincount(graph.labels[chosen]).tolist() == [20, 20, 20]


def test_members_are_not_read_in_the_target(graph: Graph) -> None:
    expose = memoriser(2.0)
    members = drawn(candidates_of(graph), 0.5, np.random.default_rng(0))
    known = observed(expose, graph, members, 1)
    aim = observed(expose, graph, members, 2)
    blind = Exposed(aim.posteriors, aim.labels, ~aim.members)
    np.testing.assert_array_equal(attack(known, aim, 0), attack(known, blind, 0))


def test_attack_1_and_attack_2_of_privgnn(graph: Graph) -> None:
    private, public = subgraph(graph, np.arange(200)), subgraph(graph, np.arange(200, 400))
    shadow = synthetic.communities(400, mean_degree=8, classes=3, features=12, seed=2)
    shadow = shadow.with_(val=np.zeros(400, bool))

    def distil(inner: Graph, outer: Graph, seed: int, leaks: float = 3.0) -> Student:
        queried = drawn(np.ones(outer.nodes, bool), 0.5, np.random.default_rng(seed))

        def answers(asked: Graph) -> np.ndarray:
            seen = queried if asked is outer else np.full(asked.nodes, asked is inner)
            return memoriser(leaks)(asked, seen, seed)

        return Student(answers, queried)

    loud, quiet = distil(private, public, 5), distil(private, public, 5, leaks=0.0)
    expose = memoriser(3.0)
    assert attack_1(loud, private, public, expose, shadow, runs=2).auc > 0.7
    assert attack_1(quiet, private, public, expose, shadow, runs=2).auc < 0.6
    assert attack_2(loud, public, distil, shadow, runs=2).auc > 0.85
    assert attack_2(quiet, public, distil, shadow, runs=2).auc < 0.62


def test_nothing_to_tell_apart_is_refused(graph: Graph) -> None:
    with pytest.raises(AttackError, match="tell apart"):
        drawn(candidates_of(graph), 0.0, np.random.default_rng(0))
    with pytest.raises(AttackError, match="too few"):
        likelihood_ratio_attack(memoriser(1.0), graph, models=4)
    with pytest.raises(AttackError, match="more shadow models"):
        ratios(np.zeros(1), np.zeros((8, 1)), np.ones((8, 1), bool))
