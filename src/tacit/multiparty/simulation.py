"""A whole session in one process, for research and planning: the same integers, no network.

Two speeds. ``totals``: shares cancel, so every sum is taken once, by the trusted curator's own
program, and each party's noise is added. ``every``: every share of every real and dummy pair is
generated, sent to its parties and added up there. Given the same noise both give the same integers,
bit for bit, and they are those of :func:`tacit.aggregate.noisy_hops` (proofs/dpa.md, Theorem 1).

Keys are worked on in blocks, so that beyond the grid and what is released a round holds about
50 MB, plus one byte per share of a pair: the parties of every slot, drawn once per session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tacit.aggregate import InLists
from tacit.aggregate.hop import Grid
from tacit.errors import NoiseError
from tacit.graph import Graph
from tacit.graph.graph import FloatArray, transpose
from tacit.graph.transforms import kept_entries
from tacit.multiparty.records import Records, draw_dummies, make_grid
from tacit.multiparty.ring import Stream, Words, choose_parties, noise_words, to_real
from tacit.multiparty.session import Round, SessionPlan
from tacit.privacy.noise import NoiseSource

Speed = Literal["totals", "every"]
OnRound = Callable[[str, int, int], None]

_BLOCK = 1 << 19  # entries of one block of sums: as many as tacit.aggregate works on
_BATCH = 1 << 18  # words of shares drawn at a time: they stay in a core's cache


@dataclass(frozen=True)
class Slots:
    """Who sends to which key, and to which parties: fixed before the first round.

    Attributes:
        lists: In-list v holds the users whose row goes to key v.
        chosen: The parties of each pair; None where shares are not generated.
        dummies: Dummies under each key.
        chosen_dummies: Their parties.
    """

    lists: InLists
    chosen: NDArray[np.uint8] | None = None
    dummies: NDArray[np.int64] | None = None
    chosen_dummies: NDArray[np.uint8] | None = None

    @classmethod
    def draw(
        cls,
        lists: InLists,
        plan: SessionPlan,
        stream: Stream | None,
        dummies: NDArray[np.int64] | None = None,
    ) -> Slots:
        """Slots with parties from a stream, or without parties."""
        if stream is None:
            return cls(lists)

        def parties(count: int) -> NDArray[np.uint8]:
            return choose_parties(count, plan.parties, plan.shares, stream)

        if dummies is None:
            return cls(lists, parties(len(lists.indices)))
        return cls(lists, parties(len(lists.indices)), dummies, parties(int(dummies.sum())))


def session(
    plan: SessionPlan,
    graph: Graph,
    source: NoiseSource | None,
    *,
    speed: Speed = "totals",
    clip: Literal["sent", "received"] = "sent",
    seed: int = 0,
    stream: Stream | None = None,
    known: dict[str, FloatArray] | None = None,
    on_round: OnRound | None = None,
) -> tuple[dict[str, FloatArray], Records]:
    """Run every round for all users of a graph.

    Args:
        plan: What to do.
        graph: The records of all users.
        source: Of dummies and of every party's noise; may be None only where there is none.
        speed: ``totals`` or ``every``.
        clip: Whether lists are cut by who sends (sound) or by who receives (as the paper's tables
            need; then a record is in as many sums as others like).
        seed: Of the cut. It needs no secrecy.
        stream: Of shares and parties; a fresh one if None.
        known: What was released before and is not run again.
        on_round: Told which round is done.

    Returns:
        What was released, by round, as real numbers; and the users' records.
    """
    dummies = np.zeros(graph.nodes, np.int64)
    if source is not None:
        dummies = draw_dummies(plan.dummies, graph.nodes, source)
    lists, sent = sending(plan, graph, clip, seed)
    records = Records.of(graph, sent, dummies)
    stream = (stream or Stream.fresh()) if speed == "every" else None
    slots = Slots.draw(lists, plan, stream, dummies)
    everyone = Slots.draw(_everyone(graph.nodes), plan, stream)
    released = dict(known or {})
    todo = [turn for turn in plan.rounds if turn.name not in released]
    for done, turn in enumerate(todo):
        grid = make_grid(plan, turn, records, released)
        mine = slots if turn.to == "lists" else everyone
        if not turn.normalise and turn.layer > 1:
            # The paper's users alone see a layer before the last; here it only takes memory.
            del released[f"{turn.content}.{turn.layer - 1}"]
        released[turn.name] = run_round(plan, turn, mine, grid, source, stream)
        if on_round is not None:
            on_round(turn.name, done + 1, len(todo))
    return released, records


def run_round(
    plan: SessionPlan,
    turn: Round,
    slots: Slots,
    grid: Grid,
    source: NoiseSource | None,
    stream: Stream | None = None,
) -> FloatArray:
    """One keyed sum with every party's noise; shares are generated if there is a stream.

    Args:
        plan: The session.
        turn: The round.
        slots: Who sends to which key.
        grid: One integer row per user.
        source: Of the parties' noise.
        stream: Of shares; None for sums taken once.

    Raises:
        NoiseError: Noise is asked for without a source, or a sum does not fit.
    """
    if turn.noise_std > 0 and source is None:
        raise NoiseError("noise was asked for without a source", remedy="pass a NoiseSource")
    lists, columns = slots.lists, grid.shape[1]
    accumulator = lists.accumulator(grid)
    released = np.empty((lists.nodes, columns), np.float32)
    # An even number of rows per block keeps blocks of noise equal to one draw for the whole round.
    step = max(2, _BLOCK // max(columns, 1) // 2 * 2)
    for start in range(0, lists.nodes, step):
        stop = min(start + step, lists.nodes)
        if stream is None:
            sums = np.empty((stop - start, columns), accumulator)
            lists.sums(grid, sums, start)
            total: Words = sums.astype(plan.ring.dtype)
        else:
            total = _shared(plan, slots, grid, stream, start, stop)
        if plan.self_link and turn.to == "lists":
            total += grid[start:stop].astype(plan.ring.dtype)
        if turn.noise_std > 0 and source is not None:
            total += _noise(plan, turn, total.shape, source)
        released[start:stop] = to_real(plan.ring.decode(total), plan.fraction_bits)
    return released


def sending(
    plan: SessionPlan, graph: Graph, clip: Literal["sent", "received"], seed: int
) -> tuple[InLists, NDArray[np.int64]]:
    """Who sends to each key after cutting, and to how many each user sends."""
    users = np.arange(graph.nodes)
    kept = kept_entries(users, graph.indptr, graph.indices, plan.longest, seed)
    sent = np.minimum(graph.out_degrees, plan.longest)
    indptr = np.concatenate([[0], np.cumsum(sent)])
    lists = InLists.check(indptr, graph.indices[kept])
    if clip == "sent":
        lists = InLists.check(*transpose(lists.indptr, lists.indices))
    return lists, sent


def _everyone(users: int) -> InLists:
    """One key to which every user sends."""
    return InLists.check(np.array([0, users]), np.arange(users, dtype=np.int32))


def _noise(plan: SessionPlan, turn: Round, shape: tuple[int, ...], source: NoiseSource) -> Words:
    """The noise of all parties, each drawn by itself."""
    ring, bits = plan.ring, plan.fraction_bits
    total = np.zeros(shape, ring.dtype)
    if plan.noise == "gaussian":
        for _ in range(plan.parties):
            total += noise_words(source, plan.party_std(turn), shape, ring, fraction_bits=bits)
        return total
    # Distributed Laplace noise (Equation 34): a common factor B of law Beta(1, m-1), m shares.
    fine = 2.0**40
    common = -np.expm1(-source.exponential(fine, shape) / fine / max(plan.parties - 1, 1))
    for _ in range(plan.parties):
        share = source.laplace(turn.noise_std * 2.0**bits, shape)
        total += np.rint(np.sqrt(common) * share).astype(np.int64).astype(ring.dtype)
    return total


def _shared(
    plan: SessionPlan, slots: Slots, grid: Grid, stream: Stream, start: int, stop: int
) -> Words:
    """The parties' totals of some keys, from every share of every pair, put together."""
    totals = np.zeros((plan.parties, stop - start, grid.shape[1]), plan.ring.dtype)
    lists = slots.lists
    if slots.chosen is not None:
        _send(totals, plan, grid, lists.indices, lists.indptr, slots.chosen, stream, start, stop)
    if slots.dummies is not None and slots.chosen_dummies is not None:
        ends = np.concatenate([[0], np.cumsum(slots.dummies)])
        nothing = np.zeros((1, grid.shape[1]), grid.dtype)
        nobody = np.zeros(int(ends[-1]), np.int32)
        _send(totals, plan, nothing, nobody, ends, slots.chosen_dummies, stream, start, stop)
    found = totals[0]
    for other in totals[1:]:
        found += other
    return found


def _send(
    totals: Words,
    plan: SessionPlan,
    grid: Grid,
    senders: NDArray[np.int32],
    indptr: NDArray[np.int64],
    chosen: NDArray[np.uint8],
    stream: Stream,
    start: int,
    stop: int,
) -> None:
    """Shares of the pairs under keys ``start..stop-1``, in batches that stay in a cache."""
    from tacit.multiparty.kernels import share_and_add

    first, last = int(indptr[start]), int(indptr[stop])
    width = (plan.shares - 1) * grid.shape[1]
    batch = max(1, _BATCH // width)
    words = np.empty((batch, plan.shares - 1, grid.shape[1]), plan.ring.dtype)
    signed = np.int32 if plan.bits == 32 else np.int64
    cuts = np.arange(first, last, batch)
    keys = np.searchsorted(indptr, cuts, side="right") - 1
    for lo, key in zip(cuts.tolist(), keys.tolist(), strict=True):
        count = min(batch, last - lo)
        part = words[:count]
        stream.fill(part)
        share_and_add(
            totals.view(signed),
            grid,
            senders,
            indptr,
            chosen[lo : lo + count],
            part.view(signed),
            lo,
            key,
            start,
        )
