"""One hop: norms that never grow, and sums that are exactly the mathematical ones."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import tacit
from tacit.aggregate import InLists, hop, sum_neighbours, to_grid, unit_rows
from tacit.errors import GraphError, NoiseError

FLOATS = st.floats(-1e3, 1e3, width=32)


def lists(nodes, arcs, seed=0, sources=None):
    """Random in-lists with repeated entries, empty lists and one long list."""
    rng = np.random.default_rng(seed)
    owners = np.sort(np.where(rng.random(arcs) < 0.3, 0, rng.integers(0, nodes, arcs)))
    indptr = np.searchsorted(owners, np.arange(nodes + 1))
    return indptr.astype(np.int64), rng.integers(0, sources or nodes, arcs, dtype=np.int32)


def oracle(indptr, indices, grid):
    """scipy's product in int64, an independent program."""
    ones = np.ones(len(indices), np.int64)
    matrix = sp.csr_array((ones, indices, indptr), shape=(len(indptr) - 1, len(grid)))
    return matrix @ grid.astype(np.int64)


def squares(grid):
    return (grid.astype(object) ** 2).sum(axis=1)


@settings(max_examples=50, deadline=None)
@given(
    rows=arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 9)), elements=FLOATS),
    bits=st.integers(1, 24),
    data=st.data(),
)
def test_integer_rows_are_never_longer_than_their_weight(rows, bits, data):
    rows = unit_rows(rows)
    weights = data.draw(st.none() | arrays(np.float64, len(rows), elements=st.floats(0, 1)))
    grid = to_grid(rows, bits, weights)
    assert (squares(grid) <= 4**bits).all()
    if weights is not None:
        from fractions import Fraction

        for length, weight in zip(squares(grid), weights, strict=True):
            assert length <= (Fraction(float(weight)) * 2**bits) ** 2
    assert ((np.sign(grid) == np.sign(rows)) | (grid == 0)).all()
    exact = rows.astype(float) * 2.0**bits * (1 if weights is None else weights[:, None])
    assert (np.abs(grid) <= np.abs(exact)).all()
    assert (np.abs(grid - exact) < 2).all()  # truncation, and rarely one step more


@pytest.mark.parametrize("excess", [1e-7, 1e-6, 5e-5])
@pytest.mark.parametrize("bits", [8, 14, 24])
def test_rows_a_little_too_long_are_shortened_on_the_integers(excess, bits):
    # Rows whose entries are exact on the grid, so that truncation alone would not help.
    longer = 1 + excess
    rows = np.float32([[longer, 0, 0], [0.6, -0.8, 0], [-1, 2.0**-bits, 0], [0, 0, -longer]])
    grid = to_grid(rows, bits)
    assert (squares(grid) <= 4**bits).all()
    assert (np.sign(grid[:, :2]) * np.sign(rows[:, :2]) >= 0).all()


@pytest.mark.parametrize("bits", [1, 14, 15, 24])
def test_one_hot_rows_are_exact_and_zero_rows_stay_zero(bits):
    grid = to_grid(np.vstack([np.eye(5), -np.eye(5), np.zeros((1, 5))]), bits)
    whole = np.eye(5, dtype=np.int64) * 2**bits
    np.testing.assert_array_equal(grid, np.vstack([whole, -whole, whole[:1] * 0]))
    assert grid.dtype == (np.int16 if bits <= 14 else np.int32)


def test_a_grid_row_depends_on_its_own_input_alone():
    rows = unit_rows(np.random.default_rng(0).standard_normal((4000, 33)))
    whole = to_grid(rows, 14)
    np.testing.assert_array_equal(whole[17:18], to_grid(rows[17:18], 14))
    np.testing.assert_array_equal(whole[2000:], to_grid(rows[2000:], 14))


