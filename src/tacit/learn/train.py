"""Plain training, without privacy of its own: for edge-level methods and non-private twins.

Under a unit whose individuals are visible to the loss, these weights are private: train with
:mod:`tacit.learn.dpsgd` instead. Losses and scores in :class:`History` are private in any case.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from tacit.errors import TrainingError
from tacit.learn.networks import local_seed

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class TrainConfig:
    """Settings of plain training.

    Attributes:
        epochs: Passes over the data, at most.
        learning_rate: Step size.
        weight_decay: L2 penalty added to the gradient.
        batch_size: Rows per step; None is the full batch.
        optimizer: ``adam`` or ``sgd``.
        momentum: Of ``sgd``.
        patience: Stop after this many epochs without a better validation score; None never stops.
    """

    epochs: int
    learning_rate: float = 0.01
    weight_decay: float = 0.0
    batch_size: int | None = None
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.0
    patience: int | None = None

    def __post_init__(self) -> None:
        check_integer("epochs", self.epochs, 1)
        check_number("learning_rate", self.learning_rate, positive=True)
        check_number("weight_decay", self.weight_decay)
        check_momentum(self.optimizer, self.momentum)
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, 1)
        if self.patience is not None:
            check_integer("patience", self.patience, 1)


@dataclass(frozen=True)
class History:
    """What happened. Private: it reads the training and validation data without noise.

    Attributes:
        losses: Mean loss of each epoch run.
        scores: Validation accuracy of each epoch run; empty without validation data.
        best_epoch: Index of the epoch whose weights the model holds now.
    """

    losses: tuple[float, ...] = field(default=())
    scores: tuple[float, ...] = field(default=())
    best_epoch: int = 0

    @property
    def epochs_run(self) -> int:
        """Number of epochs that were run."""
        return len(self.losses)


def train(
    model: nn.Module,
    inputs: Inputs,
    targets: Tensor,
    config: TrainConfig,
    *,
    seed: int,
    val: tuple[Inputs, Tensor] | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
) -> History:
    """Minimise the mean cross entropy of ``model(*inputs)`` against ``targets``, in place.

    With ``val`` (inputs, integer targets) the weights of the best epoch are restored at the end:
    best by accuracy, ties by cross entropy. Choosing by ``val`` reads it; whether that is free is
    the plan's business.

    Args:
        model: Trained in place; its training flags are put back.
        inputs: Row-aligned tensors, passed as ``model(*inputs)``.
        targets: Class indices [n], or soft targets [n, classes].
        config: Settings.
        seed: Of shuffling and dropout. The global generator is left as found.
        val: Validation inputs and integer targets.
        on_epoch: Called with the epoch's index and mean loss.

    Returns:
        The history.

    Raises:
        TrainingError: Data do not fit, or the loss is not a number.
    """
    rows = check_data(inputs, targets)
    if config.patience is not None and val is None:
        raise TrainingError(
            "patience was set without validation data",
            why="early stopping needs a score to watch",
            remedy="give val, or leave patience out",
        )
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = _optimiser(parameters, config)
    losses: list[float] = []
    scores: list[tuple[float, float]] = []
    best, best_weights = 0, None
    # Parts of equal size: a last part of a single row would leave batch norm without a variance.
    parts = 1 if config.batch_size is None else math.ceil(rows / config.batch_size)
    check_classes(predict_logits(model, tuple(x[:1] for x in inputs)), targets, 1)
    with local_seed(seed), keep_modes(model):
        for epoch in range(config.epochs):
            model.train()
            total = torch.zeros((), dtype=torch.float64)
            order = [None] if parts == 1 else torch.randperm(rows).tensor_split(parts)
            for part in order:
                batch = inputs if part is None else tuple(x.index_select(0, part) for x in inputs)
                wanted = targets if part is None else targets.index_select(0, part)
                optimiser.zero_grad(set_to_none=True)
                loss = nn.functional.cross_entropy(model(*batch), wanted)
                loss.backward()
                optimiser.step()
                total += loss.detach() * len(wanted)
            losses.append(float(total) / rows)
            if not math.isfinite(losses[-1]):
                raise TrainingError(
                    f"the loss is {losses[-1]} in epoch {epoch + 1}",
                    why="the weights are no longer numbers",
                    remedy="lower the learning rate, or look for huge features",
                )
            if val is not None:
                scores.append(_score(model, *val))
                if epoch == 0 or scores[-1] > scores[best]:
                    best, best_weights = epoch, copy.deepcopy(model.state_dict())
            if on_epoch is not None:
                on_epoch(epoch, losses[-1])
            if config.patience is not None and epoch - best >= config.patience:
                break
    if best_weights is None:
        return History(tuple(losses), (), len(losses) - 1)
    model.load_state_dict(best_weights)
    return History(tuple(losses), tuple(accuracy for accuracy, _ in scores), best)


def predict_logits(model: nn.Module, inputs: Inputs, *, batch_size: int = 65536) -> Tensor:
    """Class scores of every row, in evaluation mode, in parts of ``batch_size`` rows."""
    check_integer("batch_size", batch_size, 1)
    if not inputs:
        raise TrainingError("there are no inputs", remedy="give at least one tensor")
    with keep_modes(model), torch.no_grad():
        model.eval()
        splits = zip(*(x.split(batch_size) for x in inputs), strict=True)
        return torch.cat([model(*part) for part in splits])


@contextmanager
def keep_modes(model: nn.Module) -> Iterator[None]:
    """Put every module's own training flag back at the end; they may differ within one model."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def check_data(inputs: Inputs, targets: Tensor) -> int:
    """Number of rows, if inputs and targets are row-aligned and there are any."""
    if not inputs or targets.ndim not in (1, 2):
        raise TrainingError(
            "training needs at least one input tensor and targets of one or two dimensions",
            remedy="give inputs as a tuple, and class indices or one row of soft targets per row",
        )
    rows = targets.shape[0]
    if any(x.shape[0] != rows for x in inputs) or rows == 0:
        shapes = ", ".join(str(tuple(x.shape)) for x in (*inputs, targets))
        raise TrainingError(
            f"inputs and targets are not row-aligned or are empty: {shapes}",
            remedy="give one row per record in every tensor",
        )
    if (targets.ndim == 1) == targets.is_floating_point():
        raise TrainingError(
            f"targets of type {targets.dtype} and {targets.ndim} dimensions",
            remedy="give integer class indices [n], or floating soft targets [n, classes]",
        )
    if targets.ndim == 1 and int(targets.min()) < 0:
        raise TrainingError(
            "a target is negative",
            why="a row without a class cannot be learnt from",
            remedy="leave out rows without a label",
        )
    return rows


