"""GraphSAGE without privacy: the level that its private versions aim at.

Hamilton, Ying, Leskovec, "Inductive Representation Learning on Large Graphs", NeurIPS 2017, with
the mean aggregator and full batches. The private versions are in :mod:`tacit.methods.sage_edge` and
:mod:`tacit.methods.sage_node`.

Formal guarantees:
    None. It takes epsilon inf alone, and its result is stamped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tacit.methods.perturb import PerturbedGraph
from tacit.methods.responses import EXACT, Response


class Sage(PerturbedGraph):
    """GraphSAGE on the graph as it is."""

    name: ClassVar[str] = "sage"
    response: ClassVar[Response] = EXACT
    defaults: ClassVar[Mapping[str, Any]] = {"backbone": "sage"}
