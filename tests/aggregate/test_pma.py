"""The noisy multi-hop pass: what it computes, what it draws, what it holds."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats

from tacit.aggregate import noisy_hops, pma, sum_neighbours, to_grid, unit_rows
from tacit.errors import GraphError, NoiseError
from tacit.privacy.noise import NoiseSource


def graph(nodes=400, arcs=3_000, columns=12, seed=0):
    rng = np.random.default_rng(seed)
    indptr = np.searchsorted(np.sort(rng.integers(0, nodes, arcs)), np.arange(nodes + 1))
    indices = rng.integers(0, nodes, arcs, dtype=np.int32)
    return (indptr.astype(np.int64), indices), unit_rows(rng.standard_normal((nodes, columns)))


def test_without_noise_it_is_algorithm_1_up_to_the_grid():
    (indptr, indices), rows = graph()
    links = sp.csr_array((np.ones(len(indices)), indices, indptr), shape=(400, 400))
    expected = rows.astype(float)
    for hop in noisy_hops((indptr, indices), rows, stds=[0, 0, 0], source=None, bits=20):
        expected = links @ expected
        norms = np.linalg.norm(expected, axis=1, keepdims=True)
        expected = np.divide(expected, norms, out=np.zeros_like(expected), where=norms > 0)
        np.testing.assert_allclose(hop, expected, atol=1e-4)
        assert hop.dtype == np.float32


def test_the_noisy_sum_is_the_exact_sum_plus_the_drawn_integers():
    in_lists, rows = graph()
    stds = [0.5, 2.0]
    first, second = noisy_hops(
        in_lists, rows, stds=stds, source=NoiseSource.seeded(3), normalise=False
    )
    source = NoiseSource.seeded(3)
    for released, std, before in ((first, 0.5, rows), (second, 2.0, unit_rows(first))):
        exact = sum_neighbours(*in_lists, to_grid(before, 14))
        noisy = exact + source.gaussian(std * 2**14, exact.shape)
        np.testing.assert_array_equal(released, (noisy / 2**14).astype(np.float32))


@pytest.mark.parametrize("block", [2, 100, 12 * 30, 10**9])
def test_blocks_change_nothing(monkeypatch, block):
    in_lists, rows = graph()
    arguments = {"stds": [1.0, 0.0, 3.0], "bits": 10}
    whole = noisy_hops(in_lists, rows, source=NoiseSource.seeded(1), **arguments)
    monkeypatch.setattr(pma, "_BLOCK", block)
    parts = noisy_hops(in_lists, rows, source=NoiseSource.seeded(1), **arguments)
    np.testing.assert_array_equal(whole, parts)


def test_raw_sums_and_unit_rows_are_the_same_pass():
    in_lists, rows = graph()
    unit = noisy_hops(in_lists, rows, stds=[1.0, 1.0], source=NoiseSource.seeded(1))
    raw = noisy_hops(in_lists, rows, stds=[1.0, 1.0], source=NoiseSource.seeded(1), normalise=False)
    for a, b in zip(unit, raw, strict=True):
        np.testing.assert_array_equal(a, unit_rows(b))


@pytest.mark.parametrize("std", [0.3, 5.0])
def test_the_noise_has_the_std_asked_for_and_no_other(std):
    in_lists, rows = graph(columns=50)
    noiseless = noisy_hops(in_lists, rows, stds=[0], source=None, normalise=False)[0]
    noisy = noisy_hops(in_lists, rows, stds=[std], source=NoiseSource.fresh(), normalise=False)[0]
    square = ((noisy - noiseless).astype(float) ** 2).sum()

    def p_value(claimed):
        scaled = square / claimed**2
        return 2 * min(stats.chi2.cdf(scaled, noisy.size), stats.chi2.sf(scaled, noisy.size))

    assert p_value(std) > 1e-20
    assert p_value(std * 2 / 3) < 1e-20
    assert p_value(std * 3 / 2) < 1e-20


def test_fresh_noise_differs_between_runs_and_hops():
    _, rows = graph()
    empty = (np.zeros(401, np.int64), np.empty(0, np.int32))
    runs = [
        noisy_hops(empty, rows, stds=[1.0, 1.0], source=NoiseSource.fresh(), normalise=False)
        for _ in range(2)
    ]
    draws = [hop.ravel() for run in runs for hop in run]
    for i, a in enumerate(draws):
        for b in draws[:i]:
            assert abs(np.corrcoef(a, b)[0, 1]) * np.sqrt(len(a)) < 9.4  # p = 1e-20


@pytest.mark.parametrize("unit", ["arc", "weight"])
def test_one_arc_moves_the_sums_by_at_most_its_weight(unit):
    (indptr, indices), rows = graph()
    weights = None if unit == "arc" else np.linspace(0, 1, 400)
    owner = int(np.flatnonzero(np.diff(indptr))[0])
    fewer = indptr - (np.arange(401) > owner)
    arguments = {"stds": [0], "source": None, "weights": weights, "normalise": False}
    one = noisy_hops((indptr, indices), rows, **arguments)[0]
    two = noisy_hops((fewer, np.delete(indices, indptr[owner])), rows, **arguments)[0]
    moved = np.linalg.norm((one - two).astype(float))
    limit = 1.0 if weights is None else weights[indices[indptr[owner]]]
    assert limit * 0.999 <= moved <= limit + 1e-9


def test_weights_of_zero_silence_a_node():
    in_lists, rows = graph()
    weights = np.ones(400)
    weights[7] = 0
    silenced = rows.copy()
    silenced[7] = 0
    np.testing.assert_array_equal(
        noisy_hops(in_lists, rows, stds=[0], source=None, weights=weights),
        noisy_hops(in_lists, silenced, stds=[0], source=None),
    )


def test_nodes_without_neighbours_and_zero_rows():
    rows = np.zeros((3, 1), np.float32)
    rows[0] = 1
    in_lists = (np.array([0, 0, 1, 2]), np.array([0, 2], np.int32))
    hop = noisy_hops(in_lists, rows, stds=[0], source=None)[0]
    np.testing.assert_array_equal(hop, [[0], [1], [0]])
    noisy = noisy_hops(in_lists, rows, stds=[9.0], source=NoiseSource.fresh())[0]
    np.testing.assert_array_equal(np.abs(noisy), np.ones((3, 1)))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_no_nodes_and_no_columns(shape):
    in_lists = (np.zeros(shape[0] + 1, np.int64), np.empty(0, np.int32))
    hops = noisy_hops(in_lists, np.empty(shape), stds=[1.0, 1.0], source=NoiseSource.fresh())
    assert [hop.shape for hop in hops] == [shape, shape]


def test_progress_counts_rows_to_the_end(monkeypatch):
    monkeypatch.setattr(pma, "_BLOCK", 12 * 150)
    seen = []
    in_lists, rows = graph()
    noisy_hops(
        in_lists,
        rows,
        stds=[0, 0],
        source=None,
        progress=lambda done, all_: seen.append((done, all_)),
    )
    assert seen == [(150, 800), (300, 800), (400, 800), (550, 800), (700, 800), (800, 800)]


@pytest.mark.parametrize("std", [-1.0, np.nan, np.inf])
def test_bad_noise_is_refused(std):
    in_lists, rows = graph()
    with pytest.raises(NoiseError, match="standard deviation"):
        noisy_hops(in_lists, rows, stds=[0.0, std], source=NoiseSource.fresh())


def test_noise_without_a_source_and_hops_without_noise_are_refused():
    in_lists, rows = graph()
    with pytest.raises(NoiseError, match="source"):
        noisy_hops(in_lists, rows, stds=[0.0, 1.0], source=None)
    with pytest.raises(NoiseError, match="hop"):
        noisy_hops(in_lists, rows, stds=[], source=None)


def test_noise_beyond_the_grid_is_refused():
    in_lists, rows = graph()
    with pytest.raises(NoiseError, match="scale"):
        noisy_hops(in_lists, rows, stds=[1e9], source=NoiseSource.fresh())


def test_rows_that_do_not_fit_are_refused():
    in_lists, rows = graph()
    with pytest.raises(GraphError, match="fit"):
        noisy_hops(in_lists, rows[:-1], stds=[0], source=None)
    with pytest.raises(NoiseError, match="norm"):
        noisy_hops(in_lists, rows * 1.5, stds=[0], source=None)


def test_inputs_are_not_changed():
    in_lists, rows = graph()
    copies = [array.copy() for array in (*in_lists, rows)]
    noisy_hops(in_lists, rows, stds=[1.0], source=NoiseSource.fresh())
    for before, after in zip(copies, (*in_lists, rows), strict=True):
        np.testing.assert_array_equal(before, after)


def test_memory_stays_within_three_feature_matrices(monkeypatch):
    # Two hops and the input are three matrices, of which the caller owns the input.
    monkeypatch.setattr(pma, "_BLOCK", 1 << 16)
    in_lists, rows = graph(nodes=100_000, arcs=200_000, columns=40)
    noisy_hops(*graph(), stds=[1.0], source=NoiseSource.fresh())  # compile
    tracemalloc.start()
    try:
        hops = noisy_hops(in_lists, rows, stds=[1.0, 1.0], source=NoiseSource.fresh())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(hops) == 2
    assert peak < 3 * rows.nbytes
