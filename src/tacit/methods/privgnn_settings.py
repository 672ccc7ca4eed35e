"""PrivGNN's settings, its stages under either accounting, and the paper's own formula."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from scipy import special

from tacit.errors import PlanError
from tacit.graph import PublicFacts
from tacit.privacy.noisy_max import NoisyMax
from tacit.privacy.plan import Accounting, Stage
from tacit.privacy.two_point import response_probability

Teacher = Literal["gnn", "all", "single", "votes", "pate-gnn", "pate-mlp"]
TEACHERS: tuple[Teacher, ...] = ("gnn", "all", "single", "votes", "pate-gnn", "pate-mlp")
PAGE = "proofs/privgnn.md"
PAPER_ORDERS = range(2, 33)
_LEAST, _MOST = 2.0**-9, 64.0
"""Values of lambda that are searched."""


@dataclass(frozen=True)
class PrivGnnSettings:
    """Everything about PrivGNN but its unit and budget.

    Attributes:
        preset: ``paper`` trains the student as the paper does; ``tacit`` as we found best.
        teacher: Who answers a query: ``gnn``, a fresh network on the K nearest sampled nodes (the
            paper); ``all``, on all sampled nodes (its KNNREM); ``single``, one network for all
            queries (its SINGLEGNN; no sound accounting); ``votes``, the labels of sampled nodes
            within a public radius; ``pate-gnn`` and ``pate-mlp``, a vote of networks on disjoint
            parts.
        noise: ``laplace`` on a posterior of which only the argmax leaves; ``gaussian`` on all that
            is answered.
        lam: The paper's lambda: one over the scale of Laplace noise; 0 is chosen from epsilon.
        sigma: Standard deviation of Gaussian noise; 0 is chosen from epsilon.
        posterior: What Laplace noise is put on: ``softmax``, or ``log-softmax`` as the published
            code does, for which nothing is proved.
        queries: |Q|, the number of public nodes asked about.
        query_ids: Which ones, as node numbers with commas; chosen by ``selection`` if empty.
        selection: ``random``, or ``degree``: those with most public links.
        gamma: Poisson rate at which private nodes take part in a query.
        neighbours: K.
        distance: Between a query and private nodes, in raw features.
        search: What finds neighbours: ``torch``, or a flat index of ``faiss``; both are exact.
        share: Share of public nodes within the radius of a query (``votes``).
        parts: Disjoint parts (``pate-gnn``, ``pate-mlp``).
        hidden: Width of teachers and student.
        epochs: Of each teacher.
        learning_rate: Of each teacher.
        dropout: Of each teacher.
        processes: Processes that train teachers; the answers do not depend on it.
        student: The student's network: ``hops``, or ``sage``, ``gcn``, ``gat``.
        width: Public principal axes that ``votes`` and the ``hops`` student read.
        student_epochs: Of the student.
        pretrain: Epochs of unsupervised pre-training of the student on the public graph.
    """

    preset: Literal["tacit", "paper"]
    teacher: Teacher
    noise: Literal["laplace", "gaussian"]
    lam: float
    sigma: float
    posterior: Literal["softmax", "log-softmax"]
    queries: int
    query_ids: str
    selection: Literal["random", "degree"]
    gamma: float
    neighbours: int
    distance: Literal["euclidean", "cosine"]
    search: Literal["torch", "faiss"]
    share: float
    parts: int
    hidden: int
    epochs: int
    learning_rate: float
    dropout: float
    processes: int
    student: Literal["hops", "sage", "gcn", "gat"]
    width: int
    student_epochs: int
    pretrain: int

    def __post_init__(self) -> None:
        for name in ("queries", "neighbours", "parts", "hidden", "epochs", "processes", "width"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("gamma", "share"):
            if not 0 < getattr(self, name) <= 1:
                raise PlanError(f"{name} must lie above 0 and at most at 1")
        if self.lam < 0 or self.sigma < 0 or self.student_epochs < 1 or self.pretrain < 0:
            raise PlanError("lam, sigma, student_epochs and pretrain cannot be negative")
        if self.teacher not in TEACHERS:
            raise PlanError(
                f"unknown teacher {self.teacher!r}", remedy=f"one of {', '.join(TEACHERS)}"
            )
        if self.selection not in ("random", "degree"):
            raise PlanError(
                f"queries cannot be selected by {self.selection!r}",
                why="a query that is chosen by what private data say is a release of its own, and "
                "only choices that read the public graph are free",
                remedy="use random or degree, or name them: query_ids=3,14,15",
            )
        if self.noise == "laplace" and not self.asks_networks:
            raise PlanError(
                f"{self.teacher} answers counts, and Laplace noise is for one posterior",
                remedy="leave noise out: counts get Gaussian noise",
            )
        if (self.noise == "gaussian" and self.lam) or (self.noise == "laplace" and self.sigma):
            raise PlanError(
                f"lam is the noise of laplace and sigma that of gaussian, not of {self.noise}"
            )
        if self.query_ids and len(self.ids) != self.queries:
            raise PlanError(f"{len(self.ids)} query_ids for {self.queries} queries")

    @property
    def asks_networks(self) -> bool:
        """Whether one network's posterior answers a query."""
        return self.teacher in ("gnn", "all", "single")

    @property
    def ids(self) -> np.ndarray:
        """The queries that were named."""
        try:
            found = np.array([int(part) for part in self.query_ids.split(",") if part.strip()])
        except ValueError as error:
            raise PlanError("query_ids are node numbers with commas", why=str(error)) from error
        if len(np.unique(found)) != len(found):
            raise PlanError("a query is named twice", remedy="each public node is asked once")
        return found


