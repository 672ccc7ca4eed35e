"""The plan: every stage's noise, sampling rate and steps, made from public facts alone.

A method makes a :class:`Plan` from :class:`~tacit.graph.PublicFacts`, a unit and a budget; it never
sees the graph, so no private value can leak into a hyper-parameter. What runs is read off the plan,
and what is charged is the plan's event: the two cannot drift apart.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tacit.errors import PlanError
from tacit.graph import PublicFacts
from tacit.privacy.units import Edge, KNeighbors, Node, Unit

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from tacit.privacy.accounting import Cost

Accounting = Literal["sound", "paper"]
Mechanism = Literal["gaussian", "geometric", "laplace", "randomized-response"]


@dataclass(frozen=True)
class Stage:
    """One stage that touches private data: noise on ``rounds`` answers.

    Attributes:
        name: What the stage is, in the paper's words.
        rounds: How many times noise is drawn: hops, or steps of DP-SGD.
        noise_multiplier: Gaussian: noise standard deviation over the L2 sensitivity of one round.
            Geometric, Laplace: noise scale over the L1 sensitivity. Randomized response: the
            probability of a uniform answer. Zero means no noise, and an infinite epsilon.
        noise_std: The noise itself, in the units of what is answered: a standard deviation, or the
            scale of geometric noise.
        sampling_rate: Probability with which a record takes part in a round; 1 for all.
        theorem: The statement that bounds the sensitivity, and its page.
        mechanism: Which noise.
        answers: Number of answers that randomized response chooses from.
        group: Records that are replaced together, where Gaussian noise hides a changed group and
            not one record that is there or not; 0 for the latter.
    """

    name: str
    rounds: int
    noise_multiplier: float
    noise_std: float
    sampling_rate: float = 1.0
    theorem: str = ""
    mechanism: Mechanism = "gaussian"
    answers: int = 2
    group: int = 0

    @property
    def event(self) -> DpEvent:
        """What this stage is, for the accountant."""
        import dp_accounting

        if self.noise_multiplier <= 0:
            return dp_accounting.NonPrivateDpEvent()
        if self.group:
            from tacit.privacy.events import group_event

            each = group_event()(self.noise_multiplier, self.group, self.sampling_rate)
            return dp_accounting.SelfComposedDpEvent(each, self.rounds)
        one: DpEvent
        match self.mechanism:
            case "gaussian":
                one = dp_accounting.GaussianDpEvent(self.noise_multiplier)
            case "geometric":
                # Exact for one step of the grid, and an upper bound for more: with sensitivity 1
                # its losses are randomized response's, which dominates every pure mechanism.
                one = dp_accounting.dp_event.DiscreteLaplaceDpEvent(1 / self.noise_multiplier, 1)
            case "laplace":
                one = dp_accounting.LaplaceDpEvent(self.noise_multiplier)
            case "randomized-response":
                one = dp_accounting.RandomizedResponseDpEvent(self.noise_multiplier, self.answers)
        if self.sampling_rate < 1:
            one = dp_accounting.PoissonSampledDpEvent(self.sampling_rate, one)
        return dp_accounting.SelfComposedDpEvent(one, self.rounds)


@dataclass(frozen=True)
class Plan:
    """What a fit will do and what it will cost, before any data are touched.

    Attributes:
        method: The method's name.
        unit: What one individual is.
        facts: The public facts that it was made from.
        epsilon: The budget asked for; infinity for none.
        delta: The budget's delta.
        accounting: ``sound`` charges what ``proofs/`` shows; ``paper`` what the paper claims.
        stages: Every access to private data. Empty when the unit does not protect what is read.
        settings: The method's settings, every automatic choice made.
        cost: What the stages cost together, under ``accounting``.
        charged: The same noise by sound accounting: what the ledger is charged. The same as
            ``stages`` unless ``accounting`` is ``paper``.
    """

    method: str
    unit: Unit
    facts: PublicFacts
    epsilon: float
    delta: float
    accounting: Accounting
    stages: tuple[Stage, ...]
    settings: Any
    cost: Cost
    charged: tuple[Stage, ...]

    @property
    def charged_event(self) -> DpEvent:
        """What the ledger is charged."""
        return composed(self.charged)

    @property
    def event(self) -> DpEvent:
        """Everything that touches private data, as one event."""
        return composed(self.stages)

    def stage(self, name: str) -> Stage:
        """The stage of that name."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise PlanError(f"the plan has no stage {name!r}", remedy="report this as a bug")

    def check_fits(self, facts: PublicFacts) -> None:
        """Refuse a graph whose public facts are not those the plan was made from."""
        mine, other = asdict(self.facts), asdict(facts)
        wrong = [
            f"{key} {other[key]} instead of {mine[key]}"
            for key in mine
            if key != "mean_degree" and mine[key] != other[key]
        ]
        if wrong:
            raise PlanError(
                f"the plan was made for another graph: {', '.join(wrong)}",
                why="noise and sampling were calibrated for those public facts",
                remedy="plan again with this graph's facts",
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON. Infinite numbers become the string ``inf``."""
        from tacit.privacy.events import describe

        return json.loads(
            json.dumps(
                _finite(
                    {
                        "method": self.method,
                        "unit": unit_to_dict(self.unit),
                        "facts": asdict(self.facts),
                        "epsilon": self.epsilon,
                        "delta": self.delta,
                        "accounting": self.accounting,
                        "stages": [
                            {**asdict(stage), "event": describe(stage.event)}
                            for stage in self.stages
                        ],
                        "settings": asdict(self.settings),
                        "cost": asdict(self.cost),
                        "charged": [asdict(stage) for stage in self.charged],
                    }
                )
            )
        )


def composed(stages: tuple[Stage, ...]) -> DpEvent:
    """The event of all stages together."""
    import dp_accounting

    events = [stage.event for stage in stages]
    return dp_accounting.ComposedDpEvent(events) if events else dp_accounting.NoOpDpEvent()


def calibrated(
    stages_at: Callable[[float], tuple[Stage, ...]],
    epsilon: float,
    delta: float,
    accounting: Accounting,
) -> tuple[tuple[Stage, ...], Cost]:
    """Scale the noise of a family of stages until it meets the budget, never past it.

    Args:
        stages_at: The stages at a common noise scale; 0 must mean no noise.
        epsilon: The budget; infinity asks for no noise.
        delta: The budget's delta.
        accounting: ``paper`` calibrates by the Renyi accountant, as the papers do.

    Returns:
        The stages and their cost.
    """
    from tacit.privacy.accounting import Cost, calibrate, calibrate_rdp, cost

    check_budget(epsilon, delta)
    if not stages_at(1.0):
        return (), Cost(0.0, 0.0, delta)
    if math.isinf(epsilon):
        return stages_at(0.0), Cost(math.inf, math.inf, delta)
    search = calibrate_rdp if accounting == "paper" else calibrate
    scale = search(lambda scale: composed(stages_at(scale)), epsilon, delta)
    stages = stages_at(scale)
    return stages, cost(composed(stages), delta)


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse a budget that means nothing."""
    if not epsilon > 0:
        raise PlanError(
            f"epsilon must be above 0, not {epsilon}", remedy="ask for 0.1 to 16, or inf for none"
        )
    if not 0 < delta < 1:
        raise PlanError(
            f"delta must lie between 0 and 1, not {delta}",
            remedy="choose a public number well below one over the number of individuals",
        )


def unit_to_dict(unit: Unit) -> dict[str, Any]:
    """Plain data for a unit, with its name."""
    return {"name": unit.name, **asdict(unit)}


def unit_from_dict(data: dict[str, Any]) -> Unit:
    """The unit that :func:`unit_to_dict` wrote."""
    fields = {key: value for key, value in data.items() if key != "name"}
    kinds: dict[str, type[Unit]] = {
        "edge": Edge,
        "node": Node,
        "node-all": Node,
        "k-neighbours": KNeighbors,
    }
    kind = kinds.get(str(data.get("name")))
    if kind is None:
        raise PlanError(f"unknown unit {data.get('name')!r}", remedy=f"one of {', '.join(kinds)}")
    return kind(**fields)


def with_degree(unit: Unit, max_degree: int) -> Unit:
    """A node unit with another degree bound."""
    return replace(unit, max_degree=max_degree) if isinstance(unit, Node) else unit


def _finite(value: Any) -> Any:
    """The same data with infinite numbers spelt out, because JSON has none."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return value
