"""Teachers in batches against a loop over PyTorch Geometric models: time of each, in one run.

    python benchmarks/teachers.py [--teachers 1000] [--slice 3] [--processes N] [--data FILE]

The loop is timed on a slice of the same subgraphs: SAGEConv, batch norm, ReLU, dropout, SAGEConv,
Adam, full batches, as PrivGNN's paper describes its teachers. By default subgraphs of 750 nodes and
767 features are cut from a generated graph as dense as Amazon Computers; --data takes a real one.
Prints one line of JSON. The ratio is (slice time / slice teachers) / (our time / our teachers), by
the clock and by processor time (which a busy machine distorts less).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import tacit
from tacit.learn.teachers import TeacherConfig, fast_bfloat16
from tacit.methods import privgnn_answers as answers
from tacit.methods.privgnn_settings import choose

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.nn import SAGEConv


_PEOPLE = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


class Loop(torch.nn.Module):
    """One teacher as PyTorch Geometric writes it."""

    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.one, self.two = SAGEConv(width, hidden), SAGEConv(hidden, classes)
        self.norm = torch.nn.BatchNorm1d(hidden)

    def forward(self, x: torch.Tensor, links: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.one(x, links)))
        hidden = torch.nn.functional.dropout(hidden, 0.5, self.training)
        return self.two(hidden, links)


def by_loop(
    graph: tacit.Graph, samples: list[np.ndarray], config: TeacherConfig
) -> tuple[float, float]:
    """Wall and processor seconds for the teachers of these samples, one after another."""
    started, busy = time.perf_counter(), time.process_time()
    for sample in samples:
        part = tacit.graph.subgraph(graph, sample)
        indptr, sources = part.in_lists
        targets = np.repeat(np.arange(part.nodes), np.diff(indptr))
        links = torch.tensor(np.stack([sources.astype(np.int64), targets]))
        x, y = torch.tensor(part.features), torch.tensor(part.labels)
        model = Loop(x.shape[1], config.hidden, graph.classes)
        optimiser = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
        for _ in range(config.epochs):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x, links), y).backward()
            optimiser.step()
    return time.perf_counter() - started, time.process_time() - busy


def graph_of(path: Path | None) -> tacit.Graph:
    """A private graph of 2,500 nodes with a public one beside it."""
    if path is not None:
        return tacit.graph.cut(tacit.load(path), tacit.graph.Cut(2500, 1000, 1000))
    whole = tacit.graph.synthetic.communities(
        4500, mean_degree=11, features=767, classes=10, seed=1
    )
    return tacit.graph.cut(whole, tacit.graph.Cut(2500, 1000, 1000))


def _processor() -> float:
    """Processor seconds of this process and of the workers that have ended."""
    mine, theirs = (resource.getrusage(who) for who in _PEOPLE)
    return sum(use.ru_utime + use.ru_stime for use in (mine, theirs))


def main() -> None:
    """Time both and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teachers", type=int, default=1000)
    parser.add_argument("--slice", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--data", type=Path)
    args = parser.parse_args()
    graph = graph_of(args.data)
    if graph.public is None:
        return
    settings = choose("paper", "sound", {
        "queries": args.teachers, "epochs": args.epochs, "processes": args.processes, "gamma": 0.3,
        "query_ids": ",".join(str(i % graph.public.nodes) for i in range(args.teachers))
        if args.teachers <= graph.public.nodes else "",
    })  # fmt: skip
    stream = np.random.default_rng(0)
    coins = np.zeros((args.teachers, graph.nodes), bool)
    for row in coins:
        row[stream.choice(graph.nodes, 750, replace=False)] = True
    config = answers.teacher_config(settings)
    samples = [np.flatnonzero(row) for row in coins[: args.slice]]
    by_loop(graph, samples[:1], TeacherConfig(epochs=2))  # what is loaded once
    first = by_loop(graph, samples, config)
    started, busy = time.perf_counter(), _processor()
    answers.ask_teachers(
        graph, graph.public, settings.ids, answers.Draws(coins, np.zeros(0)), settings, 0,
        answers.Store(None), lambda stage, done, total: None, np.empty((0, graph.classes)),
    )  # fmt: skip
    ours = (time.perf_counter() - started) / args.teachers
    own = (_processor() - busy) / args.teachers
    second = by_loop(graph, samples, config)
    wall, work = ((a + b) / 2 / args.slice for a, b in zip(first, second, strict=True))
    peak = sum(resource.getrusage(who).ru_maxrss for who in _PEOPLE) * 1024
    print(
        json.dumps(
            {
                "teachers": args.teachers,
                "epochs": args.epochs,
                "processes": args.processes,
                "threads_of_the_loop": torch.get_num_threads(),
                "bfloat16": fast_bfloat16(),
                "loop_seconds_per_teacher": wall,
                "batched_seconds_per_teacher": ours,
                "ratio": wall / ours,
                "ratio_of_processor_time": work / own,
                "peak_rss_gib": peak / 2**30,
                "input": str(args.data or "generated"),
            }
        )
    )


if __name__ == "__main__":
    main()
