"""What users compute: their row of a round, their dummies, and their own answer at the end.

Every function here reads, for one user, that user's own record and what was released, and nothing
else, so the same code runs for all users in a simulation and for a few in a user agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.aggregate import to_grid, unit_rows
from tacit.aggregate.hop import Grid
from tacit.errors import NoiseError
from tacit.graph import Graph
from tacit.graph.graph import FloatArray
from tacit.multiparty.session import Dummies, Round, SessionPlan
from tacit.privacy.noise import NoiseSource

Released = Mapping[str, FloatArray]
"""What was released so far by the round's name, as real numbers, one row per key."""

_SHARPNESS = 10.0
_FLAT = 0.5


@dataclass(frozen=True)
class Records:
    """The own records of some users. Private.

    Attributes:
        users: Their numbers.
        features: Raw feature rows.
        labels: One class each; -1 where unknown.
        train: Whose label may be sent.
        val: Whose label is used for choosing.
        indptr: Row pointers of whole own lists.
        indices: Entries of the lists: users' numbers.
        sent: How many entries of each list are sent to, after cutting.
        dummies: How many dummies each user made.
    """

    users: NDArray[np.int64]
    features: FloatArray
    labels: NDArray[np.int64]
    train: NDArray[np.bool_]
    val: NDArray[np.bool_]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    sent: NDArray[np.int64]
    dummies: NDArray[np.int64]

    @classmethod
    def of(
        cls, graph: Graph, sent: NDArray[np.int64], dummies: NDArray[np.int64] | None = None
    ) -> Records:
        """The records of every user of a graph."""
        none = np.zeros(graph.nodes, np.int64)
        return cls(
            np.arange(graph.nodes),
            graph.features,
            graph.labels,
            graph.train,
            graph.val,
            graph.indptr,
            graph.indices,
            np.asarray(sent, np.int64),
            none if dummies is None else dummies,
        )


def draw_dummies(dummies: Dummies, count: int, source: NoiseSource) -> NDArray[np.int64]:
    """How many dummies each of ``count`` users makes. Drawn once per session.

    Raises:
        NoiseError: There are more users than the bound on negative draws was shown for.
    """
    if count > 2**30:
        raise NoiseError(f"{count:,} users are more than 2^30", remedy="split the session")
    if dummies.kind == "none":
        return np.zeros(count, np.int64)
    if dummies.kind == "geometric":
        failures = source.exponential(-1 / np.log1p(-dummies.rate), count)
        return failures + dummies.shift
    return np.maximum(source.gaussian(dummies.std, count) + dummies.shift, 0)


def weights(plan: SessionPlan, records: Records) -> FloatArray:
    """What each user's row is multiplied with where it goes to the own list: Theorem 3 of hop_sums.

    ``w^2`` times the number of users sent to is at most D; rounded towards zero.
    """
    if plan.degree == 0:
        return np.ones(len(records.users), np.float32)
    sent = np.maximum(records.sent, 1).astype(np.float64)
    found = np.minimum(1.0, np.sqrt(plan.degree / sent)).astype(np.float32)
    return np.nextafter(found, np.float32(0))


def project(plan: SessionPlan, features: FloatArray) -> FloatArray:
    """Feature rows of unit length, after the public projection."""
    rows = unit_rows(features)
    if plan.width == plan.features:
        return rows
    rng = np.random.default_rng(plan.projection_seed)
    if plan.projection == "columns":
        kept = np.sort(rng.choice(plan.features, plan.width, replace=False))
        return unit_rows(features[:, kept])
    matrix = rng.standard_normal((plan.features, plan.width), dtype=np.float32)
    return unit_rows(rows @ matrix)


def one_hot(plan: SessionPlan, records: Records) -> FloatArray:
    """Unit rows of the labels that are sent; zero rows of everyone else."""
    rows = np.zeros((len(records.users), plan.classes), np.float32)
    says = records.train | (records.val & plan.with_val)
    says = says & (records.labels >= 0)
    rows[says, records.labels[says]] = 1
    return rows


