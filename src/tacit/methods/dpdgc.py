"""DPDGC: differentially private decoupled graph convolutions.

Chien, Chen, Pan, Li, Özgür and Milenkovic (NeurIPS 2023). A node's *list* becomes an embedding,
``Z = A W + N``, that is released once with noise; a joint head learns from (X, Z). The paper trains
W (*DP-Emb*); here W may also be a public random sketch, which costs nothing to train, or carry
labels.

Formal guarantees:
    The sums are a Gaussian mechanism of the sensitivity that Theorems 1 and 2 of proofs/dpdgc.md
    give for the unit; the training of W is DP-SGD in which a group of records is replaced
    (Theorems 3 and 4); the head is DP-SGD under units that protect features and labels, and free
    under Edge. They compose adaptively.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tacit.errors import PlanError
from tacit.graph import Graph, PublicFacts
from tacit.methods.base import Fitted, Method, Noise, Outcome, Progress
from tacit.methods.dpdgc_settings import (
    PAPER_DEGREE,
    DpdgcSettings,
    Preset,
    bound,
    choose,
    protects_records,
)
from tacit.privacy.list_sums import PAGE, rows_retrained
from tacit.privacy.plan import Accounting, Plan, Stage, calibrated
from tacit.privacy.sensitivity import Sensitivity
from tacit.privacy.split import Share, multipliers
from tacit.privacy.units import Edge, KNeighbors, Node, Unit

if TYPE_CHECKING:
    from tacit.privacy.noise import NoiseSource


class DPDGC(Method):
    """Decoupled graph convolutions.

    Args:
        unit: What one individual is. ``Node(links="all")`` needs a promised ``max_degree``.
        epsilon: The budget; ``float("inf")`` for none.
        delta: The budget's delta, a public number.
        embedding: ``auto``, ``trained``, ``sketch``, ``labels``, ``classes``, ``both`` or ``none``
            (:class:`DpdgcSettings`); chosen from public facts if None.
        max_degree: Sets the unit's ``max_degree``: D.
        preset: ``tacit``, or ``paper`` for the network and the single noise scale of the paper.
        overrides: Any other field of :class:`DpdgcSettings` by name.
        accounting: ``sound``, or ``paper`` to reproduce the paper's table.
        seed: Of weights and order; never of privacy noise, unless ``noise="seeded"``.
        noise: ``secure`` or ``seeded``.

    Example:
        >>> import tacit
        >>> graph = tacit.graph.synthetic.communities(400, mean_degree=20, seed=1)
        >>> model = tacit.DPDGC(unit=tacit.KNeighbors(k=1), epsilon=8.0, delta=1e-5)
        >>> labels = model.fit(graph).predict()
        >>> model.fitted.plan.settings.embedding, model.statement.epsilon <= 8.0
        ('labels', True)
    """

    name: ClassVar[str] = "dpdgc"

    def __init__(
        self,
        unit: Unit = Edge(),  # noqa: B008
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        embedding: str | None = None,
        max_degree: int | None = None,
        preset: Preset = "tacit",
        overrides: Mapping[str, Any] | None = None,
        accounting: Accounting = "sound",
        seed: int = 0,
        noise: Noise = "secure",
    ) -> None:
        if isinstance(unit, Node) and max_degree is not None:
            unit = replace(unit, max_degree=max_degree)
        elif max_degree is not None:
            raise PlanError(f"max_degree has no meaning under {unit.name}", remedy="leave it out")
        super().__init__(unit, epsilon, delta, accounting=accounting, seed=seed, noise=noise)
        self.preset: Preset = preset
        self.overrides = dict(overrides or {})
        if embedding is not None:
            self.overrides["embedding"] = embedding

    def plan(self, facts: PublicFacts) -> Plan:
        """Noise of embedding, its training and the head, from public facts, unit and budget."""
        unit = self.unit
        settings = choose(
            unit, facts, self.epsilon, self.delta, preset=self.preset, overrides=self.overrides
        )
        shape = _Shape.of(settings, unit, facts, self.epsilon)
        ratios = _ratios(settings, shape, self.epsilon, self.delta)
        claimed = self.accounting == "paper"

        def stages_at(scale: float) -> tuple[Stage, ...]:
            return shape.stages(settings, scale, ratios, claimed=claimed)

        stages, cost = calibrated(stages_at, self.epsilon, self.delta, self.accounting)
        charged = tuple(shape.recharged(s, settings) for s in stages) if claimed else stages
        return Plan(
            method=self.name,
            unit=unit,
            facts=facts,
            epsilon=self.epsilon,
            delta=self.delta,
            accounting=self.accounting,
            stages=stages,
            settings=settings,
            cost=cost,
            charged=charged,
        )

    def inference_stages(self, plan: Plan) -> tuple[str, ...]:
        """A new graph is read by the sums alone."""
        return tuple(stage.name for stage in plan.stages if stage.name == "embedding")

    def caveats(self, plan: Plan) -> tuple[str, ...]:
        """What the promise assumes, and which embedding the public facts chose."""
        settings: DpdgcSettings = plan.settings
        found = []
        if settings.embedding == "none":
            found.append(
                "Links were not read: by public facts alone their sums would drown in the noise "
                "that this unit needs, so the whole budget went to the classifier."
            )
        if not protects_records(plan.unit, plan.epsilon):
            if plan.stages:
                found.append("Features and labels are public; they are not protected at all.")
            return tuple(found)
        row = "" if settings.embedding == "none" else " and own row of the embedding"
        found.append(
            f"A prediction reads that node's own features{row}: it is for that node (or whoever "
            "may see its record) alone. The weights are for anyone; a node's row is for it alone."
        )
        if isinstance(plan.unit, Node) and plan.unit.links == "all" and row:
            found.append(
                f"No node has more than {plan.unit.max_degree} links each way: a promise, checked "
                "on the input."
            )
        return tuple(found)

    def _run(
        self, graph: Graph, plan: Plan, source: NoiseSource | None, progress: Progress
    ) -> Outcome:
        from tacit.methods.dpdgc_network import DpdgcNetwork

        network = DpdgcNetwork(plan, self.seed, source, progress)
        network.fit_encoder(graph)
        network.fit_embedding(graph)
        sums = network.embed(graph)
        network.fit_head(graph, sums)
        shared = not protects_records(plan.unit, plan.epsilon)
        # Under Node(links="own") sums carry no noise: each is part of its node's own record.
        noisy = any(stage.name == "embedding" for stage in plan.stages)
        return Outcome(
            posteriors=network.posteriors(graph, sums),
            released=sums if noisy else {},
            weights=network.weights(),
            public_posteriors=shared,
            notes=tuple(network.notes),
        )

    def _infer(
        self, fitted: Fitted, graph: Graph, source: NoiseSource | None, progress: Progress
    ) -> np.ndarray:
        from tacit.methods.dpdgc_network import DpdgcNetwork

        network = DpdgcNetwork(fitted.plan, fitted.seed, source, progress)
        network.load(fitted.outcome.weights)
        return network.posteriors(graph, network.embed(graph))

    def _answer(
        self,
        fitted: Fitted,
        records: Graph,
        released: dict[str, np.ndarray],
        *,
        outsiders: bool,
    ) -> np.ndarray:
        from tacit.methods.dpdgc_network import DpdgcNetwork

        network = DpdgcNetwork(fitted.plan, fitted.seed, None, lambda stage, done, total: None)
        network.load(fitted.outcome.weights)
        return network.posteriors(records, released)


class _Shape:
    """What of a plan touches private data, and how far one unit reaches into it.

    Args:
        sums: The bound of one round of sums; None where none are released.
        rounds: How many.
        group: Records of the training of W that one unit replaces; None where W is not trained, 0
            where one record comes or goes.
        head: The same of the classifier; None where it is free.
        paper: The sensitivity of the sums and the group as the paper claims them.
    """

    def __init__(
        self,
        sums: Sensitivity | None,
        rounds: int,
        group: int | None,
        head: int | None,
        paper: tuple[float, int],
    ) -> None:
        self.sums, self.rounds, self.group, self.head = sums, rounds, group, head
        self.paper = paper

    @classmethod
    def of(cls, settings: DpdgcSettings, unit: Unit, facts: PublicFacts, epsilon: float) -> _Shape:
        if settings.embedding == "none":
            sums, rounds = None, 1
        else:
            rounds = (settings.hops if settings.sums_classes else 1) + (
                settings.embedding == "both"
            )
            found = Sensitivity(1.0, "Nothing is promised without a budget", PAGE)
            if math.isfinite(epsilon):
                found = bound(settings.embedding, unit, facts, limit=settings.limit, hops=rounds)
            sums = found if found.l2 > 0 else None
        group = None
        if settings.embedding == "trained":
            free = math.isinf(epsilon)
            group = 1 if free else rows_retrained(unit, directed=facts.directed)
        private = protects_records(unit, epsilon)
        head = (1 if unit.relation == "replace" else 0) if private else None
        return cls(sums, rounds, group, head, _claims(unit))

    def stages(
        self,
        settings: DpdgcSettings,
        scale: float,
        ratios: Mapping[str, float],
        *,
        claimed: bool,
    ) -> tuple[Stage, ...]:
        """The stages at a common noise scale, their ratios fixed by the shares of the budget."""
        reach, people = self.paper
        found = []
        if self.group is not None:
            multiplier = scale * ratios["training"]
            one = _learner(
                "training", settings.embedding_steps, settings.embedding_rate, multiplier,
                self.group, settings.clip, f"Theorem 4, {PAGE}",
            )  # fmt: skip
            if claimed:
                std = 2 * multiplier * settings.clip * math.sqrt(people)
                one = replace(one, group=0, noise_std=std, theorem=_CLAIM)
            found.append(one)
        if self.sums is not None:
            per_round = reach if claimed else self.sums.l2 / math.sqrt(self.rounds)
            multiplier = scale * ratios["embedding"]
            found.append(
                Stage(
                    "embedding",
                    self.rounds,
                    multiplier,
                    multiplier * per_round,
                    theorem=_CLAIM if claimed else f"{self.sums.theorem}, {self.sums.page}",
                )
            )
        if self.head is not None:
            multiplier = scale * ratios["classifier"]
            one = _learner(
                "classifier", settings.steps, settings.sampling_rate, multiplier,
                self.head, settings.clip,
                "Theorem 1 (a record moves a clipped sum by at most C), proofs/dpsgd.md",
            )  # fmt: skip
            found.append(one)
        return tuple(found)

    def recharged(self, stage: Stage, settings: DpdgcSettings) -> Stage:
        """The same noise under sound accounting."""
        if stage.name == "embedding" and self.sums is not None:
            per_round = self.sums.l2 / math.sqrt(self.rounds)
            return replace(
                stage,
                noise_multiplier=stage.noise_std / per_round,
                theorem=f"{self.sums.theorem}, {self.sums.page}",
            )
        if stage.name == "training" and self.group is not None:
            reach = 2 * settings.clip if self.group else settings.clip
            return replace(
                stage,
                group=self.group,
                noise_multiplier=stage.noise_std / reach,
                theorem=f"Theorem 4, {PAGE}",
            )
        return stage


_CLAIM = "Theorems 5.3 and 5.4 of the paper, as claimed"


def _claims(unit: Unit) -> tuple[float, int]:
    """The paper's sensitivity of the sums, and its group, by whose root its code scales noise."""
    if isinstance(unit, KNeighbors):
        return math.sqrt(unit.k), unit.k + 1
    if isinstance(unit, Node):
        degree = unit.max_degree or PAPER_DEGREE
        return math.sqrt(2 * degree), degree + 1
    return 1.0, 1


