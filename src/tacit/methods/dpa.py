"""DPA: distributed private aggregation. Nobody is trusted, the server least of all.

Users hold their own records. In a few rounds each sends one row, as additive shares, to parties
that add up what they get by key and add their part of the noise (Jia, Zhao, Dong, Ling, Yang, Luo,
Fu, USENIX Security 2025, Sections 4 and 5). What is released is what a trusted curator would
release with :mod:`tacit.aggregate` and the same noise. Here a session is simulated in one process;
:mod:`tacit.multiparty` runs it between processes.

Formal guarantees:
    Node(links="own"): every round is a Gaussian mechanism on sums of rows of norm at most 1, the
    numbers of pairs under a key another one; all else post-processes (proofs/dpa.md, Theorems 1 to
    7). Other units are refused. ``accounting="paper"`` runs and states what the paper claims; the
    ledger is charged what is proved of that, infinity where layers have no noise (Theorem 6).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tacit.graph import Graph, PublicFacts
from tacit.graph.graph import FloatArray
from tacit.methods.base import Fitted, Method, Noise, Outcome, Progress, refuse_unit
from tacit.methods.dpa_claims import claimed, claimed_edge, proved
from tacit.methods.dpa_settings import DpaSettings, Preset, choose
from tacit.multiparty.records import Records, summary_columns
from tacit.multiparty.ring import smallest_ring
from tacit.multiparty.session import Content, Dummies, Round, SessionPlan
from tacit.privacy.plan import Accounting, Plan, Stage, calibrated, check_budget, composed
from tacit.privacy.sensitivity import Sensitivity, hop_sums
from tacit.privacy.units import Edge, Node, Unit

if TYPE_CHECKING:
    from tacit.privacy.noise import NoiseSource

TRUST = (
    "Nobody is trusted with another's record. Server, parties and users follow the protocol, but "
    "may remember and pool what they see: the server, all other users and as many parties as the "
    "plan says (setting colluding)."
)
_PAGE = "proofs/dpa.md"
_ROUNDS: tuple[Content, ...] = ("profile", "features", "labels", "summary")


class DPA(Method):
    """Graph neural network by distributed private aggregation.

    Args:
        unit: ``Node(links="own")``: what the paper's setting protects.
        epsilon: The budget; ``float("inf")`` for none.
        delta: The budget's delta, a public number.
        max_degree: Sets the unit's ``max_degree``: D.
        preset: ``tacit``, or ``paper`` for the paper's protocol; ``accounting="paper"`` means it.
        overrides: Any field of :class:`DpaSettings` by name.
        accounting: ``sound``, or ``paper`` to reproduce the paper's tables.
        seed: Of cut lists, weights and order; never of privacy noise, unless ``noise="seeded"``.
        noise: ``secure`` or ``seeded``.

    Example:
        >>> import tacit
        >>> graph = tacit.graph.synthetic.communities(400, mean_degree=20, seed=1)
        >>> model = tacit.DPA(tacit.Node(), epsilon=8.0, delta=1e-5)
        >>> labels = model.fit(tacit.graph.split(graph, (50, 25, 25))).predict()
        >>> model.statement.unit, model.statement.epsilon <= 8.0
        ('node', True)
    """

    name: ClassVar[str] = "dpa"
    trust: ClassVar[str] = TRUST

    def __init__(
        self,
        unit: Unit = Node(),  # noqa: B008
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        max_degree: int | None = None,
        preset: Preset = "tacit",
        overrides: Mapping[str, Any] | None = None,
        accounting: Accounting = "sound",
        seed: int = 0,
        noise: Noise = "secure",
    ) -> None:
        if isinstance(unit, Node) and max_degree is not None:
            unit = replace(unit, max_degree=max_degree)
        super().__init__(unit, epsilon, delta, accounting=accounting, seed=seed, noise=noise)
        # The paper's accounting speaks of the paper's protocol and of no other.
        self.preset: Preset = "paper" if accounting == "paper" else preset
        self.overrides = dict(overrides or {})

    def plan(self, facts: PublicFacts) -> Plan:
        """Noise of every round and of the dummies, from public facts, unit and budget."""
        unit = _checked(self.unit)
        check_budget(self.epsilon, self.delta)
        paper = self.accounting == "paper"
        settings = choose(
            facts,
            self.epsilon,
            self.delta,
            preset=self.preset,
            sound=not paper,
            overrides=self.overrides,
        )
        if paper:
            stages = claimed(settings, unit, self.epsilon, self.delta)
            charged = tuple(proved(stage, settings, unit) for stage in stages)
            cost = _cost(stages, self.delta)
        else:
            stages, cost = calibrated(
                lambda scale: _sound(settings, unit, scale),
                self.epsilon,
                self.delta,
                self.accounting,
            )
            charged = stages
        return Plan(
            method=self.name,
            unit=self.unit,
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
        """A new graph is read by its own session, without profile and summary."""
        names = ("counts", *_again(plan.settings))
        return tuple(stage.name for stage in plan.stages if stage.name in names)

    def caveats(self, plan: Plan) -> tuple[str, ...]:
        """What the promise assumes."""
        settings: DpaSettings = plan.settings
        found = [
            "The shuffler hides who sent a pair; a user sends the same number of messages as "
            "everyone.",
            "A session is simulated in one process, which sees everything; between processes it "
            "runs by tacit.multiparty.",
        ]
        if settings.answer == "user":
            found.append(
                "A prediction reads that user's own features and own list of links: it is for "
                "that user (or whoever may see its record) alone. The released sums and weights "
                "are for anyone."
            )
        if plan.accounting == "paper" and math.isfinite(plan.epsilon):
            found.append(
                f"The paper states epsilon {plan.epsilon:g} and 2 delta: the sum of "
                f"{claimed_edge(settings):.4g} for numbers of pairs and the rest by its Equation 3."
                " Layers after the first have no noise: no finite epsilon is true of this run."
            )
        return tuple(found)

    def _run(
        self, graph: Graph, plan: Plan, source: NoiseSource | None, progress: Progress
    ) -> Outcome:
        from tacit.multiparty import simulation

        settings: DpaSettings = plan.settings
        deal = session_of(plan, read_degree(plan, graph))
        released, records = simulation.session(
            deal,
            graph,
            source,
            speed=settings.speed,
            clip=settings.clip,
            seed=self.seed,
            on_round=progress,
        )
        return finish(plan, deal, released, records, seed=self.seed, progress=progress)

    def _infer(
        self, fitted: Fitted, graph: Graph, source: NoiseSource | None, progress: Progress
    ) -> np.ndarray:
        from tacit.multiparty import simulation

        plan = replace(fitted.plan, facts=replace(fitted.plan.facts, nodes=graph.nodes))
        settings: DpaSettings = plan.settings
        whole = session_of(plan, read_degree(plan, graph))
        kept = tuple(turn for turn in whole.rounds if turn.content in _again(settings))
        deal = replace(whole, rounds=kept)
        released, records = simulation.session(
            deal,
            graph,
            source,
            speed=settings.speed,
            clip=settings.clip,
            seed=fitted.seed,
            on_round=progress,
        )
        return _answers(settings, deal, released, records, fitted.outcome.weights)

    def _answer(
        self,
        fitted: Fitted,
        records: Graph,
        released: dict[str, np.ndarray],
        *,
        outsiders: bool,
    ) -> np.ndarray:
        settings: DpaSettings = fitted.plan.settings
        deal = replace(session_of(fitted.plan), users=records.nodes)
        sent = np.minimum(records.out_degrees, deal.longest)
        own = Records.of(records, np.zeros_like(sent) if outsiders else sent)
        return _answers(settings, deal, released, own, fitted.outcome.weights)


def session_of(plan: Plan, degree: int | None = None) -> SessionPlan:
    """What the session of a plan does: rounds, noise, dummies and parties.

    Args:
        plan: A plan of :class:`DPA`.
        degree: The paper's D where it was read off the graph; the unit's if None.
    """
    settings: DpaSettings = plan.settings
    facts, paper = plan.facts, plan.accounting == "paper"
    planned = _degree(plan.unit)
    degree = degree or planned
    # The paper's noise is planned for the unit's D and grows with the D that was read.
    grown = math.sqrt((degree + 1) / (planned + 1)) if paper else 1.0
    width = min(settings.width or facts.features, facts.features)
    noise = {stage.name: stage.noise_std * grown for stage in plan.stages}
    if settings.distribution == "laplace":
        noise = {name: std * grown for name, std in noise.items()}

    def turns(content: Content, layers: int, columns: int) -> list[Round]:
        if not layers:
            return []
        stds = [noise[content], *[0.0 if paper else noise[content]] * (layers - 1)]
        return [
            Round(content, layer + 1, "lists", columns, std, normalise=not paper)
            for layer, std in enumerate(stds)
        ]

    rounds = []
    if settings.profile:
        rounds.append(Round("profile", 1, "everyone", facts.classes * width, noise["profile"]))
    rounds += turns("features", settings.feature_layers, width)
    rounds += turns("labels", settings.label_layers, facts.classes)
    draft = SessionPlan(
        users=facts.nodes,
        features=facts.features,
        classes=facts.classes,
        width=width,
        projection=settings.projection,
        projection_seed=0,
        parties=settings.parties,
        shares=settings.shares,
        colluding=settings.colluding,
        bits=64,
        fraction_bits=settings.fraction_bits,
        longest=degree if paper else settings.longest,
        degree=0 if paper else degree,
        self_link=settings.self_link,
        scaling=settings.scaling,
        with_val=settings.with_val,
        noise=settings.distribution,
        dummies=_dummies(plan),
        rounds=tuple(rounds),
    )
    if settings.answer == "user":
        known = 2 * facts.classes + 1 + (facts.classes if settings.profile else 0)
        last = Round("summary", 1, "everyone", summary_columns(draft, known), noise["summary"])
        rounds.append(last)
    # Later layers of the paper add up rows of any length: only the wide ring holds them.
    free = any(turn.layer > 1 and not turn.normalise for turn in rounds)
    together = settings.parties / (settings.parties - settings.colluding)
    loudest = max(turn.noise_std for turn in rounds) * math.sqrt(together)
    ring = smallest_ring(facts.nodes, settings.fraction_bits, loudest)
    return replace(draft, rounds=tuple(rounds), bits=64 if free else ring.bits)


def finish(
    plan: Plan,
    deal: SessionPlan,
    released: Mapping[str, FloatArray],
    records: Records,
    *,
    seed: int,
    progress: Progress,
) -> Outcome:
    """Learn from what a session released, however it was run, and answer for every user.

    Args:
        plan: The plan.
        deal: Its session.
        released: What the session released.
        records: The users' records: each answers from its own.
        seed: Of the server's network.
        progress: Told what is done.
    """
    from tacit.methods.dpa_network import ServerNetwork, learn_from_summary

    settings: DpaSettings = plan.settings
    if settings.answer == "user":
        weights = learn_from_summary(deal, released)
    else:
        features, labels = _last(settings, released)
        network = ServerNetwork(settings, deal.width, deal.classes, seed)
        network.fit(features, labels, records.train, records.val, progress)
        weights = network.weights()
    shown = {
        name: array
        for name, array in released.items()
        if len(array) == deal.users and (deal.rounds[0].normalise or name.startswith("labels"))
    }
    return Outcome(
        posteriors=_answers(settings, deal, released, records, weights),
        released=shown,
        weights=weights,
        public_posteriors=settings.answer == "server",
    )


def read_degree(plan: Plan, graph: Graph) -> int | None:
    """The paper's D, a quantile of the private degrees; None where D is public."""
    settings: DpaSettings = plan.settings
    if settings.clip_rate == 0:
        return None
    return max(1, int(np.quantile(graph.out_degrees, settings.clip_rate)))


