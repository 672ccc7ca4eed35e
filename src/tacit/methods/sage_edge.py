"""GraphSAGE under edge privacy, on a graph that answered by asymmetric randomised response.

EdgeRand adds a fixed share of all absent links, which drowns a sparse graph. The asymmetric
response thins EdgeRand's answer by a public coin, so that about as many links come out as went in;
the coin's bias is a function of a noisy number of links (Imola, Murakami, Chaudhuri, USENIX
Security 2022; the baseline SAGE-EDP of GAP, and RandEdge+SAGE of DPDGC).

Formal guarantees:
    Edge: pure epsilon; the noisy count by Theorem 2 and the response by Theorem 1 of
    proofs/perturbation.md, composed. ``accounting="paper"`` answers arc by arc and charges one arc,
    as the published code does; on a symmetric graph one link is two arcs and costs twice that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from tacit.aggregate.perturbation import (
    Cells,
    noisy_count,
    randomised_response,
    sparse_response_rates,
)
from tacit.graph import Graph, PublicFacts
from tacit.methods.perturb import PerturbedGraph
from tacit.methods.perturb_settings import PerturbSettings
from tacit.methods.responses import (
    SLACK,
    Response,
    cells_of,
    count_stage,
    epsilon_of,
    pure_stage,
)
from tacit.privacy.plan import Plan, Stage
from tacit.privacy.units import Unit

if TYPE_CHECKING:
    from tacit.privacy.noise import NoiseSource

DEFAULTS: dict[str, Any] = {"backbone": "sage", "count_share": 0.1}


def _stages(settings: PerturbSettings, unit: Unit, epsilon: float) -> tuple[Stage, ...]:
    moved = cells_of(unit, "sage-edge")
    count = epsilon * settings.count_share
    budget = epsilon * (1 - settings.count_share) * SLACK
    response = pure_stage(
        "perturbation", budget, budget / moved, "Theorem 1 (one link is one coin)"
    )
    return count_stage(count), response


def _draw(graph: Graph, plan: Plan, source: NoiseSource) -> Graph:
    # The published code takes a symmetric graph for arcs that appear independently.
    arcs = plan.accounting == "paper"
    like = graph.with_(directed=True) if arcs else graph
    cells = Cells(graph.nodes, like.directed)
    links = cells.of(like)
    count = noisy_count(len(links), cells, 1 / plan.stage("count").noise_std, source)
    keep, add = rates(plan, count / cells.count)
    return cells.graph(like, randomised_response(links, cells, keep=keep, add=add, source=source))


def rates(plan: Plan, density: float) -> tuple[float, float]:
    """With which probabilities a link is kept and an absent one added, given a noisy density."""
    return sparse_response_rates(epsilon_of(plan.stage("perturbation").noise_std), density)


def _size(cells: Cells, links: float, stages: tuple[Stage, ...]) -> float:
    # About as many as went in; the noise of the count is the only way to more.
    return min(links + stages[0].noise_std, cells.count)


def _recharge(stages: tuple[Stage, ...], facts: PublicFacts) -> tuple[Stage, ...]:
    """The same noise where one link of a symmetric graph is two arcs: two counts, two coins."""
    if facts.directed or not all(stage.noise_multiplier > 0 for stage in stages):
        return stages
    return tuple(replace(stage, rounds=2 * stage.rounds) for stage in stages)


ASYMMETRIC = Response(_stages, _draw, _size, recharge=_recharge)
"""EdgeRand, thinned to about as many links as there were."""


class SageEdge(PerturbedGraph):
    """GraphSAGE on a graph answered by asymmetric randomised response."""

    name: ClassVar[str] = "sage-edge"
    response: ClassVar[Response] = ASYMMETRIC
    defaults: ClassVar[Mapping[str, Any]] = DEFAULTS
