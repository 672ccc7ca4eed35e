"""Whole sessions in one process: exact sums, shares that show nothing, constant uploads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from local_session import BITS, Local, agreement, expected, lists, one_hot
from scipy import stats

from tacit.errors import BudgetError, SessionError
from tacit.graph import split, synthetic
from tacit.multiparty import simulation
from tacit.multiparty.agreement import Agreement
from tacit.multiparty.certificates import Identity
from tacit.multiparty.records import make_grid
from tacit.multiparty.refusals import RefusedError
from tacit.multiparty.ring import reconstruct, to_real
from tacit.multiparty.users import cut


@pytest.fixture
def local(memory):
    made = []

    def build(facts, held, **options):
        made.append(Local(facts, memory / f"s{len(made)}", held, **options))
        return made[-1]

    yield build
    for session in made:
        session.close()


def test_every_cell_of_one_hot_values_is_counted_exactly_once(local):
    facts, held = agreement(users=8, widths=(8, 3)), lists(8, 3)
    rows = [one_hot(8, 8), one_hot(8, 3) * 5]
    session = local(facts, held)
    assert session.run(rows)["done"]
    exact = session.exact(1)
    assert set(np.unique(exact)) <= {0, 1}
    np.testing.assert_array_equal(exact, expected(held, rows[0]))
    np.testing.assert_array_equal(session.exact(2), expected(held, rows[1]))


def test_the_released_sums_are_those_of_the_simulation_with_the_same_noise(local):
    graph = split(synthetic.communities(40, mean_degree=4, features=4, classes=3, seed=1), seed=1)
    facts = agreement(
        users=40, links=4, widths=(4, 3, 12), to=("lists", "lists", "everyone"), std=2.0, degree=2,
        features=graph.features.shape[1], self_link=True,
    )  # fmt: skip
    plan = facts.plan
    quiet = replace(plan, rounds=tuple(replace(turn, noise_std=0.0) for turn in plan.rounds))
    simulated, records = simulation.session(quiet, graph, None, seed=5)
    session = local(facts, cut(replace(facts, cut_seed=5), records))
    rows = [make_grid(plan, turn, records, simulated) for turn in plan.rounds]
    assert session.run(rows)["done"]
    for number, turn in enumerate(plan.rounds, 1):
        exact = session.exact(number)
        np.testing.assert_array_equal(to_real(exact, BITS), simulated[turn.name])
        noise = session.get("server").sums(number) - exact
        drawn = sum(session.noise(party)[number - 1] for party in range(3))
        np.testing.assert_array_equal(noise, drawn)


def test_what_a_party_publishes_is_uniform_and_differs_from_its_total(local):
    facts, held = agreement(users=64, widths=(16,), bits=64), lists(64, 3)
    session = local(facts, held)
    assert session.run([one_hot(64, 16)])["done"]
    shares = [session.get(f"party-{p}").share(1) for p in range(3)]
    for share in shares:
        seen = np.bincount(np.frombuffer(share, np.uint8), minlength=256)
        assert stats.chisquare(seen).pvalue > 1e-6
    words = [facts.ring.from_bytes(share, 64 * 16) for share in shares]
    assert np.abs(reconstruct(words, facts.ring)).max() < 20 * 2**BITS


def test_every_upload_of_a_round_has_the_same_length_whatever_the_list(local):
    session = local(agreement(), lists(6, 3))
    agent = session.get("user")
    assert len({len(message) for _, message in agent.registrations()}) == 1
    assert len({len(message) for _, message in agent.values(1, one_hot(6, 2))}) == 1


def test_the_ledger_is_charged_for_counts_and_for_each_round_before_it_is_seen(local):
    session = local(agreement(widths=(2, 2)), lists(6, 3))
    assert session.run([one_hot(6, 2)] * 2)["done"]
    assert session.charged == [0, 1, 2]


def test_a_user_gets_its_own_row_and_no_other(local):
    session = local(agreement(), lists(6, 3))
    assert session.run([one_hot(6, 2)])["done"]
    server, me = session.get("server"), Identity(session.agreement.session, "user", 2, 2)
    own = np.frombuffer(server.rows(me, 1, 2, 2), "<i8")
    np.testing.assert_array_equal(own, server.sums(1)[2])
    for first, last in ((1, 1), (2, 3), (0, 5), (3, 2)):
        with pytest.raises(RefusedError, match="act for"):
            server.rows(me, 1, first, last)
    with pytest.raises(RefusedError, match="another session"):
        server.rows(Identity("00" * 16, "user", 2, 2), 1, 2, 2)


def test_a_round_for_everyone_has_one_row_and_no_slot_of_a_list_in_it(local):
    facts, held = agreement(users=6, widths=(6, 6), to=("everyone", "lists")), lists(6, 3)
    session = local(facts, held)
    assert session.run([one_hot(6, 6), one_hot(6, 6)])["done"]
    np.testing.assert_array_equal(session.exact(1), np.ones((1, 6)))
    np.testing.assert_array_equal(session.exact(2), expected(held, one_hot(6, 6)))
    assert (facts.rows(1), facts.rows(2)) == (1, 6)


def test_a_user_that_sends_two_uploads_ends_the_session_and_nothing_is_released(local):
    session = local(agreement(), lists(6, 3))
    session.step("shuffler", [])
    shuffler, agent = session.get("shuffler"), session.get("user")
    _, message = next(agent.registrations())
    shuffler.accept(session.identity("user"), message)
    assert shuffler.accept(session.identity("user"), message)["accepted"]
    with pytest.raises(RefusedError) as refusal:
        shuffler.accept(session.identity("user"), message[:-1] + bytes([message[-1] ^ 1]))
    assert refusal.value.cause == "conflict"
    orders = session.run([one_hot(6, 2)], turns=5)
    assert orders["phase"] == "aborted"
    assert "two different uploads" in orders["why"]
    with pytest.raises(RefusedError, match="aborted"):
        shuffler.accept(session.identity("user"), message)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda m: m[:-1], "length"),
        (lambda m: m + b"x", "oversize"),
        (lambda m: b"JUNK" + m[4:], "garbage"),
        (lambda m: m[:20], "garbage"),
        (lambda m: m[:4] + bytes(32) + m[36:], "session"),
        (lambda m: m[:36] + (9).to_bytes(4, "big") + m[40:], "round"),
        (lambda m: m[:36] + (1).to_bytes(4, "big") + m[40:], "oversize"),
        (lambda m: m[:40] + (6).to_bytes(4, "big") + m[44:], "role"),
        (lambda m: m[:52] + b"\x03" + m[53:], "role"),
    ],
)
def test_uploads_that_are_not_of_the_session_are_refused_and_nothing_is_lost(local, change, cause):
    session = local(agreement(), lists(6, 3))
    session.step("shuffler", [])
    shuffler, who = session.get("shuffler"), session.identity("user")
    _, message = next(session.get("user").registrations())
    with pytest.raises(RefusedError) as refusal:
        shuffler.accept(who, change(message))
    assert refusal.value.cause == cause
    assert shuffler.accept(who, message)["accepted"]
    assert shuffler.status()[f"refused {cause}"] == 1


def test_an_agent_speaks_for_its_own_users_alone(local):
    session = local(agreement(), lists(6, 3))
    session.step("shuffler", [])
    _, message = next(session.get("user").registrations())
    for who in (
        Identity(session.agreement.session, "user", 1, 5),
        Identity("0" * 32, "user", 0, 5),
    ):
        with pytest.raises(RefusedError) as refusal:
            session.get("shuffler").accept(who, message)
        assert refusal.value.cause == "certificate"


def test_a_party_that_is_lost_ends_the_session_and_the_ledger_shows_what_was_spent(local):
    session = local(agreement(widths=(2, 2), seconds=50.0), lists(6, 3))
    rows = [one_hot(6, 2)] * 2
    while session.get("coordinator").orders()["round"] < 2:
        for name in session.names:
            session.step(name, rows)
    session.kill("party-1")
    for _ in range(10):
        for name in session.names:
            if name != "party-1":
                try:
                    session.step(name, rows)
                except SessionError:
                    session.kill("party-1")
        session.kill("party-1")
        session.clock[0] += 20
    orders = session.get("coordinator").orders()
    assert orders["phase"] == "aborted"
    assert orders["why"].endswith("no word from party 1")
    assert session.charged == [0, 1]
    assert session.get("server").sums(1).shape == (6, 2)


def test_a_budget_that_is_spent_ends_the_session_before_parties_see_anything(local):
    session = local(agreement(), lists(6, 3))

    def refuse(number):
        raise BudgetError("nothing is left")

    session.get("coordinator")._charge = refuse
    assert "nothing is left" in session.run([one_hot(6, 2)])["why"]
    assert not any(session.get(f"party-{p}").store.batches(0) for p in range(3))


def test_values_that_changed_since_the_round_began_are_not_sealed_again(local):
    session = local(agreement(), lists(6, 3))
    agent = session.get("user")
    first = dict(agent.values(1, one_hot(6, 2)))
    session.kill("user")
    agent = session.get("user")
    assert dict(agent.values(1, one_hot(6, 2))) == first
    with pytest.raises(SessionError, match="have changed"):
        next(agent.values(1, one_hot(6, 2) * 2))


def test_files_that_were_damaged_after_they_were_acknowledged_are_noticed(local):
    session = local(agreement(), lists(6, 3))
    while session.get("coordinator").orders()["round"] == 0:
        for name in session.names:
            session.step(name, [one_hot(6, 2)])
    session.kill("party-0")
    path = session.folder / "party-0" / "slots.arrow"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(SessionError, match="damaged or missing"):
        session.get("party-0")


def test_status_and_agreement_survive_json_and_show_no_keys(local):
    session = local(agreement(), lists(6, 3))
    assert session.run([one_hot(6, 2)])["done"]
    assert Agreement.from_json(session.agreement.to_json()) == session.agreement
    table = session.get("party-0")._slots
    for name in ("coordinator", "shuffler", "server", "party-0"):
        said = str(session.get(name).status())
        assert len(said) < 2000
        assert not any(seed.tobytes().hex() in said for seed in table.seeds)
    with pytest.raises(SessionError, match="not the agreement"):
        Agreement.from_json("{}")


@pytest.mark.parametrize(
    "changes",
    [{"noise": "laplace"}, {"users": 2**31}, {"bits": 32, "fraction_bits": 29}, {"widths": (0,)}],
)
def test_agreements_that_cannot_be_kept_are_refused(changes):
    with pytest.raises(SessionError):
        agreement(**changes)


def test_sums_at_the_end_of_the_ring_are_exact_and_one_step_further_is_refused():
    facts = agreement(users=100, fraction_bits=24, std=0.001)
    edge = int((2**31 - 10 * 0.001 * 3**0.5 * 2**24) / 2**24)
    assert replace(facts, plan=replace(facts.plan, users=edge)).ring.bits == 32
    with pytest.raises(SessionError, match="does not fit"):
        replace(facts, plan=replace(facts.plan, users=edge + 1))


@pytest.mark.parametrize("leave_out", [False, True])
def test_a_user_that_registers_and_misses_a_round_ends_the_session_unless_left_out(
    local, leave_out
):
    session = local(agreement(seconds=50.0, leave_out=leave_out), lists(6, 3))
    rows = [one_hot(6, 2)]
    while session.get("coordinator").orders()["round"] == 0:
        for name in session.names:
            session.step(name, rows)
    session.step("shuffler", rows)
    messages = list(session.get("user").values(1, rows[0]))
    for _, message in messages[:-1]:
        session.get("shuffler").accept(session.identity("user"), message)
    session.clock[0] += 51
    for _ in range(9):
        for name in session.names:
            session.step(name, rows)
    orders = session.get("coordinator").orders()
    if leave_out:
        assert orders["done"]
        some = rows[0].copy()
        some[5] = 0
        np.testing.assert_array_equal(session.exact(1), expected(session.held, some))
    else:
        assert "1 users who registered missed round 1" in orders["why"]
        assert not any(session.get(f"party-{p}").store.batches(1) for p in range(3))
    with pytest.raises(RefusedError) as refusal:
        session.get("shuffler").accept(session.identity("user"), messages[-1][1])
    assert refusal.value.cause == ("late" if leave_out else "aborted")


def test_a_user_that_never_registers_is_not_waited_for_later(local):
    session = local(agreement(seconds=50.0), lists(6, 3))
    session.step("shuffler", [])
    for _, message in list(session.get("user").registrations())[:4]:
        session.get("shuffler").accept(session.identity("user"), message)
    session.clock[0] += 51
    for name in session.names[:2] * 2:
        session.step(name, [])
    for _ in range(4):
        for name in session.names:
            session.step(name, [one_hot(6, 2)])
    assert session.get("coordinator").orders()["round"] == 1
    for user, message in session.get("user").values(1, one_hot(6, 2)):
        if user < 4:
            session.get("shuffler").accept(session.identity("user"), message)
    session.names.remove("user")
    assert session.run([one_hot(6, 2)])["done"]
    some = one_hot(6, 2)
    some[4:] = 0
    np.testing.assert_array_equal(session.exact(1), expected(session.held, some))
