"""Tacit: graph neural networks under differential privacy, with the promise spelt out.

    model = tacit.GAP(unit=tacit.Edge(), epsilon=4.0, delta=1e-6, hops=2)
    model.fit(graph); labels = model.predict(); print(model.statement)

Names are loaded when they are first used, so that ``import tacit`` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit import graph
    from tacit.errors import TacitError
    from tacit.graph import Graph, PublicFacts, load, split
    from tacit.methods import DPA, DPDGC, GAP, MLP, Census, Method, PrivGNN, load_run, save_run
    from tacit.privacy import Edge, KNeighbors, Ledger, Node, Plan, Statement

__version__ = "0.1.0"

_HOMES = {
    "TacitError": "tacit.errors",
    "Graph": "tacit.graph",
    "PublicFacts": "tacit.graph",
    "load": "tacit.graph",
    "split": "tacit.graph",
    "Edge": "tacit.privacy",
    "KNeighbors": "tacit.privacy",
    "Ledger": "tacit.privacy",
    "Node": "tacit.privacy",
    "Plan": "tacit.privacy",
    "Statement": "tacit.privacy",
    "Census": "tacit.methods",
    "DPA": "tacit.methods",
    "DPDGC": "tacit.methods",
    "GAP": "tacit.methods",
    "MLP": "tacit.methods",
    "Method": "tacit.methods",
    "PrivGNN": "tacit.methods",
    "load_run": "tacit.methods",
    "save_run": "tacit.methods",
}

__all__ = [
    "DPA",
    "DPDGC",
    "GAP",
    "MLP",
    "Census",
    "Edge",
    "Graph",
    "KNeighbors",
    "Ledger",
    "Method",
    "Node",
    "Plan",
    "PrivGNN",
    "PublicFacts",
    "Statement",
    "TacitError",
    "graph",
    "load",
    "load_run",
    "save_run",
    "split",
]


def __getattr__(name: str) -> Any:
    if name == "graph":
        return import_module("tacit.graph")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tacit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
