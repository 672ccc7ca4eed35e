"""What one changed feature row does to a graph network, without a forward pass for each row.

A layer of GCN or GraphSAGE is linear in its messages: ``z = sum_k S_k h W_k + b``, then ReLU. So a
change of one row spreads along links and nowhere else, and after k layers it has reached nodes
within k links (Theorem 1 of LinkTeller, Wu, Long, Zhang, Li, IEEE S&P 2022). One forward pass keeps
every layer's ``z``; each changed row is then followed through the sparse matrices, only over nodes
that it reaches and that the answers of interest depend on. Nothing is linearised: ReLU and softmax
are applied to the changed values, so the answers are those of a full forward pass, up to the
rounding of 64-bit floats, and exactly unchanged where no path leads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn

    from tacit.learn.graph_networks import Links

Floats = NDArray[np.float64]
_SPARSE = 0.1


@dataclass(frozen=True)
class Layer:
    """``z = sum_k S_k h W_k + b`` over pairs of a sparse S (row v: what v hears) and a dense W."""

    terms: tuple[tuple[Any, Floats], ...]
    bias: Floats


@dataclass(frozen=True)
class _Term:
    """One pair of a layer, its sparse matrix cut to the rows that matter, by columns."""

    starts: NDArray[np.int64]
    targets: NDArray[np.int64]
    values: Floats
    weight: Floats


@dataclass(frozen=True)
class _Stage:
    """One layer cut to the rows ``needed`` that later layers read, and its ``z`` there."""

    terms: tuple[_Term, ...]
    needed: NDArray[np.int64]
    z: Floats


def layers_of(network: nn.Module, links: Links) -> tuple[Layer, ...] | None:
    """The layers of a GCN or GraphSAGE in 64-bit floats; None for networks of another kind.

    Attention (GAT) weighs messages by what they carry, so its layers are not of this form.
    """
    from scipy.sparse import eye_array

    from tacit.learn.graph_networks import GcnLayer, GraphNetwork, SageLayer

    if not isinstance(network, GraphNetwork):
        return None
    made = []
    for layer in network.layers:
        if isinstance(layer, GcnLayer):
            terms: tuple[Any, ...] = ((_matrix(links.normalised.forth), _array(layer.weight).T),)
        elif isinstance(layer, SageLayer):
            terms = (
                (_matrix(links.mean.forth), _array(layer.neighbours).T),
                (eye_array(links.nodes, format="csr"), _array(layer.own).T),
            )
        else:
            return None
        made.append(Layer(terms, _array(layer.bias)))
    return tuple(made)


class Propagation:
    """A network on a graph whose every answer of interest is known, waiting for changed rows.

    Args:
        layers: From the features to the class scores.
        features: All feature rows.
        nodes: Whose answers are of interest.
        scale: What features are divided by before the first layer.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        features: np.ndarray,
        nodes: NDArray[np.int64],
        scale: float = 1.0,
    ) -> None:
        self._features = features
        first = tuple((matrix, weight / scale) for matrix, weight in layers[0].terms)
        layers = [Layer(first, layers[0].bias), *layers[1:]]
        needs = [np.asarray(nodes, np.int64)]
        for layer in reversed(layers[1:]):
            heard = [np.unique(matrix[needs[0]].indices) for matrix, _ in layer.terms]
            needs.insert(0, np.unique(np.concatenate(heard)).astype(np.int64))
        self._stages = []
        h: Any = _packed(features)
        for index, (layer, needed) in enumerate(zip(layers, needs, strict=True)):
            z = sum(matrix @ (h @ weight) for matrix, weight in layer.terms) + layer.bias
            terms = tuple(_cut(matrix, needed, weight) for matrix, weight in layer.terms)
            self._stages.append(_Stage(terms, needed, z[needed]))
            if index < len(layers) - 1:
                h = np.maximum(z, 0)
        self._place = np.full(len(features), -1, np.int64)
        widest = max(len(layer.bias) for layer in layers)
        self._touched = np.empty(len(features), np.int64)
        self._sums = np.empty(len(features) * widest)
        self.posteriors = _softmax(self._stages[-1].z)

    def changes(
        self, sources: NDArray[np.int64], rows: np.ndarray
    ) -> Iterator[tuple[NDArray[np.int64], Floats]]:
        """For each source with its new row: which answers change, and by how much.

        Args:
            sources: Nodes whose row changes, one at a time.
            rows: The new row of each.

        Yields:
            Positions among the nodes of interest, and their change of posteriors.
        """
        for source, row in zip(sources, rows, strict=True):
            places = np.array([source], np.int64)
            moved = (row.astype(float) - self._features[source])[None]
            touched = places
            some = np.flatnonzero(moved[0])
            for index, stage in enumerate(self._stages):
                if index == 0 and 4 * len(some) < moved.shape[1]:
                    messages = [moved[:, some] @ term.weight[some] for term in stage.terms]
                else:
                    messages = [moved @ term.weight for term in stage.terms]
                touched, sums = self._spread(stage, places, messages)
                old = stage.z[touched]
                if index == len(self._stages) - 1:
                    yield touched, _softmax(old + sums) - self.posteriors[touched]
                else:
                    moved = np.maximum(old + sums, 0) - np.maximum(old, 0)
                    places = stage.needed[touched]

    def _spread(
        self, stage: _Stage, places: NDArray[np.int64], messages: Sequence[Floats]
    ) -> tuple[NDArray[np.int64], Floats]:
        """Rows of a stage that hear changed places, and what is added to their ``z``."""
        from tacit.attacks.kernels import spread

        width = stage.z.shape[1]
        sums = self._sums[: len(self._features) * width].reshape(-1, width)
        count = 0
        for term, message in zip(stage.terms, messages, strict=True):
            count = spread(
                term.starts,
                term.targets,
                term.values,
                places,
                message,
                self._place,
                self._touched,
                sums,
                count,
            )
        touched = self._touched[:count].copy()
        self._place[touched] = -1
        return touched, sums[:count]


def _cut(matrix: Any, needed: NDArray[np.int64], weight: Floats) -> _Term:
    columns = matrix[needed].tocsc()
    return _Term(
        columns.indptr.astype(np.int64),
        columns.indices.astype(np.int64),
        columns.data.astype(np.float64),
        np.ascontiguousarray(weight),
    )


def _packed(rows: np.ndarray) -> Any:
    """Rows in 64-bit floats: sparse where nearly all entries are zero."""
    from scipy.sparse import csr_array

    if np.count_nonzero(rows) > _SPARSE * rows.size:
        return rows.astype(float)
    return csr_array(rows, dtype=np.float64)


def _softmax(scores: Floats) -> Floats:
    powers: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _matrix(tensor: Any) -> Any:
    """A torch matrix in compressed rows as a scipy one."""
    from scipy.sparse import csr_array

    parts = (tensor.values(), tensor.col_indices(), tensor.crow_indices())
    values, columns, pointers = (part.numpy() for part in parts)
    return csr_array((values.astype(float), columns, pointers), shape=tuple(tensor.shape))


def _array(tensor: Any) -> Floats:
    found: Floats = tensor.detach().double().numpy()
    return found
