"""The graph itself, perturbed: randomised response over all possible links, and LapGraph.

Both answer with a set of links, drawn in time and memory proportional to what goes in and comes
out, never to the square of the number of nodes. A *cell* is a possible link: an ordered pair of
distinct nodes of a directed graph, an unordered pair of a symmetric one, so that one link is one
cell and a symmetric graph stays symmetric (Wu, Long, Zhang, Li, "LinkTeller", IEEE S&P 2022,
Algorithms 3 and 4; Imola, Murakami, Chaudhuri, USENIX Security 2022, for the asymmetric response).

Formal guarantees:
    Every cell is answered independently of all others, by one law where there is a link and by
    another where there is none; the guarantees are the ratios of these two laws
    (proofs/perturbation.md). The functions spend nothing: charge the ledger first.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.errors import NoiseError
from tacit.graph import Graph
from tacit.graph.build import rows_of, with_reverses
from tacit.graph.transforms import arc_sources
from tacit.privacy.noise import NoiseSource
from tacit.privacy.units import Edge, Unit

Numbers = NDArray[np.int64]

BYTES_PER_LINK = 80
"""Peak memory of one answered link, from the draw to the graph (benchmarks/perturbation.py)."""

STEPS = 2.0**20
"""Grid steps from 0 to 1 on LapGraph's cells."""

_BATCH = 1 << 22
_SPARSEST = 2.0**-39  # below this rate, gaps outgrow the largest scale of the noise source
_DENSE = 0.25  # share of cells from which on LapGraph notes all of them: at most 4 T