def check_classes(logits: Tensor, targets: Tensor, rows: int) -> None:
    """Refuse a network whose output does not fit the targets."""
    shape = tuple(logits.shape)
    if logits.ndim != 2 or shape[0] != rows:
        raise TrainingError(
            f"the network's output has shape {shape} for {rows} rows",
            remedy="return one row of class scores per row of input",
        )
    classes = targets.shape[1] if targets.ndim == 2 else int(targets.max()) + 1
    if shape[1] < classes or (targets.ndim == 2 and shape[1] != classes):
        raise TrainingError(
            f"targets have {classes} classes, the network's output {shape[1]}",
            remedy="give the network as many outputs as there are classes",
        )


def check_number(
    name: str, value: float, *, positive: bool = False, most: float = math.inf
) -> None:
    """Refuse what is not a finite number in the range."""
    bad = isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
    if bad or value < 0 or (positive and value == 0) or value > most:
        floor = "above 0" if positive else "at least 0"
        upper = "" if math.isinf(most) else f" and at most {most:g}"
        raise TrainingError(f"{name} is {value!r}", remedy=f"give a number {floor}{upper}")


def check_integer(name: str, value: int, least: int) -> None:
    """Refuse what is not an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise TrainingError(f"{name} is {value!r}", remedy=f"give an integer of at least {least}")


def check_momentum(optimizer: str, momentum: float) -> None:
    """Refuse an unknown optimiser, and momentum where it has no meaning."""
    if optimizer not in ("adam", "sgd"):
        raise TrainingError(f"optimizer is {optimizer!r}", remedy="use adam or sgd")
    check_number("momentum", momentum)
    if momentum >= 1 or (momentum > 0 and optimizer != "sgd"):
        raise TrainingError(
            f"momentum is {momentum} with {optimizer}",
            remedy="give sgd a momentum below 1, and adam none",
        )


def _optimiser(parameters: list[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    if not parameters:
        raise TrainingError("the model has no trainable parameter", remedy="unfreeze some")
    if config.optimizer == "adam":
        return torch.optim.Adam(
            parameters, lr=config.learning_rate, weight_decay=config.weight_decay
        )
    return torch.optim.SGD(
        parameters,
        lr=config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )


def _score(model: nn.Module, inputs: Inputs, targets: Tensor) -> tuple[float, float]:
    """Accuracy and minus the mean cross entropy: larger is better."""
    logits = predict_logits(model, inputs)
    accuracy = float((logits.argmax(dim=1) == targets).double().mean())
    return accuracy, -float(nn.functional.cross_entropy(logits, targets))
