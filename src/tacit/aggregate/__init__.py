"""How neighbours meet: exact integer neighbour sums and the noisy multi-hop pass."""

from tacit.aggregate.hop import InLists, sum_neighbours, to_grid, unit_rows
from tacit.aggregate.pma import noisy_hops

__all__ = ["InLists", "noisy_hops", "sum_neighbours", "to_grid", "unit_rows"]
