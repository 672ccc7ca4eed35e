"""The server: puts the released shares together, and gives each user its own row.

It sees noisy sums and nothing before them. What it puts together is on disk before it says so.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import SessionError
from tacit.multiparty.agreement import Agreement
from tacit.multiparty.certificates import Identity
from tacit.multiparty.disk import Disk, digest
from tacit.multiparty.refusals import Counts, RefusedError
from tacit.multiparty.ring import reconstruct
from tacit.multiparty.store import Store


class Server:
    """Holds what a session released.

    Args:
        agreement: The session.
        folder: Where the sums lie: ``released-ROUND.npy``, integers on the grid.
        disk: How files are written.
    """

    def __init__(self, agreement: Agreement, folder: Path, disk: Disk | None = None) -> None:
        self.agreement, self.counts = agreement, Counts()
        self.store = Store(folder, f"server {agreement.digest.hex()}", disk)
        self._lock, self._sums = RLock(), dict[int, NDArray[np.int64]]()

    def publish(
        self,
        number: int,
        shares: Mapping[str, tuple[str, str]],
        fetch: Callable[[int], bytes],
    ) -> str:
        """Fetch every party's share, check it against what it reported, and add them up.

        Args:
            number: The round.
            shares: For each party the agreed hash and its share's digest.
            fetch: Gets a party's share.

        Returns:
            Digest of the sums.

        Raises:
            SessionError: A share is missing or is not the one that was reported.
        """
        with self._lock:
            done = self.store.get(f"published {number}")
            if done is not None:
                return str(done)
            agreement, ring = self.agreement, self.agreement.ring
            keys, width = agreement.shape(number)
            if set(shares) != {str(party) for party in range(agreement.plan.parties)}:
                raise SessionError(f"round {number} was released without all parties' shares")
            totals = []
            for party in range(agreement.plan.parties):
                raw = fetch(party)
                if digest(raw) != shares[str(party)][1]:
                    raise SessionError(f"party {party} sent another share than it reported")
                words = ring.from_bytes(raw, keys * width)
                totals.append(words.reshape(keys, width))
                self.counts.add("bytes received", len(raw))
            sums = reconstruct(totals, ring)
            data = io.BytesIO()
            np.save(data, sums)
            found = self.store.keep(self.path(number).name, data.getvalue())
            self.store.put({f"published {number}": found})
            return found

    def path(self, number: int) -> Path:
        """Where a round's sums lie."""
        return self.store.path(f"released-{number}.npy")

    def sums(self, number: int) -> NDArray[np.int64]:
        """The noisy sums of a round, in grid steps.

        Raises:
            RefusedError: It is not released.
        """
        with self._lock:
            if number not in self._sums:
                published = self.store.get(f"published {number}")
                if published is None:
                    raise RefusedError("state", f"round {number} is not released")
                raw = self.store.read(self.path(number).name)
                self._sums[number] = np.load(io.BytesIO(raw), allow_pickle=False)
            return self._sums[number]

    def rows(self, sender: Identity, number: int, first: int, last: int) -> bytes:
        """The rows of users, for whoever acts for them and nobody else; little-endian int64.

        Raises:
            RefusedError: The sender acts for others, or the round is not released.
        """
        try:
            if sender.session != self.agreement.session:
                raise RefusedError("certificate", "a certificate of another session")
            if not first <= last or not (sender.acts_for(first) and sender.acts_for(last)):
                raise RefusedError("certificate", "a row of a user the sender does not act for")
            sums = self.sums(number)
            if last >= len(sums):
                raise RefusedError("role", f"round {number} has no such row")
            return sums[first : last + 1].astype("<i8").tobytes()
        except RefusedError as refusal:
            self.counts.refused(refusal.cause)
            raise

    def whole(self, sender: Identity, number: int) -> bytes:
        """All sums of a round, for any user, where answers are made at home or all share one row.

        What was released may be shown to anyone; but a user who asked for the rows of its list
        would show who is on it.

        Raises:
            RefusedError: In this session users are given their own rows only.
        """
        try:
            if sender.session != self.agreement.session or sender.role != "user":
                raise RefusedError("certificate", "only users of this session are given sums")
            one = self.agreement.round(number).to == "everyone"
            if not (one or self.agreement.shows_whole):
                raise RefusedError("certificate", "in this session a user is given its own row")
            return self.sums(number).astype("<i8").tobytes()
        except RefusedError as refusal:
            self.counts.refused(refusal.cause)
            raise

    def status(self) -> dict[str, Any]:
        """For the status page."""
        rounds = sorted(name.split()[1] for name in self.store.facts("published "))
        return {"released": rounds, **self.counts.to_dict()}

    def close(self) -> None:
        """Let go of the folder."""
        self.store.close()
