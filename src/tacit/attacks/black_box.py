"""Services to attack: our own models behind ``predict(nodes, X)``, as their users meet them.

Each answers from one draw of noise, made (and charged) before the first question, so that a
million questions spend nothing more. In ``RowBox`` an answer reads its own node's row and what was
released, never the links; in ``NetworkBox`` the network passes messages over a graph that was
perturbed once, or, without privacy, over the links themselves.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tacit.errors import AttackError

if TYPE_CHECKING:
    from torch import nn

    from tacit.graph import Graph
    from tacit.learn.graph_networks import Links
    from tacit.methods import Method
    from tacit.methods.gap import GAP
    from tacit.privacy import Ledger
    from tacit.release import Bundle

Nodes = NDArray[np.int64]
Floats = NDArray[np.float64]
Service = Callable[[Nodes, np.ndarray], np.ndarray]

ALONE = ("gap", "mlp", "dpdgc")
"""Methods whose answer for a node reads that node's own row and what was released: no other row."""


@dataclass(frozen=True)
class NetworkBox:
    """A graph network on fixed links, in 64-bit floats: influence is a small difference.

    Attributes:
        network: Anything with ``forward(x, adj)``, in 64-bit floats.
        links: The links it passes messages over.
        scale: What the network's features are divided by.
    """

    network: nn.Module
    links: Links
    scale: float = 1.0

    @classmethod
    def of(cls, network: nn.Module, links: Links, scale: float = 1.0) -> NetworkBox:
        """A box around a copy of the network."""
        from copy import deepcopy

        return cls(deepcopy(network).double().eval(), links, scale)

    def __call__(self, nodes: Nodes, features: np.ndarray) -> np.ndarray:
        """Posteriors of the nodes: one whole forward pass."""
        import torch

        with torch.no_grad():
            inputs = torch.tensor(features, dtype=torch.float64) / self.scale
            scores = self.network(inputs, self.links)
            return scores[torch.as_tensor(nodes)].softmax(dim=1).numpy()

    def distances(self, nodes: Nodes, features: np.ndarray, rows: np.ndarray) -> Floats | None:
        """See :class:`tacit.attacks.linkteller.Traceable`."""
        from tacit.attacks.propagation import Propagation, layers_of

        layers = layers_of(self.network, self.links)
        if layers is None:
            return None
        moved = np.zeros((len(nodes), len(nodes)))
        changes = Propagation(layers, features, nodes, self.scale).changes(nodes, rows)
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


def of_model(
    model: Method, graph: Graph, *, ledger: Ledger | None = None, run: str | None = None
) -> Service:
    """A fitted model as the service its owner would run on a graph.

    On the graph it was trained on it answers from what was released then: free. On a new graph it
    draws its noise once, charges it to that graph's account, and answers from that.

    Args:
        model: A fitted method.
        graph: What it answers about.
        ledger: Where to charge a new graph.
        run: A name under which a call whose answers nobody saw may be repeated without a second
            charge.

    Raises:
        AttackError: The method cannot answer about a new graph from one draw of noise.
    """
    from tacit.graph import fingerprint
    from tacit.methods.gap import GAP
    from tacit.methods.perturb import PerturbedGraph

    fitted = model.fitted
    known = fingerprint(graph) == fitted.data
    if isinstance(model, PerturbedGraph):
        if known:
            service = model.serve(features=graph.features)
        else:
            service = model.serve(graph, ledger=ledger, run=run)
        return NetworkBox.of(service.module, service.links, service.scale)
    if known or not model.inference_stages(fitted.plan):
        released = fitted.outcome.released if known else {}

        def answer(rows: np.ndarray) -> np.ndarray:
            records = graph.with_(features=rows)
            return model._answer(fitted, records, released, outsiders=not known)

        return _box(model, answer)
    if not isinstance(model, GAP):
        raise AttackError(
            f"{model.name} does not answer question after question about a new graph",
            why="every answer would draw its noise again, and be charged again",
            remedy="attack it on the graph it was trained on",
        )
    return _gap_on(model, graph, ledger, run or uuid.uuid4().hex[:16])


def _gap_on(model: GAP, graph: Graph, ledger: Ledger | None, run: str) -> RowBox:
    """GAP on a new graph: noisy sums are drawn and charged once, and every answer reads them."""
    from tacit.graph import fingerprint
    from tacit.methods.gap_network import GapNetwork
    from tacit.privacy.plan import composed

    plan = model.fitted.plan
    known, width = plan.facts, graph.features.shape[1]
    if (width, graph.directed) != (known.features, known.directed):
        raise AttackError(
            "the graph does not fit the model",
            why=f"it has {width} features, directed={graph.directed}; the model knows "
            f"{known.features} and directed={known.directed}",
            remedy="bring it into the same form",
        )
    model._check_graph(graph, plan)
    names = model.inference_stages(plan)
    event = composed(tuple(stage for stage in plan.charged if stage.name in names))
    model._charge(plan, event, fingerprint(graph), run, ledger)
    source = model._source(plan)
    network = GapNetwork(plan, model.fitted.seed, source, lambda stage, done, total: None)
    network.load(model.fitted.outcome.weights)
    sums = network.aggregate(graph)
    return RowBox(lambda rows: network.posteriors(graph.with_(features=rows), sums))


def _box(model: Method, answer: Callable[[np.ndarray], np.ndarray]) -> Service:
    """A box that may be traced, if no answer reads another node's row; else one to be asked."""
    if model.name in ALONE:
        return RowBox(answer)
    return lambda nodes, features: answer(features)[nodes]


def of_bundle(bundle: Bundle, graph: Graph) -> Service:
    """A released bundle in an enemy's hands, who knows the features: nothing is charged.

    Args:
        bundle: What was released.
        graph: The graph it came from, for its features.
    """
    from tacit.methods.perturb import PerturbedGraph

    model = bundle._method
    if isinstance(model, PerturbedGraph):
        service = model.restore(bundle._fitted).serve(features=graph.features)
        return NetworkBox.of(service.module, service.links, service.scale)
    return _box(model, bundle.predict_proba)


def open_target(target: str, graph: Graph, *, ledger: Ledger | None = None) -> Service:
    """The service that a text names: a run folder, a bundle, or an HTTP address."""
    from pathlib import Path

    from tacit.attacks.remote import RemoteBox
    from tacit.methods.run import RUN_FILE, load_run

    if target.startswith(("http://", "https://")):
        return RemoteBox(target, graph.features)
    if (Path(target) / RUN_FILE).is_file():
        return of_model(load_run(target), graph, ledger=ledger)
    from tacit.release import load_bundle

    return of_bundle(load_bundle(target), graph)
