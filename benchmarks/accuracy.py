"""Accuracy on real graphs at the budgets we promise figures for: mean of three seeds.

Every seed has its own 75/10/15 split, weights and noise. Settings are Tacit's defaults, chosen from
public facts; nothing is tuned on these files.

    python benchmarks/accuracy.py --data ../shared/data [--only cornell5] [--seeds 3] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy import stats

import tacit
from tacit.methods import Method

INF = math.inf
EDGE, OWN = tacit.Edge(), tacit.Node()
Make = Callable[[int], Method]


def gap(unit: tacit.Edge | tacit.Node, epsilon: float, delta: float, **settings: object) -> Make:
    return lambda seed: tacit.GAP(unit, epsilon, delta, seed=seed, **settings)  # type: ignore[arg-type]


def mlp(unit: tacit.Edge | tacit.Node, epsilon: float, delta: float, **settings: object) -> Make:
    return lambda seed: tacit.MLP(unit, epsilon, delta, seed=seed, **settings)  # type: ignore[arg-type]


PAPER = {"preset": "paper", "accounting": "paper"}
PUBLIC = {"own_list": False}
CASES: tuple[tuple[str, str, Make, float | None], ...] = (
    ("fb100_cornell5", "GAP, no privacy", gap(EDGE, INF, 1e-6), 88.0),
    ("fb100_cornell5", "GAP, edge eps=4", gap(EDGE, 4, 1e-6), 87.0),
    ("fb100_cornell5", "GAP, edge eps=1", gap(EDGE, 1, 1e-6), 82.0),
    ("fb100_cornell5", "MLP, edge", mlp(EDGE, 1, 1e-6), None),
    ("fb100_cornell5", "GAP, node own eps=8", gap(OWN, 8, 1e-5), 78.0),
    ("fb100_cornell5", "GAP, node own eps=1", gap(OWN, 1, 1e-5), 55.0),
    (
        "fb100_cornell5",
        "GAP, node own eps=8, own list unread",
        gap(OWN, 8, 1e-5, overrides=PUBLIC),
        None,
    ),
    (
        "fb100_cornell5",
        "GAP, node own eps=1, own list unread",
        gap(OWN, 1, 1e-5, overrides=PUBLIC),
        None,
    ),
    ("fb100_cornell5", "DP-MLP, node eps=8", mlp(OWN, 8, 1e-5), None),
    ("fb100_cornell5", "DP-MLP, node eps=1", mlp(OWN, 1, 1e-5), None),
    (
        "fb100_cornell5",
        "paper's settings, edge eps=4, sound",
        gap(EDGE, 4, 1e-6, preset="paper", hops=3),
        78.0,
    ),
    ("fb100_cornell5", "paper mode, no privacy", gap(EDGE, INF, 1e-6, hops=4, **PAPER), 83.0),
    ("fb100_cornell5", "paper mode, edge eps=4", gap(EDGE, 4, 1e-6, hops=3, **PAPER), 78.8),
    ("fb100_cornell5", "paper mode, edge eps=1", gap(EDGE, 1, 1e-6, hops=2, **PAPER), 72.5),
    ("fb100_cornell5", "paper mode, node eps=8", gap(OWN, 8, 1e-5, hops=3, **PAPER), 63.2),
    ("fb100_cornell5", "paper mode, MLP", mlp(EDGE, 1, 1e-6, **PAPER), 49.8),
    ("fb100_cornell5", "paper mode, DP-MLP eps=8", mlp(OWN, 8, 1e-5, **PAPER), 50.6),
    ("amazon_computers", "GAP, edge eps=1", gap(EDGE, 1, 1e-6), 87.5),
    ("amazon_computers", "MLP, edge", mlp(EDGE, 1, 1e-6), None),
    ("amazon_photo", "GAP, edge eps=1", gap(EDGE, 1, 1e-6), 92.5),
    ("amazon_photo", "MLP, edge", mlp(EDGE, 1, 1e-6), None),
    ("cora", "GAP, edge eps=4", gap(EDGE, 4, 1e-6), None),
    ("cora", "MLP, edge", mlp(EDGE, 1, 1e-6), None),
)


def measure(graph: tacit.Graph, make: Make, seeds: int, ledger: tacit.Ledger) -> dict[str, float]:
    found, seconds = [], []
    for seed in range(seeds):
        started = time.perf_counter()
        model = make(seed).fit(tacit.split(graph, (75, 10, 15), seed=seed), ledger=ledger)
        found.append(100 * model.fitted.metrics["test_accuracy"])
        seconds.append(time.perf_counter() - started)
    half = 0.0
    if seeds > 1:
        half = float(stats.t.ppf(0.975, seeds - 1) * np.std(found, ddof=1) / math.sqrt(seeds))
    return {"mean": float(np.mean(found)), "half": half, "seconds": float(np.mean(seconds))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", default="", help="run cases whose graph or name contains this")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows, graphs = [], {}
    with tempfile.TemporaryDirectory() as folder:
        ledger = tacit.Ledger(Path(folder) / "ledger.sqlite")
        for file, words, make, target in CASES:
            path = args.data / f"{file}.npz"
            if args.only not in f"{file} {words}":
                continue
            if not path.exists():
                print(f"{file}: not in {args.data}, left out", file=sys.stderr)
                continue
            graph = graphs.setdefault(file, tacit.load(path))
            row = {"graph": file, "case": words, "target": target}
            row |= measure(graph, make, args.seeds, ledger)
            rows.append(row)
            goal = "" if target is None else f"target {target:5.1f}  "
            goal += "" if target is None else ("met" if row["mean"] >= target else "MISSED")
            print(
                f"{file:18s} {words:38s} {row['mean']:6.2f} ± {row['half']:4.2f}  "
                f"{row['seconds']:6.1f} s  {goal}",
                file=sys.stderr if args.json else sys.stdout,
                flush=True,
            )
    if args.json:
        print(json.dumps({"seeds": args.seeds, "rows": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
