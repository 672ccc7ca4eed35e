"""DPA's settings, how each is chosen from public facts, and the session they come to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from tacit.errors import PlanError
from tacit.graph import PublicFacts
from tacit.multiparty.ring import check_sharing
from tacit.privacy.split import gaussian_mu

Preset = Literal["tacit", "paper"]


@dataclass(frozen=True)
class DpaSettings:
    """Everything about DPA but its unit and budget.

    Attributes:
        preset: ``paper`` for the paper's protocol; ``tacit`` as we found best.
        answer: Who computes a prediction: the ``user`` on its own device, from its own record and
            what was released, for itself; or the ``server``, from what was released, for anyone.
        profile: Whether the sum of label times features over all users is released (one key).
        feature_layers: l_h, noisy sums of features over lists; 0 for none.
        label_layers: l_y, noisy sums of labels over lists.
        width: Columns that features are reduced to; 0 keeps all.
        projection: How: a public ``gaussian`` matrix, or random ``columns`` (the paper).
        parties: m.
        shares: t.
        colluding: c.
        longest: K, to which a list is cut for sending. The paper preset cuts to D instead.
        clip_rate: The paper's: D is this quantile of the degrees, which reads the graph. 0 takes
            the unit's ``max_degree``.
        clip: Whose lists are cut: those of users who send, or (as the paper's tables need) receive.
        self_link: Whether a user's row also goes to its own key.
        scaling: Degree by which the paper's layers from 2 on are divided.
        with_val: Whether validation users send their labels too.
        distribution: Of the parties' noise.
        dummy_rate: r of the paper's geometric dummies.
        feature_share: Share of the budget for features (and profile); in the paper, of epsilon.
        summary_share: Share for the summary that users' answers are learnt from.
        count_share: Share for the numbers of pairs under a key.
        speed: ``totals`` takes every sum once; ``every`` generates every share.
        fraction_bits: Of the grid.
        own_list: Whether an answer reads the user's own list; set by ``answer``.
        input_length: Root mean square length to which rows of feature sums are scaled, all by one
            number, before the MLP reads them.
        hidden: Width of the MLP.
        layers: Linear layers of the MLP.
        dropout: Of the MLP.
        epochs: Of the MLP.
        batch: Rows per step of the MLP.
        learning_rate: Of the MLP.
        weight_decay: Of the MLP.
    """

    preset: Preset
    answer: Literal["user", "server"]
    profile: bool
    feature_layers: int
    label_layers: int
    width: int
    projection: Literal["gaussian", "columns"]
    parties: int
    shares: int
    colluding: int
    longest: int
    clip_rate: float
    clip: Literal["sent", "received"]
    self_link: bool
    scaling: Literal["raw", "clipped", "dummy"]
    with_val: bool
    distribution: Literal["gaussian", "laplace"]
    dummy_rate: float
    feature_share: float
    summary_share: float
    count_share: float
    speed: Literal["totals", "every"]
    fraction_bits: int
    own_list: bool
    input_length: float
    hidden: int
    layers: int
    dropout: float
    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float

    def __post_init__(self) -> None:
        check_sharing(self.parties, self.shares, self.colluding)
        for name in ("label_layers", "longest", "hidden", "layers", "epochs", "batch"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("feature_layers", "width"):
            if getattr(self, name) < 0:
                raise PlanError(f"{name} cannot be {getattr(self, name)}")
        for name in ("feature_share", "summary_share", "count_share"):
            if not 0 <= getattr(self, name) < 1:
                raise PlanError(f"{name} must lie in [0, 1), not {getattr(self, name)}")
        if not 0 < self.dummy_rate < 1 or not 0 <= self.clip_rate <= 1:
            raise PlanError("dummy_rate and clip_rate are shares between 0 and 1")
        if self.answer == "server" and not self.feature_layers:
            raise PlanError(
                "the server's answer needs features",
                why="its network reads released feature sums and nothing else",
                remedy='set feature_layers=1, or answer="user"',
            )


_SHARED: dict[str, Any] = {
    "parties": 3,
    "shares": 2,
    "distribution": "gaussian",
    "dummy_rate": 0.5,
    "speed": "totals",
    "fraction_bits": 14,
    "hidden": 64,
    "layers": 2,
    "dropout": 0.5,
    "epochs": 200,
    "batch": 256,
    "learning_rate": 0.0005,
    "weight_decay": 0.01,
    "scaling": "dummy",
    "longest": 16,
}
_PAPER: dict[str, Any] = {
    **_SHARED,
    "preset": "paper",
    "colluding": 0,
    "answer": "server",
    "profile": False,
    "width": 0,
    "projection": "columns",
    "clip": "received",
    "self_link": True,
    "with_val": True,
    "feature_share": 0.05,
    "summary_share": 0.0,
    "count_share": 0.05,
}
_TACIT: dict[str, Any] = {
    **_SHARED,
    "preset": "tacit",
    "colluding": 1,
    "answer": "user",
    "profile": True,
    "feature_layers": 0,
    "label_layers": 1,
    "width": 256,
    "projection": "gaussian",
    "clip_rate": 0.0,
    "clip": "sent",
    "self_link": False,
    "with_val": False,
    "summary_share": 0.1,
    "count_share": 0.05,
}
_SMALL = 10_000  # users; the paper's guideline (Table 10) tells small from large data sets
_LEAST, _MOST = 0.05, 0.2
_CONTRAST = 0.05


def choose(
    facts: PublicFacts,
    epsilon: float,
    delta: float,
    *,
    preset: Preset,
    sound: bool,
    overrides: Mapping[str, Any],
) -> DpaSettings:
    """Settings for a budget: the user's where given, else by public facts.

    Args:
        facts: The public facts.
        epsilon: The budget.
        delta: Its delta.
        preset: ``tacit`` or ``paper``.
        sound: Whether every layer will have noise.
        overrides: The user's choices by field name.
    """
    if preset not in ("tacit", "paper"):
        raise PlanError(f"unknown preset {preset!r}", remedy="use tacit or paper")
    check_names(overrides)
    if preset == "paper":
        values = dict(_PAPER)
        layers, clip_rate = ((10, 8), 0.8) if facts.nodes < _SMALL else ((6, 4), 0.6)
        if sound:
            # Noise in every layer grows with their number, and D must be public.
            layers, clip_rate = (1, 1), 0.0
            values.update(clip="sent", self_link=False, with_val=False, colluding=1)
        values["feature_layers"], values["label_layers"] = layers
        values["clip_rate"] = clip_rate
    else:
        values = dict(_TACIT)
        width = overrides.get("width", values["width"])
        values["feature_share"] = _feature_share(facts, epsilon, delta, width)
    # The more users there are to learn from, the closer the network may follow them.
    values["input_length"] = round(facts.train_nodes / 600, 1)
    values = {**values, **overrides}
    values["own_list"] = values["answer"] == "user"
    settings = DpaSettings(**values)
    if sound:
        _check_sound(settings)
    return settings


def _feature_share(facts: PublicFacts, epsilon: float, delta: float, width: int) -> float:
    """Share of the budget at which the noise on a class profile is as long as what tells classes.

    A profile sums about ``train_nodes / classes`` unit rows whose class means differ by about a
    twentieth of their length (of counts and one-hot features, everywhere we looked); its noise has
    the length ``std sqrt(width)``. Numbers that are public before anybody is asked.
    """
    if math.isinf(epsilon):
        return _LEAST
    columns = min(width or facts.features, facts.features)
    signal = _CONTRAST * facts.train_nodes / facts.classes
    noise = math.sqrt(columns) / gaussian_mu(epsilon, delta)
    return min(max((noise / signal) ** 2, _LEAST), _MOST)


def check_names(overrides: Mapping[str, Any]) -> None:
    """Refuse a setting that does not exist."""
    known = {field.name for field in fields(DpaSettings)} - {"preset"}
    if unknown := sorted(set(overrides) - known):
        raise PlanError(
            f"DPA has no setting {unknown[0]!r}", remedy=f"choose from {', '.join(sorted(known))}"
        )


def _check_sound(settings: DpaSettings) -> None:
    if settings.clip_rate > 0:
        raise PlanError(
            "a clipping rate is not covered by sound accounting",
            why="a quantile of the degrees reads every record without noise",
            remedy="set max_degree, a public number",
        )
    if settings.clip == "received":
        raise PlanError(
            "cutting the lists of those who receive bounds nobody's record",
            why="a user is then in as many sums as there are users who list it",
            remedy='leave clip="sent"',
        )
    if settings.distribution != "gaussian":
        raise PlanError(
            "distributed Laplace noise is not covered by sound accounting",
            why="its common factor is known to every party (proofs/dpa.md)",
            remedy='leave distribution="gaussian"',
        )
    if settings.self_link:
        raise PlanError(
            "a link to oneself is not covered by the bound on a list's weight",
            remedy="leave self_link out",
        )
    shares = settings.summary_share + settings.count_share + settings.feature_share
    if shares >= 1:
        raise PlanError("the shares leave nothing for labels", remedy="make them smaller")
