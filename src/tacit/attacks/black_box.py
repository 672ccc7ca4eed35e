"""Services to attack: our own models behind ``predict(nodes, X)``, as their users meet them.

Each answers from one draw of noise, made (and charged) before the first question, so that a
million questions spend nothing more. In ``RowBox`` an answer reads its own node's row and what was
released, never the links; in ``NetworkBox`` the network passes messages over a graph that was
perturbed once, or, without privacy, over the links themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn

    from tacit.learn.graph_networks import Links

Nodes = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NetworkBox:
    """A graph network on fixed links, in 64-bit floats: influence is a small difference.

    Attributes:
        network: Anything with ``forward(x, adj)``, in 64-bit floats.
        links: The links it passes messages over.
    """

    network: nn.Module
    links: Links

    @classmethod
    def of(cls, network: nn.Module, links: Links) -> NetworkBox:
        """A box around a copy of the network."""
        from copy import deepcopy

        return cls(deepcopy(network).double().eval(), links)

    def __call__(self, nodes: Nodes, features: np.ndarray) -> np.ndarray:
        """Posteriors of the nodes: one whole forward pass."""
        import torch

        with torch.no_grad():
            scores = self.network(torch.tensor(features, dtype=torch.float64), self.links)
            return scores[torch.as_tensor(nodes)].softmax(dim=1).numpy()

    def distances(self, nodes: Nodes, features: np.ndarray, rows: np.ndarray) -> Floats | None:
        """See :class:`tacit.attacks.linkteller.Traceable`."""
        from tacit.attacks.propagation import Propagation, layers_of

        layers = layers_of(self.network, self.links)
        if layers is None:
            return None
        moved = np.zeros((len(nodes), len(nodes)))
        changes = Propagation(layers, features, nodes).changes(nodes, rows)
        for index, (places, change) in enumerate(changes):
            moved[index, places] = np.sqrt(np.einsum("ij,ij->i", change, change))
        return moved


@dataclass(frozen=True)
class RowBox:
    """A model whose answer for a node reads that node's own row, whatever the others hold.

    Attributes:
        answer: Posteriors of every node from all feature rows.
    """

    answer: Callable[[np.ndarray], np.ndarray]

    def __call__(self, nodes: Nodes, features: np.ndarray) -> np.ndarray:
        """Posteriors of the nodes."""
        return self.answer(features)[nodes]

    def distances(self, nodes: Nodes, features: np.ndarray, rows: np.ndarray) -> Floats:
        """All rows may change at once, because none moves another node's answer."""
        changed = features.astype(float)
        changed[nodes] = rows
        moved = self.answer(changed)[nodes].astype(float) - self.answer(features)[nodes]
        return np.diag(np.linalg.norm(moved, axis=1))
