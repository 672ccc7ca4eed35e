"""EdgeRand and LapGraph on a graph of Reddit's size: seconds and peak memory.

python benchmarks/perturbation.py [--nodes 116713] [--links 20000000] [--epsilon 4] [--json]
"""

import argparse
import json
import resource
import time

import numpy as np

import tacit
from tacit.aggregate.perturbation import Cells, edge_rand, lap_graph, successes
from tacit.privacy.noise import NoiseSource


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=116_713)
    parser.add_argument("--links", type=int, default=20_000_000)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--method", choices=["lapgraph", "edgerand"], default="lapgraph")
    parser.add_argument("--directed", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    source = NoiseSource.fresh()
    cells = Cells(options.nodes, options.directed)
    empty = tacit.graph.from_arcs(
        [], [], features=np.ones((options.nodes, 1), np.float32),
        labels=np.zeros(options.nodes, int), directed=options.directed, classes=2,
    )  # fmt: skip
    graph = cells.graph(empty, successes(cells.count, options.links / cells.count, source))
    before, started = peak(), time.perf_counter()
    if options.method == "lapgraph":
        out = lap_graph(graph, 0.1 * options.epsilon, 0.9 * options.epsilon, source)
    else:
        out = edge_rand(graph, options.epsilon, source)
    found = {
        "method": options.method,
        "seconds": round(time.perf_counter() - started, 2),
        "peak_gib": round(peak(), 2),
        "graph_gib": round(before, 2),
        "arcs_in": graph.arcs,
        "arcs_out": out.arcs,
    }
    print(json.dumps(found) if options.json else found)


if __name__ == "__main__":
    main()
