"""Class posteriors that are honest on the rows they were trained on, by cross-fitting.

A network's posterior on its own training rows is overconfident, and a second network that reads it
learns to trust it too much. Split the training rows into folds, train one network per fold on the
rows outside it, give each training row the posterior of the network that has not seen it, and every
other row the mean of all (stacking; Wolpert, 1992).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from tacit.learn.train import TrainConfig, predict_logits, train


def crossfit(
    make: Callable[[int], nn.Module],
    inputs: Tensor,
    targets: Tensor,
    rows: np.ndarray,
    config: TrainConfig,
    *,
    folds: int,
    seed: int,
    val: np.ndarray | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
) -> tuple[Tensor, list[nn.Module]]:
    """Train ``folds`` networks and return posteriors for all rows, and the networks.

    Args:
        make: Makes a fresh network from a seed.
        inputs: All rows, also those without a target.
        targets: One class per row; read at ``rows`` and ``val`` only.
        rows: Indices of the training rows.
        config: Settings of each training.
        folds: Number of folds; 1 trains one network on all rows.
        seed: Of folds, weights and dropout.
        val: Indices to choose the epoch by; None takes the last.
        on_epoch: Called after each epoch of each network.

    Returns:
        Posteriors [n, classes], and the trained networks.
    """
    fold = np.random.default_rng(seed).permutation(len(rows)) % folds
    watched = (
        None
        if val is None or len(val) == 0
        else ((inputs[torch.from_numpy(val)],), targets[torch.from_numpy(val)])
    )
    networks: list[nn.Module] = []
    outputs: list[Tensor] = []
    for index in range(folds):
        mine = rows if folds == 1 else rows[fold != index]
        chosen = torch.from_numpy(mine)
        network = make(seed + 7919 * index)
        train(
            network,
            (inputs[chosen],),
            targets[chosen],
            config,
            seed=seed + index,
            val=watched,
            on_epoch=on_epoch,
        )
        networks.append(network)
        outputs.append(predict_logits(network, (inputs,)).softmax(dim=1))
    posteriors = torch.stack(outputs).mean(dim=0)
    if folds > 1:
        for index in range(folds):
            unseen = torch.from_numpy(rows[fold == index])
            posteriors[unseen] = outputs[index][unseen]
    return posteriors, networks
