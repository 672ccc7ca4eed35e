"""PrivGNN: only a student leaves, taught by noisy answers about a public graph.

Algorithm 1 of Olatunji, Funke and Khosla (TMLR 2023): for each of |Q| public nodes a fresh Poisson
sample of the private graph, its K nodes nearest to the query, a fresh two-layer GraphSAGE teacher
on the subgraph they induce, and the argmax of its posterior under Laplace noise; then a student on
the public graph. One teacher's word is a weak signal under honest noise (``docs/privgnn.md``), so
there is a second way to ask: ``teacher="votes"`` counts labels within a public radius.

Formal guarantees:
    ``Node(links="all")`` without any degree promise: a node that is not sampled changes no teacher,
    whatever its links. One answer is a pure mechanism (Theorem 1), all are a sampled composition of
    |Q| (Theorem 2), votes are sampled Gaussians (Theorem 3): proofs/privgnn.md. The student and its
    predictions read answers and public data alone: they are for anyone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tacit.errors import PlanError
from tacit.graph import Graph, PublicFacts
from tacit.methods.base import Fitted, Method, Noise, Outcome, Progress, refuse_unit
from tacit.methods.privgnn_settings import (
    PrivGnnSettings,
    choose,
    needs_facts,
    published_epsilon,
    published_lam,
    scaled,
    stage,
)
from tacit.privacy.plan import Accounting, Plan, Stage, calibrated, check_budget, composed
from tacit.privacy.units import Node, Unit

if TYPE_CHECKING:
    from torch import nn

    from tacit.privacy.accounting import Cost
    from tacit.privacy.noise import NoiseSource

Network = Callable[[int, int, int], "nn.Module"]
"""Makes a module with ``forward(x, adj)`` from widths of input and output, and a seed."""


class PrivGNN(Method):
    """A student for a public graph, taught by noisy answers of private data.

    Args:
        unit: ``Node(links="all")``, add/remove. No degree promise is needed.
        epsilon: The budget; infinite if the noise itself is set (``lam`` or ``sigma``).
        delta: The budget's delta, a public number.
        teacher: Who answers (:class:`PrivGnnSettings`).
        preset: ``tacit``, or ``paper`` for the paper's student.
        overrides: Any other field of :class:`PrivGnnSettings` by name.
        accounting: ``sound``, or ``paper`` for the paper's formula and its noise on log-softmax.
        seed: Of queries, weights and order; never of privacy noise, unless ``noise="seeded"``.
        noise: ``secure`` or ``seeded``.
        teacher_network: Replaces the GraphSAGE teacher: any module with ``forward(x, adj)``. One is
            trained after another then.
        student_network: Replaces the student in the same way.

    Example:
        >>> import tacit
        >>> whole = tacit.graph.synthetic.communities(600, mean_degree=10, seed=1)
        >>> graph = tacit.graph.cut(whole, tacit.graph.Cut(300, 150, 150))
        >>> model = tacit.methods.PrivGNN(epsilon=8, delta=1e-4, teacher="votes",
        ...                               overrides={"queries": 40})
        >>> model.fit(graph).statement.unit
        'node-all'
    """

    name: ClassVar[str] = "privgnn"
    learns_for_public: ClassVar[bool] = True

    def __init__(
        self,
        unit: Unit = Node(links="all"),  # noqa: B008
        epsilon: float = math.inf,
        delta: float = 1e-5,
        *,
        teacher: str | None = None,
        preset: str = "tacit",
        overrides: Mapping[str, Any] | None = None,
        accounting: Accounting = "sound",
        seed: int = 0,
        noise: Noise = "secure",
        teacher_network: Network | None = None,
        student_network: Network | None = None,
    ) -> None:
        super().__init__(unit, epsilon, delta, accounting=accounting, seed=seed, noise=noise)
        self.preset = preset
        self.overrides = {**(overrides or {}), **({} if teacher is None else {"teacher": teacher})}
        self.teacher_network, self.student_network = teacher_network, student_network

    def plan(self, facts: PublicFacts) -> Plan:
        """The noise of every answer, from classes, unit and budget; sizes only bound |Q|."""
        self._check_unit()
        settings = choose(self.preset, self.accounting, self.overrides)
        needs_facts(settings, facts)
        check_budget(self.epsilon, self.delta)
        stages, cost, settings = (
            self._published(settings)
            if self.accounting == "paper"
            else self._sound(settings, facts)
        )
        named = bool(self.overrides.get("lam") or self.overrides.get("sigma"))
        if named and cost.epsilon > self.epsilon * (1 + 1e-12) and self.accounting == "sound":
            raise PlanError(
                f"the noise that was set costs epsilon {cost.epsilon:.4g}, not {self.epsilon:g}",
                why=f"{settings.queries} answers at delta {self.delta:g}",
                remedy="leave epsilon out, or leave the noise to it",
            )
        told = cost.epsilon_rdp if self.accounting == "paper" else cost.epsilon
        return Plan(
            method=self.name,
            unit=self.unit,
            facts=facts,
            epsilon=told if named and math.isinf(self.epsilon) else self.epsilon,
            delta=self.delta,
            accounting=self.accounting,
            stages=stages,
            settings=settings,
            cost=cost,
            charged=stages if self.accounting == "sound" else _recharged(settings, facts),
        )

    def _check_unit(self) -> None:
        unit = self.unit
        if not isinstance(unit, Node) or unit.links != "all":
            raise refuse_unit(
                "PrivGNN",
                unit,
                "its proof is for a node with everything attached to it, which a sample holds or "
                "does not hold as a whole",
                'use Node(links="all"), which protects more and needs no max_degree',
            )
        if unit.relation != "add-remove":
            raise refuse_unit(
                "PrivGNN",
                unit,
                "the bound for sampling is for a node that is there or not, and no page proves one "
                "for a node that is replaced",
                "use the add-remove relation",
            )

    def _sound(
        self, settings: PrivGnnSettings, facts: PublicFacts
    ) -> tuple[tuple[Stage, ...], Cost, PrivGnnSettings]:
        from tacit.privacy.accounting import cost

        if settings.lam or settings.sigma:
            fixed = (stage(settings, facts.classes, settings.lam, settings.sigma),)
            return fixed, cost(composed(fixed), self.delta), settings

        def stages_at(scale: float) -> tuple[Stage, ...]:
            at = scaled(settings, scale)
            return (stage(at, facts.classes, at.lam, at.sigma),)

        stages, spent = calibrated(stages_at, self.epsilon, self.delta, self.accounting)
        found = stages[0].noise_std
        return stages, spent, settings if found == 0 else scaled(settings, found)

    def _published(
        self, settings: PrivGnnSettings
    ) -> tuple[tuple[Stage, ...], Cost, PrivGnnSettings]:
        """The paper's figure for the noise that runs; its own formula is what decides."""
        from tacit.privacy.accounting import Cost, epsilon_pld

        if settings.noise != "laplace":
            raise PlanError(
                "the paper's accounting is for Laplace noise on one network's posterior",
                remedy="use accounting=sound for votes, PATE and Gaussian noise",
            )
        rate, rounds = settings.gamma, settings.queries
        if not settings.lam and math.isfinite(self.epsilon):
            lam = published_lam(rate, rounds, self.epsilon, self.delta)
            settings = replace(settings, lam=lam)
        if not settings.lam:
            bare = Stage("labels", rounds, 0.0, 0.0, rate, mechanism="laplace")
            return (bare,), Cost(math.inf, math.inf, self.delta), settings
        claim = Stage(
            "labels",
            rounds,
            1.0 / settings.lam,
            1.0 / settings.lam,
            sampling_rate=rate,
            theorem="Theorems 7 and 8 of the paper, as its code computes them",
            mechanism="laplace",
        )
        exact = epsilon_pld(composed((claim,)), self.delta)
        told = published_epsilon(settings.lam, rate, rounds, self.delta)
        return (claim,), Cost(exact, told, self.delta), settings

    def inference_stages(self, plan: Plan) -> tuple[str, ...]:
        """None: the student reads public data alone."""
        return ()

    def caveats(self, plan: Plan) -> tuple[str, ...]:
        """What the promise assumes."""
        return (
            "The public graph is public: its features, its links, and which of its nodes were "
            "asked about. No degree promise is made or needed: a node is protected with every link "
            "it has, however many.",
            "The number of private training nodes is public.",
        )

    def _run(
        self, graph: Graph, plan: Plan, source: NoiseSource | None, progress: Progress
    ) -> Outcome:
        from tacit.methods.privgnn_run import PrivGnnRun

        if graph.public is None:
            raise PlanError("there is no public graph", remedy="report this as a bug")
        run = PrivGnnRun(plan, self.seed, source, progress, self.workspace)
        run.networks(self.teacher_network, self.student_network)
        released = run.ask(graph, graph.public)
        posteriors = run.learn(graph.public, released)
        run.store.forget()
        return Outcome(
            posteriors=posteriors,
            released=released,
            weights=run.weights(),
            public_posteriors=True,
            notes=tuple(run.notes),
        )

    def _infer(
        self, fitted: Fitted, graph: Graph, source: NoiseSource | None, progress: Progress
    ) -> np.ndarray:
        from tacit.methods.privgnn_run import PrivGnnRun

        run = PrivGnnRun(fitted.plan, fitted.seed, None, progress, None)
        run.networks(self.teacher_network, self.student_network)
        return run.predict(graph, fitted.outcome.weights)

    def _answer(
        self,
        fitted: Fitted,
        records: Graph,
        released: dict[str, np.ndarray],
        *,
        outsiders: bool,
    ) -> np.ndarray:
        return self._infer(fitted, records, None, lambda stage, done, total: None)


def _recharged(settings: PrivGnnSettings, facts: PublicFacts) -> tuple[Stage, ...]:
    """The same noise by sound accounting; none where nothing is proved."""
    proved = settings.posterior == "softmax" and settings.teacher != "single" and settings.lam
    sound = stage(settings, facts.classes, settings.lam if proved else 0.0, 0.0)
    return (sound if proved else replace(sound, noise_std=1 / settings.lam if settings.lam else 0),)
