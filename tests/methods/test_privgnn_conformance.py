"""PrivGNN's teachers and votes through the public conformance suite."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.learn.student import embed
from tacit.methods import Method, PrivGNN
from tacit.methods import privgnn_answers as answers
from tacit.methods.base import Noise
from tacit.privacy.plan import Plan
from tacit.privacy.units import Edge, KNeighbors, Node, Unit
from tacit.testing import CHECKS, Case, Maker, NotApplicable

QUICK = {"queries": 6, "epochs": 2, "student_epochs": 3, "hidden": 4, "width": 4, "neighbours": 9}
WHOLE = tacit.graph.synthetic.communities(120, mean_degree=5, features=7, classes=3, seed=2)
GRAPH = tacit.graph.cut(WHOLE, tacit.graph.Cut(50, 30, 20))
NODE = Node(links="all")
REFUSED = (
    Edge(),
    KNeighbors(k=2),
    Node(),
    Node(links="all", relation="replace"),
)


def privgnn(teacher: str, **overrides: Any) -> Maker:
    def make(unit: Unit, epsilon: float, *, seed: int, noise: Noise) -> Method:
        return PrivGNN(
            unit, epsilon, 1e-4, teacher=teacher, overrides={**QUICK, **overrides},
            seed=seed, noise=noise,
        )  # fmt: skip

    return make


def counted(plan: Plan, graph: tacit.Graph, seed: int) -> list[np.ndarray]:
    """The counts of one query per round, with the same coins for everyone who is there."""
    assert graph.public is not None
    rounds = plan.stage("votes").rounds
    queries = answers.choose_queries(graph.public, plan.settings, 3)
    space = answers.space_of(graph.public, queries, embed(graph.public.features, 4), 0.15)
    near = space.kernel(space.embedding(graph.features[graph.train]))
    labels = np.eye(graph.classes)[graph.labels[graph.train]]
    return [near[q] @ labels for q in range(rounds)]


def sizes(name: str) -> Any:
    return lambda method: {name: method.fitted.plan.facts.classes}


CASES = {
    "votes": Case(
        privgnn("votes", gamma=0.3), NODE, GRAPH, refused=REFUSED, stage="votes", answers=counted,
        sizes=sizes("votes"),
    ),
    "teachers": Case(privgnn("gnn"), NODE, GRAPH, refused=REFUSED, sizes=sizes("labels")),
    "pate": Case(
        privgnn("pate-mlp", parts=3), NODE, GRAPH, refused=REFUSED, sizes=sizes("votes")
    ),
}  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", CASES)
def test_conformance(name, check):
    with suppress(NotApplicable):
        check(CASES[name])