def make_rows(plan: SessionPlan, turn: Round, records: Records, released: Released) -> FloatArray:
    """One row per user, of norm at most 1 where ``turn.normalise``.

    Args:
        plan: The session.
        turn: The round.
        records: Own records.
        released: What earlier rounds released.
    """
    if turn.content in ("features", "labels"):
        if turn.layer > 1:
            before = released[f"{turn.content}.{turn.layer - 1}"][records.users]
            return unit_rows(before) if turn.normalise else before * scaling(plan, records)
        if turn.content == "labels":
            return one_hot(plan, records)
        return project(plan, records.features)
    labels = one_hot(plan, records)
    if turn.content == "profile":
        rows = project(plan, records.features)
        return (labels[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
    return summary_rows(evidence(plan, records, released), labels)


def scaling(plan: SessionPlan, records: Records) -> FloatArray:
    """The paper's factor ``1/d`` of each sender's row in layers from 2 on (Equation 22)."""
    raw = np.diff(records.indptr)
    degree = {"raw": raw, "clipped": records.sent, "dummy": records.sent + records.dummies}
    found = degree[plan.scaling] + int(plan.self_link)
    return np.reciprocal(np.maximum(found, 1).astype(np.float32))[:, None]


def make_grid(plan: SessionPlan, turn: Round, records: Records, released: Released) -> Grid:
    """The integers that are shared out: rows times weights on the grid."""
    rows = make_rows(plan, turn, records, released)
    factors = weights(plan, records) if turn.to == "lists" else None
    if turn.layer == 1 or turn.normalise:
        return to_grid(rows, plan.fraction_bits, factors)
    return free_grid(rows, plan.fraction_bits)


def free_grid(rows: FloatArray, bits: int) -> Grid:
    """Rows of any length on the grid, for layers that promise nothing.

    Raises:
        NoiseError: A value does not fit 32 bits.
    """
    scaled = rows * np.float32(2.0**bits)
    if scaled.size and not np.abs(scaled).max() < 2.0**31:
        raise NoiseError("a value of the paper's later layers does not fit 32 bits")
    return scaled.astype(np.int32)


# -- answers at the user's own device ------------------------------------------------------------


def evidence(plan: SessionPlan, records: Records, released: Released) -> FloatArray:
    """What a user knows about its own class: own features, own row, own list. Norm at most 1.

    The scores of the own features by the released class profiles, the own row of the last label
    sums, and the mean of the first label sums over the own list less the own share in each.
    """
    parts = []
    if "profile.1" in released:
        profile = released["profile.1"].reshape(plan.classes, plan.width)
        directions = unit_rows(profile - profile.mean(axis=0))
        scores = project(plan, records.features) @ directions.T
        odds = np.exp(_SHARPNESS * scores)
        parts.append(odds / odds.sum(axis=1, keepdims=True) - np.float32(1 / plan.classes))
    layers = [name for name in released if name.startswith("labels.")]
    if layers:
        parts.append(unit_rows(released[layers[-1]][records.users]))
        parts.append(unit_rows(_own_list(plan, records, released["labels.1"])))
    parts.append(np.full((len(records.users), 1), _FLAT, np.float32))
    return unit_rows(np.hstack(parts))


def _own_list(plan: SessionPlan, records: Records, sums: FloatArray) -> FloatArray:
    """Mean over the own list of released sums, the own share taken out."""
    from scipy.sparse import csr_array

    shape = (len(records.users), plan.users)
    ones = np.ones(len(records.indices), np.float32)
    lists = csr_array((ones, records.indices, records.indptr), shape=shape)
    length = np.maximum(np.diff(records.indptr), 1)[:, None].astype(np.float32)
    own = one_hot(plan, records) * weights(plan, records)[:, None]
    share = own * (records.sent[:, None] / length).astype(np.float32)
    return (lists @ sums / length - share).astype(np.float32)


def summary_columns(plan: SessionPlan, width: int) -> int:
    """Columns of a summary of evidence of this width."""
    return width * plan.classes + width * (width + 1) // 2


def summary_rows(known: FloatArray, labels: FloatArray) -> FloatArray:
    """``(z y^T, z z^T)/sqrt(2)`` of every user who sends a label: what ridge regression sums.

    Both parts have norm at most 1, so the whole has; the symmetric matrix is sent once, its
    off-diagonal entries times sqrt(2).
    """
    says = labels.sum(axis=1, keepdims=True)
    width = known.shape[1]
    first, second = np.triu_indices(width)
    factor = np.where(first == second, 1.0, np.sqrt(2.0)).astype(np.float32)
    cross = (known[:, :, None] * labels[:, None, :]).reshape(len(known), -1)
    square = known[:, first] * known[:, second] * factor * says
    # A hair below, because float32 products may round up.
    return np.hstack([cross, square]) * np.float32(np.sqrt(0.5) * (1 - 1e-6))


def weights_of_summary(
    plan: SessionPlan, width: int, summary: FloatArray, noise_std: float
) -> FloatArray:
    """Ridge regression from the released sums: one column of weights per class.

    The penalty is the size of the noise on the matrix (its largest eigenvalue is about
    ``std sqrt(width)`` times a constant), a public number.
    """
    total = summary.reshape(-1) * np.sqrt(2.0)
    cross = total[: width * plan.classes].reshape(width, plan.classes)
    first, second = np.triu_indices(width)
    factor = np.where(first == second, 1.0, np.sqrt(2.0))
    square = np.zeros((width, width))
    square[first, second] = square[second, first] = total[width * plan.classes :] / factor
    penalty = 3 * np.sqrt(2.0) * noise_std * np.sqrt(width) + 1.0
    values, vectors = np.linalg.eigh(square)
    # What was released need not be a matrix of squares; noise below zero is known to be noise.
    kept = np.maximum(values, 0.0) + penalty
    return (vectors / kept @ (vectors.T @ cross)).astype(np.float32)
