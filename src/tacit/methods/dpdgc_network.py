"""DPDGC's modules at work. Every draw of noise and every batch is read off the plan."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import torch
from torch import Tensor, nn

from tacit.aggregate import noisy_hops, unit_rows
from tacit.aggregate.list_sums import GRID_BITS, label_weights, sketch_sums
from tacit.graph import Graph
from tacit.graph.graph import FloatArray
from tacit.learn.crossfit import crossfit
from tacit.learn.dpsgd import DpSgdConfig, train_private
from tacit.learn.embedding import Embedding, train_embedding
from tacit.learn.networks import MLP, HopClassifier
from tacit.learn.train import TrainConfig, predict_logits, train
from tacit.methods.base import Progress
from tacit.methods.dpdgc_settings import DpdgcSettings, protects_records
from tacit.methods.gap_network import FLOOR, load_weights
from tacit.privacy.noise import NoiseSource
from tacit.privacy.plan import Plan, Stage

Sums = dict[str, FloatArray]


class DpdgcNetwork:
    """Encoder, embedding and joint head of one plan.

    Args:
        plan: What to do.
        seed: Of weights, folds and order.
        source: Of privacy noise and of the batches of DP-SGD.
        progress: Told what is done.
    """

    def __init__(
        self, plan: Plan, seed: int, source: NoiseSource | None, progress: Progress
    ) -> None:
        self.plan, self.seed, self.source, self.progress = plan, seed, source, progress
        self.settings: DpdgcSettings = plan.settings
        self.private = protects_records(plan.unit, plan.epsilon)
        self.embedding: Embedding | None = None
        self.encoders: list[nn.Module] = []
        self.heads: list[nn.Module] = []
        self.votes: tuple[int, ...] = ()
        self.notes: list[str] = []
        self._scale: list[float] = []
        self._fresh_posteriors: FloatArray | None = None

    # -- encoder ---------------------------------------------------------------------------------

    def fit_encoder(self, graph: Graph) -> None:
        """Train an MLP on public features and labels, cross-fitted; not where they are private."""
        settings = self.settings
        if self.private or settings.preset == "paper":
            return
        posteriors, self.encoders = crossfit(
            self._encoder,
            torch.tensor(self._features(graph)),
            torch.tensor(graph.labels),
            np.flatnonzero(graph.train),
            self._config(graph),
            folds=settings.folds,
            seed=self.seed,
            val=self._watched(graph),
            on_epoch=self._counter("encoder", settings.epochs * settings.folds),
        )
        self._fresh_posteriors = posteriors.numpy()

    def _encoder(self, seed: int) -> nn.Module:
        settings, facts = self.settings, self.plan.facts
        return MLP(
            facts.features,
            settings.hidden,
            facts.classes,
            settings.encoder_layers + 1,
            dropout=settings.dropout,
            batch_norm=settings.batch_norm,
            seed=seed,
        )

    def _class_posteriors(self, graph: Graph) -> FloatArray:
        """The encoder's posteriors; on the graph it was trained on, cross-fitted."""
        if self._fresh_posteriors is not None:
            return self._fresh_posteriors
        inputs = torch.tensor(self._features(graph))
        found = [predict_logits(encoder, (inputs,)).softmax(dim=1) for encoder in self.encoders]
        return torch.stack(found).mean(dim=0).numpy()

    # -- embedding -------------------------------------------------------------------------------

    def fit_embedding(self, graph: Graph) -> None:
        """Train W on the lists and labels of training nodes (Equation 2), where it is trained."""
        settings, facts = self.settings, self.plan.facts
        if settings.embedding != "trained":
            return
        stage = self.plan.stage("training")
        rows = np.flatnonzero(graph.train)
        degrees = graph.out_degrees[rows]
        indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        places = np.repeat(graph.indptr[rows] - indptr[:-1], degrees) + np.arange(indptr[-1])
        self.embedding = Embedding(
            graph.nodes, settings.width, facts.classes, settings.row_norm, self.seed
        )
        train_embedding(
            self.embedding,
            (indptr, graph.indices[places]),
            graph.labels[rows],
            self._private_config(stage, settings.embedding_learning_rate),
            source=self.source,
            seed=self.seed,
            on_step=self._steps("training"),
        )

    def embed(self, graph: Graph) -> Sums:
        """The released sums over own lists; touches links, and is what was charged."""
        settings = self.settings
        if settings.embedding == "none":
            return {}
        # Under Node(links="own") a row reads its own record alone: there is nothing to hide.
        charged = [stage for stage in self.plan.stages if stage.name == "embedding"]
        std = charged[0].noise_std if charged else 0.0
        if settings.embedding == "sketch":
            return {"sketch": self._sketch(graph, std)}
        if settings.embedding == "trained":
            return {"embedding": self._trained_sums(graph, std)}
        hops = noisy_hops(
            (graph.indptr, graph.indices),
            self._class_rows(graph),
            stds=[std] * settings.hops,
            source=self.source,
            weights=self._weights_of(graph),
            bits=GRID_BITS,
            normalise=False,
            progress=lambda done, total: self.progress("embedding", done, total),
        )
        found = {f"hop.{k + 1}": hop for k, hop in enumerate(hops)}
        if settings.embedding == "both":
            found["sketch"] = self._sketch(graph, std)
        return found

    def _sketch(self, graph: Graph, std: float) -> FloatArray:
        settings = self.settings
        return sketch_sums(
            graph,
            settings.width,
            settings.sketch_seed,
            std=std,
            source=self.source,
            progress=lambda done, total: self.progress("embedding", done, total),
        )

    def _trained_sums(self, graph: Graph, std: float) -> FloatArray:
        """``c (A W / c + N) + b``: the noise before the bias, the rows of exact norm."""
        if self.embedding is None:
            return np.zeros((graph.nodes, self.settings.width), np.float32)
        known = self.embedding.unit_rows().numpy()
        # A node that came later has no row: it says nothing in the lists that name it.
        rows = np.zeros((graph.nodes, known.shape[1]), np.float32)
        rows[: len(known)] = known[: graph.nodes]
        sums = noisy_hops(
            (graph.indptr, graph.indices),
            rows,
            stds=[std],
            source=self.source,
            bits=GRID_BITS,
            normalise=False,
        )[0]
        return unit_rows(self.embedding.norm * sums + self.embedding.bias.numpy())

    def _class_rows(self, graph: Graph) -> FloatArray:
        """One-hot labels of training nodes; elsewhere nothing, or the encoder's posterior."""
        labels = np.zeros((graph.nodes, self.plan.facts.classes), np.float32)
        labels[graph.train, graph.labels[graph.train]] = 1
        if self.settings.embedding == "labels":
            return labels
        return np.where(graph.train[:, None], labels, self._class_posteriors(graph))

    def _weights_of(self, graph: Graph) -> FloatArray | None:
        """Weights that bound how much one label counts, where the unit bounds no list."""
        if not self.private or self.plan.unit.name != "k-neighbours":
            return None
        return label_weights(graph, self.settings.limit)

    # -- head ------------------------------------------------------------------------------------

    def fit_head(self, graph: Graph, sums: Sums) -> None:
        """Train the joint head on own features and released sums; links are not read again."""
        # Where records are protected the scale is not read: a row may be its node's alone.
        self._scale = [1.0 if self.private else max(float(x.std()), 1e-9) for x in sums.values()]
        targets = torch.tensor(graph.labels)
        chosen = torch.from_numpy(np.flatnonzero(graph.train))
        val = self._watched(graph)
        for index, view in enumerate(self._views(graph, sums)):
            head = self._head([x.shape[1] for x in view], self.seed + 1 + index)
            self.heads.append(head)
            mine = tuple(x[chosen] for x in view)
            if self.private:
                stage = self.plan.stage("classifier")
                train_private(
                    head,
                    mine,
                    targets[chosen],
                    self._private_config(stage, self.settings.private_learning_rate),
                    source=self.source,
                    seed=self.seed,
                    on_step=self._steps("classifier"),
                )
                continue
            watched = None
            if val is not None:
                held = torch.from_numpy(val)
                watched = (tuple(x[held] for x in view), targets[held])
            train(
                head,
                mine,
                targets[chosen],
                self._config(graph),
                seed=self.seed,
                val=watched,
                on_epoch=self._counter("classifier", self.settings.epochs),
            )
        self.votes = self._elect(graph, sums)

    def _views(self, graph: Graph, sums: Sums) -> list[tuple[Tensor, ...]]:
        """What each head reads: own record, released sums, nothing else.

        One reads everything. Where features and labels are public others leave something out: raw
        features, which small training sets overfit; the sketch; all but the sketch.
        """
        settings = self.settings
        features, rows = [self._features(graph)], self._rows_of(sums)
        everything = [*(features if settings.self_features else []), *rows.values()]
        if self.private or settings.preset == "paper":
            return [_tensors(everything)]
        posterior = [np.log(self._class_posteriors(graph) + np.float32(FLOOR))]
        wide = [x for name, x in rows.items() if name == "sketch"]
        narrow = [x for name, x in rows.items() if name != "sketch"]
        views = [posterior + everything]
        if narrow:
            views += [features + narrow, posterior + narrow]
        if wide:
            views += [wide]
        return [_tensors(view) for view in views]

    def _rows_of(self, sums: Sums) -> Sums:
        """The sums as a network takes them: directions, and where links are many their lengths."""
        found = {}
        for (name, x), scale in zip(sums.items(), self._scale, strict=True):
            alone = self.private or name in ("sketch", "embedding")
            found[name] = unit_rows(x) if alone else np.hstack([unit_rows(x), x / scale])
        return found

    def _answers(self, graph: Graph, sums: Sums) -> list[Tensor]:
        """The posteriors of every head, and last of the encoder."""
        views = self._views(graph, sums)
        found = [
            predict_logits(head, view).softmax(dim=1)
            for head, view in zip(self.heads, views, strict=True)
        ]
        return found + ([torch.from_numpy(self._class_posteriors(graph))] if self.encoders else [])

    def _elect(self, graph: Graph, sums: Sums) -> tuple[int, ...]:
        """Which answer, by their mean: the set with the smallest loss on validation labels.

        Free where labels are public, and not done elsewhere. Among the candidates is the encoder
        alone, which reads no links.
        """
        val = self._watched(graph)
        if val is None or not self.encoders:
            return tuple(range(len(self.heads)))
        answers = [posterior[val] for posterior in self._answers(graph, sums)]
        truth = torch.tensor(graph.labels[val])

        def loss(group: tuple[int, ...]) -> float:
            mean = torch.stack([answers[i] for i in group]).mean(dim=0)
            return float(nn.functional.nll_loss((mean + FLOOR).log(), truth))

        everyone = range(len(answers))
        groups = [g for size in everyone for g in combinations(everyone, size + 1)]
        best = min(groups, key=loss)
        if best == (len(self.heads),):
            self.notes.append("The encoder alone answers: the noisy sums did not help.")
        return best

    def posteriors(self, graph: Graph, sums: Sums) -> np.ndarray:
        """Class probabilities of every node."""
        answers = self._answers(graph, sums)
        return torch.stack([answers[i] for i in self.votes]).mean(dim=0).numpy()

    def _head(self, widths: list[int], seed: int) -> HopClassifier:
        settings = self.settings
        return HopClassifier(
            widths,
            settings.hidden,
            self.plan.facts.classes,
            base_layers=settings.base_layers,
            head_layers=settings.head_layers,
            dropout=settings.dropout,
            batch_norm=settings.batch_norm,
            seed=seed,
        )

    # -- shared ----------------------------------------------------------------------------------

    def _features(self, graph: Graph) -> FloatArray:
        return graph.features if self.settings.preset == "paper" else unit_rows(graph.features)

    def _watched(self, graph: Graph) -> np.ndarray | None:
        """Validation nodes, where choosing by them is free: labels are public under this unit."""
        return np.flatnonzero(graph.val) if graph.val.any() and not self.private else None

    def _config(self, graph: Graph) -> TrainConfig:
        settings = self.settings
        watching = settings.patience > 0 and self._watched(graph) is not None
        return TrainConfig(
            epochs=settings.epochs,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            patience=settings.patience if watching else None,
        )

    def _private_config(self, stage: Stage, learning_rate: float) -> DpSgdConfig:
        settings = self.settings
        return DpSgdConfig(
            sampling_rate=stage.sampling_rate,
            steps=stage.rounds,
            noise_multiplier=stage.noise_std / settings.clip,
            clip=settings.clip,
            learning_rate=learning_rate,
            average_last=settings.average_last,
            weight_decay=settings.weight_decay if not self.private else 0.0,
        )

    def _steps(self, name: str) -> Callable[[int], None]:
        rounds = self.plan.stage(name).rounds
        return lambda done: self.progress(name, done, rounds)

    def _counter(self, name: str, total: int) -> Callable[[int, float], None]:
        done = 0

        def count(epoch: int, loss: float) -> None:
            nonlocal done
            done += 1
            self.progress(name, done, total)

        return count

    def weights(self) -> dict[str, np.ndarray]:
        """Every trained parameter by name."""
        found: dict[str, np.ndarray] = {
            "scale": np.asarray(self._scale, np.float32),
            "votes": np.asarray(self.votes, np.int64),
        }
        for kind, networks in {"encoder": self.encoders, "head": self.heads}.items():
            for index, network in enumerate(networks):
                for key, value in network.state_dict().items():
                    found[f"{kind}.{index}.{key}"] = value.detach().numpy().copy()
        if self.embedding is not None:
            found["embedding.weights"] = self.embedding.weights.numpy().copy()
            found["embedding.bias"] = self.embedding.bias.numpy().copy()
        return found

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Take up parameters that :meth:`weights` gave."""
        self._scale = [float(x) for x in arrays["scale"]]
        self.votes = tuple(int(x) for x in arrays["votes"])
        count = {
            kind: len({k.split(".")[1] for k in arrays if k.startswith(f"{kind}.")})
            for kind in ("encoder", "head")
        }
        self.encoders = [self._encoder(0) for _ in range(count["encoder"])]
        for index, encoder in enumerate(self.encoders):
            load_weights(encoder, arrays, f"encoder.{index}.")
        for index in range(count["head"]):
            prefix, widths = f"head.{index}.", list[int]()
            while (key := f"{prefix}bases.{len(widths)}.stack.0.weight") in arrays:
                widths.append(arrays[key].shape[1])
            self.heads.append(self._head(widths, 0))
            load_weights(self.heads[-1], arrays, prefix)
        if "embedding.weights" in arrays:
            rows, width = arrays["embedding.weights"].shape
            made = Embedding(rows, width, self.plan.facts.classes, self.settings.row_norm, 0)
            made.weights = torch.from_numpy(arrays["embedding.weights"].copy())
            made.bias = torch.from_numpy(arrays["embedding.bias"].copy())
            self.embedding = made


def _tensors(arrays: list[FloatArray]) -> tuple[Tensor, ...]:
    # Copies: a graph's own arrays cannot be written to, which torch does not support.
    return tuple(torch.tensor(np.asarray(x, np.float32)) for x in arrays)
