"""Perturbed graphs: the law of the dense algorithms, in time and memory of the links alone."""

import math
import time
import tracemalloc

import numpy as np
import pytest
from scipy import stats

import tacit
from tacit.aggregate import perturbation
from tacit.aggregate.perturbation import (
    BYTES_PER_LINK,
    Cells,
    absent,
    cells_moved,
    check_room,
    edge_rand,
    edge_rand_rates,
    lap_graph,
    noisy_count,
    randomised_response,
    response_epsilon,
    sparse_response_rates,
    strongest_links,
    successes,
)
from tacit.errors import NoiseError
from tacit.privacy.noise import NoiseSource
from tacit.privacy.units import Edge, KNeighbors, Node

P = 1e-12
SHAPES = pytest.mark.parametrize("directed", [False, True], ids=["symmetric", "directed"])


def tiny(directed, nodes=5, share=0.4, seed=1):
    rng = np.random.default_rng(seed)
    dense = np.triu(rng.random((nodes, nodes)) < share, 1)
    dense = (
        np.logical_xor(dense, np.tril(rng.random((nodes, nodes)) < share, -1))
        if directed
        else dense | dense.T
    )
    tail, head = np.nonzero(dense)
    return tacit.graph.from_arcs(
        tail, head, features=np.ones((nodes, 2), np.float32), labels=np.zeros(nodes, int),
        directed=directed, classes=2,
    )  # fmt: skip


def chi_square(counts, probabilities):
    """p-value of counts under probabilities, rare outcomes taken together."""
    expected = probabilities * counts.sum()
    rare = expected < 8
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
    return stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), len(expected) - 1)


def two_samples(first, second):
    """p-value that two lists of outcomes have one law."""
    outcomes = np.unique(np.concatenate([first, second]))
    table = np.array([[np.sum(side == o) for o in outcomes] for side in (first, second)])
    rare = table.sum(axis=0) < 40
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
    return stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue


def as_number(numbers):
    return int(np.sum(1 << numbers))


@SHAPES
@pytest.mark.parametrize("nodes", [1, 2, 5, 83])
def test_numbers_and_ends_are_inverse_and_keep_the_order_of_rows(directed, nodes):
    cells = Cells(nodes, directed)
    everything = np.arange(cells.count)
    tail, head = cells.ends(everything)
    assert not np.any(tail == head)
    assert len(set(zip(tail.tolist(), head.tolist(), strict=True))) == cells.count
    assert np.all(np.diff(tail) >= 0)
    if nodes > 1:
        graph = tiny(directed, nodes)
        links = cells.of(graph)
        assert np.all(np.diff(links) > 0)
        again = cells.graph(graph, links)
        np.testing.assert_array_equal(again.indptr, graph.indptr)
        np.testing.assert_array_equal(again.indices, graph.indices)
        assert again.directed == directed


