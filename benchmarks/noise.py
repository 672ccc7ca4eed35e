"""Million integers a second of each noise sampler, on one core.

    python benchmarks/noise.py [--quick] [--json]

The process pins itself to one processor where the system allows it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

from tacit.privacy.noise import NoiseSource

SCALE = 163_840.0  # ten units on a grid of 14 fraction bits


def rate(name: str, count: int, repeats: int) -> float:
    """Median rate in million integers a second."""
    source = NoiseSource.fresh()
    draw = getattr(source, name)
    draw(SCALE, count // 10)
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        draw(SCALE, count)
        rates.append(count / (time.perf_counter() - start) / 1e6)
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    count = 1_000_000 if options.quick else 10_000_000
    rates = {name: rate(name, count, 5) for name in ("gaussian", "laplace", "geometric")}
    if options.json:
        print(json.dumps({"million_integers_per_second_one_core": rates, "scale": SCALE}))
        return
    for name, value in rates.items():
        print(f"{name:10s} {value:8.1f} million integers a second on one core")


if __name__ == "__main__":
    main()
