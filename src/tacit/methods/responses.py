"""How a graph answers for itself: the perturbation of each method, its stages and its size.

A :class:`Response` plans its stages from public facts alone, foretells how large its answer will
be, and draws it. The laws and their proofs are in :mod:`tacit.aggregate.perturbation` and
proofs/perturbation.md; everything here is which of them runs, with how much of the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tacit.aggregate.perturbation import (
    Cells,
    cells_moved,
    edge_rand_rates,
    noisy_count,
    randomised_response,
    strongest_links,
)
from tacit.errors import UnitError
from tacit.graph import Graph, PublicFacts
from tacit.methods.perturb_settings import PerturbSettings
from tacit.privacy.plan import Plan, Stage
from tacit.privacy.units import Unit

if TYPE_CHECKING:
    from tacit.privacy.noise import NoiseSource

SLACK = 1 - 1e-11
"""Share of a budget that is planned: the rest covers float64 (proofs/perturbation.md)."""

PAGE = "proofs/perturbation.md"

Draw = Callable[[Graph, Plan, "NoiseSource"], Graph]
Stages = Callable[[PerturbSettings, Unit, float], tuple[Stage, ...]]
Recharge = Callable[[tuple[Stage, ...], PublicFacts], tuple[Stage, ...]]
Size = Callable[[Cells, float, tuple[Stage, ...]], float]


@dataclass(frozen=True)
class Response:
    """One way to perturb a graph.

    Attributes:
        stages: The stages under a unit and a finite epsilon.
        draw: The perturbed graph; noise comes from the source alone, by the plan's stages.
        size: Expected number of links of the answer, given the possible links, how many there are
            and the stages.
        private: Whether it protects anything; one that does not takes no finite budget.
        recharge: What the stages of ``accounting="paper"`` cost by sound accounting; None where the
            paper's claim is what is proved.
    """

    stages: Stages
    draw: Draw
    size: Size
    private: bool = True
    recharge: Recharge | None = None


def cells_of(unit: Unit, method: str) -> int:
    """How many cells one individual moves, or a refusal with the reason."""
    moved = cells_moved(unit)
    if moved is None:
        raise UnitError(
            f"{method} promises nothing under {unit.name}",
            why="every possible link is answered on its own, and one node has as many of them as "
            "there are nodes; its features and label are read as they are",
            remedy="use Edge(), or a method that protects nodes, such as gap",
        )
    return moved


def pure_stage(name: str, epsilon: float, cell_epsilon: float, theorem: str) -> Stage:
    """A stage of pure epsilon, charged as the randomised response that dominates all such.

    Its ``noise_multiplier`` is the probability of a uniform answer of the dominating response (at
    what one individual costs), its ``noise_std`` that of one cell.
    """
    return Stage(
        name,
        1,
        0.0 if math.isinf(epsilon) else uniform_share(epsilon),
        0.0 if math.isinf(cell_epsilon) else uniform_share(cell_epsilon),
        theorem=f"{theorem}, {PAGE}",
        mechanism="randomized-response",
    )


def uniform_share(epsilon: float) -> float:
    """``s = 2 / (e^epsilon + 1)``: EdgeRand answers a cell uniformly with this probability."""
    return 2 * edge_rand_rates(epsilon)[1]


def epsilon_of(share: float) -> float:
    """``ln(2/s - 1)``: the epsilon of a response that answers uniformly with probability s."""
    return math.log(2 / share - 1)


# -- no perturbation -----------------------------------------------------------------------------


def _exact_stages(settings: PerturbSettings, unit: Unit, epsilon: float) -> tuple[Stage, ...]:
    return (Stage("links", 1, 0.0, 0.0),)


def _exact_draw(graph: Graph, plan: Plan, source: NoiseSource) -> Graph:
    return graph


def _exact_size(cells: Cells, links: float, stages: tuple[Stage, ...]) -> float:
    return links


EXACT = Response(_exact_stages, _exact_draw, _exact_size, private=False)
"""The graph as it is."""


# -- EdgeRand ------------------------------------------------------------------------------------


def _edge_rand_stages(settings: PerturbSettings, unit: Unit, epsilon: float) -> tuple[Stage, ...]:
    budget = epsilon * SLACK
    cell = budget / cells_of(unit, "edgerand")
    return (pure_stage("perturbation", budget, cell, "Theorem 1 (one link is one coin)"),)


def _edge_rand_draw(graph: Graph, plan: Plan, source: NoiseSource) -> Graph:
    share = plan.stage("perturbation").noise_std
    cells = Cells(graph.nodes, graph.directed)
    links = cells.of(graph)
    answer = randomised_response(links, cells, keep=1 - share / 2, add=share / 2, source=source)
    return cells.graph(graph, answer)


def _edge_rand_size(cells: Cells, links: float, stages: tuple[Stage, ...]) -> float:
    share = stages[0].noise_std
    return links * (1 - share / 2) + (cells.count - links) * share / 2


EDGE_RAND = Response(_edge_rand_stages, _edge_rand_draw, _edge_rand_size)
"""Randomised response on every possible link (LinkTeller, Algorithm 3)."""


# -- LapGraph ------------------------------------------------------------------------------------


def count_stage(epsilon: float) -> Stage:
    """The noisy number of links: one link moves it by 1."""
    scale = 0.0 if math.isinf(epsilon) else 1 / epsilon
    theorem = f"Theorem 2 (one link moves the number of links by 1), {PAGE}"
    return Stage("count", 1, scale, scale, theorem=theorem, mechanism="geometric")


def _lap_graph_stages(settings: PerturbSettings, unit: Unit, epsilon: float) -> tuple[Stage, ...]:
    moved = cells_of(unit, "lapgraph")
    count = epsilon * settings.count_share
    budget = epsilon * (1 - settings.count_share) * SLACK
    scale = 0.0 if math.isinf(epsilon) else 1 / budget
    theorem = f"Theorem 3 (one link moves one noisy cell by 1), {PAGE}"
    cells = Stage("perturbation", 1, scale, scale * moved, theorem=theorem, mechanism="geometric")
    return count_stage(count), cells


def _lap_graph_draw(graph: Graph, plan: Plan, source: NoiseSource) -> Graph:
    cells = Cells(graph.nodes, graph.directed)
    links = cells.of(graph)
    target = noisy_count(len(links), cells, 1 / plan.stage("count").noise_std, source)
    cell_epsilon = 1 / plan.stage("perturbation").noise_std
    return cells.graph(graph, strongest_links(links, cells, target, cell_epsilon, source))


def _lap_graph_size(cells: Cells, links: float, stages: tuple[Stage, ...]) -> float:
    return min(links + stages[0].noise_std, cells.count)


LAP_GRAPH = Response(_lap_graph_stages, _lap_graph_draw, _lap_graph_size)
"""The strongest of noisy cells, as many as a noisy count says (LinkTeller, Algorithm 4)."""
