"""A lower bound on epsilon from one run: many canaries, each there or not by a coin, and guesses.

Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023, Theorem 5.2:
whoever guesses r of m coins from an (epsilon, delta)-DP release is right about as rarely as
Binomial(r, e^eps / (1 + e^eps)), whatever the canaries do to each other. Unlike the audit by many
runs it needs no independence, so it also sees noise that is shared. It gives less: a canary that
hides among others leaves epsilon above what one run can show. Proof sketch: proofs/audit.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tacit.attacks.audit import Game, Progress, claimed
from tacit.attacks.bounds import Floats
from tacit.attacks.statistics import Statistic, learnt
from tacit.errors import PlanError

if TYPE_CHECKING:
    from tacit.attacks.witnesses import Pair
    from tacit.graph.graph import BoolArray
    from tacit.methods.base import Method

CANARIES = 20_000
"""Canaries in a run of neighbour sums where nobody says."""

SHARES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of canaries that are guessed at; a scout run chooses one."""


@dataclass(frozen=True)
class OneRun:
    """What one run showed.

    Attributes:
        witness: What a canary is.
        canaries: m.
        guesses: r, fixed before the run.
        correct: v.
        epsilon_claimed: What a user is told.
        delta: At this delta.
        confidence: Of the bound.
    """

    witness: str
    canaries: int
    guesses: int
    correct: int
    epsilon_claimed: float
    delta: float
    confidence: float

    @property
    def epsilon_lower(self) -> float:
        """The lower bound on epsilon."""
        return epsilon_of_guesses(
            self.canaries, self.guesses, self.correct, self.delta, self.confidence
        )

    @property
    def verdict(self) -> Literal["holds", "broken"]:
        """``broken`` where the bound exceeds the claim."""
        return "broken" if self.epsilon_lower > self.epsilon_claimed else "holds"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "epsilon_lower": self.epsilon_lower,
            "epsilon_claimed": self.epsilon_claimed,
            "delta": self.delta,
            "confidence": self.confidence,
            "verdict": self.verdict,
            "witness": self.witness,
            "canaries": self.canaries,
            "guesses": self.guesses,
            "correct": self.correct,
        }


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """How likely so many correct guesses are, at most, if the release is (epsilon, delta)-DP.

    ``f(v) + 2 m delta max_i (f(v - i) - f(v)) / i`` with ``f(v) = P[Bin(r, q) >= v]`` and
    ``q = e^eps / (1 + e^eps)``.

    Args:
        canaries: m, each there with probability one half.
        guesses: r, the number of canaries guessed at.
        correct: v, how many guesses were right.
        epsilon: The claim.
        delta: Its delta.

    Raises:
        PlanError: More are right than were guessed, or guessed than there are.
    """
    from scipy.stats import binom

    if not 0 <= correct <= guesses <= canaries:
        raise PlanError(f"{correct} right of {guesses} guesses at {canaries} canaries")
    q = 1 / (1 + np.exp(-epsilon))
    tails = binom.sf(np.arange(correct, -1, -1) - 1, guesses, q)  # f(v), f(v - 1), ..., f(0)
    steps = np.arange(1, correct + 1)
    slack = float(((tails[1:] - tails[0]) / steps).max(initial=0.0))
    return min(1.0, float(tails[0]) + 2 * canaries * delta * slack)


