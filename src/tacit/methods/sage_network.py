"""One-layer GraphSAGE at work under node privacy. Every draw of noise is read off the plan."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from tacit.aggregate import noisy_hops, unit_rows
from tacit.aggregate.hop_sum import GRID_BITS
from tacit.graph import Graph, bound_out_lists
from tacit.graph.graph import FloatArray
from tacit.learn.dpsgd import DpSgdConfig, train_private
from tacit.learn.networks import local_seed
from tacit.learn.train import TrainConfig, predict_logits, train
from tacit.methods.base import Progress
from tacit.methods.sage_node import SageNodeSettings, cuts_lists
from tacit.privacy.noise import NoiseSource
from tacit.privacy.plan import Plan
from tacit.privacy.units import Node


class OneLayer(nn.Module):
    """``W_s x + b + W_n s``: one layer of GraphSAGE on a row and the sum of its neighbours."""

    def __init__(self, features: int, classes: int, seed: int) -> None:
        super().__init__()
        with local_seed(seed):
            self.own = nn.Linear(features, classes)
            self.heard = nn.Linear(features, classes, bias=False)

    def forward(self, x: Tensor, s: Tensor) -> Tensor:
        """Class scores."""
        return self.own(x) + self.heard(s)


class SageNetwork:
    """Training and noisy sums of one plan.

    Args:
        plan: What to do.
        seed: Of weights, and of which entries of a list count.
        source: Of privacy noise.
        progress: Told what is done.
    """

    def __init__(
        self, plan: Plan, seed: int, source: NoiseSource | None, progress: Progress
    ) -> None:
        self.plan, self.seed, self.source, self.progress = plan, seed, source, progress
        self.settings: SageNodeSettings = plan.settings
        self.private = math.isfinite(plan.epsilon)
        self.share = 1.0
        self.layer = OneLayer(plan.facts.features, plan.facts.classes, seed)

    @property
    def degree(self) -> int:
        """D."""
        unit = self.plan.unit
        return (unit.max_degree if isinstance(unit, Node) else None) or 1

    def fit(self, graph: Graph) -> None:
        """Train on every training node's own row and the exact sum of its neighbours' rows."""
        x = unit_rows(graph.features)
        s = self._exact(graph, x)
        labels = torch.tensor(graph.labels)
        inputs = (torch.from_numpy(x), torch.from_numpy(s))
        rows = torch.from_numpy(np.flatnonzero(graph.train))
        mine = tuple(part[rows] for part in inputs)
        settings = self.settings
        if self.private:
            stage = self.plan.stage("network")
            train_private(
                self.layer,
                mine,
                labels[rows],
                DpSgdConfig(
                    sampling_rate=1.0,
                    steps=stage.rounds,
                    noise_multiplier=stage.noise_std / settings.clip,
                    clip=settings.clip,
                    learning_rate=settings.learning_rate,
                    average_last=settings.average_last,
                ),
                source=self.source,
                seed=self.seed,
                on_step=lambda done: self.progress("network", done, stage.rounds),
            )
            return
        held = torch.from_numpy(np.flatnonzero(graph.val))
        train(
            self.layer,
            mine,
            labels[rows],
            TrainConfig(
                epochs=settings.epochs,
                learning_rate=settings.learning_rate,
                weight_decay=settings.weight_decay,
                patience=settings.patience if settings.patience and len(held) else None,
            ),
            seed=self.seed,
            val=(tuple(part[held] for part in inputs), labels[held]) if len(held) else None,
            on_epoch=lambda epoch, loss: self.progress("network", epoch + 1, settings.epochs),
        )

    def sums(self, graph: Graph) -> FloatArray:
        """The released noisy sums of messages; without privacy the exact scores heard.

        Notes how much of them is not noise, by which answers weigh them.
        """
        x = unit_rows(graph.features)
        if not self.private:
            heard = torch.from_numpy(self._exact(graph, x))
            return predict_logits(self.layer.heard, (heard,)).numpy()
        std = self.plan.stage("inference").noise_std
        cut = self._bounded(graph)
        hop = noisy_hops(
            cut.in_lists,
            self._messages(x),
            stds=[std],
            source=self.source,
            bits=GRID_BITS,
            normalise=False,
            progress=lambda done, total: self.progress("inference", done, total),
        )
        # Under links="all" a row is for its own node, and one factor would carry it to everyone.
        own = isinstance(self.plan.unit, Node) and self.plan.unit.links == "own"
        self.share = signal_share(hop[0], std) if own else 1.0
        return hop[0]

    def posteriors(self, graph: Graph, sums: FloatArray) -> np.ndarray:
        """Class probabilities from each node's own row and its row of the released sums."""
        x = torch.from_numpy(unit_rows(graph.features))
        scale = self.share * self._bound() / self.degree if self.private else 1.0
        scores = predict_logits(self.layer.own, (x,)) + torch.from_numpy(sums) * scale
        return scores.softmax(dim=1).numpy()

    def weights(self) -> dict[str, np.ndarray]:
        """Every trained parameter by name."""
        found = {k: v.detach().numpy().copy() for k, v in self.layer.state_dict().items()}
        return found | {"share": np.asarray([self.share], np.float64)}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Take up parameters that :meth:`weights` gave."""
        self.share = float(arrays["share"][0])
        layer = {k: torch.from_numpy(v.copy()) for k, v in arrays.items() if k != "share"}
        self.layer.load_state_dict(layer)

    def _bounded(self, graph: Graph) -> Graph:
        return bound_out_lists(graph, self.degree, self.seed) if cuts_lists(self.plan) else graph

    def _exact(self, graph: Graph, x: FloatArray) -> FloatArray:
        """The sum over D; without privacy the mean. For DP-SGD's eyes alone."""
        from scipy.sparse import csr_array

        indptr, indices = self._bounded(graph).in_lists
        ones = np.ones(len(indices), np.float32)
        sums = csr_array((ones, indices, indptr), shape=(graph.nodes, graph.nodes)) @ x
        parts = np.full(graph.nodes, self.degree) if self.private else np.diff(indptr)
        return np.asarray(sums / np.maximum(parts, 1)[:, None], np.float32)

    def _bound(self) -> float:
        """B: twice the length of a message from a random direction. Public, as the weights are."""
        weight = self.layer.heard.weight.detach()
        return 2.0 * float(weight.norm()) / math.sqrt(weight.shape[1]) or 1.0

    def _messages(self, x: FloatArray) -> FloatArray:
        """Rows of norm at most 1, each a function of one record and of the released weights."""
        rows = predict_logits(self.layer.heard, (torch.from_numpy(x),)).numpy()
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
        return np.asarray(rows / np.maximum(lengths, self._bound()), np.float32)


def signal_share(sums: FloatArray, std: float) -> float:
    """The share of noisy sums' energy that is not noise. Post-processing of what was released.

    ``max(0, 1 - n c s^2 / |S|^2)``, James and Stein's factor for all rows together: where the noise
    says all there is, an answer leaves the neighbours out.
    """
    energy = float(np.square(sums, dtype=np.float64).sum())
    return max(0.0, 1.0 - sums.size * std * std / energy) if energy else 0.0
