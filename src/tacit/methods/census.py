"""The census: one noisy table of private nodes by public cell and class, and a student of it.

A map from features to cells is made from the public graph. Every labelled private node is counted
in the cell of its own features, under its label; the table of counts is released once, with
two-sided geometric noise; a student on the public graph learns from the table.

Formal guarantees:
    Node, ``links="own"`` or ``links="all"``, without any promise about degrees: pure epsilon. One
    node, with its features, its label and every link to or from it, is one count of the table
    (proofs/census.md, Theorems 1 to 3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tacit.errors import PlanError
from tacit.graph import Graph, PublicFacts
from tacit.methods.base import (
    Fitted,
    Method,
    Noise,
    Outcome,
    Progress,
    no_public_graph,
    refuse_unit,
)
from tacit.privacy.plan import Accounting, Plan, Stage, check_budget
from tacit.privacy.units import Edge, Node, Unit

if TYPE_CHECKING:
    from tacit.privacy.noise import NoiseSource


@dataclass(frozen=True)
class CensusSettings:
    """Everything about the census but its unit and budget.

    Attributes:
        cells: Number of cells of each partition.
        partitions: Number of partitions into cells; they share the budget.
        width: Width of projected feature rows.
        context: Hops of public neighbours that cells follow; 0 for raw features.
        encoder_hidden: Hidden width of the encoder that tells the context from own features.
        encoder_epochs: Steps of its training.
        reach: Hops of public neighbours that the student sees.
        hidden: Hidden width of the student.
        layers: Linear layers of the student.
        dropout: Of its hidden layers.
        epochs: Steps of its training.
        learning_rate: Of its training.
        weight_decay: Of its training.
        distil: Weight of each node's own cell beside the mean of the cell.
        smooth: Share of the neighbours' mean in an answer.
    """

    cells: int
    partitions: int
    width: int
    context: int
    encoder_hidden: int
    encoder_epochs: int
    reach: int
    hidden: int
    layers: int
    dropout: float
    epochs: int
    learning_rate: float
    weight_decay: float
    distil: float
    smooth: float


_DEFAULT = CensusSettings(
    1, 1, 128, 2, 256, 120, 3, 64, 2, 0.5, 60, 0.01, 5e-4, 0.1, 0.5
)  # fmt: skip


def cell_count(facts: PublicFacts, epsilon: float, partitions: int = 1) -> int:
    """How many cells: ``2.5 sqrt(n epsilon)``, so that noise stays small beside a cell's counts.

    Never more than one for 20 public nodes, whose mean answer has to stand for the cell, and never
    fewer than twice the classes (or one for each public node).
    """
    most = facts.public_nodes // 20
    if math.isfinite(epsilon):
        most = min(most, round(2.5 * math.sqrt(facts.train_nodes * epsilon / partitions)))
    return max(1, min(max(most, 2 * facts.classes), facts.public_nodes))


def partition_count(epsilon: float) -> int:
    """How many partitions: one for each unit of epsilon, from one to four.

    Each costs its share of the budget. Where cells are as many as public nodes allow, other cells
    say more than less noise does; below an epsilon of 1.5 the noise decides.
    """
    return max(1, round(min(epsilon, 4.0)))


class Census(Method):
    """One noisy table of counts by public cell and class, and a student on the public graph.

    Args:
        unit: ``Node(...)``, with either reading of links; no degree promise is needed.
        epsilon: The budget; pure, so that delta buys nothing.
        delta: The delta at which the accountant states the cost.
        preset: ``tacit``; there is no paper.
        overrides: Any field of :class:`CensusSettings` by name.
        accounting: ``sound``; there is no paper.
        seed: Of cells, weights and dropout; never of privacy noise, unless ``noise="seeded"``.
        noise: ``secure`` or ``seeded``.

    Example:
        >>> import tacit
        >>> whole = tacit.graph.synthetic.communities(600, mean_degree=12, seed=1)
        >>> private = tacit.graph.cut(whole, tacit.graph.Cut(300, 150, 150))
        >>> model = tacit.Census(epsilon=2.0, overrides={"epochs": 5, "encoder_epochs": 5})
        >>> labels = model.fit(private).predict()  # of the public nodes
        >>> len(labels), model.statement.unit, model.statement.epsilon <= 2.0
        (300, 'node-all', True)
    """

    name: ClassVar[str] = "census"
    learns_for_public: ClassVar[bool] = True

    def __init__(
        self,
        unit: Unit = Node(links="all"),  # noqa: B008
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        preset: str = "tacit",
        overrides: Mapping[str, Any] | None = None,
        accounting: Accounting = "sound",
        seed: int = 0,
        noise: Noise = "secure",
    ) -> None:
        super().__init__(unit, epsilon, delta, accounting=accounting, seed=seed, noise=noise)
        if preset != "tacit" or accounting != "sound":
            raise PlanError(
                "the census is in no paper",
                why="it is Tacit's own, and charges what proofs/census.md shows",
                remedy="leave preset and accounting out",
            )
        self.overrides = dict(overrides or {})
        known = {field.name for field in fields(CensusSettings)}
        if unknown := sorted(set(self.overrides) - known):
            raise PlanError(
                f"Census has no setting {unknown[0]!r}",
                remedy=f"choose from {', '.join(sorted(known))}",
            )

    def plan(self, facts: PublicFacts) -> Plan:
        """One stage of geometric noise, of scale ``sensitivity / epsilon``."""
        from tacit.privacy.accounting import Cost, cost

        check_budget(self.epsilon, self.delta)
        if facts.public_nodes < 1:
            raise no_public_graph(self.name)
        moved, theorem = _moved(self.unit)
        settings = self._settings(facts)
        # All partitions are one release: a node moves each of its tables.
        scale = 0.0 if math.isinf(self.epsilon) else 1 / self.epsilon
        stage = Stage(
            "counts",
            1,
            scale,
            scale * moved * settings.partitions,
            theorem=f"{theorem}, proofs/census.md",
            mechanism="geometric",
        )
        free = Cost(math.inf, math.inf, self.delta)
        return Plan(
            method=self.name,
            unit=self.unit,
            facts=facts,
            epsilon=self.epsilon,
            delta=self.delta,
            accounting=self.accounting,
            stages=(stage,),
            settings=settings,
            cost=cost(stage.event, self.delta) if scale else free,
            charged=(stage,),
        )

    def _settings(self, facts: PublicFacts) -> CensusSettings:
        values = {field.name: getattr(_DEFAULT, field.name) for field in fields(CensusSettings)}
        values["partitions"] = partition_count(self.epsilon)
        values |= self.overrides
        if not 1 <= values["partitions"] <= 100:
            raise PlanError(
                f"partitions cannot be {values['partitions']}", remedy="use 1, or a few"
            )
        if "cells" not in self.overrides:
            values["cells"] = cell_count(facts, self.epsilon, values["partitions"])
        settings = CensusSettings(**values)
        if not 1 <= settings.cells <= facts.public_nodes:
            raise PlanError(
                f"{facts.public_nodes} public nodes cannot make {settings.cells} cells",
                remedy="leave cells out, or ask for fewer",
            )
        if min(settings.reach, settings.context) < 0 or not 0 <= settings.smooth <= 1:
            raise PlanError("hops cannot be negative, and smooth is a share from 0 to 1")
        return settings

    def inference_stages(self, plan: Plan) -> tuple[str, ...]:
        """None: a new public graph is public."""
        return ()

    def caveats(self, plan: Plan) -> tuple[str, ...]:
        """What the promise assumes."""
        pure = "" if math.isinf(plan.epsilon) else f" (pure: epsilon {plan.epsilon:g} at delta 0)"
        return (
            "The public graph is public: its features and links are protected nowhere, it does "
            "not change with a private node, and nothing private chose it.",
            f"The table of counts is released once{pure}. No degree is promised or needed: private "
            "links are never read, so a node is protected with all that is attached to it.",
        )

    def _run(
        self, graph: Graph, plan: Plan, source: NoiseSource | None, progress: Progress
    ) -> Outcome:
        from tacit.methods.census_student import Student, placed

        public = graph.public
        if public is None:
            raise no_public_graph(self.name)
        settings: CensusSettings = plan.settings
        columns, mine, theirs = placed(public, graph.features, settings, self.seed, progress)
        exact = tables(graph, theirs, settings.cells)
        stage = plan.stage("counts")
        noisy = exact if source is None else exact + source.geometric(stage.noise_std, exact.shape)
        student = Student.taught(
            public, columns, mine, noisy, stage.noise_std, settings, self.seed, progress
        )
        return Outcome(
            posteriors=student.posteriors(public),
            released={"counts": noisy.reshape(-1, graph.classes)},
            weights=student.arrays(),
            public_posteriors=True,
        )

    def _infer(
        self, fitted: Fitted, graph: Graph, source: NoiseSource | None, progress: Progress
    ) -> np.ndarray:
        from tacit.methods.census_student import Student

        facts, settings = fitted.plan.facts, fitted.plan.settings
        return Student.of(fitted.outcome.weights, facts.classes, settings).posteriors(graph)

    def _answer(
        self,
        fitted: Fitted,
        records: Graph,
        released: dict[str, np.ndarray],
        *,
        outsiders: bool,
    ) -> np.ndarray:
        return self._infer(fitted, records, None, lambda stage, done, total: None)


def tables(graph: Graph, cells: np.ndarray, count: int) -> np.ndarray:
    """The exact counts. Private.

    Each node in the training mask adds one to the entry of its cell and its label, in each
    partition; it reads its own row of ``cells``, its own label and its own mask.

    Args:
        graph: The private graph.
        cells: The cell of each private node by its own features, one row for each partition.
        count: Number of cells.

    Returns:
        Integers [partitions, cells, classes].
    """
    who = np.flatnonzero(graph.train)
    found = np.zeros((len(cells), count, graph.classes), np.int64)
    for table, row in zip(found, cells, strict=True):
        np.add.at(table, (row[who], graph.labels[who]), 1)
    return found


def _moved(unit: Unit) -> tuple[int, str]:
    """L1 sensitivity of one table, and its theorem."""
    if not isinstance(unit, Node):
        what = "links" if isinstance(unit, Edge) else "k links beside the record"
        raise refuse_unit(
            "the census",
            unit,
            f"it reads no private link, so a promise about {what} would say nothing about what "
            "it does read: features and labels",
            'use Node(links="all"), which protects a node with every link, however many',
        )
    if unit.relation == "replace":
        return 2, "Theorem 2 (a replaced record leaves one entry of the table for another)"
    return 1, "Theorem 1 (one node is one count in one entry of the table)"
