"""GAP: graph neural networks with aggregation perturbation.

Three modules (Sajadmanesh, Shamsabadi, Bellet, Gatica-Perez, USENIX Security 2023): an *encoder*
that reads no links; an *aggregation* that releases K noisy, row-normalised neighbour sums once
(Algorithm 1); and a *classifier* that reads the released sums, never the links.

Formal guarantees:
    Edge: the aggregation is a Gaussian mechanism of L2 sensitivity ``sqrt(K)`` (directed) or
    ``sqrt(2K)`` (symmetric) over noise ``s``; everything else reads public features and labels or
    post-processes. Node: the aggregation of Theorems 3 to 6 of proofs/hop_sums.md composed with
    DP-SGD of encoder and classifier. Both: proofs/gap.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tacit.errors import PlanError, UnitError
from tacit.graph import Graph, PublicFacts
from tacit.methods.base import Fitted, Method, Noise, Outcome, Progress
from tacit.methods.gap_settings import Carry, GapSettings, Preset, choose, protects_nodes
from tacit.privacy.plan import Accounting, Plan, Stage, calibrated
from tacit.privacy.sensitivity import Sensitivity, hop_sums
from tacit.privacy.split import Share, multipliers
from tacit.privacy.units import Edge, KNeighbors, Node, Unit

if TYPE_CHECKING:
    from tacit.privacy.noise import NoiseSource

PAPER_DEGREE = 100


class GAP(Method):
    """Graph neural network with aggregation perturbation.

    Args:
        unit: What one individual is: ``Edge()`` or ``Node(...)``.
        epsilon: The budget; ``float("inf")`` for none.
        delta: The budget's delta, a public number.
        hops: K, the number of noisy neighbour sums; chosen from public facts if None.
        carry: What the aggregation carries (:class:`GapSettings`).
        max_degree: Sets the unit's ``max_degree``: D.
        preset: ``tacit``, or ``paper`` for the network and the single noise scale of the paper.
        overrides: Any other field of :class:`GapSettings` by name.
        accounting: ``sound``, or ``paper`` to reproduce the paper's table.
        seed: Of weights and order; never of privacy noise, unless ``noise="seeded"``.
        noise: ``secure`` or ``seeded``.

    Example:
        >>> import tacit
        >>> graph = tacit.graph.synthetic.communities(400, mean_degree=20, seed=1)
        >>> model = tacit.GAP(unit=tacit.Edge(), epsilon=4.0, delta=1e-6, hops=1)
        >>> labels = model.fit(tacit.graph.split(graph)).predict()
        >>> model.statement.unit, model.statement.epsilon <= 4.0
        ('edge', True)
    """

    name: ClassVar[str] = "gap"

    def __init__(
        self,
        unit: Unit = Edge(),  # noqa: B008
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        hops: int | None = None,
        carry: Carry | None = None,
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
        overrides = dict(overrides or {})
        if isinstance(unit, Node) and unit.links == "own" and unit.max_degree is None:
            cut = overrides.get("bound", "sample" if preset == "paper" else "scale") == "sample"
            unit = replace(unit, max_degree=PAPER_DEGREE if cut else 1)
        super().__init__(unit, epsilon, delta, accounting=accounting, seed=seed, noise=noise)
        named = {"hops": hops, "carry": carry}
        self.preset: Preset = preset
        self.overrides = {
            **overrides,
            **{key: value for key, value in named.items() if value is not None},
        }

    def plan(self, facts: PublicFacts) -> Plan:
        """Noise of aggregation, encoder and classifier, from public facts, unit and budget."""
        if isinstance(self.unit, KNeighbors):
            hop_sums(self.unit, directed=facts.directed, hops=1)
        settings = choose(
            self.unit, facts, self.epsilon, preset=self.preset, overrides=self.overrides
        )
        unit = self.unit
        claim = _claimed if self.accounting == "paper" else _sound

        def stages_at(scale: float) -> tuple[Stage, ...]:
            return _stages(settings, unit, facts, self.epsilon, self.delta, scale, claim)

        stages, cost = calibrated(stages_at, self.epsilon, self.delta, self.accounting)
        charged = stages
        if self.accounting == "paper":
            charged = tuple(_recharged(stage, settings, unit, facts) for stage in stages)
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
        """A new graph is read by the aggregation alone."""
        return ("aggregation",)

    def caveats(self, plan: Plan) -> tuple[str, ...]:
        """What the promise assumes."""
        settings: GapSettings = plan.settings
        found = []
        if not protects_nodes(plan.unit, plan.epsilon):
            if plan.stages:
                found.append("Features and labels are public; they are not protected at all.")
            return tuple(found)
        everyone = isinstance(plan.unit, Node) and plan.unit.links == "all"
        free = "weights are" if everyone else "weights and the released sums are"
        if _reads_own_record(settings):
            what = ["features"] + (["own list of links"] if settings.own_list else [])
            found.append(
                f"A prediction reads that node's own {' and '.join(what)}: it is for that node (or "
                f"whoever may see its record) alone. The {free} for anyone."
            )
        if isinstance(plan.unit, Node) and everyone:
            found.append(
                f"No node has more than {plan.unit.max_degree} links each way: a promise, checked "
                "on the input. The released row of a node, and a prediction made from it, are for "
                "that node alone."
            )
        return tuple(found)

    def _run(
        self, graph: Graph, plan: Plan, source: NoiseSource | None, progress: Progress
    ) -> Outcome:
        from tacit.methods.gap_network import GapNetwork

        network = GapNetwork(plan, self.seed, source, progress)
        network.fit_encoder(graph)
        sums = network.aggregate(graph)
        network.fit_classifier(graph, sums)
        settings: GapSettings = plan.settings
        nodes = protects_nodes(plan.unit, plan.epsilon)
        # Under links="all" a node's row of the sums is part of its own record.
        own_row = isinstance(plan.unit, Node) and plan.unit.links == "all"
        return Outcome(
            posteriors=network.posteriors(graph, sums),
            released={f"hop.{k + 1}": hop for k, hop in enumerate(sums)},
            weights=network.weights(),
            public_posteriors=not (nodes and (own_row or _reads_own_record(settings))),
            notes=tuple(network.notes),
        )

    def _infer(
        self, fitted: Fitted, graph: Graph, source: NoiseSource | None, progress: Progress
    ) -> np.ndarray:
        from tacit.methods.gap_network import GapNetwork

        network = GapNetwork(fitted.plan, fitted.seed, source, progress)
        network.load(fitted.outcome.weights)
        return network.posteriors(graph, network.aggregate(graph))

    def _answer(
        self,
        fitted: Fitted,
        records: Graph,
        released: dict[str, np.ndarray],
        *,
        outsiders: bool,
    ) -> np.ndarray:
        from tacit.methods.gap_network import GapNetwork

        network = GapNetwork(fitted.plan, fitted.seed, None, lambda stage, done, total: None)
        network.load(fitted.outcome.weights)
        settings: GapSettings = fitted.plan.settings
        sums = [released[f"hop.{k + 1}"] for k in range(settings.hops)]
        return network.posteriors(records, sums, outsiders=outsiders)


def _reads_own_record(settings: GapSettings) -> bool:
    """Whether a prediction reads that node's own features or list, beside the released sums."""
    # The paper's first input is the encoded features, or the raw ones where the encoder is off.
    paper = settings.preset == "paper"
    return paper or settings.self_features or settings.own_list or settings.encoder


