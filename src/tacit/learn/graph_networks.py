"""Graph networks as plain torch modules: GCN, GraphSAGE and GAT over a fixed set of links.

Every network has ``forward(x, adj)``, with rows of features and :class:`Links`; any
:class:`torch.nn.Module` with that signature takes the same place. Links are index tensors alone:
this module knows neither where they come from nor what they cost.

References: Kipf and Welling, ICLR 2017; Hamilton, Ying, Leskovec, NeurIPS 2017; Velickovic et al.,
ICLR 2018. Weights are laid out so that PyTorch Geometric's layers compute the same numbers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tacit.errors import TrainingError
from tacit.learn.networks import local_seed
from tacit.learn.train import History, TrainConfig, keep_modes, train

Kind = Literal["gcn", "sage", "gat"]
KINDS: tuple[Kind, ...] = ("gcn", "sage", "gat")
_SPARSE = 0.5  # share of non-zero features below which a sparse product trains faster
_SLOPE = 0.2
_PART = 1 << 16  # links whose rows are gathered at once


@dataclass(frozen=True, eq=False)
class Sparse:
    """A constant sparse matrix, beside its transpose so that gradients pass as fast as values.

    Attributes:
        forth: The matrix, in compressed rows.
        back: Its transpose, in compressed rows.
        order: Which value of ``forth`` each value of ``back`` is; None where the two are one.
    """

    forth: Tensor
    back: Tensor
    order: Tensor | None = None

    @classmethod
    def of(cls, indptr: Tensor, indices: Tensor, values: Tensor, columns: int) -> Sparse:
        """The matrix of these compressed rows."""
        rows = len(indptr) - 1
        flipped, sources, order = _transposed(indptr, indices, columns)
        return cls(
            _csr(indptr, indices, values, (rows, columns)),
            _csr(flipped, sources, values[order], (columns, rows)),
            order,
        )

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return self.forth.shape

    def __matmul__(self, dense: Tensor) -> Tensor:
        if dense.dtype != self.forth.dtype:
            return self.with_values(self.forth.values().to(dense.dtype)) @ dense
        product: Tensor = _Product.apply(dense, self)  # type: ignore[no-untyped-call]
        return product

    def with_values(self, values: Tensor) -> Sparse:
        """The same places with other values (symmetric ones, where the matrix is)."""
        forth = _alike(self.forth, values)
        if self.order is None:
            return Sparse(forth, forth)
        return Sparse(forth, _alike(self.back, values[self.order]), self.order)


Rows = Tensor | Sparse
"""Feature rows: dense, or sparse where that is faster."""


class _Product(torch.autograd.Function):
    """``matrix @ dense``; the gradient of the dense factor is the transpose's product."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: Sparse) -> Tensor:
        ctx.matrix = matrix
        return matrix.forth @ dense

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.matrix.back @ grads[0], None