@dataclass(frozen=True)
class Cells:
    """All possible links among some nodes, numbered from 0 in an order that follows CSR.

    Attributes:
        nodes: Number of nodes.
        directed: Whether an arc may exist without its reverse.
    """

    nodes: int
    directed: bool

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= 2**28:
            raise NoiseError(
                f"the possible links among {self.nodes:,} nodes cannot be numbered",
                why="sums of gaps between links would leave 64 bits",
                remedy="perturb parts of at most 2^28 nodes",
            )

    @property
    def count(self) -> int:
        """Number of possible links."""
        pairs = self.nodes * (self.nodes - 1)
        return pairs if self.directed else pairs // 2

    def of(self, graph: Graph) -> Numbers:
        """The sorted numbers of a graph's links; both arcs of a symmetric link are one cell."""
        tail, head = arc_sources(graph), graph.indices
        if not self.directed:
            lower = head < tail
            tail, head = tail[lower], head[lower]
        number = tail.astype(np.int64)
        if self.directed:
            number *= self.nodes - 1
            number += head
            number -= head > tail
        else:
            number *= number - 1
            number //= 2
            number += head
        return number

    def ends(self, numbers: Numbers) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Sources and targets; of a symmetric link the larger and the smaller node."""
        if self.directed:
            tail, head = np.divmod(numbers, max(self.nodes - 1, 1))
            head += head >= tail
            return tail.astype(np.int32), head.astype(np.int32)
        # The float square root is off by at most one below 2^56: corrected in integers.
        tail = ((1 + np.sqrt(1 + 8.0 * numbers)) / 2).astype(np.int64)
        tail -= tail * (tail - 1) // 2 > numbers
        tail += (tail + 1) * tail // 2 <= numbers
        head = numbers - tail * (tail - 1) // 2
        return tail.astype(np.int32), head.astype(np.int32)

    def graph(self, like: Graph, numbers: Numbers) -> Graph:
        """The same nodes with these links, given as sorted numbers."""
        tail, head = self.ends(numbers)
        if not self.directed:
            tail, head = with_reverses(tail, head)
        indptr, indices = rows_of(tail, head, self.nodes)
        return like.with_(indptr=indptr, indices=indices)


def cells_moved(unit: Unit) -> int | None:
    """How many cells one unit changes: 1 for a link that appears, 2 for one that moves.

    None where nothing is proved: a node changes as many cells as it has links.
    """
    if not isinstance(unit, Edge):
        return None
    return 1 if unit.relation == "add-remove" else 2


def response_epsilon(keep: float, add: float) -> float:
    """Pure epsilon of one cell: kept with one probability if a link, added with another if none.

    ``max(|ln keep/add|, |ln (1-add)/(1-keep)|)`` (proofs/perturbation.md, Theorem 1).
    """
    if not (0.0 < keep < 1.0 and 0.0 < add < 1.0):
        return 0.0 if keep == add else math.inf
    return max(abs(math.log(keep / add)), abs(math.log1p(-add) - math.log1p(-keep)))


def edge_rand_rates(epsilon: float) -> tuple[float, float]:
    """EdgeRand's probabilities of keeping and adding: ``1 - s/2``, ``s/2``, ``s = 2/(e^ε + 1)``.

    The published Theorem 4: ``epsilon = ln(2/s - 1)``.
    """
    if not epsilon > 0:
        raise NoiseError(f"no response has epsilon {epsilon}", remedy="ask for more than 0")
    add = math.exp(-epsilon) / (1 + math.exp(-epsilon))
    return 1 / (1 + math.exp(-epsilon)), add


def sparse_response_rates(epsilon: float, density: float) -> tuple[float, float]:
    """Asymmetric response: EdgeRand, thinned so that about as many links come out as went in.

    With ``p = e^ε/(e^ε + 1)`` and a (noisy) density ``d``: keep ``pq``, add ``(1-p)q``,
    ``q = min(1, d / (pd + (1-p)(1-d)))``. Thinning is post-processing of EdgeRand.
    """
    p, add = edge_rand_rates(epsilon)
    d = min(max(density, 0.0), 1.0)
    q = min(1.0, d / (p * d + add * (1 - d)))
    return p * q, add * q


def check_room(cells: Cells, links: float, limit: float | None = None) -> None:
    """Refuse an answer that would not fit in memory, before anything is drawn.

    Args:
        cells: The possible links.
        links: Expected number of links in the answer.
        limit: Bytes that may be used; half of the machine's memory if None.

    Raises:
        NoiseError: It does not fit.
    """
    if limit is None:
        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
    need = links * BYTES_PER_LINK
    if need > limit:
        raise NoiseError(
            f"the perturbed graph would have about {links:,.0f} links "
            f"({need / 2**30:,.1f} GiB) where {limit / 2**30:,.1f} GiB may be used",
            why=f"at this epsilon a fixed share of the {cells.count:,} absent links appears",
            remedy="raise epsilon, or use a method whose output stays sparse: LapGraph, or the "
            "asymmetric response",
        )


def randomised_response(
    links: Numbers, cells: Cells, *, keep: float, add: float, source: NoiseSource
) -> Numbers:
    """Every link is kept with one probability, every absent link added with another.

    Formal guarantees:
        Each cell is an independent coin. The coin of a link shows ``keep`` to within 2^-64, the
        coin of an absent link ``add`` to within a relative 2^-50; so the answer has pure epsilon
        ``response_epsilon(keep, add)``, to a relative 1e-12 (proofs/perturbation.md, Theorem 1).

    Args:
        links: Sorted cell numbers.
        cells: The possible links.
        keep: Probability that a link stays.
        add: Probability that an absent link appears; below 1.
        source: Where the coins come from.

    Returns:
        Sorted cell numbers. O(links + answers).
    """
    if not (0.0 <= keep <= 1.0 and 0.0 <= add < 1.0):
        raise NoiseError(f"a response cannot keep with {keep} and add with {add}")
    kept = links[source.bernoulli(keep, len(links))]
    added = absent(links, successes(cells.count - len(links), add, source))
    return _merged(kept, added)


def noisy_count(links: int, cells: Cells, epsilon: float, source: NoiseSource) -> int:
    """The number of links plus two-sided geometric noise of scale 1/epsilon, kept in range.

    One link moves the count by 1, so its cost is epsilon; cutting to [0, cells] is post-processing.
    """
    noisy = links + int(source.geometric(1 / epsilon, 1)[0])
    return min(max(noisy, 0), cells.count)


def strongest_links(
    links: Numbers, cells: Cells, target: int, epsilon: float, source: NoiseSource
) -> Numbers:
    """The T cells with the largest noisy values: LapGraph's second step.

    Every cell holds 1 or 0 plus two-sided geometric noise of scale 1/epsilon on a fine grid; the
    ``target`` largest are answered, ties broken at random. Absent links above a level are found
    by their gaps, and what they exceed it by is geometric again, so only about T are ever drawn.

    Formal guarantees:
        Pure epsilon: a function of independently noised cells, of which one link moves one by 1
        (proofs/perturbation.md, Theorem 3). Where fewer than ``target`` cells pass the level
        (probability below 2e-22) fewer are answered, which changes the law by no more and the
        guarantee not at all.

    Args:
        links: Sorted cell numbers.
        cells: The possible links.
        target: T, a public or a noisy number.
        epsilon: The budget of the cells.
        source: Where noise comes from.

    Returns:
        Sorted cell numbers. O(links + T).
    """
    if not epsilon > 0:
        raise NoiseError(f"no noise has epsilon {epsilon}", remedy="ask for more than 0")
    if target <= 0:
        return np.empty(0, np.int64)
    scale = STEPS / epsilon
    # The level comes from T and the number of cells alone, never from the number of links.
    target = min(target, cells.count)
    rate = _passing_rate(target, cells)
    if rate >= _DENSE:
        values = source.geometric(scale, cells.count)
        values[links] += int(STEPS)
        return _largest(np.arange(cells.count), values, target, source)
    # P(K >= t) = r^t / (1 + r) for t >= 0, r = e^(-1/scale).
    log_sides = math.log1p(math.exp(-1 / scale))
    level = math.floor(-scale * (math.log(rate) + log_sides))
    passing = math.exp(-level / scale - log_sides)
    own = source.geometric(scale, len(links)) + int(STEPS)
    high = own >= level
    found = absent(links, successes(cells.count - len(links), passing, source))
    exceeding = source.exponential(scale, len(found)) + level
    return _largest(
        np.concatenate([links[high], found]),
        np.concatenate([own[high], exceeding]),
        target,
        source,
    )


def edge_rand(graph: Graph, epsilon: float, source: NoiseSource) -> Graph:
    """The graph answered by randomised response: EdgeRand (Algorithm 3 of LinkTeller)."""
    cells = Cells(graph.nodes, graph.directed)
    keep, add = edge_rand_rates(epsilon)
    links = cells.of(graph)
    check_room(cells, len(links) + cells.count * add)
    return cells.graph(graph, randomised_response(links, cells, keep=keep, add=add, source=source))


def lap_graph(
    graph: Graph, epsilon_count: float, epsilon_cells: float, source: NoiseSource
) -> Graph:
    """The T strongest noisy cells, T a noisy count: LapGraph (Algorithm 4 of LinkTeller).

    The two epsilons add up.
    """
    cells = Cells(graph.nodes, graph.directed)
    links = cells.of(graph)
    target = noisy_count(len(links), cells, epsilon_count, source)
    check_room(cells, len(links) + target)
    return cells.graph(graph, strongest_links(links, cells, target, epsilon_cells, source))


def successes(trials: int, rate: float, source: NoiseSource) -> Numbers:
    """Sorted numbers of the successes among independent trials: O(successes).

    Gaps between successes are geometric, ``floor(E / -ln(1 - rate))`` with E exponential
    (Batagelj and Brandes, Physical Review E 71, 2005).
    """
    if not 0.0 <= rate < 1.0:
        raise NoiseError(f"trials cannot succeed at a rate of {rate}")
    if trials <= 0 or rate == 0.0:
        return np.empty(0, np.int64)
    coarse = max(rate, _SPARSEST)
    scale = -1 / math.log1p(-coarse)
    parts, last = [], -1
    while last < trials:
        mean = (trials - last) * coarse
        size = min(_BATCH, int(mean + 4 * math.sqrt(mean) + 16))
        gaps = source.exponential(scale, size)
        np.minimum(gaps, trials, out=gaps)
        gaps += 1
        # A float sum shows where an integer sum would overflow; all past the end is dropped.
        inside = np.searchsorted(np.cumsum(gaps, dtype=np.float64), 4.0 * trials)
        places = np.cumsum(gaps[: inside + 1]) + last
        last = int(places[-1])
        parts.append(places if last < trials else places[places < trials])
    found = np.concatenate(parts)
    return found if coarse == rate else found[source.bernoulli(rate / coarse, len(found))]


def absent(links: Numbers, ranks: Numbers) -> Numbers:
    """The cells that hold no link, by their sorted ranks among such cells."""
    return ranks + np.searchsorted(links - np.arange(len(links)), ranks, side="right")


def _passing_rate(target: int, cells: Cells) -> float:
    """Share of absent links that pass the level: T fail to pass with probability below 2e-22."""
    return (target + 10 * math.sqrt(target) + 100) / cells.count


def _largest(numbers: Numbers, values: Numbers, target: int, source: NoiseSource) -> Numbers:
    """The sorted numbers of the ``target`` largest values, ties broken at random."""
    if target >= len(numbers):
        return np.sort(numbers)
    cut = np.partition(values, len(values) - target)[len(values) - target]
    above = numbers[values > cut]
    tied = numbers[values == cut]
    keys = source.exponential(2.0**40, len(tied))
    return np.sort(np.concatenate([above, tied[np.argsort(keys)[: target - len(above)]]]))


def _merged(first: Numbers, second: Numbers) -> Numbers:
    # The stable sort of numpy finds the two sorted runs and merges them.
    return np.sort(np.concatenate([first, second]), kind="stable")
