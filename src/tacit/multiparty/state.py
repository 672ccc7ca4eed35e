"""The life of a round at a party, as a pure function: no clock, no disk, no network.

``OPEN -> FROZEN -> RECONCILED -> AGGREGATED -> RELEASED``, and from anywhere but the end
``ABORTED``. The same event twice gives the same state; an event that contradicts what was already
agreed is refused; nothing goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

from tacit.errors import SessionError
from tacit.multiparty.refusals import RefusedError


class Phase(StrEnum):
    """Where a round stands."""

    OPEN = "open"
    FROZEN = "frozen"
    RECONCILED = "reconciled"
    AGGREGATED = "aggregated"
    RELEASED = "released"
    ABORTED = "aborted"


ORDER = tuple(Phase)
"""In which they follow each other."""


@dataclass(frozen=True)
class RoundState:
    """Where one round stands at one party.

    Attributes:
        phase: The phase.
        rows: Rows it was sent, agreed at FROZEN.
        pairs: For each other party how many slots the two hold in common, and their checksum.
        agreed: Hash over everybody's pairs, fixed by the first aggregation.
        share: Digest of the noisy share on disk.
        why: What ended the session.
    """

    phase: Phase = Phase.OPEN
    rows: int = -1
    pairs: Mapping[str, tuple[int, str]] | None = None
    agreed: str = ""
    share: str = ""
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RoundState:
        """Read it back."""
        pairs = data["pairs"]
        return cls(
            **{
                **data,
                "phase": Phase(data["phase"]),
                "pairs": pairs and {name: (int(c), str(h)) for name, (c, h) in pairs.items()},
            }
        )


@dataclass(frozen=True)
class Freeze:
    """The deadline passed, and everything that was accepted before it has been delivered."""

    rows: int


@dataclass(frozen=True)
class Reconcile:
    """This party knows which slots all their parties hold."""

    pairs: Mapping[str, tuple[int, str]]


@dataclass(frozen=True)
class Aggregate:
    """The noisy share is on disk, over the slots that everybody agreed on."""

    agreed: str
    share: str


@dataclass(frozen=True)
class Release:
    """What every party reported of its aggregation: party to (agreed hash, share digest)."""

    reports: Mapping[str, tuple[str, str]]
    parties: int
    me: str


@dataclass(frozen=True)
class Abort:
    """The session ends without this round."""

    why: str


Event: TypeAlias = Freeze | Reconcile | Aggregate | Release | Abort


def advance(state: RoundState, event: Event) -> RoundState:
    """The state after an event.

    Raises:
        RefusedError: The event comes too early, contradicts the state, or the session was aborted.
    """
    if isinstance(event, Abort):
        ended = state.phase in (Phase.RELEASED, Phase.ABORTED)
        return state if ended else replace(state, phase=Phase.ABORTED, why=event.why)
    if state.phase is Phase.ABORTED:
        raise RefusedError("aborted", f"the session was aborted: {state.why}")
    match event:
        case Freeze(rows):
            return _step(state, Phase.FROZEN, rows=rows)
        case Reconcile(pairs):
            return _step(state, Phase.RECONCILED, pairs=dict(pairs))
        case Aggregate(agreed, share):
            if not agreed or not share:
                raise SessionError("an aggregation names its slots and its share")
            return _step(state, Phase.AGGREGATED, agreed=agreed, share=share)
        case Release(reports, parties, me):
            _check_release(state, reports, parties, me)
            return _step(state, Phase.RELEASED)


def _step(state: RoundState, to: Phase, **facts: Any) -> RoundState:
    """One phase further; again the same if it was reached before with the same facts."""
    place = ORDER.index(state.phase) - ORDER.index(to)
    if place < -1:
        raise RefusedError("state", f"a round that is {state.phase} cannot be {to} yet")
    if place == -1:
        return replace(state, phase=to, **facts)
    for name, value in facts.items():
        if getattr(state, name) != value:
            raise RefusedError("conflict", f"a round that is {state.phase} was told another {name}")
    return state


def _check_release(
    state: RoundState, reports: Mapping[str, tuple[str, str]], parties: int, me: str
) -> None:
    """Everybody aggregated, over the same slots, and this party's share is the one on its disk."""
    if state.phase not in (Phase.AGGREGATED, Phase.RELEASED):
        raise RefusedError("state", f"a round that is {state.phase} cannot be released")
    if len(reports) != parties:
        raise RefusedError("state", f"only {len(reports)} of {parties} parties have aggregated")
    if any(agreed != state.agreed for agreed, _ in reports.values()):
        raise RefusedError("conflict", "the parties aggregated different slots")
    if reports.get(me) != (state.agreed, state.share):
        raise RefusedError("conflict", "the release names another share than this party's")
