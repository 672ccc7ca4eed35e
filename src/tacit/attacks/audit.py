"""Empirical lower bounds on epsilon: run a mechanism on two neighbouring graphs, tell them apart.

Three parts of runs, none used twice: the first teaches a statistic, the second chooses witness,
statistic and threshold, the third is counted. So what is counted is one fixed test (one more for
the rest of the claim's curve), and its Clopper-Pearson limits hold at the stated confidence.
Proof: proofs/audit.md.

    from tacit.attacks.audit import audit_method
    audit = audit_method(tacit.GAP(tacit.Edge(), epsilon=1.0))
    audit.verdict, audit.epsilon_lower, audit.epsilon_claimed
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tacit.attacks.bounds import Claim, Counted, Cut, Floats, Point, best_cut
from tacit.attacks.statistics import Statistic, learnt
from tacit.errors import PlanError

if TYPE_CHECKING:
    from tacit.graph.graph import BoolArray
    from tacit.methods.base import Method
    from tacit.privacy.plan import Plan

Progress = Callable[[str, int, int], None]
Release = Callable[["BoolArray"], np.ndarray]
"""What an adversary gets to see: one release per entry, of the second graph where it is true."""

MOST_SCOUTED = 30_000
"""Runs of each graph, at most, that a witness is chosen by, or a statistic is learnt on."""

CLOSE = 0.1
"""Margins that a scout does not tell apart, as a share of the claim."""


@dataclass(frozen=True)
class Game:
    """Two neighbouring inputs, and a mechanism that releases one of them, as often as asked.

    Attributes:
        name: What the two inputs are.
        release: Runs the mechanism; the runs are independent.
        ratio: The log-likelihood ratio of a release, where it is known.
        chunk: Runs that are carried out at once.
        steps: How many units apart the two inputs are.
        front: How many numbers of a release stand before those that were made of them.
        crowded: Whether all that is asked for at once is released by one run of the mechanism.
    """

    name: str
    release: Release
    ratio: Statistic | None = None
    chunk: int = 1
    steps: int = 1
    front: int | None = None
    crowded: bool = False


@dataclass(frozen=True)
class Target:
    """What is audited: games that share one claim.

    Attributes:
        name: The stage, or ``fit`` for all of it.
        claim: What it promises.
        games: Ways to break it; the pilot chooses one.
        runs: Runs of each graph that are counted.
    """

    name: str
    claim: Claim
    games: tuple[Game, ...]
    runs: int


@dataclass(frozen=True)
class Finding:
    """What an audit of one target found.

    Attributes:
        target: The stage, or ``fit``.
        witness: The pair of inputs that was chosen.
        statistic: The statistic that was chosen.
        claim: What the target promises for one unit.
        tests: The tests that were counted.
        steps: How many units the witness is apart.
    """

    target: str
    witness: str
    statistic: str
    claim: Claim
    tests: tuple[Counted, ...]
    steps: int = 1

    @property
    def points(self) -> tuple[Point, ...]:
        """The claim, for as many units as the witness is apart."""
        return group(self.claim, self.steps).points

    def lower(self, delta: float) -> float:
        """The lower bound at a delta, for as many units as the witness is apart."""
        return max(test.epsilon(delta) for test in self.tests)

    @property
    def epsilon_lower(self) -> float:
        """The lower bound on epsilon for one unit, at the delta that a user is told.

        The largest epsilon whose promise for ``steps`` units is refuted.
        """
        low, high = 0.0, self.lower(self.claim.delta)
        if self.steps == 1:
            return high
        for _ in range(60):
            middle = (low + high) / 2
            point = group(Claim.of(middle, self.claim.delta), self.steps).points[0]
            refuted = self.lower(point.delta) > point.epsilon
            low, high = (middle, high) if refuted else (low, middle)
        return low

    @property
    def mu_lower(self) -> float:
        """The lower bound on mu: the release is not mu-Gaussian-DP for any smaller one."""
        return max(test.mu for test in self.tests)

    @property
    def excess(self) -> Point | None:
        """The point of the claim that is broken by most, with the bound found there; or None."""
        found = [(self.lower(p.delta) - p.epsilon, p.delta) for p in self.points]
        most, delta = max(found)
        return Point(delta, self.lower(delta)) if most > 0 else None

    @property
    def broken(self) -> bool:
        """Whether the claim is refuted."""
        return self.excess is not None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "target": self.target,
            "witness": self.witness,
            "statistic": self.statistic,
            "epsilon_lower": self.epsilon_lower,
            "epsilon_claimed": self.claim.epsilon,
            "delta": self.claim.delta,
            "mu_lower": self.mu_lower,
            "units_apart": self.steps,
            "runs": self.tests[0].runs,
            "broken_at": None if self.excess is None else self.excess.delta,
            "points": [
                {"delta": p.delta, "claimed": p.epsilon, "lower": self.lower(p.delta)}
                for p in self.points
            ],
            "tests": [
                {
                    "direction": "second" if test.cut.second else "first",
                    "hits": test.hits,
                    "false_hits": test.misses,
                    "runs": test.runs,
                    "rate_low": test.limits[0],
                    "false_rate_high": test.limits[1],
                }
                for test in self.tests
            ],
        }


@dataclass(frozen=True)
class Audit:
    """The outcome of an audit.

    Attributes:
        epsilon_claimed: What a user is told.
        delta: At this delta.
        confidence: With which all bounds hold at once, and a true claim is called so.
        findings: One for each target.
    """

    epsilon_claimed: float
    delta: float
    confidence: float
    findings: tuple[Finding, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def epsilon_lower(self) -> float:
        """The lower bound on epsilon at ``delta``: the largest of any target's."""
        return max((finding.epsilon_lower for finding in self.findings), default=0.0)

    @property
    def verdict(self) -> Literal["holds", "broken"]:
        """``broken`` where a bound exceeds a claim; ``holds`` says that this attack failed."""
        return "broken" if any(finding.broken for finding in self.findings) else "holds"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "epsilon_lower": self.epsilon_lower,
            "epsilon_claimed": self.epsilon_claimed,
            "delta": self.delta,
            "confidence": self.confidence,
            "verdict": self.verdict,
            **self.facts,
            "targets": [finding.to_dict() for finding in self.findings],
        }


