"""PyTorch Geometric ``Data``, both ways."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from tacit.errors import GraphError
from tacit.graph.build import from_arcs
from tacit.graph.graph import Graph
from tacit.graph.readers.limits import check_binary, constant_features
from tacit.graph.transforms import arc_sources

if TYPE_CHECKING:
    from torch_geometric.data import Data


def from_pyg(
    data: Data,
    *,
    directed: bool | None = None,
    symmetrize: bool = False,
    ignore_weights: bool = False,
    classes: int | None = None,
    split: int | None = None,
    name: str = "pyg",
) -> Graph:
    """Reads a graph from a ``torch_geometric.data.Data``.

    Args:
        data: With ``edge_index``, ``y`` and, as a rule, ``x``. Masks are kept.
        directed: None finds out from the arcs.
        symmetrize: Add the reverse of every arc.
        ignore_weights: Read every arc as a link, whatever its ``edge_weight``.
        classes: Number of classes, where the labels do not show it.
        split: Which column of masks that hold several splits.
        name: Name of the graph.

    Returns:
        The graph. Its arrays are copies: later changes to ``data`` do not reach it.

    Raises:
        GraphError: ``data`` is heterogeneous, multi-label, or inconsistent.
    """
    import torch

    if not hasattr(data, "edge_index") or hasattr(data, "node_types"):
        raise GraphError(
            f"a {type(data).__name__} is not a homogeneous PyTorch Geometric Data",
            remedy="convert it with data.to_homogeneous(), or choose one node and one edge type",
        )
    if data.edge_index is None or data.y is None or data.num_nodes is None:
        raise GraphError("the Data lacks edge_index, y or its number of nodes")
    arcs = data.edge_index.detach().cpu().numpy()
    if arcs.ndim != 2 or len(arcs) != 2:
        raise GraphError(f"edge_index has shape {arcs.shape}, not (2, arcs)")
    notes: tuple[str, ...] = ()
    n = int(data.num_nodes)
    if data.x is None:
        features, notes = constant_features(n)
    else:
        rows = data.x if data.x.layout is torch.strided else data.x.to_dense()
        features = rows.detach().cpu().to(torch.float32).numpy().copy()
    if len(features) != n:
        raise GraphError(f"x has {len(features)} rows for {n} nodes")
    weights = getattr(data, "edge_weight", None)
    attributes = getattr(data, "edge_attr", None)
    if weights is None and attributes is not None and attributes.numel() == arcs.shape[1]:
        weights = attributes
    elif attributes is not None:
        notes = (*notes, "edge attributes were left out")
    if weights is not None and not ignore_weights:
        check_binary(weights.detach().cpu().numpy().reshape(-1), "edge_weight")
    masks = {key: _mask(data, f"{key}_mask", n, split) for key in ("train", "val", "test")}
    return from_arcs(
        arcs[0],
        arcs[1],
        features=features,
        labels=_labels(data, n),
        directed=directed,
        symmetrize=symmetrize,
        classes=classes,
        train=masks["train"],
        val=masks["val"],
        test=masks["test"],
        name=name,
        notes=notes,
    )


def to_pyg(graph: Graph) -> Data:
    """Writes a graph as ``torch_geometric.data.Data``: ``x``, ``edge_index``, ``y`` and masks.

    Args:
        graph: The graph.

    Returns:
        A Data with copies of the arrays. An arc runs from the node that reports it, in row 0 of
        ``edge_index``, to the node it names.
    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the library's own, while it loads
        from torch_geometric.data import Data

    arcs = np.stack([arc_sources(graph), graph.indices]).astype(np.int64)
    return Data(
        x=torch.from_numpy(graph.features.copy()),
        edge_index=torch.from_numpy(arcs),
        y=torch.from_numpy(graph.labels.copy()),
        train_mask=torch.from_numpy(graph.train.copy()),
        val_mask=torch.from_numpy(graph.val.copy()),
        test_mask=torch.from_numpy(graph.test.copy()),
    )


def is_pyg(value: object) -> bool:
    """Whether a value is a PyTorch Geometric object, found out without importing the library."""
    return any(kind.__module__.startswith("torch_geometric.") for kind in type(value).__mro__)


def _labels(data: Data, nodes: int) -> np.ndarray:
    labels = data.y.detach().cpu().numpy()
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (nodes,):
        raise GraphError(
            f"y has shape {labels.shape} for {nodes} nodes",
            why="Tacit classifies nodes into one class each",
            remedy="choose one label for each node",
        )
    if labels.dtype.kind == "f":
        # OGB marks unknown labels with NaN in a column of floats.
        labels = np.where(np.isnan(labels), -1, labels)
        if not np.array_equal(labels, np.rint(labels)) or np.abs(labels).max(initial=0) > 2**31:
            raise GraphError("y holds numbers that are not classes", why="found fractions")
    return labels.astype(np.int64)


def _mask(data: Data, key: str, nodes: int, split: int | None) -> np.ndarray | None:
    mask = getattr(data, key, None)
    if mask is None:
        return None
    values = mask.detach().cpu().numpy()
    if values.ndim == 2:
        if split is None or not 0 <= split < values.shape[1]:
            raise GraphError(
                f"{key} holds {values.shape[1]} splits",
                remedy="choose one with from_pyg(data, split=0)",
            )
        values = values[:, split]
    if values.shape != (nodes,) or values.dtype != bool:
        raise GraphError(f"{key} must hold one truth value for each of the {nodes} nodes")
    return values.copy()
