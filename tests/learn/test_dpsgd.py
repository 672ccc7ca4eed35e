import math

import numpy as np
import pytest
import torch
from gradient_oracle import clipped_sum, global_state, record_gradients
from torch import Tensor, nn

from tacit.errors import NoiseError, TrainingError
from tacit.learn.dpsgd import MARGIN, DpSgdConfig, Grid, batches_and_noise, train_private
from tacit.learn.networks import MLP, HopClassifier
from tacit.privacy.noise import NoiseSource

NEVER = 1e-15  # A sampling rate at which every batch of these tests is empty.


def data(count: int = 60, width: int = 6):
    draw = torch.Generator().manual_seed(7)
    targets = torch.randint(3, (count,), generator=draw)
    return (torch.randn(count, width, generator=draw),), targets


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def noise_of_one_step(multiplier: float, clip: float, optimizer_rows: int = 60) -> Tensor:
    """What one step on an empty batch adds to the sum of gradients, seen through the weights."""
    inputs, targets = data(optimizer_rows)
    model = MLP(6, 150, 3, 3)
    before = flat(model).double()
    config = DpSgdConfig(
        NEVER,
        1,
        multiplier,
        clip=clip,
        learning_rate=1e6 * NEVER * optimizer_rows,
        optimizer="sgd",
        average_last=0,
    )
    report = train_private(model, inputs, targets, config, source=NoiseSource.seeded(3), seed=0)
    assert report.empty_batches == 1
    assert report.noise_std == multiplier * clip
    return (before - flat(model).double()) / 1e6


@pytest.mark.parametrize(("multiplier", "clip"), [(1.0, 1.0), (0.3, 5.0), (40.0, 0.01)])
def test_noise_has_the_right_scale_and_no_other(multiplier: float, clip: float) -> None:
    """A chi-square test at p = 1e-20 (9.3 sigma) that also rejects 2/3 and 3/2 of the scale."""
    noise = noise_of_one_step(multiplier, clip)

    def z(std: float) -> float:
        return (float(noise.square().mean()) / std**2 - 1) * math.sqrt(len(noise) / 2)

    std = multiplier * clip
    assert abs(z(std)) < 9.3
    assert abs(float(noise.mean())) < 9.3 * std / math.sqrt(len(noise))
    assert z(std * 2 / 3) > 9.3
    assert z(std * 3 / 2) < -9.3


@pytest.mark.parametrize("multiplier", [0.01, 1.0, 300.0])
@pytest.mark.parametrize("size", [10, 10**6])
def test_grid_is_as_the_proof_needs(multiplier: float, size: int) -> None:
    clip = 0.7
    grid = Grid.of(DpSgdConfig(0.1, 1, multiplier, clip=clip), 10**5, size)
    assert math.log2(grid.step).is_integer()
    assert grid.scale * grid.step == pytest.approx(multiplier * clip, rel=1e-12)
    assert grid.step * math.sqrt(size) <= clip * 2.0**-13
    assert grid.step <= multiplier * clip * 2.0**-20
    total = torch.linspace(-3, 3, 101, dtype=torch.float64) * clip
    released = total.clone()
    grid.release(released, torch.arange(101))
    integers = released / grid.step
    assert torch.equal(integers, integers.round())
    shift = integers - torch.arange(101)
    assert torch.equal(shift, (total / grid.step).round())


def test_a_grid_that_overflows_is_refused() -> None:
    with pytest.raises(NoiseError, match="exactly"):
        Grid.of(DpSgdConfig(0.1, 1, 1e-8), 10**9, 100)


def test_batches_are_poisson() -> None:
    rows, steps, rate = 1500, 300, 0.13
    config = DpSgdConfig(rate, steps, 0)
    draws = batches_and_noise(NoiseSource.seeded(1), config, rows, 10, Grid(0.0, 0.0))
    taken = np.zeros((steps, rows))
    for k, (members, noise, _) in enumerate(draws):
        assert noise is None
        taken[k, members.numpy()] = 1
    assert k == steps - 1
    std = math.sqrt(rate * (1 - rate))
    assert abs(taken.mean() - rate) < 9.3 * std / math.sqrt(taken.size)
    # Sizes vary as a binomial's do (a fixed size would have none), and rows are independent.
    sizes = taken.sum(axis=1)
    assert sizes.var() == pytest.approx(rows * rate * (1 - rate), rel=9.3 * math.sqrt(2 / steps))
    assert sizes.var() > rows * rate * (1 - rate) / 3
    for one, other in [(taken[:, :-1], taken[:, 1:]), (taken[:-1], taken[1:])]:
        covariance = ((one - rate) * (other - rate)).mean()
        assert abs(covariance) < 9.3 * std**2 / math.sqrt(one.size)


