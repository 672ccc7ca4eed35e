"""The coordinator: when a round closes, whether all agree, and when it may be shown. Metadata only.

It is told counts, checksums and digests, and never a name, key, seed, share or sum. Other roles
report to it and are answered with where the session stands; what it decided is on disk first.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from threading import RLock
from typing import Any

from tacit.errors import SessionError, TacitError
from tacit.multiparty.agreement import REGISTRATION, Agreement
from tacit.multiparty.certificates import Identity
from tacit.multiparty.disk import Disk
from tacit.multiparty.refusals import Counts, RefusedError
from tacit.multiparty.state import ORDER, Phase
from tacit.multiparty.store import Store

Message = dict[str, Any]
Charge = Callable[[int], None]
"""Charges the ledger for a round before anything of it can be seen; 0 is the numbers of slots."""


class Coordinator:
    """Decides for one session.

    Args:
        agreement: The session.
        folder: Where its decisions lie.
        charge: Called once or more per round, before it costs anything; an error ends the session.
        clock: Seconds since the epoch.
        disk: How files are written.
    """

    def __init__(
        self,
        agreement: Agreement,
        folder: Path,
        charge: Charge,
        clock: Callable[[], float] = time.time,
        disk: Disk | None = None,
    ) -> None:
        self.agreement, self.counts = agreement, Counts()
        self._charge, self._clock, self._lock = charge, clock, RLock()
        self._heard: dict[int, float] = {}  # when each party last spoke to this process
        self.store = Store(folder, f"coordinator {agreement.digest.hex()}", disk)
        if self.store.get("now") is None:
            self.store.put({"term": secrets.token_hex(16), "now": self._opened(REGISTRATION)})

    def orders(self) -> Message:
        """Where the session stands, as every role is told."""
        now, number = self.store.get("now"), self.store.get("now")["round"]
        return {
            "session": self.agreement.digest.hex(),
            "term": self.store.get("term"),
            **{name: now[name] for name in ("round", "phase", "done", "why")},
            "delivered": self.store.get(f"delivered {number}"),
            "agreed": self.store.get(f"agreed {number}"),
            "pairs": self._said(number, "reconciled") if self._past(Phase.RECONCILED) else None,
            "shares": self._said(number, "aggregated") if self._past(Phase.RELEASED) else None,
        }

    def report(self, sender: Identity, message: Mapping[str, Any]) -> Message:
        """Take a report and answer with where the session stands.

        The same report again is answered again; another in its place ends the session.

        Raises:
            RefusedError: It is of another session, or the sender may not say this.
        """
        with self._lock:
            try:
                self._check(sender, message)
                self._take(sender, message)
            except RefusedError as refusal:
                self.counts.refused(refusal.cause)
                raise
            self.tick()
            return self.orders()

    def tick(self) -> None:
        """Decide what can be decided now."""
        with self._lock:
            while self._step():
                pass

    # -- reports ------------------------------------------------------------------------------

    def _check(self, sender: Identity, message: Mapping[str, Any]) -> None:
        if sender.session != self.agreement.session:
            raise RefusedError("certificate", "a certificate of another session")
        if message.get("session") != self.agreement.digest.hex():
            raise RefusedError(
                "session", f"{sender.role} is configured for another session",
                remedy="start it with this session's agreement",
            )  # fmt: skip
        kind, number = message.get("kind"), message.get("round")
        speakers = {
            "look": ("party", "shuffler", "server", "user"),
            "uploads": ("shuffler",),
            "delivered": ("shuffler",),
            "reconciled": ("party",),
            "aggregated": ("party",),
            "published": ("server",),
            "abort": ("party", "shuffler", "server"),
        }
        if kind not in speakers or not isinstance(number, int):
            raise RefusedError("garbage", "a report of no known kind")
        if sender.role not in speakers[kind]:
            raise RefusedError("certificate", f"a {sender.role} cannot report {kind!r}")

    def _take(self, sender: Identity, message: Mapping[str, Any]) -> None:
        kind, number, body = message["kind"], message["round"], message.get("body")
        if sender.role == "party":
            self._heard[sender.first] = self._clock()
        now = self.store.get("now")
        if kind == "look" or now["phase"] == Phase.ABORTED or now["done"]:
            return
        if kind == "abort":
            self._abort(str(body))
        elif kind == "uploads":
            if number == now["round"] and now["phase"] == Phase.OPEN:
                self.counts.add(f"uploads in round {number}", 0)
                if isinstance(body, int) and body >= self.agreement.plan.users:
                    self._freeze()
        elif number > now["round"] or (number == now["round"] and now["phase"] == Phase.OPEN):
            raise RefusedError("round", f"{kind} for round {number} before it was frozen")
        else:
            who = f" {sender.first}" if sender.role == "party" else ""
            self._remember(f"{kind} {number}{who}", body)

    def _remember(self, name: str, body: Any) -> None:
        before = self.store.get(name)
        if before is None:
            when = {f"when {name.split()[1]} delivered": self._clock()}
            self.store.put({name: body, **(when if name.startswith("delivered") else {})})
        elif before != json.loads(json.dumps(body)):
            self._abort(f"{name} was reported before with other contents")

    def _said(self, number: int, kind: str) -> dict[str, Any]:
        prefix = f"{kind} {number} "
        return {name.removeprefix(prefix): body for name, body in self.store.facts(prefix).items()}

    # -- decisions ----------------------------------------------------------------------------

    def _opened(self, number: int) -> Message:
        """A new round. Its time starts here."""
        return {
            "round": number,
            "phase": Phase.OPEN,
            "since": self._clock(),
            "done": False,
            "why": "",
        }

    def _past(self, phase: Phase) -> bool:
        now = Phase(self.store.get("now")["phase"])
        return now is not Phase.ABORTED and ORDER.index(now) >= ORDER.index(phase)

    def _move(self, phase: Phase, **facts: Any) -> None:
        now = self.store.get("now")
        moment = self._clock()
        when = {f"when {now['round']} {phase}": moment}
        self.store.put({**facts, **when, "now": {**now, "phase": phase, "since": moment}})

    def _abort(self, why: str) -> None:
        now = self.store.get("now")
        if not now["done"]:
            self.store.put({"now": {**now, "phase": Phase.ABORTED, "why": why}})

    def _freeze(self) -> None:
        number = self.store.get("now")["round"]
        # Parties see the numbers of slots as soon as these are delivered.
        if number == REGISTRATION and not self._paid(number):
            return
        self._move(Phase.FROZEN)

    def _paid(self, number: int) -> bool:
        try:
            self._charge(number)
        except TacitError as error:
            self._abort(f"round {number} was not paid for: {error}")
            return False
        return True

    def _step(self) -> bool:
        """One decision, if one is due."""
        now = self.store.get("now")
        phase, number = Phase(now["phase"]), now["round"]
        if phase is Phase.ABORTED or now["done"]:
            return False
        late = self._clock() - now["since"] >= self.agreement.seconds
        if phase is Phase.OPEN:
            if late:
                self._freeze()
            return late
        everyone = self.agreement.plan.parties
        if phase is Phase.FROZEN:
            said = self._said(number, "reconciled")
            if len(said) == everyone:
                return self._agree(number, said)
        elif phase is Phase.RECONCILED:
            said = self._said(number, "aggregated")
            if len(said) == everyone:
                return self._release(number, said)
        elif phase is Phase.RELEASED and self.store.get(f"published {number}") is not None:
            self._open_next(number)
            return True
        if late:
            silent = self._silent(phase, number)
            self._abort(f"round {number} stood still after it was {phase}: no word from {silent}")
        return False

    def _agree(self, number: int, said: Mapping[str, Any]) -> bool:
        try:
            agreed = agreed_hash(said)
        except SessionError as error:
            self._abort(str(error))
            return False
        if number == REGISTRATION:
            self.store.put({f"agreed {number}": agreed})
            self._open_next(number)
            return True
        if not self._paid(number):
            return False
        self._move(Phase.RECONCILED, **{f"agreed {number}": agreed})
        return True

    def _release(self, number: int, said: Mapping[str, Any]) -> bool:
        agreed = self.store.get(f"agreed {number}")
        if any(report[0] != agreed for report in said.values()):
            self._abort(f"round {number}: the parties aggregated different slots")
            return False
        self._move(Phase.RELEASED)
        return True

    def _open_next(self, number: int) -> None:
        if number == len(self.agreement.plan.rounds):
            self.store.put({"now": {**self.store.get("now"), "done": True}})
        else:
            opened = self._opened(number + 1)
            self.store.put({f"when {number + 1} open": opened["since"], "now": opened})

    def _silent(self, phase: Phase, number: int) -> str:
        if phase is Phase.RELEASED:
            return "the server"
        delivered = self.store.get(f"delivered {number}") is not None
        heard = self._said(number, "reconciled" if phase is Phase.FROZEN else "aggregated")
        waiting = [p for p in range(self.agreement.plan.parties) if str(p) not in heard]
        # One that is gone keeps others waiting; the quiet ones are named first.
        quiet = self._clock() - self.agreement.seconds / 2
        gone = [party for party in waiting if self._heard.get(party, 0.0) < quiet]
        if not (delivered or gone):
            return "the shuffler"
        return f"party {', '.join(map(str, gone or waiting))}"

    def status(self) -> dict[str, Any]:
        """For the status page."""
        now = self.store.get("now")
        return {
            **{name: now[name] for name in ("round", "phase", "done", "why")},
            "when": self.store.facts("when "),
            **self.counts.to_dict(),
        }

    def close(self) -> None:
        """Let go of the folder."""
        self.store.close()


def agreed_hash(said: Mapping[str, Any]) -> str:
    """One hash over what each pair of parties holds in common.

    Args:
        said: For each party what it says it has in common with each other one.

    Raises:
        SessionError: Two of them say different things.
    """
    for one, pairs in said.items():
        if set(pairs) != set(said) - {one}:
            raise SessionError(f"party {one} left out a party")
        for other, common in pairs.items():
            if list(common) != list(said[other].get(one, ())):
                raise SessionError(f"parties {one} and {other} hold different slots")
    text = json.dumps(
        {one: {other: list(v) for other, v in pairs.items()} for one, pairs in said.items()},
        sort_keys=True,
    )
    return sha256(text.encode()).hexdigest()
