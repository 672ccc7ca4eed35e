"""Stages as games: the code that draws the noise, run on many copies of a witness at once.

A neighbour sum reads no further than one link, and noise is drawn for every number anew; so copies
of a witness side by side in one graph are as many independent runs, and millions take seconds.
Likewise canaries with a feature column of their own in one run of DP-SGD: the gradient of each
moves its own column of the weights, its coins and noise are its own. (That copies are independent
is an assumption about the code, looked at by :mod:`tacit.attacks.one_run`, which does not need it.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tacit.attacks.audit import Game, Target
from tacit.attacks.bounds import Claim, Floats
from tacit.attacks.witnesses import Pair, copies, crowd, sampled, witnesses
from tacit.errors import PlanError
from tacit.graph import Graph, PublicFacts
from tacit.graph.transforms import arc_sources
from tacit.privacy.noise import NoiseSource

if TYPE_CHECKING:
    from tacit.graph.graph import BoolArray
    from tacit.methods.base import Method
    from tacit.methods.gap_network import GapNetwork
    from tacit.methods.perturb import PerturbedGraph
    from tacit.privacy.plan import Plan, Stage

Targets = tuple["Plan", tuple[Target, ...]]

REFERENCE = PublicFacts(nodes=20_000, train_nodes=15_000, features=2, classes=2)
"""Public facts that audited plans are made from; witnesses have two features and two classes."""

SUMS = 16_000_000
"""Runs of a neighbour sum, of each graph, that are counted where nobody says."""

STEPS = 3_200_000
"""Steps of DP-SGD in the runs of each graph that are counted where nobody says."""

ANSWERS = 10_000
"""Perturbed graphs, of each graph, that are counted where nobody says."""

_NUMBERS = 1 << 20  # numbers released at once
_CANARIES = 250


def gap_targets(method: Method, runs: int | None, directed: bool, seed: int | None) -> Targets:
    """GAP: the noisy sums as it releases them, and DP-SGD of encoder and classifier."""
    plan = method.plan(replace(REFERENCE, directed=directed))
    source = NoiseSource() if seed is None else NoiseSource.seeded(seed)
    targets = []
    for stage in plan.stages:
        if stage.name != "aggregation":
            targets.append(dpsgd_target(plan, stage, source, runs))
            continue
        pairs = [*witnesses(plan.unit, directed=directed)]
        pairs += sampled(plan.unit, directed=directed, count=2, seed=seed or 0)
        games = tuple(hop_game(plan, pair, source) for pair in pairs)
        claim = Claim.by_events(stage.event, plan.delta)
        nodes = max(pair.first.nodes for pair in pairs[:1])
        most = max(20_000, SUMS * 2 // nodes // plan.settings.hops)
        targets.append(Target("aggregation", claim, games, runs or most))
    return plan, tuple(targets)


def mlp_targets(method: Method, runs: int | None, directed: bool, seed: int | None) -> Targets:
    """An MLP: DP-SGD, or (where nothing protected is read) whole fits."""
    from tacit.attacks.games import fit_targets

    plan = method.plan(replace(REFERENCE, directed=directed))
    if not plan.stages:
        return fit_targets(method, runs, directed, seed)
    source = NoiseSource() if seed is None else NoiseSource.seeded(seed)
    return plan, tuple(dpsgd_target(plan, stage, source, runs) for stage in plan.stages)


def response_targets(method: Method, runs: int | None, directed: bool, seed: int | None) -> Targets:
    """Methods on a perturbed graph: the graph as it is answered; all else is made of it."""
    from tacit.attacks.games import claim_of
    from tacit.methods.perturb import PerturbedGraph

    if not isinstance(method, PerturbedGraph):
        raise PlanError(f"{method.name} perturbs no graph", remedy="report this as a bug")
    pairs = [*witnesses(method.unit, directed=directed)]
    pairs += sampled(method.unit, directed=directed, count=2, seed=seed or 0)
    if method.unit.relation == "add-remove":
        pairs.append(crowd(directed=directed))
    plan = method.plan(pairs[0].first.facts())
    source = NoiseSource() if seed is None else NoiseSource.seeded(seed)
    games = tuple(_response_game(method, plan, pair, source) for pair in pairs)
    return plan, (Target("links", claim_of(plan), games, runs or ANSWERS),)


def _response_game(method: PerturbedGraph, plan: Plan, pair: Pair, source: NoiseSource) -> Game:
    nodes = pair.first.nodes

    def release(sides: BoolArray) -> np.ndarray:
        cells = np.zeros((len(sides), nodes, nodes))
        for found, side in zip(cells, sides.tolist(), strict=True):
            graph = pair.second if side else pair.first
            answer = method.response.draw(graph, plan, source)
            found[arc_sources(answer), answer.indices] = 1
        return cells

    return Game(pair.name, release, chunk=1_000)


STAGED: Mapping[str, Callable[[Method, int | None, bool, int | None], Targets]] = {
    "gap": gap_targets,
    "mlp": mlp_targets,
    "edgerand": response_targets,
    "lapgraph": response_targets,
    "sage-edge": response_targets,
}
"""Methods whose stages are audited one by one; all others are audited by whole fits."""


# -- neighbour sums --------------------------------------------------------------------------------


def hop_game(plan: Plan, pair: Pair, source: NoiseSource) -> Game:
    """The K noisy sums of GAP on one of two graphs, as :meth:`GapNetwork.aggregate` releases them.

    The statistic is the exact likelihood ratio: the noise is Gaussian, and given what earlier hops
    released each hop's exact sums on either graph are known to the adversary.
    """
    network = _network(plan, source)
    exact = _network(_noiseless(plan), None)
    nodes = pair.first.nodes
    hops = plan.settings.hops

    kept: dict[tuple[bool, int], tuple[Graph, np.ndarray]] = {}

    def release(sides: BoolArray) -> np.ndarray:
        key = bool(sides[0]), len(sides)
        if (sides == sides[0]).all():
            # All first or all second graphs, again and again: built once.
            kept[key] = kept.get(key) or copies(pair, sides)
            graph, place = kept[key]
        else:
            graph, place = copies(pair, sides)
        network.assume_posteriors(_even(graph))
        found = np.stack(network.aggregate(graph), axis=1)
        return found.reshape(len(sides), nodes, hops, -1)[place]

    means = []
    for graph in (pair.first, pair.second):
        exact.assume_posteriors(_even(graph))
        means.append(exact.aggregate(graph)[0].astype(np.float64))
    carriers = [_carrier(plan, graph) for graph in (pair.first, pair.second)]
    shown = np.ones(nodes, bool)
    if pair.hidden is not None:
        shown[pair.hidden] = False
    std = plan.stage("aggregation").noise_std
    # Later hops start from rows that under links="all" nobody but the changed node sees whole.
    known = hops if pair.hidden is None else 1

    def ratio(released: np.ndarray) -> Floats:
        # |s - m|^2 - |s - m'|^2 = 2 <s - (m + m')/2, m' - m>; hop 1's means are the same each time.
        apart = (means[1] - means[0]) * shown[:, None]
        score: Floats = np.tensordot(released[:, :, 0], apart, 2)
        score -= ((means[0] + means[1]) / 2 * apart).sum()
        for hop in range(1, known):
            rows = _unit(released[:, :, hop - 1])
            first, second = (carrier @ rows for carrier in carriers)
            apart = (second - first) * shown[:, None]
            score += np.einsum("rnc,rnc->r", released[:, :, hop] - (first + second) / 2, apart)
        return score / std**2

    width = nodes * hops * means[0].shape[1]
    return Game(pair.name, release, ratio, chunk=max(1, _NUMBERS // width), crowded=True)


def _network(plan: Plan, source: NoiseSource | None) -> GapNetwork:
    from tacit.methods.gap_network import GapNetwork

    return GapNetwork(plan, 0, source, lambda stage, done, total: None)


def _noiseless(plan: Plan) -> Plan:
    return replace(plan, stages=tuple(replace(stage, noise_std=0.0) for stage in plan.stages))


def _even(graph: Graph) -> np.ndarray:
    """Class posteriors of an encoder that knows nothing."""
    return np.full((graph.nodes, graph.classes), 1 / graph.classes, np.float32)


def _carrier(plan: Plan, graph: Graph) -> Floats:
    """The matrix that takes rows to neighbour sums, weights of own lists included."""
    from tacit.aggregate.hop_sum import list_weights
    from tacit.privacy.units import Node

    unit, found = plan.unit, np.zeros((graph.nodes, graph.nodes))
    weights = np.ones(graph.nodes)
    if isinstance(unit, Node) and unit.links == "own" and plan.settings.bound == "scale":
        weights = list_weights(graph, unit.max_degree or 1).astype(np.float64)
    for u in range(graph.nodes):
        found[graph.indices[graph.indptr[u] : graph.indptr[u + 1]], u] = weights[u]
    return found


def _unit(rows: np.ndarray) -> Floats:
    rows = rows.astype(np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)


# -- DP-SGD ----------------------------------------------------------------------------------------


def dpsgd_target(plan: Plan, stage: Stage, source: NoiseSource, runs: int | None) -> Target:
    """One stage of DP-SGD against its own claim."""
    game = dpsgd_game(stage, plan.settings.clip, plan.unit.relation == "replace", source)
    most = min(40_000, max(1_000, STEPS // stage.rounds))
    return Target(stage.name, Claim.by_events(stage.event, plan.delta), (game,), runs or most)


def dpsgd_game(stage: Stage, clip: float, replaced: bool, source: NoiseSource) -> Game:
    """:func:`tacit.learn.dpsgd.train_private` with a stage's noise, rate and steps, and canaries.

    A canary's gradient is longer than the clip and of one direction whatever the weights, in a
    column of the weights of its own; absent, its features are zero and so is its gradient. The
    adversary sees the weights after every step. The ratio is that of the worst pair of
    the subsampled Gaussian mechanism, so nothing is lost.
    """
    import torch
    from torch import nn

    from tacit.learn.dpsgd import DpSgdConfig, train_private

    rate, multiplier = 1e-12, stage.noise_std / clip
    config = DpSgdConfig(
        sampling_rate=stage.sampling_rate,
        steps=stage.rounds,
        noise_multiplier=multiplier,
        clip=clip,
        learning_rate=rate,
        optimizer="sgd",
    )

    def release(sides: BoolArray) -> np.ndarray:
        count = len(sides)
        network = nn.Linear(count, 2, bias=False)
        nn.init.zeros_(network.weight)
        # Long enough to be clipped at every step: the weights hardly move from zero.
        length = 1000.0 * clip
        sizes = np.where(sides, -length if replaced else 0.0, length).astype(np.float32)
        seen = [np.zeros((2, count))]
        train_private(
            network,
            (torch.diag(torch.from_numpy(sizes)),),
            torch.zeros(count, dtype=torch.int64),
            config,
            source=source,
            seed=0,
            on_step=lambda done: seen.append(network.weight.detach().double().numpy().copy()),
        )
        # The gradient of class 0 is (p - 1, p) along the canary: one direction of the two rows.
        steps = -np.diff(np.stack(seen), axis=0) * (stage.sampling_rate * count / rate)
        along: np.ndarray = (steps[:, 1] - steps[:, 0]) / np.sqrt(2) / clip
        return along.T

    def ratio(released: np.ndarray) -> Floats:
        q, variance = stage.sampling_rate, multiplier**2
        if replaced:
            # Means +1 and -1: full batches only.
            found: Floats = -2 * released.sum(axis=1) / variance
            return found
        there = (released - 0.5) / variance
        return -np.logaddexp(np.log1p(-q) if q < 1 else -np.inf, np.log(q) + there).sum(axis=1)

    words = "a record turned to its opposite" if replaced else "a canary that is there or not"
    return Game(words, release, ratio, chunk=_CANARIES, crowded=True)
