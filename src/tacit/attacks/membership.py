"""Node membership inference: was this node's label trained on?

A model is surer of what it was trained on. The attacker trains *shadow* models, of which it knows
the members, and an attack network that tells members from others by their posteriors; it then turns
the attack network on the target (Olatunji, Nejdl, Khosla, TPS-ISA 2021, "train on subgraph, test on
full graph"; GAP, Section 7.4.2 and Table 3: a shadow graph of 1000 nodes per class, a 3-layer MLP
with 64 hidden units, the mean AUC of 10 runs). PrivGNN's Attack-1 and Attack-2 (Appendix C) are the
same attack with other members: private nodes, and public nodes that were labelled privately.

The likelihood-ratio attack, which is stronger, is in :mod:`tacit.attacks.likelihood_ratio`.

What it costs: nothing. The target is asked for answers it has already given; shadow models are made
and thrown away, and the figures are for the owner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tacit.attacks import curves
from tacit.errors import AttackError
from tacit.graph import Graph, subgraph

if TYPE_CHECKING:
    from tacit.methods import Method
    from tacit.privacy import Ledger

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]

Answers = Callable[[Graph], np.ndarray]
"""A trained model: posteriors of every node of a graph."""

Exposure = Callable[[Graph, Mask, int], np.ndarray]
"""Trains on the members of a graph with a seed, and answers for all of its nodes."""

PER_CLASS, HIDDEN, LAYERS, RUNS = 1000, 64, 3, 10
_FLOOR = 1e-12


@dataclass(frozen=True)
class Exposed:
    """What an attacker sees of some nodes, and what it wants to know of them.

    Attributes:
        posteriors: One row per node.
        labels: True classes, which a strong attacker knows; -1 where it does not.
        members: Which nodes were trained on.
    """

    posteriors: np.ndarray
    labels: NDArray[np.int64]
    members: Mask


@dataclass(frozen=True)
class Membership:
    """What a membership attack came to. Private.

    Attributes:
        name: Of the attack.
        aucs: Of each run.
        scores: One per candidate, of all runs one after the other.
        members: Whether each candidate was a member.
        seconds: Wall time.
    """

    name: str
    aucs: tuple[float, ...]
    scores: Floats
    members: Mask
    seconds: float

    @property
    def auc(self) -> float:
        """Mean over the runs."""
        return float(np.mean(self.aucs))

    def roc(self) -> curves.Curve:
        """True positive rate against false positive rate, of all runs together."""
        return curves.roc(self.scores, self.members)

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data."""
        return {
            "attack": self.name,
            "auc": self.auc,
            "auc_std": float(np.std(self.aucs)),
            "runs": len(self.aucs),
            "tpr_at_1_percent_fpr": curves.true_positive_rate(self.scores, self.members, 0.01),
            "candidates": len(self.scores) // len(self.aucs),
            "members": int(self.members.sum()) // len(self.aucs),
            "seconds": self.seconds,
        }


def on_subgraph(make: Callable[[int], Method]) -> Exposure:
    """Train on the graph of the members alone, then answer on the whole graph (TSTF).

    Args:
        make: The method, unfitted, by its seed.
    """

    def expose(graph: Graph, members: Mask, seed: int) -> np.ndarray:
        full = with_members(graph, members)
        with _scratch() as ledger:
            model = make(seed).fit(subgraph(full, members), ledger=ledger)
            return model.predict_proba(full, ledger=ledger)

    return expose


def on_graph(make: Callable[[int], Method]) -> Exposure:
    """Train on the members' labels and everybody's links, as a run on a whole graph does.

    Args:
        make: The method, unfitted, by its seed.
    """

    def expose(graph: Graph, members: Mask, seed: int) -> np.ndarray:
        with _scratch() as ledger:
            return make(seed).fit(with_members(graph, members), ledger=ledger).predict_proba()

    return expose


def with_members(graph: Graph, members: Mask) -> Graph:
    """The graph with these training nodes; labelled others that are not for choosing are tests."""
    val = graph.val & ~members
    return graph.with_(train=members, val=val, test=(graph.labels >= 0) & ~members & ~val)


