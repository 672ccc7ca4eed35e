"""Clipped sums of per-record gradients, without ever holding a per-record gradient.

A linear layer's weight gradient for one record is ``sum_t g_t a_t^T``: ``a_t`` its inputs, ``g_t``
the loss's derivative by its outputs, ``t`` over positions and over every use of the weight. Its
squared norm is ``sum_{t,s} <a_t, a_s> <g_t, g_s>`` and the sum of clipped gradients one matrix
product, so one forward and one backward pass to the layers' outputs suffice. See proofs/dpsgd.md.
"""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacit.errors import TrainingError
from tacit.learn.train import Inputs, check_data

# A record whose positions cancel by more than this factor is dropped: see proofs/dpsgd.md, 3.
CANCELLATION = 64.0
# Values per part of a layer's input converted to float64 at once: 1 MiB.
CACHED = 2**17


@dataclass(frozen=True)
class Counts:
    """What became of a batch's records. Private."""

    records: int = 0
    clipped: int = 0
    dropped: int = 0


@dataclass(frozen=True)
class _Use:
    """One call of one linear layer: its input, its output, and their versions at the time."""

    layer: nn.Linear
    given: Tensor
    out: Tensor
    versions: tuple[int, int]


@dataclass(frozen=True)
class _Group:
    """All uses of one set of tied parameters, side by side: a [B, t, in], g [B, t, out]."""

    weight: Tensor | None
    bias: Tensor | None
    given: Tensor
    grads: Tensor


