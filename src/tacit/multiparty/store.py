"""What a role remembers: one SQLite file (write-ahead log, ``synchronous=FULL``) and its folder.

A fact or a batch that was stored is on disk when the call returns. One process at a time holds a
store; the system lets go when the process dies, however it dies.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

from tacit.errors import SessionError
from tacit.multiparty.disk import Disk, digest
from tacit.multiparty.refusals import RefusedError

FILE, LOCK_FILE = "state.sqlite", ".lock"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS batches (
    round INTEGER NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL,
    rows INTEGER NOT NULL, kept INTEGER NOT NULL, receipt TEXT NOT NULL, file TEXT NOT NULL,
    PRIMARY KEY (round, name)
) STRICT;
CREATE TABLE IF NOT EXISTS uploads (
    round INTEGER NOT NULL, user INTEGER NOT NULL, digest TEXT NOT NULL,
    PRIMARY KEY (round, user)
) STRICT;
"""


@dataclass(frozen=True)
class Batch:
    """A batch that was acknowledged.

    Attributes:
        name: Its name, also of its file.
        digest: Of the names and tags of its rows as they were sent.
        rows: How many it had.
        kept: How many of them were kept.
        receipt: What was answered, as JSON.
        file: Checksum of the file that holds what was kept.
    """

    name: str
    digest: str
    rows: int
    kept: int
    receipt: str
    file: str


class Store:
    """A role's folder.

    Args:
        folder: Made if it is missing.
        owner: Who it belongs to: session, role and configuration. Another owner is refused.
        disk: How files are written.

    Raises:
        SessionError: Another process holds the folder, or it cannot be used.
        RefusedError: It belongs to another session, role or configuration.
    """

    def __init__(self, folder: Path, owner: str, disk: Disk | None = None) -> None:
        self.folder, self.disk = folder, disk or Disk()
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = RLock()
        self._held = (folder / LOCK_FILE).open("a")
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._held.close()
            raise SessionError(
                f"another process is working in {folder}",
                why="two of them could draw noise twice for one round",
                remedy="stop it first",
            ) from error
        try:
            self._database = sqlite3.connect(
                folder / FILE, isolation_level=None, check_same_thread=False
            )
            with self._failures():
                self._database.execute("PRAGMA journal_mode=WAL")
                self._database.execute("PRAGMA synchronous=FULL")
                self._database.executescript(_SCHEMA)
            self.disk.sweep(folder)
            with self._failures():
                rows = self._database.execute("SELECT name, value FROM facts").fetchall()
            # Nobody else writes while the lock is held, so facts are read from disk once.
            self._facts = dict[str, str](rows)
            known = self.get("owner")
            if known is None:
                self.put({"owner": owner})
            elif known != owner:
                raise RefusedError(
                    "session",
                    f"the folder {folder.name} belongs to another session or configuration",
                    remedy="restart with the configuration it was begun with",
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go. What was not committed is gone, as if the process had died."""
        database = getattr(self, "_database", None)
        if database is not None:
            database.close()
        self._held.close()

    def path(self, name: str) -> Path:
        """Of a file in the folder."""
        return self.folder / name

    def get(self, name: str) -> Any:
        """A fact, or None."""
        with self._lock:
            found = self._facts.get(name)
        return None if found is None else json.loads(found)

    def put(self, facts: Mapping[str, Any]) -> None:
        """Store facts, all of them or none."""
        texts = {name: json.dumps(value) for name, value in facts.items()}
        with self._lock:
            with self._transaction("facts") as database:
                database.executemany(
                    "INSERT INTO facts VALUES (?, ?) "
                    "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    list(texts.items()),
                )
            self._facts.update(texts)

    def facts(self, prefix: str) -> dict[str, Any]:
        """All facts whose names begin so."""
        with self._lock:
            found = {name: text for name, text in self._facts.items() if name.startswith(prefix)}
        return {name: json.loads(text) for name, text in sorted(found.items())}

    def keep(self, name: str, data: bytes | memoryview) -> str:
        """Write a file and remember its digest."""
        self.disk.write(self.path(name), [data])
        found = digest(data)
        self.put({f"digest {name}": found})
        return found

    def read(self, name: str) -> bytes:
        """A file that was kept.

        Raises:
            SessionError: It is not what was written.
        """
        found = self.disk.read(self.path(name))
        if digest(found) != self.get(f"digest {name}"):
            raise SessionError(
                f"{name} was damaged on disk", remedy="abort the session and begin another"
            )
        return found

    def batch(self, number: int, name: str) -> Batch | None:
        """A batch of a round, if it was acknowledged."""
        found = self._batches("WHERE round = ? AND name = ?", (number, name))
        return found[0] if found else None

    def batches(self, number: int) -> list[Batch]:
        """All batches of a round."""
        return self._batches("WHERE round = ?", (number,))

    def add_batch(
        self, number: int, batch: Batch, uploads: Mapping[int, str] | None = None
    ) -> None:
        """Remember a batch whose file is on disk already, and the uploads it holds."""
        with self._transaction("batch") as database:
            database.execute(
                "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)", (number, *vars(batch).values())
            )
            database.executemany(
                "INSERT INTO uploads VALUES (?, ?, ?)",
                [(number, user, held) for user, held in (uploads or {}).items()],
            )

    def uploads(self, number: int) -> dict[int, str]:
        """Digests of the uploads of a round, by user."""
        with self._lock, self._failures():
            rows = self._database.execute(
                "SELECT user, digest FROM uploads WHERE round = ?", (number,)
            ).fetchall()
        return dict(rows)

    def _batches(self, where: str, values: tuple[Any, ...]) -> list[Batch]:
        with self._lock, self._failures():
            rows = self._database.execute(
                "SELECT name, digest, rows, kept, receipt, file FROM batches "
                f"{where} ORDER BY rowid",
                values,
            ).fetchall()
        return [Batch(*row) for row in rows]

    @contextmanager
    def _transaction(self, what: str) -> Iterator[sqlite3.Connection]:
        with self._lock, self._failures():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self.disk.step(f"storing {what}", self.folder)
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
            self.disk.step(f"stored {what}", self.folder)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise SessionError(
                f"the state in {self.folder.name} cannot be used: {error}",
                remedy="free the disk or restore the folder; nothing was acknowledged",
            ) from error
