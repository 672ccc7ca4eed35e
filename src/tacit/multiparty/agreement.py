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

from tacit.errors import SessionError
from tacit.multiparty.ring import Ring, check_sharing

REGISTRATION = 0
"""The round in which slots are registered; the rounds that carry values count from 1."""

PAD = 0xFFFFFFFF
"""The key of a slot that only fills an upload up to the constant count."""


@dataclass(frozen=True)
class Round:
    """One exchange of values.

    Attributes:
        name: Such as ``features-1``.
        width: Words per row.
        std: Standard deviation of one party's noise, where a row has norm 1; 0 draws none, and
            then the round promises nothing (proofs/dpa.md, Theorem 6).
        source: The earlier round whose released rows are the values; empty for the record itself.
        event: What the round costs, as :func:`tacit.privacy.events.event_to_json` writes it.
    """

    name: str
    width: int
    std: float
    source: str = ""
    event: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Dummies:
    """How many empty slots a user makes under its own key: a public distribution.

    Attributes:
        kind: ``gaussian``: ``max(0, shift + round(N(0, std²)))``; ``geometric``: failures before
            a success of probability ``rate``, the paper's.
        std: Of the Gaussian.
        shift: Of the Gaussian.
        rate: Of the geometric.
        most: Where the count is cut off, so that uploads have a constant size.
    """

    kind: str = "gaussian"
    std: float = 0.0
    shift: int = 0
    rate: float = 0.5
    most: int = 0


@dataclass(frozen=True)
class Agreement:
    """A session's public parameters.

    Attributes:
        session: Its name, 32 hexadecimal digits drawn at random.
        users: Number of users; user u's rows are summed under key u.
        links: Most links of a list: longer lists are cut before they reach this room.
        parties: m.
        shares: t.
        colluding: c.
        bits: Of the ring.
        fraction_bits: Of the grid.
        rounds: What is exchanged, in order.
        dummies: How many empty slots there are.
        seconds: How long each round stays open; it closes early when every user has been heard.
        event: What the numbers of slots cost, charged once.
    """

    session: str
    users: int
    links: int
    parties: int
    shares: int
    colluding: int
    bits: int
    fraction_bits: int
    rounds: tuple[Round, ...]
    dummies: Dummies = field(default_factory=Dummies)
    seconds: float = 600.0
    event: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_sharing(self.parties, self.shares, self.colluding)
        names = [step.name for step in self.rounds]
        known = all(
            step.source in ("", *names[:place]) and 1 <= step.width <= 1 << 20 and step.std >= 0
            for place, step in enumerate(self.rounds)
        )
        if not self.rounds or len(set(names)) < len(names) or not known:
            raise SessionError(
                "the rounds of a session need different names, a width, and earlier sources"
            )
        if len(self.rounds) > 1000:
            raise SessionError("a session has at most 1,000 rounds")
        if not (1 <= self.users < 2**31 and 0 <= self.links <= 1 << 20 and self.seconds > 0):
            raise SessionError("a session needs users, a bound on links, and time")
        if self.dummies.kind not in ("gaussian", "geometric") or self.slots < 1:
            raise SessionError("dummies are gaussian or geometric, and there is at least one slot")
        largest = max((step.std for step in self.rounds), default=0.0) * self.parties**0.5
        if not self.ring.holds(self.users, self.fraction_bits, largest):
            raise SessionError(
                f"a sum over {self.users:,} users does not fit {self.bits} bits",
                remedy="use 64 bits, or fewer fraction bits",
            )

    @property
    def ring(self) -> Ring:
        """The ring of the shares."""
        return Ring(self.bits)

    @property
    def slots(self) -> int:
        """Slots of every upload: links, dummies and padding together."""
        return self.links + self.dummies.most

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all of it."""
        return sha256(self.to_json().encode()).digest()

    def round(self, number: int) -> Round:
        """The round of a number counted from 1.

        Raises:
            SessionError: There is none.
        """
        if not 1 <= number <= len(self.rounds):
            raise SessionError(f"this session has no round {number}")
        return self.rounds[number - 1]

    def row_bytes(self, number: int) -> int:
        """Bytes of one sealed row in a round, the same for every slot."""
        from tacit.multiparty.sealing import SLOT_OVERHEAD, TAG_BYTES

        if number == REGISTRATION:
            return SLOT_OVERHEAD + self.shares
        return self.round(number).width * self.ring.word_bytes + TAG_BYTES

    def rows(self, number: int) -> int:
        """Rows of one user's upload in a round: a slot is registered at t parties."""
        return self.slots * (self.shares if number == REGISTRATION else 1)

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
            data["rounds"] = tuple(Round(**step) for step in data["rounds"])
            data["dummies"] = Dummies(**data["dummies"])
            return cls(**data)
        except (ValueError, TypeError, KeyError) as error:
            raise SessionError(
                "this is not the agreement of a session",
                why=str(error),
                remedy="copy session.json from the coordinator",
            ) from error