class ClippedSum:
    """Adds up clipped per-record gradients of a checked network into one flat float64 vector.

    Formal guarantees:
        Each record adds a vector of L2 norm at most ``clip`` that depends on that record and the
        weights alone; a record whose gradient is not finite adds the zero vector.
        See proofs/dpsgd.md, sections 1 to 3, for what this assumes.

    Args:
        model: The network. Its trainable parameters must all belong to ``nn.Linear`` layers.
        inputs: The data, looked at for shapes and types only.
        targets: As ``inputs``.

    Raises:
        TrainingError: The network cannot be trained with per-record guarantees.
    """

    def __init__(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> None:
        check_data(inputs, targets)
        self.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._trainable = {id(p) for p in self.parameters}
        _check_modules(model, self._trainable)
        self._layers = _layers(model, self._trainable)
        self._owned = {id(layer): [id(p) for p in layer.parameters()] for layer in self._layers}
        self.classes = _probe(model, self._layers, self._trainable, inputs)
        # Squared row norms of whole inputs, and of the rows gathered last by address and version.
        self._lengths: dict[int, tuple[Tensor, Tensor]] = {}
        self._squares: dict[int, tuple[int, torch.Size, Tensor]] = {}
        self._room: dict[tuple[int, torch.dtype], Tensor] = {}
        size = sum(p.numel() for p in self.parameters)
        self.total = torch.zeros(size, dtype=torch.float64)
        self._slots: dict[int, Tensor] = {}
        offset = 0
        for p in self.parameters:
            self._slots[id(p)] = self.total[offset : offset + p.numel()].view(p.shape)
            offset += p.numel()

    def gather(self, inputs: Inputs, rows: Tensor) -> Inputs:
        """These rows of every input, in memory that the next call uses again."""
        batch, self._squares = [], {}
        for k, x in enumerate(inputs):
            part = self._space(-1 - k, (len(rows), *x.shape[1:]), x.dtype)
            torch.index_select(x, 0, rows, out=part)
            batch.append(part)
            if x.ndim == 2 and x.is_floating_point():
                if k not in self._lengths or self._lengths[k][0] is not x:
                    self._lengths[k] = (x, torch.cat([_square(part) for part in x.split(1024)]))
                square = self._lengths[k][1].index_select(0, rows)
                self._squares[part.data_ptr()] = (part._version, part.shape, square)
        return tuple(batch)

    def _space(self, key: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory kept between steps: fresh pages for every step cost more than the arithmetic."""
        size = math.prod(shape)
        room = self._room.get((key, dtype))
        if room is None or room.numel() < size:
            room = self._room[key, dtype] = torch.empty(size + size // 4, dtype=dtype)
        return room[:size].view(shape)

    def _double(self, key: int, x: Tensor) -> Tensor:
        return self._space(key, tuple(x.shape), torch.float64).copy_(x)

    def add(self, inputs: Inputs, targets: Tensor, clip: float) -> Counts:
        """Add the clipped gradients of these records to ``total``.

        Args:
            inputs: Rows of every input.
            targets: Class indices or soft targets of the same rows.
            clip: Largest norm of one record's contribution; infinity clips nothing.

        Returns:
            How many records there were, were clipped, and were dropped as not finite.
        """
        records = targets.shape[0]
        with record(self._layers) as uses, torch.enable_grad():
            logits = self.model(*inputs)
            for use in uses:
                _check_use(use, records)
            slope = _loss_slope(logits.detach(), targets)
            # A scalar whose derivative by the logits is exactly `slope`, even where it is NaN.
            scalar = (logits * slope).sum()
        grads = torch.autograd.grad(scalar, [use.out for use in uses], allow_unused=True)
        with torch.no_grad():
            return self._collect(uses, grads, records, clip)

    def _collect(
        self, uses: list[_Use], grads: tuple[Tensor | None, ...], records: int, clip: float
    ) -> Counts:
        simple, rest = self._sort(uses, grads)
        squares = torch.zeros(records, dtype=torch.float64)
        spread: Tensor | None = None
        widths = [grad.shape[1] for _, grad in simple]
        wide = self._space(0, (records, sum(widths)), torch.float64)
        columns = wide.split(widths, dim=1)
        for (use, grad), column in zip(simple, columns, strict=True):
            square = self._input_square(use)
            squares.addcmul_(
                _square(column.copy_(grad)), square + 1 if use.layer.bias is not None else square
            )
        groups = self._group(rest)
        for group in groups:
            more, loose = _squared_norm(group)
            squares += more
            if loose is not None:
                spread = loose if spread is None else spread + loose
        norms = squares.sqrt_()
        factors = clip / norms
        fine = torch.isfinite(norms)
        if spread is not None:
            fine &= factors.clamp(max=1.0) * spread <= CANCELLATION * clip
        clipped = records - int(torch.count_nonzero(factors >= 1))
        dropped = records - int(torch.count_nonzero(fine))
        factors.clamp_(max=1.0)
        # Rows are left out, not multiplied by zero: 0 * NaN is NaN.
        kept = fine.nonzero().squeeze(1) if dropped else None
        self._add_simple(simple, wide, widths, factors, kept)
        for group in groups:
            self._add_group(group, factors, kept)
        return Counts(records, clipped, dropped)

    def _sort(
        self, uses: list[_Use], grads: tuple[Tensor | None, ...]
    ) -> tuple[list[tuple[_Use, Tensor]], list[tuple[_Use, Tensor]]]:
        """Layers used once, on plain rows, with all parameters their own and trainable; the rest.

        Calls that do not reach the output have no gradient and are left out.
        """
        live = [(u, g) for u, g in zip(uses, grads, strict=True) if g is not None]
        owned = [self._owned[id(use.layer)] for use, _ in live]
        times = Counter(p for ids in owned for p in ids)
        simple: list[tuple[_Use, Tensor]] = []
        rest: list[tuple[_Use, Tensor]] = []
        for (use, grad), ids in zip(live, owned, strict=True):
            own = all(times[p] == 1 and p in self._slots for p in ids)
            (simple if own and use.given.ndim == 2 else rest).append((use, grad))
        return simple, rest

    def _input_square(self, use: _Use) -> Tensor:
        """Squared norms of the layer's input rows: known already if they are rows of the data."""
        version, shape, square = self._squares.get(use.given.data_ptr(), (-1, None, None))
        if square is not None and version == use.given._version and shape == use.given.shape:
            return square
        return _square(use.given)

    def _add_simple(
        self,
        simple: list[tuple[_Use, Tensor]],
        wide: Tensor,
        widths: list[int],
        factors: Tensor,
        kept: Tensor | None,
    ) -> None:
        wide.mul_(factors.unsqueeze(1))
        if kept is not None:
            wide = wide.index_select(0, kept)
        columns, sums = wide.split(widths, dim=1), wide.sum(dim=0).split(widths)
        for (use, _), column, total in zip(simple, columns, sums, strict=True):
            given = use.given if kept is None else use.given.index_select(0, kept)
            slot = self._slots[id(use.layer.weight)]
            # Parts that stay in the processor's cache between conversion and product.
            step = max(64, CACHED // given.shape[1])
            for start in range(0, len(wide), step):
                part = self._double(1, given[start : start + step])
                slot.addmm_(column[start : start + step].t(), part)
            if use.layer.bias is not None:
                self._slots[id(use.layer.bias)].add_(total)

    def _group(self, live: list[tuple[_Use, Tensor]]) -> list[_Group]:
        """Uses by tied parameters, in float64, frozen parameters left out."""
        by_weight: dict[int, list[tuple[_Use, Tensor]]] = {}
        by_bias: dict[int, list[tuple[_Use, Tensor]]] = {}
        for use, grad in live:
            if id(use.layer.weight) in self._slots:
                by_weight.setdefault(id(use.layer.weight), []).append((use, grad))
            if use.layer.bias is not None and id(use.layer.bias) in self._slots:
                by_bias.setdefault(id(use.layer.bias), []).append((use, grad))
        groups: list[_Group] = []
        for members in by_weight.values():
            layer = members[0][0].layer
            # A bias used exactly where its weight is shares the group's tensors.
            tied = by_bias.get(id(layer.bias), [])
            together = [id(u) for u, _ in tied] == [id(u) for u, _ in members]
            if together:
                del by_bias[id(layer.bias)]
            bias = layer.bias if together else None
            groups.append(_Group(layer.weight, bias, *_stack(members)))
        for members in by_bias.values():
            groups.append(_Group(None, members[0][0].layer.bias, *_stack(members)))
        return groups

    def _add_group(self, group: _Group, factors: Tensor, kept: Tensor | None) -> None:
        given, grads = group.given, group.grads
        if kept is not None:  # Not a multiplication by zero: 0 * NaN is NaN.
            given, grads = given.index_select(0, kept), grads.index_select(0, kept)
            factors = factors.index_select(0, kept)
        scaled = grads * factors.view(-1, *[1] * (grads.ndim - 1))
        if scaled.ndim == 3:
            scaled, given = scaled.flatten(0, 1), given.flatten(0, 1)
        if group.weight is not None:
            self._slots[id(group.weight)].addmm_(scaled.t(), given)
        if group.bias is not None:
            self._slots[id(group.bias)].add_(scaled.sum(dim=0))


@contextmanager
def record(layers: list[nn.Linear]) -> Iterator[list[_Use]]:
    """Note input and output of every call of these layers."""
    uses: list[_Use] = []

    def note(layer: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        if not isinstance(layer, nn.Linear) or len(args) != 1:
            raise TrainingError(
                "a linear layer was called with its input as a keyword",
                why="its input cannot be recorded",
                remedy="call it as layer(x)",
            )
        if not out.requires_grad:
            out.requires_grad_()
        given = args[0].detach()
        uses.append(_Use(layer, given, out, (given._version, out._version)))

    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield uses
    finally:
        for handle in handles:
            handle.remove()


def _layers(model: nn.Module, trainable: set[int]) -> list[nn.Linear]:
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear) and any(id(p) in trainable for p in module.parameters())
    ]


def _check_use(use: _Use, records: int) -> None:
    if (use.given._version, use.out._version) != use.versions:
        raise TrainingError(
            "a linear layer's input or output was changed in place",
            why="its per-record gradient would be computed from the wrong values",
            remedy="use the out-of-place form (inplace=False)",
        )
    if use.given.ndim < 2 or use.given.shape[0] != records:
        raise TrainingError(
            f"a linear layer was given shape {tuple(use.given.shape)} in a batch of {records}",
            why="the first dimension must count records, or a record's gradient cannot be told",
            remedy="keep the batch dimension first",
        )


def _stack(members: list[tuple[_Use, Tensor]]) -> tuple[Tensor, Tensor]:
    if len(members) == 1 and members[0][0].given.ndim == 2:
        return members[0][0].given.double(), members[0][1].double()
    records = members[0][0].given.shape[0]
    given = [use.given.reshape(records, -1, use.given.shape[-1]) for use, _ in members]
    grads = [grad.reshape(records, -1, grad.shape[-1]) for _, grad in members]
    if len({x.shape[-1] for x in given}) > 1:  # Only a bias can be shared by unlike layers.
        given = [x[..., :0] for x in given]
    return torch.cat(given, dim=1).double(), torch.cat(grads, dim=1).double()


def _loss_slope(logits: Tensor, targets: Tensor) -> Tensor:
    """Derivative of each record's cross entropy by its logits: softmax minus target."""
    slope = (logits - logits.amax(dim=1, keepdim=True)).exp_()
    slope.div_(slope.sum(dim=1, keepdim=True))
    if targets.ndim == 1:
        column = targets.unsqueeze(1)
        return slope.scatter_add_(1, column, slope.new_full((1, 1), -1.0).expand_as(column))
    mass = targets.to(slope.dtype)
    return slope * mass.sum(dim=1, keepdim=True) - mass


def _squared_norm(group: _Group) -> tuple[Tensor, Tensor | None]:
    """Squared norm per record; with several positions also ``sum_t |a_t| |g_t|``."""
    given, grads = group.given, group.grads
    if given.ndim == 2:
        square = _square(given) if group.weight is not None else torch.zeros(())
        return _square(grads) * (square + (group.bias is not None)), None
    square = torch.zeros(given.shape[0], dtype=torch.float64)
    loose = torch.zeros(given.shape[0], dtype=torch.float64)
    lengths = torch.linalg.vector_norm(grads, dim=2)
    if group.weight is not None:
        inner = (given @ given.mT).mul_(grads @ grads.mT)
        square += inner.sum(dim=(1, 2)).clamp_(min=0)
        loose += (torch.linalg.vector_norm(given, dim=2) * lengths).sum(dim=1)
    if group.bias is not None:
        square += _square(grads.sum(dim=1))
        loose += lengths.sum(dim=1)
    return square, loose


def _square(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square_()


def _check_modules(model: nn.Module, trainable: set[int]) -> None:
    """Refuse every trainable parameter that is not a plain linear layer's, and batch statistics."""
    remedy = "use nn.Linear layers with parameter-free activations, or freeze this part"
    if not trainable:
        raise TrainingError("the model has no trainable parameter", remedy="unfreeze some")
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.modules.batchnorm._NormBase):
            raise TrainingError(
                f"{name or 'the model'} is a {kind}",
                why="batch statistics mix records, so no record's influence is bounded",
                remedy="build the network with batch_norm=False",
            )
        owned = dict(module.named_parameters(recurse=False))
        owned = {key: p for key, p in owned.items() if id(p) in trainable}
        plain = type(module) is nn.Linear and set(owned) <= {"weight", "bias"}
        if owned and not plain:
            raise TrainingError(
                f"parameter {name + '.' if name else ''}{min(owned)} belongs to a {kind}",
                why="per-record gradient norms are known in closed form for nn.Linear only",
                remedy=remedy,
            )
        if owned and (module._forward_hooks or module._forward_pre_hooks):
            raise TrainingError(
                f"{name or 'the model'} carries forward hooks",
                why="they may change what the layer computes unseen",
                remedy="remove them for private training",
            )
        for key, p in owned.items():
            if p.device.type != "cpu" or p.dtype not in (torch.float32, torch.float64):
                raise TrainingError(
                    f"parameter {name + '.' if name else ''}{key} is {p.dtype} on {p.device}",
                    why="the bound on rounding is proved for float32 on the CPU",
                    remedy="move the model with .float().cpu()",
                )


def _probe(model: nn.Module, layers: list[nn.Linear], trainable: set[int], inputs: Inputs) -> int:
    """Check on random rows that rows do not mix and weights are used through layers only.

    Returns:
        Number of outputs.
    """
    rows = 3
    generator = torch.Generator().manual_seed(0)
    trial = []
    for x in inputs:
        shape = (rows, *x.shape[1:])
        if x.is_floating_point():
            fake = torch.randn(shape, generator=generator, dtype=x.dtype)
            trial.append(fake.requires_grad_())
        else:
            trial.append(torch.zeros(shape, dtype=x.dtype))
    with record(layers) as uses, torch.enable_grad():
        logits = model(*trial)
    for use in uses:
        _check_use(use, rows)
    if logits.ndim != 2 or logits.shape[0] != rows or not uses:
        raise TrainingError(
            f"the network's output has shape {tuple(logits.shape)} for {rows} rows",
            remedy="return one row of class scores per row of input, through linear layers",
        )
    watched = [x for x in trial if x.requires_grad] + [use.out for use in uses]
    for row in range(rows):
        grads = torch.autograd.grad(
            logits[row].sum(), watched, allow_unused=True, retain_graph=True
        )
        for grad in grads:
            others = [] if grad is None else [grad[:row], grad[row + 1 :]]
            if any(bool((other != 0).any()) for other in others):
                raise TrainingError(
                    "the network mixes rows: one record's output depends on another record",
                    why="then no record's influence on the gradient is bounded",
                    remedy="take out whatever reads across the batch",
                )
    _check_reach(logits, uses, trainable)
    return logits.shape[1]


def _check_reach(logits: Tensor, uses: list[_Use], trainable: set[int]) -> None:
    """Every path from the output to a trainable parameter passes a recorded layer's output."""
    recorded = {use.out.grad_fn for use in uses}
    stack = [logits.grad_fn]
    seen = set()
    while stack:
        node = stack.pop()
        if node is None or node in recorded or node in seen:
            continue
        seen.add(node)
        if id(getattr(node, "variable", None)) in trainable:
            raise TrainingError(
                "a linear layer's weight is also used directly, outside the layer",
                why="that part of the gradient would go unclipped",
                remedy="use the weight by calling its layer",
            )
        stack.extend(following for following, _ in node.next_functions)
