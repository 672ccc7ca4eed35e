"""The ledger: what was spent on which data, by which run, for which unit. Written before noise.

One SQLite file (write-ahead log, ``synchronous=FULL``). Entries are only ever added. Each
operation opens its own connection and charges hold the file's write lock, so any number of
processes may share a ledger, and a process may die at any instant: a charge that was acknowledged
is on disk, a charge that was not may be repeated under the same run name without paying twice.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.errors import BudgetError, LedgerError, PlanError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from tacit.privacy.accounting import Cost

_APPLICATION = 0x7AC17001
_SCHEMA_VERSION = 1
_BUSY_SECONDS = 120.0

_SCHEMA = """
CREATE TABLE entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    run TEXT NOT NULL, fingerprint TEXT NOT NULL, unit TEXT NOT NULL,
    epsilon REAL NOT NULL, delta REAL NOT NULL, event_json TEXT NOT NULL,
    at TEXT NOT NULL, note TEXT NOT NULL,
    UNIQUE (fingerprint, unit, run)
) STRICT;
CREATE TABLE budgets (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    fingerprint TEXT NOT NULL, unit TEXT NOT NULL,
    epsilon REAL NOT NULL, delta REAL NOT NULL, at TEXT NOT NULL
) STRICT;
"""
# REPLACE deletes without firing DELETE triggers, hence the trigger on INSERT.
_APPEND_ONLY = """
CREATE TRIGGER {table}_update BEFORE UPDATE ON {table}
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER {table}_delete BEFORE DELETE ON {table}
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER {table}_replace BEFORE INSERT ON {table}
WHEN EXISTS (SELECT 1 FROM {table} WHERE {same})
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""
_SAME = {
    "entries": "id = NEW.id OR "
    "(fingerprint = NEW.fingerprint AND unit = NEW.unit AND run = NEW.run)",
    "budgets": "id = NEW.id",
}


@dataclass(frozen=True)
class Entry:
    """One charge.

    Args:
        run: Name of the run that paid.
        fingerprint: Of the data it paid for.
        unit: Name of the unit of privacy.
        epsilon: Cost of this run alone at ``delta``, for that unit.
        delta: The run's delta.
        event_json: What the run did to the data, as ``event_to_json`` writes it.
        at: When, in UTC.
        note: The run's remark.
    """

    run: str
    fingerprint: str
    unit: str
    epsilon: float
    delta: float
    event_json: str
    at: str
    note: str


@dataclass(frozen=True)
class Budget:
    """What the owner of the data allows in total.

    Args:
        fingerprint: Of the data.
        unit: Name of the unit of privacy. Budgets of different units do not add up.
        epsilon: The most that all runs together may cost at ``delta``.
        delta: The delta at which they are composed.
        at: When it was set, in UTC.
    """

    fingerprint: str
    unit: str
    epsilon: float
    delta: float
    at: str


def default_path() -> Path:
    """Where the ledger lies: ``TACIT_LEDGER``, else the user's data directory."""
    named = os.environ.get("TACIT_LEDGER")
    if named:
        return Path(named)
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "tacit" / "ledger.sqlite"