_COMMON: dict[str, Any] = {
    "lam": 0.0, "sigma": 0.0, "query_ids": "", "selection": "random", "neighbours": 750,
    "distance": "euclidean", "search": "torch", "share": 0.15, "parts": 20, "hidden": 64,
    "epochs": 200,
    "learning_rate": 0.01, "dropout": 0.5, "processes": 1, "width": 64, "pretrain": 0,
}  # fmt: skip


def choose(preset: str, accounting: Accounting, overrides: dict[str, Any]) -> PrivGnnSettings:
    """The settings, every automatic choice made from the settings named and nothing else."""
    if preset not in ("tacit", "paper"):
        raise PlanError(f"unknown preset {preset!r}", remedy="use tacit or paper")
    known = {field.name for field in fields(PrivGnnSettings)}
    if unknown := sorted(set(overrides) - known):
        raise PlanError(
            f"PrivGNN has no setting {unknown[0]!r}", remedy=f"choose from {', '.join(known)}"
        )
    teacher = overrides.get("teacher", "gnn")
    networks = teacher in ("gnn", "all", "single")
    named = {part for part in overrides.get("query_ids", "").split(",") if part.strip()}
    values = {
        **_COMMON,
        "preset": preset,
        "teacher": teacher,
        "noise": "laplace" if networks else "gaussian",
        # The published code's choice belongs to the published accounting, and to no other.
        "posterior": "log-softmax" if accounting == "paper" else "softmax",
        "queries": len(named) or (300 if teacher == "votes" else 1000),
        # Counts of all nodes under less noise say more than counts of a sample: proofs and docs.
        "gamma": 0.3 if networks else 1.0,
        "student": "sage" if preset == "paper" else "hops",
        "student_epochs": 200 if preset == "paper" else 150,
        **overrides,
    }
    settings = PrivGnnSettings(**values)
    if accounting == "sound":
        _check_sound(settings)
    return settings


def _check_sound(settings: PrivGnnSettings) -> None:
    if settings.teacher == "single":
        raise PlanError(
            "SINGLEGNN has no sound accounting as a sampled mechanism",
            why="one sample and one network answer every query, so a node that was sampled takes "
            "part in all of them: nothing is amplified (lam=0.4, 1000 queries: about 146, not the "
            "24.5 of a fresh sample per query)",
            remedy="use teacher=all (a fresh sample per query), or accounting=paper to reproduce "
            "the paper's figure",
        )
    if settings.noise == "laplace" and settings.posterior != "softmax":
        raise PlanError(
            "noise on log-softmax promises nothing",
            why="a log-probability is unbounded, so no noise covers what one node can do to it",
            remedy="use posterior=softmax, or accounting=paper to reproduce the published code",
        )
    if settings.teacher.startswith("pate") and settings.gamma < 1:
        raise PlanError("PATE's parts hold every node: there is no sampling", remedy="gamma=1")


