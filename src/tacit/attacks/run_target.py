"""A finished run as the target of a membership attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tacit.attacks.membership import Exposed, candidates_of
from tacit.errors import AttackError
from tacit.graph import Graph, fingerprint

if TYPE_CHECKING:
    from tacit.methods import Method


@dataclass(frozen=True)
class KnownRun:
    """What a run answered about the graph it was trained on, and how to make others like it.

    Attributes:
        posteriors: Of every node, as the run left them: reading them again is free.
        exposed: The same for the candidates, with the truth.
        share: Members among the candidates.
        make: The same method with the same settings, unfitted, by its seed.
    """

    posteriors: np.ndarray
    exposed: Exposed
    share: float
    make: Callable[[int], Method]


def known_run(folder: str | Path, graph: Graph) -> KnownRun:
    """Open a run folder.

    Args:
        folder: What ``tacit fit`` wrote.
        graph: The graph it was trained on, with the split it was trained with.

    Raises:
        AttackError: The run was trained on another graph, or with another split.
    """
    from tacit.methods.base import accuracies
    from tacit.methods.run import load_run, rebuilt

    model = load_run(folder)
    fitted = model.fitted
    if fingerprint(graph) != fitted.data:
        raise AttackError(
            f"{folder} was trained on another graph",
            why="its answers about the nodes of this one are not known",
            remedy="name the graph it was trained on",
        )
    if accuracies(fitted.outcome.posteriors, graph) != fitted.metrics:
        raise AttackError(
            f"{folder} was trained with another split",
            why="its accuracies on the parts of this one are not those it noted",
            remedy="give the same --split and --seed as for fit",
        )
    candidates = candidates_of(graph) | graph.train
    posteriors = fitted.outcome.posteriors
    exposed = Exposed(posteriors[candidates], graph.labels[candidates], graph.train[candidates])

    def make(seed: int) -> Method:
        return rebuilt(fitted.plan, seed=seed, noise=model.noise)

    return KnownRun(posteriors, exposed, float(graph.train[candidates].mean()), make)
