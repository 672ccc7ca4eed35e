"""What every method is: plan from public facts, charge, run, state what was promised."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from tacit.errors import PlanError, TrainingError, UnitError
from tacit.graph import Graph, PublicFacts, fingerprint, load
from tacit.graph.checks import check_training
from tacit.graph.cut import beside, check_public, without_labels
from tacit.privacy.plan import Accounting, Plan
from tacit.privacy.statement import Statement
from tacit.privacy.units import Unit

if TYPE_CHECKING:
    from tacit.privacy.ledger import Ledger
    from tacit.privacy.noise import NoiseSource

Noise = Literal["secure", "seeded"]
Progress = Callable[[str, int, int], None]
"""Called with a stage's name, what is done and what there is in all."""


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind.

    Attributes:
        posteriors: Class probabilities of every node (of the public graph, where a method learns
            for one). A row may read its own node's record.
        released: What passed the mechanism and may be shown to anyone: the noisy hops.
        weights: Trained parameters by name. Covered by the statement.
        public_posteriors: Whether ``posteriors`` are post-processing of what was released and of
            public data, so that they may be shown to anyone and not to each node alone.
        notes: Choices made on the way that the statement covers.
    """

    posteriors: np.ndarray
    released: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]
    public_posteriors: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fitted:
    """The result of one fit.

    Attributes:
        plan: What ran.
        statement: What it promises.
        outcome: What it left behind.
        metrics: Accuracies on the private graph, or on the public one where the method learns for
            one. Private: they never enter a bundle.
        run: The run's name in the ledger.
        data: The fingerprint of the graph.
        seconds: Wall time of the fit.
        classes: The owner's names of the classes, if there are any.
    """

    plan: Plan
    statement: Statement
    outcome: Outcome
    metrics: dict[str, float]
    run: str
    data: str
    seconds: float
    seed: int = 0
    classes: tuple[str, ...] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> np.ndarray:
        """The predicted class of every node of the training graph. Free."""
        return self.outcome.posteriors.argmax(axis=1)


class Method(ABC):
    """A private learner: ``fit`` plans, charges the ledger, runs, and states what was promised.

    Args:
        unit: What one individual is.
        epsilon: The budget; ``float("inf")`` for none.
        delta: The budget's delta, a public number.
        accounting: ``sound``, or ``paper`` to reproduce a paper's table.
        seed: Of splits, weights and order. Never of privacy noise, unless ``noise="seeded"``.
        noise: ``secure``, or ``seeded`` for research; the result is stamped and stays inside.
    """

    name: ClassVar[str]
    learns_for_public: ClassVar[bool] = False
    """Whether it answers for a public graph beside the private one, and for that one alone."""
    trust: ClassVar[str] = (
        "One trusted curator holds the whole graph and runs the mechanism; whoever receives what "
        "is released may know everything else, and may join with others."
    )

    def __init__(
        self,
        unit: Unit,
        epsilon: float,
        delta: float,
        *,
        accounting: Accounting = "sound",
        seed: int = 0,
        noise: Noise = "secure",
    ) -> None:
        if accounting not in ("sound", "paper"):
            raise PlanError(f"unknown accounting {accounting!r}", remedy="use sound or paper")
        if noise not in ("secure", "seeded"):
            raise PlanError(f"unknown noise {noise!r}", remedy="use secure or seeded")
        self.unit, self.epsilon, self.delta = unit, float(epsilon), float(delta)
        self.accounting: Accounting = accounting
        self.seed, self.noise = seed, noise
        self._fitted: Fitted | None = None
        self.workspace: Path | None = None
        """A private folder in which a long fit keeps what an interrupted run goes on from."""

    @abstractmethod
    def plan(self, facts: PublicFacts) -> Plan:
        """Every stage's noise and steps, from public facts, unit and budget alone."""

    @abstractmethod
    def _run(
        self, graph: Graph, plan: Plan, source: NoiseSource | None, progress: Progress
    ) -> Outcome:
        """Carry the plan out. The ledger was charged; noise comes from ``source`` alone.

        A method that learns for a public graph finds it in ``graph.public``, without its labels,
        and answers with one row for each of its nodes.
        """

    @abstractmethod
    def _infer(
        self, fitted: Fitted, graph: Graph, source: NoiseSource | None, progress: Progress
    ) -> np.ndarray:
        """Posteriors on a new graph, with the noise of the plan's inference stages."""

    @abstractmethod
    def _answer(
        self,
        fitted: Fitted,
        records: Graph,
        released: dict[str, np.ndarray],
        *,
        outsiders: bool,
    ) -> np.ndarray:
        """Posteriors of own records from what was released; touches no other private data. Free.

        Args:
            fitted: The result to answer with; its weights are read, and nothing else it left.
            records: A graph that holds each record: features, own list, label if it was trained on.
            released: Rows of what was released, one for each node of ``records``.
            outsiders: Whether the records took no part in what was released.
        """

    @abstractmethod
    def inference_stages(self, plan: Plan) -> tuple[str, ...]:
        """Names of the plan's stages that touch a new graph at prediction."""

    @abstractmethod
    def caveats(self, plan: Plan) -> tuple[str, ...]:
        """What the promise assumes, in sentences for the statement."""

    def fit(
        self,
        graph: Any,
        plan: Plan | None = None,
        ledger: Ledger | None = None,
        *,
        public: Any = None,
        run: str | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Train on a private graph and remember the result.

        Args:
            graph: A :class:`~tacit.graph.Graph`, anything :func:`tacit.load` reads.
            plan: A plan made earlier with :meth:`plan`; made now if None.
            ledger: Where to charge; the default ledger if None. Charged before noise is drawn.
            public: The public graph that a method of that kind learns for, unless ``graph`` has it
                beside it already (:func:`tacit.graph.beside`, :func:`tacit.graph.cut`).
            run: A name under which an interrupted run may resume without a second charge.
            progress: Called with a stage's name, what is done, and what there is in all.

        Returns:
            Itself.
        """
        started = time.perf_counter()
        graph = self._prepared(graph, public)
        if not self.learns_for_public:
            check_training(graph)
        if plan is None:
            plan = self.plan(graph.facts())
        plan.check_fits(graph.facts())
        self._check_own(plan)
        self._check_graph(graph, plan)
        run = run or uuid.uuid4().hex[:16]
        data = fingerprint(graph)
        self._charge(plan, plan.charged_event, data, run, ledger)
        source = self._source(plan)
        scored = graph if graph.public is None else graph.public
        blind = None if graph.public is None else without_labels(graph.public)
        outcome = self._run(graph.with_(public=blind), plan, source, progress or _silent)
        if not np.isfinite(outcome.posteriors).all():
            raise TrainingError(
                "the model answers with numbers that are not finite",
                remedy="lower the learning rate; nothing was released",
            )
        self._fitted = Fitted(
            plan=plan,
            statement=self.state(plan, source),
            outcome=outcome,
            metrics=accuracies(outcome.posteriors, scored),
            run=run,
            data=data,
            seconds=time.perf_counter() - started,
            seed=self.seed,
            classes=graph.class_names,
        )
        return self

    def predict_proba(
        self,
        graph: Any = None,
        *,
        ledger: Ledger | None = None,
        run: str | None = None,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Class probabilities: of the training graph for free, of a new graph at its own cost.

        A new private graph is charged to that graph's own ledger account, because its links (and
        under node units its records) are read with fresh noise. A method that learned for a public
        graph answers for that one, and for any other public graph, for free.
        """
        fitted = self.fitted
        if graph is None:
            return fitted.outcome.posteriors
        graph = graph if isinstance(graph, Graph) else load(graph)
        known, width = fitted.plan.facts, graph.features.shape[1]
        # Not graph.facts(): a graph to predict on needs no training nodes.
        # What was learnt for a public graph reads the links of any other both ways.
        kind = known.directed if self.learns_for_public else graph.directed
        if (width, kind) != (known.features, known.directed):
            raise PlanError(
                "the new graph does not fit the model",
                why=f"it has {width} features, directed={graph.directed}; the model knows "
                f"{known.features} and directed={known.directed}",
                remedy="bring it into the same form",
            )
        self._check_graph(graph, fitted.plan)
        names = self.inference_stages(fitted.plan)
        if names:
            from tacit.privacy.plan import composed

            used = tuple(stage for stage in fitted.plan.charged if stage.name in names)
            run = run or uuid.uuid4().hex[:16]
            self._charge(fitted.plan, composed(used), fingerprint(graph), run, ledger)
        return self._infer(fitted, graph, self._source(fitted.plan), progress or _silent)

    def predict(
        self,
        graph: Any = None,
        *,
        ledger: Ledger | None = None,
        run: str | None = None,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Predicted classes; see :meth:`predict_proba` for what it costs."""
        return self.predict_proba(graph, ledger=ledger, run=run, progress=progress).argmax(axis=1)

    @property
    def fitted(self) -> Fitted:
        """The result of the last fit."""
        if self._fitted is None:
            raise PlanError("the model is not fitted", remedy="call fit(graph) first")
        return self._fitted

    def restore(self, fitted: Fitted) -> Self:
        """Take up a result that was saved earlier."""
        self._fitted = fitted
        return self

    @property
    def statement(self) -> Statement:
        """What the last fit promises: unit, relation, epsilon, delta, theorems, assumptions."""
        return self.fitted.statement

    def state(self, plan: Plan, source: NoiseSource | None) -> Statement:
        """The statement of a plan carried out with noise from ``source``."""
        from tacit.privacy.events import describe

        private = source is None or source.private
        return Statement(
            method=plan.method,
            unit=plan.unit.name,
            relation=plan.unit.relation,
            unit_words=plan.unit.words(plan.facts.directed),
            epsilon=plan.cost.epsilon_rdp if plan.accounting == "paper" else plan.cost.epsilon,
            delta=plan.delta,
            epsilon_rdp=plan.cost.epsilon_rdp,
            accountant="privacy loss distribution decides, Renyi cross-checks"
            if plan.accounting == "sound"
            else "Renyi, as the paper does",
            events=tuple(f"{s.name}: {describe(s.event)}" for s in plan.stages),
            accounting=plan.accounting,
            private_noise=private,
            noise="none is needed" if not plan.stages else _words(source),
            trust_model=self.trust,
            assumptions=(*self.caveats(plan), *ASSUMPTIONS),
            not_covered=NOT_COVERED,
            theorems=tuple(dict.fromkeys(s.theorem for s in plan.stages if s.theorem)),
        )

    def promise(self, plan: Plan) -> Statement:
        """The statement that a fit of this plan would make; nothing is drawn."""
        return self.state(plan, self._source(plan))

    def _source(self, plan: Plan) -> NoiseSource | None:
        from tacit.privacy.noise import NoiseSource

        if not any(stage.noise_multiplier > 0 for stage in plan.stages):
            return None
        return NoiseSource.seeded(self.seed) if self.noise == "seeded" else NoiseSource.fresh()

    def _charge(self, plan: Plan, event: Any, data: str, run: str, ledger: Ledger | None) -> None:
        import dp_accounting

        from tacit.privacy.ledger import Ledger as DefaultLedger

        if not plan.stages:
            return
        if self.noise == "seeded":
            # Noise that can be drawn again protects nothing, and the ledger has to say so.
            event = dp_accounting.NonPrivateDpEvent()
        (ledger or DefaultLedger()).charge(
            fingerprint=data,
            run=run,
            unit=plan.unit.name,
            event=event,
            delta=plan.delta,
            note=f"{plan.method}, {plan.accounting} accounting",
        )

    def _prepared(self, graph: Any, public: Any) -> Graph:
        """The graph to fit, with the public graph beside it where the method learns for one."""
        graph = graph if isinstance(graph, Graph) else load(graph)
        if public is not None:
            graph = beside(graph, public if isinstance(public, Graph) else load(public))
        if self.learns_for_public and graph.public is None:
            raise no_public_graph(self.name)
        if graph.public is not None:
            if not self.learns_for_public:
                raise PlanError(
                    f"{self.name} reads one graph and has no use for a public one",
                    remedy="leave the public graph out, or use a method that learns for one",
                )
            check_public(graph, graph.public)
        return graph

    def _check_own(self, plan: Plan) -> None:
        if plan.method != self.name or plan.unit != self.unit:
            raise PlanError(
                f"this plan is for {plan.method} under {plan.unit.name}",
                why=f"the model is {self.name} under {self.unit.name}",
                remedy="use the plan with the model that made it",
            )

    def _check_graph(self, graph: Graph, plan: Plan) -> None:
        from tacit.aggregate.hop_sum import check_promise

        if plan.stages:
            check_promise(graph, plan.unit)


def accuracies(posteriors: np.ndarray, graph: Graph) -> dict[str, float]:
    """Accuracy on each split that has labelled nodes. Private figures."""
    right = posteriors.argmax(axis=1) == graph.labels
    found = {}
    for name, mask in (("train", graph.train), ("val", graph.val), ("test", graph.test)):
        known = mask & (graph.labels >= 0)
        if known.any():
            found[f"{name}_accuracy"] = float(right[known].mean())
    return found


def refuse_unit(method: str, unit: Unit, why: str, remedy: str) -> UnitError:
    """The error of a method that cannot promise anything under a unit."""
    return UnitError(f"{method} promises nothing under {unit.name}", why=why, remedy=remedy)


def no_public_graph(method: str) -> PlanError:
    """The error of a method that learns for a public graph and was given none."""
    return PlanError(
        f"{method} learns for a public graph, and there is none",
        why="only what it says of public nodes leaves",
        remedy="give public=..., or cut one file: --set private_nodes=... "
        "--set public_train=... --set public_test=...",
    )


ASSUMPTIONS = (
    "The number of nodes, the widths, the classes and the split into training, validation and test "
    "nodes are public.",
    "Hyper-parameters came from public facts; a setting tuned on the private data is not covered.",
    "The logarithm and tangent of the C library are right to 4 units in the last place "
    "(proofs/noise.md); where DP-SGD trains, adding a record moves other records' float32 rounding "
    "by less than the margin kept for it (proofs/dpsgd.md, A1 to A3).",
)
NOT_COVERED = (
    "Accuracies, training curves and other figures in the run folder: they read private data.",
    "Timing and memory use of the program while it runs.",
    "Other releases from the same data: the ledger adds those up.",
    "Inferences that hold for the population whether or not an individual took part.",
)


def _words(source: NoiseSource | None) -> str:
    return "none (epsilon is infinite)" if source is None else source.implementation


def _silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""