def _answers(
    settings: DpaSettings,
    deal: SessionPlan,
    released: Mapping[str, FloatArray],
    records: Records,
    weights: dict[str, np.ndarray],
) -> FloatArray:
    from tacit.methods.dpa_network import ServerNetwork, answer_of_users

    if settings.answer == "user":
        return answer_of_users(deal, records, released, weights)
    network = ServerNetwork(settings, deal.width, deal.classes, 0)
    network.load(weights)
    return network.posteriors(released[f"features.{settings.feature_layers}"])


def _last(
    settings: DpaSettings, released: Mapping[str, FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """The last layer of both channels."""
    features = released[f"features.{settings.feature_layers}"]
    return features, released[f"labels.{settings.label_layers}"]


def _again(settings: DpaSettings) -> tuple[str, ...]:
    """What a session on a new graph has to sum for answers with what was learnt before."""
    return ("labels",) if settings.answer == "user" else ("features",)


def _checked(unit: Unit) -> Node:
    """The unit, if anything is proved for it."""
    if isinstance(unit, Node) and unit.links == "own":
        return unit
    if isinstance(unit, Edge):
        raise refuse_unit(
            "DPA",
            unit,
            "a list's weight and where it is cut read the whole list, so one link moves them all",
            "use Node(), which protects every link a user reports and the rest of its record",
        )
    raise refuse_unit(
        "DPA",
        unit,
        "users send their own lists, so a record is what its owner reports; links that others "
        "report cannot be bounded by anyone who sees no list but its own",
        'use Node(links="own"), or GAP with a trusted curator',
    )


def _degree(unit: Unit) -> int:
    return (unit.max_degree or 1) if isinstance(unit, Node) else 1


def _dummies(plan: Plan) -> Dummies:
    settings: DpaSettings = plan.settings
    if math.isinf(plan.epsilon) and plan.accounting == "sound":
        return Dummies("none")
    if plan.accounting == "paper":
        # The paper's figure has two dummies per node at r = 1/2: at least one each.
        return Dummies("geometric", shift=1, rate=settings.dummy_rate)
    return Dummies.hiding(plan.stage("counts").noise_std)


def _sound(settings: DpaSettings, unit: Node, scale: float) -> tuple[Stage, ...]:
    """The stages at a common scale: the noise multiplier of all of them as one Gaussian."""
    shares = _shares(settings)
    found = []
    for name, rounds, whole in _sensitivities(settings, unit):
        multiplier = scale * math.sqrt(rounds / shares[name])
        std = multiplier * whole.l2 / math.sqrt(rounds)
        found.append(Stage(name, rounds, multiplier, std, theorem=_cited(whole)))
    return tuple(found)


def _shares(settings: DpaSettings) -> dict[str, float]:
    """Shares of the budget: squared noise multipliers add up by their inverses."""
    shares = {"counts": settings.count_share}
    if settings.answer == "user":
        shares["summary"] = settings.summary_share
    channels = [("profile", settings.profile), ("features", settings.feature_layers > 0)]
    wanted = [name for name, used in channels if used]
    for name in wanted:
        shares[name] = settings.feature_share / len(wanted)
    shares["labels"] = 1 - sum(shares.values())
    return shares


def _sensitivities(settings: DpaSettings, unit: Node) -> list[tuple[str, int, Sensitivity]]:
    """Every stage with its rounds and how far one record moves all of them."""
    one, two = unit.relation == "add-remove", unit.relation == "replace"
    k = settings.longest
    counts = Sensitivity(
        math.sqrt(2 * k if two else k), "Theorem 4 (a record moves K counts by one)", _PAGE
    )
    single = Sensitivity(
        1.0 if one else 2.0, "Theorem 7 (one row of norm at most 1 under one key)", _PAGE
    )
    found = [("counts", 1, counts)]
    if settings.profile:
        found.append(("profile", 1, single))
    layers = {"features": settings.feature_layers, "labels": settings.label_layers}
    for name, number in layers.items():
        if number:
            bounded = replace(unit, max_degree=_degree(unit))
            whole = hop_sums(bounded, directed=True, hops=number, nonnegative=name == "labels")
            found.append((name, number, whole))
    if settings.answer == "user":
        found.append(("summary", 1, single))
    return found


def _cited(whole: Sensitivity) -> str:
    return f"{whole.theorem}, {whole.page}"


def _cost(stages: tuple[Stage, ...], delta: float) -> Any:
    from tacit.privacy.accounting import cost

    return cost(composed(stages), delta)
