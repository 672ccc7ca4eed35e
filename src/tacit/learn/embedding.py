"""DP-Emb: one row of weights per node, learnt from sparse rows of the adjacency matrix.

DPDGC's embedding module (Chien, Chen, Pan, Li, Özgür and Milenkovic, NeurIPS 2023, Equation 2)
predicts ``softmax(selu(A W + b) R)`` with a fixed random head R; every row of W has norm c. A
record is a training node's list and label. Lists stay lists: a step touches the arcs of its batch
and the weights, never a dense row of A.

The norm holds in the forward pass: the parameters are V and ``W_u = c V_u / |V_u|``. Gradients are
clipped and noised as gradients by the unit rows ``V_u / |V_u|``; carrying the noisy sum over to V
reads V alone, which was released before, so it is post-processing (proofs/dpdgc.md, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import NoiseError, TrainingError
from tacit.learn.dpsgd import (
    MARGIN,
    DpSgdConfig,
    DpSgdReport,
    Grid,
    SeededCoins,
    Source,
    Update,
    batches_and_noise,
)
from tacit.learn.networks import local_seed

Lists = tuple[NDArray[np.int64], NDArray[np.int32]]


class Embedding:
    """Rows of norm c, a bias and a fixed random head.

    Args:
        nodes: Rows of W.
        width: Columns of W.
        classes: Columns of the head.
        norm: c, the norm of every row of W.
        seed: Of the first weights and of the head.
    """

    def __init__(self, nodes: int, width: int, classes: int, norm: float, seed: int) -> None:
        with local_seed(seed):
            self.weights = torch.randn(nodes, width) / math.sqrt(width)
            self.head = torch.randn(width, classes) / math.sqrt(width)
        self.bias = torch.zeros(width)
        self.norm = norm

    def unit_rows(self) -> Tensor:
        """The rows of W divided by c."""
        return torch.nn.functional.normalize(self.weights, dim=1)

    def slopes(self, rows: Tensor, entries: Tensor, targets: Tensor, units: Tensor) -> Tensor:
        """Derivative of each record's cross entropy by ``A W + b``.

        Args:
            rows: For every arc of the batch the record that it belongs to.
            entries: The node that the arc points to.
            targets: One class per record.
            units: :meth:`unit_rows`.

        Returns:
            One row per record.
        """
        hidden = torch.zeros(len(targets), self.bias.numel())
        hidden.index_add_(0, rows, units.index_select(0, entries), alpha=self.norm)
        hidden.add_(self.bias).requires_grad_()
        logits = torch.nn.functional.selu(hidden) @ self.head
        # The sum, not the mean: a record's slope does not depend on how many others there are.
        loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
        return torch.autograd.grad(loss, hidden)[0]


def train_embedding(
    embedding: Embedding,
    lists: Lists,
    targets: NDArray[np.int64],
    config: DpSgdConfig,
    *,
    source: Source | None,
    seed: int,
    on_step: Callable[[int], None] | None = None,
) -> DpSgdReport:
    """Train an embedding in place by DP-SGD on lists.

    Formal guarantees:
        One record adds to a step's sum a vector of norm at most ``clip`` that depends on its own
        list and label and on released weights. With noise of multiplier s the steps cost what
        ``dpsgd`` says where a record is there or not, and what Theorem 3 of proofs/dpdgc.md says
        where the lists of a group of records are replaced.

    Args:
        embedding: Trained in place.
        lists: CSR of the training nodes' lists, one row per record.
        targets: One class per record.
        config: Public settings.
        source: Of batches and noise; None only without noise.
        seed: Of batches where there is no source.
        on_step: Called with the number of steps done.

    Returns:
        What was done.
    """
    indptr, indices = lists
    records = len(targets)
    if len(indptr) != records + 1 or not records:
        raise TrainingError(
            f"{len(indptr) - 1} lists do not fit {records} labels", remedy="give one list per label"
        )
    if source is None and config.noise_multiplier > 0:
        raise NoiseError(
            "there is no source of noise",
            why=f"the noise multiplier is {config.noise_multiplier}",
            remedy="give NoiseSource.fresh(), or noise_multiplier=0 for no privacy",
        )
    nodes, width = embedding.weights.shape
    size = nodes * width + width
    total = torch.zeros(size, dtype=torch.float64)
    step = torch.zeros(size)
    tangent = step[: nodes * width].view(nodes, width)
    slots = total[: nodes * width].view(nodes, width), total[nodes * width :]
    grid = Grid.of(config, records, size)
    flat = torch.cat([embedding.weights.flatten(), embedding.bias])
    weights = flat[: nodes * width].view(nodes, width)
    units = torch.empty_like(weights)
    update, mean = Update(flat, config), torch.zeros(size, dtype=torch.float64)
    classes, clip = torch.from_numpy(np.asarray(targets)), config.clip * (1 - MARGIN)
    used = clipped = dropped = empty = 0
    coins = source if source is not None else SeededCoins(seed)
    for done, (members, noise, _) in enumerate(
        batches_and_noise(coins, config, records, size, grid), start=1
    ):
        embedding.weights, embedding.bias = weights, flat[nodes * width :]
        lengths = weights.norm(dim=1, keepdim=True).clamp_(min=1e-12)
        torch.div(weights, lengths, out=units)
        total.zero_()
        for part in members.split(config.chunk) if len(members) else ():
            chosen = part.numpy()
            degrees = indptr[chosen + 1] - indptr[chosen]
            places = np.repeat(indptr[chosen] - np.cumsum(degrees) + degrees, degrees)
            entries = torch.from_numpy(indices[places + np.arange(len(places))].astype(np.int64))
            rows = torch.from_numpy(np.repeat(np.arange(len(chosen)), degrees))
            slope = embedding.slopes(rows, entries, classes[part], units).double()
            # A record's gradient is its slope once per listed node, times c, and once for b.
            squares = slope.square().sum(dim=1)
            norms = (squares * (1 + embedding.norm**2 * torch.from_numpy(degrees))).sqrt_()
            fine = torch.isfinite(norms)
            factors = (clip / norms).clamp_(max=1.0)
            slope = torch.where(fine[:, None], slope * factors[:, None], 0.0)
            slots[0].index_add_(0, entries, slope.index_select(0, rows), alpha=embedding.norm)
            slots[1].add_(slope.sum(dim=0))
            clipped += int(torch.count_nonzero(norms > clip))
            dropped += len(chosen) - int(torch.count_nonzero(fine))
        used += len(members)
        empty += not len(members)
        grid.release(total, noise)
        # What follows reads the released sum alone, so single precision costs accuracy only.
        step.copy_(total).mul_(1 / (config.sampling_rate * records))
        along = torch.einsum("ij,ij->i", tangent, units).unsqueeze(1)
        tangent.addcmul_(units, along, value=-1).div_(lengths)
        update(step)
        if done > config.steps - config.averaged_steps:
            mean += flat
        if on_step is not None:
            on_step(done)
    flat.copy_(mean.div_(config.averaged_steps))
    if not bool(torch.isfinite(flat).all()):
        raise TrainingError(
            "the weights are no longer numbers",
            why="the noisy steps were too large",
            remedy="lower the learning rate",
        )
    embedding.weights, embedding.bias = weights, flat[nodes * width :]
    return DpSgdReport(
        steps_run=config.steps,
        normaliser=config.sampling_rate * records,
        noise_std=config.noise_multiplier * config.clip if grid.step else 0.0,
        records_used=used,
        records_clipped=clipped,
        records_dropped=dropped,
        empty_batches=empty,
    )
