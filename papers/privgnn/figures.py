"""The paper's tables that no user could make: baselines with public labels, one set of teachers.

B1 to B4 read labels of the public graph, which no method of Tacit may; and the published procedure
draws noise of five scales over the same teachers. So these figures are measured here, outside of
the library: nothing is charged, nothing is private, nothing may leave.

    python papers/privgnn/figures.py --data DIR --seeds 3 --out figures
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch

from tacit.graph import Cut, Graph, cut, from_arcs, load
from tacit.learn import student
from tacit.learn.graph_networks import Links, predict_on_links
from tacit.methods import privgnn_answers as answers
from tacit.methods.privgnn_settings import choose, published_epsilon

LAMS = (0.1, 0.2, 0.4, 0.8, 1.0)
SIZES = {"amazon_computers": Cut(2500, 3000, 3000), "facebook_pages": Cut(11000, 3000, 3000)}


class Bench:
    """A cut data set with a student that answers its test nodes."""

    def __init__(self, graph: Graph, seed: int) -> None:
        assert graph.public is not None
        self.graph, self.public, self.seed = graph, graph.public, seed
        self.adj = Links.of(*self.public.in_lists)
        self.map = student.embed(self.public.features, 128)
        self.rows = self.rows_of(self.public)

    def rows_of(self, graph: Graph) -> torch.Tensor:
        """Public principal axes of a graph's features."""
        return torch.tensor(self.map(graph.features), dtype=torch.float32)

    def score(self, posteriors: np.ndarray) -> float:
        """Accuracy on the public test nodes."""
        right = posteriors.argmax(axis=1) == self.public.labels
        return float(right[self.public.test].mean())

    def network(self) -> student.HopNetwork:
        """A student, untrained."""
        width, classes = self.rows.shape[1], self.graph.classes
        return student.HopNetwork(width, 128, classes, dropout=0.5, seed=self.seed)

    def learn(self, loss: student.Losses, decay: float) -> float:
        """Train a student on the public graph and score it."""
        config = student.StudentConfig(200, weight_decay=decay)
        return self.score(
            student.fit_student(self.network(), self.rows, self.adj, loss, config, seed=self.seed)
        )

    def b1(self) -> float:
        """Trained on all private labels, asked on the public graph."""
        model, mine = self.network(), self.graph
        loss = student.labels_loss(np.arange(mine.nodes), mine.labels, 1, 0)
        config = student.StudentConfig(200, weight_decay=5e-4)
        rows = self.rows_of(mine)
        student.fit_student(model, rows, Links.of(*mine.in_lists), loss, config, seed=self.seed)
        return self.score(predict_on_links(model, self.rows, self.adj).numpy())

    def b2(self) -> float:
        """Trained on all labels of the public training nodes."""
        asked = np.flatnonzero(self.public.train)
        return self.learn(student.labels_loss(asked, self.public.labels[asked], 1, 0), 5e-4)

    def b3(self) -> float:
        """Trained on private and public training labels, over both graphs side by side."""
        mine, other = self.graph, self.public
        shift = mine.nodes
        both = from_arcs(
            np.concatenate([_tails(mine), _tails(other) + shift]),
            np.concatenate([mine.indices, other.indices + shift]),
            features=np.concatenate([mine.features, other.features]),
            labels=np.concatenate([mine.labels, other.labels]),
        )
        known = np.concatenate([np.arange(shift), np.flatnonzero(other.train) + shift])
        found = student.fit_student(
            self.network(), self.rows_of(both), Links.of(*both.in_lists),
            student.labels_loss(known, both.labels[known], 1, 0),
            student.StudentConfig(200, weight_decay=5e-4), seed=self.seed,
        )  # fmt: skip
        return self.score(found[shift:])

    def b4(self, queries: np.ndarray, lam: float, rng: np.random.Generator) -> float:
        """Trained on true labels of the queries under Laplace noise (Appendix D.5)."""
        true = np.eye(self.graph.classes)[self.public.labels[queries]]
        noisy = np.maximum(true + rng.laplace(0, 1 / lam, true.shape), 0)
        noisy /= np.maximum(noisy.sum(axis=1, keepdims=True), 1e-9)
        index, wanted = torch.tensor(queries), torch.tensor(noisy, dtype=torch.float32)

        def loss(scores: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(scores[index], wanted)

        return self.learn(loss, 1e-3)

    def taught(self, queries: np.ndarray, labels: np.ndarray) -> float:
        """The student of noisy labels."""
        return self.learn(student.labels_loss(queries, labels, 1, 0), 1e-3)


def _tails(graph: Graph) -> np.ndarray:
    return np.repeat(np.arange(graph.nodes), graph.out_degrees)


def teachers(
    bench: Bench, kind: str, queries: int, neighbours: int, out: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Log posteriors of every query, trained once; resumed where they were interrupted."""
    chosen = {"teacher": kind, "queries": queries, "neighbours": neighbours, "gamma": 0.3}
    settings = choose("paper", "paper", chosen)
    asked = answers.choose_queries(bench.public, settings, bench.seed)
    store = answers.Store(out)
    out.mkdir(parents=True, exist_ok=True)
    classes = bench.graph.classes
    stored = store.load()
    if stored is None:
        draws = answers.draw(settings, bench.graph.nodes, classes, None, bench.seed)
        stored = draws, np.empty((0, classes))
        store.save(*stored)
    told = answers.ask_teachers(
        bench.graph, bench.public, asked, stored[0], settings, bench.seed, store, _silent, stored[1]
    )
    return asked, told


def _silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--name", default="amazon_computers", choices=sorted(SIZES))
    parser.add_argument("--out", type=Path, default=Path("figures"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--neighbours", type=int, default=750)
    parser.add_argument("--teachers", default="gnn", help="of gnn, all, single; or none")
    args = parser.parse_args()
    whole, found = load(args.data / f"{args.name}.npz"), {}
    for seed in range(args.seeds):
        bench = Bench(cut(whole, SIZES[args.name], seed), seed)
        row: dict[str, object] = {"B1": bench.b1(), "B2": bench.b2(), "B3": bench.b3()}
        rng = np.random.default_rng(seed)
        for kind in args.teachers.split(","):
            if kind not in ("gnn", "all", "single"):
                continue
            place = args.out / f"{args.name}-{kind}-{args.neighbours}-{args.queries}-{seed}"
            queries, told = teachers(bench, kind, args.queries, args.neighbours, place)
            truth = bench.public.labels[queries]
            for lam in LAMS:
                labels = (told + rng.laplace(0, 1 / lam, told.shape)).argmax(axis=1)
                row[f"{kind} lam={lam:g}"] = {
                    "labels right": float((labels == truth).mean()),
                    "student": bench.taught(queries, labels),
                    "claimed epsilon": published_epsilon(lam, 0.3, len(queries), 1e-3),
                }
                if kind == "gnn":
                    row[f"B4 lam={lam:g}"] = bench.b4(queries, lam, rng)
        found[seed] = row
        sys.stdout.write(json.dumps({"seed": seed, **row}) + "\n")
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{args.name}.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
