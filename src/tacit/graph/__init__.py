"""What the user brings: graphs, readers, generators and transforms."""

from tacit.graph import synthetic
from tacit.graph.build import drop_duplicates, drop_self_loops, from_arcs
from tacit.graph.checks import check_training
from tacit.graph.cut import Cut, beside, cut
from tacit.graph.fingerprint import fingerprint
from tacit.graph.graph import Graph, PublicFacts
from tacit.graph.load import load
from tacit.graph.readers.npz import save
from tacit.graph.readers.pyg import from_pyg, to_pyg
from tacit.graph.transforms import (
    bound_out_lists,
    drop_isolated,
    keep_classes,
    split,
    subgraph,
    symmetrize,
)

__all__ = [
    "Cut",
    "Graph",
    "PublicFacts",
    "beside",
    "bound_out_lists",
    "check_training",
    "cut",
    "drop_duplicates",
    "drop_isolated",
    "drop_self_loops",
    "fingerprint",
    "from_arcs",
    "from_pyg",
    "keep_classes",
    "load",
    "save",
    "split",
    "subgraph",
    "symmetrize",
    "synthetic",
    "to_pyg",
]
