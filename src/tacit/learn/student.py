"""Students: what a public graph's nodes are, learnt from noisy answers about some of them.

Nothing here reads private data: answers were released before, and all else is public. Two kinds of
answer are understood, each by the likelihood of the noise that was added:

- **counts**: a noisy vector ``v_q`` of how many private nodes of each class lie within a public
  neighbourhood of q. If private and public nodes are drawn alike, then
  ``E v_q = share * sum of k(q, p) pi(p)`` over public nodes p with class probabilities pi(p), so
  the network is fitted to the *mixtures* (learning from label proportions): wide neighbourhoods,
  whose counts drown the noise, still teach what their parts are.
- **labels**: one class per query, of which the probability of each given the true class is known;
  the network's probabilities pass through that channel before they meet the label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tacit.errors import TrainingError
from tacit.learn.graph_networks import Links, Rows, predict_on_links
from tacit.learn.networks import local_seed

Losses = Callable[[Tensor], Tensor]
"""The loss of the class scores of every public node."""


@dataclass(frozen=True)
class StudentConfig:
    """Settings of a student's training.

    Attributes:
        epochs: Steps of Adam over the whole public graph.
        learning_rate: Of Adam.
        weight_decay: L2 penalty.
    """

    epochs: int
    learning_rate: float = 0.01
    weight_decay: float = 1e-3


@dataclass(frozen=True)
class Embedding:
    """A linear map of features, made from public features alone.

    Attributes:
        weights: Of each column: rare ones count more where columns hold counts.
        mean: Of the weighted unit rows.
        basis: Principal axes, one column each.
    """

    weights: np.ndarray
    mean: np.ndarray
    basis: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Rows of unit length in the basis."""
        return unit(unit(features * self.weights).astype(np.float32) @ self.basis - self._shift)

    @property
    def _shift(self) -> np.ndarray:
        return self.mean @ self.basis


def embed(features: np.ndarray, width: int) -> Embedding:
    """Principal axes of public features: weighted by rarity where none is negative.

    Args:
        features: Of the public graph.
        width: Axes kept, at most.

    Returns:
        The map. Deterministic: the same on every machine up to rounding.
    """
    weights = np.ones(features.shape[1], np.float32)
    if features.min(initial=0.0) >= 0:
        seen = (features > 0).mean(axis=0)
        weights = np.log((1 + len(features)) / (1 + len(features) * seen)).astype(np.float32)
    rows = unit(features * weights).astype(np.float32)
    mean = rows.mean(axis=0)
    width = min(width, *features.shape)
    # Halko, Martinsson, Tropp 2011: a random range and two power iterations; its stream is fixed.
    stream = np.random.default_rng(0)
    probe = stream.standard_normal((features.shape[1], min(width + 16, *features.shape)))
    image = rows @ probe.astype(np.float32) - mean @ probe.astype(np.float32)
    for _ in range(3):
        image, _ = np.linalg.qr(image)
        back = rows.T @ image - np.outer(mean, image.sum(axis=0))
        back, _ = np.linalg.qr(back)
        image = rows @ back - mean @ back
    _, _, turn = np.linalg.svd(image, full_matrices=False)
    return Embedding(weights, mean, (back @ turn[:width].T).astype(np.float32))


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of length one; zero rows stay."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)


