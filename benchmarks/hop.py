"""One hop over 20 million arcs x 64 columns: Tacit's exact sums against torch and scipy.

Every program multiplies the same random links with the same rows, in turn, several times; the
medians are compared. Rows lie in memory at random, so the machine's limit is how fast it can gather
rows of this size, which a loop that only reads them measures in the same run.

    python benchmarks/hop.py [--quick] [--repeats N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
import torch
from numba import njit

from tacit.aggregate import sum_neighbours, to_grid, unit_rows
from tacit.aggregate.hop import _run, _threads
from tacit.aggregate.kernels import WIDE, _sum_wide


def links(nodes: int, arcs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """In-lists with a skewed (Pareto) length distribution and uniformly random neighbours."""
    rng = np.random.default_rng(seed)
    weights = rng.pareto(1.5, nodes) + 0.3
    lengths = rng.multinomial(arcs, weights / weights.sum())
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return indptr, rng.integers(0, nodes, arcs, dtype=np.int32)


@njit(nogil=True)
def _gather(indices, grid, out, start, stop):
    """Fetch rows of 64 columns in the order of the list and keep next to nothing of them."""
    last = len(indices) - 1
    for part in range(start, stop):
        lo, hi = part * 1024, min((part + 1) * 1024, len(indices))
        _sum_wide(grid, indices, out, lo, hi, last, WIDE, 0, part * WIDE)


def gather(indices: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The probe: every arc's row is read once, in vectors and prefetched, 1024 into one sum."""
    parts = -(-len(indices) // 1024)
    out = np.empty((parts, WIDE), np.int32)
    ends = np.linspace(0, parts, 8 * _threads() + 1).astype(int).tolist()
    _run(lambda a, b: _gather(indices, grid, out, a, b), pairwise(ends))
    return out


def measure(nodes: int, arcs: int, columns: int, repeats: int) -> dict[str, object]:
    """Median seconds of each program, interleaved, and what follows from them."""
    indptr, indices = links(nodes, arcs, seed=0)
    rows = np.random.default_rng(1).standard_normal((nodes, columns), dtype=np.float32)
    rows = unit_rows(rows)
    grid = to_grid(rows, 14)
    wide = to_grid(rows, 20)
    ones = np.ones(arcs, np.float32)
    matrix = sp.csr_array((ones, indices, indptr.astype(np.int32)), shape=(nodes, nodes))
    tensor = torch.from_numpy(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR support a beta, once
        sparse = {
            bits: torch.sparse_csr_tensor(
                torch.from_numpy(indptr.astype(kind)),
                torch.from_numpy(indices.astype(kind)),
                torch.from_numpy(ones),
                size=(nodes, nodes),
            )
            for bits, kind in ((32, np.int32), (64, np.int64))
        }
    torch.set_num_threads(_threads())
    programs: dict[str, Callable[[], object]] = {
        "tacit (exact, int16 rows)": lambda: sum_neighbours(indptr, indices, grid),
        "tacit (exact, int32 rows, int64 sums)": lambda: sum_neighbours(indptr, indices, wide),
        "torch CSR float32, int32 indices": lambda: sparse[32] @ tensor,
        "torch CSR float32, int64 indices": lambda: sparse[64] @ tensor,
        "scipy CSR float32": lambda: matrix @ rows,
        "to_grid (once per hop)": lambda: to_grid(rows, 14),
        "probe: random gather of int16 rows": lambda: gather(indices, grid),
    }
    exact = sum_neighbours(indptr, indices, grid)
    if not np.allclose(exact / 2**14, matrix @ rows, atol=2e-2 + 1e-4 * np.diff(indptr).max()):
        raise SystemExit("the products disagree: the comparison would mean nothing")
    times: dict[str, list[float]] = {name: [] for name in programs}
    for repeat in range(repeats + 1):  # the first round warms up and is not counted
        for name, program in programs.items():
            start = time.perf_counter()
            program()
            if repeat:
                times[name].append(time.perf_counter() - start)
    seconds = {name: statistics.median(values) for name, values in times.items()}
    ours, ours_wide, torch32, torch64, scipy_, convert, probe = seconds.values()
    best_torch = min(torch32, torch64)
    return {
        "nodes": nodes,
        "arcs": arcs,
        "columns": columns,
        "threads": _threads(),
        "repeats": repeats,
        "seconds": seconds,
        "times_as_fast_as_torch": best_torch / ours,
        "times_as_fast_as_scipy": scipy_ / ours,
        "times_as_fast_as_torch_with_to_grid": best_torch / (ours + convert),
        "times_as_fast_as_scipy_with_to_grid": scipy_ / (ours + convert),
        "int64_mode_times_as_fast_as_torch": best_torch / ours_wide,
        "int64_mode_times_as_fast_as_scipy": scipy_ / ours_wide,
        "gathered_gigabytes_per_second": arcs * columns * 2 / ours / 1e9,
        "probe_gigabytes_per_second": arcs * columns * 2 / probe / 1e9,
        "share_of_random_gather_bandwidth": probe / ours,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    result = measure(1_000_000 // scale, 20_000_000 // scale, WIDE, options.repeats)
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"{result['arcs']:,} arcs x {result['columns']} columns, {result['nodes']:,} nodes, "
        f"{result['threads']} threads on {os.cpu_count()} processors"
    )
    seconds = result["seconds"]
    for name, value in seconds.items():  # type: ignore[attr-defined]
        print(f"  {name:40s} {1e3 * value:9.1f} ms")
    for name, value in result.items():
        if isinstance(value, float):
            print(f"  {name.replace('_', ' '):48s} {value:8.2f}")


if __name__ == "__main__":
    main()
