"""Stages of shipped methods: the audited copies are the mechanism, and faults put into it show."""

from dataclasses import replace

import numpy as np
import pytest

import tacit
from tacit.attacks.audit import Audit, audit_method, audit_targets
from tacit.attacks.games import fit_targets, seen
from tacit.attacks.stages import REFERENCE, dpsgd_target, gap_targets, hop_game
from tacit.attacks.witnesses import copies, in_company, sampled, trainable, witnesses
from tacit.graph.transforms import arc_sources
from tacit.methods import METHODS, Method
from tacit.methods.base import Outcome
from tacit.privacy.noise import NoiseSource
from tacit.privacy.units import Relation, Unit, zero_record

D = 3
UNITS: tuple[Unit, ...] = (
    tacit.Edge(),
    tacit.Edge(relation="replace"),
    tacit.Node(max_degree=D),
    tacit.Node(relation="replace", max_degree=D),
    tacit.Node(links="all", max_degree=D),
    tacit.Node(links="all", relation="replace", max_degree=D),
)
BRIEF = {"epochs": 1, "encoder": False, "carry": "labels", "hidden": 2, "batch_norm": False}
K_NEIGHBOURS = (
    tacit.privacy.KNeighbors(k=2),
    tacit.privacy.KNeighbors(k=2, relation="replace"),
)


def words(unit: Unit) -> str:
    return f"{unit.name}-{unit.relation}"


def holds(audit: Audit) -> None:
    assert audit.verdict == "holds"
    assert audit.epsilon_lower <= audit.epsilon_claimed


CASES = [
    *((unit, 1, False) for unit in UNITS),
    *((unit, 1, True) for unit in UNITS if unit.name == "edge"),
    *((unit, 2, False) for unit in UNITS if unit.relation == "add-remove"),
]


@pytest.mark.parametrize(
    ("unit", "hops", "directed"),
    CASES,
    ids=[
        f"{words(unit)}-{hops}-{'directed' if arcs else 'symmetric'}" for unit, hops, arcs in CASES
    ],
)
def test_gap_holds_under_every_unit(unit: Unit, hops: int, directed: bool) -> None:
    method = tacit.GAP(
        unit, 4.0, 1e-5, hops=hops, overrides={"steps": 3} if unit.name != "edge" else {}
    )
    audit = audit_method(method, runs=4_000, directed=directed, seed=1)
    holds(audit)
    aggregation = audit.findings[0]
    assert aggregation.target == "aggregation"
    # The test has power: such an audit comes well above zero where the bound is tight.
    if hops == 1:
        assert aggregation.epsilon_lower > 0.1 * aggregation.claim.epsilon


@pytest.mark.parametrize("carry", ["features", "both"])
def test_gap_with_signed_rows_holds_under_replace(carry: str) -> None:
    unit = tacit.Node(relation="replace", max_degree=D)
    overrides = {"steps": 2, "carry": carry}
    holds(audit_method(tacit.GAP(unit, 4.0, 1e-5, overrides=overrides), runs=4_000, seed=1))


@pytest.mark.parametrize("unit", [tacit.Node(), tacit.Node(relation="replace")], ids=words)
def test_an_mlp_holds(unit: Unit) -> None:
    method = tacit.MLP(unit, 4.0, 1e-5, overrides={"steps": 5})
    audit = audit_method(method, runs=3_000, seed=1)
    holds(audit)
    assert audit.epsilon_lower > 0.3


def test_an_mlp_under_edge_reads_nothing_and_shows_nothing() -> None:
    method = tacit.MLP(tacit.Edge(), 1.0, overrides={"epochs": 1, "hidden": 2, "layers": 1})
    plan, (target,) = fit_targets(method, 20, False, 1)
    found = audit_targets([replace(target, games=target.games[:1])])
    audit = Audit(plan.cost.epsilon, plan.delta, 0.95, found)
    assert (audit.verdict, audit.epsilon_lower, audit.epsilon_claimed) == ("holds", 0.0, 0.0)


@pytest.mark.parametrize("preset", ["tacit", "paper"])
def test_paper_accounting_on_a_symmetric_graph_is_caught(preset: str) -> None:
    method = tacit.GAP(tacit.Edge(), 1.0, 1e-6, accounting="paper", preset=preset)
    audit = audit_method(method, runs=60_000, seed=1)
    assert audit.verdict == "broken"
    # On a directed graph a link is one arc, and the same claim is right.
    assert audit_method(method, runs=60_000, directed=True, seed=1).verdict == "holds"


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
@pytest.mark.parametrize("name", ["edgerand", "lapgraph", "sage-edge"])
def test_perturbed_graphs_hold(name: str, relation: Relation) -> None:
    method = METHODS[name](tacit.Edge(relation=relation), 2.0, 1e-6)
    audit = audit_method(method, runs=300, seed=1)
    holds(audit)
    if name == "edgerand":
        assert audit.epsilon_lower > 0.5 * audit.epsilon_claimed