def stage(settings: PrivGnnSettings, classes: int, lam: float, sigma: float) -> Stage:
    """The one stage of a plan by sound accounting; zero lam and sigma mean no noise."""
    rounds, rate = settings.queries, settings.gamma
    if settings.noise == "laplace":
        if lam <= 0:
            return Stage("labels", rounds, 0.0, 0.0, rate, mechanism="randomized-response")
        answer = NoisyMax(classes, lam)
        return Stage(
            "labels",
            rounds,
            response_probability(answer.epsilon),
            1.0 / lam,
            sampling_rate=rate,
            theorem=f"Theorems 1 and 2 (the argmax of a noisy posterior; a fresh sample and a "
            f"fresh teacher for every query), {PAGE}",
            mechanism="randomized-response",
        )
    if settings.teacher == "votes":
        reach, words = 1.0, "Theorem 3 (one node moves one count of a query by one)"
    elif settings.teacher.startswith("pate"):
        reach, words = math.sqrt(2), "PATE (one node moves one teacher's vote)"
    else:
        reach, words = math.sqrt(2), "two posteriors are at most sqrt(2) apart"
    return Stage(
        "votes" if not settings.asks_networks else "posteriors",
        rounds,
        sigma / reach,
        sigma,
        sampling_rate=rate,
        theorem=f"{words}, {PAGE}",
    )


def scaled(settings: PrivGnnSettings, scale: float) -> PrivGnnSettings:
    """The settings with noise of a scale; 0 for none."""
    if settings.noise == "gaussian":
        return replace(settings, sigma=scale)
    return replace(settings, lam=min(_MOST, 1 / scale) if scale else 0.0)


def published_epsilon(lam: float, gamma: float, queries: int, delta: float) -> float:
    """The paper's figure: Theorem 8 as its code computes it, with factor 1 and no shift.

    ``min over integer alpha of |Q| eps'(alpha) + ln(1/delta) / (alpha - 1)`` with eps' the Poisson
    bound of Zhu and Wang 2019 on the Laplace mechanism at sensitivity 1 (Equation 3).
    """
    found = math.inf
    for alpha in PAPER_ORDERS:
        if gamma == 1:
            step = _laplace_renyi(alpha, lam)
            found = min(found, queries * step + math.log(1 / delta) / (alpha - 1))
            continue
        terms = [(alpha - 1) * math.log1p(-gamma) + math.log(alpha * gamma - gamma + 1)]
        for order in range(2, alpha + 1):
            weight = float(special.gammaln(alpha + 1) - special.gammaln(order + 1))
            weight -= float(special.gammaln(alpha - order + 1))
            weight += order * math.log(gamma) + (alpha - order) * math.log1p(-gamma)
            terms.append(weight + (order - 1) * _laplace_renyi(order, lam))
        step = float(special.logsumexp(terms)) / (alpha - 1)
        found = min(found, queries * step + math.log(1 / delta) / (alpha - 1))
    return found


def _laplace_renyi(alpha: int, lam: float) -> float:
    """Rényi divergence of Laplace noise of scale ``1/lam`` at sensitivity 1 (Equation 3)."""
    near = math.log(alpha / (2 * alpha - 1)) + (alpha - 1) * lam
    far = math.log((alpha - 1) / (2 * alpha - 1)) - alpha * lam
    return float(np.logaddexp(near, far)) / (alpha - 1)


def published_lam(gamma: float, queries: int, epsilon: float, delta: float) -> float:
    """The largest lambda whose published epsilon is at most the one asked for."""
    from scipy.optimize import brentq

    def gap(log_lam: float) -> float:
        return published_epsilon(math.exp(log_lam), gamma, queries, delta) - epsilon

    low, high = math.log(_LEAST), math.log(8.0)
    if gap(low) > 0:
        raise PlanError(
            f"the paper's formula reaches no epsilon of {epsilon:g} here",
            remedy="ask fewer queries, or raise epsilon or delta",
        )
    return math.exp(high if gap(high) <= 0 else float(brentq(gap, low, high)) - 1e-12)


def needs_facts(settings: PrivGnnSettings, facts: PublicFacts) -> None:
    """Refuse more queries than there are public nodes; 1 stands for a number not given."""
    if facts.public_nodes > 1 and settings.queries > facts.public_nodes:
        raise PlanError(
            f"{settings.queries} queries for {facts.public_nodes} public nodes",
            why="each public node is asked at most once",
            remedy=f"ask at most {facts.public_nodes}: --set queries=...",
        )
