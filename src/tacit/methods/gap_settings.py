"""GAP's settings, and how each is chosen from public facts when the user does not say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from tacit.errors import PlanError
from tacit.graph import PublicFacts
from tacit.privacy.units import KNeighbors, Node, Unit

Preset = Literal["tacit", "paper"]
Carry = Literal["features", "labels", "both", "classes"]


@dataclass(frozen=True)
class GapSettings:
    """Everything about GAP but its unit and budget.

    Attributes:
        preset: ``paper`` builds the network as the paper does; ``tacit`` as we found best.
        hops: K, the number of noisy neighbour sums.
        carry: What a row of hop 1 holds: the encoder's ``features`` (the paper); ``labels``, unit
            one-hot rows of training nodes and zeros elsewhere; ``both``, the two side by side; or
            ``classes``, labels of training nodes and the encoder's class posterior elsewhere.
        encoder: Whether features pass the encoder before the classifier and the hops see them.
        self_features: Whether the classifier sees a node's own raw features beside the hops.
        own_list: Whether it sees what the node's own out-list points to among the released sums
            (``Node(links="own")`` only: the list is then part of the node's own record).
        bound: How one own list is bounded: ``scale`` weighs it, ``sample`` cuts it to D entries.
        combine: COMBINE of the hops.
        hidden: Width of hidden layers.
        encoder_layers: Layers of the encoder before its linear head.
        base_layers: Layers of each hop's base network.
        head_layers: Layers after COMBINE.
        dropout: Of hidden layers.
        batch_norm: Whether hidden layers use batch norm; never where DP-SGD trains them.
        folds: Networks over which encoder posteriors are cross-fitted; 1 for none.
        epochs: Passes of plain training, at most.
        patience: Epochs without a better validation score before plain training stops; 0 never.
        learning_rate: Of plain training.
        weight_decay: Of plain training.
        sampling_rate: Poisson rate of DP-SGD.
        steps: Steps of DP-SGD.
        clip: Gradient norm bound of DP-SGD.
        private_learning_rate: Of DP-SGD.
        average_last: Fraction of the last steps of DP-SGD whose weights are averaged.
        aggregation_share: Share of the budget (of squared Gaussian signal) for the hops; 0 gives
            every stage the same noise multiplier, as the paper does.
        encoder_share: Share for the encoder.
    """

    preset: Preset
    hops: int
    carry: Carry
    encoder: bool
    self_features: bool
    own_list: bool
    bound: Literal["scale", "sample"]
    combine: Literal["concat", "sum", "attention"]
    hidden: int
    encoder_layers: int
    base_layers: int
    head_layers: int
    dropout: float
    batch_norm: bool
    folds: int
    epochs: int
    patience: int
    learning_rate: float
    weight_decay: float
    sampling_rate: float
    steps: int
    clip: float
    private_learning_rate: float
    average_last: float
    aggregation_share: float
    encoder_share: float

    def __post_init__(self) -> None:
        for name in ("hops", "hidden", "encoder_layers", "base_layers", "head_layers", "folds"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("aggregation_share", "encoder_share"):
            if not 0 <= getattr(self, name) < 1:
                raise PlanError(f"{name} must lie in [0, 1), not {getattr(self, name)}")
        if self.aggregation_share + self.encoder_share >= 1:
            raise PlanError(
                "aggregation_share and encoder_share leave nothing for the classifier",
                remedy="let them add up to less than 1",
            )
        if self.carry not in ("features", "labels", "both", "classes"):
            raise PlanError(
                f"unknown carry {self.carry!r}", remedy="features, labels, both, classes"
            )
        if self.carry == "classes" and not self.encoder:
            raise PlanError(
                "carry='classes' needs the encoder",
                why="nodes without a label carry the encoder's posterior",
                remedy="set encoder=true, or carry='labels'",
            )


_NETWORK: dict[str, Any] = {
    "combine": "concat",
    "encoder_layers": 2,
    "base_layers": 1,
    "head_layers": 1,
    "weight_decay": 0.0,
    "clip": 1.0,
    "learning_rate": 0.01,
    "private_learning_rate": 0.01,
}
_PAPER: dict[str, Any] = {
    **_NETWORK,
    "preset": "paper",
    "hops": 2,
    "carry": "features",
    "encoder": True,
    "self_features": False,
    "own_list": False,
    "bound": "sample",
    "hidden": 16,
    "dropout": 0.0,
    "folds": 1,
    "epochs": 100,
    "patience": 0,
    "average_last": 0.0,
    "aggregation_share": 0.0,
    "encoder_share": 0.0,
}
_EDGE: dict[str, Any] = {
    **_NETWORK,
    "preset": "tacit",
    "carry": "classes",
    "encoder": True,
    "self_features": True,
    "own_list": False,
    "bound": "scale",
    "hidden": 64,
    "dropout": 0.5,
    "folds": 3,
    "epochs": 100,
    "patience": 20,
    "weight_decay": 1e-4,
    "average_last": 0.0,
    "aggregation_share": 0.0,
    "encoder_share": 0.0,
}
_NODE: dict[str, Any] = {
    **_NETWORK,
    "preset": "tacit",
    "hops": 1,
    "carry": "labels",
    "encoder": False,
    "self_features": True,
    "own_list": True,
    "bound": "scale",
    "hidden": 16,
    "dropout": 0.0,
    "folds": 1,
    "epochs": 100,
    "patience": 0,
    "private_learning_rate": 0.02,
    "average_last": 0.5,
    "aggregation_share": 0.5,
    "encoder_share": 0.0,
}
_PAPER_BATCH, _PAPER_EPOCHS = 256, 10


def protects_nodes(unit: Unit, epsilon: float) -> bool:
    """Whether features and labels are protected, so that training needs DP-SGD."""
    return isinstance(unit, Node | KNeighbors) and math.isfinite(epsilon)


def choose(
    unit: Unit,
    facts: PublicFacts,
    epsilon: float,
    *,
    preset: Preset,
    overrides: Mapping[str, Any],
) -> GapSettings:
    """Settings for a unit and budget: the user's where given, else by public facts.

    Args:
        unit: What one individual is.
        facts: The public facts.
        epsilon: The budget; infinity asks for plain training whatever the unit.
        preset: ``tacit`` or ``paper``.
        overrides: The user's choices by field name.

    Returns:
        Settings with nothing left open.
    """
    if preset not in ("tacit", "paper"):
        raise PlanError(f"unknown preset {preset!r}", remedy="use tacit or paper")
    check_names(overrides)
    nodes = protects_nodes(unit, epsilon)
    values = dict(_PAPER if preset == "paper" else _NODE if nodes else _EDGE)
    values["batch_norm"] = not nodes
    if preset == "paper":
        values["sampling_rate"] = min(1.0, _PAPER_BATCH / facts.train_nodes)
        values["steps"] = _PAPER_EPOCHS * math.ceil(facts.train_nodes / _PAPER_BATCH)
    else:
        # Replacing a record in a Poisson sample has no proved subsampling bound; all rows do.
        values["sampling_rate"] = 1.0 if unit.relation == "replace" else 0.25
        values["steps"] = 80
    if preset == "tacit" and not nodes:
        # Without noise a second hop is free signal; with noise it halves the budget of the first.
        values["hops"] = 2 if math.isinf(epsilon) else 1
    values["own_list"] = values["own_list"] and isinstance(unit, Node) and unit.links == "own"
    carry = overrides.get("carry", values["carry"])
    if nodes and carry != "labels":
        values["encoder"] = True
        values["encoder_share"] = values["encoder_share"] or (0.2 if preset == "tacit" else 0.0)
    settings = GapSettings(**{**values, **overrides})
    _check(settings, unit, nodes)
    return settings


def check_names(overrides: Mapping[str, Any]) -> None:
    """Refuse a setting that does not exist."""
    known = {field.name for field in fields(GapSettings)} - {"preset"}
    unknown = sorted(set(overrides) - known)
    if unknown:
        raise PlanError(
            f"GAP has no setting {unknown[0]!r}", remedy=f"choose from {', '.join(sorted(known))}"
        )


def settings_from_dict(data: Mapping[str, Any]) -> GapSettings:
    """The settings that ``dataclasses.asdict`` wrote."""
    return GapSettings(**data)


def _check(settings: GapSettings, unit: Unit, nodes: bool) -> None:
    if settings.own_list and not (nodes and isinstance(unit, Node) and unit.links == "own"):
        raise PlanError(
            f"own_list is not covered under {unit.name}",
            why="a prediction that reads a node's own list would show that list's links, which "
            "belong to the node alone only under Node(links='own')",
            remedy="leave own_list out",
        )
    if nodes and settings.batch_norm:
        raise PlanError(
            "batch norm is not covered under node units",
            why="it mixes the records of a batch, so that no record's gradient is its own",
            remedy="leave batch_norm out",
        )
    if nodes and unit.relation == "replace" and settings.sampling_rate < 1:
        raise PlanError(
            "sampled batches are not covered under the replace relation",
            why="the subsampling bound is proved for adding or removing a record",
            remedy="leave sampling_rate out (all records take part), or use add-remove",
        )
    if nodes and settings.folds > 1:
        raise PlanError(
            "cross-fitting is not covered under node units",
            why="every fold's encoder would have to be charged",
            remedy="leave folds out",
        )


def describe(settings: GapSettings) -> dict[str, Any]:
    """Plain data."""
    return asdict(settings)
