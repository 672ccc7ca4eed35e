"""PrivGNN: its figures, its refusals, what one node can move, and resuming."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import tacit
from tacit.errors import GraphError, PlanError, ReleaseError
from tacit.graph import PublicFacts
from tacit.learn.graph_networks import GraphNetwork
from tacit.learn.student import embed
from tacit.methods import PrivGNN, load_run
from tacit.methods import privgnn_answers as answers
from tacit.methods.privgnn_settings import choose, published_epsilon
from tacit.privacy.ledger import Ledger
from tacit.privacy.noise import NoiseSource
from tacit.release import load_bundle, release
from tacit.study.attempt import KEPT_FILE, fit_into

QUICK = {"queries": 8, "epochs": 3, "student_epochs": 5, "hidden": 6, "width": 5, "neighbours": 12}
WHOLE = tacit.graph.synthetic.communities(200, mean_degree=6, features=9, classes=3, seed=4)
GRAPH = tacit.graph.cut(WHOLE, tacit.graph.Cut(90, 60, 50))
FACTS = PublicFacts(nodes=2500, train_nodes=2500, features=767, classes=10, public_nodes=6000)

# Table 2 of the paper. Its two halves are rounded differently, hence a tolerance of one digit.
TABLE_2 = {
    (0.3, 500, 1e-3): (2.67, 5.69, 13.15, 31.10, 44.07),
    (0.3, 1000, 1e-3): (3.90, 8.53, 19.81, 55.30, 81.23),
    (0.1, 500, 1e-4): (0.97, 1.96, 4.03, 8.73, 11.17),
    (0.1, 1000, 1e-4): (1.39, 2.83, 5.94, 12.98, 17.73),
}
LAMS = (0.1, 0.2, 0.4, 0.8, 1.0)


def model(**options):
    overrides = {**QUICK, **options.pop("overrides", {})}
    named = {"epsilon": 4.0, "delta": 1e-4, "seed": 3, **options}
    return PrivGNN(overrides=overrides, **named)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger.sqlite")


# -- figures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gamma", "queries", "delta"), TABLE_2)
def test_the_paper_s_table_2(gamma, queries, delta):
    for lam, theirs in zip(LAMS, TABLE_2[gamma, queries, delta], strict=True):
        found = published_epsilon(lam, gamma, queries, delta)
        assert abs(found - theirs) < 0.01
        # The delta that the paper states gives another figure.
        assert published_epsilon(lam, gamma, queries, delta / 10) > theirs + 0.02


def test_the_command_line_prices_noise_without_any_data():
    from tacit.cli import app

    base = ["plan", "--method", "privgnn", "--set", "noise=laplace", "--set", "lam=0.2"]
    base += ["--set", "queries=1000", "--set", "gamma=0.3", "--classes", "10", "--json"]
    sound = CliRunner().invoke(app, [*base, "--delta", "1e-4"])
    paper = CliRunner().invoke(app, [*base, "--delta", "1e-3", "--accounting", "paper"])
    told = [json.loads(r.stdout.strip().splitlines()[-1])["statement"] for r in (sound, paper)]
    assert told[0]["epsilon"] == pytest.approx(9.595, abs=1e-3)
    assert told[1]["epsilon"] == pytest.approx(8.53, abs=0.01)
    assert told[0]["stamp"] == ""
    assert told[1]["stamp"] == "paper accounting"
    assert told[0]["unit"] == "node-all"


def test_paper_accounting_charges_the_ledger_no_privacy(ledger):
    found = model(accounting="paper", epsilon=math.inf, overrides={"lam": 0.5}).fit(
        GRAPH, ledger=ledger
    )
    assert found.fitted.plan.settings.posterior == "log-softmax"
    assert found.statement.stamp == "paper accounting"
    assert math.isinf(ledger.entries()[0].epsilon)


def test_paper_accounting_of_noise_on_softmax_charges_what_is_proved():
    chosen = {"lam": 0.2, "posterior": "softmax", "queries": 1000}
    plan = model(accounting="paper", delta=1e-4, epsilon=math.inf, overrides=chosen).plan(FACTS)
    sound = model(delta=1e-4, epsilon=math.inf, overrides={"lam": 0.2, "queries": 1000}).plan(FACTS)
    assert plan.charged_event == sound.charged_event
    assert sound.cost.epsilon == pytest.approx(9.595, abs=1e-3)


def test_noise_from_epsilon_and_epsilon_from_noise_agree():
    from_budget = model(epsilon=9.6, overrides={"queries": 1000}).plan(FACTS)
    assert from_budget.settings.lam == pytest.approx(0.2, abs=2e-3)
    lam = from_budget.settings.lam
    again = model(epsilon=math.inf, overrides={"queries": 1000, "lam": lam}).plan(FACTS)
    assert again.cost == from_budget.cost
    assert again.epsilon == again.cost.epsilon


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "word"),
    [
        ({"teacher": "single"}, "SINGLEGNN"),
        ({"posterior": "log-softmax"}, "log-softmax"),
        ({"teacher": "votes", "noise": "laplace"}, "Laplace"),
        ({"teacher": "oracle"}, "teacher"),
        ({"selection": "confidence"}, "selected"),
        ({"query_ids": "1,1"}, "twice"),
        ({"query_ids": "one"}, "numbers"),
        ({"queries": 7000}, "6000 public nodes"),
        ({"gamma": 0.0}, "gamma"),
        ({"lam": 5.0}, "costs epsilon"),
        ({"teacher": "votes", "lam": 1.0}, "laplace"),
        ({"teacher": "pate-mlp", "gamma": 0.5}, "sampling"),
        ({"secret": 1}, "no setting"),
    ],
)
def test_what_cannot_be_promised_is_refused_before_any_charge(chosen, word):
    with pytest.raises(PlanError, match=word):
        model(overrides={"queries": 1000, **chosen}).plan(FACTS)


def test_the_single_teacher_is_allowed_in_paper_accounting_only(ledger):
    found = model(
        accounting="paper", epsilon=math.inf, overrides={"teacher": "single", "lam": 0.4}
    ).fit(GRAPH, ledger=ledger)
    assert found.statement.stamp == "paper accounting"


def test_a_public_graph_of_another_kind_is_refused(ledger):
    other = tacit.graph.synthetic.communities(40, mean_degree=4, features=8, classes=3, seed=1)
    with pytest.raises(GraphError, match="8 features"):
        model().fit(GRAPH, ledger=ledger, public=other)
    more = tacit.graph.synthetic.communities(40, mean_degree=4, features=9, classes=4, seed=1)
    with pytest.raises(GraphError, match="4 classes"):
        model().fit(GRAPH, ledger=ledger, public=more)
    with pytest.raises(PlanError, match="public graph"):
        model().fit(GRAPH.with_(public=None), ledger=ledger)
    assert not ledger.entries()


def test_queries_outside_the_public_graph_are_refused():
    settings = choose("tacit", "sound", {**QUICK, "queries": 2, "query_ids": "3,110"})
    with pytest.raises(PlanError, match="query 110 is not in the public graph"):
        answers.choose_queries(GRAPH.public, settings, 0)
    inside = replace(settings, query_ids="3,109")
    assert answers.choose_queries(GRAPH.public, inside, 0).tolist() == [3, 109]


def test_queries_are_drawn_among_nodes_that_are_not_scored():
    settings = choose("tacit", "sound", {**QUICK, "queries": 60})
    chosen = answers.choose_queries(GRAPH.public, settings, 0)
    assert len(np.unique(chosen)) == 60
    assert not GRAPH.public.test[chosen].any()
    assert len(answers.choose_queries(GRAPH.public, replace(settings, queries=100), 0)) == 100
    by_degree = answers.choose_queries(
        GRAPH.public, replace(settings, queries=5, selection="degree"), 0
    )
    left_out = np.setdiff1d(np.flatnonzero(~GRAPH.public.test), by_degree)
    degrees = GRAPH.public.out_degrees
    assert degrees[by_degree].min() >= degrees[left_out].max()


# -- samples, neighbours, votes ------------------------------------------------------------------


@pytest.mark.parametrize("search", ["torch", "faiss"])
def test_the_nearest_are_the_nearest_of_the_sample(search):
    rng = np.random.default_rng(0)
    asked, points = rng.standard_normal((5, 4)), rng.standard_normal((40, 4))
    coins = rng.random((5, 40)) < 0.5
    for distance in ("euclidean", "cosine"):
        few = {**QUICK, "neighbours": 6, "distance": distance, "search": search}
        settings = choose("tacit", "sound", few)
        for row, found in enumerate(answers.nearest(asked, points, coins, settings)):
            a, b = asked[row], points[coins[row]]
            if distance == "cosine":
                a, b = a / np.linalg.norm(a), b / np.linalg.norm(b, axis=1, keepdims=True)
            gaps = np.linalg.norm(b - a, axis=1)
            right = np.sort(np.flatnonzero(coins[row])[np.argsort(gaps)[:6]])
            assert found.tolist() == right.tolist()


def test_a_sample_smaller_than_k_is_used_whole_and_an_empty_one_answers_by_noise(ledger):
    coins = np.zeros((2, 40), bool)
    coins[0, [3, 8]] = True
    settings = choose("tacit", "sound", QUICK)
    found = list(answers.nearest(np.zeros((2, 4)), np.ones((40, 4)), coins, settings))
    assert [part.tolist() for part in found] == [[3, 8], []]
    rare = model(overrides={"gamma": 1e-6, "queries": 20}).fit(GRAPH, ledger=ledger)
    assert len(rare.fitted.outcome.released["labels"]) == 20
    assert len(ledger.entries()) == 1
    assert rare.fitted.plan.stages[0].rounds == 20


def test_a_node_of_any_degree_moves_one_count_of_a_query_by_one():
    """The hub is linked to everyone; taking it away moves what it voted for, and nothing else."""
    settings = choose("tacit", "sound", {**QUICK, "teacher": "votes", "share": 0.5})
    queries = answers.choose_queries(GRAPH.public, settings, 0)
    space = answers.space_of(GRAPH.public, queries, embed(GRAPH.public.features, 5), 0.5)
    hub, rest = 7, np.delete(np.arange(90), 7)
    arcs = np.concatenate(
        [np.stack([np.full(89, hub), rest]), np.stack([rest, np.full(89, hub)])], 1
    )
    linked = tacit.graph.from_arcs(
        np.concatenate([np.repeat(np.arange(90), GRAPH.out_degrees), arcs[0]]),
        np.concatenate([GRAPH.indices, arcs[1]]),
        features=GRAPH.features, labels=GRAPH.labels,
    )  # fmt: skip
    linked = linked.with_(train=np.ones(90, bool))
    without = tacit.graph.subgraph(linked, rest)
    coins = np.ones((len(queries), 90), bool)
    full = answers.votes(linked, GRAPH.public, queries, coins, space)
    less = answers.votes(without, GRAPH.public, queries, coins[:, rest], space)
    moved = np.abs(full - less)
    assert moved.sum(axis=1).max() == 1
    assert moved[:, GRAPH.labels[hub]].sum() == moved.sum() > 0


def test_an_unsampled_node_changes_no_teacher():
    settings = choose("tacit", "sound", {**QUICK, "teacher": "all"})
    queries = answers.choose_queries(GRAPH.public, settings, 0)
    coins = np.random.default_rng(0).random((len(queries), 90)) < 0.4
    gone = 11
    coins[:, gone] = False
    rest = np.delete(np.arange(90), gone)

    def ask(graph, mask):
        return answers.ask_teachers(
            graph, GRAPH.public, queries, answers.Draws(mask, np.zeros((8, 3))), settings, 0,
            answers.Store(None), lambda *told: None, np.empty((0, 3)),
        )  # fmt: skip

    full, less = ask(GRAPH, coins), ask(tacit.graph.subgraph(GRAPH, rest), coins[:, rest])
    np.testing.assert_allclose(full, less, atol=1e-6)
    coins[0, gone] = True
    assert np.abs(ask(GRAPH, coins)[0] - full[0]).max() > 1e-4, "the check has no power"


def test_who_is_in_another_sample_does_not_move_a_bit():
    settings = choose("tacit", "sound", {**QUICK, "dropout": 0.5})
    queries = answers.choose_queries(GRAPH.public, settings, 0)
    coins = np.random.default_rng(0).random((len(queries), 90)) < 0.4
    gone, rest = 11, np.delete(np.arange(90), 11)
    coins[:, gone] = False
    coins[0] = False
    coins[0, gone] = True  # the only one in the first sample, which is empty without it

    def ask(graph, mask):
        return answers.ask_teachers(
            graph, GRAPH.public, queries, answers.Draws(mask, np.zeros((8, 3))), settings, 0,
            answers.Store(None), lambda *told: None, np.empty((0, 3)),
        )  # fmt: skip

    full, less = ask(GRAPH, coins), ask(tacit.graph.subgraph(GRAPH, rest), coins[:, rest])
    assert np.array_equal(full[1:], less[1:])
    assert not np.array_equal(full[0], less[0])


def test_only_the_argmax_of_floored_posteriors_leaves():
    settings = choose("tacit", "sound", {**QUICK, "lam": 1.0})
    told = np.log(np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]))
    quiet = np.zeros((2, 3), np.int64)
    assert answers.noisy_labels(told, quiet, settings, 3).tolist() == [0, 2]
    loud = quiet.copy()
    loud[0, 1] = 2**36  # one whole unit of probability
    assert answers.noisy_labels(told, loud, settings, 3).tolist() == [1, 2]


# -- running -------------------------------------------------------------------------------------


def test_votes_teach_a_student_more_than_noisy_labels_do(ledger):
    whole = tacit.graph.synthetic.communities(900, mean_degree=10, features=24, classes=4, seed=5)
    graph = tacit.graph.cut(whole, tacit.graph.Cut(500, 200, 200))
    tried = {"queries": 60, "epochs": 30, "neighbours": 100, "hidden": 16, "width": 16}
    scores = {}
    for teacher in ("votes", "gnn"):
        made = PrivGNN(epsilon=6, delta=1e-4, teacher=teacher, overrides=tried, noise="seeded")
        scores[teacher] = made.fit(graph, ledger=ledger).fitted.metrics["test_accuracy"]
    assert scores["votes"] > scores["gnn"] + 0.1


@pytest.mark.parametrize("student", ["sage", "gcn", "hops"])
def test_students_predict_the_same_after_loading_and_on_another_public_graph(
    student, ledger, tmp_path
):
    made = model(overrides={"teacher": "votes", "student": student, "pretrain": 2})
    fit_into(tmp_path / "run", made, GRAPH, ledger, asked={})
    loaded = load_run(tmp_path / "run")
    assert np.array_equal(made.predict_proba(), loaded.predict_proba())
    np.testing.assert_allclose(loaded.predict_proba(GRAPH.public), made.predict_proba(), atol=1e-6)
    other = tacit.graph.synthetic.communities(30, mean_degree=4, features=9, classes=3, seed=9)
    assert loaded.predict_proba(other, ledger=ledger).shape == (30, 3)
    assert len(ledger.entries()) == 1


def test_an_interrupted_run_resumes_with_the_noise_it_drew(ledger, tmp_path, monkeypatch):
    drawn = []
    honest = NoiseSource.laplace
    monkeypatch.setattr(NoiseSource, "laplace", lambda *args: drawn.append(1) or honest(*args))
    monkeypatch.setattr(answers, "_CHUNK", 3)

    def stop(stage, done, total):
        if stage == "teachers" and done == 6:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fit_into(folder, model(), GRAPH, ledger, asked={}, progress=stop)
    before = answers.Store(folder).load()
    assert before is not None
    assert 3 <= len(before[1]) < 8
    seen = []
    again = model()
    fit_into(folder, again, GRAPH, ledger, asked={}, progress=lambda *told: seen.append(told))
    assert len(drawn) == 1, "noise was drawn twice"
    assert len(ledger.entries()) == 1
    assert ("teachers", len(before[1]), 8) in seen
    assert not (folder / KEPT_FILE).exists()
    whole = answers.ask_teachers(
        GRAPH, GRAPH.public, again.fitted.outcome.released["queries"][:, 0], before[0],
        again.fitted.plan.settings, 3, answers.Store(None), lambda *told: None, np.empty((0, 3)),
    )  # fmt: skip
    labels = answers.noisy_labels(whole, before[0].noise, again.fitted.plan.settings, 3)
    assert labels.tolist() == again.fitted.outcome.released["labels"][:, 0].tolist()


class Plain(nn.Module):
    """A network of the user's own, with ``forward(x, adj)``."""

    def __init__(self, width: int, classes: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.inner = nn.Linear(width, classes)

    def forward(self, x, adj):
        return adj.mean @ self.inner(x) + self.inner(x)


def test_networks_of_one_s_own_teach_and_learn(ledger):
    state = torch.get_rng_state()
    made = model(
        teacher_network=lambda width, classes, seed: GraphNetwork("gcn", width, 4, classes),
        student_network=Plain,
        overrides={"pretrain": 1},
    ).fit(GRAPH, ledger=ledger)
    torch.set_rng_state(state)
    assert made.predict_proba().shape == (110, 3)
    assert set(made.fitted.outcome.weights) == {"student/inner.weight", "student/inner.bias"}
    assert made.fitted.outcome.notes


@pytest.mark.slow
def test_two_processes_answer_as_one():
    settings = choose("tacit", "sound", QUICK)
    queries = answers.choose_queries(GRAPH.public, settings, 0)
    draws = answers.draw(settings, 90, 3, None, 0)

    def ask(processes):
        return answers.ask_teachers(
            GRAPH, GRAPH.public, queries, draws, replace(settings, processes=processes), 0,
            answers.Store(None), lambda *told: None, np.empty((0, 3)),
        )  # fmt: skip

    np.testing.assert_allclose(ask(1), ask(2), atol=1e-5)


@pytest.mark.parametrize("chosen", [{"teacher": "votes"}, {"teacher": "gnn", "student": "sage"}])
def test_a_bundle_answers_for_any_public_graph(chosen, ledger, tmp_path):
    made = model(overrides=chosen).fit(GRAPH, ledger=ledger)
    bundle = load_bundle(release(made, tmp_path / "bundle"))
    assert np.array_equal(bundle.predict(), made.predict())
    np.testing.assert_allclose(
        bundle.predict_graph_proba(GRAPH.public), made.predict_proba(), atol=1e-6
    )
    assert "released/queries" in bundle.info.arrays
    paper = model(accounting="paper", epsilon=math.inf, overrides={"lam": 0.5})
    with pytest.raises(ReleaseError, match="paper"):
        release(paper.fit(GRAPH, ledger=ledger), tmp_path / "never")
