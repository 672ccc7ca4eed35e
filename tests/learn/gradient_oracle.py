"""One independent oracle for every per-record gradient test: a loop over single records."""

import random

import numpy as np
import torch
from torch import Tensor, nn


def record_gradients(model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """Flat gradient of each record's cross entropy, [records, parameters], by plain autograd."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for i in range(len(targets)):
        loss = nn.functional.cross_entropy(
            model(*(x[i : i + 1] for x in inputs)), targets[i : i + 1], reduction="sum"
        )
        grads = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(rows).double()


def clipped_sum(gradients: Tensor, clip: float) -> Tensor:
    """Sum of the rows, each scaled down to a norm of at most ``clip``."""
    norms = gradients.norm(dim=1, keepdim=True)
    return (gradients * (clip / norms).clamp(max=1.0)).sum(dim=0)


def global_state() -> list[bytes]:
    """State of the global generators of torch, numpy and the standard library."""
    legacy = np.random.get_state()  # noqa: NPY002 - it is the global state that is watched
    return [
        torch.get_rng_state().numpy().tobytes(),
        repr((legacy[0], legacy[1].tobytes(), legacy[2:])).encode(),
        repr(random.getstate()).encode(),
    ]
