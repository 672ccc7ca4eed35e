"""DP-SGD: Poisson batches, clipped per-record gradients, integer noise, a public normaliser.

One step releases ``(round(S / s) + Z) s / (q n)`` where ``S`` is the sum over a Poisson batch of
gradients clipped to ``C``, ``s`` a grid step and ``Z`` rounded Gaussian integers of standard
deviation ``sigma C / s``. The rest (Adam, momentum, averaging) is post-processing.

References: Abadi et al., Deep Learning with Differential Privacy, 2016; Mironov, On Significance of
the Least Significant Bits, 2012. Proof: proofs/dpsgd.md.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.errors import NoiseError, TrainingError
from tacit.learn.networks import local_seed
from tacit.learn.persample import ClippedSum
from tacit.learn.train import (
    Inputs,
    check_classes,
    check_data,
    check_integer,
    check_momentum,
    check_number,
    keep_modes,
)

# Share of the clip kept back for rounding: see proofs/dpsgd.md, section 3.
MARGIN = 2.0**-10
_BLOCK = 2**20


class Source(Protocol):
    """The part of ``tacit.privacy.noise.NoiseSource`` that training draws from."""

    def gaussian(self, scale: float, shape: int) -> NDArray[np.int64]:
        """Rounded Gaussian integers of standard deviation ``scale``."""

    def bernoulli(self, rate: float, size: int) -> NDArray[np.bool_]:
        """Independent coins that show True with probability ``rate``."""


@dataclass(frozen=True)
class DpSgdConfig:
    """Settings of DP-SGD; all public, chosen without looking at the data.

    Attributes:
        sampling_rate: Probability that a record enters a step's batch.
        steps: Number of steps; exactly these are run.
        noise_multiplier: Noise standard deviation divided by ``clip``. 0 means no privacy.
        clip: Largest L2 norm of one record's gradient; infinity only without noise.
        learning_rate: Step size.
        optimizer: ``adam`` (beta .9 and .999, as torch's default) or ``sgd``.
        momentum: Of ``sgd``.
        average_last: The result is the mean of the weights after this fraction of the last steps;
            0 gives the last step's. Free.
        weight_decay: L2 penalty added to the noisy gradient.
        chunk: Rows processed at once; bounds memory, changes no result.
    """

    sampling_rate: float
    steps: int
    noise_multiplier: float
    clip: float = 1.0
    learning_rate: float = 0.01
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.0
    average_last: float = 0.5
    weight_decay: float = 0.0
    chunk: int = 4096

    def __post_init__(self) -> None:
        check_number("sampling_rate", self.sampling_rate, positive=True, most=1)
        check_integer("steps", self.steps, 1)
        check_number("noise_multiplier", self.noise_multiplier)
        if not (self.noise_multiplier == 0 and self.clip == math.inf):
            check_number("clip", self.clip, positive=True)
        check_number("learning_rate", self.learning_rate, positive=True)
        check_momentum(self.optimizer, self.momentum)
        check_number("average_last", self.average_last, most=1)
        check_number("weight_decay", self.weight_decay)
        check_integer("chunk", self.chunk, 1)

    @property
    def averaged_steps(self) -> int:
        """Number of last steps whose weights are averaged, at least one."""
        return max(1, round(self.average_last * self.steps))


@dataclass(frozen=True)
class DpSgdReport:
    """What training did. ``steps_run`` to ``noise_std`` are public, the counts are private.

    Attributes:
        steps_run: Steps run; always the configuration's.
        normaliser: Expected batch size, by which every noisy sum was divided.
        noise_std: Standard deviation of the noise on a sum of gradients.
        records_used: Records drawn over all steps. Private.
        records_clipped: Of these, clipped. Private.
        records_dropped: Of these, left out because their gradient was not finite. Private.
        empty_batches: Steps that were noise only. Private.
    """

    steps_run: int
    normaliser: float
    noise_std: float
    records_used: int
    records_clipped: int
    records_dropped: int
    empty_batches: int


def train_private(
    model: nn.Module,
    inputs: Inputs,
    targets: Tensor,
    config: DpSgdConfig,
    *,
    source: Source | None,
    seed: int,
    on_step: Callable[[int], None] | None = None,
) -> DpSgdReport:
    """Train ``model`` in place on cross entropy, each record's influence bounded.

    Formal guarantees:
        With a private ``source`` the weights cost ``steps`` times
        ``PoissonSampled(sampling_rate, Gaussian(noise_multiplier))`` under adding or removing the
        contribution of one row; the number of rows is public. See proofs/dpsgd.md.

    Args:
        model: A network of ``nn.Linear`` layers on the CPU. Its training flags are put back.
        inputs: Row-aligned tensors, one row per record.
        targets: Class indices [n], or soft targets [n, classes].
        config: Public settings.
        source: Of batches, noise and dropout. None only without noise.
        seed: Of batches and dropout where there is no source.
        on_step: Called with the number of steps done, for progress.

    Returns:
        What was done.

    Raises:
        TrainingError: The network or the data do not allow the guarantee.
        NoiseError: There is no source, or the grid cannot hold the sum.
    """
    rows = check_data(inputs, targets)
    if source is None and config.noise_multiplier > 0:
        raise NoiseError(
            "there is no source of noise",
            why=f"the noise multiplier is {config.noise_multiplier}",
            remedy="give NoiseSource.fresh(), or noise_multiplier=0 for no privacy",
        )
    coins = source if source is not None else SeededCoins(seed)
    with local_seed(seed), keep_modes(model):
        model.train()
        gradient = ClippedSum(model, inputs, targets)
        check_classes(torch.empty(rows, gradient.classes, device="meta"), targets, rows)
        grid = Grid.of(config, rows, gradient.total.numel())
        used = clipped = dropped = empty = 0
        with _flat(gradient.parameters) as weights:
            update = Update(weights, config)
            mean = torch.zeros_like(weights, dtype=torch.float64)
            draws = batches_and_noise(coins, config, rows, gradient.total.numel(), grid)
            for done, (members, noise, mask_seed) in enumerate(draws, start=1):
                torch.random.default_generator.manual_seed(mask_seed)
                gradient.total.zero_()
                for part in members.split(config.chunk) if len(members) else ():
                    counts = gradient.add(
                        gradient.gather(inputs, part),
                        targets.index_select(0, part),
                        config.clip * (1 - MARGIN),
                    )
                    clipped += counts.clipped
                    dropped += counts.dropped
                used += len(members)
                empty += not len(members)
                grid.release(gradient.total, noise)
                update(gradient.total.div_(config.sampling_rate * rows))
                if done > config.steps - config.averaged_steps:
                    mean += weights
                if on_step is not None:
                    on_step(done)
            weights.copy_(mean.div_(config.averaged_steps))
            if not bool(torch.isfinite(weights).all()):
                raise TrainingError(
                    "the weights are no longer numbers",
                    why="the noisy steps were too large",
                    remedy="lower the learning rate",
                )
    return DpSgdReport(
        steps_run=config.steps,
        normaliser=config.sampling_rate * rows,
        noise_std=config.noise_multiplier * config.clip if grid.step else 0.0,
        records_used=used,
        records_clipped=clipped,
        records_dropped=dropped,
        empty_batches=empty,
    )


@dataclass(frozen=True)
class Grid:
    """The integers that leave: ``step`` is their unit (a power of two), ``scale`` the noise's std.

    A step of 0 means no noise and no grid.
    """

    step: float
    scale: float

    @classmethod
    def of(cls, config: DpSgdConfig, rows: int, size: int) -> "Grid":
        """The finest grid that holds the sum of ``rows`` records and the noise exactly."""
        if config.noise_multiplier == 0:
            return cls(0.0, 0.0)
        std = config.noise_multiplier * config.clip
        finest = min(std * 2.0**-20, config.clip * 2.0**-13 / math.sqrt(size))
        step = 2.0 ** math.floor(math.log2(finest))
        grid = cls(step, std / step)
        if rows * config.clip / step + 64 * grid.scale >= 2.0**52:
            raise NoiseError(
                f"a grid of step {step:g} cannot hold the sum and the noise exactly",
                why="integers beyond 2^53 are rounded in float64",
                remedy="use a noise multiplier nearer to 1",
            )
        return grid

    def release(self, total: Tensor, noise: Tensor | None) -> None:
        """Round the sum to the grid, add the integers, return to units of the gradient."""
        if noise is not None:
            # The step is a power of two: multiplying by its inverse is dividing by it.
            total.mul_(1 / self.step).round_().add_(noise).mul_(self.step)


class Update:
    """SGD with momentum, or Adam, over one flat buffer; the same steps as torch.optim's."""

    def __init__(self, weights: Tensor, config: DpSgdConfig) -> None:
        self.weights, self.config, self.count = weights, config, 0
        self.grad = torch.zeros_like(weights)
        self.first = torch.zeros_like(weights)
        self.second = torch.zeros_like(weights)

    def __call__(self, gradient: Tensor) -> None:
        """Take one step along a released gradient."""
        config, grad = self.config, self.grad
        self.count += 1
        grad.copy_(gradient)
        if config.weight_decay:
            grad.add_(self.weights, alpha=config.weight_decay)
        if config.optimizer == "sgd":
            if config.momentum:
                grad = self.first.mul_(config.momentum).add_(grad)
            self.weights.add_(grad, alpha=-config.learning_rate)
            return
        self.first.lerp_(grad, 1 - 0.9)
        self.second.mul_(0.999).addcmul_(grad, grad, value=1 - 0.999)
        torch.sqrt(self.second, out=grad)
        grad.div_(math.sqrt(1 - 0.999**self.count)).add_(1e-8)
        rate = config.learning_rate / (1 - 0.9**self.count)
        self.weights.addcdiv_(self.first, grad, value=-rate)


class SeededCoins:
    """Poisson batches of a run without privacy."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def gaussian(self, scale: float, shape: int) -> NDArray[np.int64]:
        """Refuses."""
        raise NoiseError("a run without privacy draws no noise", remedy="report this as a bug")

    def bernoulli(self, rate: float, size: int) -> NDArray[np.bool_]:
        """Coins of the seed."""
        return self._rng.random(size) < rate


def batches_and_noise(
    source: Source, config: DpSgdConfig, rows: int, size: int, grid: Grid
) -> Iterator[tuple[Tensor, Tensor | None, int]]:
    """Batch, noise and dropout seed of every step, in one fixed order.

    Draws depend on public figures alone, so they are made in blocks, one block ahead, on a thread.
    """
    block = max(1, min(16, _BLOCK // (rows + size)))

    def draw(count: int) -> list[tuple[Tensor, Tensor | None, int]]:
        coins = source.bernoulli(config.sampling_rate, count * rows).reshape(count, rows)
        members = [torch.from_numpy(np.flatnonzero(line)) for line in coins]
        bits = np.packbits(source.bernoulli(0.5, count * 32).reshape(count, 32), axis=1)
        seeds = [int(x) for x in bits.view(np.uint32)[:, 0]]
        if grid.step == 0:
            return list(zip(members, [None] * count, seeds, strict=True))
        # Below 2^53 a float64 holds an integer, and this thread has the time to convert it.
        noise = torch.from_numpy(source.gaussian(grid.scale, count * size).astype(np.float64))
        return list(zip(members, noise.view(count, size), seeds, strict=True))

    # The first block cannot be drawn beside a step, so blocks start small and double.
    sizes: list[int] = []
    left = config.steps
    while left:
        sizes.append(min(left, block, 2 ** len(sizes)))
        left -= sizes[-1]
    with ThreadPoolExecutor(max_workers=1) as pool:
        ahead = pool.submit(draw, sizes[0])
        for index in range(len(sizes)):
            ready = ahead.result()
            if index + 1 < len(sizes):
                ahead = pool.submit(draw, sizes[index + 1])
            yield from ready


@contextmanager
def _flat(parameters: list[nn.Parameter]) -> Iterator[Tensor]:
    """Let the parameters live in one buffer, without gradients; copy it back on success."""
    if len({p.dtype for p in parameters}) > 1:
        raise TrainingError("the model mixes float types", remedy="convert it with .float()")
    kept = [p.data for p in parameters]
    weights = torch.cat([x.flatten() for x in kept])
    pieces = weights.split([x.numel() for x in kept])
    try:
        for p, piece in zip(parameters, pieces, strict=True):
            p.data = piece.view(p.shape)
            p.requires_grad_(False)
        yield weights
        for x, piece in zip(kept, pieces, strict=True):
            x.copy_(piece.view(x.shape))
    finally:
        for p, x in zip(parameters, kept, strict=True):
            p.data = x
            p.requires_grad_(True)
