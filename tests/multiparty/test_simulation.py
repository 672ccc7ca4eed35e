"""The simulated session: both speeds give the trusted curator's integers, bit for bit."""

import numpy as np
import pytest
from test_ring import Given

import tacit
from tacit.aggregate import noisy_hops
from tacit.errors import NoiseError
from tacit.graph import Graph
from tacit.graph.graph import transpose
from tacit.multiparty import records as rec
from tacit.multiparty import simulation as sim
from tacit.multiparty.ring import Stream
from tacit.multiparty.session import Dummies, Round, SessionPlan
from tacit.privacy.noise import NoiseSource

BITS = 14


@pytest.fixture(scope="module")
def graph() -> Graph:
    made = tacit.graph.synthetic.communities(80, mean_degree=9, features=6, classes=3, seed=4)
    return tacit.graph.split(made, (50, 25, 25), seed=1)


def deal(graph: Graph, **changes) -> SessionPlan:
    values = {
        "users": graph.nodes,
        "features": 6,
        "classes": 3,
        "width": 6,
        "projection": "gaussian",
        "projection_seed": 0,
        "parties": 3,
        "shares": 2,
        "colluding": 1,
        "bits": 32,
        "fraction_bits": BITS,
        "longest": 5,
        "degree": 1,
        "self_link": False,
        "scaling": "dummy",
        "with_val": False,
        "noise": "gaussian",
        "dummies": Dummies.hiding(1.5),
        "rounds": (
            Round("profile", 1, "everyone", 18, 1.0),
            Round("features", 1, "lists", 6, 0.8),
            Round("features", 2, "lists", 6, 0.7),
            Round("labels", 1, "lists", 3, 0.6),
            Round("summary", 1, "everyone", rec.summary_columns(_three(), 10), 2.0),
        ),
    }
    return SessionPlan(**{**values, **changes})


class _Three:
    classes = 3


def _three():
    return _Three()


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(("parties", "shares", "colluding"), [(3, 2, 1), (5, 3, 2), (4, 4, 0)])
def test_every_share_gives_the_same_integers_as_totals(graph, bits, parties, shares, colluding):
    plan = deal(graph, bits=bits, parties=parties, shares=shares, colluding=colluding)
    both = [
        sim.session(plan, graph, NoiseSource.seeded(3), speed=speed, stream=Stream.seeded(5))[0]
        for speed in ("totals", "every")
    ]
    assert both[0].keys() == both[1].keys() == {turn.name for turn in plan.rounds}
    for name, array in both[0].items():
        np.testing.assert_array_equal(array, both[1][name])


def test_other_shares_and_other_blocks_change_nothing(graph, monkeypatch):
    plan = deal(graph)
    kept = sim.session(plan, graph, NoiseSource.seeded(3), speed="every")[0]
    monkeypatch.setattr(sim, "_BATCH", 64)
    again = sim.session(plan, graph, NoiseSource.seeded(3), speed="every")[0]
    for name, array in kept.items():
        np.testing.assert_array_equal(array, again[name])


class Kept(NoiseSource):
    """Remembers what it drew."""

    def __init__(self) -> None:
        super().__init__(1)
        self.drawn: list[np.ndarray] = []

    def gaussian(self, scale, shape):
        self.drawn.append(super().gaussian(scale, shape))
        return self.drawn[-1]


@pytest.mark.parametrize("speed", ["totals", "every"])
def test_a_round_is_the_trusted_curators_hop_given_the_same_noise(graph, speed):
    plan = deal(graph)
    turn = plan.rounds[1]
    lists, sent = sim.sending(plan, graph, "sent", 0)
    people = rec.Records.of(graph, sent)
    stream = Stream.seeded(1) if speed == "every" else None
    slots = sim.Slots.draw(lists, plan, stream, np.full(graph.nodes, 2))
    grid = rec.make_grid(plan, turn, people, {})
    source = Kept()
    found = sim.run_round(plan, turn, slots, grid, source, stream)
    assert len(source.drawn) == plan.parties
    assert plan.party_std(turn) == pytest.approx(0.8 / np.sqrt(2))
    (trusted,) = noisy_hops(
        (lists.indptr, lists.indices),
        rec.make_rows(plan, turn, people, {}),
        stds=[0.8],
        source=Given(sum(source.drawn)),
        weights=rec.weights(plan, people),
        bits=BITS,
        normalise=False,
    )
    np.testing.assert_array_equal(found, trusted)