def test_every_step_has_fresh_noise_and_a_fresh_dropout_seed() -> None:
    config = DpSgdConfig(0.1, 50, 1.0)
    grid = Grid.of(config, 20, 1000)
    draws = list(batches_and_noise(NoiseSource.seeded(1), config, 20, 1000, grid))
    noise = torch.stack([n for _, n, _ in draws if n is not None]).double() / grid.scale
    assert noise.shape == (50, 1000)
    gram = noise @ noise.T / 1000 - torch.eye(50)
    assert float(gram.abs().max()) < 9.3 / math.sqrt(500)
    assert len({seed for _, _, seed in draws}) == 50


class Chosen:
    """A source of known batches and no noise."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def gaussian(self, scale: float, shape: int):
        return np.zeros(shape, np.int64)

    def bernoulli(self, rate: float, size: int):
        mask = np.zeros(size, bool)
        mask[[row for row in self.rows if row < size]] = True
        return mask


@pytest.mark.parametrize("members", [[], [4], [1, 2, 3, 30, 59]])
def test_one_step_is_the_clipped_sum_over_the_public_normaliser(members: list[int]) -> None:
    inputs, targets = data()
    model = MLP(6, 8, 3, 2)
    before = flat(model).double()
    rows = torch.tensor(members, dtype=torch.long)
    wanted = torch.zeros(len(before), dtype=torch.float64)
    if members:
        gradients = record_gradients(model, (inputs[0][rows],), targets[rows])
        wanted = clipped_sum(gradients, 0.3 * (1 - MARGIN))
    config = DpSgdConfig(0.2, 1, 1.0, clip=0.3, learning_rate=1.0, optimizer="sgd")
    report = train_private(model, inputs, targets, config, source=Chosen(members), seed=0)
    assert report.normaliser == pytest.approx(0.2 * 60)
    assert report.records_used == len(members)
    assert report.empty_batches == (not members)
    torch.testing.assert_close(before - flat(model).double(), wanted / 12, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("clip", [0.3, 2.0])
def test_one_record_moves_the_sum_by_the_clip_and_not_more(clip: float) -> None:
    """The bound is reached to the margin: twice or half the clip would be noticed."""
    inputs, targets = data()
    inputs[0][4] *= 100
    model = MLP(6, 8, 3, 2)
    targets[4] = model(*inputs)[4].argmin()
    before = flat(model).double()
    config = DpSgdConfig(0.5, 1, 1.0, clip=clip, learning_rate=30.0, optimizer="sgd")
    train_private(model, inputs, targets, config, source=Chosen([4]), seed=0)
    moved = float((before - flat(model).double()).norm())
    assert 0.997 * clip < moved < clip


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_without_noise_sampling_and_clipping_it_is_plain_training(optimizer: str) -> None:
    inputs, targets = data()
    ours, theirs = HopClassifier([6, 6], 5, 3), HopClassifier([6, 6], 5, 3)
    inputs = inputs * 2
    rates = {"adam": 0.01, "sgd": 0.5}
    momentum = 0.9 if optimizer == "sgd" else 0.0
    config = DpSgdConfig(
        1.0,
        20,
        0.0,
        clip=math.inf,
        learning_rate=rates[optimizer],
        optimizer=optimizer,
        momentum=momentum,
        average_last=0,
        weight_decay=0.01,
    )
    seen = []
    train_private(
        ours,
        inputs,
        targets,
        config,
        source=None,
        seed=0,
        on_step=lambda k: seen.append(flat(ours)),
    )
    plain: torch.optim.Optimizer
    if optimizer == "adam":
        plain = torch.optim.Adam(theirs.parameters(), lr=0.01, weight_decay=0.01)
    else:
        plain = torch.optim.SGD(theirs.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01)
    for weights in seen:
        plain.zero_grad()
        nn.functional.cross_entropy(theirs(*inputs), targets).backward()
        plain.step()
        torch.testing.assert_close(weights, flat(theirs), atol=2e-5, rtol=1e-4)
    assert torch.equal(flat(ours), seen[-1])


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 1), (0.01, 1), (0.3, 3), (1.0, 10)])
def test_average_of_the_last_steps(fraction: float, count: int) -> None:
    inputs, targets = data()
    model = MLP(6, 8, 3, 2)
    seen: list[Tensor] = []
    config = DpSgdConfig(0.3, 10, 1.0, average_last=fraction)
    source = NoiseSource.seeded(1)
    train_private(
        model,
        inputs,
        targets,
        config,
        source=source,
        seed=0,
        on_step=lambda k: seen.append(flat(model)),
    )
    assert config.averaged_steps == count
    torch.testing.assert_close(flat(model), torch.stack(seen[-count:]).mean(dim=0))


@pytest.mark.parametrize("chunk", [1, 7, 30])
def test_chunks_change_no_result(chunk: int) -> None:
    inputs, targets = data()
    results = []
    for size in (4096, chunk):
        model = MLP(6, 8, 3, 2)
        config = DpSgdConfig(0.5, 5, 1.0, chunk=size)
        train_private(model, inputs, targets, config, source=NoiseSource.seeded(1), seed=0)
        results.append(flat(model))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


def run(noise_seed: int | None, seed: int, dropout: float = 0.0) -> Tensor:
    inputs, targets = data()
    model = MLP(6, 8, 3, 3, dropout=dropout)
    source = None if noise_seed is None else NoiseSource.seeded(noise_seed)
    config = DpSgdConfig(0.3, 30, 1.0 if source else 0.0)
    train_private(model, inputs, targets, config, source=source, seed=seed)
    return flat(model)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("noise_seed", [None, 4])
def test_same_seeds_same_weights_and_no_global_state(
    noise_seed: int | None, dropout: float
) -> None:
    before = global_state()
    first = run(noise_seed, 1, dropout)
    assert torch.equal(first, run(noise_seed, 1, dropout))
    other = run(None, 2, dropout) if noise_seed is None else run(5, 1, dropout)
    assert not torch.equal(first, other)
    assert global_state() == before


def test_dropout_masks_are_as_secret_as_the_noise() -> None:
    """With a source, the public seed decides nothing: all randomness is the source's."""
    assert torch.equal(run(4, 1, 0.5), run(4, 2, 0.5))


