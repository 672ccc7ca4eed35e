"""What private data say of public nodes: votes and teachers, sampled and noised once.

Every coin (who takes part in which query) and every number of noise is drawn before the first
teacher is trained, and stored where the run is. A run that resumes reads them back: an answer that
was seen and an answer drawn anew would be two releases under one charge.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from tacit.errors import PlanError
from tacit.graph import Graph, subgraph
from tacit.learn.student import Embedding, unit
from tacit.learn.teachers import Attributed, TeacherConfig, log_posteriors, one_teacher
from tacit.methods.base import Progress
from tacit.methods.privgnn_settings import PrivGnnSettings
from tacit.privacy.noise import NoiseSource
from tacit.privacy.noisy_max import NoisyMax

ANSWERS_FILE = "answers.npz"
GRID_BITS = 10
"""Fraction bits of the grid of counts and their noise."""

_CHUNK = 64
"""Teachers between two stores."""


def choose_queries(public: Graph, settings: PrivGnnSettings, seed: int) -> np.ndarray:
    """The public nodes that are asked about, chosen by public facts alone.

    Nodes that will be scored are left out where enough others remain.

    Raises:
        PlanError: A node is not in the public graph, or there are too few.
    """
    if settings.query_ids:
        wrong = settings.ids[(settings.ids < 0) | (settings.ids >= public.nodes)]
        if len(wrong):
            raise PlanError(
                f"query {wrong[0]} is not in the public graph",
                why=f"its nodes are 0 to {public.nodes - 1}; a private node is never asked about",
                remedy="name nodes of the public graph",
            )
        return settings.ids
    if settings.queries > public.nodes:
        raise PlanError(
            f"{settings.queries} queries for {public.nodes} public nodes",
            remedy=f"ask at most {public.nodes}: --set queries=...",
        )
    pool = np.flatnonzero(~public.test)
    if len(pool) < settings.queries:
        pool = np.arange(public.nodes)
    if settings.selection == "degree":
        order = np.argsort(-public.out_degrees[pool], kind="stable")
        return np.sort(pool[order[: settings.queries]])
    return np.sort(np.random.default_rng(seed).choice(pool, settings.queries, replace=False))


@dataclass(frozen=True)
class Draws:
    """The randomness of all queries, drawn once.

    Attributes:
        coins: Which training node takes part in which query.
        noise: Integers, one row per query.
    """

    coins: np.ndarray
    noise: np.ndarray


def draw(
    settings: PrivGnnSettings, nodes: int, classes: int, source: NoiseSource | None, seed: int
) -> Draws:
    """All coins and all noise of a run; without a source no noise, and coins from the seed."""
    rounds, rate = settings.queries, settings.gamma
    shape = (rounds, classes)
    samples = 1 if settings.teacher == "single" else rounds
    coins = np.ones((samples, nodes), bool)
    if rate < 1:
        stream = np.random.default_rng([seed, 1])
        for row in coins:
            row[:] = (
                stream.random(nodes) < rate if source is None else source.bernoulli(rate, nodes)
            )
    if source is None:
        return Draws(coins, np.zeros(shape, np.int64))
    if settings.noise == "laplace":
        return Draws(coins, source.laplace(NoisyMax(classes, settings.lam).scale, shape))
    return Draws(coins, source.gaussian(settings.sigma * 2**GRID_BITS, shape))


class Store:
    """Draws and finished teachers in a run's folder; without a folder, nothing is kept.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / ANSWERS_FILE

    def load(self) -> tuple[Draws, np.ndarray] | None:
        """What an interrupted run stored."""
        if self.path is None or not self.path.exists():
            return None
        with np.load(self.path) as data:
            shape = tuple(int(x) for x in data["shape"])
            coins = np.unpackbits(data["coins"], axis=1, count=shape[1]).astype(bool)
            return Draws(coins, data["noise"]), data["done"]

    def save(self, draws: Draws, done: np.ndarray) -> None:
        """Store durably: on disk when this returns, whole or not at all."""
        if self.path is None:
            return
        part = self.path.with_name(f"{ANSWERS_FILE}.part")
        with part.open("wb") as stream:
            np.savez(
                stream,
                shape=np.array(draws.coins.shape),
                coins=np.packbits(draws.coins, axis=1),
                noise=draws.noise,
                done=done,
            )
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(self.path)

    def forget(self) -> None:
        """Remove what was stored: the run has finished."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def votes(
    graph: Graph, public: Graph, queries: np.ndarray, coins: np.ndarray, space: Space
) -> np.ndarray:
    """How many sampled training nodes of each class lie within the radius of each query.

    One node changes one count of a query by one (proofs/privgnn.md, Theorem 3): whether another
    node counts reads that node's own features, its label and its coin.
    """
    mine = np.flatnonzero(graph.train)
    # One node after another: in one product, who is there could move the rounding of others.
    near = np.empty((len(queries), len(mine)), bool)
    for place, node in enumerate(mine):
        near[:, place] = space.kernel(space.embedding(graph.features[node : node + 1]))[:, 0]
    near &= coins
    classes = np.eye(graph.classes, dtype=np.float32)[graph.labels[mine]]
    return (near.astype(np.float32) @ classes).astype(np.int64)


@dataclass(frozen=True)
class Space:
    """A public embedding with a public radius around every query.

    Attributes:
        embedding: Of one node's own features.
        centres: Queries, smoothed over their public neighbourhoods.
        reach: The least cosine at which a node counts.
    """

    embedding: Embedding
    centres: np.ndarray
    reach: float

    def kernel(self, rows: np.ndarray) -> np.ndarray:
        """Which rows lie within the radius of which query."""
        return np.asarray(self.centres @ rows.T >= self.reach)


def space_of(public: Graph, queries: np.ndarray, embedding: Embedding, share: float) -> Space:
    """The radius at which a query has the given share of public nodes around it, on average."""
    rows = embedding(public.features)
    means = np.zeros_like(rows)
    heads = np.repeat(np.arange(public.nodes), public.out_degrees)
    np.add.at(means, heads, rows[public.indices])
    means /= np.maximum(public.out_degrees, 1)[:, None]
    centres = unit(rows + 2 * means)[queries]
    return Space(embedding, centres, float(np.quantile(centres @ rows.T, 1 - share)))


def nearest(
    asked: np.ndarray, points: np.ndarray, coins: np.ndarray, settings: PrivGnnSettings
) -> Iterator[np.ndarray]:
    """The K nearest sampled points of each query, exactly; all of them where there are fewer.

    Args:
        asked: Features of the queries.
        points: Features of the training nodes.
        coins: Who was sampled for which query.
        settings: K and the distance.
    """
    if settings.distance == "cosine":
        asked, points = unit(asked), unit(points)
    closest_of = _closest_by_faiss if settings.search == "faiss" else _closest_by_torch
    for features, mask in zip(asked, coins, strict=True):
        members = np.flatnonzero(mask)
        if len(members) > settings.neighbours:
            # Of the sample alone: who was not sampled may not even move a rounding.
            members = np.sort(members[closest_of(points[members], features, settings.neighbours)])
        yield members


def _closest_by_torch(points: np.ndarray, asked: np.ndarray, count: int) -> np.ndarray:
    """Places of the nearest points, in float64."""
    import torch

    targets = torch.from_numpy(np.asarray(points, np.float64))
    row = torch.from_numpy(np.asarray(asked, np.float64))
    gaps = (targets**2).sum(dim=1) - 2 * (targets @ row)
    found: np.ndarray = torch.topk(gaps, count, largest=False).indices.numpy()
    return found


def _closest_by_faiss(points: np.ndarray, asked: np.ndarray, count: int) -> np.ndarray:
    """Places of the nearest points by a flat index: exact, in float32."""
    try:
        import faiss
    except ImportError as error:
        raise PlanError(
            "search=faiss needs the package faiss",
            why="it is not among the packages that are always installed",
            remedy="install tacit[faiss], or leave search out",
        ) from error
    index = faiss.IndexFlatL2(points.shape[1])
    index.add(np.ascontiguousarray(points, np.float32))
    found: np.ndarray = index.search(np.ascontiguousarray(asked[None], np.float32), count)[1][0]
    return found


def attributed(graph: Graph) -> Attributed:
    """A graph as teachers read it: who listens to whom."""
    return Attributed(graph.features, *graph.in_lists)


def ask_teachers(
    graph: Graph,
    public: Graph,
    queries: np.ndarray,
    draws: Draws,
    settings: PrivGnnSettings,
    seed: int,
    store: Store,
    progress: Progress,
    done: np.ndarray,
) -> np.ndarray:
    """Log posteriors of every query, each by a fresh teacher; resumes after what is done."""
    mine = subgraph(graph, graph.train)
    if settings.teacher == "single":
        return _ask_one(mine, public, queries, draws.coins[0], settings, seed)
    if settings.teacher == "all":
        samples = [np.flatnonzero(mask) for mask in draws.coins]
    else:
        samples = list(nearest(public.features[queries], mine.features, draws.coins, settings))
    config = teacher_config(settings)
    room = _room(settings, mine.nodes)
    seeds = [int(x) for x in np.random.SeedSequence([seed, 2]).generate_state(len(queries))]
    step = _CHUNK * settings.processes
    progress("teachers", len(done), len(queries))
    with _pool(settings.processes) as pool:
        while len(done) < len(queries):
            start = len(done)
            parts = np.array_split(
                np.arange(start, min(start + step, len(queries))), settings.processes
            )
            jobs = [
                (attributed(mine), mine.labels, graph.classes, [samples[i] for i in part],
                 attributed(public), queries[part], config, [seeds[i] for i in part], room)
                for part in parts if len(part)
            ]  # fmt: skip
            if pool is None:
                found = [_train(job, start, len(queries), progress) for job in jobs]
            else:
                found = list(pool.map(_train_apart, jobs))
            done = np.concatenate([done, *found])
            store.save(draws, done)
            progress("teachers", len(done), len(queries))
    return done


def _room(settings: PrivGnnSettings, nodes: int) -> int:
    """Rows kept for a sample: by public numbers, so that shapes do not tell who is in it.

    A sample of more than eight standard deviations above its mean is rarer than 1e-14.
    """
    mean, rate = nodes * settings.gamma, settings.gamma
    most = min(nodes, math.ceil(mean + 8 * math.sqrt(mean * (1 - rate)) + 8))
    return most if settings.teacher == "all" else min(settings.neighbours, most)


def teacher_config(settings: PrivGnnSettings) -> TeacherConfig:
    """The settings of each teacher."""
    return TeacherConfig(
        hidden=settings.hidden,
        epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        dropout=settings.dropout,
    )


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor | None]:
    """Worker processes, or None where this process is enough."""
    if processes == 1:
        yield None
        return
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


_Job = tuple[
    Attributed, np.ndarray, int, list[np.ndarray], Attributed, np.ndarray, TeacherConfig,
    list[int], int,
]  # fmt: skip


def _train(job: _Job, start: int, total: int, progress: Progress | None) -> np.ndarray:
    private, labels, classes, samples, public, queries, config, seeds, room = job

    def told(done: int, rows: np.ndarray) -> None:
        if progress is not None:
            progress("teachers", start + done, total)

    return log_posteriors(
        private,
        labels,
        classes,
        samples,
        public,
        queries,
        config,
        seeds=seeds,
        room=room,
        on_batch=told,
    )


def _train_apart(job: _Job) -> np.ndarray:
    import torch

    torch.set_num_threads(1)
    return _train(job, 0, 0, None)


def _ask_one(
    mine: Graph,
    public: Graph,
    queries: np.ndarray,
    mask: np.ndarray,
    settings: PrivGnnSettings,
    seed: int,
) -> np.ndarray:
    """SINGLEGNN: one sample and one network for all queries; nothing is proved of it."""
    return one_teacher(
        attributed(mine), mine.labels, mine.classes, np.flatnonzero(mask), attributed(public),
        queries, teacher_config(settings), seed=seed,
    )  # fmt: skip


def ask_parts(
    graph: Graph, public: Graph, queries: np.ndarray, settings: PrivGnnSettings, seed: int
) -> np.ndarray:
    """PATE: how many networks on disjoint parts of the training nodes answer each class."""
    mine = subgraph(graph, graph.train)
    # Dealt by chance, whatever the data: one node is in one part.
    order = np.random.default_rng([seed, 3]).integers(settings.parts, size=mine.nodes)
    alone, quiet = attributed(mine), attributed(public)
    if settings.teacher == "pate-mlp":
        alone, quiet = _without_lists(alone), _without_lists(quiet)
    counts = np.zeros((len(queries), graph.classes), np.int64)
    for part in range(settings.parts):
        members = np.flatnonzero(order == part)
        if not len(members):
            continue
        answers = one_teacher(
            alone, mine.labels, mine.classes, members, quiet, queries,
            teacher_config(settings), seed=seed * 1000 + part,
        )  # fmt: skip
        counts[np.arange(len(queries)), answers.argmax(axis=1)] += 1
    return counts


def _without_lists(graph: Attributed) -> Attributed:
    return Attributed(graph.features, np.zeros_like(graph.indptr), graph.indices[:0])


def noisy_labels(
    log_posterior: np.ndarray, noise: np.ndarray, settings: PrivGnnSettings, classes: int
) -> np.ndarray:
    """Line 7 of Algorithm 1 on the grid: only the argmax leaves.

    In paper accounting with ``log-softmax`` the noise is put on log probabilities, as the published
    code does; no noise covers those.
    """
    bits = NoisyMax(classes, settings.lam).bits if settings.lam else 0
    if settings.posterior == "log-softmax":
        return np.asarray((log_posterior + noise / 2.0**bits).argmax(axis=1))
    probabilities = np.exp(log_posterior)
    if not settings.lam:
        return np.asarray(probabilities.argmax(axis=1))
    return np.asarray((np.floor(probabilities * 2.0**bits).astype(np.int64) + noise).argmax(axis=1))


def noisy_values(values: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Counts or posteriors on the grid with Gaussian noise: all of it leaves."""
    grid = np.floor(np.asarray(values, np.float64) * 2**GRID_BITS).astype(np.int64)
    return np.asarray((grid + noise) / 2**GRID_BITS)