@dataclass(frozen=True, eq=False)
class Links:
    """Who hears whom: compressed rows, row v holding the nodes whose messages reach v.

    Attributes:
        indptr: Row pointers, ``nodes + 1`` long.
        indices: Sources of the messages, without self-loops.
        symmetric: Whether every message has one the other way; saves memory, changes no result.
    """

    indptr: Tensor
    indices: Tensor
    symmetric: bool = False

    def __post_init__(self) -> None:
        if self.indptr.ndim != 1 or self.indices.ndim != 1 or len(self.indptr) < 2:
            raise TrainingError(
                "links are two one-dimensional tensors, row pointers and sources",
                remedy="give Links.of(*graph.in_lists)",
            )
        # Compiled products read wherever these point to: nothing else stops a torn file.
        spans = self.indptr[0] == 0 and self.indptr[-1] == len(self.indices)
        if not spans or bool((self.indptr.diff() < 0).any()):
            raise TrainingError("the row pointers do not span the links")
        if len(self.indices) and not 0 <= int(self.indices.min()) <= int(self.indices.max()) < (
            self.nodes
        ):
            raise TrainingError("a link comes from a node that does not exist")

    @classmethod
    def of(cls, indptr: Any, indices: Any, *, symmetric: bool = False) -> Links:
        """Links of two integer arrays, such as ``Links.of(*graph.in_lists)``."""
        kind = torch.int32 if len(indices) + len(indptr) < 2**31 else torch.int64
        return cls(torch.tensor(indptr).to(kind), torch.tensor(indices).to(kind), symmetric)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    @cached_property
    def in_degrees(self) -> Tensor:
        """How many nodes each node hears."""
        return self.indptr.diff()

    @cached_property
    def mean(self) -> Sparse:
        """``D^-1 A``: the mean over heard nodes, zero where there are none (GraphSAGE)."""
        weights = 1 / self.in_degrees.clamp(min=1).float()
        return Sparse.of(
            self.indptr, self.indices, weights.repeat_interleave(self.in_degrees), self.nodes
        )

    @cached_property
    def normalised(self) -> Sparse:
        """``D^-1/2 (A + I) D^-1/2`` with D the degrees of ``A + I`` (GCN)."""
        full = self.with_self
        root = full.in_degrees.float().rsqrt()
        values = root.repeat_interleave(full.in_degrees) * root[full.indices]
        if self.symmetric:
            matrix = _csr(full.indptr, full.indices, values, (self.nodes, self.nodes))
            return Sparse(matrix, matrix)
        return Sparse.of(full.indptr, full.indices, values, self.nodes)

    @cached_property
    def with_self(self) -> Links:
        """The links with every node hearing itself, too."""
        steps = torch.arange(self.nodes + 1, dtype=self.indptr.dtype)
        indptr = self.indptr + steps
        sources = torch.empty(len(self.indices) + self.nodes, dtype=self.indices.dtype)
        # Oneself comes first in every row, and moves all links behind it on by one more place.
        sources[indptr[:-1].long()] = steps[:-1].to(sources.dtype)
        places = torch.arange(len(self.indices)) + self.targets + 1
        sources[places] = self.indices
        return Links(indptr, sources, self.symmetric)

    @cached_property
    def transposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row pointers and targets of the links by their sources, and the order that sorts them."""
        return _transposed(self.indptr, self.indices, self.nodes)

    @cached_property
    def targets(self) -> Tensor:
        """The hearing node of every link."""
        return _row_numbers(self.indptr)


class _Attended(torch.autograd.Function):
    """``out_v = sum over u of weight_uv row_u`` for each head, weights learnt.

    Rows of links are never gathered all at once: the gradient by the weights is taken in parts.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, rows: Tensor, links: Links) -> Tensor:
        ctx.save_for_backward(weights, rows)
        ctx.links = links
        shape = (links.nodes, links.nodes)
        heads = zip(weights.unbind(1), rows.unbind(1), strict=True)
        out = [_csr(links.indptr, links.indices, w, shape) @ x.contiguous() for w, x in heads]
        return torch.stack(out, dim=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        weights, rows = ctx.saved_tensors
        links, grad = ctx.links, grads[0]
        indptr, targets, order = links.transposed
        shape = (links.nodes, links.nodes)
        flipped = weights[order].unbind(1)
        by_rows = [
            _csr(indptr, targets, w, shape) @ g.contiguous()
            for w, g in zip(flipped, grad.unbind(1), strict=True)
        ]
        parts = zip(links.targets.split(_PART), links.indices.split(_PART), strict=True)
        by_weights = [(grad[v.long()] * rows[u.long()]).sum(-1) for v, u in parts]
        return torch.cat(by_weights), torch.stack(by_rows, dim=1), None


class GcnLayer(nn.Module):
    """``D^-1/2 (A + I) D^-1/2 X W + b``."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = _glorot(out_features, in_features)
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x: Rows, adj: Links) -> Tensor:
        """One output row per node."""
        return adj.normalised @ (x @ self.weight.t()) + self.bias


class SageLayer(nn.Module):
    """``mean of neighbours W_n + X W_s + b``: GraphSAGE with the mean aggregator."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.neighbours = _glorot(out_features, in_features)
        self.own = _glorot(out_features, in_features)
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x: Rows, adj: Links) -> Tensor:
        """One output row per node."""
        return adj.mean @ (x @ self.neighbours.t()) + x @ self.own.t() + self.bias


