"""Small mechanisms with a fault that somebody once published, and the same without the fault.

Each maker returns what :func:`tacit.attacks.audit.audit_targets` takes: claim and game. The
noise is numpy's: what is tested is whether an audit sees the fault, not the noise source.
"""

import math
from collections.abc import Callable

import dp_accounting as dp
import numpy as np

from tacit.aggregate.perturbation import Cells
from tacit.attacks.audit import Game, Target
from tacit.attacks.bounds import Claim
from tacit.attacks.witnesses import Pair, copies, drawn
from tacit.graph import bound_out_lists
from tacit.privacy.accounting import calibrate

DELTA = 1e-5
Maker = Callable[[bool, int], Target]


def gaussian(epsilon: float, rounds: int = 1) -> tuple[float, Claim]:
    """The noise multiplier of so many Gaussian rounds that cost epsilon together, and the claim."""
    sigma = calibrate(
        lambda s: dp.SelfComposedDpEvent(dp.GaussianDpEvent(s), rounds), epsilon, DELTA
    )
    return sigma, Claim.by_events(dp.GaussianDpEvent(sigma / math.sqrt(rounds)), DELTA)


def shifted(name: str, shift: np.ndarray, std: float, claim: Claim, runs: int) -> Target:
    """Gaussian noise around zero or around a shift."""
    rng = np.random.default_rng(7)
    shift = np.asarray(shift, float)

    def release(sides: np.ndarray) -> np.ndarray:
        return rng.normal(0, std, (len(sides), *shift.shape)) + np.multiply.outer(sides, shift)

    def ratio(released: np.ndarray) -> np.ndarray:
        return np.tensordot(released - shift / 2, shift, shift.ndim) / std**2

    return Target(name, claim, (Game(name, release, ratio, chunk=50_000),), runs)


def scaled_noise(faulty: bool, runs: int = 400_000) -> Target:
    """Noise at two thirds of what was calibrated."""
    sigma, claim = gaussian(1.0)
    return shifted("scale", np.array([1.0]), sigma * (2 / 3 if faulty else 1), claim, runs)


def one_arc(faulty: bool, runs: int = 400_000) -> Target:
    """A symmetric link moves the rows of both its ends, and is charged as one arc."""
    sigma, claim = gaussian(1.0)
    # Unit rows of the two ends: each appears in the other's sum.
    return shifted("link", np.eye(2)[::-1], sigma * (1 if faulty else math.sqrt(2)), claim, runs)


def truncated(faulty: bool, runs: int = 4_000) -> Target:
    """Lists cut to D at random, and the claim of D links that change with a node, in and out.

    Each of m nodes lists W, and the changed node beside. With it every list drops a random entry,
    without it none does. The twin keeps the promise: nobody lists more than D, nothing is cut.
    """
    D, others = 3, 12 if faulty else 3
    wanted = D if faulty else D - 1
    sigma, claim = gaussian(1.0)
    lists = [(u, others + w) for u in range(others) for w in range(wanted)]
    last = others + wanted
    signs = [1] * (last + 1)
    with_node = [*lists, *((u, last) for u in range(others))]
    pair = Pair(
        "displaced links",
        drawn(lists, signs, directed=True),
        drawn(with_node, signs, directed=True),
        hidden=last,
    )
    rng = np.random.default_rng(7)
    std = sigma * math.sqrt(D)

    def release(sides: np.ndarray) -> np.ndarray:
        graph, place = copies(pair, sides)
        cut = bound_out_lists(graph, D, int(rng.integers(2**63)))
        sums = np.diff(cut.in_lists[0]).astype(float).reshape(len(sides), -1)
        return np.delete(sums + rng.normal(0, std, sums.shape), last, axis=1)[place]

    return Target("truncation", claim, (Game(pair.name, release, chunk=1_000),), runs)


def two_layers(faulty: bool, runs: int = 2_000) -> Target:
    """DPA: two sums over the links, noise in the first alone; the twin has noise in both.

    Nodes x and y are listed by the same two nodes. One more node lists y, or does not.
    """
    sigma, claim = gaussian(1.0, 1 if faulty else 2)
    a, b, x, y, z = range(5)
    arcs = [(a, x), (b, x), (a, y), (b, y), (x, a), (y, b), (x, z)]
    adjacency = np.zeros((2, 5, 5))
    for side, links in enumerate((arcs, [*arcs, (z, y)])):
        adjacency[side, [u for u, _ in links], [v for _, v in links]] = 1
    first = np.tile([1.0, 0.0], (5, 1))
    rng = np.random.default_rng(7)

    def release(sides: np.ndarray) -> np.ndarray:
        back = adjacency[sides.astype(int)].transpose(0, 2, 1)
        one = back @ first + rng.normal(0, sigma, (len(sides), 5, 2))
        two = back @ (one / np.linalg.norm(one, axis=2, keepdims=True))
        return two if faulty else two + rng.normal(0, sigma, two.shape)

    return Target("layers", claim, (Game("twins", release, chunk=5_000),), runs)


