"""A graph network on a perturbed graph: training, and answers to any number of questions.

Nothing here draws noise or sees the true graph: what is handed in was perturbed and paid for, so
everything is post-processing of it and of public features and labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from tacit.errors import PlanError
from tacit.graph import Graph
from tacit.graph.graph import FloatArray
from tacit.learn.graph_networks import (
    GraphNetwork,
    Links,
    Rows,
    pack,
    predict_on_links,
    train_on_links,
)
from tacit.learn.train import TrainConfig
from tacit.methods.base import Progress
from tacit.methods.perturb_settings import PerturbSettings
from tacit.privacy.plan import Plan

Backbone = Callable[[int, int, int], nn.Module]
"""Makes a module with ``forward(x, adj)`` from a width, a number of classes and a seed."""

_BYTES, _BYTES_PER_HEAD = 110, 100
"""Peak memory of one perturbed link, from the draw to the trained network, beside the features:
92 for ``gcn``, 84 for ``sage``, 810 for ``gat`` of eight heads, measured at 2.8 million links."""


def bytes_per_link(settings: PerturbSettings) -> float:
    """Peak memory of one perturbed link, from the draw to the trained network."""
    return _BYTES + (_BYTES_PER_HEAD * settings.heads if settings.backbone == "gat" else 0)


@dataclass(frozen=True)
class Service:
    """A trained network over one perturbed graph, which was perturbed once and paid for.

    Attributes:
        module: The network, with ``forward(x, adj)``.
        links: The perturbed links.
        features: The feature rows that answers read unless others are given.
        scale: What features are divided by.
    """

    module: nn.Module
    links: Links
    features: FloatArray
    scale: float

    def predict_proba(
        self, nodes: Sequence[int] | np.ndarray | None = None, features: ArrayLike | None = None
    ) -> np.ndarray:
        """Class probabilities of some nodes, with the graph's own features or with others. Free.

        Args:
            nodes: Which nodes; all if None.
            features: One row for every node of the graph, in place of its own.

        Returns:
            Probabilities [nodes asked for, classes].
        """
        rows = self.features if features is None else np.asarray(features, np.float32)
        if rows.shape != self.features.shape:
            raise PlanError(
                f"features of shape {rows.shape} do not fit a graph of {self.features.shape}",
                why="an answer reads the features of a node's neighbours too",
                remedy="give one row for every node, and name the nodes to answer for",
            )
        scores = predict_on_links(self.module, self.inputs(rows), self.links)
        answers = scores.softmax(dim=1).numpy()
        return answers if nodes is None else answers[np.asarray(nodes)]

    def inputs(self, features: FloatArray) -> Rows:
        """Feature rows as the network reads them."""
        return rows_of(self.module, features, self.scale)


def rows_of(module: nn.Module, features: FloatArray, scale: float) -> Rows:
    """Scaled feature rows, in the form that a network takes: dense for those that are not ours."""
    scaled = np.asarray(features / np.float32(scale), np.float32)
    return pack(scaled) if isinstance(module, GraphNetwork) else torch.tensor(scaled)


def links_of(graph: Graph) -> Links:
    """The links of a graph, each node hearing those that list it."""
    return Links.of(*graph.in_lists, symmetric=not graph.directed)


def build(plan: Plan, seed: int, own: Backbone | None) -> nn.Module:
    """The untrained network of a plan."""
    settings: PerturbSettings = plan.settings
    facts = plan.facts
    if settings.backbone == "own":
        if own is None:
            raise PlanError(
                "this model has a backbone of its own, and it is not here",
                why="a run keeps weights, not code",
                remedy="set model.network to what made the module",
            )
        return own(facts.features, facts.classes, seed)
    return GraphNetwork(
        settings.backbone,
        facts.features,
        settings.hidden,
        facts.classes,
        settings.layers,
        dropout=settings.dropout,
        heads=settings.heads,
        seed=seed,
    )


def train_service(
    graph: Graph, plan: Plan, seed: int, own: Backbone | None, progress: Progress
) -> Service:
    """Train the plan's network on a graph that may be shown to anyone.

    The best step by validation labels is kept, which is free where labels are public.
    """
    settings: PerturbSettings = plan.settings
    lengths = np.sqrt(np.square(graph.features, dtype=np.float64).sum(axis=1))
    scale = float(lengths.mean()) or 1.0
    module = build(plan, seed, own)
    service = Service(module, links_of(graph), graph.features, scale)
    labels = torch.tensor(graph.labels)
    rows, held = (torch.from_numpy(np.flatnonzero(mask)) for mask in (graph.train, graph.val))
    train_on_links(
        module,
        service.inputs(graph.features),
        service.links,
        rows,
        labels[rows],
        TrainConfig(
            epochs=settings.epochs,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            patience=settings.patience if settings.patience and len(held) else None,
        ),
        seed=seed,
        val=(held, labels[held]) if len(held) and settings.preset == "tacit" else None,
        on_epoch=lambda epoch, loss: progress("network", epoch + 1, settings.epochs),
    )
    return service


def weights_of(service: Service) -> dict[str, np.ndarray]:
    """Everything that answers need but the features: parameters, scale and perturbed links."""
    found = {
        f"network.{key}": value.detach().numpy().copy()
        for key, value in service.module.state_dict().items()
    }
    return found | {
        "scale": np.asarray([service.scale], np.float64),
        "links.indptr": service.links.indptr.numpy().astype(np.int64),
        "links.indices": service.links.indices.numpy().astype(np.int64),
        "links.symmetric": np.asarray([service.links.symmetric], np.int64),
    }


def restored(
    plan: Plan,
    weights: dict[str, np.ndarray],
    own: Backbone | None,
    features: FloatArray,
    links: Links | None = None,
) -> Service:
    """The service that :func:`weights_of` wrote, over its own links or over others."""
    module = build(plan, 0, own)
    module.load_state_dict(
        {
            key.removeprefix("network."): torch.from_numpy(value.copy())
            for key, value in weights.items()
            if key.startswith("network.")
        }
    )
    if links is None:
        symmetric = bool(weights["links.symmetric"][0])
        links = Links.of(weights["links.indptr"], weights["links.indices"], symmetric=symmetric)
    return Service(module, links, np.asarray(features, np.float32), float(weights["scale"][0]))