def test_a_record_that_is_no_number_is_left_out_silently() -> None:
    inputs, targets = data()
    inputs[0][0] = float("nan")
    model = MLP(6, 8, 3, 2)
    config = DpSgdConfig(1.0, 5, 1.0)
    source = NoiseSource.seeded(1)
    report = train_private(model, inputs, targets, config, source=source, seed=0)
    assert report.records_dropped == 5
    assert bool(torch.isfinite(flat(model)).all())


def test_the_model_comes_back_as_it_was_but_for_its_weights() -> None:
    inputs, targets = data()
    model = MLP(6, 8, 3, 3, dropout=0.2)
    model.stack[1].eval()
    model.stack[3].requires_grad_(False)
    frozen = model.stack[3].weight.clone()
    modes = [m.training for m in model.modules()]
    trainable = [p.requires_grad for p in model.parameters()]
    places = [p.data_ptr() for p in model.parameters()]
    steps: list[int] = []
    config = DpSgdConfig(0.3, 7, 1.0)
    report = train_private(
        model, inputs, targets, config, source=NoiseSource.fresh(), seed=0, on_step=steps.append
    )
    assert report.steps_run == 7
    assert steps == list(range(1, 8))
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == trainable
    assert [p.data_ptr() for p in model.parameters()] == places
    assert not any(m._forward_hooks for m in model.modules())
    assert torch.equal(model.stack[3].weight, frozen)


def test_an_interrupted_run_leaves_the_model_untouched() -> None:
    inputs, targets = data()
    model = MLP(6, 8, 3, 2)
    before, state = flat(model), global_state()

    def stop(step: int) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_private(
            model,
            inputs,
            targets,
            DpSgdConfig(0.3, 500, 1.0),
            source=NoiseSource.seeded(1),
            seed=0,
            on_step=stop,
        )
    assert torch.equal(flat(model), before)
    assert all(p.requires_grad for p in model.parameters())
    assert global_state() == state


def test_noise_needs_a_source() -> None:
    inputs, targets = data()
    with pytest.raises(NoiseError, match="no source"):
        train_private(
            MLP(6, 8, 3, 2), inputs, targets, DpSgdConfig(0.3, 2, 1.0), source=None, seed=0
        )


def test_refuses_networks_and_data_that_do_not_fit() -> None:
    inputs, targets = data()
    config, source = DpSgdConfig(0.3, 2, 1.0), NoiseSource.seeded(1)
    bad = [
        (MLP(6, 8, 3, 2, batch_norm=True), inputs, targets),
        (MLP(6, 8, 2, 2), inputs, targets),
        (MLP(6, 8, 3, 2), inputs, targets[:-1]),
        (MLP(6, 8, 3, 2), inputs, nn.functional.one_hot(targets, 4).float()),
    ]
    for model, x, y in bad:
        with pytest.raises(TrainingError):
            train_private(model, x, y, config, source=source, seed=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.1},
        {"sampling_rate": float("nan")},
        {"steps": 0},
        {"steps": 2.0},
        {"steps": True},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": float("inf")},
        {"clip": 0.0},
        {"clip": float("inf")},
        {"clip": float("nan")},
        {"learning_rate": 0.0},
        {"optimizer": "lion"},
        {"momentum": 0.9},
        {"optimizer": "sgd", "momentum": 1.0},
        {"average_last": 1.5},
        {"average_last": -0.1},
        {"weight_decay": -1.0},
        {"chunk": 0},
    ],
)
def test_config_refuses_nonsense(settings: dict[str, object]) -> None:
    good: dict[str, object] = {"sampling_rate": 0.1, "steps": 3, "noise_multiplier": 1.0}
    with pytest.raises(TrainingError):
        DpSgdConfig(**(good | settings))
