"""One computing party: what it keeps, what it answers, and when. No network, no clock.

A party acknowledges only what is on disk; it counts each slot once per round however often it is
sent; it draws noise once per round and stores its share before it says that it has one; it shows
the share only after all parties have aggregated the same slots.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from tacit.errors import SessionError
from tacit.multiparty import batches
from tacit.multiparty.agreement import REGISTRATION, Agreement
from tacit.multiparty.disk import Disk, checksum, digest
from tacit.multiparty.intake import (
    Receipt,
    Registered,
    Values,
    joined,
    split_rows,
    take_slots,
    take_values,
)
from tacit.multiparty.refusals import ABORTING, Counts, RefusedError
from tacit.multiparty.ring import Words, add_by_key, expand, mask_words, noise_words
from tacit.multiparty.sealing import ID_BYTES, TAG_BYTES, mask_seed
from tacit.multiparty.slots import Bytes, Flags, SlotTable
from tacit.multiparty.state import (
    Abort,
    Aggregate,
    Event,
    Freeze,
    Phase,
    Reconcile,
    Release,
    RoundState,
    advance,
)
from tacit.multiparty.store import Batch, Store
from tacit.multiparty.wire import batch_name
from tacit.privacy.noise import NoiseSource

MOST_ROWS = 1 << 17
"""Most rows of a batch."""

_NAME = re.compile(r"[a-z0-9-]{1,48}")
_CHUNK = 4096
_TABLE = "slots.arrow"


class Party:
    """One of the m parties.

    Args:
        agreement: The session.
        number: This party's, from 0.
        sealing: Its X25519 key.
        peers: The other parties' public keys.
        folder: Where it keeps everything.
        source: Its noise, private unless a test says otherwise.
        disk: How files are written.
    """

    def __init__(
        self,
        agreement: Agreement,
        number: int,
        sealing: X25519PrivateKey,
        peers: Mapping[int, X25519PublicKey],
        folder: Path,
        source: NoiseSource,
        disk: Disk | None = None,
    ) -> None:
        if set(peers) != set(range(agreement.plan.parties)) - {number}:
            raise SessionError("a party needs the key of every other party")
        self.agreement, self.number, self.counts = agreement, number, Counts()
        self._sealing, self._source, self._lock = sealing, source, RLock()
        self._masks = {
            other: mask_seed(sealing, key, agreement.digest, number, other)
            for other, key in peers.items()
        }
        self.store = Store(folder, f"party {number} {agreement.digest.hex()}", disk)
        self._table: SlotTable | None = None
        self._registered: dict[bytes, bytes] = {}
        self._round, self._have, self._tags = -1, np.zeros(0, bool), np.zeros((0, TAG_BYTES), "u1")
        try:
            self._reload()
        except BaseException:
            self.store.close()
            raise

    def _reload(self) -> None:
        """The registered slots, from disk."""
        if self.store.path(_TABLE).exists() and self.state(REGISTRATION).pairs is not None:
            self._table = self._load_table()
        else:
            for part in self._kept(REGISTRATION):
                self._registered.update(
                    zip(split_rows(part["name"]), split_rows(part["slot"]), strict=True)
                )

    # -- state --------------------------------------------------------------------------------

    def state(self, number: int) -> RoundState:
        """Where a round stands."""
        stored = self.store.get(f"round {number}")
        return RoundState() if stored is None else RoundState.from_dict(stored)

    @property
    def aborted(self) -> str:
        """Why the session was aborted; empty if it was not."""
        return self.store.get("aborted") or ""

    def abort(self, number: int, why: str) -> None:
        """End the session here, for good. What was released stays released."""
        with self._lock:
            if not self.aborted:
                state = advance(self.state(number), Abort(why))
                self.store.put({f"round {number}": state.to_dict(), "aborted": why})

    def _apply(self, number: int, event: Event) -> RoundState:
        self._check_alive()
        before = self.state(number)
        after = advance(before, event)
        if after != before:
            self.store.put({f"round {number}": after.to_dict()})
        return after

    def _check_alive(self) -> None:
        if self.aborted:
            raise RefusedError("aborted", f"the session was aborted: {self.aborted}")

    # -- deliveries ---------------------------------------------------------------------------

    def deliver(self, session: bytes, number: int, name: str, names: Bytes, rows: Bytes) -> Receipt:
        """Take a batch from the shuffler; on disk when this returns.

        Args:
            session: Digest of the agreement that the sender means.
            number: The round.
            name: The batch's, the same whenever it is sent again.
            names: (rows, 16): the slots' names.
            rows: Their sealed rows.

        Returns:
            How many rows were ``kept``, how many ``repeated``, and how many were refused by cause.

        Raises:
            RefusedError: Nothing of the batch was taken.
        """
        with self._lock:
            try:
                return self._deliver(session, number, name, names, rows)
            except RefusedError as refusal:
                self.counts.refused(refusal.cause)
                if refusal.cause in ABORTING:
                    self.abort(number, refusal.what)
                raise

    def _deliver(
        self, session: bytes, number: int, name: str, names: Bytes, rows: Bytes
    ) -> Receipt:
        if session != self.agreement.digest:
            raise RefusedError("session", "a batch of another session")
        self._check_alive()
        if not _NAME.fullmatch(name) or not 0 <= number <= len(self.agreement.plan.rounds):
            raise RefusedError("round", "a batch with a senseless name or round")
        if len(rows) > MOST_ROWS:
            raise RefusedError("oversize", f"a batch of {len(rows):,} rows")
        width = self.agreement.row_bytes(number)
        if names.shape != (len(rows), ID_BYTES) or rows.shape != (len(rows), width):
            raise RefusedError("length", f"rows of {rows.shape[1:]} bytes, not {width}")
        # A row's tag stands for the row: no other row opens under the same tag.
        sent = digest(names.tobytes(), rows[:, -TAG_BYTES:].tobytes())
        known = self.store.batch(number, name)
        if known is not None:
            if known.digest != sent:
                raise RefusedError("conflict", f"batch {name} was sent before with other contents")
            return dict(json.loads(known.receipt))
        if self.state(number).phase is not Phase.OPEN:
            raise RefusedError("late", f"round {number} was frozen before batch {name} came")
        if number != REGISTRATION and self._table is None:
            raise RefusedError("round", f"round {number} before the slots are agreed on")
        self._enter(number)
        taken = self._take(number, names, rows)
        receipt, columns = taken.receipt, taken.columns
        file = ""
        if receipt["kept"]:
            path, data = self.store.path(_batch_file(number, name)), _encoded(columns)
            self.store.disk.write(path, [data])
            file = checksum(data)
        batch = Batch(name, sent, len(rows), receipt["kept"], json.dumps(receipt), file)
        self.store.add_batch(number, batch)
        if isinstance(taken, Values):
            self._have[taken.slots], self._tags[taken.slots] = True, columns["tag"]
        else:
            self._registered.update(taken.fresh)
        self.counts.add("bytes received", names.nbytes + rows.nbytes)
        self.counts.add("pairs kept", receipt["kept"])
        for cause, amount in receipt.items():
            if cause.startswith("refused "):
                self.counts.add(cause, amount)
        return receipt

    def _take(self, number: int, names: Bytes, rows: Bytes) -> Registered | Values:
        """What of a batch is new and good."""
        agreement = self.agreement
        if number == REGISTRATION:
            return take_slots(agreement, self.number, self._sealing, self._registered, names, rows)
        table = self._slots
        return take_values(
            agreement, number, table, self.number, self._meant(number), self._have,
            self._tags, names, rows,
        )  # fmt: skip

    # -- agreement ----------------------------------------------------------------------------

    def freeze(self, number: int, rows: int) -> None:
        """Close a round: everything that was accepted for this party has been delivered.

        Raises:
            SessionError: Acknowledged rows are missing; the session is aborted.
        """
        with self._lock:
            held = {batch.name: batch.rows for batch in self.store.batches(number)}
            names = (batch_name(number, self.number, turn) for turn in range(len(held)))
            stored = sum(held.get(name, 0) for name in names)
            if self.state(number).phase is Phase.OPEN and stored != rows and not self.aborted:
                why = f"round {number}: {stored:,} rows are on disk where {rows:,} were sent"
                self.abort(number, why)
                raise SessionError(why, remedy="begin another session")
            self._apply(number, Freeze(rows))

    def held(self, number: int, peer: int) -> bytes:
        """The sorted names of what this party has of a round in common with another."""
        with self._lock:
            self._check_alive()
            if self.state(number).phase is Phase.OPEN:
                raise RefusedError("state", f"round {number} is still open at party {self.number}")
            self._enter(number)
            table = self._slots
            return table.names[self._mine(number) & table.held_with(peer)].tobytes()

    def reconcile(self, number: int, others: Mapping[int, bytes]) -> None:
        """Keep the slots that all their parties have, and say which those are."""
        with self._lock:
            if self.state(number).phase is not Phase.FROZEN:
                self._apply(number, Reconcile(self.state(number).pairs or {}))
                return
            if set(others) != set(self._masks):
                raise SessionError("a party reconciles with every other party at once")
            self._enter(number)
            table = self._slots
            chosen = table.agree(self._mine(number), others)
            pairs = table.pairs(chosen, sorted(self._masks))
            if number == REGISTRATION:
                table = table.only(chosen)
                columns = {"name": table.names, "slot": table.rows()}
                data = _encoded(columns)
                self.store.disk.write(self.store.path(_TABLE), [data])
                self.store.put({f"checksum {_TABLE}": checksum(data)})
            else:
                self.store.keep(f"set-{number}.bin", np.packbits(chosen).tobytes())
            self._apply(number, Reconcile(pairs))
            if number == REGISTRATION:
                self._table, self._registered = table, {}

    def _mine(self, number: int) -> Flags:
        table = self._slots
        if number == REGISTRATION:
            return np.ones(len(table), bool)
        return (self._have | ~table.receives(self.number)) & self._meant(number)

    def _meant(self, number: int) -> Flags:
        """The slots that take part in a round."""
        everyone = self._slots.for_everyone()
        return everyone if self.agreement.round(number).to == "everyone" else ~everyone

    # -- aggregation --------------------------------------------------------------------------

    def aggregate(self, number: int, agreed: str) -> str:
        """Add up the agreed slots, add noise and mask, store the share; the share's digest."""
        with self._lock:
            self._check_alive()
            state = self.state(number)
            path = self.store.path(f"share-{number}.bin")
            if state.phase is Phase.RECONCILED:
                if not path.exists():  # else a crash came between the share and its digest
                    words = self._noisy(number)
                    data = self.agreement.ring.to_bytes(words)
                    self.store.disk.write(path, [data])
                found = digest(self.store.disk.read(path))
                state = self._apply(number, Aggregate(agreed, found))
            else:
                state = self._apply(number, Aggregate(agreed, state.share))
            return state.share

    def release(self, number: int, reports: Mapping[str, tuple[str, str]]) -> None:
        """From now on the server may have the share."""
        with self._lock:
            self._apply(number, Release(reports, self.agreement.plan.parties, str(self.number)))

    def share(self, number: int) -> bytes:
        """The noisy share, for the server, once the round is released."""
        with self._lock:
            state = self.state(number)
            if state.phase is not Phase.RELEASED:
                raise RefusedError(
                    "state", f"round {number} is not released at party {self.number}"
                )
            found = self.store.disk.read(self.store.path(f"share-{number}.bin"))
        if digest(found) != state.share:
            raise SessionError(
                f"the share of round {number} was damaged on party {self.number}'s disk",
                remedy="restore its folder; a new share would need new noise",
            )
        return found

    def exact(self, number: int) -> Words:
        """The sum of this party's shares by key, before noise and mask: never leaves the party."""
        self._enter(number)
        agreement, ring, table = self.agreement, self.agreement.ring, self._slots
        keys, width = agreement.shape(number)
        packed = np.frombuffer(self.store.read(f"set-{number}.bin"), np.uint8)
        chosen = np.unpackbits(packed, count=len(table)).astype(bool) & (table.keys != -1)
        to = np.maximum(table.keys, 0)  # everyone's sum has one key
        totals = np.zeros((keys, width), ring.dtype)
        for part in self._kept(number):
            place = table.find(part["name"])
            use = chosen[place]
            rows = np.ascontiguousarray(part["share"]).view(f"<u{ring.word_bytes}")
            add_by_key(totals, to[place[use]], rows[use].astype(ring.dtype, copy=False))
        expands = np.flatnonzero(chosen & ~table.receives(self.number))
        for start in range(0, len(expands), _CHUNK):
            part_of = expands[start : start + _CHUNK]
            rows = np.empty((len(part_of), width), ring.dtype)
            for row, seed in zip(rows, split_rows(table.seeds[part_of]), strict=True):
                row[:] = expand(seed, width, ring, nonce=number)
            add_by_key(totals, to[part_of], rows)
        return totals

    def _noisy(self, number: int) -> Words:
        agreement, ring = self.agreement, self.agreement.ring
        total, std = self.exact(number), agreement.plan.party_std(agreement.round(number))
        if std > 0:
            total += noise_words(
                self._source, std, total.shape, ring, fraction_bits=agreement.plan.fraction_bits
            )
        total += mask_words(self._masks, self.number, total.shape, ring, nonce=number)
        return total

    # -- what is on disk ----------------------------------------------------------------------

    @property
    def _slots(self) -> SlotTable:
        if self._table is None:
            names = joined(list(self._registered), ID_BYTES)
            rows = joined(list(self._registered.values()), self._slot_bytes)
            return SlotTable.build(names, rows, self.agreement.plan.shares)
        return self._table

    @property
    def _slot_bytes(self) -> int:
        return 4 + 32 + self.agreement.plan.shares

    def _load_table(self) -> SlotTable:
        widths = {"name": ID_BYTES, "slot": self._slot_bytes}
        known = self.store.get(f"checksum {_TABLE}")
        (part,) = batches.load(self.store.path(_TABLE), widths, known)
        return SlotTable.build(part["name"], part["slot"], self.agreement.plan.shares)

    def _kept(self, number: int) -> list[dict[str, Bytes]]:
        """The kept rows of a round, mapped from disk."""
        if number == REGISTRATION:
            widths = {"name": ID_BYTES, "slot": self._slot_bytes}
        else:
            share = self.agreement.row_bytes(number) - TAG_BYTES
            widths = {"name": ID_BYTES, "tag": TAG_BYTES, "share": share}
        found = []
        for batch in self.store.batches(number):
            if batch.kept:
                path = self.store.path(_batch_file(number, batch.name))
                found += batches.load(path, widths, batch.file)
        return found

    def _enter(self, number: int) -> None:
        """Make the index of what has arrived in a round, from disk."""
        if number in (self._round, REGISTRATION):
            return
        table = self._slots
        self._have = np.zeros(len(table), bool)
        self._tags = np.zeros((len(table), TAG_BYTES), np.uint8)
        for part in self._kept(number):
            place = table.find(part["name"])
            self._have[place] = True
            self._tags[place] = part["tag"]
        self._round = number

    def status(self) -> dict[str, Any]:
        """For the status page: no keys, no names, no totals."""
        rounds = {
            name.removeprefix("round "): state["phase"]
            for name, state in self.store.facts("round ").items()
        }
        return {"rounds": rounds, "aborted": self.aborted, **self.counts.to_dict()}

    def close(self) -> None:
        """Let go of the folder."""
        self.store.close()


def _batch_file(number: int, name: str) -> str:
    return f"round-{number}-{name}.arrow"


def _encoded(columns: dict[str, Bytes]) -> memoryview:
    return batches.encode([batches.make(columns)])
