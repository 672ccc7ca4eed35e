"""Thousands of small GraphSAGE teachers, trained in batches. Knows nothing of budgets.

One teacher is a two-layer GraphSAGE network (Hamilton, Ying, Leskovec 2017) with mean aggregation,
batch norm after the first layer, ReLU and dropout, trained by Adam on the cross entropy of one
small subgraph, then asked once. A loop over such models spends its time in overheads and in an
input layer of single precision; here B teachers share every call:

- parameters are stacked, and each layer is one batched product over padded subgraphs, own and
  neighbour weights side by side: ``H = X W_self + A (X W_neigh)``, aggregated after the product,
  where rows are 64 wide instead of thousands;
- products run in bfloat16 where the processor has it: factors are rounded to 8 bits and summed in
  single precision, and all else (the weights that Adam moves, batch norm, the answer) is single;
- gradients are written out, so nothing is kept that they do not need.

A teacher's randomness is its own (initial weights, dropout masks), so what it answers does not
depend on which others share its batch, up to rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.errors import TrainingError

Precision = Literal["auto", "float32", "bfloat16"]
_TILE = 32
_BN_EPS, _BN_MOMENTUM = 1e-5, 0.1


@dataclass(frozen=True)
class TeacherConfig:
    """Settings of every teacher.

    Attributes:
        hidden: Width of the hidden layer.
        epochs: Steps of Adam, each over the whole subgraph.
        learning_rate: Of Adam.
        dropout: Of the hidden layer; rounded to a multiple of 1/256.
        batch: Teachers trained at once: bounds memory.
        precision: Of products in training; ``auto`` is bfloat16 where it is fast.
    """

    hidden: int = 64
    epochs: int = 200
    learning_rate: float = 0.01
    dropout: float = 0.5
    batch: int = 16
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        for name in ("hidden", "epochs", "batch"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} is {getattr(self, name)}", remedy="give at least 1")
        if not 0 <= self.dropout < 1 or self.learning_rate <= 0:
            raise TrainingError(
                f"dropout {self.dropout} or learning rate {self.learning_rate} is out of range"
            )


@dataclass(frozen=True)
class Attributed:
    """Features with the lists that are averaged: row v of the CSR holds whom v listens to."""

    features: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray


def log_posteriors(
    private: Attributed,
    labels: np.ndarray,
    classes: int,
    samples: Sequence[np.ndarray],
    public: Attributed,
    queries: np.ndarray,
    config: TeacherConfig,
    *,
    seeds: Sequence[int],
    room: int = 0,
    device: str = "cpu",
    on_batch: Callable[[int, np.ndarray], None] | None = None,
) -> np.ndarray:
    """Log class probabilities of each query, by a teacher of its own.

    Args:
        private: The graph that teachers are trained on.
        labels: Its classes.
        classes: How many there are.
        samples: For each query the sorted nodes whose induced subgraph its teacher sees.
        public: The graph that the queries are nodes of.
        queries: Node numbers in ``public``; each is answered from its own neighbourhood there.
        config: Settings.
        seeds: Of each teacher.
        room: Rows kept for every sample, at least. With as many as any sample has, one teacher's
            arithmetic is the same whoever is in another's sample.
        device: Where to compute.
        on_batch: Told how many are done, and the newest rows.

    Returns:
        One row per query; an empty sample answers the uniform distribution.
    """
    found = np.full((len(queries), classes), -np.log(classes))
    probe = _Probe(public)
    for start in range(0, len(queries), config.batch):
        chosen = range(start, min(start + config.batch, len(queries)))
        stack = _Stack(
            private, labels, classes, [samples[i] for i in chosen],
            [seeds[i] for i in chosen], config, torch.device(device), room,
        )  # fmt: skip
        stack.train()
        for row, i in enumerate(chosen):
            if len(samples[i]):
                found[i] = stack.answer(row, *probe.rows(int(queries[i])))
        if on_batch is not None:
            on_batch(start + len(chosen), found[start : start + len(chosen)])
    return found


def one_teacher(
    private: Attributed,
    labels: np.ndarray,
    classes: int,
    sample: np.ndarray,
    public: Attributed,
    queries: np.ndarray,
    config: TeacherConfig,
    *,
    seed: int,
    device: str = "cpu",
) -> np.ndarray:
    """Log class probabilities of many queries by one and the same teacher."""
    if not len(sample):
        return np.full((len(queries), classes), -np.log(classes))
    place = torch.device(device)
    stack = _Stack(private, labels, classes, [sample], [seed], config, place)
    stack.train()
    probe = _Probe(public)
    return np.stack([stack.answer(0, *probe.rows(int(query))) for query in queries])


def fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 numbers in hardware."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return bool(torch.backends.mkldnn.is_available() and supported is not None and supported())


class _Probe:
    """What a two-layer network needs to know of a public node: its own and its lists' inputs."""

    def __init__(self, public: Attributed) -> None:
        self.public = public

    def rows(self, node: int) -> tuple[np.ndarray, np.ndarray]:
        """Features, and mean features of the list, of the node and then of its neighbours."""
        indptr, indices = self.public.indptr, self.public.indices
        near = [node, *indices[indptr[node] : indptr[node + 1]]]
        lists = [indices[indptr[v] : indptr[v + 1]] for v in near]
        x = self.public.features
        means = [x[one].mean(axis=0) if len(one) else np.zeros(x.shape[1]) for one in lists]
        return x[near].astype(np.float32), np.asarray(means, np.float32)


