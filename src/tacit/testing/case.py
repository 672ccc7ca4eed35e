"""What a conformance check looks at: a method, a unit, a graph, and witnesses."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tacit.errors import BudgetError
from tacit.graph import Graph
from tacit.methods.base import Method, Noise
from tacit.privacy.ledger import Entry, Ledger
from tacit.privacy.noise import NoiseSource
from tacit.privacy.plan import Plan
from tacit.privacy.units import KNeighbors, Unit

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Answers = Callable[[Plan, Graph, int], list[np.ndarray]]
"""The exact answers of one stage, one per round, given a seed of what earlier rounds released.

Rows that the unit gives to one node alone are left out by the suite, by the node that changed; a
method that learns for a public graph has none of those.
"""


class Maker(Protocol):
    """Makes the method under test, with settings small enough for a test."""

    def __call__(self, unit: Unit, epsilon: float, *, seed: int, noise: Noise) -> Method:
        """A new, unfitted method."""


class NotApplicable(Exception):  # noqa: N818
    """The case gives nothing that this check could look at."""


@dataclass(frozen=True)
class Witness:
    """Two neighbouring graphs between which a stage's answers are as far apart as was proved."""

    first: Graph
    second: Graph


@dataclass(frozen=True)
class Case:
    """One method under one unit.

    Attributes:
        make: Makes the method.
        unit: What one individual is.
        graph: A small graph to run on, with a public one beside it where the method learns for one.
        epsilon: A finite budget.
        refused: Units that the method must refuse, each with a reason.
        stage: The name of the stage that ``answers`` describes.
        answers: The exact answers of that stage.
        witnesses: Pairs that reach the claimed sensitivity of that stage, where it is tight.
        sizes: How many numbers of noise each round of a stage draws, by stage.
        twin: The posteriors of an independent program without privacy, by seed.
        coins: How many coins of each rate, beside those of sampling, a fitted method flipped.
        reload: Saves to a folder and loads again; the run folder of Tacit by default.
        relations: Units (of other relations too) that calibration is tried under.
    """

    make: Maker
    unit: Unit
    graph: Graph
    epsilon: float = 2.0
    refused: tuple[Unit, ...] = (KNeighbors(k=2),)
    stage: str = ""
    answers: Answers | None = None
    witnesses: tuple[Witness, ...] = ()
    sizes: Callable[[Method], dict[str, int]] | None = None
    twin: Callable[[Graph, int], np.ndarray] | None = None
    coins: Callable[[Method], dict[float, int]] | None = None
    reload: Callable[[Method, Path], Method] | None = None
    relations: tuple[Unit, ...] = ()

    def method(self, epsilon: float | None = None, *, noise: Noise = "secure") -> Method:
        """A new method of this case."""
        epsilon = self.epsilon if epsilon is None else epsilon
        return self.make(self.unit, epsilon, seed=3, noise=noise)


class RecordingSource(NoiseSource):
    """A noise source that writes down what was drawn, and what was paid by then."""

    def __init__(self, seed: int | None = None, paid: Callable[[], bool] | None = None) -> None:
        super().__init__(seed)
        self.noise: list[tuple[float, int]] = []
        self.counts: list[tuple[float, int]] = []
        self.choices: list[tuple[float, int]] = []
        self.coins: list[tuple[float, int]] = []
        self.other: list[str] = []
        self.unpaid = 0
        self._paid = paid

    def _look(self) -> None:
        if self._paid is not None and not self._paid():
            self.unpaid += 1

    def gaussian(self, scale: float, shape: int | Sequence[int]) -> np.ndarray:
        """Writes down scale and size."""
        self._look()
        self.noise.append((scale, int(np.prod(shape))))
        return super().gaussian(scale, shape)

    def bernoulli(self, rate: float, size: int) -> np.ndarray:
        """Writes down rate and size."""
        self._look()
        self.coins.append((rate, int(size)))
        return super().bernoulli(rate, size)

    def laplace(self, scale: float, shape: int | Sequence[int]) -> np.ndarray:
        """Writes down scale and size: noise on what a largest entry is reported of."""
        self._look()
        self.choices.append((scale, int(np.prod(shape))))
        return super().laplace(scale, shape)

    def geometric(self, scale: float, shape: int | Sequence[int]) -> np.ndarray:
        """Writes down scale and size: noise on counts."""
        self._look()
        self.counts.append((scale, int(np.prod(shape))))
        return super().geometric(scale, shape)


class RefusingLedger(Ledger):
    """A ledger whose budget is spent."""

    def charge(
        self,
        *,
        fingerprint: str,
        run: str,
        unit: str,
        event: DpEvent,
        delta: float,
        note: str = "",
    ) -> Entry:
        """Refuses."""
        raise BudgetError("the budget is spent", remedy="this is a test")


@contextmanager
def own_ledger() -> Iterator[Ledger]:
    """A ledger in a folder of its own that vanishes afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        yield Ledger(Path(folder) / "ledger.sqlite")


def with_source(method: Method, source: NoiseSource) -> Method:
    """The same method, with its noise drawn from a given source."""
    usual = method._source
    # An instance's attribute, so that the class under test stays as it is.
    vars(method)["_source"] = lambda plan: None if usual(plan) is None else source
    return method


def changed_node(first: Graph, second: Graph) -> int:
    """The node whose record differs between two neighbouring graphs."""
    different = np.any(first.features != second.features, axis=1)
    different |= first.labels != second.labels
    if different.any():
        return int(np.argmax(different))
    changed = np.zeros(first.nodes, np.int64)
    for v in range(first.nodes):
        mine = first.indices[first.indptr[v] : first.indptr[v + 1]]
        other = second.indices[second.indptr[v] : second.indptr[v + 1]]
        changed[v] = len(np.setxor1d(mine, other))
    return int(np.argmax(changed))
