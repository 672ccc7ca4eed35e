"""The plain networks of the seed systems: an MLP, and GAP's classifier over noisy hops.

Every initial weight is drawn from the network's own ``seed``; torch's global generator is left as
it was found.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from tacit.errors import TrainingError

Activation = Literal["selu", "relu", "tanh"]
Combine = Literal["concat", "sum", "attention"]
_ACTIVATIONS: dict[str, type[nn.Module]] = {"selu": nn.SELU, "relu": nn.ReLU, "tanh": nn.Tanh}


@contextmanager
def local_seed(seed: int) -> Iterator[None]:
    """Run a block under its own torch seed and put the global generator back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        yield


class MLP(nn.Module):
    """Layers of ``Linear``, and between two of them batch norm, dropout and an activation.

    Args:
        in_features: Width of the input.
        hidden: Width between layers.
        out_features: Width of the output; the last layer is plain.
        layers: Number of linear layers, at least one.
        dropout: Probability of zeroing a hidden value in training.
        batch_norm: Normalise hidden values by their batch. Not under DP-SGD, which refuses it.
        activation: ``selu``, ``relu`` or ``tanh``.
        seed: Of the initial weights.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        out_features: int,
        layers: int,
        *,
        dropout: float = 0.0,
        batch_norm: bool = False,
        activation: Activation = "selu",
        seed: int = 0,
    ) -> None:
        super().__init__()
        _check_widths(in_features, hidden, out_features, layers)
        widths = [in_features, *[hidden] * (layers - 1), out_features]
        stack: list[nn.Module] = []
        with local_seed(seed):
            for index in range(layers):
                stack.append(nn.Linear(widths[index], widths[index + 1]))
                if index < layers - 1:
                    stack += _between(hidden, dropout, batch_norm, activation)
        self.stack = nn.Sequential(*stack)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows of ``in_features`` to rows of ``out_features``."""
        return self.stack(x)


class HopClassifier(nn.Module):
    """GAP's classification module: one base MLP per hop, COMBINE, then a head MLP.

    ``H = COMBINE(MLP_base^(0)(X^(0)), ..., MLP_base^(K)(X^(K)))`` and ``Y = MLP_head(H)``
    (Sajadmanesh et al., GAP, Equations 10 to 12). COMBINE is followed by batch norm (if asked for),
    dropout and the activation, as any hidden layer is.

    Attention scores each hop with one linear map per head, as many heads as hops, and averages the
    hops of one node by the softmax over its hops: rows never mix, so DP-SGD may train it.

    Args:
        widths: Width of each hop's input; their number is the number of hops plus one.
        hidden: Width of every hidden layer and of every base MLP's output.
        classes: Number of classes.
        base_layers: Layers of each base MLP.
        head_layers: Layers of the head MLP.
        combine: ``concat``, ``sum`` or ``attention``.
        dropout: As in :class:`MLP`.
        batch_norm: As in :class:`MLP`.
        normalise: Scale each combined row to unit length before the activation, as GAP's published
            code does and its text does not.
        activation: As in :class:`MLP`.
        seed: Of the initial weights.
    """

    def __init__(
        self,
        widths: Sequence[int],
        hidden: int,
        classes: int,
        *,
        base_layers: int = 1,
        head_layers: int = 1,
        combine: Combine = "concat",
        dropout: float = 0.0,
        batch_norm: bool = False,
        normalise: bool = False,
        activation: Activation = "selu",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not widths:
            raise TrainingError("a hop classifier needs at least one input", remedy="give widths")
        if combine not in ("concat", "sum", "attention"):
            raise TrainingError(
                f"unknown COMBINE {combine!r}", remedy="use concat, sum or attention"
            )
        hops = len(widths)
        self.combine, self.normalise = combine, normalise
        # Distinct seeds: equal initial weights would make the hops' base networks mirror images.
        seeds = torch.randint(2**31, (hops + 2,), generator=torch.Generator().manual_seed(seed))

        def mlp(width: int, out: int, layers: int, own_seed: int) -> MLP:
            return MLP(
                width,
                hidden,
                out,
                layers,
                dropout=dropout,
                batch_norm=batch_norm,
                activation=activation,
                seed=own_seed,
            )

        self.bases = nn.ModuleList(
            mlp(width, hidden, base_layers, int(own))
            for width, own in zip(widths, seeds, strict=False)
        )
        width = hidden if combine == "sum" else hidden * hops
        with local_seed(int(seeds[-2])):
            self.scores = nn.Linear(hidden, hops, bias=False) if combine == "attention" else None
        self.between = nn.Sequential(*_between(width, dropout, batch_norm, activation))
        self.head = mlp(width, classes, head_layers, int(seeds[-1]))

    def forward(self, *hops: Tensor) -> Tensor:
        """Map one tensor of rows per hop to class scores."""
        if len(hops) != len(self.bases):
            raise TrainingError(
                f"{len(hops)} hops were given to a classifier of {len(self.bases)}",
                remedy="give one tensor per entry of widths",
            )
        parts = [base(x) for base, x in zip(self.bases, hops, strict=True)]
        combined = self._combine(parts)
        if self.normalise:
            combined = nn.functional.normalize(combined, dim=-1)
        return self.head(self.between(combined))

    def _combine(self, parts: list[Tensor]) -> Tensor:
        if self.combine == "concat":
            return torch.cat(parts, dim=-1)
        if self.scores is None:
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            return total
        stacked = torch.stack(parts, dim=1)  # [rows, hops, hidden]
        weights = nn.functional.leaky_relu(self.scores(stacked), 0.2).softmax(dim=1)
        return (stacked.transpose(1, 2) @ weights).flatten(1)


def _between(width: int, dropout: float, batch_norm: bool, activation: str) -> list[nn.Module]:
    """What stands between two linear layers."""
    if activation not in _ACTIVATIONS:
        raise TrainingError(
            f"unknown activation {activation!r}", remedy=f"use one of {', '.join(_ACTIVATIONS)}"
        )
    if not 0 <= dropout < 1:
        raise TrainingError(f"dropout is {dropout}", remedy="give a probability in [0, 1)")
    norm: list[nn.Module] = [nn.BatchNorm1d(width)] if batch_norm else []
    drop: list[nn.Module] = [nn.Dropout(dropout)] if dropout else []
    return [*norm, *drop, _ACTIVATIONS[activation]()]


def _check_widths(in_features: int, hidden: int, out_features: int, layers: int) -> None:
    if min(in_features, hidden, out_features, layers) < 1:
        raise TrainingError(
            f"an MLP of widths {in_features}, {hidden}, {out_features} and {layers} layers",
            why="there is nothing to train",
            remedy="give at least 1 for each",
        )
