"""The census through the conformance suite, and faults that the suite has to catch."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tacit
from tacit import Census, Edge, Graph, KNeighbors, Node, Plan
from tacit.errors import UnitError
from tacit.graph import Cut, PublicFacts, cut, synthetic
from tacit.methods import Method
from tacit.methods.base import Noise
from tacit.methods.census_student import placed
from tacit.privacy.units import Unit, zero_record
from tacit.testing import CHECKS, Case, NotApplicable, Witness

QUICK = {"epochs": 2, "encoder_epochs": 1, "encoder_hidden": 4, "hidden": 4, "cells": 4}
GRAPH = cut(
    synthetic.communities(200, mean_degree=8, features=7, classes=3, seed=2), Cut(60, 50, 50)
)
ALL = Node(links="all")
UNITS = (ALL, Node(), Node(links="all", relation="replace"))
CELLS: dict[bytes, np.ndarray] = {}


def make(unit: Unit, epsilon: float, *, seed: int, noise: Noise) -> Method:
    return Census(unit, epsilon, 1e-5, overrides=QUICK, seed=seed, noise=noise)


def answers(plan: Plan, graph: Graph, seed: int) -> list[np.ndarray]:
    """All counts, node by node."""
    settings, key = plan.settings, graph.features.tobytes()
    if key not in CELLS:
        CELLS[key] = placed(graph.public, graph.features, settings, 3, lambda *progress: None)[2]
    cells = CELLS[key]
    found = np.zeros((settings.partitions, settings.cells, graph.classes))
    for v in range(graph.nodes):
        if graph.train[v] and graph.labels[v] >= 0:
            for part in range(settings.partitions):
                found[part, cells[part, v], graph.labels[v]] += 1
    return [found]


def sizes(method: Method) -> dict[str, int]:
    return {"counts": method.fitted.outcome.released["counts"].size}


def moved(graph: Graph, v: int) -> Graph:
    """Node v with another label, and with it in another entry of each table."""
    labels = graph.labels.copy()
    labels[v] = (labels[v] + 1) % graph.classes
    return graph.with_(labels=labels)


def case(unit: Unit) -> Case:
    other = moved if unit.relation == "replace" else (lambda g, v: zero_record(g, v, column=True))
    return Case(
        make,
        unit,
        GRAPH,
        refused=(KNeighbors(k=2), Edge()),
        stage="counts",
        answers=answers,
        witnesses=tuple(Witness(GRAPH, other(GRAPH, v)) for v in (0, 7, 31)),
        sizes=sizes,
        relations=tuple(u for u in UNITS if u != unit),
    )


@pytest.mark.parametrize("unit", UNITS, ids=str)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Any, unit: Unit) -> None:
    try:
        check(case(unit))
    except NotApplicable as reason:
        pytest.fail(f"nothing to look at: {reason}")


class Quiet(Census):
    """Draws two thirds of the noise that the plan has."""

    def _run(self, graph: Graph, plan: Plan, source: Any, progress: Any) -> Any:
        stages = tuple(replace(s, noise_std=s.noise_std * 2 / 3) for s in plan.stages)
        return super()._run(graph, replace(plan, stages=stages), source, progress)


class Twice(Census):
    """Draws the noise of each entry a second time."""

    def _run(self, graph: Graph, plan: Plan, source: Any, progress: Any) -> Any:
        if source is not None:
            source.geometric(plan.stages[0].noise_std, 10**4)
        return super()._run(graph, plan, source, progress)


class Bold(Census):
    """Claims that a node is two thirds of a count."""

    def plan(self, facts: PublicFacts) -> Plan:
        plan = super().plan(facts)
        stages = tuple(replace(s, noise_std=s.noise_std * 2 / 3) for s in plan.stages)
        return replace(plan, stages=stages, charged=stages)


def linked_answers(plan: Plan, graph: Graph, seed: int) -> list[np.ndarray]:
    rows = np.stack([graph.features[graph.indices[a:b]].sum(axis=0) for a, b in spans(graph)])
    return answers(plan, graph.with_(features=(graph.features + rows).astype(np.float32)), seed)


def spans(graph: Graph) -> Any:
    return zip(graph.indptr[:-1], graph.indptr[1:], strict=True)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Quiet, "every_draw_comes_out_of_the_plan"),
        (Twice, "every_draw_comes_out_of_the_plan"),
        (Bold, "witness_reaches_the_claim"),
    ],
)
def test_the_suite_catches_a_broken_census(broken: type[Census], check: str) -> None:
    def made(unit: Unit, epsilon: float, *, seed: int, noise: Noise) -> Method:
        return broken(unit, epsilon, 1e-5, overrides=QUICK, seed=seed, noise=noise)

    found = next(c for c in CHECKS if c.__name__ == f"check_{check}")
    with pytest.raises(AssertionError):
        found(replace(case(ALL), make=made))


def test_smoothing_over_private_links_would_break_the_sensitivity() -> None:
    found = next(c for c in CHECKS if "neighbours_stay" in c.__name__)
    with pytest.raises(AssertionError, match="a neighbour moves counts"):
        found(replace(case(ALL), answers=linked_answers))


@pytest.mark.parametrize("unit", [Edge(), KNeighbors()], ids=str)
def test_a_unit_without_a_record_is_refused(unit: Unit) -> None:
    with pytest.raises(UnitError, match="reads no private link"):
        tacit.Census(unit, 1.0, 1e-5).plan(GRAPH.facts())
