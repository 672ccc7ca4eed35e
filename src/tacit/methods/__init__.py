"""The seed systems, one file each. A new method is one file, one test file and one line here.

Nothing is imported before it is used: the command line reads the names alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.methods.base import Fitted, Method
    from tacit.methods.census import Census, CensusSettings
    from tacit.methods.dpa import DPA
    from tacit.methods.dpa_settings import DpaSettings
    from tacit.methods.dpdgc import DPDGC
    from tacit.methods.dpdgc_settings import DpdgcSettings
    from tacit.methods.gap import GAP
    from tacit.methods.gap_settings import GapSettings
    from tacit.methods.mlp import MLP, MlpSettings
    from tacit.methods.privgnn import PrivGNN
    from tacit.methods.privgnn_settings import PrivGnnSettings
    from tacit.methods.run import load_run, save_run


@dataclass(frozen=True)
class Entry:
    """Where a method lives, and what a command line has to know of it before it is imported.

    Attributes:
        method: ``module:name`` of its class.
        settings: ``module:name`` of its settings.
        title: What people call it.
        unit: The unit of privacy where nobody names one.
        public: Whether it learns for a public graph beside the private one.
        facts: Public facts that a plan cannot do without, beside the number of classes.
        noise: Settings that say how much noise there is. With one of them a budget may be left
            out (it is then infinite), and the plan says what that noise costs.
    """

    method: str
    settings: str
    title: str
    unit: str = "edge"
    public: bool = False
    facts: tuple[str, ...] = ("nodes", "train", "features")
    noise: tuple[str, ...] = ()


CATALOGUE: dict[str, Entry] = {
    "dpa": Entry("dpa:DPA", "dpa_settings:DpaSettings", "DPA (nobody is trusted)"),
    "dpdgc": Entry("dpdgc:DPDGC", "dpdgc_settings:DpdgcSettings", "DPDGC"),
    "gap": Entry("gap:GAP", "gap_settings:GapSettings", "GAP"),
    "mlp": Entry("mlp:MLP", "mlp:MlpSettings", "MLP (reads no links)"),
    "census": Entry(
        "census:Census",
        "census:CensusSettings",
        "Census (for a public graph)",
        unit="node-all",
        public=True,
        facts=("train", "public_nodes"),
    ),
    "privgnn": Entry(
        "privgnn:PrivGNN",
        "privgnn_settings:PrivGnnSettings",
        "PrivGNN (a student for a public graph)",
        unit="node-all",
        public=True,
        facts=(),
        noise=("lam", "sigma"),
    ),
    "gcn": Entry("perturb:GCN", "perturb_settings:PerturbSettings", "GCN (no privacy)"),
    "edgerand": Entry("perturb:EdgeRand", "perturb_settings:PerturbSettings", "EdgeRand"),
    "lapgraph": Entry("perturb:LapGraph", "perturb_settings:PerturbSettings", "LapGraph"),
    "sage": Entry("sage:Sage", "perturb_settings:PerturbSettings", "GraphSAGE (no privacy)"),
    "sage-edge": Entry("sage_edge:SageEdge", "perturb_settings:PerturbSettings", "SAGE-edge"),
    "sage-node": Entry("sage_node:SageNode", "sage_node:SageNodeSettings", "SAGE-node"),
}
"""Every method by its name on the command line."""

METHOD_NAMES = tuple(CATALOGUE)


class _Lazy(Mapping[str, Any]):
    """A mapping from a method's name to one of its classes, imported when it is asked for."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __getitem__(self, name: str) -> Any:
        return _imported(getattr(CATALOGUE[name], self._field))

    def __iter__(self) -> Iterator[str]:
        return iter(CATALOGUE)

    def __len__(self) -> int:
        return len(CATALOGUE)


METHODS: Mapping[str, Any] = _Lazy("method")
SETTINGS: Mapping[str, Any] = _Lazy("settings")

_OTHERS = {
    "Fitted": "base:Fitted",
    "Method": "base:Method",
    "load_run": "run:load_run",
    "save_run": "run:save_run",
}


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __getattr__(name: str) -> Any:
    places = [place for entry in CATALOGUE.values() for place in (entry.method, entry.settings)]
    for place in [*places, *_OTHERS.values()]:
        if place.endswith(f":{name}"):
            return _imported(place)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["CATALOGUE", "DPA", "DPDGC", "GAP", "METHODS", "METHOD_NAMES", "MLP", "SETTINGS"]
__all__ += [
    "Census",
    "CensusSettings",
    "DpaSettings",
    "DpdgcSettings",
    "Entry",
    "Fitted",
    "GapSettings",
    "Method",
    "MlpSettings",
    "PrivGNN",
    "PrivGnnSettings",
    "load_run",
    "save_run",
]
