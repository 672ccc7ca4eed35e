"""DPDGC's settings, and how each is chosen from public facts when the user does not say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from tacit.aggregate.list_sums import BLOCK, weight_slack
from tacit.errors import PlanError, UnitError
from tacit.graph import PublicFacts
from tacit.privacy.list_sums import list_sums
from tacit.privacy.sensitivity import Sensitivity
from tacit.privacy.split import gaussian_mu
from tacit.privacy.units import Edge, KNeighbors, Node, Unit

Preset = Literal["tacit", "paper"]
Embedding = Literal["auto", "trained", "sketch", "labels", "classes", "both", "none"]
EMBEDDINGS: tuple[str, ...] = ("trained", "sketch", "labels", "classes", "both", "none")
PAPER_DEGREE = 100


@dataclass(frozen=True)
class DpdgcSettings:
    """Everything about DPDGC but its unit and budget.

    Attributes:
        preset: ``paper`` builds the network as the paper does; ``tacit`` as we found best.
        embedding: What a row of W is. ``trained``: learnt from lists and labels (the paper).
            ``sketch``: public random signs. ``labels``: one-hot labels of training nodes.
            ``classes``: labels of training nodes, an encoder's posterior elsewhere. ``both``:
            classes and a sketch. ``none``: links are not read. ``auto`` picks one and is never
            stored.
        width: Columns of a sketch or of a trained W.
        row_norm: c, the norm of every row of a trained W.
        sketch_seed: The public seed of the sketch.
        limit: D, the squared norm that one label may have in all lists together (``labels`` under
            ``KNeighbors``).
        hops: How often classes are summed, each time with noise.
        self_features: Whether the classifier reads a node's own features.
        hidden: Width of hidden layers.
        encoder_layers: Layers of the encoder before its linear head.
        base_layers: Layers on each input of the joint head.
        head_layers: Layers after they are joined.
        dropout: Of hidden layers.
        batch_norm: Whether hidden layers use batch norm; never where DP-SGD trains them.
        folds: Networks over which encoder posteriors are cross-fitted.
        epochs: Passes of plain training, at most.
        patience: Epochs without a better validation score before plain training stops; 0 never.
        learning_rate: Of plain training.
        weight_decay: Of plain training.
        sampling_rate: Poisson rate of DP-SGD.
        steps: Steps of DP-SGD.
        clip: Gradient norm bound of DP-SGD.
        private_learning_rate: Of DP-SGD.
        average_last: Fraction of the last steps of DP-SGD whose weights are averaged.
        embedding_rate: Poisson rate of the training of W.
        embedding_steps: Steps of the training of W.
        embedding_learning_rate: Of the training of W.
        embedding_share: Share of the budget (of squared Gaussian signal) for noise on the sums; 0
            gives every stage the same noise multiplier, as the paper does. Shares of stages that
            a unit does not charge go to the others.
        training_share: Share for the training of W.
    """

    preset: Preset
    embedding: Embedding
    width: int
    row_norm: float
    sketch_seed: int
    limit: int
    hops: int
    self_features: bool
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
    embedding_rate: float
    embedding_steps: int
    embedding_learning_rate: float
    embedding_share: float
    training_share: float

    def __post_init__(self) -> None:
        for name in ("width", "limit", "hops", "hidden", "encoder_layers", "base_layers"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("head_layers", "folds", "steps", "embedding_steps"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("embedding_share", "training_share"):
            if not 0 <= getattr(self, name) < 1:
                raise PlanError(f"{name} must lie in [0, 1), not {getattr(self, name)}")
        if self.embedding_share + self.training_share >= 1:
            raise PlanError(
                "embedding_share and training_share leave nothing for the classifier",
                remedy="let them add up to less than 1",
            )
        if self.embedding not in EMBEDDINGS:
            raise PlanError(
                f"unknown embedding {self.embedding!r}", remedy=f"auto, {', '.join(EMBEDDINGS)}"
            )
        if not (math.isfinite(self.row_norm) and self.row_norm > 0):
            raise PlanError(f"row_norm cannot be {self.row_norm}", remedy="give a positive number")
        if not 0 <= self.sketch_seed < 2**63:
            raise PlanError(
                f"sketch_seed cannot be {self.sketch_seed}", remedy="give a number from 0"
            )

    @property
    def sketches(self) -> bool:
        """Whether a public sketch is summed."""
        return self.embedding in ("sketch", "both")

    @property
    def sums_classes(self) -> bool:
        """Whether labels or posteriors are summed."""
        return self.embedding in ("labels", "classes", "both")


_SHARED: dict[str, Any] = {
    "row_norm": 1.0,
    "sketch_seed": 0,
    "hops": 1,
    "self_features": True,
    "encoder_layers": 2,
    "base_layers": 1,
    "head_layers": 1,
    "learning_rate": 0.01,
    "weight_decay": 1e-4,
    "epochs": 100,
    "sampling_rate": 0.25,
    "steps": 80,
    "clip": 1.0,
    "private_learning_rate": 0.02,
    "average_last": 0.5,
    "embedding_rate": 0.25,
    "embedding_steps": 80,
    "embedding_learning_rate": 0.02,
}
_PUBLIC: dict[str, Any] = {
    "hidden": 64,
    "dropout": 0.5,
    "batch_norm": True,
    "folds": 3,
    "patience": 20,
    "embedding_share": 0.5,
    "training_share": 0.0,
}
_PRIVATE: dict[str, Any] = {
    "hidden": 16,
    "dropout": 0.0,
    "batch_norm": False,
    "folds": 1,
    "patience": 0,
    "embedding_share": 0.5,
    "training_share": 0.0,
}
_PAPER: dict[str, Any] = {
    "hidden": 64,
    "width": 64,
    "batch_norm": False,
    "folds": 1,
    "patience": 0,
    "head_layers": 2,
    "learning_rate": 1e-3,
    "private_learning_rate": 1e-3,
    "embedding_learning_rate": 1e-3,
    "weight_decay": 0.0,
    "average_last": 0.0,
    "embedding": "trained",
    "embedding_share": 0.0,
    "training_share": 0.0,
}
_PAPER_EPOCHS = 100
_LARGE = 15_000
"""Nodes from which the paper takes batches of 256 instead of 64 (Appendix K)."""


def protects_records(unit: Unit, epsilon: float) -> bool:
    """Whether features and labels are protected, so that training needs DP-SGD."""
    return isinstance(unit, Node | KNeighbors) and math.isfinite(epsilon)


def choose(
    unit: Unit,
    facts: PublicFacts,
    epsilon: float,
    delta: float,
    *,
    preset: Preset,
    overrides: Mapping[str, Any],
) -> DpdgcSettings:
    """Settings for a unit and budget: the user's where given, else by public facts."""
    if preset not in ("tacit", "paper"):
        raise PlanError(f"unknown preset {preset!r}", remedy="use tacit or paper")
    check_names(overrides)
    private = protects_records(unit, epsilon)
    values = {**_SHARED, **(_PRIVATE if private else _PUBLIC), "preset": preset}
    k = unit.k if isinstance(unit, KNeighbors) else 1
    # sqrt(D) + k / (2 sqrt(D)), relative to sqrt(D), is a good bargain near D = k / 2.
    values["limit"] = max(1, k // 2)
    if preset == "paper":
        batch = 256 if facts.nodes >= _LARGE else 64
        rate = min(1.0, batch / facts.train_nodes)
        steps = _PAPER_EPOCHS * math.ceil(facts.train_nodes / batch)
        values |= _PAPER
        values |= {"sampling_rate": rate, "steps": steps}
        values |= {"embedding_rate": rate, "embedding_steps": steps}
    values |= {key: value for key, value in overrides.items() if key != "embedding"}
    wanted = overrides.get("embedding", values.get("embedding", "auto"))
    if wanted == "auto":
        wanted = automatic(unit, facts, epsilon, delta, values)
    values["embedding"] = wanted
    values.setdefault("width", _width(unit, facts, epsilon, wanted))
    if wanted == "trained" and preset == "tacit":
        values = {**values, "embedding_share": 0.4, "training_share": 0.3, **overrides}
        values["embedding"] = wanted
    if math.isinf(epsilon) and "hops" not in overrides and wanted in ("classes", "both"):
        values["hops"] = 2
    settings = DpdgcSettings(**values)
    _check(settings, unit, private)
    return settings


def automatic(
    unit: Unit, facts: PublicFacts, epsilon: float, delta: float, values: Mapping[str, Any]
) -> Embedding:
    """The embedding that ``auto`` stands for, from public facts alone.

    A trained W is never chosen: at any width its sums need the noise of a sketch and its training
    comes on top. Between a sketch and labels the smaller noise of a row decides. Under
    ``Node(links="all")``, and wherever a mean degree is public, links are left unread where a
    typical node's sum is less than twice its noise.
    """
    if math.isinf(epsilon):
        return "both"
    if isinstance(unit, Edge):
        return "classes"
    if isinstance(unit, Node) and unit.links == "own":
        return "sketch"
    noise: dict[Embedding, float] = {}
    kinds: tuple[tuple[Embedding, int], ...] = (("labels", facts.classes), ("sketch", BLOCK))
    for kind, columns in kinds:
        claim = bound(kind, unit, facts, limit=values["limit"], hops=1)
        noise[kind] = claim.l2 * math.sqrt(columns)
    best = min(noise, key=lambda kind: noise[kind])
    share = values["embedding_share"] or 1 / 3
    told = noise[best] / (gaussian_mu(epsilon, delta) * math.sqrt(share))
    typical = facts.mean_degree
    if isinstance(unit, Node) and unit.max_degree is not None:
        # Where no mean is public a typical node is taken to have the root of the promise.
        typical = math.sqrt(unit.max_degree) if typical is None else typical
    elif typical is not None and best == "labels":
        typical = math.sqrt(values["limit"] * typical)  # weighed: d links say sqrt(D d)
    if typical is None:
        return best
    signal = typical if best == "labels" else math.sqrt(typical)
    # Half of the budget is at stake: a sum that barely shows does not pay for it.
    return best if signal > 2 * told else "none"


def bound(embedding: str, unit: Unit, facts: PublicFacts, *, limit: int, hops: int) -> Sensitivity:
    """How far one unit moves the sums of an embedding."""
    labels = embedding in ("labels", "classes", "both") and not isinstance(unit, Edge)
    slack = weight_slack(limit, facts.nodes) if labels and isinstance(unit, KNeighbors) else 0.0
    return list_sums(
        unit,
        directed=facts.directed,
        rows="labels" if labels else "fixed",
        hops=hops,
        nonnegative=embedding in ("labels", "classes"),
        limit=limit,
        slack=slack,
    )


def _width(unit: Unit, facts: PublicFacts, epsilon: float, embedding: str) -> int:
    """Columns: many where no noise is added to them, few where every column costs."""
    if embedding == "trained" or (
        math.isfinite(epsilon) and not (isinstance(unit, Node) and unit.links == "own")
    ):
        return BLOCK
    most = 512 if math.isinf(epsilon) else 1024
    return min(most, BLOCK * math.ceil(facts.nodes / BLOCK))


def check_names(overrides: Mapping[str, Any]) -> None:
    """Refuse a setting that does not exist."""
    known = {field.name for field in fields(DpdgcSettings)} - {"preset"}
    unknown = sorted(set(overrides) - known)
    if unknown:
        raise PlanError(
            f"DPDGC has no setting {unknown[0]!r}",
            remedy=f"choose from {', '.join(sorted(known))}",
        )


def _check(settings: DpdgcSettings, unit: Unit, private: bool) -> None:
    if settings.sketches and settings.width % BLOCK:
        raise PlanError(
            f"a sketch of {settings.width} columns", remedy=f"choose a multiple of {BLOCK}"
        )
    if not private:
        return
    if settings.batch_norm:
        raise PlanError(
            f"batch norm is not covered under {unit.name}",
            why="it mixes the records of a batch, so that no record's gradient is its own",
            remedy="leave batch_norm out",
        )
    if settings.embedding in ("classes", "both") or settings.hops > 1:
        raise UnitError(
            f"embedding={settings.embedding} with {settings.hops} sums promises nothing under "
            f"{unit.name}",
            why="an encoder's posterior reads a node's private features and would reach everyone "
            "who lists it; so would a second sum",
            remedy="use embedding=labels or embedding=sketch, and one sum",
        )
    if not settings.self_features and settings.embedding == "none":
        raise PlanError("a classifier without features and links reads nothing")
