"""One-layer GraphSAGE under node privacy: per-node subgraphs by DP-SGD, noisy sums to answer.

After Daigavane, Madan, Sinha, Thakurta, Aggarwal, Jain, "Node-Level Differentially Private Graph
Neural Networks", 2021; with noise on the aggregation at inference, as GAP's baseline SAGE-NDP.

Formal guarantees:
    Node, own record with lists cut to D, or ``links="all"`` with a promised D: one individual moves
    the sum of clipped gradients by at most (2D+1) C (add/remove) or (4D+2) C (replace), all rows
    taking part in every step; the inference is one neighbour sum of rows of norm at most 1
    (proofs/sage.md, Theorems 1 and 2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tacit.errors import PlanError, UnitError
from tacit.graph import Graph, PublicFacts
from tacit.methods.base import Fitted, Method, Noise, Outcome, Progress, refuse_unit
from tacit.privacy.plan import Accounting, Plan, Stage, calibrated
from tacit.privacy.sensitivity import hop_sums
from tacit.privacy.split import gaussian_mu
from tacit.privacy.units import Edge, KNeighbors, Node, Unit

if TYPE_CHECKING:
    from tacit.privacy.noise import NoiseSource

DEGREE = 1
"""Entries that count of each own list, where nobody says otherwise: noise grows with it."""


@dataclass(frozen=True)
class SageNodeSettings:
    """Everything about SAGE under node privacy but its unit and budget.

    Attributes:
        preset: ``tacit``, or ``paper`` for a learning rate without averaging of the last steps.
        hops: Always 1: with a second layer one node is in the subgraphs of D^2 others.
        steps: Steps of DP-SGD; every step reads all training nodes.
        clip: Gradient norm bound.
        learning_rate: Of DP-SGD.
        average_last: Fraction of the last steps whose weights are averaged.
        inference_share: Share of the budget (of squared Gaussian signal) for the noisy sums.
        epochs: Passes of plain training, without privacy.
        patience: Epochs without a better validation score before plain training stops; 0 never.
        weight_decay: Of plain training.
    """

    preset: str
    hops: int
    steps: int
    clip: float
    learning_rate: float
    average_last: float
    inference_share: float
    epochs: int
    patience: int
    weight_decay: float

    def __post_init__(self) -> None:
        if self.hops != 1:
            raise PlanError(
                f"{self.hops} hops are not covered",
                why="with two layers one node is in the subgraphs of D^2 others",
                remedy="use one, or gap",
            )
        if min(self.steps, self.epochs) < 1 or not 0 < self.inference_share < 1:
            raise PlanError(
                "steps and epochs must be at least 1, and inference_share between 0 and 1"
            )


_DEFAULT = SageNodeSettings("tacit", 1, 40, 1.0, 0.1, 0.5, 0.3, 100, 20, 1e-4)


class SageNode(Method):
    """One-layer GraphSAGE whose weights and answers are private under node units.

    Args:
        unit: ``Node()`` (own record) or ``Node(links="all", max_degree=D)``.
        epsilon: The budget; ``float("inf")`` for none.
        delta: The budget's delta.
        preset: ``tacit`` or ``paper``.
        overrides: Any field of :class:`SageNodeSettings` by name.
        accounting: ``sound``, or ``paper`` to reproduce a paper's table.
        seed: Of weights and of which entries of a list count; never of privacy noise, unless
            ``noise="seeded"``.
        noise: ``secure`` or ``seeded``.
    """

    name: ClassVar[str] = "sage-node"

    def __init__(
        self,
        unit: Unit = Node(),  # noqa: B008
        epsilon: float = 8.0,
        delta: float = 1e-5,
        *,
        preset: str = "tacit",
        overrides: Mapping[str, Any] | None = None,
        accounting: Accounting = "sound",
        seed: int = 0,
        noise: Noise = "secure",
    ) -> None:
        if isinstance(unit, Node) and unit.links == "own" and unit.max_degree is None:
            unit = replace(unit, max_degree=DEGREE)
        super().__init__(unit, epsilon, delta, accounting=accounting, seed=seed, noise=noise)
        if preset not in ("tacit", "paper"):
            raise PlanError(f"unknown preset {preset!r}", remedy="use tacit or paper")
        known = {field.name for field in fields(SageNodeSettings)} - {"preset"}
        if unknown := sorted(set(overrides or {}) - known):
            raise PlanError(
                f"sage-node has no setting {unknown[0]!r}",
                remedy=f"choose from {', '.join(sorted(known))}",
            )
        paper = {"average_last": 0.0, "learning_rate": 0.01} if preset == "paper" else {}
        self._settings = replace(_DEFAULT, **{"preset": preset, **paper, **(overrides or {})})

    def plan(self, facts: PublicFacts) -> Plan:
        """Noise of training and of the sums that answers read, from public facts alone."""
        unit, settings = self.unit, self._settings
        _refuse(unit)
        claim = _claimed if self.accounting == "paper" else _sound

        def stages_at(scale: float) -> tuple[Stage, ...]:
            return _stages(settings, claim(unit), scale, self.epsilon, self.delta)

        stages, cost = calibrated(stages_at, self.epsilon, self.delta, self.accounting)
        charged = stages
        if self.accounting == "paper":
            charged = tuple(_recharged(stage, settings, unit) for stage in stages)
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
        """A new graph is read by the noisy sums alone."""
        return ("inference",)

    def caveats(self, plan: Plan) -> tuple[str, ...]:
        """What the promise assumes."""
        if math.isinf(plan.epsilon):
            return ("Nothing is protected.",)
        own = "A prediction reads that node's own features: it is for that node (or whoever may "
        own += "see its record) alone."
        if isinstance(plan.unit, Node) and plan.unit.links == "all":
            return (
                f"{own} The weights are for anyone; a node's row of the noisy sums is for that "
                "node.",
                f"No node has more than {plan.unit.max_degree} links each way: a promise, checked "
                "on the input.",
            )
        return (f"{own} The weights and the noisy sums are for anyone.",)

    def _check_graph(self, graph: Graph, plan: Plan) -> None:
        # The paper's claim cuts lists under either reading, so it needs no promise.
        if plan.accounting != "paper":
            super()._check_graph(graph, plan)

    def _run(
        self, graph: Graph, plan: Plan, source: NoiseSource | None, progress: Progress
    ) -> Outcome:
        from tacit.methods.sage_network import SageNetwork

        network = SageNetwork(plan, self.seed, source, progress)
        network.fit(graph)
        sums = network.sums(graph)
        return Outcome(
            posteriors=network.posteriors(graph, sums),
            released={"inference": sums},
            weights=network.weights(),
            public_posteriors=False,
        )

    def _infer(
        self, fitted: Fitted, graph: Graph, source: NoiseSource | None, progress: Progress
    ) -> np.ndarray:
        from tacit.methods.sage_network import SageNetwork

        network = SageNetwork(fitted.plan, fitted.seed, source, progress)
        network.load(fitted.outcome.weights)
        return network.posteriors(graph, network.sums(graph))

    def _answer(
        self,
        fitted: Fitted,
        records: Graph,
        released: dict[str, np.ndarray],
        *,
        outsiders: bool,
    ) -> np.ndarray:
        from tacit.methods.sage_network import SageNetwork

        network = SageNetwork(fitted.plan, fitted.seed, None, lambda stage, done, total: None)
        network.load(fitted.outcome.weights)
        return network.posteriors(records, released["inference"])


def cuts_lists(plan: Plan) -> bool:
    """Whether lists are cut to D entries: not where D is a promise, and not without privacy."""
    own = isinstance(plan.unit, Node) and plan.unit.links == "own"
    return math.isfinite(plan.epsilon) and (own or plan.accounting == "paper")


def _refuse(unit: Unit) -> None:
    if isinstance(unit, Edge):
        raise refuse_unit(
            "sage-node",
            unit,
            "it spends its budget on features and labels, which are public there",
            "use sage-edge, edgerand or gap",
        )
    if isinstance(unit, KNeighbors):
        raise refuse_unit(
            "sage-node",
            unit,
            "a node's features reach everyone it is linked to, and only k of these links are part "
            "of the unit",
            'use Node(links="all", max_degree=D), or mlp',
        )
    if not isinstance(unit, Node) or unit.max_degree is None:
        raise refuse_unit(
            "sage-node",
            unit,
            "one node's features are in the subgraphs of all that it is linked to, and cutting "
            "links under this reading bounds nothing (proofs/sage.md)",
            'promise a bound, Node(links="all", max_degree=D), or use Node()',
        )


@dataclass(frozen=True)
class _Reach:
    """How far one individual moves the sum of clipped gradients (over C), and the noisy sums."""

    gradients: float
    sums: float
    theorems: tuple[str, str]


def _sound(unit: Unit) -> _Reach:
    degree = (unit.max_degree if isinstance(unit, Node) else None) or 1
    moved = 2 * degree + 1 if unit.relation == "add-remove" else 4 * degree + 2
    sums = hop_sums(unit, directed=True, hops=1)
    return _Reach(
        moved,
        sums.l2,
        (
            f"Theorem 1 (one record moves {moved} C of the clipped sum), proofs/sage.md",
            f"{sums.theorem}, {sums.page}",
        ),
    )


def _claimed(unit: Unit) -> _Reach:
    """Daigavane et al., and GAP's noisy aggregation, as claimed."""
    degree = (unit.max_degree if isinstance(unit, Node) else None) or 1
    words = "Daigavane et al., as claimed, the paper"
    return _Reach(2 * (degree + 1), math.sqrt(degree), (words, words))


