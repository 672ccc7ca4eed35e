"""Plans: noise from public facts alone, up to the budget, written and read exactly."""

import json
import math
from dataclasses import replace

import pytest

from tacit import GAP, Edge, KNeighbors, Node, PublicFacts
from tacit.errors import PlanError
from tacit.methods.run import plan_from_dict
from tacit.privacy.accounting import epsilon_pld
from tacit.privacy.plan import (
    Stage,
    calibrated,
    check_budget,
    composed,
    unit_from_dict,
    unit_to_dict,
)

FACTS = PublicFacts(nodes=20_000, train_nodes=15_000, features=100, classes=5)


@pytest.mark.parametrize("target", [0.1, 1.0, 4.0, 16.0])
def test_calibration_ends_just_below_the_target(target: float) -> None:
    def stages(scale: float) -> tuple[Stage, ...]:
        return (Stage("sums", 2, scale, scale), Stage("steps", 50, 3 * scale, 1.0, 0.1))

    found, cost = calibrated(stages, target, 1e-5, "sound")
    assert 0.999 * target < cost.epsilon <= target
    less = tuple(replace(s, noise_multiplier=0.98 * s.noise_multiplier) for s in found)
    assert epsilon_pld(composed(less), 1e-5) > target


def test_two_gaussian_rounds_have_the_golden_noise() -> None:
    """K = 2, delta 1e-5, epsilon 4: 1.52899 (analytic Gaussian mechanism, design table)."""
    found, _ = calibrated(lambda scale: (Stage("sums", 2, scale, scale),), 4.0, 1e-5, "sound")
    assert found[0].noise_multiplier == pytest.approx(1.52899, rel=2e-4)
    paper, _ = calibrated(lambda scale: (Stage("sums", 2, scale, scale),), 4.0, 1e-5, "paper")
    assert paper[0].noise_multiplier == pytest.approx(1.6370, rel=2e-3)


def test_a_plan_fits_only_the_facts_it_was_made_from() -> None:
    plan = GAP(Edge(), 1.0, 1e-6).plan(FACTS)
    plan.check_fits(replace(FACTS))
    with pytest.raises(PlanError, match="classes 6 instead of 5"):
        plan.check_fits(replace(FACTS, classes=6))


@pytest.mark.parametrize("unit", [Edge(), Node(), Node(links="all", max_degree=9)], ids=str)
@pytest.mark.parametrize("epsilon", [2.0, math.inf])
def test_plans_survive_json(unit: Edge | Node, epsilon: float) -> None:
    plan = GAP(unit, epsilon, 1e-5).plan(FACTS)
    assert plan_from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.parametrize(
    "unit",
    [Edge(relation="replace"), Node(max_degree=3), Node(links="all"), KNeighbors(k=4)],
    ids=str,
)
def test_units_survive_json(unit: Edge | Node | KNeighbors) -> None:
    assert unit_from_dict(json.loads(json.dumps(unit_to_dict(unit)))) == unit


@pytest.mark.parametrize(("epsilon", "delta"), [(0, 1e-5), (-1, 1e-5), (1, 0), (1, 1), (1, -1)])
def test_budgets_that_mean_nothing(epsilon: float, delta: float) -> None:
    with pytest.raises(PlanError):
        check_budget(epsilon, delta)
