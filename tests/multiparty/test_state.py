"""The life of a round as a pure function."""

from __future__ import annotations

from itertools import product

import pytest

from tacit.errors import SessionError
from tacit.multiparty.coordinator import agreed_hash
from tacit.multiparty.refusals import RefusedError
from tacit.multiparty.state import (
    ORDER,
    Abort,
    Aggregate,
    Freeze,
    Phase,
    Reconcile,
    Release,
    RoundState,
    advance,
)

PAIRS = {"1": (4, "aa"), "2": (5, "bb")}
REPORTS = {"0": ("h", "d0"), "1": ("h", "d1"), "2": ("h", "d2")}
PATH = (Freeze(9), Reconcile(PAIRS), Aggregate("h", "d0"), Release(REPORTS, 3, "0"))


def states() -> list[RoundState]:
    found = [RoundState()]
    for event in PATH:
        found.append(advance(found[-1], event))
    return found


def test_a_round_goes_through_its_phases_in_order():
    assert [state.phase for state in states()] == list(ORDER[:5])
    for state in states():
        assert RoundState.from_dict(state.to_dict()) == state


def test_an_event_again_changes_nothing_and_an_event_too_early_is_refused():
    found = states()
    for (place, state), (step, event) in product(enumerate(found), enumerate(PATH)):
        if step < place:
            assert advance(state, event) == state
        elif step == place:
            assert advance(state, event) == found[place + 1]
        else:
            with pytest.raises(RefusedError, match="not ready"):
                advance(state, event)


@pytest.mark.parametrize(
    "event",
    [Freeze(8), Reconcile({"1": (4, "aa"), "2": (5, "cc")}), Aggregate("h", "d9")],
)
def test_an_event_that_contradicts_what_was_agreed_is_a_conflict(event):
    with pytest.raises(RefusedError) as refusal:
        advance(states()[3], event)
    assert refusal.value.cause == "conflict"


@pytest.mark.parametrize(
    ("reports", "cause"),
    [
        ({"0": ("h", "d0"), "1": ("h", "d1")}, "state"),
        ({**REPORTS, "2": ("other", "d2")}, "conflict"),
        ({**REPORTS, "0": ("h", "another share")}, "conflict"),
    ],
)
def test_nothing_is_released_before_all_aggregated_the_same_slots(reports, cause):
    with pytest.raises(RefusedError) as refusal:
        advance(states()[3], Release(reports, 3, "0"))
    assert refusal.value.cause == cause


def test_an_aborted_round_stays_aborted_and_a_released_one_stays_released():
    for state in states()[:4]:
        ended = advance(state, Abort("lost"))
        assert (ended.phase, ended.why) == (Phase.ABORTED, "lost")
        assert advance(ended, Abort("again")) == ended
        for event in PATH:
            with pytest.raises(RefusedError, match="lost"):
                advance(ended, event)
    assert advance(states()[4], Abort("late")).phase is Phase.RELEASED


def test_the_agreed_hash_is_over_what_each_two_parties_say_of_each_other():
    said = {
        "0": {"1": [2, "x"], "2": [3, "y"]},
        "1": {"0": [2, "x"], "2": [4, "z"]},
        "2": {"0": [3, "y"], "1": [4, "z"]},
    }
    assert agreed_hash(said) == agreed_hash(dict(reversed(said.items())))
    for wrong in ([3, "x"], [2, "w"]):
        with pytest.raises(SessionError, match="different slots"):
            agreed_hash({**said, "1": {"0": wrong, "2": [4, "z"]}})
    with pytest.raises(SessionError, match="left out"):
        agreed_hash({**said, "1": {"0": [2, "x"]}})