@SHAPES
def test_numbers_of_the_largest_graphs_are_exact(directed):
    cells = Cells(2**28, directed)
    numbers = np.array([0, 1, cells.count // 3, cells.count - 2, cells.count - 1])
    tail, head = (side.astype(object) for side in cells.ends(numbers))
    back = tail * (2**28 - 1) + head - (head > tail) if directed else tail * (tail - 1) // 2 + head
    assert list(back) == list(numbers)
    with pytest.raises(NoiseError, match="numbered"):
        Cells(2**28 + 1, directed)


@SHAPES
def test_edge_rand_is_the_dense_algorithm_on_five_nodes(directed):
    """Exact probabilities of all 1,024 outcomes (of the first 10 cells, where there are 20)."""
    graph, cells = tiny(directed), Cells(5, directed)
    links, source = cells.of(graph), NoiseSource.fresh()
    for epsilon in (0.5, 2.0):
        keep, add = edge_rand_rates(epsilon)
        drawn = np.zeros(1024, np.int64)
        for _ in range(8000):
            out = randomised_response(links, cells, keep=keep, add=add, source=source)
            drawn[as_number(out[out < 10])] += 1

        def law(keep, add):
            bits = (np.arange(1024)[:, None] >> np.arange(10)) & 1
            rates = np.where(np.isin(np.arange(10), links), keep, add)
            return np.where(bits == 1, rates, 1 - rates).prod(axis=1)

        assert chi_square(drawn, law(keep, add)) > P
        for wrong in (2 / 3, 3 / 2):
            assert chi_square(drawn, law(*edge_rand_rates(epsilon * wrong))) < P


def dense_lap_graph(links, cells, target, epsilon, draws, rng):
    """Algorithm 4 as printed: Laplace noise on every cell, keep the largest T."""
    values = rng.laplace(scale=1 / epsilon, size=(draws, cells.count))
    values[:, links] += 1
    order = np.argsort(-values, axis=1)
    return np.array([as_number(row[:target]) for row in order])


@SHAPES
@pytest.mark.parametrize("sparse", [False, True], ids=["all cells", "level"])
def test_lap_graph_is_the_dense_algorithm_on_five_nodes(directed, sparse, monkeypatch):
    if sparse:  # five nodes are so few that a level has to be forced
        monkeypatch.setattr(perturbation, "_DENSE", 1.0)
        monkeypatch.setattr(perturbation, "_passing_rate", lambda target, cells: 0.42)
    graph, cells = tiny(directed), Cells(5, directed)
    links, source, rng = cells.of(graph), NoiseSource.fresh(), np.random.default_rng(5)
    drawn = np.array(
        [as_number(strongest_links(links, cells, 2, 2.0, source)) for _ in range(8000)]
    )
    assert two_samples(drawn, dense_lap_graph(links, cells, 2, 2.0, 30_000, rng)) > P
    for wrong in (4 / 3, 3.0):
        assert two_samples(drawn, dense_lap_graph(links, cells, 2, wrong, 30_000, rng)) < P


def test_a_level_chooses_absent_links_evenly_and_true_ones_by_their_noise():
    cells = Cells(60, True)
    links = np.sort(np.random.default_rng(0).choice(cells.count, 40, replace=False))
    assert perturbation._passing_rate(2, cells) < perturbation._DENSE
    source, rng = NoiseSource.fresh(), np.random.default_rng(1)
    drawn = [strongest_links(links, cells, 2, 6.0, source) for _ in range(4000)]
    true = np.array([np.isin(out, links).sum() for out in drawn])
    values = rng.laplace(scale=1 / 6.0, size=(4000, cells.count))
    values[:, links] += 1
    dense = np.isin(np.argpartition(-values, 2, axis=1)[:, :2], links).sum(axis=1)
    assert two_samples(true, dense) > P
    others = np.concatenate(drawn)
    others = others[~np.isin(others, links)]
    halves = np.bincount(others * 8 // cells.count, minlength=8)
    assert stats.chisquare(halves).pvalue > P


def test_too_few_above_the_level_answers_fewer_and_never_another_law(monkeypatch):
    monkeypatch.setattr(perturbation, "_passing_rate", lambda target, cells: 1e-3)
    cells = Cells(60, False)
    out = strongest_links(np.array([3]), cells, 500, 1.0, NoiseSource.fresh())
    assert len(out) < 500


def test_ties_are_broken_evenly(monkeypatch):
    monkeypatch.setattr(perturbation, "STEPS", 1.0)  # one grid step: nearly everything ties
    cells, source = Cells(5, False), NoiseSource.fresh()
    chosen = np.concatenate(
        [strongest_links(np.empty(0, np.int64), cells, 3, 3.0, source) for _ in range(3000)]
    )
    assert stats.chisquare(np.bincount(chosen, minlength=10)).pvalue > P


@pytest.mark.parametrize("rate", [1e-13, 1e-4, 0.03, 0.5, 0.97])
def test_successes_are_independent_trials(rate):
    trials, source = (10**15 if rate < 1e-9 else 3000), NoiseSource.fresh()
    found = [successes(trials, rate, source) for _ in range(400)]
    counts = np.array([len(one) for one in found])
    total = stats.poisson if rate < 1e-9 else stats.binom
    law = total(trials * rate * 400) if rate < 1e-9 else total(trials * 400, rate)
    assert 2 * min(law.cdf(counts.sum()), law.sf(counts.sum() - 1)) > P
    places = np.concatenate(found)
    assert all(np.all(np.diff(one) > 0) for one in found)
    assert places.min() >= 0
    assert places.max() < trials
    spread = np.bincount((places // (trials / 6)).astype(int), minlength=6)
    assert stats.chisquare(spread).pvalue > P
    assert len(successes(0, rate, source)) == 0
    assert len(successes(trials, 0.0, source)) == 0


def test_absent_skips_the_links():
    links = np.array([0, 1, 4, 9])
    np.testing.assert_array_equal(absent(links, np.arange(6)), [2, 3, 5, 6, 7, 8])
    np.testing.assert_array_equal(absent(links[:0], np.arange(3)), np.arange(3))


def test_published_rates():
    # Wu et al. (2022), section IV-B: "Take epsilon = 1 ..., s shall be at least 0.5379".
    keep, add = edge_rand_rates(1.0)
    assert round(2 * add, 4) == 0.5379
    assert keep == pytest.approx(1 - add)
    assert response_epsilon(keep, add) == pytest.approx(1.0)
    # Theorem 4: epsilon = ln(2/s - 1).
    for epsilon in (0.1, 4.0, 12.0):
        assert math.log(2 / (2 * edge_rand_rates(epsilon)[1]) - 1) == pytest.approx(epsilon)


def test_the_asymmetric_response_keeps_the_density_and_costs_no_more():
    for epsilon in (0.5, 2.0, 8.0):
        for density in (0.0, 1e-6, 0.01, 0.7, 2.0):
            keep, add = sparse_response_rates(epsilon, density)
            if density == 0.0:
                assert (keep, add) == (0.0, 0.0)
                continue
            assert response_epsilon(keep, add) == pytest.approx(epsilon)
            if density < 0.5:
                assert density * keep + (1 - density) * add == pytest.approx(density)
    assert response_epsilon(0.9, 0.5) == pytest.approx(math.log(5.0))
    assert response_epsilon(0.5, 0.0) == math.inf


def test_noisy_count_is_geometric_with_a_power_check():
    cells, source = Cells(400, False), NoiseSource.fresh()
    drawn = np.array([noisy_count(5000, cells, 0.5, source) for _ in range(6000)]) - 5000

    def p_value(epsilon):
        ratio = math.exp(-epsilon)
        ks = np.arange(-12, 13)
        law = (1 - ratio) / (1 + ratio) * ratio ** np.abs(ks)
        counts = np.array([np.sum(drawn == k) for k in ks] + [np.sum(np.abs(drawn) > 12)])
        return chi_square(counts, np.append(law, 1 - law.sum()))

    assert p_value(0.5) > P
    assert p_value(0.5 * 2 / 3) < P
    assert p_value(0.5 * 3 / 2) < P
    assert 0 <= noisy_count(0, cells, 0.01, source) <= cells.count


def test_what_one_unit_changes():
    assert cells_moved(Edge()) == 1
    assert cells_moved(Edge(relation="replace")) == 2
    assert cells_moved(Node()) is None
    assert cells_moved(KNeighbors(k=1)) is None


def test_a_graph_that_would_not_fit_is_refused_before_anything_is_drawn():
    cells = Cells(100_000, False)
    check_room(cells, 1e6, limit=1e6 * BYTES_PER_LINK)
    with pytest.raises(NoiseError, match="GiB may be used"):
        check_room(cells, 1.01e6, limit=1e6 * BYTES_PER_LINK)
    graph = tacit.graph.from_arcs(
        [0], [1], features=np.ones((2_000_000, 1), np.float32), labels=np.zeros(2_000_000, int),
        symmetrize=True,
    )  # fmt: skip
    with pytest.raises(NoiseError, match="LapGraph"):
        edge_rand(graph, 0.5, NoiseSource.fresh())


@SHAPES
def test_graphs_keep_everything_but_their_links(directed):
    graph = tiny(directed, nodes=40, share=0.1)
    source = NoiseSource.fresh()
    for out in (edge_rand(graph, 1.0, source), lap_graph(graph, 1.0, 1.0, source)):
        assert out.directed == directed
        assert out.features is graph.features
        assert out.arcs > 0


def test_memory_stays_in_proportion_to_the_links():
    cells, source = Cells(100_000, False), NoiseSource.fresh()
    links = successes(cells.count, 300_000 / cells.count, source)
    like = tacit.graph.from_arcs(
        [0], [1], features=np.ones((100_000, 1), np.float32), labels=np.zeros(100_000, int),
        symmetrize=True,
    )  # fmt: skip
    tracemalloc.start()
    out = cells.graph(like, strongest_links(links, cells, len(links), 4.0, source))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert out.arcs == 2 * len(links)
    assert peak < 2 * len(links) * BYTES_PER_LINK + 1e8


@pytest.mark.slow
def test_lap_graph_of_twenty_million_links_takes_under_a_minute():
    cells, source = Cells(116_713, False), NoiseSource.fresh()
    links = successes(cells.count, 20e6 / cells.count, source)
    started = time.perf_counter()
    out = strongest_links(links, cells, len(links), 4.0, source)
    assert time.perf_counter() - started < 60
    assert len(out) == len(links)