class _Stack:
    """B teachers side by side."""

    def __init__(
        self,
        private: Attributed,
        labels: np.ndarray,
        classes: int,
        samples: Sequence[np.ndarray],
        seeds: Sequence[int],
        config: TeacherConfig,
        device: torch.device,
        room: int = 0,
    ) -> None:
        self.config, self.device, self.classes = config, device, classes
        wanted = config.precision
        if wanted == "auto":
            fast = device.type == "cuda" or fast_bfloat16()
            wanted = "bfloat16" if fast else "float32"
        self.half = torch.bfloat16 if wanted == "bfloat16" else torch.float32
        self.sizes = [len(sample) for sample in samples]
        # Products of whole tiles are half again as fast; what is added is zero and stays zero.
        b, n = len(samples), -(-max(room, 1, *self.sizes) // _TILE) * _TILE
        width = private.features.shape[1]
        d = -(-width // _TILE) * _TILE
        self.shape, self.width = (b, n, d), width
        inputs = torch.zeros((b, n, d), dtype=self.half, device=device)
        truth = torch.zeros((b, n), dtype=torch.long, device=device)
        valid = torch.zeros((b, n, 1), device=device)
        for row, sample in enumerate(samples):
            inputs[row, : len(sample), :width] = torch.from_numpy(private.features[sample])
            truth[row, : len(sample)] = torch.from_numpy(labels[sample]).to(truth)
            valid[row, : len(sample)] = 1
        self.inputs, self.turned = inputs, inputs.transpose(1, 2).contiguous()
        self.valid = valid
        self.count = valid.sum(dim=1, keepdim=True).clamp_min(1)
        self.target = torch.nn.functional.one_hot(truth, classes).to(valid) * valid
        self.mean, self.back = _means(private, samples, n, device)
        self.streams = [np.random.default_rng(seed) for seed in seeds]
        h, c = config.hidden, classes
        self.parts = {
            "w1": (d, 2 * h), "scale": (1, h), "shift": (1, h), "w2": (h, 2 * c), "b2": (1, c),
        }  # fmt: skip
        self.flat = torch.zeros((b, sum(r * k for r, k in self.parts.values())), device=device)
        self.grad = torch.zeros_like(self.flat)
        self.p, self.g = self._views(self.flat), self._views(self.grad)
        self._initialise()
        self.running = (torch.zeros((b, 1, h), device=device), torch.ones((b, 1, h), device=device))

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        views, at = {}, 0
        for name, (rows, columns) in self.parts.items():
            part = flat[:, at : at + rows * columns]
            views[name] = part.unflatten(1, (rows, columns))
            at += rows * columns
        return views

    def _initialise(self) -> None:
        """Uniform in plus and minus one over the root of the inputs, as torch's linear layers."""
        self.p["scale"].fill_(1.0)
        self.p["shift"].fill_(0.0)
        for row, stream in enumerate(self.streams):
            for name, rows in (("w1", self.width), ("w2", self.config.hidden)):
                shape = (rows, self.parts[name][1])
                drawn = stream.random(shape, dtype=np.float32) * 2 - 1
                self.p[name][row, :rows] = torch.from_numpy(drawn / np.sqrt(np.float32(rows)))
            drawn = stream.random((1, self.classes), dtype=np.float32) * 2 - 1
            self.p["b2"][row] = torch.from_numpy(drawn / np.sqrt(np.float32(self.config.hidden)))

    def train(self) -> None:
        """All epochs of Adam (Kingma and Ba 2015), on all teachers at once."""
        weights = torch.nn.Parameter(self.flat)
        weights.grad = self.grad
        optimiser = torch.optim.Adam([weights], lr=self.config.learning_rate, fused=True)
        with torch.no_grad():
            for _ in range(self.config.epochs):
                self.gradients()
                optimiser.step()
        if not bool(torch.isfinite(self.flat).all()):
            raise TrainingError(
                "a teacher's weights are no longer numbers", remedy="lower the learning rate"
            )

    def gradients(self) -> None:
        """Gradient of the mean cross entropy of each teacher, written into ``grad``."""
        h, c, p, g = self.config.hidden, self.classes, self.p, self.g
        hidden = self._mix(torch.bmm(self.inputs, p["w1"].to(self.half)), h)
        # Rows that only fill up are zero here, and nothing below passes a gradient through them.
        mean = hidden.sum(dim=1, keepdim=True) / self.count
        centred = hidden.sub_(mean).mul_(self.valid)
        variance = (centred * centred).sum(dim=1, keepdim=True) / self.count
        self._track(mean, variance)
        rate = torch.rsqrt(variance + _BN_EPS)
        unit = centred.mul_(rate)
        normed = torch.addcmul(p["shift"], unit, p["scale"])
        staying = 1 - round(self.config.dropout * 256) / 256
        active = self._dropped(torch.relu_(normed)).div_(staying)
        rounded, second = active.to(self.half), p["w2"].to(self.half)
        scores = self._mix(torch.bmm(rounded, second), c).add_(p["b2"])
        wrong = torch.exp(scores.sub_(scores.amax(dim=2, keepdim=True)))
        wrong.mul_(self.valid / wrong.sum(dim=2, keepdim=True)).sub_(self.target).div_(self.count)
        torch.sum(wrong, dim=1, keepdim=True, out=g["b2"])
        spread = self._unmix(wrong)
        g["w2"].copy_(torch.bmm(rounded.transpose(1, 2), spread))
        below = torch.bmm(spread, second.transpose(1, 2)).float()
        # Zero where dropout or ReLU made it zero on the way up.
        below = torch.ops.aten.threshold_backward(below, active, 0).div_(staying)
        g["scale"].copy_((below * unit).sum(dim=1, keepdim=True))
        g["shift"].copy_(below.sum(dim=1, keepdim=True))
        # Batch norm: take out the mean and the part along the normalised values.
        below.sub_(g["shift"] / self.count).sub_(unit.mul_(g["scale"] / self.count))
        below.mul_(p["scale"] * rate)
        g["w1"].copy_(torch.bmm(self.turned, self._unmix(below)))

    def _mix(self, wide: Tensor, width: int) -> Tensor:
        """Own part plus the mean of the neighbours' parts."""
        near = wide[:, :, width:].float().reshape(-1, width)
        mixed = (self.mean @ near).view(*wide.shape[:2], width)
        return mixed.add_(wide[:, :, :width])

    def _unmix(self, gradient: Tensor) -> Tensor:
        """The adjoint of :meth:`_mix`, as the next product reads it."""
        b, n, width = gradient.shape
        both = torch.empty((b, n, 2 * width), dtype=self.half, device=self.device)
        both[:, :, :width] = gradient
        both[:, :, width:] = (self.back @ gradient.view(-1, width)).view(b, n, width)
        return both

    def _dropped(self, active: Tensor) -> Tensor:
        """Dropout in place, before what stays is scaled up; every teacher has coins of its own."""
        b, n, _ = self.shape
        h, dropped = self.config.hidden, round(self.config.dropout * 256)
        if not dropped:
            return active
        coins = np.zeros((b, n, h), np.uint8)
        for row, (stream, size) in enumerate(zip(self.streams, self.sizes, strict=True)):
            coins[row, :size] = np.frombuffer(stream.bytes(size * h), np.uint8).reshape(size, h)
        return active.mul_((torch.from_numpy(coins).to(self.device) >= dropped).float())

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        """Running moments, as batch norm keeps them for later: the variance without bias."""
        fair = variance * (self.count / (self.count - 1).clamp_min(1))
        self.running[0].lerp_(mean, _BN_MOMENTUM)
        self.running[1].lerp_(fair, _BN_MOMENTUM)

    def answer(self, row: int, own: np.ndarray, lists: np.ndarray) -> np.ndarray:
        """Log probabilities of the first node; the rows after it are its neighbours."""
        h, c = self.config.hidden, self.classes
        w1, w2 = self.p["w1"][row, : self.width], self.p["w2"][row]
        with torch.no_grad():
            x, m = (torch.from_numpy(a).to(self.device) for a in (own, lists))
            hidden = x @ w1[:, :h] + m @ w1[:, h:]
            rate = torch.rsqrt(self.running[1][row] + _BN_EPS)
            unit = (hidden - self.running[0][row]) * rate
            active = torch.relu(unit * self.p["scale"][row] + self.p["shift"][row])
            near = active[1:].mean(dim=0) if len(active) > 1 else torch.zeros_like(active[0])
            scores = active[0] @ w2[:, :c] + near @ w2[:, c:] + self.p["b2"][row, 0]
            return torch.log_softmax(scores.double(), dim=0).cpu().numpy()


def _means(
    private: Attributed, samples: Sequence[np.ndarray], rows: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The averages over the lists of all induced subgraphs as one block matrix; its transpose."""
    from scipy.sparse import csr_array

    place = np.full(len(private.indptr) - 1, -1, np.int64)
    heads, tails = [], []
    for number, sample in enumerate(samples):
        place[sample] = np.arange(len(sample)) + number * rows
        lengths = private.indptr[sample + 1] - private.indptr[sample]
        starts = np.repeat(private.indptr[sample] - np.cumsum(lengths) + lengths, lengths)
        reached = place[private.indices[starts + np.arange(len(starts))]]
        inside = reached >= 0
        heads.append(np.repeat(place[sample], lengths)[inside])
        tails.append(reached[inside])
        place[sample] = -1
    head, tail, size = np.concatenate(heads), np.concatenate(tails), rows * len(samples)
    share = 1.0 / np.maximum(np.bincount(head, minlength=size), 1)
    block = csr_array((share[head].astype(np.float32), (head, tail)), shape=(size, size))
    return _sparse(block, device), _sparse(csr_array(block.T), device)


def _sparse(matrix: Any, device: torch.device) -> Tensor:
    crow, col = (torch.from_numpy(x.astype(np.int32)) for x in (matrix.indptr, matrix.indices))
    values = torch.from_numpy(matrix.data)
    with warnings.catch_warnings():
        # torch calls compressed rows a beta feature; the product that is used here is tested.
        warnings.filterwarnings("ignore", message=".*[Ss]parse")
        made = torch.sparse_csr_tensor(crow, col, values, matrix.shape, check_invariants=False)
    return made.to(device)