class HopNetwork(nn.Module):
    """A perceptron on a node's features and on the means of its first neighbourhoods.

    Args:
        in_features: Width of a row.
        hidden: Width of the hidden layer.
        classes: Outputs.
        hops: Means taken one after another.
        dropout: Of the hidden layer.
        seed: Of the initial weights.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        classes: int,
        *,
        hops: int = 2,
        dropout: float = 0.3,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.hops, self.dropout = hops, dropout
        with local_seed(seed):
            self.first = nn.Linear(in_features * (hops + 1), hidden)
            self.last = nn.Linear(hidden, classes)
        self._seen: tuple[int, Tensor] | None = None

    def encode(self, x: Tensor, adj: Links) -> Tensor:
        """The hidden layer."""
        if self._seen is None or self._seen[0] != id(x):
            parts = [x]
            for _ in range(self.hops):
                parts.append(adj.mean @ parts[-1])
            rows = [nn.functional.normalize(part, dim=1) for part in parts]
            self._seen = (id(x), torch.cat(rows, dim=1))
        return torch.relu(self.first(self._seen[1]))

    def forward(self, x: Tensor, adj: Links) -> Tensor:
        """Class scores of every node."""
        hidden = nn.functional.dropout(self.encode(x, adj), self.dropout, self.training)
        scores: Tensor = self.last(hidden)
        return scores


def counts_loss(kernel: np.ndarray, counts: np.ndarray, share: float, variance: float) -> Losses:
    """Minus the log likelihood of noisy counts, per count.

    Args:
        kernel: One row per query, one column per public node: who lies in its neighbourhood.
        counts: Noisy counts by class, one row per query.
        share: Private nodes counted for each public one.
        variance: Of the noise on each count.
    """
    mixing = torch.from_numpy(np.asarray(kernel * share, np.float32))
    wanted = torch.from_numpy(np.asarray(counts, np.float32))

    def loss(scores: Tensor) -> Tensor:
        expected = mixing @ torch.softmax(scores, dim=1)
        return ((expected - wanted) ** 2).mean() / variance

    return loss


def labels_loss(rows: np.ndarray, labels: np.ndarray, kept: float, other: float) -> Losses:
    """Minus the log probability of noisy labels.

    Args:
        rows: The public nodes that were asked about.
        labels: Their noisy labels.
        kept: Probability that a true class is answered.
        other: Probability of any one other class.
    """
    index, wanted = torch.tensor(rows), torch.tensor(labels)

    def loss(scores: Tensor) -> Tensor:
        if kept >= 1 - 1e-9:
            return nn.functional.cross_entropy(scores[index], wanted)
        said = torch.softmax(scores[index], dim=1).gather(1, wanted[:, None])
        return -(other + (kept - other) * said).log().mean()

    return loss


def fit_student(
    model: nn.Module,
    x: Rows,
    adj: Links,
    loss: Losses,
    config: StudentConfig,
    *,
    seed: int,
    on_epoch: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Train a student in place and return the class probabilities of every public node.

    Args:
        model: Any module with ``forward(x, adj)``.
        x: Rows of all public nodes.
        adj: The public links.
        loss: What released answers say of the scores.
        config: Settings.
        seed: Of dropout.
        on_epoch: Told how many epochs are done.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(
        parameters, lr=config.learning_rate, weight_decay=config.weight_decay
    )
    with local_seed(seed):
        model.train()
        for epoch in range(config.epochs):
            optimiser.zero_grad(set_to_none=True)
            value = loss(model(x, adj))
            if not bool(torch.isfinite(value.detach())):
                raise TrainingError(
                    f"the student's loss is {float(value.detach())} in epoch {epoch + 1}",
                    remedy="lower the learning rate",
                )
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if on_epoch is not None:
                on_epoch(epoch + 1)
    return torch.softmax(predict_on_links(model, x, adj).double(), dim=1).numpy()


def pretrain(
    encode: Callable[[], Tensor],
    parameters: list[nn.Parameter],
    adj: Links,
    config: StudentConfig,
    *,
    seed: int,
) -> None:
    """Unsupervised pre-training on the public graph (Appendix D.7): linked nodes look alike.

    ``-log s(z_u . z_v) - log s(-z_u . z_w)`` over links (u, v) and random nodes w, with z of unit
    length times a temperature (Hamilton, Ying, Leskovec 2017, Equation 1).

    Args:
        encode: The representation of every node, as it stands.
        parameters: What is moved.
        adj: The public links.
        config: Settings.
        seed: Of the random nodes.
    """
    optimiser = torch.optim.Adam(parameters, lr=config.learning_rate)
    heads, tails = adj.targets.long(), adj.indices.long()
    if not len(tails):
        return
    with local_seed(seed):
        for _ in range(config.epochs):
            optimiser.zero_grad(set_to_none=True)
            z = nn.functional.normalize(encode(), dim=1) * 2
            others = torch.randint(0, adj.nodes, (len(heads),))
            near = nn.functional.logsigmoid((z[heads] * z[tails]).sum(dim=1))
            far = nn.functional.logsigmoid(-(z[heads] * z[others]).sum(dim=1))
            loss = -(near + far).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
