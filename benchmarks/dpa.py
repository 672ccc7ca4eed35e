"""One layer of DPA on a graph of Reddit's size: sums taken once, and every share generated.

140,667 users, 51.6 million pairs with a skewed in-degree, 602 columns of unit rows; three parties,
two shares, one that may collude; integer noise of every party. The paper reports 3,634 seconds for
two layers of the same size without noise, dummies or shares (its Table 8).

    python benchmarks/dpa.py [--quick] [--only totals|every] [--json]
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np

from tacit.aggregate import InLists, to_grid, unit_rows
from tacit.multiparty.ring import Stream
from tacit.multiparty.session import Dummies, Round, SessionPlan
from tacit.multiparty.simulation import Slots, run_round
from tacit.privacy.noise import NoiseSource

BITS = 13  # with 140,667 users a sum of unit values then fits the ring of 32 bits


def lists_of(nodes: int, arcs: int, seed: int) -> InLists:
    """In-lists with a skewed (Pareto) length distribution and uniformly random senders."""
    rng = np.random.default_rng(seed)
    weights = rng.pareto(1.5, nodes) + 0.3
    lengths = rng.multinomial(arcs, weights / weights.sum())
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return InLists.check(indptr, rng.integers(0, nodes, arcs, dtype=np.int32))


def plan_of(nodes: int, columns: int) -> SessionPlan:
    return SessionPlan(
        users=nodes,
        features=columns,
        classes=2,
        width=columns,
        projection="gaussian",
        projection_seed=0,
        parties=3,
        shares=2,
        colluding=1,
        bits=32,
        fraction_bits=BITS,
        longest=nodes,
        degree=0,
        self_link=False,
        scaling="dummy",
        with_val=False,
        noise="gaussian",
        dummies=Dummies("geometric", shift=1),
        rounds=(Round("features", 1, "lists", columns, 1.0),),
    )


def peak() -> int:
    """Most memory this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def warm_up() -> None:
    """Compile both loops on a graph of no size."""
    lists = lists_of(64, 200, 1)
    plan = plan_of(64, 80)
    grid = to_grid(unit_rows(np.ones((64, 80), np.float32)), BITS)
    stream = Stream.seeded(1)
    for one in (None, stream):
        slots = Slots.draw(lists, plan, one, np.ones(64, np.int64))
        run_round(plan, plan.rounds[0], slots, grid, NoiseSource.seeded(1), one)


def measure(nodes: int, arcs: int, columns: int, only: str | None) -> dict[str, object]:
    """CPU seconds of a layer at both speeds, whether they agree, and the most memory used."""
    warm_up()
    lists, plan = lists_of(nodes, arcs, 0), plan_of(nodes, columns)
    rng = np.random.default_rng(1)
    rows = np.empty((nodes, columns), np.float32)
    for start in range(0, nodes, 4096):
        part = rows[start : start + 4096]
        part[:] = unit_rows(rng.standard_normal(part.shape, dtype=np.float32))
    found: dict[str, object] = {
        "nodes": nodes,
        "pairs": arcs,
        "columns": columns,
        "feature_bytes": rows.nbytes,
    }
    turn, sums = plan.rounds[0], []
    for speed in ("totals", "every"):
        if only not in (None, speed):
            continue
        stream = Stream.seeded(3) if speed == "every" else None
        start = time.process_time()
        dummies = np.random.default_rng(2).geometric(0.5, nodes)
        slots = Slots.draw(lists, plan, stream, dummies)
        found[f"{speed}_session_cpu_seconds"] = time.process_time() - start
        start, wall = time.process_time(), time.perf_counter()
        grid = to_grid(rows, BITS)
        sums.append(run_round(plan, turn, slots, grid, NoiseSource.seeded(1), stream))
        found[f"{speed}_layer_cpu_seconds"] = time.process_time() - start
        found[f"{speed}_layer_wall_seconds"] = time.perf_counter() - wall
        found[f"{speed}_peak_bytes"] = peak()
        found[f"{speed}_peak_over_features"] = peak() / rows.nbytes
        del slots, grid
        if only is None:
            # A sample, so that comparing holds no second release.
            sums[-1] = sums[-1][:: max(1, nodes // 1000)].copy()
    if len(sums) == 2:
        found["same_integers"] = bool(np.array_equal(*sums))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the pairs")
    parser.add_argument("--only", choices=("totals", "every"))
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    scale = 50 if options.quick else 1
    found = measure(140_667 // scale, 51_605_960 // scale, 602, options.only)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(
            f"  {name.replace('_', ' '):36s} {value:,.2f}"
            if not isinstance(value, bool)
            else f"  {name} {value}"
        )


if __name__ == "__main__":
    main()