def _sound(settings: GapSettings, unit: Unit, facts: PublicFacts) -> Sensitivity:
    return hop_sums(
        unit,
        directed=facts.directed,
        hops=settings.hops,
        nonnegative=settings.carry in ("labels", "classes"),
    )


def _claimed(settings: GapSettings, unit: Unit, facts: PublicFacts) -> Sensitivity:
    """The paper's Theorems 1 and 2: one arc, or D arcs, whatever the graph."""
    degree = unit.max_degree or PAPER_DEGREE if isinstance(unit, Node) else 1
    return Sensitivity(
        math.sqrt(degree * settings.hops), "Theorems 1 and 2 of the paper, as claimed", "the paper"
    )


def _stages(
    settings: GapSettings,
    unit: Unit,
    facts: PublicFacts,
    epsilon: float,
    delta: float,
    scale: float,
    claim: Any,
) -> tuple[Stage, ...]:
    """The stages at a common noise scale, their ratios fixed by the shares of the budget."""
    nodes = protects_nodes(unit, epsilon)
    ratios = _ratios(settings, epsilon, delta) if nodes else {"aggregation": 1.0}
    whole = claim(settings, unit, facts)
    per_hop = whole.l2 / math.sqrt(settings.hops)
    multiplier = scale * ratios["aggregation"]
    stages = [
        Stage(
            "aggregation",
            settings.hops,
            multiplier,
            multiplier * per_hop,
            theorem=f"{whole.theorem}, {whole.page}",
        )
    ]
    if not nodes:
        return tuple(stages)
    learners = (["encoder"] if settings.encoder else []) + ["classifier"]
    # Replacing a record can turn its clipped gradient round: twice the sensitivity.
    reach = 2.0 if unit.relation == "replace" else 1.0
    for name in learners:
        multiplier = scale * ratios[name]
        stages.append(
            Stage(
                name,
                settings.steps,
                multiplier,
                multiplier * reach * settings.clip,
                sampling_rate=settings.sampling_rate,
                theorem="Theorem 1 (a record moves a clipped sum by at most C), proofs/dpsgd.md",
            )
        )
    return tuple(stages)


def _recharged(stage: Stage, settings: GapSettings, unit: Unit, facts: PublicFacts) -> Stage:
    """The same noise under sound accounting; no noise multiplier where nothing is proved."""
    if stage.name != "aggregation":
        return stage
    try:
        whole = _sound(settings, unit, facts)
    except UnitError:
        return replace(stage, noise_multiplier=0.0, theorem="none")
    per_hop = whole.l2 / math.sqrt(settings.hops)
    return replace(
        stage, noise_multiplier=stage.noise_std / per_hop, theorem=f"{whole.theorem}, {whole.page}"
    )


def _ratios(settings: GapSettings, epsilon: float, delta: float) -> dict[str, float]:
    """Noise multipliers that split the budget by shares, up to a common factor."""
    if settings.aggregation_share == 0:
        return {"aggregation": 1.0, "encoder": 1.0, "classifier": 1.0}
    encoder = 0.0
    if settings.encoder:
        encoder = settings.encoder_share or (1 - settings.aggregation_share) / 2
    shares = [Share("aggregation", settings.aggregation_share, settings.hops)]
    if encoder:
        shares.append(Share("encoder", encoder, settings.steps, settings.sampling_rate))
    left = 1 - settings.aggregation_share - encoder
    shares.append(Share("classifier", left, settings.steps, settings.sampling_rate))
    return multipliers(shares, epsilon, delta)
