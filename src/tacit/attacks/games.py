"""Whole fits as games: any method on two neighbouring graphs, and all that others get to see."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tacit.attacks.audit import Game, Target, claimed
from tacit.attacks.bounds import Claim, Point
from tacit.attacks.statistics import equal_rows
from tacit.attacks.witnesses import Pair, beside_public, changed_node, trainable

if TYPE_CHECKING:
    from tacit.graph import Graph
    from tacit.graph.graph import BoolArray
    from tacit.methods.base import Method, Outcome
    from tacit.privacy.ledger import Ledger
    from tacit.privacy.noise import NoiseSource
    from tacit.privacy.plan import Plan

FITS = 300
"""Whole fits of each graph that are counted where nobody says."""

SAMPLES = 2
"""Neighbours that the unit samples, beside the worst ones known."""


def fit_targets(
    method: Method, runs: int | None, directed: bool, seed: int | None
) -> tuple[Plan, tuple[Target, ...]]:
    """A whole fit, end to end, against the promise of all its stages together.

    Args:
        method: An unfitted method.
        runs: Fits of each graph that are counted.
        directed: Whether links of the witnesses go one way.
        seed: Of noise and of sampled neighbours; None for fresh noise.
    """
    pairs = trainable(method.unit, directed=directed, samples=SAMPLES, seed=seed or 0)
    if _for_public(method):
        pairs = tuple(beside_public(pair) for pair in pairs)
    plan = method.plan(pairs[0].first.facts())
    games = tuple(fit_game(method, plan, pair, seed) for pair in pairs)
    return plan, (Target("fit", claim_of(plan), games, runs or FITS),)


def claim_of(plan: Plan) -> Claim:
    """What a plan promises: its curve, and what its statement tells."""
    if not plan.stages:
        return Claim((Point(plan.delta, 0.0),))
    return Claim.by_events(plan.event, plan.delta, claimed(plan))


def fit_game(method: Method, plan: Plan, pair: Pair, seed: int | None = None) -> Game:
    """Fits on one of two graphs; everybody but the changed node looks at what came out."""
    drawn, own = 0, None if _for_public(method) else changed(pair)
    once = fitted(method, plan, pair.first, None if seed is None else seed << 32)
    released, rest = seen(once, pair.hidden, own)
    width = len(released) + len(rest)

    def release(sides: BoolArray) -> np.ndarray:
        nonlocal drawn
        # Should a method release lists of varying length, the shorter ones end in zeros.
        found = np.zeros((len(sides), width))
        with _ledger() as ledger:
            for line, side in zip(found, sides.tolist(), strict=True):
                drawn += 1
                graph = pair.second if side else pair.first
                noise = None if seed is None else (seed << 32) + drawn
                outcome = fitted(method, plan, graph, noise, ledger)
                view = np.concatenate(seen(outcome, pair.hidden, own))[:width]
                line[: len(view)] = view
        return found

    return Game(pair.name, release, chunk=25, steps=pair.steps, front=len(released))


def _for_public(method: Method) -> bool:
    """Whether a method answers for a public graph beside the private one, and for that alone."""
    return bool(getattr(method, "learns_for_public", False))


def changed(pair: Pair) -> int | None:
    """The node whose record differs, where it is a record that differs and not a link alone."""
    same = np.array_equal(pair.first.features, pair.second.features)
    same = same and np.array_equal(pair.first.labels, pair.second.labels)
    return None if same and pair.hidden is None else changed_node(pair.first, pair.second)


def seen(
    outcome: Outcome, hidden: int | None, changed: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """What an adversary who is not the changed node sees of a fit: what was released, the rest.

    What was released and the weights; posteriors of all nodes where they are public, else of all
    nodes but the changed one (a row reads its own node's record). Beside each released matrix
    stands how many of its rows are exactly equal: noise parts twins, a missing noise does not.
    """
    parts: list[np.ndarray] = []
    for name, array in sorted(densified(outcome.released, len(outcome.posteriors)).items()):
        shown = array
        if hidden is not None and len(array) == len(outcome.posteriors):
            shown = np.delete(array, hidden, axis=0)
        parts.append(shown)
        if shown.ndim == 2 and name:
            parts.append(equal_rows(shown[None]))
    weights = densified(outcome.weights, len(outcome.posteriors))
    # A perturbed graph is kept among the weights of a model that answers from it.
    parts += [array for name, array in sorted(weights.items()) if name not in outcome.weights]
    rest = [array for name, array in sorted(weights.items()) if name in outcome.weights]
    own = hidden if outcome.public_posteriors else changed
    rows = outcome.posteriors
    rest.append(rows if own is None else np.delete(rows, own, axis=0))
    return _joined(parts), _joined(rest)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    flat = [np.asarray(part, np.float64).ravel() for part in parts]
    return np.concatenate(flat) if flat else np.empty(0)


def densified(arrays: Mapping[str, np.ndarray], nodes: int) -> dict[str, np.ndarray]:
    """Arrays of a size that does not change: lists of links become a matrix of cells."""
    found = dict(arrays)
    for name in arrays:
        if not name.endswith("indptr"):
            continue
        stem = name[: -len("indptr")]
        indptr, indices = found.pop(name), found.pop(f"{stem}indices")
        cells = np.zeros((len(indptr) - 1, max(nodes, len(indptr) - 1)))
        cells[np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), indices] = 1
        found[f"{stem}links"] = cells
    return found


@contextmanager
def _ledger() -> Iterator[Ledger]:
    """A ledger that vanishes: the graphs are generated and nobody's data."""
    from tacit.privacy.ledger import Ledger

    with tempfile.TemporaryDirectory() as folder:
        yield Ledger(Path(folder) / "ledger.sqlite")


def fitted(
    method: Method, plan: Plan, graph: Graph, seed: int | None, ledger: Ledger | None = None
) -> Outcome:
    """One fit, charged to a ledger that vanishes.

    Args:
        method: An unfitted method; it stays so.
        plan: What to carry out.
        graph: A generated graph.
        seed: Of the noise; None for the method's own.
        ledger: Where to charge; a new one if None.
    """
    from tacit.privacy.noise import NoiseSource

    fresh = copy.copy(method)
    if seed is not None:
        # An instance's attribute, so that the class under audit stays as it is.
        usual = fresh._source

        def source(made: Plan) -> NoiseSource | None:
            return None if usual(made) is None else NoiseSource.seeded(seed)

        vars(fresh)["_source"] = source
    if ledger is not None:
        return fresh.fit(graph, plan, ledger).fitted.outcome
    with _ledger() as own:
        return fresh.fit(graph, plan, own).fitted.outcome