def test_symmetric_links_answered_arc_by_arc_are_caught() -> None:
    """SAGE-edge as published: two coins of one link, charged as one."""
    method = METHODS["sage-edge"](tacit.Edge(), 2.0, 1e-6, accounting="paper")
    assert audit_method(method, runs=600, seed=1).verdict == "broken"


def weakened(method: Method, share: float, **kind: object) -> Audit:
    """The audit of a plan whose noise is a share of what it charges."""
    plan, targets = gap_targets(method, None, False, 1)
    stages = tuple(replace(s, noise_std=s.noise_std * share) for s in plan.stages)
    weak, source = replace(plan, stages=stages), NoiseSource.seeded(1)
    pair = witnesses(plan.unit, directed=False)[0]
    games = (hop_game(weak, pair, source),)
    target = replace(targets[0], games=games, runs=100_000)
    return Audit(1.0, plan.delta, 0.95, audit_targets([target]))


def test_gap_with_two_thirds_of_its_noise_is_caught() -> None:
    method = tacit.GAP(tacit.Edge(), 1.0, 1e-6)
    assert weakened(method, 2 / 3).verdict == "broken"
    assert weakened(method, 1.0).verdict == "holds"


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_dp_sgd_with_two_thirds_of_its_noise_is_caught(relation: str) -> None:
    unit = tacit.Node(relation=relation)
    plan = tacit.MLP(unit, 2.0, 1e-5, overrides={"steps": 4}).plan(REFERENCE)
    (stage,) = plan.stages
    right = dpsgd_target(plan, stage, NoiseSource.seeded(1), 8_000)
    weak = replace(stage, noise_std=stage.noise_std * 2 / 3)
    wrong = dpsgd_target(plan, weak, NoiseSource.seeded(1), 8_000)
    assert not audit_targets([right])[0].broken
    assert audit_targets([replace(wrong, claim=right.claim)])[0].broken


def test_dp_sgd_charged_for_half_its_rate_is_caught() -> None:
    plan = tacit.MLP(tacit.Node(), 2.0, 1e-5, overrides={"steps": 4}).plan(REFERENCE)
    (stage,) = plan.stages
    charged = dpsgd_target(plan, stage, NoiseSource.seeded(1), 8_000).claim
    eager = replace(stage, sampling_rate=2 * stage.sampling_rate)
    target = dpsgd_target(plan, eager, NoiseSource.seeded(1), 8_000)
    assert audit_targets([replace(target, claim=charged)])[0].broken


def test_copies_release_what_the_pair_alone_would() -> None:
    """Exact sums of copies, in mixed order, are those of each graph alone."""
    method = tacit.GAP(tacit.Edge(), 1.0, 1e-6, hops=1)
    plan = method.plan(REFERENCE)
    bare = replace(plan, stages=tuple(replace(s, noise_std=1e-6) for s in plan.stages))
    for pair in (
        *witnesses(tacit.Edge(), directed=False),
        *sampled(tacit.Edge(), directed=False, count=3, seed=2),
    ):
        game = hop_game(bare, pair, NoiseSource.seeded(0))
        sides = np.array([False, True, True, False, True])
        mixed = game.release(sides)
        alone = [game.release(np.array([side]))[0] for side in (False, True)]
        for side, row in zip(sides, mixed, strict=True):
            assert np.allclose(row, alone[int(side)], atol=1e-3)
        assert not np.allclose(alone[0], alone[1], atol=1e-3)


@pytest.mark.parametrize("hops", [1, 3])
def test_the_ratio_is_calibrated(hops: int) -> None:
    """E[exp(ratio)] is 1 on the first graph, as of every likelihood ratio."""
    plan = tacit.GAP(tacit.Edge(), 1.0, 1e-6, hops=hops).plan(REFERENCE)
    game = hop_game(plan, witnesses(tacit.Edge(), directed=False)[1], NoiseSource.seeded(0))
    assert game.ratio is not None
    first = game.ratio(game.release(np.zeros(40_000, bool)))
    second = game.ratio(game.release(np.ones(40_000, bool)))
    assert np.exp(first).mean() == pytest.approx(1, abs=0.01)
    assert np.exp(-second).mean() == pytest.approx(1, abs=0.01)
    # Two rows move by a unit row at every hop: the ratio has variance 2K / s^2.
    std = plan.stage("aggregation").noise_std
    assert first.var() == pytest.approx(2 * hops / std**2, rel=0.03)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("unit", [*UNITS, *K_NEIGHBOURS], ids=words)
