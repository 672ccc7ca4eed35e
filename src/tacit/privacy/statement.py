"""The privacy statement: what was promised, to whom, on what grounds, and what was not.

Its headings follow NIST SP 800-226, "Guidelines for Evaluating Differential Privacy Guarantees"
(2025). It names no legal status: whether a promise suffices for a law is for people to judge.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from decimal import ROUND_CEILING, Context
from typing import TYPE_CHECKING, Any, Literal

from tacit.errors import ReleaseError

if TYPE_CHECKING:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

_RELATIONS = {
    "add-remove": "one such unit is there or is not",
    "replace": "one such unit is exchanged for any other",
}
_ACCOUNTING = {
    "sound": "sound: every cost charged is proved for this unit and relation",
    "paper": "paper: the cost the paper claims, for reproducing its tables only",
}


@dataclass(frozen=True)
class Statement:
    """The promise that goes with a result.

    Args:
        method: Name of the method.
        unit: Name of the unit of privacy, such as ``edge``.
        relation: ``add-remove`` or ``replace``.
        unit_words: The unit as a sentence.
        epsilon: Cost by the accountant that decides; infinite for a run without noise.
        delta: The delta of both figures.
        epsilon_rdp: Cost by the Renyi accountant, the cross-check.
        accountant: Which accountants, in words.
        events: What was done to the data, one line each.
        accounting: ``sound`` or ``paper``.
        private_noise: Whether the noise came from a fresh secret key.
        noise: How the noise was made.
        trust_model: Who sees the raw data.
        assumptions: What must hold for the promise to hold.
        not_covered: What the promise does not speak of.
        theorems: On what it rests.
    """

    method: str
    unit: str
    relation: str
    unit_words: str
    epsilon: float
    delta: float
    epsilon_rdp: float
    accountant: str
    events: tuple[str, ...]
    accounting: Literal["sound", "paper"]
    private_noise: bool
    noise: str
    trust_model: str
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]
    theorems: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.relation not in _RELATIONS or self.accounting not in _ACCOUNTING:
            raise ReleaseError(
                f"a statement of relation {self.relation!r} and accounting {self.accounting!r} "
                "cannot be made"
            )
        for figure in (self.epsilon, self.epsilon_rdp):
            if not figure >= 0.0:
                raise ReleaseError(f"a statement cannot promise epsilon {figure!r}")
        if not 0.0 <= self.delta < 1.0:
            raise ReleaseError(f"a statement cannot promise delta {self.delta!r}")

    @property
    def stamp(self) -> str:
        """Why this result may not leave; empty where it may."""
        if math.isinf(self.epsilon):
            return "no privacy (epsilon is infinite)"
        if not self.private_noise:
            return "not private"
        return "paper accounting" if self.accounting == "paper" else ""

    @property
    def releasable(self) -> bool:
        """Whether the result may leave under this statement."""
        return not self.stamp

    @property
    def membership_success(self) -> float:
        """How often the best possible guess is right whether a unit is in the data, prior one half.

        Of two neighbouring inputs, chosen by a fair coin, any test names the right one with
        probability at most ``1/2 + TV/2``, and (epsilon, delta)-DP bounds the total variation by
        ``TV <= (e^eps - 1 + 2 delta) / (e^eps + 1)``: the hypothesis-testing form of Kairouz, Oh,
        Viswanath 2015 (https://arxiv.org/abs/1311.0776), proof in ``proofs/composition.md``.
        """
        shrink = math.exp(-self.epsilon)
        advantage = (1.0 - shrink + 2.0 * self.delta * shrink) / (1.0 + shrink)
        return (1.0 + min(advantage, 1.0)) / 2

    @property
    def membership_words(self) -> str:
        """What epsilon and delta mean, as one sentence without symbols."""
        subject = (
            f"Someone who knows everything except whether one unit ({self.unit}) is in the data"
            if self.relation == "add-remove"
            else f"Someone who knows everything except which of two versions of one unit "
            f"({self.unit}) is in the data"
        )
        if math.isinf(self.epsilon):
            return f"{subject} may learn it with certainty: nothing is promised."
        words = (
            f"{subject}, and holds both possibilities equally likely, guesses right "
            f"{_percent(self.membership_success)}, however they use what is released "
            "(blind guessing: 50 %)."
        )
        if not self.private_noise:
            return f"If the noise were fresh and secret, which it is not: {words}"
        if self.accounting == "paper":
            return f"By the paper's accounting, which is not proved: {words}"
        return words

    def sections(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The statement as headings with lines, in the order of NIST SP 800-226."""
        given_by = "no noise was added" if math.isinf(self.epsilon) else self.noise
        seeded = "" if self.private_noise else " (reproducible from a seed: research only)"
        return (
            ("Privacy unit", (self.unit_words, f"Neighbouring inputs: {self._relation_words()}.")),
            (
                "Privacy parameters",
                (
                    f"epsilon {_epsilon(self.epsilon)}, delta {self.delta:g}, "
                    f"per unit: {self.unit} ({self.relation})",
                    f"cross-check by Renyi accounting: epsilon {_epsilon(self.epsilon_rdp)}",
                    self.membership_words,
                ),
            ),
            ("Mechanism and events", (f"Method: {self.method}", *self.events)),
            ("Accounting", (self.accountant, _ACCOUNTING[self.accounting], *self.theorems)),
            ("Trust model", (self.trust_model,)),
            ("Assumptions", self.assumptions or ("none beyond the above",)),
            ("Implementation of noise", (given_by + seeded,)),
            ("Not covered", self.not_covered),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the derived ones; an infinite epsilon is the string ``infinity``."""
        data: dict[str, Any] = {
            key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()
        }
        # JSON has no infinity; float("infinity") reads this one in most languages.
        for key in ("epsilon", "epsilon_rdp"):
            data[key] = "infinity" if math.isinf(data[key]) else data[key]
        return data | {
            "releasable": self.releasable,
            "stamp": self.stamp,
            "membership_success": self.membership_success,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Statement:
        """Reads what :meth:`to_dict` wrote; derived values are computed anew.

        Args:
            data: All fields of a statement, no unknown ones.

        Raises:
            ReleaseError: A field is missing, unknown or of the wrong type.
        """
        derived = {"releasable", "stamp", "membership_success"}
        types = {field.name: str(field.type) for field in fields(cls)}
        if set(data) - derived != set(types):
            differing = sorted(set(types) ^ (set(data) - derived))
            raise ReleaseError(f"this is not a privacy statement: see {', '.join(differing)}")
        return cls(**{name: _typed(name, types[name], data[name]) for name in types})

    def to_json(self) -> str:
        """The statement as JSON text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Statement:
        """Reads what :meth:`to_json` wrote.

        Args:
            text: JSON text.

        Raises:
            ReleaseError: The text is not a statement.
        """
        try:
            data = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ReleaseError("this is not a privacy statement", why=str(error)) from error
        if not isinstance(data, dict):
            raise ReleaseError("this is not a privacy statement")
        return cls.from_dict(data)

    def to_markdown(self) -> str:
        """The statement as Markdown, a section of a model card."""
        lines = ["# Privacy statement", ""]
        if self.stamp:
            lines += [f"> **Stamped: {_escaped(self.stamp)}.** Do not release this result.", ""]
        for heading, items in self.sections():
            lines += [f"## {heading}", ""]
            lines += [f"- {_escaped(item)}" for item in items] + [""]
        return "\n".join(lines)

    def panel(self) -> Panel:
        """The statement for a terminal."""
        from rich import box
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=False, padding=(0, 1, 1, 0), expand=True)
        table.add_column(style="bold", width=14)
        table.add_column(ratio=1, overflow="fold")
        for heading, items in self.sections():
            table.add_row(Text(heading), _bullets(items))
        parts: list[Text | Table] = [table]
        if self.stamp:
            parts.insert(0, Text(f"STAMPED: {self.stamp}. Do not release.\n", style="bold red"))
        return Panel(
            Group(*parts),
            title=Text(f"Privacy statement: {self.method}"),
            box=box.ROUNDED,
            border_style="red" if self.stamp else "green",
            padding=(1, 2, 0, 2),
        )

    def __str__(self) -> str:
        stamp = f" [{self.stamp}]" if self.stamp else ""
        return (
            f"{self.method}: epsilon {_epsilon(self.epsilon)}, delta {self.delta:g}, per unit "
            f"{self.unit} ({self.relation}), {self.accounting} accounting{stamp}. "
            f"{self.membership_words}"
        )

    def _relation_words(self) -> str:
        return f"{_RELATIONS[self.relation]} ({self.relation})"


def _epsilon(value: float) -> str:
    """Four digits, rounded up: a statement may not promise more than was computed."""
    if math.isinf(value):
        return "none (no noise)"
    if value == 0.0:
        return "0"
    exact = Context(prec=4, rounding=ROUND_CEILING).create_decimal(repr(value))
    return f"{float(exact):.4g}"


def _percent(success: float) -> str:
    """A success rate, rounded up, with as many digits as keep it apart from certainty."""
    for digits in (1, 2, 3):
        shown = math.ceil(success * 100 * 10**digits - 1e-9) / 10**digits
        if shown < 100.0:
            return f"at most {shown:g} % of the time"
    return "practically always"


def _escaped(text: str) -> str:
    """One line of Markdown that shows the characters given."""
    flat = " ".join(text.split())
    for mark in "\\`*_[]<>#|":
        flat = flat.replace(mark, "\\" + mark)
    return flat


def _bullets(items: tuple[str, ...]) -> Text | Table:
    from rich.table import Table
    from rich.text import Text

    if len(items) == 1:
        return Text(items[0])
    rows = Table(box=None, show_header=False, padding=(0, 1, 0, 0), expand=True)
    rows.add_column(width=1)
    rows.add_column(ratio=1, overflow="fold")
    for item in items:
        rows.add_row("·", Text(item))
    return rows


def _typed(name: str, kind: str, value: object) -> Any:
    if kind == "float":
        if value == "infinity":
            return math.inf
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if good and isinstance(value, int | float):
            return float(value)
    elif kind == "bool":
        good = isinstance(value, bool)
    elif kind.startswith("tuple"):
        good = isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)
        if good and isinstance(value, list | tuple):
            return tuple(value)
    else:
        good = isinstance(value, str)
    if not good:
        raise ReleaseError(f"this is not a privacy statement: {name} cannot be {value!r}")
    return value
