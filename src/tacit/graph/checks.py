"""What must hold before a model is fitted. Readers apply it too where a file brings masks."""

from __future__ import annotations

import numpy as np

from tacit.errors import GraphError
from tacit.graph.graph import Graph


def check_training(graph: Graph) -> Graph:
    """Refuses a graph that cannot be trained on: no training node, or a class without one.

    Args:
        graph: The graph, split.

    Returns:
        The same graph.

    Raises:
        GraphError: No node may be trained on, masks overlap, there are fewer than two classes,
            or a class has no training node.
    """
    if not graph.train.any():
        raise GraphError(
            "the graph has no training nodes",
            why="no node is both labelled and in the training mask",
            remedy="split it first: tacit.graph.split(graph, ratios=(75, 10, 15), seed=0)",
        )
    held_out = graph.val | graph.test
    if np.any(graph.train & held_out) or np.any(graph.val & graph.test):
        raise GraphError(
            "a node is in more than one of train, val and test",
            why="a score on training nodes says nothing about new ones",
            remedy="give each node at most one role",
        )
    if graph.classes < 2:
        raise GraphError(
            f"{graph.classes} class cannot be told apart from anything",
            remedy="choose another label, with at least two classes",
        )
    counts = np.bincount(graph.labels[graph.train], minlength=graph.classes)
    if not counts.all():
        empty = int(np.argmin(counts))
        label = graph.class_names[empty] if graph.class_names else empty
        raise GraphError(
            f"class {label} has no training node",
            why="a model cannot learn a class it never sees",
            remedy="drop small classes with tacit.graph.keep_classes(graph, min_nodes), "
            "or give training more nodes",
        )
    return graph
