"""Graph networks on a perturbed graph: EdgeRand, LapGraph, and the victim without privacy.

The graph is perturbed once; the network is trained on what came out and answers from it (Wu, Long,
Zhang, Li, "LinkTeller", IEEE S&P 2022, Algorithm 2). A new graph is perturbed once, too, and
charged to its own account.

Formal guarantees:
    Edge: pure epsilon of the perturbation (proofs/perturbation.md, Theorems 1 to 3), on symmetric
    graphs per link, on directed ones per arc. Training and all answers post-process the perturbed
    graph and public features and labels. A link that is in two graphs, each perturbed on its own,
    costs twice: :meth:`PerturbedGraph.serve` charges both accounts where it is told so.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tacit.aggregate.perturbation import Cells, check_room
from tacit.errors import PlanError
from tacit.graph import Graph, PublicFacts, load
from tacit.methods.base import Fitted, Method, Noise, Outcome, Progress
from tacit.methods.perturb_settings import PerturbSettings, Preset, choose
from tacit.methods.responses import EDGE_RAND, EXACT, LAP_GRAPH, Response
from tacit.privacy.plan import Accounting, Plan, Stage, check_budget, composed
from tacit.privacy.units import Edge, Unit

if TYPE_CHECKING:
    from tacit.methods.perturb_network import Backbone, Service
    from tacit.privacy.accounting import Cost
    from tacit.privacy.ledger import Ledger
    from tacit.privacy.noise import NoiseSource


class PerturbedGraph(Method):
    """What the methods on a perturbed graph have in common; they differ in their response.

    Args:
        unit: ``Edge()``; without privacy any.
        epsilon: The budget; ``float("inf")`` for none.
        delta: The budget's delta; the guarantee is pure, and charged as such.
        backbone: ``gcn``, ``sage`` or ``gat``.
        layers: Layers of the backbone.
        network: Makes a :class:`torch.nn.Module` with ``forward(x, adj)`` from a width, a number of
            classes and a seed, in place of a backbone; ``adj`` is a
            :class:`~tacit.learn.graph_networks.Links`.
        preset: ``tacit`` or ``paper``.
        overrides: Any other field of :class:`PerturbSettings` by name.
        accounting: ``sound``, or ``paper`` to reproduce a paper's table.
        seed: Of weights and dropout; never of privacy noise, unless ``noise="seeded"``.
        noise: ``secure`` or ``seeded``.
    """

    response: ClassVar[Response]
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        unit: Unit = Edge(),  # noqa: B008
        epsilon: float = math.inf,
        delta: float = 1e-6,
        *,
        backbone: str | None = None,
        layers: int | None = None,
        network: Backbone | None = None,
        preset: Preset = "tacit",
        overrides: Mapping[str, Any] | None = None,
        accounting: Accounting = "sound",
        seed: int = 0,
        noise: Noise = "secure",
    ) -> None:
        super().__init__(unit, epsilon, delta, accounting=accounting, seed=seed, noise=noise)
        named = {"backbone": "own" if network else backbone, "layers": layers}
        given = {**(overrides or {}), **{k: v for k, v in named.items() if v is not None}}
        self.network = network
        self._settings = choose(self.name, self.defaults, preset=preset, overrides=given)

    def plan(self, facts: PublicFacts) -> Plan:
        """The perturbation's stages, from public facts, unit and budget."""
        from tacit.privacy.accounting import Cost

        check_budget(self.epsilon, self.delta)
        if math.isfinite(self.epsilon) and not self.response.private:
            raise PlanError(
                f"{self.name} adds no noise, and no finite epsilon holds for it",
                why="it trains on the links and answers from them as they are",
                remedy="use epsilon inf, or edgerand, lapgraph, sage-edge or gap",
            )
        if math.isfinite(self.epsilon):
            stages, paid = self._within_budget()
            self._check_size(Cells(facts.nodes, facts.directed), 0.0, stages)
        else:
            stages = self.response.stages(self._settings, self.unit, self.epsilon)
            paid = Cost(math.inf, math.inf, self.delta)
        charged = stages
        if self.accounting == "paper" and self.response.recharge is not None:
            charged = self.response.recharge(stages, facts)
        return Plan(
            method=self.name,
            unit=self.unit,
            facts=facts,
            epsilon=self.epsilon,
            delta=self.delta,
            accounting=self.accounting,
            stages=stages,
            settings=self._settings,
            cost=paid,
            charged=charged,
        )

    def _within_budget(self) -> tuple[tuple[Stage, ...], Cost]:
        """The stages of the budget as a pure epsilon, and what they cost by the accountant.

        An accountant may answer a hair more than the pure epsilon; then the noise is raised.
        """
        from tacit.privacy.accounting import cost

        asked = self.epsilon
        for _ in range(100):
            stages = self.response.stages(self._settings, self.unit, asked)
            paid = cost(composed(stages), self.delta)
            spent = paid.epsilon_rdp if self.accounting == "paper" else paid.epsilon
            if spent <= self.epsilon:
                return stages, paid
            asked *= min(self.epsilon / spent, 1 - 1e-9)
        raise PlanError(
            f"no noise was found for epsilon {self.epsilon}", remedy="report this as a bug"
        )

    def inference_stages(self, plan: Plan) -> tuple[str, ...]:
        """A new graph is perturbed as the training graph was."""
        return tuple(stage.name for stage in plan.stages)

    def caveats(self, plan: Plan) -> tuple[str, ...]:
        """What the promise assumes."""
        if math.isinf(plan.epsilon):
            return ("Nothing is protected.",)
        return (
            "Features and labels are public; they are not protected at all.",
            "A graph that shares links with another one that was perturbed on its own is charged "
            "to that one's account as well only if its owner says so.",
        )

    def serve(
        self,
        graph: Any = None,
        *,
        features: np.ndarray | None = None,
        overlaps: bool = False,
        ledger: Ledger | None = None,
        run: str | None = None,
    ) -> Service:
        """Perturb a graph once, charge it once, and answer any number of questions about it.

        Args:
            graph: A new graph, charged to its own account. None for the training graph, which was
                perturbed and charged when it was fitted.
            features: Of the training graph's nodes; needed with ``graph=None`` only.
            overlaps: Whether the new graph shares links with the training graph. The training
                graph's account is then charged, too: those links are answered twice.
            ledger: Where to charge.
            run: A name under which an interrupted call may be repeated without a second charge.

        Returns:
            A service whose ``predict_proba(nodes, features)`` is free.
        """
        from tacit.methods.perturb_network import links_of, restored

        fitted = self.fitted
        weights = fitted.outcome.weights
        if graph is None:
            if features is None or len(features) != fitted.plan.facts.nodes:
                raise PlanError(
                    "the run does not keep the features of its training graph",
                    remedy=f"give features, one row for each of its {fitted.plan.facts.nodes} "
                    "nodes, or a graph",
                )
            return restored(fitted.plan, weights, self.network, features)
        graph = graph if isinstance(graph, Graph) else load(graph)
        perturbed = self._admitted(fitted, graph, overlaps, ledger, run)
        return restored(fitted.plan, weights, self.network, graph.features, links_of(perturbed))

    def _admitted(
        self, fitted: Fitted, graph: Graph, overlaps: bool, ledger: Ledger | None, run: str | None
    ) -> Graph:
        """The perturbed new graph, after every account has paid."""
        import uuid

        from tacit.graph import fingerprint

        plan, known = fitted.plan, fitted.plan.facts
        if (graph.features.shape[1], graph.directed) != (known.features, known.directed):
            raise PlanError(
                "the new graph does not fit the model",
                why=f"it has {graph.features.shape[1]} features, directed={graph.directed}; the "
                f"model knows {known.features} and directed={known.directed}",
                remedy="bring it into the same form",
            )
        self._check_graph(graph, plan)
        run = run or uuid.uuid4().hex[:16]
        accounts = dict.fromkeys([fingerprint(graph), *([fitted.data] if overlaps else [])])
        for account in accounts:
            self._charge(plan, plan.charged_event, account, run, ledger)
        return self._perturbed(graph, plan, self._source(plan))

    def _perturbed(self, graph: Graph, plan: Plan, source: NoiseSource | None) -> Graph:
        return graph if source is None else self.response.draw(graph, plan, source)

    def _check_graph(self, graph: Graph, plan: Plan) -> None:
        if math.isfinite(plan.epsilon):
            cells = Cells(graph.nodes, graph.directed)
            links = graph.arcs if graph.directed else graph.arcs / 2
            self._check_size(cells, links, plan.stages)

    def _check_size(self, cells: Cells, links: float, stages: tuple[Stage, ...]) -> None:
        """Refuse, before anything is charged or drawn, an answer that would not fit in memory."""
        from tacit.aggregate.perturbation import BYTES_PER_LINK
        from tacit.methods.perturb_network import bytes_per_link

        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
        answer = self.response.size(cells, links, stages)
        # The room for the draw is what the network on it leaves of it.
        check_room(cells, answer, memory * BYTES_PER_LINK / bytes_per_link(self._settings))

    def _run(
        self, graph: Graph, plan: Plan, source: NoiseSource | None, progress: Progress
    ) -> Outcome:
        from tacit.methods.perturb_network import train_service, weights_of

        perturbed = self._perturbed(graph, plan, source)
        service = train_service(perturbed, plan, self.seed, self.network, progress)
        return Outcome(
            posteriors=service.predict_proba(),
            released={},
            weights=weights_of(service),
            public_posteriors=isinstance(plan.unit, Edge),
        )

    def _infer(
        self, fitted: Fitted, graph: Graph, source: NoiseSource | None, progress: Progress
    ) -> np.ndarray:
        from tacit.methods.perturb_network import links_of, restored

        links = links_of(self._perturbed(graph, fitted.plan, source))
        weights = fitted.outcome.weights
        return restored(fitted.plan, weights, self.network, graph.features, links).predict_proba()

    def _answer(
        self,
        fitted: Fitted,
        records: Graph,
        released: dict[str, np.ndarray],
        *,
        outsiders: bool,
    ) -> np.ndarray:
        from tacit.methods.perturb_network import links_of, restored

        plan, weights = fitted.plan, fitted.outcome.weights
        if records.nodes == plan.facts.nodes:
            return restored(plan, weights, self.network, records.features).predict_proba()
        if not outsiders:
            raise PlanError(
                f"{records.nodes} rows do not make an answer about a graph of {plan.facts.nodes}",
                why="an answer reads the features of a node's neighbours too",
                remedy="give the features of all nodes",
            )
        # Someone who took no part and whom nobody lists hears no one.
        return restored(
            plan, weights, self.network, records.features, links_of(records)
        ).predict_proba()


class GCN(PerturbedGraph):
    """A graph network without privacy: the victim, and the level that private methods aim at."""

    name: ClassVar[str] = "gcn"
    response: ClassVar[Response] = EXACT


class EdgeRand(PerturbedGraph):
    """A graph network on a graph that was answered by randomised response."""

    name: ClassVar[str] = "edgerand"
    response: ClassVar[Response] = EDGE_RAND


class LapGraph(PerturbedGraph):
    """A graph network on the strongest of the noisy links, as many as a noisy count says."""

    name: ClassVar[str] = "lapgraph"
    response: ClassVar[Response] = LAP_GRAPH


__all__ = ["GCN", "EdgeRand", "LapGraph", "PerturbSettings", "PerturbedGraph"]