@pytest.mark.parametrize(
    ("rows", "weights", "bits"),
    [
        ([[1.001, 0.0]], None, 14),
        ([[0.8, 0.8]], None, 14),
        ([[np.nan, 0.0]], None, 14),
        ([[0.0, -np.inf]], None, 14),
        ([[1.0, 0.0]], [1.0001], 14),
        ([[1.0, 0.0]], [-0.1], 14),
        ([[1.0, 0.0]], [np.nan], 14),
        ([[1.0, 0.0]], [1.0, 1.0], 14),
        ([[1.0, 0.0]], None, 0),
        ([[1.0, 0.0]], None, 25),
        (np.ones((1, 1 << 16)), None, 24),  # squares that add up to 2^64 must not wrap to zero
    ],
)
def test_what_breaks_the_sensitivity_is_refused(rows, weights, bits):
    with pytest.raises(NoiseError):
        to_grid(np.array(rows), bits, weights)


def test_the_first_bad_row_of_many_is_named():
    rows = np.zeros((50_000, 3), np.float32)
    rows[[40_000, 12_345]] = 2
    with pytest.raises(NoiseError, match="row 12345 "):
        to_grid(rows, 14)


@pytest.mark.parametrize("value", [1e-45, 1e-20, 3.0, 3e38])
def test_unit_rows_at_every_magnitude(value):
    rows = np.float32([[value, value, 0], [0, 0, 0], [0, -value, 0]])
    unit = unit_rows(rows)
    assert unit.dtype == np.float32
    half = np.sqrt(0.5)
    np.testing.assert_allclose(unit, [[half, half, 0], [0, 0, 0], [0, -1, 0]], rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_unit_rows_refuse_what_has_no_direction(value):
    with pytest.raises(GraphError, match="row 1 "):
        unit_rows(np.array([[1.0, 2.0], [value, 0.0]]))


# Widths below, at and around the vector widths of the kernel.
@pytest.mark.parametrize("columns", [0, 1, 7, 15, 16, 17, 63, 64, 65, 80, 95, 128, 150])
@pytest.mark.parametrize("bits", [14, 20])
def test_sums_are_exact(columns, bits):
    rng = np.random.default_rng(columns)
    grid = to_grid(unit_rows(rng.standard_normal((500, columns))), bits)
    indptr, indices = lists(500, 9_000)
    sums = sum_neighbours(indptr, indices, grid)
    np.testing.assert_array_equal(sums, oracle(indptr, indices, grid))
    assert sums.dtype == (np.int32 if bits == 14 else np.int64)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_small_lists(data):
    nodes, columns = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 20))
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=0, max_size=8))
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    entries = st.integers(0, nodes - 1)
    indices = data.draw(arrays(np.int32, int(indptr[-1]), elements=entries))
    grid = data.draw(arrays(np.int16, (nodes, columns)))
    np.testing.assert_array_equal(
        sum_neighbours(indptr, indices, grid), oracle(indptr, indices, grid)
    )


def test_directed_lists_and_a_star():
    # Node 0 is listed by nobody; everybody else is in the list of node 3.
    indptr, indices = np.array([0, 0, 1, 1, 4]), np.array([0, 0, 1, 2])
    grid = np.arange(8, dtype=np.int16).reshape(4, 2)
    np.testing.assert_array_equal(
        sum_neighbours(indptr, indices, grid), [[0, 0], [0, 1], [0, 0], [6, 9]]
    )


def test_no_arcs_and_no_nodes():
    grid = np.ones((3, 4), np.int16)
    np.testing.assert_array_equal(sum_neighbours([0, 0, 0, 0], [], grid), np.zeros((3, 4)))
    assert sum_neighbours([0], [], np.empty((0, 4), np.int16)).shape == (0, 4)


@pytest.mark.parametrize("value", [-(2**15), 2**15 - 1])
def test_sums_that_int32_cannot_hold_go_to_int64(value):
    degree = 2**17
    grid = np.full((1, 17), value, np.int16)
    sums = sum_neighbours([0, degree], np.zeros(degree, np.int32), grid)
    assert sums.dtype == np.int64
    assert (sums == value * degree).all()


