"""What one session does, in public numbers: its rounds, their noise, dummies and parties.

A :class:`SessionPlan` is made from a privacy plan before anybody is contacted, and every role reads
it. It holds nothing private. One session is one or more *rounds*; a round is one keyed sum:

1. Every user makes one row of ``columns`` numbers from its own record and from what earlier rounds
   released (:func:`tacit.multiparty.records.make_rows`), of norm at most 1, times its weight, on
   the grid of ``fraction_bits`` (:func:`tacit.aggregate.to_grid`).
2. ``to="lists"``: the row goes to the key of every user on its own cut list; keys are 0..users-1.
   ``to="everyone"``: it goes to one public key, 0; each user has exactly one such pair, so there
   is no count to hide and no dummy. Users without anything to say send zeros.
3. Party p adds up its shares by key, adds noise of standard deviation ``party_std`` (where a row
   has norm 1) to every number, and publishes; the sum over parties is released.

The released array has the shape :meth:`SessionPlan.shape`; as real numbers it is the sum divided by
``2**fraction_bits``. See ``proofs/dpa.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Literal

from tacit.errors import PlanError
from tacit.multiparty.ring import Ring, check_sharing, party_std

Content = Literal["profile", "features", "labels", "summary"]
"""What a row says; :mod:`tacit.multiparty.records` makes it."""

To = Literal["lists", "everyone"]


@dataclass(frozen=True)
class Round:
    """One keyed sum.

    Attributes:
        content: What a row says.
        layer: From 1; layer l >= 2 starts from what layer l-1 released.
        to: Whose keys a row goes to.
        columns: Width of a row.
        noise_std: Of the noise that the honest parties make together, where a row has norm 1;
            0 for none (the paper's later layers).
        normalise: Whether a row of layer 2 and up is scaled to unit length (sound) or times the
            sender's scaling factor (the paper).
    """

    content: Content
    layer: int
    to: To
    columns: int
    noise_std: float
    normalise: bool = True

    @property
    def name(self) -> str:
        """``labels.1`` and so on: the key of what was released."""
        return f"{self.content}.{self.layer}"


@dataclass(frozen=True)
class Dummies:
    """How many pairs of value zero a user makes under its own key; drawn once per session.

    ``gaussian``: ``max(0, shift + round(N(0, std^2)))`` (sound: proofs/dpa.md, Theorem 4).
    ``geometric``: ``shift`` plus the failures before a success of probability ``rate`` (the paper).

    Attributes:
        kind: Which distribution.
        shift: Added to every draw.
        std: Of the Gaussian.
        rate: Of the geometric distribution: r.
    """

    kind: Literal["none", "gaussian", "geometric"]
    shift: int = 0
    std: float = 0.0
    rate: float = 0.5

    @classmethod
    def hiding(cls, std: float) -> Dummies:
        """Gaussian dummies whose maximum with zero matters with probability below 2^-143."""
        return cls("gaussian", shift=ceil(14 * std), std=std)


@dataclass(frozen=True)
class SessionPlan:
    """Everything public about a session.

    Attributes:
        users: Number of users: keys 0..users-1.
        features: Width of a raw feature row.
        classes: Number of classes.
        width: Columns that feature rows are projected to; equal to ``features`` for none.
        projection: How: by a public random matrix, or by keeping random columns.
        projection_seed: Public seed of it.
        parties: m.
        shares: t.
        colluding: c.
        bits: Of the ring, 32 or 64.
        fraction_bits: Of the grid.
        longest: K, to which a list is cut for sending.
        degree: D: a list of length n has the weight ``min(1, sqrt(D/n))``; 0 for no weights.
        self_link: Whether a user's row also goes to its own key.
        scaling: Which degree the paper's layers from 2 on divide by.
        with_val: Whether validation users send their labels too.
        noise: Of the parties.
        dummies: How many.
        rounds: In the order in which they run.
    """

    users: int
    features: int
    classes: int
    width: int
    projection: Literal["gaussian", "columns"]
    projection_seed: int
    parties: int
    shares: int
    colluding: int
    bits: int
    fraction_bits: int
    longest: int
    degree: int
    self_link: bool
    scaling: Literal["raw", "clipped", "dummy"]
    with_val: bool
    noise: Literal["gaussian", "laplace"]
    dummies: Dummies
    rounds: tuple[Round, ...]

    def __post_init__(self) -> None:
        check_sharing(self.parties, self.shares, self.colluding)
        if not self.rounds:
            raise PlanError("a session without rounds releases nothing")

    @property
    def ring(self) -> Ring:
        """Where shares live."""
        return Ring(self.bits)

    def shape(self, turn: Round) -> tuple[int, int]:
        """Keys and columns of what a round releases."""
        return (self.users if turn.to == "lists" else 1, turn.columns)

    def party_std(self, turn: Round) -> float:
        """One party's noise where a row has norm 1: of variance ``noise_std^2 / (m - c)``."""
        return party_std(turn.noise_std, self.parties, self.colluding)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SessionPlan:
        """The plan that :meth:`to_dict` wrote."""
        values = dict(data)
        values["dummies"] = Dummies(**values["dummies"])
        values["rounds"] = tuple(Round(**turn) for turn in values["rounds"])
        return cls(**values)
