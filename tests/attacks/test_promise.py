"""The promise itself: output histograms of neighbours obey the claimed (epsilon, delta).

For each small mechanism outputs are drawn many times on two neighbouring inputs and counted. The
set of outcomes that speaks most against a claim is chosen on one half of the draws and held against
it on the other, with a margin of five standard deviations. Beside each claim stands one that is too
small by a third and must fail: the check has power.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest

import tacit
from tacit.aggregate import noisy_hops
from tacit.aggregate.perturbation import (
    Cells,
    edge_rand_rates,
    noisy_count,
    randomised_response,
    sparse_response_rates,
    strongest_links,
)
from tacit.attacks.stages import REFERENCE, dpsgd_game
from tacit.attacks.witnesses import Pair, copies, drawn, witnesses
from tacit.privacy.accounting import epsilon_pld
from tacit.privacy.noise import NoiseSource

Draw = Callable[[bool], np.ndarray]
"""Outcomes, as small whole numbers, of one of two neighbouring inputs."""


def excess(first: np.ndarray, second: np.ndarray, epsilon: float, delta: float) -> float:
    """Standard deviations by which the worst set exceeds ``P(E) <= e^eps Q(E) + delta``."""
    size = int(max(first.max(), second.max())) + 1
    halves = [
        [np.bincount(part, minlength=size) for part in (x[::2], x[1::2])] for x in (first, second)
    ]
    n = len(first) // 2
    worst = -math.inf
    for p, q in ((halves[0], halves[1]), (halves[1], halves[0])):
        grown = math.exp(epsilon)
        chosen = p[0] > grown * q[0]
        a, b = p[1][chosen].sum() / n, q[1][chosen].sum() / n
        spread = math.sqrt((a * (1 - a) + grown**2 * b * (1 - b)) / n) + 1 / n
        worst = max(worst, (a - grown * b - delta) / spread)
    return worst


def keeps(draw: Draw, epsilon: float, delta: float, *, tight: bool = True) -> None:
    """The claim holds; where it is tight, two thirds of it does not."""
    first, second = draw(False), draw(True)
    assert excess(first, second, epsilon, delta) < 5
    if tight:
        assert excess(first, second, epsilon * 2 / 3, delta) > 5


def places(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """One number for the bins of all columns together."""
    bins = np.searchsorted(edges, values)
    return np.ravel_multi_index(tuple(bins.T), (len(edges) + 1,) * bins.shape[1])


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("kind", ["geometric", "laplace"])
def test_pure_noise_primitives(kind: str, epsilon: float) -> None:
    source = NoiseSource.seeded(1)

    def draw(side: bool) -> np.ndarray:
        noise = getattr(source, kind)(1 / epsilon, 200_000)
        return np.clip(noise + side, -40, 40) + 40

    # Rounding a Laplace variable to whole numbers hides nothing from a shift by one.
    keeps(draw, epsilon, 0.0)


@pytest.mark.parametrize("delta", [1e-3, 0.01, 0.1])
def test_gaussian_noise_primitive(delta: float) -> None:
    import dp_accounting as dp

    source, steps, multiplier = NoiseSource.seeded(2), 8, 0.8

    def draw(side: bool) -> np.ndarray:
        noise = source.gaussian(steps * multiplier, 400_000) + steps * side
        return np.clip(noise, -60, 60) + 60

    epsilon = epsilon_pld(dp.GaussianDpEvent(multiplier), delta)
    keeps(draw, epsilon, delta)


def summed(pair: Pair, std: float, seed: int) -> Draw:
    """Noisy sums of the copies of a pair; the row of a hidden node is left out."""
    source, runs = NoiseSource.seeded(seed), 150_000
    edges = np.linspace(-2 * std, 2 * std + 1, 12)

    def draw(side: bool) -> np.ndarray:
        graph, _ = copies(pair, np.full(runs, side))
        rows = np.ones((graph.nodes, 1), np.float32)
        (hop,) = noisy_hops(graph.in_lists, rows, stds=[std], source=source, normalise=False)
        sums = hop.reshape(runs, -1).astype(float)
        moved = np.ones(sums.shape[1], bool)
        if pair.hidden is not None:
            moved[pair.hidden] = False
        sums = sums[:, moved]
        # The direction in which neighbours differ, and one at right angles that must show nothing.
        means = [graph.in_lists[0] for graph in (pair.first, pair.second)]
        apart = (np.diff(means[1]) - np.diff(means[0])).astype(float)[moved]
        along = sums @ (apart / np.linalg.norm(apart))
        return places(np.column_stack([along, sums[:, 0]]), edges)

    return draw


@pytest.mark.parametrize(
    ("unit", "directed", "squared"),
    [
        (tacit.Edge(), True, 1),
        (tacit.Edge(), False, 2),
        (tacit.Node(links="all", max_degree=3), False, 3),
    ],
    ids=["arc", "link", "node"],
)
def test_hop_sums(unit: tacit.privacy.Unit, directed: bool, squared: int) -> None:
    import dp_accounting as dp

    multiplier, delta = 0.7, 0.01
    pair = witnesses(unit, directed=directed)[0]
    epsilon = epsilon_pld(dp.GaussianDpEvent(multiplier), delta)
    draw = summed(pair, multiplier * math.sqrt(squared), 3)
    keeps(draw, epsilon, delta)


@pytest.mark.parametrize("epsilon", [0.5, 1.5])
def test_edge_rand_on_four_nodes(epsilon: float) -> None:
    keep, add = edge_rand_rates(epsilon)
    answered(
        lambda links, cells, source: randomised_response(
            links, cells, keep=keep, add=add, source=source
        ),
        epsilon,
        tight=True,
    )


def test_asymmetric_response_on_four_nodes() -> None:
    epsilon = 1.0
    keep, add = sparse_response_rates(epsilon, 0.4)
    # Thinning hides some of what EdgeRand shows, so the claim is not tight.
    answered(
        lambda links, cells, source: randomised_response(
            links, cells, keep=keep, add=add, source=source
        ),
        epsilon,
        tight=False,
    )


def test_lap_graph_on_four_nodes() -> None:
    """Both halves of the budget at once: the count and the cells."""
    count, cells_epsilon = 0.5, 1.0

    def answer(links: np.ndarray, cells: Cells, source: NoiseSource) -> np.ndarray:
        target = noisy_count(len(links), cells, count, source)
        return strongest_links(links, cells, target, cells_epsilon, source)

    answered(answer, count + cells_epsilon, tight=False)


def answered(
    answer: Callable[[np.ndarray, Cells, NoiseSource], np.ndarray], epsilon: float, *, tight: bool
) -> None:
    """Perturbed graphs on 4 nodes: 64 outcomes, one link there or not."""
    cells, source = Cells(4, directed=False), NoiseSource.seeded(4)
    base = [(0, 1), (1, 2)]
    links = [
        cells.of(drawn(arcs, [1, -1, 1, -1], directed=False)) for arcs in (base, [*base, (2, 3)])
    ]

    # LapGraph is slower, and hides more.
    draws = 8_000 if tight else 3_000

    def draw(side: bool) -> np.ndarray:
        found = [answer(links[int(side)], cells, source) for _ in range(draws)]
        return np.array([int((1 << graph).sum()) for graph in found])

    first, second = draw(False), draw(True)
    assert excess(first, second, epsilon, 0.0) < 5
    # Where thinning or a count hides some of it, hardly any epsilon is what must fail.
    assert excess(first, second, (2 / 3 if tight else 0.1) * epsilon, 0.0) > 5


@pytest.mark.parametrize("delta", [0.01, 0.05])
def test_one_step_of_dp_sgd(delta: float) -> None:
    from dataclasses import replace

    plan = tacit.MLP(tacit.Node(), 2.0, 1e-5, overrides={"steps": 1, "sampling_rate": 0.4}).plan(
        REFERENCE
    )
    stage = replace(plan.stages[0], noise_multiplier=1.0, noise_std=1.0)
    game = dpsgd_game(stage, 1.0, False, NoiseSource.seeded(5))
    edges = np.linspace(-3, 4, 24)

    def draw(side: bool) -> np.ndarray:
        parts = [game.release(np.full(500, side)) for _ in range(120)]
        return places(-np.concatenate(parts), edges)

    keeps(draw, epsilon_pld(stage.event, delta), delta)
