"""GAP's three modules at work. Every draw of noise and every batch is read off the plan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from tacit.aggregate import noisy_hops, unit_rows
from tacit.aggregate.hop_sum import GRID_BITS, list_weights, own_list_sums
from tacit.graph import Graph, bound_out_lists
from tacit.graph.graph import FloatArray
from tacit.learn.crossfit import crossfit
from tacit.learn.dpsgd import DpSgdConfig, train_private
from tacit.learn.networks import MLP, HopClassifier
from tacit.learn.train import TrainConfig, predict_logits, train
from tacit.methods.base import Progress
from tacit.methods.gap_settings import GapSettings, protects_nodes
from tacit.privacy.noise import NoiseSource
from tacit.privacy.plan import Plan
from tacit.privacy.units import Node

FLOOR = 1e-4
"""Smallest posterior that is taken the logarithm of: keeps one sure network from drowning a hop."""


class GapNetwork:
    """Encoder, aggregation and classifier of one plan.

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
        self.settings: GapSettings = plan.settings
        self.private = protects_nodes(plan.unit, plan.epsilon)
        self.encoders: list[nn.Module] = []
        self.classifiers: list[nn.Module] = []
        self.votes: tuple[int, ...] = ()
        self.notes: list[str] = []
        self._scale: list[float] = []
        self._fresh_posteriors: FloatArray | None = None

    # -- encoder ---------------------------------------------------------------------------------

    def fit_encoder(self, graph: Graph) -> None:
        """Pre-train the encoder with a linear head on features and labels alone (Equation 4)."""
        if not self.settings.encoder:
            return
        inputs, targets = torch.tensor(self._features(graph)), torch.tensor(graph.labels)
        rows = np.flatnonzero(graph.train)
        if self.private:
            encoder = self._encoder(self.seed)
            chosen = torch.from_numpy(rows)
            self._train_private("encoder", encoder, (inputs[chosen],), targets[chosen])
            self.encoders = [encoder]
            return
        posteriors, self.encoders = crossfit(
            self._encoder,
            inputs,
            targets,
            rows,
            self._config(graph),
            folds=self.settings.folds,
            seed=self.seed,
            val=self._watched(graph),
            on_epoch=self._counter("encoder", self.settings.epochs * self.settings.folds),
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

    def _hidden(self, graph: Graph) -> FloatArray:
        """The encoded features X^(0): what the linear head reads, of unit length."""
        if not self.encoders:
            return unit_rows(graph.features)
        inputs = torch.tensor(self._features(graph))
        stacks = [encoder.stack for encoder in self.encoders if isinstance(encoder, MLP)]
        hidden = [predict_logits(stack[:-1], (inputs,)) for stack in stacks]
        return unit_rows(torch.cat(hidden, dim=1).numpy())

    def _class_posteriors(self, graph: Graph) -> FloatArray:
        """The encoder's posteriors; on the graph it was trained on, cross-fitted."""
        if self._fresh_posteriors is not None:
            return self._fresh_posteriors
        inputs = torch.tensor(self._features(graph))
        found = [predict_logits(encoder, (inputs,)).softmax(dim=1) for encoder in self.encoders]
        return torch.stack(found).mean(dim=0).numpy()

    def assume_posteriors(self, posteriors: FloatArray) -> None:
        """Take class posteriors as given instead of an encoder's: for audits of the aggregation."""
        self._fresh_posteriors = posteriors

    # -- aggregation -----------------------------------------------------------------------------

    def aggregate(self, graph: Graph) -> list[FloatArray]:
        """The K released noisy sums (Algorithm 1); touches links, and is what was charged."""
        stage = self.plan.stage("aggregation")
        graph = self._bounded(graph)
        return noisy_hops(
            graph.in_lists,
            self._rows(graph),
            stds=[stage.noise_std] * stage.rounds,
            source=self.source,
            weights=self._weights_of(graph),
            bits=GRID_BITS,
            normalise=False,
            progress=lambda done, total: self.progress("aggregation", done, total),
        )

    def _rows(self, graph: Graph) -> FloatArray:
        """Rows of hop 1: functions of each node's own record, of norm at most 1."""
        carry = self.settings.carry
        if carry == "features":
            return self._hidden(graph)
        labels = np.zeros((graph.nodes, self.plan.facts.classes), np.float32)
        labels[graph.train, graph.labels[graph.train]] = 1
        if carry == "labels":
            return labels
        if carry == "both":
            return np.hstack([self._hidden(graph), labels]) * np.float32(np.sqrt(0.5))
        return np.where(graph.train[:, None], labels, self._class_posteriors(graph))

    def _is_own(self) -> bool:
        return self.private and isinstance(self.plan.unit, Node) and self.plan.unit.links == "own"

    def _bounded(self, graph: Graph) -> Graph:
        """The graph with own lists cut to D random entries, where the plan says so."""
        unit = self.plan.unit
        if not self._is_own() or self.settings.bound != "sample" or not isinstance(unit, Node):
            return graph
        return bound_out_lists(graph, unit.max_degree or 1, self.seed)

    def _weights_of(self, graph: Graph) -> FloatArray | None:
        unit = self.plan.unit
        if not self._is_own() or self.settings.bound != "scale" or not isinstance(unit, Node):
            return None
        return list_weights(graph, unit.max_degree or 1)

    # -- classifier ------------------------------------------------------------------------------

    def fit_classifier(self, graph: Graph, sums: list[FloatArray]) -> None:
        """Train on the released sums (Equations 10 to 12); links are not read again."""
        # Where nodes are protected the scale is not read, and a row may be its node's alone.
        self._scale = [1.0 if self.private else max(float(hop.std()), 1e-9) for hop in sums]
        inputs = self._inputs(graph, sums)
        targets = torch.tensor(graph.labels)
        chosen = torch.from_numpy(np.flatnonzero(graph.train))
        for index, view in enumerate(self._views(inputs)):
            network = self._classifier([x.shape[1] for x in view], self.seed + 1 + index)
            self.classifiers.append(network)
            mine = tuple(x[chosen] for x in view)
            if self.private:
                self._train_private("classifier", network, mine, targets[chosen])
                continue
            val = self._watched(graph)
            watched = None
            if val is not None:
                held = torch.from_numpy(val)
                watched = (tuple(x[held] for x in view), targets[held])
            train(
                network,
                mine,
                targets[chosen],
                self._config(graph),
                seed=self.seed,
                val=watched,
                on_epoch=self._counter("classifier", self.settings.epochs),
            )
        self.votes = self._elect(graph, inputs)

    def _views(self, inputs: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        """What each classifier reads.

        One reads everything. Where features pass an encoder a second one leaves the raw features
        out, which small training sets overfit.
        """
        settings = self.settings
        if settings.preset == "paper" or not (settings.self_features and settings.encoder):
            return [inputs]
        return [inputs] if self.private else [inputs, inputs[1:]]

    def _answers(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        """The posteriors of every classifier."""
        views = self._views(inputs)
        return [
            predict_logits(network, view).softmax(dim=1)
            for network, view in zip(self.classifiers, views, strict=True)
        ]

    def _elect(self, graph: Graph, inputs: tuple[Tensor, ...]) -> tuple[int, ...]:
        """Which classifiers answer, by their mean: all, or (where links are all noise) none.

        With none the encoder answers, which reads no links. Choosing by validation labels is free
        where labels are public, and is not done elsewhere.
        """
        val, everyone = self._watched(graph), tuple(range(len(self.classifiers)))
        if val is None or self.settings.preset == "paper" or self._fresh_posteriors is None:
            return everyone
        truth = torch.tensor(graph.labels[val])

        def loss(posteriors: Tensor) -> float:
            return float(nn.functional.nll_loss((posteriors[val] + FLOOR).log(), truth))

        together = torch.stack(self._answers(inputs)).mean(dim=0)
        alone = torch.from_numpy(self._fresh_posteriors)
        if loss(alone) < loss(together):
            self.notes.append("The encoder alone answers: the noisy sums did not help.")
            return ()
        return everyone

    def posteriors(
        self, graph: Graph, sums: list[FloatArray], *, outsiders: bool = False
    ) -> np.ndarray:
        """Class probabilities of every node; ``outsiders`` had no part in the sums."""
        if not self.votes:
            return self._class_posteriors(graph)
        answers = self._answers(self._inputs(graph, sums, outsiders=outsiders))
        return torch.stack([answers[i] for i in self.votes]).mean(dim=0).numpy()

    def _classifier(self, widths: list[int], seed: int) -> HopClassifier:
        settings = self.settings
        return HopClassifier(
            widths,
            settings.hidden,
            self.plan.facts.classes,
            base_layers=settings.base_layers,
            head_layers=settings.head_layers,
            combine=settings.combine,
            dropout=settings.dropout,
            batch_norm=settings.batch_norm,
            normalise=settings.preset == "paper",
            seed=seed,
        )

    def _inputs(
        self, graph: Graph, sums: list[FloatArray], *, outsiders: bool = False
    ) -> tuple[Tensor, ...]:
        """What the classifier reads of each node: own record, released sums, nothing else."""
        settings, parts = self.settings, []
        if settings.preset == "paper":
            first = self._hidden(graph) if settings.encoder else self._features(graph)
            return tuple(torch.tensor(x) for x in [first, *(unit_rows(hop) for hop in sums)])
        if settings.self_features:
            parts.append(self._features(graph))
        if settings.encoder:
            parts.append(np.log(self._class_posteriors(graph) + np.float32(FLOOR)))
        for hop, scale in zip(sums, self._scale, strict=True):
            # The length of a noisy sum tells how many neighbours there are to trust.
            parts.append(
                unit_rows(hop) if self.private else np.hstack([unit_rows(hop), hop / scale])
            )
        if settings.own_list:
            lists = self._bounded(graph)
            weights = self._weights_of(lists)
            own = self._rows(graph) if weights is None else self._rows(graph) * weights[:, None]
            own = np.zeros_like(own) if outsiders else own
            parts.append(unit_rows(own_list_sums(lists, sums[0], own)))
        return tuple(torch.from_numpy(np.ascontiguousarray(x, np.float32)) for x in parts)

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

    def _train_private(
        self, name: str, network: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor
    ) -> None:
        settings, stage = self.settings, self.plan.stage(name)
        config = DpSgdConfig(
            sampling_rate=stage.sampling_rate,
            steps=stage.rounds,
            noise_multiplier=stage.noise_std / settings.clip,
            clip=settings.clip,
            learning_rate=settings.private_learning_rate,
            average_last=settings.average_last,
            weight_decay=settings.weight_decay,
        )
        train_private(
            network,
            inputs,
            targets,
            config,
            source=self.source,
            seed=self.seed,
            on_step=lambda done: self.progress(name, done, stage.rounds),
        )

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
        groups = {"encoder": self.encoders, "classifier": self.classifiers}
        for kind, networks in groups.items():
            for index, network in enumerate(networks):
                for key, value in network.state_dict().items():
                    found[f"{kind}.{index}.{key}"] = value.detach().numpy().copy()
        return found

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Take up parameters that :meth:`weights` gave."""
        self._scale = [float(x) for x in arrays["scale"]]
        self.votes = tuple(int(x) for x in arrays["votes"])
        self.encoders = [self._encoder(0) for _ in range(_count(arrays, "encoder"))]
        for index, encoder in enumerate(self.encoders):
            load_weights(encoder, arrays, f"encoder.{index}.")
        for index in range(_count(arrays, "classifier")):
            prefix = f"classifier.{index}."
            widths: list[int] = []
            while (key := f"{prefix}bases.{len(widths)}.stack.0.weight") in arrays:
                widths.append(arrays[key].shape[1])
            self.classifiers.append(self._classifier(widths, 0))
            load_weights(self.classifiers[-1], arrays, prefix)


def _count(arrays: dict[str, np.ndarray], kind: str) -> int:
    return len({key.split(".")[1] for key in arrays if key.startswith(f"{kind}.")})


def load_weights(network: nn.Module, arrays: dict[str, np.ndarray], prefix: str) -> None:
    """Fill a network from the arrays whose names start with a prefix."""
    chosen = {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
    network.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in chosen.items()})
