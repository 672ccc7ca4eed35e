"""How long it takes to make large graphs, and in how much memory.

Usage: python benchmarks/synthetic.py [--arcs 20000000] [--degree 40] [--features 16] [--json]

Each graph is also held against the machine's own limit in the same run: the time numpy takes to
sort as many 64-bit keys as the graph has links, which no generator that ends in sorted lists
without duplicates can do without.
"""

import argparse
import json
import resource
import time

import numpy as np

from tacit.graph import synthetic


def seconds(make):
    start = time.perf_counter()
    made = make()
    return time.perf_counter() - start, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arcs", type=int, default=20_000_000)
    parser.add_argument("--degree", type=float, default=40.0)
    parser.add_argument("--features", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    nodes = round(options.arcs / options.degree)
    keys = np.random.default_rng(0).integers(2**62, size=options.arcs // 2)
    floor, _ = seconds(keys.sort)
    del keys
    makers = {
        "communities": lambda: synthetic.communities(
            nodes=nodes, mean_degree=options.degree, features=options.features, seed=1
        ),
        "csbm": lambda: synthetic.csbm(
            nodes=nodes, mean_degree=options.degree, features=options.features, seed=1
        ),
    }
    results = {"nodes": nodes, "sort_seconds": round(floor, 2)}
    for name, make in makers.items():
        took, graph = seconds(make)
        results[name] = {
            "arcs": graph.arcs,
            "seconds": round(took, 2),
            "times_the_sort": round(took / floor, 1),
            "peak_rss_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        }
        del graph
    if options.json:
        print(json.dumps(results))
        return
    print(f"{nodes:,} nodes; sorting half as many keys as arcs takes {floor:.2f} s")
    for name in makers:
        row = results[name]
        print(
            f"{name}: {row['arcs']:,} arcs in {row['seconds']:.2f} s "
            f"({row['times_the_sort']} times the sort), peak {row['peak_rss_gib']:.2f} GiB"
        )


if __name__ == "__main__":
    main()
