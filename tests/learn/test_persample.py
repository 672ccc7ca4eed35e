import warnings

import pytest
import torch
from gradient_oracle import clipped_sum, record_gradients
from torch import Tensor, nn

from tacit.errors import TrainingError
from tacit.learn.networks import MLP, HopClassifier
from tacit.learn.persample import ClippedSum

CLASSES = 5


class Tokens(nn.Module):
    """Linear layers on 3-D and 4-D inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 7), nn.Linear(7, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        return self.second(hidden.unflatten(1, (2, -1))).mean(dim=(1, 2))


class Siamese(nn.Module):
    """One layer used twice, a second layer with the same weight, a bias shared by unlike layers."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.twin = nn.Linear(6, 6), nn.Linear(6, 6)
        self.twin.weight = self.base.weight
        self.short = nn.Linear(3, 6)
        self.short.bias = self.twin.bias
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = torch.tanh(self.base(torch.tanh(self.base(x)))) + self.base(y)
        return self.head(torch.tanh(self.twin(z)) + self.short(x[:, :3]))


class Partly(nn.Module):
    """A frozen layer, a frozen weight, a layer that is never called and one without effect."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.biased, self.unused, self.idle = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.biased.weight.requires_grad_(False)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.idle(x)
        return self.head(torch.tanh(self.biased(torch.tanh(self.frozen(x)))))


def rows(count: int, *shapes: tuple[int, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
    draw = torch.Generator().manual_seed(1)
    inputs = tuple(torch.randn((count, *shape), generator=draw) for shape in shapes)
    return inputs, torch.randint(CLASSES, (count,), generator=draw)


CASES = {
    "linear": (lambda: MLP(6, 4, CLASSES, 1), [(6,)]),
    "mlp": (lambda: MLP(6, 8, CLASSES, 3), [(6,)]),
    "concat": (lambda: HopClassifier([6, 4, 6], 7, CLASSES, base_layers=2), [(6,), (4,), (6,)]),
    "sum": (lambda: HopClassifier([6, 4], 7, CLASSES, combine="sum", head_layers=2), [(6,), (4,)]),
    "attention": (
        lambda: HopClassifier([6, 4, 6], 7, CLASSES, combine="attention", normalise=True),
        [(6,), (4,), (6,)],
    ),
    "tokens": (Tokens, [(4, 6)]),
    "siamese": (Siamese, [(6,), (6,)]),
    "partly frozen": (Partly, [(6,)]),
}


def build(name: str, count: int = 9) -> tuple[nn.Module, tuple[Tensor, ...], Tensor]:
    make, shapes = CASES[name]
    torch_state = torch.get_rng_state()
    torch.manual_seed(3)
    model = make()
    torch.set_rng_state(torch_state)
    return model, *rows(count, *shapes)


def close(got: Tensor, wanted: Tensor) -> None:
    assert float((got - wanted).norm()) <= 1e-5 * float(wanted.norm()) + 1e-12


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("clip", [0.01, 1.0, 1e6])
def test_clipped_sum_is_the_loop_over_records(name: str, clip: float) -> None:
    model, inputs, targets = build(name)
    gradients = record_gradients(model, inputs, targets)
    sums = ClippedSum(model, inputs, targets)
    counts = sums.add(inputs, targets, clip)
    close(sums.total, clipped_sum(gradients, clip))
    assert counts.records == 9
    assert counts.dropped == 0
    assert counts.clipped == int((gradients.norm(dim=1) > clip).sum())


@pytest.mark.parametrize("name", CASES)
def test_each_record_alone(name: str) -> None:
    model, inputs, targets = build(name)
    wanted = record_gradients(model, inputs, targets)
    sums = ClippedSum(model, inputs, targets)
    for i in range(len(targets)):
        sums.total.zero_()
        sums.add(sums.gather(inputs, torch.tensor([i])), targets[i : i + 1], 1e-3)
        close(sums.total, wanted[i] * 1e-3 / wanted[i].norm())


@pytest.mark.parametrize("name", ["mlp", "concat", "sum", "attention"])
def test_agrees_with_opacus(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule

        model, inputs, targets = build(name)
        wrapped = GradSampleModule(model, loss_reduction="sum")
        loss = nn.functional.cross_entropy(wrapped(*inputs), targets, reduction="sum")
        loss.backward()
        samples = [p.grad_sample.flatten(1) for p in wrapped.parameters()]
    gradients = torch.cat(samples, dim=1).double()
    model, inputs, targets = build(name)
    clip = float(gradients.norm(dim=1).median())
    sums = ClippedSum(model, inputs, targets)
    sums.add(inputs, targets, clip)
    close(sums.total, clipped_sum(gradients, clip))
    for i in range(len(targets)):  # Per sample: a tiny clip shows its norm and its direction.
        sums.total.zero_()
        sums.add(tuple(x[i : i + 1] for x in inputs), targets[i : i + 1], 1e9)
        close(sums.total, gradients[i])


def test_soft_targets() -> None:
    model, inputs, targets = build("mlp")
    soft = torch.rand(len(targets), CLASSES, generator=torch.Generator().manual_seed(2))
    sums = ClippedSum(model, inputs, soft)
    sums.add(inputs, soft, 0.7)
    close(sums.total, clipped_sum(record_gradients(model, inputs, soft), 0.7))


@pytest.mark.parametrize("name", ["mlp", "tokens", "siamese"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 3e38])
def test_a_record_without_a_finite_gradient_adds_nothing(name: str, poison: float) -> None:
    model, inputs, targets = build(name)
    sums = ClippedSum(model, inputs, targets)
    sums.add(tuple(x[1:] for x in inputs), targets[1:], 0.5)
    wanted = sums.total.clone()
    inputs[0][0] = poison
    sums.total.zero_()
    counts = sums.add(inputs, targets, 0.5)
    # A huge but finite row may still have a finite gradient: then it is clipped, not dropped.
    assert bool(torch.isfinite(sums.total).all())
    assert float((sums.total - wanted).norm()) <= (1e-5 if counts.dropped else 0.5 + 1e-5)
    if poison != 3e38:
        assert counts.dropped == 1


def test_one_record_moves_the_sum_by_at_most_the_clip() -> None:
    """Assumption A3 of proofs/dpsgd.md, measured: float32 moves other records' rows little."""
    model = MLP(50, 32, CLASSES, 3)
    inputs, targets = rows(700, (50,))
    sums = ClippedSum(model, inputs, targets)
    clip = 1 - 2.0**-10
    sums.add(inputs, targets, clip)
    whole = sums.total.clone()
    for gone in range(0, 700, 70):
        keep = torch.arange(700) != gone
        sums.total.zero_()
        sums.add(tuple(x[keep] for x in inputs), targets[keep], clip)
        assert float((whole - sums.total).norm()) <= 1 - 2.0**-11