class Ledger:
    """A ledger file. Created if it does not exist; safe to share between processes.

    Args:
        path: The file; by default :func:`default_path`.

    Raises:
        LedgerError: The file is not a ledger, is read-only, damaged, or from a later version.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else default_path()
        with self._failures(), self._connection() as connection:
            _prepare(connection, self.path)

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    def set_budget(self, fingerprint: str, unit: str, epsilon: float, delta: float) -> Budget:
        """Sets what all runs on this data may cost together; the latest for a delta counts.

        Args:
            fingerprint: Of the data.
            unit: Name of the unit of privacy.
            epsilon: The most, at least 0. A budget below what is already spent stops all charges.
            delta: The delta at which charges are composed.

        Returns:
            The budget as stored.
        """
        _check_names(fingerprint=fingerprint, unit=unit)
        if not 0.0 <= epsilon < math.inf or not 0.0 <= delta < 1.0:
            raise LedgerError(
                f"a budget of epsilon {epsilon!r} at delta {delta!r} means nothing",
                why="epsilon is a finite number of at least 0, delta a number in [0, 1)",
            )
        budget = Budget(fingerprint, unit, float(epsilon), float(delta), _now())
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO budgets (fingerprint, unit, epsilon, delta, at) VALUES (?,?,?,?,?)",
                (budget.fingerprint, budget.unit, budget.epsilon, budget.delta, budget.at),
            )
        return budget

    def charge(
        self,
        *,
        fingerprint: str,
        run: str,
        unit: str,
        event: DpEvent,
        delta: float,
        note: str = "",
    ) -> Entry:
        """Charges a run; on disk when this returns, so draw noise only afterwards.

        A run that resumes charges again under the same name and is not charged twice. It must then
        reuse the noise it stored: fresh noise is a fresh run.

        Args:
            fingerprint: Of the data.
            run: Name of the run, unique for this data and unit.
            unit: Name of the unit of privacy.
            event: What the run will do to the data.
            delta: The run's delta.
            note: A remark for the owner of the data.

        Returns:
            The entry; the earlier one if this run was charged before.

        Raises:
            BudgetError: All charges together would exceed a budget of this data and unit.
            LedgerError: The run was charged for another event, or the file cannot be written.
            PlanError: The event is unknown, so its cost is too.
        """
        from tacit.privacy.accounting import epsilon_pld
        from tacit.privacy.events import event_to_json

        _check_names(fingerprint=fingerprint, run=run, unit=unit)
        text = json.dumps(event_to_json(event), sort_keys=True, separators=(",", ":"))
        entry = Entry(run, fingerprint, unit, epsilon_pld(event, delta), delta, text, _now(), note)
        refused: tuple[Budget, float] | None = None
        with self._transaction() as connection:
            past = _entries(connection, fingerprint, unit)
            for earlier in past:
                if earlier.run == run:
                    return _same_event(earlier, entry)
            for budget in _budgets(connection, fingerprint, unit):
                total = _total(past, event, budget)
                if total > budget.epsilon:
                    refused = (budget, total)
                    break
            else:
                connection.execute(
                    "INSERT INTO entries "
                    "(run, fingerprint, unit, epsilon, delta, event_json, at, note) "
                    "VALUES (?,?,?,?,?,?,?,?)",
                    tuple(vars(entry).values()),
                )
        if refused is not None:
            raise self._refusal(entry, *refused)
        return entry

    def entries(self, fingerprint: str | None = None) -> list[Entry]:
        """All charges in the order they were made.

        Args:
            fingerprint: Only of this data, if given.
        """
        with self._failures(), self._connection() as connection:
            return _entries(connection, fingerprint, None)

    def budgets(self, fingerprint: str | None = None) -> list[Budget]:
        """The budgets in force.

        Args:
            fingerprint: Only of this data, if given.
        """
        with self._failures(), self._connection() as connection:
            return _budgets(connection, fingerprint, None)

    def total(self, fingerprint: str, unit: str, delta: float) -> Cost:
        """What all runs on this data cost together, for one unit.

        Args:
            fingerprint: Of the data.
            unit: Name of the unit of privacy.
            delta: The delta at which the runs are composed.

        Returns:
            The cost of the composition of the stored events.
        """
        from tacit.privacy.accounting import cost

        with self._failures(), self._connection() as connection:
            past = _entries(connection, fingerprint, unit)
        return cost(_composed(past), delta)

    def remaining(self, fingerprint: str, unit: str) -> float:
        """The epsilon of the largest Gaussian run that still fits every budget of data and unit.

        Epsilons of runs do not simply add up, so this is more than budget minus spent.

        Args:
            fingerprint: Of the data.
            unit: Name of the unit of privacy.

        Returns:
            Its epsilon at that budget's delta; infinite without a budget, 0 with nothing left.
        """
        with self._failures(), self._connection() as connection:
            past = _entries(connection, fingerprint, unit)
            limits = _budgets(connection, fingerprint, unit)
        return min((_room(past, budget) for budget in limits), default=math.inf)

    def _refusal(self, entry: Entry, budget: Budget, total: float) -> BudgetError:
        from tacit.privacy.accounting import epsilon_pld

        with self._failures(), self._connection() as connection:
            past = _entries(connection, entry.fingerprint, entry.unit)
        spent = epsilon_pld(_composed(past), budget.delta)
        left = self.remaining(entry.fingerprint, entry.unit)
        fits = (
            f"Plan the run at epsilon {math.floor(left * 1e3) / 1e3:g} or less"
            if left >= 1e-3
            else "Reuse what earlier runs released, which costs nothing"
        )
        return BudgetError(
            f"run {entry.run!r} would bring what was spent on this data to epsilon "
            f"{_figure(total)} (unit {entry.unit}, delta {budget.delta:g}), past the owner's "
            f"budget of {budget.epsilon:g}",
            why=f"Earlier runs spent epsilon {_figure(spent)}, so {_figure(left)} is left; this "
            f"run alone costs {_figure(entry.epsilon)} at delta {entry.delta:g}. "
            "Nothing was charged and no noise was drawn",
            remedy=f"{fits}, or ask the owner of the data to set a larger budget",
        )

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection of this call's own: none may be shared by threads or cross a fork."""
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
        elif not self.path.is_file():
            raise LedgerError(f"{self.path} is not a file", remedy="name a file for the ledger")
        elif not os.access(self.path, os.W_OK) or not self.path.stat().st_mode & 0o222:
            raise LedgerError(
                f"the ledger {self.path} is read-only",
                why="a charge must be written before any noise is drawn",
                remedy="make it writable, or name another ledger with TACIT_LEDGER",
            )
        connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous=FULL")
            yield connection
        finally:
            connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Holds the write lock; durable once left, undone if left by an error."""
        with self._failures(), self._connection() as connection:
            _check_identity(connection, self.path)
            with _write_lock(connection):
                yield connection

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(
                f"the ledger {self.path} cannot be used: {error}",
                why="nothing may be spent that is not written down first",
                remedy="free the disk, restore the file from a copy, or name another ledger",
            ) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _figure(epsilon: float) -> str:
    return "infinity (no noise)" if math.isinf(epsilon) else f"{epsilon:.4g}"


def _check_names(**names: str) -> None:
    for name, value in names.items():
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise LedgerError(f"a charge needs a {name}, not {value!r}")


@contextmanager
def _write_lock(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _check_identity(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file holds a ledger already; an error where it holds something else."""
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        raise LedgerError(
            f"{path} is not a ledger, or it is damaged",
            why=str(error),
            remedy="name another file, or restore the ledger from a copy",
        ) from error
    if (application, version, objects) == (0, 0, 0):
        return False
    if application != _APPLICATION:
        raise LedgerError(
            f"{path} is a database of another program, not a ledger",
            remedy="name another file with TACIT_LEDGER or the ledger argument",
        )
    if version > _SCHEMA_VERSION:
        raise LedgerError(
            f"{path} was written by a later version of Tacit (format {version})",
            why="its charges might be misread",
            remedy="update Tacit",
        )
    return True


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Creates the tables where there are none, once, whoever else is trying."""
    existing = _check_identity(connection, path)
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        # Changing the journal mode does not wait for other connections as statements do.
        try:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            if mode != "wal":
                connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    # Taking the lock also proves that the file can be written.
    with _write_lock(connection):
        if existing or _check_identity(connection, path):
            return
        script = _SCHEMA + "".join(
            _APPEND_ONLY.format(table=table, same=same) for table, same in _SAME.items()
        )
        for statement in _statements(script):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={_APPLICATION}")
        connection.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")


def _statements(script: str) -> Iterator[str]:
    """Single statements: ``executescript`` would commit the transaction it runs in."""
    buffer = ""
    for line in script.splitlines(keepends=True):
        buffer += line
        if sqlite3.complete_statement(buffer):
            yield buffer
            buffer = ""


def _entries(
    connection: sqlite3.Connection, fingerprint: str | None, unit: str | None
) -> list[Entry]:
    rows = connection.execute(
        "SELECT run, fingerprint, unit, epsilon, delta, event_json, at, note FROM entries "
        "WHERE (?1 IS NULL OR fingerprint = ?1) AND (?2 IS NULL OR unit = ?2) ORDER BY id",
        (fingerprint, unit),
    )
    return [Entry(*row) for row in rows]


def _budgets(
    connection: sqlite3.Connection, fingerprint: str | None, unit: str | None
) -> list[Budget]:
    rows = connection.execute(
        "SELECT fingerprint, unit, epsilon, delta, at FROM budgets WHERE id IN "
        "(SELECT max(id) FROM budgets GROUP BY fingerprint, unit, delta) "
        "AND (?1 IS NULL OR fingerprint = ?1) AND (?2 IS NULL OR unit = ?2) ORDER BY id",
        (fingerprint, unit),
    )
    return [Budget(*row) for row in rows]


def _same_event(earlier: Entry, now: Entry) -> Entry:
    if earlier.event_json == now.event_json:
        return earlier
    raise LedgerError(
        f"run {now.run!r} was charged for something else on {earlier.at}",
        why="one run name stands for one event; the new plan differs from the one that was paid",
        remedy="start a run with a new name, or resume with the plan that was charged",
    )


def _composed(entries: Sequence[Entry], event: DpEvent | None = None) -> DpEvent:
    """Everything that was done to the data, from the stored events."""
    import dp_accounting as dp

    from tacit.privacy.events import event_from_json

    parts = [event_from_json(json.loads(entry.event_json)) for entry in entries]
    return dp.ComposedDpEvent(parts if event is None else [*parts, event])


def _total(entries: Sequence[Entry], event: DpEvent, budget: Budget) -> float:
    """Cost of everything with one more event; the slow exact figure only where it decides."""
    from tacit.privacy.accounting import epsilon_pld

    everything = _composed(entries, event)
    quick = epsilon_pld(everything, budget.delta, resolution="coarse")
    return quick if quick <= budget.epsilon else epsilon_pld(everything, budget.delta)


def _room(entries: Sequence[Entry], budget: Budget) -> float:
    import dp_accounting as dp

    from tacit.privacy.accounting import calibrate, epsilon_pld

    past = _composed(entries)
    if budget.epsilon == 0.0 or budget.delta == 0.0:
        return max(0.0, budget.epsilon - epsilon_pld(past, budget.delta))
    try:
        scale = calibrate(
            lambda noise: dp.ComposedDpEvent([past, dp.GaussianDpEvent(noise)]),
            budget.epsilon,
            budget.delta,
        )
    except PlanError:
        return 0.0
    return epsilon_pld(dp.GaussianDpEvent(scale), budget.delta)