def _stages(
    settings: SageNodeSettings, reach: _Reach, scale: float, epsilon: float, delta: float
) -> tuple[Stage, ...]:
    """The two stages at a common noise scale, their ratio fixed by the share of the budget.

    T Gaussians of multiplier m have ``mu = sqrt(T)/m``, and ``mu^2`` adds up.
    """
    mu = 1.0 if math.isinf(epsilon) else gaussian_mu(epsilon, delta)
    share = settings.inference_share
    training = scale * math.sqrt(settings.steps / (1 - share)) / mu
    inference = scale * math.sqrt(1 / share) / mu
    return (
        Stage(
            "network",
            settings.steps,
            training,
            training * reach.gradients * settings.clip,
            theorem=reach.theorems[0],
        ),
        Stage("inference", 1, inference, inference * reach.sums, theorem=reach.theorems[1]),
    )


def _recharged(stage: Stage, settings: SageNodeSettings, unit: Unit) -> Stage:
    """The same noise under sound accounting; no noise multiplier where nothing is proved."""
    if isinstance(unit, Node) and unit.links == "all":
        return replace(stage, noise_multiplier=0.0, theorem="none")
    try:
        reach = _sound(unit)
    except UnitError:
        return replace(stage, noise_multiplier=0.0, theorem="none")
    training = stage.name == "network"
    moved = reach.gradients * settings.clip if training else reach.sums
    theorem = reach.theorems[0 if training else 1]
    return replace(stage, noise_multiplier=stage.noise_std / moved, theorem=theorem)
