"""A planned session between processes: what it costs, what it refuses, and its answers."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import tacit
from tacit.errors import PlanError, SessionError
from tacit.graph import split, synthetic
from tacit.methods.dpa import DPA, session_of
from tacit.multiparty.session import Dummies
from tacit.privacy.accounting import epsilon_pld
from tacit.privacy.events import event_from_json
from tacit.study.deployment import Processes, most_dummies, round_events, run_session

SETTINGS = {"longest": 2, "count_share": 0.5, "width": 4}


@pytest.fixture(scope="module")
def graph():
    made = synthetic.communities(60, mean_degree=6, features=6, classes=3, seed=1)
    return split(made, (50, 25, 25), 0)


def dpa(**options) -> DPA:
    return DPA(tacit.Node(), 8.0, 1e-5, overrides=SETTINGS, **options)


def test_the_rounds_together_cost_what_the_plan_costs(graph):
    import dp_accounting

    plan = dpa().plan(graph.facts())
    deal = session_of(plan)
    events = round_events(plan, deal)
    assert set(events) == {"counts", *(turn.name for turn in deal.rounds)}
    whole = dp_accounting.ComposedDpEvent([event_from_json(event) for event in events.values()])
    assert epsilon_pld(whole, 1e-5) == pytest.approx(plan.cost.epsilon, rel=1e-6)
    # The check has power: one round left out costs visibly less.
    less = dp_accounting.ComposedDpEvent([event_from_json(e) for e in list(events.values())[1:]])
    assert epsilon_pld(less, 1e-5) < 0.95 * plan.cost.epsilon


def test_dummies_are_cut_off_where_they_hardly_ever_reach():
    from scipy.stats import geom, norm

    gaussian = Dummies.hiding(3.0)
    assert norm.sf(most_dummies(gaussian) - gaussian.shift, scale=3.0) < 2.0**-140
    for rate in (0.2, 0.5, 0.9):
        most = most_dummies(Dummies("geometric", rate=rate))
        assert geom.logsf(most, rate) < -140 * math.log(2)
    assert most_dummies(Dummies("none")) == 0


def test_what_cannot_run_between_processes_is_refused_before_anything_is_made(graph, tmp_path):
    ledger, out = tacit.Ledger(tmp_path / "ledger"), tmp_path / "out"
    with pytest.raises(PlanError, match="draw their noise from the operating system"):
        run_session(graph, dpa(noise="seeded"), out, ledger, Processes())
    paper = DPA(tacit.Node(), 8.0, 1e-5, accounting="paper")
    with pytest.raises(PlanError, match="cut by who receives"):
        run_session(graph, paper, out, ledger, Processes())
    with pytest.raises(PlanError, match="at least one agent"):
        Processes(agents=0)
    assert not out.exists()


@pytest.mark.slow
def test_a_session_of_processes_answers_as_the_simulation_does(graph, memory):
    ledger, stood = tacit.Ledger(memory / "ledger"), []
    processes = Processes(agents=2, connections="each", seconds=60.0, most_seconds=120.0)
    out = memory / "out"
    found = run_session(
        graph, dpa(), out, ledger, processes, lambda said: stood.append(said["phase"])
    )
    assert 0.0 <= found["metrics"]["test_accuracy"] <= 1.0
    assert "a process of its own" in found["statement"]["assumptions"][0]
    assert not any("simulated" in text for text in found["statement"]["assumptions"])
    assert found["bytes_uploaded"] > 60 * 400
    assert found["payload_mb_per_s"] > 0
    assert json.loads((out / "result.json").read_text())["session"] == found["session"]
    entries = ledger.entries(tacit.graph.fingerprint(graph))
    assert len(entries) == 1 + len(session_of(dpa().plan(graph.facts())).rounds)
    total = ledger.total(tacit.graph.fingerprint(graph), "node", 1e-5)
    assert total.epsilon <= 8.0 + 1e-6
    # The same command again answers from what was released, and charges nothing.
    again = run_session(graph, dpa(), out, ledger, processes)
    assert again["metrics"] == found["metrics"]
    assert len(ledger.entries(tacit.graph.fingerprint(graph))) == len(entries)
    other = replace(processes)
    with pytest.raises((PlanError, SessionError), match="another session"):
        run_session(graph, DPA(tacit.Node(), 4.0, 1e-5, overrides=SETTINGS), out, ledger, other)


def test_released_sums_are_read_back_as_real_numbers(tmp_path, graph):
    from tacit.multiparty.agreement import Agreement
    from tacit.study.deployment import released_sums

    deal = session_of(dpa().plan(graph.facts()))
    agreed = Agreement("ab" * 16, deal, 4)
    (tmp_path / "server").mkdir()
    for number, turn in enumerate(deal.rounds, 1):
        sums = np.full(deal.shape(turn), 3 * 2**deal.fraction_bits)
        np.save(tmp_path / "server" / f"released-{number}.npy", sums)
    found = released_sums(tmp_path, agreed)
    assert set(found) == {turn.name for turn in deal.rounds}
    assert all((array == 3.0).all() for array in found.values())
