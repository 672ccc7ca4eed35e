"""A user's agent: makes the slots of one or many users, seals them, and sends what is due.

Slots are drawn once and stored before the first is sent, and sealed slots are stored as sent, so
that an agent that died sends the very same bytes again. A value needs no storing: its share is the
value less what the seeds stand for, the same every time; its digest is kept, so that a value that
changed in between is never sealed under the same nonce.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from numpy.typing import NDArray

from tacit.errors import SessionError
from tacit.multiparty.agreement import EVERYONE, PAD, REGISTRATION, Agreement
from tacit.multiparty.disk import Disk
from tacit.multiparty.records import draw_dummies
from tacit.multiparty.ring import SEED_BYTES, Ring, Stream, choose_parties, last_share
from tacit.multiparty.sealing import ID_BYTES, Slot, seal_slot, seal_value
from tacit.multiparty.slots import Bytes
from tacit.multiparty.store import Store
from tacit.multiparty.wire import pack_upload
from tacit.privacy.noise import NoiseSource

Rows = NDArray[np.signedinteger]
CHUNK = 64
"""Users whose sealed slots share a file."""

_SLOTS = "slots.npz"


@dataclass(frozen=True, eq=False)
class Lists:
    """To whom each of an agent's users sends: ``indices[indptr[j]:indptr[j + 1]]`` for the j-th."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.signedinteger]


