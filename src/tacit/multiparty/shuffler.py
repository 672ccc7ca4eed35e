"""The shuffler: takes every user's upload, and passes the rows on without saying whose they are.

It acknowledges what is on disk. When the round is frozen it draws one permutation for each party,
stores its seed, and sends each party its rows in that order; after a crash it sends the very same
batches again, and the parties know them. All uploads of a round have the same length, so it learns
no degree; everything it holds is sealed to the parties.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from tacit.errors import SessionError, TacitError
from tacit.multiparty import batches
from tacit.multiparty.agreement import REGISTRATION, Agreement
from tacit.multiparty.certificates import Identity
from tacit.multiparty.disk import Disk, checksum
from tacit.multiparty.refusals import Counts, RefusedError
from tacit.multiparty.ring import Ring, Stream
from tacit.multiparty.sealing import ID_BYTES
from tacit.multiparty.slots import Bytes
from tacit.multiparty.store import Batch, Store
from tacit.multiparty.wire import Upload, batch_name, parse_upload

Deliver = Callable[[int, int, str, Bytes, Bytes], dict[str, int]]
"""Sends ``(party, round, batch, names, rows)`` and returns the party's receipt."""

BATCH_BYTES = 8 << 20
_OPEN, _FROZEN = "open", "frozen"


@dataclass(eq=False)
class _Waiting:
    upload: Upload
    done: bool = False
    error: TacitError | None = field(default=None)