def sketch(faulty: bool, runs: int = 20_000) -> Target:
    """DPDGC: Z = AW + N, charged for rows of W of norm 1; a normalised copy of W is thrown away."""
    sigma, claim = gaussian(1.0)
    weights = np.random.default_rng(0).normal(0, 1, (2, 8))
    normalised = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    return shifted(
        "embedding", weights if faulty else normalised, sigma * math.sqrt(2), claim, runs
    )


def rows(faulty: bool, runs: int = 50_000) -> Target:
    """k + 1 clipped rows change at once, and are charged by the square root of their number."""
    sigma, claim = gaussian(1.0)
    k, clip = 8, 0.5
    charged = math.sqrt(k + 1) if faulty else k + 1
    return shifted("rows", np.array([(k + 1) * clip]), sigma * clip * charged, claim, runs)


def batches(faulty: bool, runs: int = 30_000) -> Target:
    """One epoch of T shuffled batches of b records, charged as Poisson; the twin draws Poisson.

    All other records have the gradient -1. In shuffled batches the changed record's place among
    them is known but for the noise: a batch with it sums to 2 - b, with its zero to 1 - b (Chua et
    al., "How private are DP-SGD implementations?", 2024). Against the twin others at rest are
    worst: their number would be noise.
    """
    T, b, sigma = 100, 10, 0.7
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(1 / T, dp.GaussianDpEvent(sigma)), T)
    claim = Claim.by_events(event, DELTA)
    rng = np.random.default_rng(7)

    def shuffled(sides: np.ndarray) -> np.ndarray:
        sums = rng.normal(-b, sigma, (len(sides), T))
        # The order of batches is uniform; the other records are all alike.
        sums[np.arange(len(sides)), rng.integers(T, size=len(sides))] += 1.0 + sides
        return sums

    def poisson(sides: np.ndarray) -> np.ndarray:
        there = rng.random((len(sides), T)) < 1 / T
        return rng.normal(0, sigma, there.shape) + there * sides[:, None]

    def against_shuffled(released: np.ndarray) -> np.ndarray:
        there = np.logaddexp.reduce((2 * (released + b) - 2) / sigma**2, axis=1)
        return there - np.logaddexp.reduce((released + b - 0.5) / sigma**2, axis=1)

    def against_poisson(released: np.ndarray) -> np.ndarray:
        there = (released - 0.5) / sigma**2 - math.log(T)
        return np.logaddexp(math.log1p(-1 / T), there).sum(axis=1)

    if faulty:
        game = Game("opposite records", shuffled, against_shuffled, 5_000)
    else:
        game = Game("records at rest", poisson, against_poisson, 5_000)
    return Target("batches", claim, (game,), runs)


def edge_rand(faulty: bool, runs: int = 100_000) -> Target:
    """EdgeRand at the exponent of another formula: a fault without Gaussian noise."""
    epsilon = 1.0
    cells = Cells(4, directed=False).count
    flip = 1 / (1 + math.exp(1.5 * epsilon if faulty else epsilon))
    rng = np.random.default_rng(7)

    def release(sides: np.ndarray) -> np.ndarray:
        links = np.zeros((len(sides), cells), bool)
        links[:, 2] = sides
        return (links ^ (rng.random(links.shape) < flip)).astype(float)

    claim = Claim.of(epsilon, 0.0)
    return Target("cells", claim, (Game("one link", release, chunk=50_000),), runs)


FAULTS: dict[str, Maker] = {
    "noise scaled by 2/3": scaled_noise,
    "symmetric links charged as one arc": one_arc,
    "truncation claimed for links=all": truncated,
    "DPA with noise only in its first layer": two_layers,
    "W left unnormalised": sketch,
    "group charged by its square root": rows,
    "fixed-size batches charged as Poisson": batches,
    "randomised response with another exponent": edge_rand,
}
