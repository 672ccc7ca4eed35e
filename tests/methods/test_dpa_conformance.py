"""DPA through the public conformance suite."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tacit
from tacit import DPA, Edge, Graph, KNeighbors, Node, Plan
from tacit.aggregate import sum_neighbours
from tacit.methods import Method
from tacit.methods.base import Noise
from tacit.methods.dpa import session_of
from tacit.multiparty.records import Records, make_grid
from tacit.multiparty.simulation import sending
from tacit.privacy.units import Unit, zero_record
from tacit.testing import CHECKS, Case, NotApplicable, Witness

D = 4
# Four honest parties: one party's noise is half of all, so that the suite, which knows a stage's
# noise up to a power of two, recognises it.
PARTIES = {"parties": 5, "shares": 3, "colluding": 1, "longest": 2 * D, "epochs": 2}
REFUSED = (Edge(), KNeighbors(k=2), Node(links="all", max_degree=9))
OWN = Node(max_degree=D)


def dpa(**options: Any) -> Any:
    def make(unit: Unit, epsilon: float, *, seed: int, noise: Noise) -> Method:
        overrides = {**PARTIES, **options.get("overrides", {})}
        kept = {key: value for key, value in options.items() if key != "overrides"}
        return DPA(unit, epsilon, 1e-5, overrides=overrides, seed=seed, noise=noise, **kept)

    return make


def graph_of(nodes: int) -> Graph:
    made = tacit.graph.synthetic.communities(nodes, mean_degree=4, features=7, classes=3, seed=2)
    return tacit.graph.split(made, (50, 25, 25), seed=0)


def answers(content: str) -> Any:
    """The exact answers of one stage; later layers start from constants, as if just released."""

    def found(plan: Plan, graph: Graph, seed: int) -> list[np.ndarray]:
        deal = session_of(plan)
        lists, sent = sending(deal, graph, "sent", 0)
        records = Records.of(graph, sent)
        rng, sums = np.random.default_rng(seed), []
        if content == "counts":
            return [np.diff(lists.indptr)]
        released = {
            turn.name: rng.standard_normal(deal.shape(turn)).astype(np.float32)
            for turn in deal.rounds
        }
        for turn in deal.rounds:
            if turn.content != content:
                continue
            grid = make_grid(deal, turn, records, released)
            if turn.to == "everyone":
                sums.append(grid.sum(axis=0, dtype=np.int64) / 2.0**deal.fraction_bits)
            else:
                sums.append(
                    sum_neighbours(lists.indptr, lists.indices, grid) / 2.0**deal.fraction_bits
                )
        return sums

    return found


def star(leaves: int) -> Graph:
    """Node 0 lists as many others as are sent to; everyone has a label."""
    n = leaves + 4
    found = tacit.graph.from_arcs(
        np.zeros(leaves, np.int64),
        np.arange(1, leaves + 1),
        features=np.tile(np.eye(7, dtype=np.float32)[0], (n, 1)),
        labels=np.arange(n) % 3,
        directed=True,
    )
    none = np.zeros(n, bool)
    return found.with_(train=~none, val=none, test=none)


def sizes(method: Method) -> dict[str, int]:
    deal = session_of(method.fitted.plan)
    found = {turn.content: deal.parties * int(np.prod(deal.shape(turn))) for turn in deal.rounds}
    return {**found, "counts": deal.users}


STAR = star(2 * D)
TIGHT = (Witness(STAR, zero_record(STAR, 0, column=False)),)
BOTH = {"overrides": {"feature_layers": 2, "label_layers": 2}}
SERVER = {"overrides": {"answer": "server", "feature_layers": 1, "profile": False}}
GRAPH = graph_of(60)
CASES = {
    "user": Case(
        dpa(), OWN, GRAPH, refused=REFUSED, stage="labels", answers=answers("labels"),
        witnesses=TIGHT, sizes=sizes, relations=(Node("replace", max_degree=D),),
    ),
    "counts": Case(
        dpa(), OWN, GRAPH, refused=REFUSED, stage="counts", answers=answers("counts"),
        witnesses=TIGHT, sizes=sizes,
    ),
    "profile": Case(
        dpa(), OWN, GRAPH, refused=REFUSED, stage="profile", answers=answers("profile"),
        witnesses=TIGHT, sizes=sizes,
    ),
    "summary": Case(
        dpa(), OWN, GRAPH, refused=REFUSED, stage="summary", answers=answers("summary"),
        sizes=sizes,
    ),
    "two-layers": Case(
        dpa(**BOTH), OWN, GRAPH, refused=REFUSED, stage="features", answers=answers("features"),
        witnesses=TIGHT, sizes=sizes,
    ),
    "replace": Case(
        dpa(**BOTH), Node("replace", max_degree=D), GRAPH, refused=REFUSED, stage="labels",
        answers=answers("labels"), sizes=sizes,
    ),
    "replace-summary": Case(
        dpa(), Node("replace"), GRAPH, refused=REFUSED, stage="summary",
        answers=answers("summary"), sizes=sizes,
    ),
    "server": Case(
        dpa(**SERVER), OWN, GRAPH, refused=REFUSED, stage="features",
        answers=answers("features"), sizes=sizes,
    ),
    "every-share": Case(
        dpa(overrides={"speed": "every"}), OWN, graph_of(24), refused=REFUSED, sizes=sizes,
    ),
}  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
@pytest.mark.parametrize("name", CASES)
def test_conformance(name: str, check: Callable[[Case], None]) -> None:
    try:
        check(CASES[name])
    except NotApplicable as reason:
        pytest.skip(str(reason))


PAPER = Case(
    dpa(accounting="paper", overrides={"feature_layers": 2, "label_layers": 2, "colluding": 0}),
    OWN,
    GRAPH,
    epsilon=4.0,
    refused=REFUSED,
)
# A budget of 0.5 is less than the paper's counts cost, and its dummies are no stage's scale.
FOR_PAPER = [
    check
    for check in CHECKS
    if check.__name__[6:]
    not in ("calibration_never_overshoots", "every_draw_comes_out_of_the_plan")
]


@pytest.mark.parametrize("check", FOR_PAPER, ids=lambda check: check.__name__[6:])
def test_conformance_of_the_paper(check: Callable[[Case], None]) -> None:
    try:
        check(PAPER)
    except NotApplicable as reason:
        pytest.skip(str(reason))