def test_noise_of_all_parties_has_the_planned_size_and_the_check_has_power(graph):
    turn = Round("labels", 1, "lists", 500, 0.6)
    plan = deal(graph)
    lists, _ = sim.sending(plan, graph, "sent", 0)
    nothing = np.zeros((graph.nodes, 500), np.int16)
    noise = sim.run_round(plan, turn, sim.Slots(lists), nothing, NoiseSource.seeded(2))
    honest = noise.std() * np.sqrt(2 / 3)  # two of three parties do not collude
    error = 0.6 / np.sqrt(2 * noise.size)
    assert abs(honest - 0.6) < 6 * error
    for wrong in (2 / 3, 3 / 2, np.sqrt(3 / 2)):
        assert abs(honest - wrong * 0.6) > 6 * error


def test_laplace_noise_of_all_parties_together_is_laplace(graph):
    from scipy import stats

    plan = deal(graph, noise="laplace")
    turn = Round("labels", 1, "lists", 300, 0.5)
    lists, _ = sim.sending(plan, graph, "sent", 0)
    nothing = np.zeros((graph.nodes, 300), np.int16)
    found = sim.run_round(plan, turn, sim.Slots(lists), nothing, NoiseSource.seeded(2)).ravel()
    assert stats.kstest(found, stats.laplace(scale=0.5).cdf).pvalue > 1e-6
    assert stats.kstest(found, stats.laplace(scale=0.75).cdf).pvalue < 1e-20


def test_noise_without_a_source_is_refused(graph):
    with pytest.raises(NoiseError, match="without a source"):
        sim.session(deal(graph, dummies=Dummies("none")), graph, None)


def test_dummies_hide_counts_and_cost_what_was_planned():
    source = NoiseSource.seeded(4)
    gaussian = rec.draw_dummies(Dummies.hiding(10.7), 20_000, source)
    assert gaussian.min() > 0
    assert gaussian.mean() == pytest.approx(150, abs=0.5)
    assert gaussian.std() == pytest.approx(10.7, abs=0.3)
    # The failures before a success of probability r: (1-r)^k r, mean (1-r)/r.
    geometric = rec.draw_dummies(Dummies("geometric", shift=1, rate=0.25), 20_000, source)
    assert geometric.min() == 1
    assert geometric.mean() == pytest.approx(1 + 3.0, abs=0.15)
    assert (geometric == 1).mean() == pytest.approx(0.25, abs=0.02)
    assert not rec.draw_dummies(Dummies("none"), 5, source).any()


def test_own_share_is_taken_out_of_what_the_own_list_says(graph):
    """Noise-free sums: what a user's list says does not depend on the user's own label."""
    plan = deal(graph, longest=100)
    lists, sent = sim.sending(plan, graph, "sent", 0)
    turn = plan.rounds[3]

    def says(g: Graph) -> np.ndarray:
        people = rec.Records.of(g, sent)
        quiet = Round("labels", 1, "lists", 3, 0.0)
        sums = sim.run_round(
            plan, quiet, sim.Slots(lists), rec.make_grid(plan, turn, people, {}), None
        )
        return rec.evidence(plan, people, {"labels.1": sums})

    v = int(np.flatnonzero(graph.train & (graph.out_degrees > 2))[0])
    labels = graph.labels.copy()
    labels[v] = (labels[v] + 1) % 3
    first, second = says(graph), says(graph.with_(labels=labels))
    np.testing.assert_allclose(first[v], second[v], atol=2e-4)
    assert np.abs(first - second).max() > 1e-2


def test_rows_have_norm_at_most_one_and_the_summary_is_a_ridge_regression(graph):
    plan = deal(graph)
    _, sent = sim.sending(plan, graph, "sent", 0)
    people = rec.Records.of(graph, sent)
    rng = np.random.default_rng(1)
    known = rng.standard_normal((graph.nodes, 4)).astype(np.float32)
    known /= np.linalg.norm(known, axis=1, keepdims=True)
    labels = rec.one_hot(plan, people)
    rows = rec.summary_rows(known, labels)
    assert np.linalg.norm(rows, axis=1).max() <= 1
    assert np.linalg.norm(rows[~graph.train]).max() == 0
    weights = rec.weights_of_summary(plan, 4, rows.sum(axis=0), 0.0)
    z, y = known[graph.train], labels[graph.train]
    expected = np.linalg.solve(z.T @ z + np.eye(4), z.T @ y)
    np.testing.assert_allclose(weights, expected, rtol=1e-3, atol=1e-4)


def test_a_plan_survives_json(graph):
    import json

    plan = deal(graph)
    assert SessionPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert plan.shape(plan.rounds[0]) == (1, 18)
    assert plan.shape(plan.rounds[1]) == (graph.nodes, 6)


def test_lists_are_what_the_graph_says(graph):
    plan = deal(graph, longest=1000)
    lists, sent = sim.sending(plan, graph, "sent", 0)
    np.testing.assert_array_equal(lists.indptr, transpose(graph.indptr, graph.indices)[0])
    np.testing.assert_array_equal(sent, graph.out_degrees)
