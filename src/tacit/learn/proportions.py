"""Learning from label proportions: rows come in bags, and only the mean answer of a bag is known.

The loss of a bag with shares q is the cross entropy of q against the *mean* of the network's
answers over its rows, so a row may be anything as long as its bag adds up. A little of the plain
cross entropy against each row's own soft target (``distil``) settles what bags leave open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacit.errors import TrainingError
from tacit.learn.networks import local_seed
from tacit.learn.train import check_integer, check_number, keep_modes

_TINY = 1e-6


@dataclass(frozen=True)
class Bags:
    """One partition of the rows into bags.

    Attributes:
        bag: The bag of each row.
        shares: What the mean answer of each bag should be, one row for each.
        weight: How much each bag counts, not negative.
    """

    bag: Tensor
    shares: Tensor
    weight: Tensor

    def loss(self, answers: Tensor) -> Tensor:
        """Weighted mean over bags of the cross entropy of shares against mean answers."""
        count = len(self.shares)
        sizes = torch.bincount(self.bag, minlength=count).clamp(min=1).to(answers.dtype)
        sums = torch.zeros(count, answers.shape[1], dtype=answers.dtype)
        mean = sums.index_add(0, self.bag, answers) / sizes[:, None]
        # A bag without rows has no answer to compare with.
        held = torch.bincount(self.bag, minlength=count) > 0
        weight = self.weight * held
        each = -(self.shares * torch.log(mean + _TINY)).sum(dim=1)
        return (weight * each).sum() / weight.sum().clamp(min=_TINY)


@dataclass(frozen=True)
class ProportionConfig:
    """Settings of training from proportions, by Adam on all rows at once.

    Attributes:
        epochs: Steps.
        learning_rate: Step size.
        weight_decay: L2 penalty added to the gradient.
        distil: Weight of the plain cross entropy against each row's own soft target.
    """

    epochs: int
    learning_rate: float = 0.01
    weight_decay: float = 0.0
    distil: float = 0.0

    def __post_init__(self) -> None:
        check_integer("epochs", self.epochs, 1)
        check_number("learning_rate", self.learning_rate, positive=True)
        check_number("weight_decay", self.weight_decay)
        check_number("distil", self.distil)


def train_proportions(
    model: nn.Module,
    rows: Tensor,
    bags: Sequence[Bags],
    targets: Tensor,
    config: ProportionConfig,
    *,
    seed: int,
    on_epoch: Callable[[int, float], None] | None = None,
) -> None:
    """Train ``model(rows)`` in place so that its mean answer in each bag has the bag's shares.

    Args:
        model: Trained in place; its training flags are put back.
        rows: Inputs.
        bags: One or more partitions of the rows; they count alike.
        targets: A soft target for each row.
        config: Settings.
        seed: Of dropout. The global generator is left as found.
        on_epoch: Called with the epoch's index and loss.

    Raises:
        TrainingError: Data do not fit, or the loss is not a number.
    """
    if not bags or any(len(part.bag) != len(rows) for part in bags) or len(targets) != len(rows):
        raise TrainingError(
            "bags and targets have to speak of every row", remedy="give one entry for each row"
        )
    optimiser = torch.optim.Adam(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    with local_seed(seed), keep_modes(model):
        model.train()
        for epoch in range(config.epochs):
            optimiser.zero_grad(set_to_none=True)
            scores = model(rows)
            answers = scores.softmax(dim=1)
            loss = torch.stack([part.loss(answers) for part in bags]).mean()
            if config.distil:
                loss = loss + config.distil * nn.functional.cross_entropy(scores, targets)
            loss.backward()
            optimiser.step()
            value = float(loss.detach())
            if not math.isfinite(value):
                raise TrainingError(
                    f"the loss is {value} in epoch {epoch + 1}", remedy="lower the learning rate"
                )
            if on_epoch is not None:
                on_epoch(epoch, value)
