"""What the DPA paper claims of its noise, and what is proved of that noise."""

from __future__ import annotations

import math
from dataclasses import replace

from tacit.errors import PlanError
from tacit.methods.dpa_settings import DpaSettings
from tacit.privacy.plan import Stage
from tacit.privacy.sensitivity import hop_sums
from tacit.privacy.units import Node

_PAGE = "proofs/dpa.md"


def claimed_edge(settings: DpaSettings) -> float:
    """The paper's epsilon of numbers of pairs (Equation 13)."""
    r, p = settings.dummy_rate, settings.shares / settings.parties
    return math.log(max(1 / (1 - r), (1 / (1 - p) if p < 1 else math.inf) + 1 - r))


def claimed(settings: DpaSettings, unit: Node, epsilon: float, delta: float) -> tuple[Stage, ...]:
    """The paper's noise: Equations 3, 13 and 30, one layer each, at the unit's D."""
    claim = "Theorem 5 of the paper, as claimed, the paper"
    edge = claimed_edge(settings)
    for_features = settings.feature_share * epsilon
    parts = {"features": for_features, "labels": epsilon - for_features - edge}
    if math.isinf(epsilon):
        return tuple(Stage(name, 1, 0.0, 0.0, theorem=claim) for name in ("counts", *parts))
    if parts["labels"] <= 0 or for_features <= 0:
        raise PlanError(
            f"epsilon {epsilon:g} leaves nothing for labels or features",
            why=f"the paper spends {edge:.4g} of it on the numbers of pairs",
            remedy="ask for more, or set dummy_rate lower",
        )
    degree = unit.max_degree or 1
    answer = 2 / (1 + math.exp(edge))  # randomized response of that epsilon
    found = [
        Stage(
            "counts",
            1,
            answer,
            settings.dummy_rate,
            theorem=claim,
            mechanism="randomized-response",
        )
    ]
    for name, budget in parts.items():
        root = math.sqrt(2 * math.log(1.25 / delta)) / budget
        if settings.distribution == "laplace":
            # By an L1 sensitivity of 2 (D + 1), which holds for one-hot rows.
            root = math.sqrt(2 * (degree + 1)) / budget
        found.append(Stage(name, 1, root, root * math.sqrt(2 * (degree + 1)), theorem=claim))
    return tuple(found)


def proved(stage: Stage, settings: DpaSettings, unit: Node) -> Stage:
    """The same noise under sound accounting; no noise multiplier where nothing is proved."""
    layers = max(settings.feature_layers, settings.label_layers)
    private = settings.clip_rate > 0 or settings.clip == "received"
    if layers > 1 or private or settings.distribution == "laplace" or not stage.noise_multiplier:
        return replace(stage, noise_multiplier=0.0, mechanism="gaussian", theorem="none")
    degree, two = (unit.max_degree or 1), unit.relation == "replace"
    # One party alone already knows its own noise and sees t/m of the pairs.
    known = max(1, settings.colluding)
    if stage.name == "counts":
        seen = 1 - math.comb(settings.parties - known, settings.shares) / math.comb(
            settings.parties, settings.shares
        )
        lost, gained = -math.log1p(-settings.dummy_rate), -math.log1p(-seen) if seen < 1 else 0.0
        if seen >= 1:
            return replace(stage, noise_multiplier=0.0, mechanism="gaussian", theorem="none")
        each = lost + gained if two else max(lost, gained)
        answer = 2 / (1 + math.exp(each))
        return replace(stage, rounds=degree, noise_multiplier=answer, theorem=f"Theorem 4, {_PAGE}")
    links = replace(unit, max_degree=degree + int(settings.self_link))
    whole = hop_sums(links, directed=True, hops=1, nonnegative=stage.name == "labels")
    # Each party drew variance std^2 / (m - c); those that do not collude are what is left.
    left = math.sqrt((settings.parties - known) / (settings.parties - settings.colluding))
    return replace(
        stage,
        noise_multiplier=left * stage.noise_std / whole.l2,
        theorem=f"{whole.theorem}, {whole.page}",
    )