def audit_targets(
    targets: Sequence[Target],
    *,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> tuple[Finding, ...]:
    """Audit several targets; all bounds hold at once with the stated confidence.

    Args:
        targets: What to audit.
        confidence: One minus the error of everything that is reported together.
        progress: Called with a target's name, runs done and runs in all.

    Raises:
        PlanError: A confidence or a number of runs that means nothing, or nothing to audit.
    """
    if not 0 < confidence < 1:
        raise PlanError(f"a confidence of {confidence} means nothing", remedy="use 0.95")
    if not targets:
        raise PlanError("there is nothing to audit")
    alpha = (1 - confidence) / len(targets)
    return tuple(_audit_target(target, alpha, progress) for target in targets)


def audit_method(
    method: Method,
    *,
    runs: int | None = None,
    confidence: float = 0.95,
    whole: bool = False,
    directed: bool = False,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Try to break what a method promises, on witnesses made for its unit.

    Graphs are generated and nobody's data, so nothing is charged to any ledger. Where the method
    exposes the stages that draw noise these are audited, many copies of a witness at once
    (:mod:`tacit.attacks.stages`); else, and with ``whole``, whole fits.

    Args:
        method: An unfitted method with its unit and budget.
        runs: Runs of each graph that are counted; the pilot's come on top. None: as many as take
            some seconds.
        confidence: Of the verdict and of all bounds together.
        whole: Audit whole fits even where stages are exposed.
        directed: Whether links of the witnesses go one way.
        seed: Of noise and of sampled neighbours, so that an audit repeats; None for fresh noise.
        progress: Called with a target's name, runs done and runs in all.

    Returns:
        The bounds and the verdict.

    Raises:
        PlanError: The budget is infinite: nothing is claimed.
    """
    from tacit.attacks.games import fit_targets
    from tacit.attacks.stages import STAGED

    if math.isinf(method.epsilon):
        raise PlanError(
            "nothing is claimed at an infinite epsilon", remedy="audit with a finite epsilon"
        )
    if runs is not None and runs < 20:
        raise PlanError(f"{runs} runs show nothing", remedy="use at least 20")
    make = fit_targets if whole else STAGED.get(method.name, fit_targets)
    plan, targets = make(method, runs, directed, seed)
    found = audit_targets(targets, confidence=confidence, progress=progress)
    return Audit(
        claimed(plan),
        method.delta,
        confidence,
        found,
        {
            "method": method.name,
            "unit": method.unit.name,
            "relation": method.unit.relation,
            "accounting": plan.accounting,
        },
    )


def claimed(plan: Plan) -> float:
    """The epsilon that a plan's statement will tell."""
    return plan.cost.epsilon_rdp if plan.accounting == "paper" else plan.cost.epsilon


def _audit_target(target: Target, alpha: float, progress: Progress | None) -> Finding:
    if target.runs < 2 or not target.games:
        raise PlanError(f"{target.name} cannot be audited with {target.runs} runs")
    meter = _Meter(target, progress)
    scouts = [
        scout
        for game in target.games
        for scout in _scouts(game, group(target.claim, game.steps), target.runs, alpha, meter)
    ]
    # Scouts differ by chance; of those about as good, the first game is the smallest and fastest.
    most = max(scout.margin for scout in scouts) - CLOSE * min(target.claim.epsilon, 64.0)
    best = next(scout for scout in scouts if scout.margin >= most)
    cuts = best.cuts
    if pilot_runs(target.runs) > MOST_SCOUTED:
        claim = group(target.claim, best.game.steps)
        cuts = _chosen(_scores(best, pilot_runs(target.runs), meter), claim, alpha)[0]
    counts = _counted(best, cuts, target.runs, meter)
    share = alpha / len(cuts)
    return Finding(
        target.name,
        best.game.name,
        best.words,
        target.claim,
        tuple(
            Counted(cut, hits, misses, target.runs, share)
            for cut, (hits, misses) in zip(cuts, counts, strict=True)
        ),
        best.game.steps,
    )


@dataclass(frozen=True)
class _Scout:
    """A statistic of a game, the cuts chosen for it, and how far they exceeded the claim."""

    game: Game
    words: str
    statistic: Statistic
    cuts: tuple[Cut, ...] = ()
    margin: float = -math.inf


def _scouts(game: Game, claim: Claim, runs: int, alpha: float, meter: _Meter) -> Iterator[_Scout]:
    """Everything that could be counted in a game, judged by runs that will not be."""
    few = min(pilot_runs(runs), MOST_SCOUTED)
    if game.ratio is not None:
        scout = _Scout(game, "likelihood ratio", game.ratio)
        cuts, margin = _chosen(_scores(scout, few, meter), claim, alpha)
        yield replace(scout, cuts=cuts, margin=margin)
        return
    taught, seen = [
        [np.concatenate(list(_played(game, side, few, meter))) for side in (False, True)]
        for _ in range(2)
    ]
    for words, statistic in learnt(taught[0], taught[1], game.front):
        cuts, margin = _chosen([statistic(part) for part in seen], claim, alpha)
        yield _Scout(game, words, statistic, cuts, margin)


def _chosen(scores: list[Floats], claim: Claim, alpha: float) -> tuple[tuple[Cut, ...], float]:
    """The best test at the delta that a user is told, and the best one for the rest."""
    parts = [points for points in (claim.points[:1], claim.points[1:]) if points]
    found = [best_cut(scores[0], scores[1], points, alpha / len(parts)) for points in parts]
    return tuple(c.cut for c in found), max(c.margin for c in found)


def _scores(scout: _Scout, runs: int, meter: _Meter) -> list[Floats]:
    """Scores of runs on the first graph and on the second."""
    return [
        np.concatenate([scout.statistic(part) for part in _played(scout.game, side, runs, meter)])
        for side in (False, True)
    ]


def _counted(
    scout: _Scout, cuts: tuple[Cut, ...], runs: int, meter: _Meter
) -> list[tuple[int, int]]:
    """For each test its answers on the graph that it points at, and on the other."""
    found = np.zeros((len(cuts), 2), np.int64)
    for side in (False, True):
        for part in _played(scout.game, side, runs, meter):
            scores = scout.statistic(part)
            for counts, cut in zip(found, cuts, strict=True):
                counts[int(side != cut.second)] += cut.count(scores)
    return [(int(hits), int(misses)) for hits, misses in found]


def pilot_runs(runs: int) -> int:
    """Runs of each graph that choose a test of which ``runs`` will be counted."""
    return max(20, runs // 4)


def group(claim: Claim, steps: int) -> Claim:
    """The claim for inputs several units apart: ``(k eps, (1 + e^eps + ... ) delta)``.

    Vadhan, "The complexity of differential privacy", 2017, Lemma 2.2.
    """
    if steps == 1:
        return claim
    found = []
    for point in claim.points:
        grown = math.fsum(math.exp(min(i * point.epsilon, 700.0)) for i in range(steps))
        if point.delta * grown < 1:
            found.append(Point(point.delta * grown, steps * point.epsilon))
    # Where no point is left nothing is promised at this distance.
    return Claim(tuple(found) or (Point(claim.delta, math.inf),))


def _played(game: Game, side: bool, runs: int, meter: _Meter) -> Iterator[np.ndarray]:
    """Releases of one graph, in chunks."""
    for start in range(0, runs, game.chunk):
        count = min(game.chunk, runs - start)
        yield game.release(np.full(count, side))
        meter.add(count)


class _Meter:
    """Counts runs for a progress bar."""

    def __init__(self, target: Target, progress: Progress | None) -> None:
        pilot = pilot_runs(target.runs)
        few = min(pilot, MOST_SCOUTED)
        scouted = sum(few if game.ratio else 2 * few for game in target.games)
        self.total = 2 * (target.runs + scouted + (pilot if pilot > few else 0))
        self.name, self.progress, self.done = target.name, progress, 0

    def add(self, count: int) -> None:
        """Some runs are done."""
        self.done += count
        if self.progress is not None:
            self.progress(self.name, self.done, self.total)
