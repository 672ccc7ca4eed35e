"""Users' agents as a process: registers slots, then sends every round's values while it is open."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from tacit.errors import SessionError
from tacit.graph.graph import FloatArray
from tacit.graph.transforms import kept_entries
from tacit.multiparty.agent import Agent, Lists, Rows
from tacit.multiparty.agreement import REGISTRATION, Agreement
from tacit.multiparty.calls import Calls, UnreachableError
from tacit.multiparty.config import RoleConfig
from tacit.multiparty.driving import Orders, check_orders, message
from tacit.multiparty.enrolment import Enrolled, credentials
from tacit.multiparty.records import Records, make_grid
from tacit.multiparty.refusals import Counts, RefusedError
from tacit.multiparty.ring import Stream, to_real
from tacit.multiparty.state import Phase
from tacit.multiparty.wire import pack
from tacit.privacy.noise import NoiseSource

_UNDER_WAY = 8
_WAIT = 0.05


class Users:
    """The agents of a range of users.

    Args:
        config: The role's configuration; ``records`` is what :func:`save_records` wrote.
        held: What enrolment gave.
    """

    def __init__(self, config: RoleConfig, held: Enrolled) -> None:
        if config.records is None:
            raise SessionError("an agent needs its users' records")
        records = load_records(config.records)
        lists = cut(held.agreement, records)
        self._config, self._held, self.counts = config, held, Counts()
        self.agent = Agent(
            held.agreement, config.number, lists, held.parties, config.folder,
            NoiseSource.fresh(), Stream.fresh(),
        )  # fmt: skip
        self._records = replace(records, dummies=self.agent.dummies, sent=np.diff(lists.indptr))
        self._released: dict[str, FloatArray] = {}
        self._coordinator = Calls(config.coordinator, held.credentials, "coordinator")
        self._server = Calls(config.server, held.credentials, "server")
        self._shuffler = Calls(config.shuffler, held.credentials, "shuffler")
        self._sent: set[int] = set()
        self._own: dict[int, Any] = {}

    def turn(self) -> Orders:
        """Send what the open round wants, if it was not sent."""
        agreement = self._held.agreement
        look = json.dumps(message(agreement, "look", 0)).encode()
        orders: Orders = json.loads(self._coordinator("report", look))
        check_orders(self.agent.store, agreement, orders)
        number = orders["round"]
        if orders["phase"] == Phase.OPEN and number not in self._sent:
            if number == REGISTRATION:
                self._send(number, self.agent.registrations())
            else:
                self._send(number, self.agent.values(number, self._rows(number)))
            self._sent.add(number)
        return orders

    def _rows(self, number: int) -> Rows:
        """What the users add in a round: from their records and what earlier rounds released."""
        agreement = self._held.agreement
        for earlier in range(1, number):
            name = agreement.round(earlier).name
            if name not in self._released:
                self._released[name] = self._fetch(earlier)
        turn = agreement.round(number)
        return make_grid(agreement.plan, turn, self._records, self._released)

    def _fetch(self, number: int) -> FloatArray:
        """A round's sums: all of them where that is the session's way, else the users' own rows."""
        agreement = self._held.agreement
        keys, width = agreement.shape(number)
        if agreement.shows_whole or agreement.round(number).to == "everyone":
            raw = self._server("whole", pack({"round": number}))
            sums = np.frombuffer(raw, "<i8").reshape(keys, width)
        else:
            first, count = self.agent.first, self.agent.count
            asked = {"round": number, "first": first, "last": first + count - 1}
            raw = self._server("rows", pack(asked))
            sums = np.zeros((keys, width), np.int64)
            sums[first : first + count] = np.frombuffer(raw, "<i8").reshape(count, width)
        return to_real(sums, agreement.plan.fraction_bits)

    def _send(self, number: int, uploads: Iterable[tuple[int, bytes]]) -> None:
        """Send all uploads, a few at a time, until each is acknowledged or the round is over."""
        under_way: list[Future[None]] = []
        with ThreadPoolExecutor(_UNDER_WAY) as pool:
            for user, upload in _paced(uploads, under_way):
                under_way.append(pool.submit(self._deliver, user, upload))
            for future in under_way:
                future.result()

    def _deliver(self, user: int, upload: bytes) -> None:
        until = time.monotonic() + self._held.agreement.seconds
        while True:
            try:
                self._line(user)("upload", upload)
                self.counts.add("uploads")
                self.counts.add("bytes sent", len(upload))
                return
            except UnreachableError:
                if time.monotonic() > until:
                    raise
            except RefusedError as refusal:
                if refusal.cause == "late":
                    self.counts.refused("late")
                    return
                if refusal.cause != "round" or time.monotonic() > until:
                    raise
            time.sleep(_WAIT)

    def _line(self, user: int) -> Calls:
        """The connection that speaks for a user: everybody's, or one with its own certificate."""
        if self._config.connections == "one":
            return self._shuffler
        if user not in self._own:
            config, authority = self._config, self._config.authority.read_bytes()
            folder = config.folder / "identities" / str(user)
            with Calls(config.registry, authority=authority) as registry:
                held = credentials(
                    registry, folder, config.token, authority, (user, user), None,
                    time.monotonic() + 60.0,
                )  # fmt: skip
            self._own[user] = held
        return _Once(self._config.shuffler, self._own[user], "shuffler")

    def status(self) -> dict[str, Any]:
        """For the status page."""
        return self.counts.to_dict()

    def close(self) -> None:
        """Let go of everything."""
        for line in (self._coordinator, self._server, self._shuffler):
            line.close()
        self.agent.close()


def cut(agreement: Agreement, records: Records) -> Lists:
    """To whom users send: their lists, the long ones cut, each by reading that list alone."""
    plan = agreement.plan
    kept = kept_entries(
        records.users, records.indptr, records.indices, plan.longest, agreement.cut_seed
    )
    sent = np.minimum(np.diff(records.indptr), plan.longest)
    return Lists(np.concatenate([[0], np.cumsum(sent)]), records.indices[kept])


def save_records(path: Path, records: Records) -> None:
    """Write users' records for their agent."""
    np.savez(path, **{f.name: getattr(records, f.name) for f in fields(Records)})


def load_records(path: Path) -> Records:
    """Read them back.

    Raises:
        SessionError: The file is no record.
    """
    try:
        with np.load(path, allow_pickle=False) as found:
            return Records(**{f.name: found[f.name] for f in fields(Records)})
    except (OSError, ValueError, KeyError) as error:
        raise SessionError(f"{path} holds no users' records", why=str(error)) from error


class _Once(Calls):
    """Hangs up after one call: thousands of users need not hold thousands of sockets."""

    def __call__(self, method: str, message: bytes) -> bytes:
        try:
            return super().__call__(method, message)
        finally:
            self.close()


def _paced(
    uploads: Iterable[tuple[int, bytes]], under_way: list[Future[None]]
) -> Iterator[tuple[int, bytes]]:
    """Makes an upload only when few are waiting to be sent, so that memory stays small."""
    for upload in uploads:
        while len(under_way) >= 2 * _UNDER_WAY:
            under_way.pop(0).result()
        yield upload
