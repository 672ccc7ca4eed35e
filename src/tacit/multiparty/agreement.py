"""What all roles of a session agree on before it starts: public numbers, and their digest.

Every message carries the digest, so a role that was restarted with another configuration, or a
message of another session, is refused and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

from tacit.errors import PlanError, SessionError
from tacit.multiparty.ring import Ring
from tacit.multiparty.session import Round, SessionPlan

REGISTRATION = 0
"""The round in which slots are registered; the rounds that carry values count from 1."""

PAD = 0xFFFFFFFF
"""The key of a slot that only fills an upload up to the constant count."""

EVERYONE = 0xFFFFFFFE
"""The key of the one slot of each user whose values go to everyone's sum."""

COUNTS = "counts"
"""Under which the cost of the numbers of slots is named."""


@dataclass(frozen=True)
class Agreement:
    """A session's public parameters.

    Attributes:
        session: Its name, 32 hexadecimal digits drawn at random.
        plan: What it does.
        most: Where a user's number of dummies is cut off, so that uploads have a constant size.
        seconds: How long a round stays open or may stand still; it closes early when every user
            has been heard.
        events: What each round costs, by its name, and the numbers of slots under ``counts``; as
            :func:`tacit.privacy.events.event_to_json` writes it.
        cut_seed: Of the cut of lists that are too long; public.
        leave_out: Whether a round goes on without users who registered and then missed it. Their
            slots go missing together, so every party sees which of its slots belong together
            (proofs/dpa.md, "Between processes"); by default the session is aborted instead.
    """

    session: str
    plan: SessionPlan
    most: int
    seconds: float = 600.0
    events: Mapping[str, Any] = field(default_factory=dict)
    cut_seed: int = 0
    leave_out: bool = False

    def __post_init__(self) -> None:
        plan = self.plan
        names = [turn.name for turn in plan.rounds]
        if len(set(names)) < len(names) or not len(names) <= 1000:
            raise SessionError("the rounds of a session need different names, at most 1,000")
        if not all(1 <= turn.columns <= 1 << 20 and turn.noise_std >= 0 for turn in plan.rounds):
            raise SessionError("a round needs columns, at most 2^20, and no negative noise")
        if not (1 <= plan.users < 2**31 and 0 <= plan.longest <= 1 << 20 and self.seconds > 0):
            raise SessionError("a session needs users, a bound on lists, and time")
        if not 0 <= self.most <= 1 << 24 or self.slots < 1:
            raise SessionError("a session needs at least one slot per user")
        if plan.noise != "gaussian":
            raise SessionError(
                "parties draw Gaussian noise only",
                why="distributed Laplace noise has a factor that all of them know (proofs/dpa.md)",
                remedy="plan the session with distribution=gaussian",
            )
        loudest = max(plan.party_std(turn) for turn in plan.rounds) * plan.parties**0.5
        if not plan.ring.holds(plan.users, plan.fraction_bits, loudest):
            raise SessionError(
                f"a sum over {plan.users:,} users does not fit {plan.bits} bits",
                remedy="use 64 bits, or fewer fraction bits",
            )

    @property
    def ring(self) -> Ring:
        """The ring of the shares."""
        return self.plan.ring

    @property
    def listed(self) -> int:
        """Slots per user for lists: links, the self-link, dummies and padding together."""
        if not any(turn.to == "lists" for turn in self.plan.rounds):
            return 0
        return self.plan.longest + int(self.plan.self_link) + self.most

    @property
    def slots(self) -> int:
        """Slots of every user; the last one goes to everyone's sum, where a round has one."""
        return self.listed + any(turn.to == "everyone" for turn in self.plan.rounds)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all of it."""
        return sha256(self.to_json().encode()).digest()

    def round(self, number: int) -> Round:
        """The round of a number counted from 1.

        Raises:
            SessionError: There is none.
        """
        if not 1 <= number <= len(self.plan.rounds):
            raise SessionError(f"this session has no round {number}")
        return self.plan.rounds[number - 1]

    def row_bytes(self, number: int) -> int:
        """Bytes of one sealed row in a round, the same for every slot."""
        from tacit.multiparty.sealing import SLOT_OVERHEAD, TAG_BYTES

        if number == REGISTRATION:
            return SLOT_OVERHEAD + self.plan.shares
        return self.round(number).columns * self.ring.word_bytes + TAG_BYTES

    def rows(self, number: int) -> int:
        """Rows of one user's upload in a round: a slot is registered at t parties."""
        if number == REGISTRATION:
            return self.slots * self.plan.shares
        return 1 if self.round(number).to == "everyone" else self.listed

    def shape(self, number: int) -> tuple[int, int]:
        """Keys and columns of a round's totals."""
        return self.plan.shape(self.round(number))

    @property
    def shows_whole(self) -> bool:
        """Whether users are given whole releases, because their answers read them at home.

        Asking for the rows of one's list would say who is on it.
        """
        return any(turn.content == "summary" for turn in self.plan.rounds)

    def to_json(self) -> str:
        """One line, the same for equal agreements."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Agreement:
        """Read one.

        Raises:
            SessionError: It is not an agreement.
        """
        try:
            data = json.loads(text)
            data["plan"] = SessionPlan.from_dict(data["plan"])
            return cls(**data)
        except (ValueError, TypeError, KeyError, AttributeError, PlanError) as error:
            raise SessionError(
                "this is not the agreement of a session",
                why=str(error),
                remedy="copy session.json from the coordinator",
            ) from error


def event_of(agreement: Agreement, number: int) -> tuple[str, Mapping[str, Any] | None]:
    """What a round is called and costs; round 0 are the numbers of slots."""
    name = COUNTS if number == REGISTRATION else agreement.round(number).name
    return name, agreement.events.get(name)