class Agent:
    """Acts for the users ``first .. first + number of lists - 1``.

    Args:
        agreement: The session.
        first: The first user.
        lists: The users' lists, already cut to the session's bound.
        parties: Every party's public key.
        folder: Where it keeps slots.
        source: For the numbers of dummies, private unless a test says otherwise.
        stream: For names, seeds and choices of parties.
        disk: How files are written.
    """

    def __init__(
        self,
        agreement: Agreement,
        first: int,
        lists: Lists,
        parties: Mapping[int, X25519PublicKey],
        folder: Path,
        source: NoiseSource,
        stream: Stream,
        disk: Disk | None = None,
    ) -> None:
        self.agreement, self.first, self.count = agreement, first, len(lists.indptr) - 1
        lengths = np.diff(lists.indptr)
        if self.count < 1 or not 0 <= first <= first + self.count <= agreement.plan.users:
            raise SessionError("an agent acts for users of the session")
        if lengths.max(initial=0) > agreement.plan.longest:
            raise SessionError(
                f"a list has {lengths.max()} links, and {agreement.plan.longest} are allowed",
                remedy="cut lists to the session's bound, reading each list alone",
            )
        self.store = Store(folder, f"user {first} {agreement.digest.hex()}", disk)
        self._parties = parties
        path = self.store.path(_SLOTS)
        if not path.exists():
            self.store.disk.write(path, [_draw(agreement, first, lists, source, stream)])
        with np.load(io.BytesIO(self.store.disk.read(path)), allow_pickle=False) as slots:
            self._names, self._keys = slots["names"], slots["keys"]
            self._chosen, self._seeds = slots["parties"], slots["seeds"]
            self._real = slots["real"]

    def registrations(self) -> Iterator[tuple[int, bytes]]:
        """The users' registration uploads: user and message, always the same bytes."""
        for start in range(0, self.count, CHUNK):
            path = self.store.path(f"registered-{start}.bin")
            if not path.exists():
                made = [self._register(j) for j in range(start, min(start + CHUNK, self.count))]
                self.store.disk.write(path, made)
            raw = self.store.disk.read(path)
            size = len(raw) // min(CHUNK, self.count - start)
            for j in range(len(raw) // size):
                yield self.first + start + j, raw[j * size : (j + 1) * size]

    def values(self, number: int, rows: Rows) -> Iterator[tuple[int, bytes]]:
        """The users' uploads of a round: user and message.

        Args:
            number: The round, from 1.
            rows: One row of grid integers for each user: what it adds to every key on its list.

        Raises:
            SessionError: The rows are not those that this round began with.
        """
        agreement, ring = self.agreement, self.agreement.ring
        if rows.shape != (self.count, agreement.round(number).columns):
            raise SessionError(f"rows {rows.shape} do not fit round {number}")
        words = ring.encode(rows)
        held = sha256(ring.to_bytes(words)).hexdigest()
        before = self.store.get(f"values {number}")
        if before is None:
            self.store.put({f"values {number}": held})
        elif before != held:
            raise SessionError(
                f"the values of round {number} have changed since it began",
                why="two values under one seed would show their difference",
                remedy="restore the records, or begin another session",
            )
        for j in range(self.count):
            yield self.first + j, self._seal(number, j, words[j])

    def _register(self, j: int) -> bytes:
        agreement, shares = self.agreement, self.agreement.plan.shares
        parties, names, rows = [], [], []
        for s in range(agreement.slots):
            name, chosen = self._names[j, s].tobytes(), self._chosen[j, s].tobytes()
            for k, party in enumerate(chosen):
                slot = Slot(name, int(self._keys[j, s]), chosen, self._seeds[j, s, k].tobytes())
                parties.append(party)
                names.append(name)
                rows.append(seal_slot(slot, self._parties[party], agreement.digest, party))
        count, size = agreement.slots * shares, agreement.row_bytes(REGISTRATION)
        return pack_upload(
            agreement,
            REGISTRATION,
            self.first + j,
            np.array(parties, np.uint8),
            np.frombuffer(b"".join(names), np.uint8).reshape(count, ID_BYTES),
            np.frombuffer(b"".join(rows), np.uint8).reshape(count, size),
        )

    def _seal(self, number: int, j: int, value: Any) -> bytes:
        agreement, ring = self.agreement, self.agreement.ring
        zero, sealed = np.zeros_like(value), []
        if agreement.round(number).to == "everyone":
            used = range(agreement.listed, agreement.slots)
        else:
            used = range(agreement.listed)
        for s in used:
            seeds = [seed.tobytes() for seed in self._seeds[j, s]]
            plain = value if self._real[j, s] else zero
            share = ring.to_bytes(last_share(plain, seeds[:-1], ring, nonce=number))
            name = self._names[j, s].tobytes()
            sealed.append(seal_value(share, seeds[-1], agreement.digest, number, name))
        rows = np.frombuffer(b"".join(sealed), np.uint8)
        size = agreement.row_bytes(number)
        part = slice(used.start, used.stop)
        to = np.ascontiguousarray(self._chosen[j, part, -1])
        return pack_upload(
            agreement, number, self.first + j, to, self._names[j, part], rows.reshape(-1, size)
        )

    @property
    def dummies(self) -> NDArray[np.int64]:
        """How many dummies each user made."""
        own = (self._keys < EVERYONE) & ~self._real
        return np.asarray(own.sum(axis=1), np.int64)

    def close(self) -> None:
        """Let go of the folder."""
        self.store.close()


def _draw(
    agreement: Agreement, first: int, lists: Lists, source: NoiseSource, stream: Stream
) -> bytes:
    """All slots of an agent's users, in random order within each user, as one npz file."""
    users, slots = len(lists.indptr) - 1, agreement.slots
    plan, listed = agreement.plan, agreement.listed
    shares, lengths = plan.shares, np.diff(lists.indptr)
    dummies = np.minimum(draw_dummies(plan.dummies, users, source), agreement.most)
    keys = np.full((users, slots), PAD, np.uint32)
    real = np.zeros((users, slots), bool)
    for j in range(users):
        links, own = int(lengths[j]), int(dummies[j])
        if listed:
            keys[j, :links] = lists.indices[lists.indptr[j] : lists.indptr[j + 1]]
            keys[j, links : links + plan.self_link + own] = first + j
            real[j, : links + plan.self_link] = True
            order = np.argsort(stream.words(listed, Ring(64)), kind="stable")
            keys[j, :listed], real[j, :listed] = keys[j, order], real[j, order]
        keys[j, listed:], real[j, listed:] = EVERYONE, True
    random = stream.words((users, slots, (ID_BYTES + shares * SEED_BYTES) // 4), Ring(32))
    raw: Bytes = random.view(np.uint8)
    chosen = choose_parties(users * slots, plan.parties, shares, stream)
    found = io.BytesIO()
    np.savez(
        found,
        names=raw[:, :, :ID_BYTES],
        seeds=raw[:, :, ID_BYTES:].reshape(users, slots, shares, SEED_BYTES),
        keys=keys,
        real=real,
        parties=chosen.reshape(users, slots, shares),
    )
    return found.getvalue()
