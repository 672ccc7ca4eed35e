"""Settings of the methods that learn on a perturbed graph, and how each is chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from tacit.errors import PlanError

Preset = Literal["tacit", "paper"]
Backbone = Literal["gcn", "sage", "gat", "own"]
PRESETS, BACKBONES = ("tacit", "paper"), ("gcn", "sage", "gat", "own")


@dataclass(frozen=True)
class PerturbSettings:
    """Everything about a method on a perturbed graph but its unit and budget.

    Attributes:
        preset: ``tacit``, or ``paper`` for one hundred steps without early stopping.
        backbone: ``gcn``, ``sage``, ``gat``, or ``own`` for a module of the user's.
        layers: Layers of the backbone: how many links far a prediction reads.
        hidden: Width between layers.
        heads: Attention heads of ``gat``.
        dropout: Before each layer.
        epochs: Steps of training on the whole graph, at most.
        patience: Steps without a better validation score before training stops; 0 never.
        learning_rate: Of Adam.
        weight_decay: Of Adam.
        count_share: Share of the budget that the noisy number of links takes, where a mechanism
            needs one.
    """

    preset: Preset
    backbone: Backbone
    layers: int
    hidden: int
    heads: int
    dropout: float
    epochs: int
    patience: int
    learning_rate: float
    weight_decay: float
    count_share: float

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "epochs"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.backbone not in BACKBONES:
            raise PlanError(
                f"unknown backbone {self.backbone!r}", remedy=f"use {', '.join(BACKBONES)}"
            )
        if self.backbone == "gat" and self.layers > 1 and self.hidden % self.heads:
            raise PlanError(
                f"{self.heads} heads cannot share a width of {self.hidden}",
                remedy="let hidden be a multiple of heads",
            )
        if not 0 < self.count_share < 1:
            raise PlanError(f"count_share must lie between 0 and 1, not {self.count_share}")
        if not (0 <= self.dropout < 1 and self.patience >= 0 and math.isfinite(self.learning_rate)):
            raise PlanError("dropout, patience or learning_rate is out of range")


def choose(
    method: str,
    defaults: Mapping[str, Any],
    *,
    preset: Preset,
    overrides: Mapping[str, Any],
) -> PerturbSettings:
    """The user's settings where given, else the method's, else those of all.

    Args:
        method: The method's name, for errors.
        defaults: What differs for this method.
        preset: ``tacit`` or ``paper``.
        overrides: The user's choices by field name.

    Returns:
        Settings with nothing left open.
    """
    if preset not in PRESETS:
        raise PlanError(f"unknown preset {preset!r}", remedy="use tacit or paper")
    known = {field.name for field in fields(PerturbSettings)} - {"preset"}
    if unknown := sorted(set(overrides) - known):
        raise PlanError(
            f"{method} has no setting {unknown[0]!r}",
            remedy=f"choose from {', '.join(sorted(known))}",
        )
    values: dict[str, Any] = {
        "preset": preset,
        "backbone": "gcn",
        "layers": 2,
        "hidden": 64,
        "heads": 8,
        "dropout": 0.5,
        "epochs": 200,
        "patience": 30,
        "learning_rate": 0.01,
        "weight_decay": 5e-4,
        "count_share": 0.01,
    }
    paper = {"epochs": 100, "patience": 0, "weight_decay": 0.0} if preset == "paper" else {}
    return PerturbSettings(**{**values, **defaults, **paper, **overrides})