def _learner(
    name: str,
    steps: int,
    rate: float,
    multiplier: float,
    group: int,
    clip: float,
    theorem: str,
) -> Stage:
    """A stage of DP-SGD; a replaced record can turn its clipped gradient round: twice the reach."""
    return Stage(
        name,
        steps,
        multiplier,
        multiplier * clip * (2 if group else 1),
        sampling_rate=rate,
        theorem=f"Theorem 3 (a group of replaced records), {PAGE}; {theorem}" if group else theorem,
        group=group,
    )


def _ratios(
    settings: DpdgcSettings, shape: _Shape, epsilon: float, delta: float
) -> dict[str, float]:
    """Noise multipliers that split the budget by shares, up to a common factor."""
    if settings.embedding_share == 0:
        return {"training": 1.0, "embedding": 1.0, "classifier": 1.0}
    left = 1 - settings.embedding_share - settings.training_share
    parts = []
    if shape.group is not None:
        parts.append(
            Share(
                "training",
                settings.training_share or left / 2,
                settings.embedding_steps,
                settings.embedding_rate,
                max(1, shape.group),
            )
        )
    if shape.sums is not None:
        parts.append(Share("embedding", settings.embedding_share, shape.rounds))
    if shape.head is not None:
        parts.append(Share("classifier", left, settings.steps, settings.sampling_rate))
    whole = math.fsum(part.share for part in parts)
    parts = [replace(part, share=part.share / whole) for part in parts]
    return multipliers(parts, epsilon, delta)