class Shuffler:
    """Holds the uploads of a session.

    Args:
        agreement: The session.
        folder: Where it keeps them.
        disk: How files are written.
    """

    def __init__(self, agreement: Agreement, folder: Path, disk: Disk | None = None) -> None:
        self.agreement, self.counts = agreement, Counts()
        self.store = Store(folder, f"shuffler {agreement.digest.hex()}", disk)
        self._queue: list[_Waiting] = []
        self._queue_lock, self._write_lock = Lock(), Lock()
        self._taken: dict[int, dict[int, str]] = {}

    # -- uploads ------------------------------------------------------------------------------

    def accept(self, sender: Identity, message: bytes) -> dict[str, Any]:
        """Take one upload; on disk when this returns. Uploads that come together share an fsync.

        Raises:
            RefusedError: Nothing of it was taken. ``conflict``: the session must end.
        """
        try:
            if sender.session != self.agreement.session:
                raise RefusedError("certificate", "a certificate of another session")
            upload = parse_upload(self.agreement, message)
            if not sender.acts_for(upload.user):
                raise RefusedError(
                    "certificate", "an upload for a user the sender does not act for"
                )
            entry = _Waiting(upload)
            with self._queue_lock:
                self._queue.append(entry)
            with self._write_lock:
                if not entry.done:
                    with self._queue_lock:
                        group, self._queue = self._queue, []
                    self._write(group)
            if entry.error is not None:
                raise entry.error
        except RefusedError as refusal:
            self.counts.refused(refusal.cause)
            raise
        return {"accepted": True, "digest": upload.digest}

    def _write(self, group: list[_Waiting]) -> None:
        """Store what of a group is new, with one file and one transaction per round."""
        fresh: dict[int, list[_Waiting]] = {}
        for entry in group:
            entry.done = True
            try:
                if self._is_new(entry.upload, fresh):
                    fresh.setdefault(entry.upload.number, []).append(entry)
            except RefusedError as refusal:
                entry.error = refusal
        for number, entries in fresh.items():
            try:
                self._store(number, [entry.upload for entry in entries])
            except BaseException as error:
                failed = (
                    error
                    if isinstance(error, TacitError)
                    else SessionError("the upload was not stored", why=repr(error))
                )
                for entry in entries:
                    entry.error = failed
                if not isinstance(error, TacitError):
                    raise

    def _is_new(self, upload: Upload, fresh: dict[int, list[_Waiting]]) -> bool:
        if self.aborted:
            raise RefusedError("aborted", f"the session was aborted: {self.aborted}")
        before = self.taken(upload.number).get(upload.user)
        for entry in fresh.get(upload.number, ()):
            if entry.upload.user == upload.user:
                before = entry.upload.digest
        if before is not None:
            if before != upload.digest:
                self.abort(f"a user sent two different uploads for round {upload.number}")
                raise RefusedError("conflict", f"an upload for round {upload.number}")
            self.counts.add("uploads repeated")
            return False
        stands = self.phase(upload.number)
        if stands == _FROZEN:
            raise RefusedError("late", f"an upload for round {upload.number}")
        if stands != _OPEN:
            raise RefusedError("round", f"an upload for round {upload.number}, which is not open")
        return True

    def _store(self, number: int, uploads: list[Upload]) -> None:
        name = f"uploads-{number}-{len(self.store.batches(number))}"
        made = [
            batches.make({"party": u.parties.reshape(-1, 1), "name": u.names, "row": u.rows})
            for u in uploads
        ]
        data = batches.encode(made)
        self.store.disk.write(self.store.path(f"{name}.arrow"), [data])
        rows = sum(len(u.parties) for u in uploads)
        held = {u.user: u.digest for u in uploads}
        self.store.add_batch(number, Batch(name, "", rows, rows, "{}", checksum(data)), held)
        self.taken(number).update(held)
        self.counts.add("uploads", len(uploads))
        self.counts.add("bytes received", sum(u.names.nbytes + u.rows.nbytes for u in uploads))

    def taken(self, number: int) -> dict[int, str]:
        """Which users have been heard in a round."""
        if number not in self._taken:
            self._taken[number] = self.store.uploads(number)
        return self._taken[number]

    def missing(self, number: int) -> int:
        """Users who are expected in a round and have not been heard: all, then who registered."""
        if number == REGISTRATION:
            return self.agreement.plan.users - len(self.taken(number))
        return len(set(self.taken(REGISTRATION)) - set(self.taken(number)))

    # -- rounds -------------------------------------------------------------------------------

    @property
    def aborted(self) -> str:
        """Why the session ended; empty while it goes on."""
        return self.store.get("aborted") or ""

    def abort(self, why: str) -> None:
        """Take nothing any more."""
        if not self.aborted:
            self.store.put({"aborted": why})

    def phase(self, number: int) -> str | None:
        """``open``, ``frozen``, or None before it was opened."""
        found = self.store.get(f"phase {number}")
        return None if found is None else str(found)

    def open(self, number: int) -> None:
        """Let uploads of a round in, unless it was frozen already."""
        with self._write_lock:
            if self.phase(number) is None:
                self.store.put({f"phase {number}": _OPEN})

    def freeze(self, number: int) -> None:
        """Let no more uploads in; draw the order in which rows will leave."""
        with self._write_lock:
            if self.phase(number) != _FROZEN:
                key = os.urandom(32).hex()
                self.store.put({f"order {number}": key, f"phase {number}": _FROZEN})

    def forward(self, number: int, deliver: Deliver, workers: int = 1) -> dict[str, int]:
        """Send every party its rows; may be repeated, and sends the same batches again.

        Args:
            number: The round.
            deliver: Sends one batch.
            workers: How many batches may be under way at once.

        Returns:
            Rows sent to each party.

        Raises:
            SessionError: A party could not be reached or refused a batch for good.
        """
        sent = {str(party): 0 for party in range(self.agreement.plan.parties)}
        started = time.perf_counter()

        def send(work: tuple[int, str, Bytes, Bytes]) -> None:
            party, name, names, rows = work
            receipt = deliver(party, number, name, names, rows)
            self.counts.add("bytes sent", names.nbytes + rows.nbytes)
            for cause, amount in receipt.items():
                if cause.startswith("refused "):
                    self.counts.add(f"{cause} by parties", amount)

        if workers == 1:
            for work in self.batches(number):
                send(work)
                sent[str(work[0])] += len(work[3])
        else:
            with ThreadPoolExecutor(workers) as pool:
                under_way: deque[Future[None]] = deque()
                for work in self.batches(number):
                    under_way.append(pool.submit(send, work))
                    sent[str(work[0])] += len(work[3])
                    if len(under_way) > workers:
                        under_way.popleft().result()
                for future in under_way:
                    future.result()
        self.counts.add("milliseconds sending", round(1e3 * (time.perf_counter() - started)))
        return sent

    def batches(self, number: int) -> Iterator[tuple[int, str, Bytes, Bytes]]:
        """The batches of a frozen round: party, name, slots' names, rows. Always the same."""
        if self.phase(number) != _FROZEN:
            raise RefusedError("state", f"round {number} is still open")
        size = self.agreement.row_bytes(number)
        widths = {"party": 1, "name": ID_BYTES, "row": size}
        parts: list[dict[str, Bytes]] = []
        for batch in self.store.batches(number):
            parts += batches.load(self.store.path(f"{batch.name}.arrow"), widths, batch.file)
        if not parts:
            return
        to = np.concatenate([part["party"][:, 0] for part in parts])
        first = np.cumsum([0, *(len(part["party"]) for part in parts)])
        stream = Stream(bytes.fromhex(self.store.get(f"order {number}")))
        rank = stream.words(len(to), Ring(64))
        step = int(np.clip(BATCH_BYTES // size, 1, 1 << 16))
        plans = []
        for party in range(self.agreement.plan.parties):
            own = np.flatnonzero(to == party)
            plans.append(own[np.argsort(rank[own], kind="stable")])
        for turn in range(max(-(-len(plan) // step) for plan in plans)):
            for party, plan in enumerate(plans):
                chosen = plan[turn * step : (turn + 1) * step]
                if len(chosen):
                    names, rows = _gather(parts, first, chosen, size)
                    yield party, batch_name(number, party, turn), names, rows

    def status(self) -> dict[str, Any]:
        """For the status page."""
        taken = {
            name.removeprefix("phase "): len(self.taken(int(name.removeprefix("phase "))))
            for name in self.store.facts("phase ")
        }
        return {"uploads by round": taken, "aborted": self.aborted, **self.counts.to_dict()}

    def close(self) -> None:
        """Let go of the folder."""
        self.store.close()


def _gather(
    parts: list[dict[str, Bytes]], first: Any, chosen: Any, size: int
) -> tuple[Bytes, Bytes]:
    """Rows from all over the uploads, in the order asked for."""
    names = np.empty((len(chosen), ID_BYTES), np.uint8)
    rows = np.empty((len(chosen), size), np.uint8)
    part_of = np.searchsorted(first, chosen, side="right") - 1
    order = np.argsort(part_of, kind="stable")
    ends = np.searchsorted(part_of[order], np.arange(len(parts) + 1))
    for j, part in enumerate(parts):
        here = order[ends[j] : ends[j + 1]]
        if len(here):
            local = chosen[here] - first[j]
            names[here], rows[here] = part["name"][local], part["row"][local]
    return names, rows