def shadow_nodes(graph: Graph, per_class: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """A sample of labelled nodes, at most ``per_class`` of each class, uniformly at random."""
    kept = [
        rng.permutation(np.flatnonzero(graph.labels == label))[:per_class]
        for label in range(graph.classes)
    ]
    return np.sort(np.concatenate(kept))


def drawn(candidates: Mask, share: float, rng: np.random.Generator) -> Mask:
    """A uniform sample of the candidates, of this share."""
    found = np.flatnonzero(candidates)
    count = round(share * len(found))
    if not 0 < count < len(found):
        raise AttackError(
            f"{count} members among {len(found)} candidates leave nothing to tell apart",
            remedy="choose a share of members between 0 and 1, and enough nodes",
        )
    members = np.zeros(len(candidates), bool)
    members[rng.choice(found, count, replace=False)] = True
    return members


def observed(expose: Exposure, graph: Graph, members: Mask, seed: int) -> Exposed:
    """Train on the members and collect what the model says of all labelled nodes.

    Nodes held out for choosing are no candidates: they are neither trained on nor unseen.
    """
    kept = candidates_of(graph) | members
    posteriors = expose(graph, members, seed)
    return Exposed(posteriors[kept], graph.labels[kept], members[kept])


def candidates_of(graph: Graph) -> Mask:
    """Labelled nodes that are not held out for choosing."""
    found: Mask = (graph.labels >= 0) & ~graph.val
    return found


def attack(shadow: Exposed, target: Exposed, seed: int) -> Floats:
    """Train the attack network on a shadow and score the target's candidates.

    It reads each node's posterior, sorted, and beside it the posterior of the true class where that
    is known, as logarithms standardised by the shadow.

    Args:
        shadow: Where the members are known.
        target: What to score; its members are not read.
        seed: Of the attack network.
    """
    import torch

    from tacit.learn.networks import MLP
    from tacit.learn.train import TrainConfig, predict_logits, train

    seen, asked = _views(shadow), _views(target)
    centre, spread = seen.mean(axis=0), seen.std(axis=0) + 1e-6
    inputs = torch.tensor((seen - centre) / spread, dtype=torch.float32)
    network = MLP(inputs.shape[1], HIDDEN, 2, LAYERS, dropout=0.2, activation="relu", seed=seed)
    config = TrainConfig(epochs=200, learning_rate=0.01, weight_decay=1e-4)
    train(network, (inputs,), torch.tensor(shadow.members).long(), config, seed=seed)
    wanted = torch.tensor((asked - centre) / spread, dtype=torch.float32)
    scores = predict_logits(network, (wanted,))
    return np.asarray((scores[:, 1] - scores[:, 0]).double().numpy())


def shadow_attack(
    expose: Exposure,
    graph: Graph,
    *,
    share: float = 0.5,
    target: Exposed | None = None,
    per_class: int = PER_CLASS,
    runs: int = RUNS,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Membership:
    """The attack of GAP's Table 3.

    Args:
        expose: How target and shadow are trained: the attacker knows architecture and settings.
        graph: Where target and shadow come from.
        share: Of the candidates that are members, of the target and of each shadow.
        target: What the target said. None trains one afresh in every run.
        per_class: Nodes of each class in the shadow graph.
        runs: How many targets (or shadows of one target).
        seed: Of the first run.
        progress: Told what is done.
    """
    started = time.perf_counter()
    aucs, scores, members = [], [], []
    for run in range(runs):
        rng = np.random.default_rng([seed, run])
        inner = subgraph(graph, shadow_nodes(graph, per_class, rng))
        known = observed(expose, inner, drawn(candidates_of(inner), share, rng), seed + run)
        aim = target
        if aim is None:
            chosen = drawn(candidates_of(graph), share, rng)
            aim = observed(expose, graph, chosen, seed + run + 1000)
        scores.append(attack(known, aim, seed + run))
        members.append(aim.members)
        aucs.append(curves.auc(scores[-1], aim.members))
        if progress is not None:
            progress("shadow models", run + 1, runs)
    return Membership(
        "shadow models",
        tuple(aucs),
        np.concatenate(scores),
        np.concatenate(members),
        time.perf_counter() - started,
    )


@dataclass(frozen=True)
class Student:
    """What distillation releases: a model of public nodes, labelled by private ones.

    Attributes:
        answers: The released model.
        queried: Which nodes of the public graph were labelled privately to train it.
    """

    answers: Answers
    queried: Mask


def attack_1(
    student: Student,
    private: Graph,
    public: Graph,
    expose: Exposure,
    shadow: Graph,
    *,
    runs: int = RUNS,
    seed: int = 0,
) -> Membership:
    """PrivGNN's Attack-1: tell the private nodes from the public ones.

    The attacker knows the released model's architecture but not that it was distilled: its shadow
    model is trained on its own members directly.

    Args:
        student: The released model.
        private: The graph whose nodes are the members.
        public: The graph whose nodes are not.
        expose: How the attacker trains its shadow model.
        shadow: The attacker's own graph, of the same kind.
        runs: How many shadow models.
        seed: Of the first.
    """
    told = [student.answers(graph) for graph in (private, public)]
    target = Exposed(
        np.concatenate(told),
        np.concatenate([private.labels, public.labels]),
        np.arange(private.nodes + public.nodes) < private.nodes,
    )

    def shadowed(rng: np.random.Generator, run: int) -> Exposed:
        return observed(expose, shadow, drawn(candidates_of(shadow), 0.5, rng), run)

    return _from_shadows("Attack-1", target, shadowed, runs, seed)


def attack_2(
    student: Student,
    public: Graph,
    distil: Callable[[Graph, Graph, int], Student],
    shadow: Graph,
    *,
    runs: int = RUNS,
    seed: int = 0,
) -> Membership:
    """PrivGNN's Attack-2: tell the public nodes that were labelled privately from the others.

    The attacker knows that the released model was distilled, and distils shadow students itself:
    one half of its graph is their private side, the other half their public side.

    Args:
        student: The released model.
        public: The public graph.
        distil: Makes a student from a private graph, a public graph and a seed.
        shadow: The attacker's own graph, of the same kind.
        runs: How many shadow students.
        seed: Of the first.
    """
    target = Exposed(student.answers(public), public.labels, student.queried)

    def shadowed(rng: np.random.Generator, run: int) -> Exposed:
        half = drawn(np.ones(shadow.nodes, bool), 0.5, rng)
        outside = subgraph(shadow, ~half)
        known = distil(subgraph(shadow, half), outside, run)
        return Exposed(known.answers(outside), outside.labels, known.queried)

    return _from_shadows("Attack-2", target, shadowed, runs, seed)


def _from_shadows(
    name: str,
    target: Exposed,
    shadowed: Callable[[np.random.Generator, int], Exposed],
    runs: int,
    seed: int,
) -> Membership:
    """One target, attacked by an attack network for each shadow."""
    started = time.perf_counter()
    scores = [
        attack(shadowed(np.random.default_rng([seed, run]), seed + run), target, seed + run)
        for run in range(runs)
    ]
    return Membership(
        name,
        tuple(curves.auc(row, target.members) for row in scores),
        np.concatenate(scores),
        np.tile(target.members, runs),
        time.perf_counter() - started,
    )


def _views(exposed: Exposed) -> Floats:
    """What the attack network reads of each node."""
    logs = np.log(np.maximum(exposed.posteriors.astype(float), _FLOOR))
    parts = [np.sort(logs, axis=1)[:, ::-1]]
    if (exposed.labels >= 0).all():
        parts.append(np.take_along_axis(logs, exposed.labels[:, None], axis=1))
    return np.hstack(parts)


@contextmanager
def _scratch() -> Iterator[Ledger]:
    """A ledger that is thrown away: what is trained here is, too, and no answer leaves."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from tacit.privacy import Ledger

    with TemporaryDirectory() as folder:
        yield Ledger(Path(folder) / "scratch.sqlite")