def test_witnesses_differ_by_one_unit(unit: Unit, directed: bool) -> None:
    for pair in (
        *witnesses(unit, directed=directed),
        *sampled(unit, directed=directed, count=3, seed=0),
    ):
        first, second = pair.first, pair.second
        assert first.nodes == second.nodes
        changed = {
            v
            for v in range(first.nodes)
            if not np.array_equal(first.features[v], second.features[v])
            or first.labels[v] != second.labels[v]
        }
        arcs = [
            set(zip(arc_sources(g).tolist(), g.indices.tolist(), strict=True))
            for g in (first, second)
        ]
        moved = arcs[0] ^ arcs[1]
        if unit.name == "edge":
            assert not changed
            links = {frozenset(arc) for arc in moved} if not first.directed else moved
            assert len(links) == (1 if unit.relation == "add-remove" else 2)
        elif unit.name == "node":
            assert len(changed | {u for u, _ in moved}) == 1
        else:
            assert len(changed) <= 1
            centre = changed or {pair.hidden if pair.hidden is not None else 0}
            assert all(centre & {u, v} for u, v in moved)
            if unit.name == "node-all":
                assert pair.hidden is not None
                for graph in (first, second):
                    assert max(graph.out_degrees.max(), np.diff(graph.in_lists[0]).max()) <= D


def test_copies_are_side_by_side() -> None:
    pair = witnesses(tacit.Edge(), directed=False)[1]
    graph, place = copies(pair, np.array([True, False, True]))
    assert graph.nodes == 3 * pair.first.nodes
    assert place.tolist() == [1, 0, 2]
    assert graph.arcs == pair.first.arcs + 2 * pair.second.arcs
    assert len(np.unique(arc_sources(graph) // 4 - graph.indices // 4)) == 1


def test_trainable_pairs_share_their_public_facts() -> None:
    for unit in (*UNITS, *K_NEIGHBOURS):
        pairs = trainable(unit, directed=False, samples=3, seed=1)
        assert pairs
        facts = {p.first.facts() for p in pairs} | {p.second.facts() for p in pairs}
        assert len(facts) == 1
    # Under add/remove a zeroed record has no label: what trains on it is two units apart.
    steps = {p.steps for p in trainable(tacit.Node(), directed=False, samples=0, seed=0)}
    assert steps == {1, 2}


def test_company_has_no_links() -> None:
    pair = in_company(witnesses(tacit.Edge(), directed=False)[0], 8, 7)
    assert (pair.first.arcs, pair.second.arcs) == (0, 2)
    assert pair.first.train.sum() == 7


def test_an_adversary_does_not_see_rows_of_the_changed_node() -> None:
    star = witnesses(tacit.Node(links="all", max_degree=D), directed=False)[0].first
    assert zero_record(star, 0, column=True).arcs == 0
    rows = np.arange(8.0).reshape(4, 2)
    outcome = Outcome(rows, {"hop.1": rows + 10}, {"w": np.array([5.0])}, public_posteriors=False)
    found = np.concatenate(seen(outcome, hidden=1, changed=1)).tolist()
    assert 12.0 not in found
    assert 2.0 not in found
    assert {10.0, 16.0, 5.0, 0.0, 6.0} <= set(found)


def test_released_links_become_cells() -> None:
    released = {"graph.indptr": np.array([0, 1, 1]), "graph.indices": np.array([1])}
    outcome = Outcome(np.zeros((2, 2)), released, {}, public_posteriors=True)
    assert seen(outcome, None, None)[0][:4].tolist() == [0, 1, 0, 0]


def test_whole_fits_hold_and_leave_the_method_unfitted() -> None:
    method = tacit.GAP(tacit.Edge(), 1.0, 1e-6, overrides=BRIEF)
    plan, (target,) = fit_targets(method, 20, False, 1)
    assert target.claim.epsilon == plan.cost.epsilon
    (finding,) = audit_targets([replace(target, games=target.games[:1])])
    assert not finding.broken
    assert method._fitted is None


def test_a_whole_fit_without_noise_is_caught() -> None:
    """The end-to-end view: GAP whose source draws zeros, under an unbroken plan."""
    method = tacit.GAP(tacit.Edge(), 0.5, 1e-6, overrides=BRIEF)
    vars(method)["_source"] = lambda plan: Silent()
    _, (target,) = fit_targets(method, 20, False, None)
    (finding,) = audit_targets([replace(target, games=target.games[:1])])
    assert finding.broken


class Silent(NoiseSource):
    """Noise that is not there."""

    def gaussian(self, scale: float, shape: object) -> np.ndarray:
        return np.zeros(shape, np.int64)


@pytest.mark.slow
def test_paper_accounting_is_caught_at_the_told_pair_too() -> None:
    method = tacit.GAP(tacit.Edge(), 1.0, 1e-6, accounting="paper")
    audit = audit_method(method, seed=1)
    assert audit.epsilon_lower > audit.epsilon_claimed
    sound = audit_method(tacit.GAP(tacit.Edge(), 1.0, 1e-6), seed=1)
    assert 0.75 < sound.epsilon_lower < sound.epsilon_claimed


def test_a_perturbed_graph_among_the_weights_counts_as_released() -> None:
    weights = {"links.indptr": np.array([0, 1, 1]), "links.indices": np.array([1]), "w": np.ones(1)}
    released, rest = seen(
        Outcome(np.zeros((2, 2)), {}, weights, public_posteriors=True), None, None
    )
    assert released.tolist() == [0, 1, 0, 0]
    assert rest.tolist() == [1, 0, 0, 0, 0]