def epsilon_of_guesses(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """The largest epsilon that so many correct guesses refute, 0 if they refute none."""
    alpha = 1 - confidence
    if p_value(canaries, guesses, correct, 0.0, delta) > alpha:
        return 0.0
    low, high = 0.0, 1.0
    while high < 64 and p_value(canaries, guesses, correct, high, delta) <= alpha:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        refuted = p_value(canaries, guesses, correct, middle, delta) <= alpha
        low, high = (middle, high) if refuted else (low, middle)
    return low


def guess(scores: Floats, guesses: int) -> np.ndarray:
    """1 for the highest half of the guesses, -1 for the lowest half, 0 where nothing is said."""
    found = np.zeros(len(scores), np.int8)
    order = np.argsort(scores, kind="stable")
    low = guesses // 2
    found[order[:low]] = -1
    found[order[len(order) - (guesses - low) :]] = 1
    return found


def one_run(
    game: Game,
    epsilon: float,
    delta: float,
    *,
    canaries: int,
    guesses: int | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
) -> OneRun:
    """Toss a coin for every canary, run the mechanism once, and guess the coins.

    A scout run before it teaches a statistic where the game has none, and chooses how many
    canaries to guess at; what is counted is one run.

    Args:
        game: A game whose ``release`` is one run of the mechanism on as many canaries as asked.
        epsilon: The claim.
        delta: Its delta.
        canaries: m.
        guesses: r; chosen by the scout if None.
        confidence: Of the bound.
        seed: Of the coins; None for fresh ones.
    """
    if game.steps != 1 or canaries < 10:
        raise PlanError("one run needs at least 10 canaries, one unit each")
    rng = np.random.default_rng(seed)
    if game.ratio is not None and guesses is not None:
        statistic, r = game.ratio, guesses
    else:
        statistic, chosen = _scouted(game, canaries, delta, confidence, rng)
        r = chosen if guesses is None else guesses
    sides = rng.random(canaries) < 0.5
    said = guess(statistic(game.release(sides)), r)
    correct = int((said * np.where(sides, 1, -1) > 0).sum())
    return OneRun(game.name, canaries, r, correct, epsilon, delta, confidence)


def _scouted(
    game: Game, canaries: int, delta: float, confidence: float, rng: np.random.Generator
) -> tuple[Statistic, int]:
    """A statistic, and the number of guesses that would have shown most in a run set apart."""
    sides = rng.random(canaries) < 0.5
    released = game.release(sides)
    if game.ratio is None:
        half = np.arange(canaries) < canaries // 2
        taught = [released[half & (sides == side)] for side in (False, True)]
        if min(map(len, taught)) < 2:
            raise PlanError("too few canaries to learn from", remedy="use at least 40")
        known = [statistic for _, statistic in learnt(*taught)]
        sides, released = sides[~half], released[~half]
    else:
        known = [game.ratio]
    best = (-1.0, known[0], canaries)
    for statistic in known:
        scores = statistic(released)
        for share in SHARES:
            r = max(2, int(share * len(sides)))
            said = guess(scores, r)
            correct = int((said * np.where(sides, 1, -1) > 0).sum())
            bound = epsilon_of_guesses(len(sides), r, correct, delta, confidence)
            bound += 1e-6 * correct / r  # where nothing is shown, what comes nearest to it
            if bound > best[0]:
                best = (bound, statistic, max(2, int(share * canaries)))
    return best[1], best[2]


def one_run_method(
    method: Method,
    *,
    canaries: int | None = None,
    confidence: float = 0.95,
    whole: bool = False,
    directed: bool = False,
    seed: int | None = None,
    progress: Progress | None = None,
) -> OneRun:
    """Audit a method by one run of its first stage on witnesses, or of one whole fit.

    Args:
        method: An unfitted method with a finite budget.
        canaries: m; 20,000 for sums, 1,000 for DP-SGD and 500 for a whole fit if None.
        confidence: Of the bound.
        whole: Fit once on a graph made of canaries, even where stages are exposed.
        directed: Whether links go one way.
        seed: Of coins and noise; None for fresh ones.
        progress: Called with a name, what is done and what there is in all.
    """
    from tacit.attacks.stages import STAGED
    from tacit.attacks.witnesses import trainable

    if not np.isfinite(method.epsilon):
        raise PlanError("nothing is claimed at an infinite epsilon", remedy="use a finite epsilon")
    game: Game | None = None
    if method.name in STAGED and not whole:
        plan, targets = STAGED[method.name](method, None, directed, seed)
        game = targets[0].games[0]
    if game is not None and game.crowded:
        # Canaries of DP-SGD are columns of one dense matrix: fewer fit.
        count, told = canaries or max(1_000, min(CANARIES, game.chunk)), claimed(plan)
    else:
        pairs = trainable(method.unit, directed=directed, samples=0, seed=seed or 0)
        pair = next(p for p in pairs if p.steps == 1)
        count = canaries or 500
        game, told = crowd_game(method, pair, seed), method.epsilon
    report = progress or (lambda name, done, total: None)
    report("one run", 0, 1)
    found = one_run(game, told, method.delta, canaries=count, confidence=confidence, seed=seed)
    report("one run", 1, 1)
    return found


def crowd_game(method: Method, pair: Pair, seed: int | None = None) -> Game:
    """One whole fit on many copies of a pair; a canary is judged by its own nodes' rows.

    Rows are those of released matrices and, where they may be shown, posteriors; of a perturbed
    graph it is the links among a canary's own nodes.
    """
    from tacit.attacks.games import changed, densified, fitted
    from tacit.attacks.witnesses import copies

    nodes, own = pair.first.nodes, changed(pair)
    drawn = 0

    def release(sides: BoolArray) -> np.ndarray:
        nonlocal drawn
        drawn += 1
        graph, place = copies(pair, sides)
        plan = method.plan(graph.facts())
        noise = None if seed is None else (seed << 32) + drawn
        outcome = fitted(method, plan, graph, noise)
        rows = [a for a in outcome.released.values() if len(a) == graph.nodes]
        rows.append(outcome.posteriors)
        parts = []
        for index, array in enumerate(rows):
            shown = array.reshape(len(sides), nodes, -1)
            posterior = index == len(rows) - 1
            hide = pair.hidden if not posterior or outcome.public_posteriors else own
            shown = shown if hide is None else np.delete(shown, hide, axis=1)
            parts.append(shown.reshape(len(sides), -1).astype(np.float64))
        everyone = np.arange(len(sides))
        for name, cells in densified(outcome.weights, graph.nodes).items():
            if name not in outcome.weights:
                blocks = cells.reshape(len(sides), nodes, len(sides), nodes)
                parts.append(blocks[everyone, :, everyone].reshape(len(sides), -1))
        return np.hstack(parts)[place]

    return Game(pair.name, release)
