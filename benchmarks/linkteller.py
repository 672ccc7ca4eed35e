"""LinkTeller's influence matrix: the fast path against one forward pass per attacked node.

A graph of the size of Twitch-DE (9,498 nodes, 153,138 links, 3,170 features, heavy-tailed degrees)
and GCNs of one to three layers with random weights; both ways in 64-bit floats, on one thread, in
the same run, by processor time. The slow loop is timed on a slice of the attacked nodes: as a black
box really makes a forward pass, from the features it is given (``query_s``), and as the quickest
one at hand makes it, with features packed sparse once and not timed (``forward_s``).

    python benchmarks/linkteller.py [--nodes 500] [--slice 8] [--json]
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch

import tacit
from tacit.attacks.black_box import NetworkBox
from tacit.attacks.linkteller import influence_matrix
from tacit.attacks.pairs import choose
from tacit.graph import Graph
from tacit.learn.graph_networks import GraphNetwork, Links, Sparse, pack

NODES, LINKS, FEATURES, PER_ROW, HIDDEN = 9_498, 153_138, 3_170, 20, 64


def made() -> Graph:
    """A graph with Twitch-DE's sizes and about its spread of degrees."""
    graph = tacit.graph.synthetic.communities(
        NODES, mean_degree=2 * LINKS / NODES, classes=2, features=4, degree_spread=1.3, seed=0
    )
    rng = np.random.default_rng(0)
    rows = np.zeros((NODES, FEATURES), np.float32)
    columns = rng.integers(0, FEATURES, (NODES, PER_ROW))
    np.put_along_axis(rows, columns, 1.0, axis=1)
    return graph.with_(features=rows)


def timed(graph: Graph, layers: int, count: int, part: int) -> dict[str, float]:
    network = GraphNetwork("gcn", FEATURES, HIDDEN, 2, layers, seed=0)
    box = NetworkBox.of(network, Links.of(*graph.in_lists, symmetric=True))
    nodes = choose(graph, count, seed=0)
    influence_matrix(box, nodes[:2], graph.features)  # compiles, and caches what both ways share

    started = time.process_time()
    fast, _ = influence_matrix(box, nodes, graph.features)
    fast_s = (time.process_time() - started) / count

    some = nodes[:part]
    features = graph.features.astype(float)
    started = time.process_time()
    slow = np.empty((part, count))
    before = box(nodes, features)
    for index, node in enumerate(some):
        features[node] *= 1 + 1e-4
        slow[index] = np.linalg.norm(box(nodes, features) - before, axis=1) / 1e-4
        features[node] = graph.features[node]
    query_s = (time.process_time() - started) / (part + 1)
    np.testing.assert_allclose(fast[:part], slow, atol=1e-9)

    packed = pack(graph.features)
    if isinstance(packed, Sparse):
        packed = packed.with_values(packed.forth.values().double())
    forward_s = np.inf
    with torch.no_grad():
        for _ in range(5):
            started = time.process_time()
            box.network(packed, box.links)
            forward_s = min(forward_s, time.process_time() - started)
    return {
        "layers": layers,
        "attacked": count,
        "fast_s": fast_s,
        "forward_s": forward_s,
        "query_s": query_s,
        "ratio_forward": forward_s / fast_s,
        "ratio_query": query_s / fast_s,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--slice", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    graph, rows = made(), []
    for layers in (1, 2, 3):
        row = timed(graph, layers, args.nodes, args.slice)
        rows.append(row)
        if not args.json:
            print(
                f"{layers} layers, {graph.nodes:,} nodes: {1e3 * row['fast_s']:.2f} ms per node, "
                f"{row['ratio_query']:.0f} times as fast as a question "
                f"({1e3 * row['query_s']:.0f} ms; target 50), {row['ratio_forward']:.0f} times "
                f"as fast as the bare forward pass ({1e3 * row['forward_s']:.0f} ms)"
            )
    if args.json:
        print(json.dumps({"rows": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
