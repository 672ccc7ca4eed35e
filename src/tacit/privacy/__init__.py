"""What is promised: units, sensitivities, noise, plans, accounting, the ledger, the statement."""

from tacit.privacy.ledger import Ledger
from tacit.privacy.noise import NoiseSource
from tacit.privacy.plan import Plan, Stage
from tacit.privacy.sensitivity import Query, Sensitivity, hop_sums
from tacit.privacy.statement import Statement
from tacit.privacy.units import Edge, KNeighbors, Node, Unit

__all__ = [
    "Edge",
    "KNeighbors",
    "Ledger",
    "Node",
    "NoiseSource",
    "Plan",
    "Query",
    "Sensitivity",
    "Stage",
    "Statement",
    "Unit",
    "hop_sums",
]
