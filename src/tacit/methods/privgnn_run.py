"""PrivGNN at work: ask once, then teach a student. Every draw is read off the plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit.graph import Graph, subgraph
from tacit.learn import graph_networks, student
from tacit.learn.graph_networks import Links
from tacit.learn.train import TrainConfig
from tacit.methods import privgnn_answers as answers
from tacit.methods.base import Progress
from tacit.methods.privgnn_settings import PrivGnnSettings
from tacit.privacy.noise import NoiseSource
from tacit.privacy.noisy_max import NoisyMax
from tacit.privacy.plan import Plan

_MAP = ("weights", "mean", "basis")


class PrivGnnRun:
    """One run of a plan.

    Args:
        plan: What to do.
        seed: Of queries, weights and order.
        source: Of noise and samples; None for no noise.
        progress: Told what is done.
        folder: Where an interrupted run is resumed from; None keeps nothing.
    """

    def __init__(
        self,
        plan: Plan,
        seed: int,
        source: NoiseSource | None,
        progress: Progress,
        folder: Path | None,
    ) -> None:
        self.plan, self.seed, self.source, self.progress = plan, seed, source, progress
        self.settings: PrivGnnSettings = plan.settings
        self.store = answers.Store(folder)
        self.notes: list[str] = []
        self._teacher: Callable[[int, int, int], nn.Module] | None = None
        self._student: Callable[[int, int, int], nn.Module] | None = None
        self._model: nn.Module | None = None
        self._embedding: student.Embedding | None = None

    def networks(self, teacher: Any, of_student: Any) -> None:
        """Take networks of the user's own in the place of ours."""
        self._teacher, self._student = teacher, of_student

    # -- asking ----------------------------------------------------------------------------------

    def ask(self, graph: Graph, public: Graph) -> dict[str, np.ndarray]:
        """Everything that leaves: the queries and their noisy answers."""
        settings, classes = self.settings, self.plan.facts.classes
        queries = answers.choose_queries(public, settings, self.seed)
        stored = self.store.load() if settings.asks_networks else None
        if stored is None:
            nodes = int(graph.train.sum())
            draws = answers.draw(settings, nodes, classes, self.source, self.seed)
            stored = draws, np.empty((0, classes))
            if settings.asks_networks:
                self.store.save(*stored)
        draws, done = stored
        found: dict[str, np.ndarray] = {"queries": queries[:, None]}
        if settings.teacher == "votes":
            counts = answers.votes(
                graph, public, queries, draws.coins, self._space(public, queries)
            )
            return {**found, "votes": answers.noisy_values(counts, draws.noise)}
        if settings.teacher in ("pate-gnn", "pate-mlp"):
            counts = answers.ask_parts(graph, public, queries, settings, self.seed)
            return {**found, "votes": answers.noisy_values(counts, draws.noise)}
        told = self._ask_networks(graph, public, queries, draws, done)
        if settings.noise == "gaussian":
            return {**found, "votes": answers.noisy_values(np.exp(told), draws.noise)}
        labels = answers.noisy_labels(told, draws.noise, settings, classes)
        return {**found, "labels": labels.astype(np.int64)[:, None]}

    def _ask_networks(
        self,
        graph: Graph,
        public: Graph,
        queries: np.ndarray,
        draws: answers.Draws,
        done: np.ndarray,
    ) -> np.ndarray:
        if self._teacher is None:
            return answers.ask_teachers(
                graph, public, queries, draws, self.settings, self.seed, self.store,
                self.progress, done,
            )  # fmt: skip
        return self._ask_own(graph, public, queries, draws, done)

    def _ask_own(
        self,
        graph: Graph,
        public: Graph,
        queries: np.ndarray,
        draws: answers.Draws,
        done: np.ndarray,
    ) -> np.ndarray:
        """Teachers of the user's own network, one after another."""
        settings, classes = self.settings, graph.classes
        mine = subgraph(graph, graph.train)
        adj, x = Links.of(*public.in_lists), torch.tensor(public.features)
        near = list(answers.nearest(public.features[queries], mine.features, draws.coins, settings))
        config = TrainConfig(settings.epochs, settings.learning_rate)
        for row in range(len(done), len(queries)):
            told = np.full((1, classes), -np.log(classes))
            if len(near[row]) and self._teacher is not None:
                part = subgraph(mine, near[row])
                model = self._teacher(x.shape[1], classes, self.seed * 1_000_003 + row)
                graph_networks.train_on_links(
                    model,
                    torch.tensor(part.features),
                    Links.of(*part.in_lists),
                    torch.arange(part.nodes),
                    torch.tensor(part.labels),
                    config,
                    seed=self.seed + row,
                )
                scores = graph_networks.predict_on_links(model, x, adj)[int(queries[row])]
                told = torch.log_softmax(scores.double(), dim=0).numpy()[None]
            done = np.concatenate([done, told])
            if row % 16 == 15:
                self.store.save(draws, done)
            self.progress("teachers", row + 1, len(queries))
        return done

    def _space(self, public: Graph, queries: np.ndarray) -> answers.Space:
        return answers.space_of(public, queries, self._embed(public), self.settings.share)

    def _embed(self, public: Graph) -> student.Embedding:
        if self._embedding is None:
            self._embedding = student.embed(public.features, self.settings.width)
        return self._embedding

    # -- learning --------------------------------------------------------------------------------

    def learn(self, public: Graph, released: dict[str, np.ndarray]) -> np.ndarray:
        """Train the student on the public graph; returns its posteriors of every public node."""
        settings = self.settings
        adj, x = Links.of(*public.in_lists), self._inputs(public)
        self._model = self._network(x.shape[1])
        if settings.pretrain:
            self._pretrain(x, adj)
        config = student.StudentConfig(
            settings.student_epochs, weight_decay=0.0 if settings.preset == "paper" else 1e-3
        )
        return student.fit_student(
            self._model,
            x,
            adj,
            self._loss(public, released),
            config,
            seed=self.seed,
            on_epoch=lambda done: self.progress("student", done, settings.student_epochs),
        )

    def _loss(self, public: Graph, released: dict[str, np.ndarray]) -> student.Losses:
        """What the answers say, by the likelihood of the noise that was added to them."""
        settings, classes = self.settings, self.plan.facts.classes
        queries = released["queries"][:, 0]
        if "labels" in released:
            sure = settings.preset == "paper" or settings.posterior != "softmax" or not settings.lam
            kept, other = (1.0, 0.0) if sure else NoisyMax(classes, settings.lam).probabilities()
            return student.labels_loss(queries, released["labels"][:, 0], kept, other)
        sigma, counts = settings.sigma, released["votes"]
        if settings.teacher == "votes":
            space = self._space(public, queries)
            kernel = space.kernel(self._embed(public)(public.features))
            share = settings.gamma * self.plan.facts.train_nodes / public.nodes
            # Counts scatter around their mean even without noise: who happens to be there.
            scatter = max(1.0, share * settings.share * public.nodes / classes)
            return student.counts_loss(kernel, counts, share, sigma**2 + scatter)
        kernel = np.zeros((len(queries), public.nodes), np.float32)
        kernel[np.arange(len(queries)), queries] = 1
        whole = 1.0 if settings.asks_networks else float(settings.parts)
        return student.counts_loss(kernel, counts, whole, sigma**2 + 0.05 * whole**2)

    def _inputs(self, public: Graph) -> torch.Tensor:
        if self.settings.student == "hops" and self._student is None:
            rows = self._embed(public)(public.features)
            return torch.from_numpy(np.asarray(rows, np.float32))
        return torch.tensor(public.features)

    def _network(self, width: int) -> nn.Module:
        settings, classes = self.settings, self.plan.facts.classes
        if self._student is not None:
            return self._student(width, classes, self.seed)
        if settings.student == "hops":
            return student.HopNetwork(width, settings.hidden, classes, seed=self.seed)
        return graph_networks.GraphNetwork(
            settings.student, width, settings.hidden, classes, seed=self.seed
        )

    def _pretrain(self, x: torch.Tensor, adj: Links) -> None:
        model = self._model
        if isinstance(model, student.HopNetwork):
            encode, moved = lambda: model.encode(x, adj), list(model.first.parameters())
        elif isinstance(model, graph_networks.GraphNetwork):
            first = model.layers[0]
            encode, moved = lambda: torch.relu(first(x, adj)), list(first.parameters())
        else:
            self.notes.append("A student network of your own is not pre-trained.")
            return
        config = student.StudentConfig(self.settings.pretrain)
        student.pretrain(encode, moved, adj, config, seed=self.seed)

    def predict(self, graph: Graph, weights: dict[str, np.ndarray]) -> np.ndarray:
        """Posteriors of any public graph's nodes by a student that was trained before."""
        if f"map/{_MAP[0]}" in weights:
            self._embedding = student.Embedding(*(weights[f"map/{key}"] for key in _MAP))
        x = self._inputs(graph)
        model = self._network(x.shape[1])
        state = {
            k[8:]: torch.from_numpy(v.copy()) for k, v in weights.items() if k[:8] == "student/"
        }
        model.load_state_dict(state)
        scores = graph_networks.predict_on_links(model, x, Links.of(*graph.in_lists))
        return torch.softmax(scores.double(), dim=1).numpy()

    def weights(self) -> dict[str, np.ndarray]:
        """The student's parameters and its public map."""
        found: dict[str, np.ndarray] = {}
        if self._model is not None:
            state = self._model.state_dict()
            found = {f"student/{key}": value.numpy().copy() for key, value in state.items()}
        if self.settings.student == "hops" and self._embedding is not None:
            found |= {f"map/{key}": getattr(self._embedding, key) for key in _MAP}
        return found