def test_total_memory_holds_no_gradient_per_record() -> None:
    model = MLP(60, 50, CLASSES, 3)
    inputs, targets = rows(500, (60,))
    sums = ClippedSum(model, inputs, targets)
    sums.add(sums.gather(inputs, torch.arange(500)), targets, 1.0)
    held = sum(x.numel() for x in sums._room.values())
    assert held < 500 * sums.total.numel() / 10


class Mixing(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(dim=0))


class Direct(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.stack[0].weight.sum()


class InPlace(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mul_(2)


class BatchLast(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.unsqueeze(0)).squeeze(0)


def hooked() -> nn.Module:
    model = MLP(6, 4, CLASSES, 2)
    model.stack[0].register_forward_hook(lambda layer, given, out: out * 2)
    return model


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


REFUSED = {
    "mix": (lambda: Mixing(6, 4, CLASSES, 2), "mixes rows"),
    "direct": (lambda: Direct(6, 4, CLASSES, 2), "used directly"),
    "in place": (lambda: InPlace(6, 4, CLASSES, 2), "in place"),
    "batch last": (lambda: BatchLast(6, 4, CLASSES, 2), "first dimension"),
    "hooks": (hooked, "hooks"),
    "subclass": (lambda: nn.Sequential(Scaled(6, CLASSES)), "belongs to a Scaled"),
    "batch norm": (lambda: MLP(6, 4, CLASSES, 2, batch_norm=True), "BatchNorm1d"),
    "layer norm": (lambda: nn.Sequential(nn.Linear(6, CLASSES), nn.LayerNorm(CLASSES)), "LayerN"),
    "own parameter": (lambda: nn.Sequential(nn.Linear(6, CLASSES), nn.PReLU()), "PReLU"),
    "frozen": (lambda: MLP(6, 4, CLASSES, 2).requires_grad_(False), "no trainable"),
    "half": (lambda: MLP(6, 4, CLASSES, 2).bfloat16(), "bfloat16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_it_cannot_bound(name: str) -> None:
    make, reason = REFUSED[name]
    inputs, targets = rows(4, (6,))
    with pytest.raises(TrainingError, match=reason):
        ClippedSum(make(), inputs, targets)


def test_refuses_rows_that_do_not_fit() -> None:
    model, inputs, targets = build("mlp")
    for bad in (targets[:-1], targets - 10, targets.double(), targets[:0]):
        with pytest.raises(TrainingError):
            ClippedSum(model, inputs, bad)
