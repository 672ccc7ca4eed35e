"""Where a node belongs: a map from own features to cells, made from a public graph alone.

Nodes of one class are linked more than they are alike, so cells of raw features mix classes. The
public graph tells which features go with which neighbourhood: an encoder learns to say from a
node's own features what the features around it look like, and cells are regions of what it says.
A private node is placed by its own features alone (proofs/census.md), although cells follow links.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.graph import Graph, symmetrize

Rows = NDArray[np.float32]

_POWERS = 4
_SPARSE = 0.1


@dataclass(frozen=True)
class Columns:
    """How features become dense rows: columns weighed, rows of length one, projected.

    Attributes:
        signed: Whether the public features have negative entries. If not they are taken for counts:
            ``log(1 + x)`` times the inverse document frequency.
        shift: Taken from each column; zeros for counts.
        scale: Times each column.
        axes: Leading right singular vectors of the public rows.
    """

    signed: bool
    shift: Rows
    scale: Rows
    axes: Rows

    def __call__(self, features: Rows) -> Rows:
        """Each row by itself, whatever the others are."""
        with np.errstate(over="ignore", invalid="ignore"):
            return (self._weighed(features) @ self.axes).astype(np.float32)

    def _weighed(self, features: Rows) -> Rows:
        if self.signed:
            rows = (features - self.shift) * self.scale
        else:
            rows = np.log1p(np.maximum(features, 0)) * self.scale
        return unit(rows)

    def arrays(self) -> dict[str, np.ndarray]:
        """What :meth:`of` reads."""
        signed = np.array([self.signed], np.float32)
        return {"signed": signed, "shift": self.shift, "scale": self.scale, "axes": self.axes}

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> Columns:
        """The columns that :meth:`arrays` wrote."""
        kept = (arrays[key] for key in ("shift", "scale", "axes"))
        return cls(bool(arrays["signed"][0]), *kept)

    @classmethod
    def made(cls, features: Rows, width: int, seed: int) -> Columns:
        """Columns for public features: at most ``width`` of them."""
        n, d = features.shape
        if bool((features < 0).any()):
            shift, spread = features.mean(axis=0), features.std(axis=0)
            scale = 1 / np.where(spread > 0, spread, 1)
            signed = True
        else:
            shift, signed = np.zeros(d), False
            scale = np.log((1 + n) / (1 + np.count_nonzero(features, axis=0))) + 1
        none = np.empty((0, 0), np.float32)
        blank = cls(signed, shift.astype(np.float32), scale.astype(np.float32), none)
        axes = _axes(blank._weighed(features), min(width, d, n), seed)
        return cls(signed, blank.shift, blank.scale, axes)


def unit(rows: np.ndarray) -> Rows:
    """Rows of length one; rows of zeros stay."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(length > 0, length, 1)).astype(np.float32)


def neighbour_means(graph: Graph, rows: Rows, reach: int) -> list[Rows]:
    """The rows, then the mean over neighbours, over theirs, and so on: ``reach + 1`` arrays.

    Links count both ways. A node without links is its own neighbour.
    """
    from scipy.sparse import csr_array

    links = symmetrize(graph)
    ones = np.ones(links.arcs, np.float32)
    table = csr_array((ones, links.indices, links.indptr), shape=(links.nodes, links.nodes))
    degree = links.out_degrees[:, None].astype(np.float32)
    found = [rows]
    for _ in range(reach):
        around = (table @ found[-1]) / np.maximum(degree, 1)
        found.append(np.where(degree > 0, around, found[-1]).astype(np.float32))
    return found


def encoded(
    public: Graph, rows: Rows, others: Rows, *, context: int, hidden: int, epochs: int, seed: int
) -> tuple[Rows, Rows]:
    """What the encoder says of public rows, and of other rows, each from that row alone.

    Args:
        public: The public graph, for its links.
        rows: Its rows.
        others: Rows to say it of, too.
        context: How many hops of neighbours the encoder is to tell.
        hidden: Width of its hidden layer.
        epochs: Steps of its training, all public rows at once.
        seed: Of weights and dropout.
    """
    import torch
    from torch import nn

    from tacit.learn import networks
    from tacit.learn.train import predict_logits

    means = neighbour_means(public, rows, context)
    linked = symmetrize(public).out_degrees > 0
    if context == 0 or not linked.any():
        return unit(rows), unit(others)
    wanted = unit(np.mean(means[1:], axis=0))[linked]
    size = float(np.sqrt((rows**2).mean())) or 1.0
    spread = float(wanted.std()) or 1.0
    network = nn.Sequential(
        nn.Dropout(0.3),
        networks.MLP(
            rows.shape[1], hidden, rows.shape[1], 2, dropout=0.5, activation="relu", seed=seed
        ),
    )
    inputs, target = torch.from_numpy(rows[linked] / size), torch.from_numpy(wanted / spread)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.003, weight_decay=1e-5)
    with networks.local_seed(seed):
        for _ in range(epochs):
            optimiser.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(network(inputs), target)
            loss.backward()
            optimiser.step()
    said = (predict_logits(network, (torch.from_numpy(x / size),)).numpy() for x in (rows, others))
    first, second = (unit(x) for x in said)
    return first, second


def _axes(rows: Rows, width: int, seed: int) -> Rows:
    """Leading right singular vectors by subspace iteration (Halko, Martinsson, Tropp 2011)."""
    from scipy.sparse import csr_array

    few = np.count_nonzero(rows) < _SPARSE * rows.size
    table = csr_array(rows) if few else rows
    wide = min(width + 8, *rows.shape)
    basis = np.random.default_rng(seed).standard_normal((rows.shape[1], wide)).astype(np.float32)
    for _ in range(_POWERS):
        left, _ = np.linalg.qr(table @ basis)
        basis, _ = np.linalg.qr(table.T @ left)
    _, _, turn = np.linalg.svd(table @ basis, full_matrices=False)
    return np.ascontiguousarray((basis @ turn.T)[:, :width], np.float32)