def test_a_small_grid_stays_int32_at_any_degree():
    degree = 2**16 + 1
    grid = np.full((1, 3), -(2**14), np.int16)
    sums = sum_neighbours([0, degree], np.zeros(degree, np.int32), grid)
    assert sums.dtype == np.int32
    assert (sums == -(2**14) * degree).all()


def test_sums_that_int64_cannot_hold_are_refused():
    grid = np.full((1, 1), 2**31 - 1, np.int32)
    many = InLists(np.array([0, 2**32]), np.empty(0, np.int32), longest=2**32)
    with pytest.raises(NoiseError, match="62 bits"):
        many.accumulator(grid)


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [
        ([0, 1, 2], [0, 2]),
        ([0, 1, 2], [0, -1]),
        ([0, 1, 2], np.array([0, 2**40])),
        ([0, 1, 2], [0]),
        ([1, 1, 2], [0, 1]),
        ([0, 2, 1], [0]),
        ([], []),
        ([[0, 0]], []),
    ],
)
def test_damaged_lists_are_refused(indptr, indices):
    with pytest.raises(GraphError):
        sum_neighbours(indptr, np.asarray(indices, dtype=np.int64), np.ones((2, 5), np.int16))


@pytest.mark.parametrize("bad", [-1, 40_000, 2**31 - 1])
def test_one_bad_entry_among_many_is_found_by_whichever_thread_meets_it(bad):
    indptr, indices = lists(40_000, 200_000)
    indices[123_456] = bad
    with pytest.raises(GraphError, match="does not exist"):
        sum_neighbours(indptr, indices, np.zeros((40_000, 16), np.int16))


@pytest.mark.parametrize("grid", [np.ones((2, 2)), np.ones(2, np.int16), np.ones((2, 2), np.int64)])
def test_only_integer_grids_are_summed(grid):
    with pytest.raises(NoiseError, match="to_grid"):
        sum_neighbours([0, 0, 0], [], grid)


def test_the_number_of_threads_changes_nothing(monkeypatch):
    indptr, indices = lists(3_000, 60_000)
    grid = to_grid(unit_rows(np.random.default_rng(1).standard_normal((3_000, 70))), 14)
    results = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(hop, "_threads", lambda threads=threads: threads)
        results.append(sum_neighbours(indptr, indices, grid))
    np.testing.assert_array_equal(results[0], oracle(indptr, indices, grid))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_inputs_are_neither_changed_nor_need_to_be_writable_or_contiguous():
    indptr, indices = lists(50, 300)
    wide = unit_rows(np.random.default_rng(2).standard_normal((50, 20)))
    rows = np.asfortranarray(wide)
    for array in (indptr, indices, rows):
        array.flags.writeable = False
    grid = to_grid(rows, 14)
    np.testing.assert_array_equal(grid, to_grid(wide, 14))
    sums = sum_neighbours(indptr, indices, np.asfortranarray(grid))
    np.testing.assert_array_equal(sums, oracle(indptr, indices, grid))


@pytest.mark.parametrize(("setting", "most"), [("1", 1), ("", 10**6), ("64", 10**6), ("no", 10**6)])
def test_omp_num_threads_only_lowers_the_number(monkeypatch, setting, most):
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    assert 1 <= hop._threads() <= min(most, os.cpu_count())


def test_loops_compile_where_no_folder_can_be_written(tmp_path):
    # An installed package that neither root nor a home folder lets numba cache for.
    package = tmp_path / "tacit"
    shutil.copytree(
        Path(tacit.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    code = (
        "import numpy as np, tacit.aggregate as a\n"
        "from numba.core import caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "from tacit.aggregate import kernels\n"
        "print(a.unit_rows(np.ones((1, 4))).sum(), type(kernels.normalise_rows._cache).__name__)"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["2.0", "NullCache"]