class GatLayer(nn.Module):
    """Attention over heard nodes and oneself; the heads' outputs stand side by side.

    A node hears ``sum over u of softmax_u(LeakyReLU(s . Wx_u + t . Wx_v)) Wx_u``.
    """

    def __init__(
        self, in_features: int, out_features: int, heads: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if out_features % heads:
            raise TrainingError(
                f"{heads} heads cannot share {out_features} outputs",
                remedy="let the width be a multiple of the number of heads",
            )
        self.heads, self.dropout = heads, dropout
        self.weight = _glorot(out_features, in_features)
        self.source = _glorot(heads, out_features // heads)
        self.target = _glorot(heads, out_features // heads)
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x: Rows, adj: Links) -> Tensor:
        """One output row per node."""
        full = adj.with_self
        sources, targets = full.indices.long(), full.targets.long()
        hidden = (x @ self.weight.t()).view(adj.nodes, self.heads, -1)
        heard = (hidden * self.source).sum(-1)[sources] + (hidden * self.target).sum(-1)[targets]
        scores = nn.functional.leaky_relu(heard, _SLOPE)
        # Every node hears itself, so no softmax is empty; its highest score is taken off first.
        tops = torch.full((adj.nodes, self.heads), -math.inf, dtype=scores.dtype)
        index = targets[:, None].expand(-1, self.heads)
        tops = tops.scatter_reduce(0, index, scores.detach(), "amax")
        weights = (scores - tops[targets]).exp()
        totals = torch.zeros_like(tops).index_add(0, targets, weights)
        weights = nn.functional.dropout(weights / totals[targets], self.dropout, self.training)
        out: Tensor = _Attended.apply(weights, hidden, full)  # type: ignore[no-untyped-call]
        return out.flatten(1) + self.bias


class GraphNetwork(nn.Module):
    """Layers of one kind with ReLU between them, and dropout before each.

    With k layers a node's output depends on the nodes within k links of it, and on no other.

    Args:
        kind: ``gcn``, ``sage`` or ``gat``.
        in_features: Width of the feature rows.
        hidden: Width between layers.
        classes: Width of the output.
        layers: Number of layers, at least one.
        dropout: Probability of zeroing an input of a layer in training.
        heads: Attention heads of GAT's hidden layers; its last layer has one.
        seed: Of the initial weights.
    """

    def __init__(
        self,
        kind: Kind,
        in_features: int,
        hidden: int,
        classes: int,
        layers: int = 2,
        *,
        dropout: float = 0.5,
        heads: int = 8,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise TrainingError(f"unknown backbone {kind!r}", remedy=f"use {', '.join(KINDS)}")
        if min(in_features, hidden, classes, layers, heads) < 1:
            raise TrainingError(
                f"a network of widths {in_features}, {hidden}, {classes}, {layers} layers and "
                f"{heads} heads",
                why="there is nothing to train",
                remedy="give at least 1 for each",
            )
        if not 0 <= dropout < 1:
            raise TrainingError(f"dropout is {dropout}", remedy="give a probability in [0, 1)")
        self.kind, self.dropout = kind, dropout
        widths = [in_features, *[hidden] * (layers - 1), classes]

        def layer(index: int) -> nn.Module:
            width, out = widths[index], widths[index + 1]
            if kind == "gcn":
                return GcnLayer(width, out)
            if kind == "sage":
                return SageLayer(width, out)
            return GatLayer(width, out, heads if index < layers - 1 else 1, dropout)

        with local_seed(seed):
            self.layers = nn.ModuleList(layer(index) for index in range(layers))

    def forward(self, x: Rows, adj: Links) -> Tensor:
        """Class scores of every node."""
        for index, layer in enumerate(self.layers):
            if index:
                x = torch.relu(x) if isinstance(x, Tensor) else x
            x = layer(self._dropped(x), adj)
        if not isinstance(x, Tensor):
            raise TrainingError("a graph network without layers answers nothing")
        return x

    def _dropped(self, x: Rows) -> Rows:
        if isinstance(x, Tensor):
            return nn.functional.dropout(x, self.dropout, self.training)
        if not self.training or not self.dropout:
            return x
        return x.with_values(nn.functional.dropout(x.forth.values(), self.dropout))


def pack(features: Any) -> Rows:
    """Feature rows in the form that multiplies faster: sparse where nearly all are zero."""
    dense = torch.tensor(features)
    if dense.numel() == 0 or int(torch.count_nonzero(dense)) > _SPARSE * dense.numel():
        return dense
    places, columns = dense.nonzero(as_tuple=True)
    indptr = torch.zeros(len(dense) + 1, dtype=torch.int32)
    indptr[1:] = torch.cumsum(torch.bincount(places, minlength=len(dense)), 0)
    return Sparse.of(indptr, columns.to(torch.int32), dense[places, columns], dense.shape[1])


def train_on_links(
    model: nn.Module,
    x: Rows,
    adj: Links,
    rows: Tensor,
    targets: Tensor,
    config: TrainConfig,
    *,
    seed: int,
    val: tuple[Tensor, Tensor] | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
) -> History:
    """Minimise the mean cross entropy of some rows of ``model(x, adj)``, in place.

    Every step passes the whole graph; see :func:`tacit.learn.train.train` for the rest.

    Args:
        model: Any module with ``forward(x, adj)``.
        x: Feature rows of all nodes.
        adj: The links.
        rows: Indices of the training nodes.
        targets: Their classes.
        config: Settings; full batches only.
        seed: Of dropout.
        val: Indices of validation nodes, and their classes.
        on_epoch: Called with the epoch's index and mean loss.

    Returns:
        The history. Private, like the weights, to whomever the links are private.
    """
    if config.batch_size is not None:
        raise TrainingError(
            "a graph network is trained on the whole graph at once",
            why="a batch of nodes needs the rows of all their neighbours anyway",
            remedy="leave batch_size out",
        )
    watched = None if val is None else ((val[0],), val[1])
    return train(
        _OnLinks(model, x, adj),
        (rows,),
        targets,
        config,
        seed=seed,
        val=watched,
        on_epoch=on_epoch,
    )


def predict_on_links(model: nn.Module, x: Rows, adj: Links) -> Tensor:
    """Class scores of every node, in evaluation mode."""
    with keep_modes(model), torch.no_grad():
        model.eval()
        scores: Tensor = model(x, adj)
        return scores


class _OnLinks(nn.Module):
    """A network bound to its graph: maps node indices to their scores."""

    def __init__(self, model: nn.Module, x: Rows, adj: Links) -> None:
        super().__init__()
        self.model, self._graph = model, (x, adj)

    def forward(self, rows: Tensor) -> Tensor:
        return self.model(*self._graph)[rows]


def _transposed(indptr: Tensor, indices: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    order = torch.argsort(indices, stable=True)
    flipped = torch.zeros(columns + 1, dtype=indptr.dtype)
    flipped[1:] = torch.cumsum(torch.bincount(indices, minlength=columns), 0)
    return flipped, _row_numbers(indptr)[order], order


def _row_numbers(indptr: Tensor) -> Tensor:
    numbers = torch.arange(len(indptr) - 1, dtype=indptr.dtype)
    return numbers.repeat_interleave(indptr.diff())


def _csr(indptr: Tensor, indices: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():
        # torch calls compressed rows a beta feature; the product that is used here is tested.
        warnings.filterwarnings("ignore", message=".*[Ss]parse")
        return torch.sparse_csr_tensor(indptr, indices, values, shape, check_invariants=False)


def _alike(matrix: Tensor, values: Tensor) -> Tensor:
    rows, columns = matrix.shape
    return _csr(matrix.crow_indices(), matrix.col_indices(), values, (rows, columns))


def _glorot(out_features: int, in_features: int) -> nn.Parameter:
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(out_features, in_features)))
