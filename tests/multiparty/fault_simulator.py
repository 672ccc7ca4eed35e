"""Sessions under generated faults, in one process and repeatable from a seed.

A sequence is a list of operations. Roles take turns; between turns the plug is pulled at a chosen
step of a chosen role's disk, requests and answers are lost, repeated or replayed, bytes flip, disks
fill, clocks jump, roles restart with an old configuration and a second coordinator speaks. Whatever
happens, every cell of the exact sum is 0 or 1, what was acknowledged is there, and a share that was
once reported never changes.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from local_session import BITS, Local, agreement, expected, lists, one_hot

from tacit.errors import SessionError
from tacit.multiparty.agreement import REGISTRATION
from tacit.multiparty.calls import UnreachableError
from tacit.multiparty.coordinator import Coordinator
from tacit.multiparty.disk import PART, Disk, digest
from tacit.multiparty.driving import check_orders
from tacit.multiparty.party import Party
from tacit.multiparty.refusals import RefusedError
from tacit.multiparty.ring import reconstruct
from tacit.multiparty.shuffler import Shuffler

USERS, LINKS = 5, 2
ROLES = ("coordinator", "shuffler", "server", "user", "party-0", "party-1", "party-2")
STEPS = ("written", "synced", "renamed", "settled", "storing", "stored")
LOST = ("", "lost")
REPLAYS = ("same", "layer", "session", "flip", "other", "reversed")
Operation = tuple[str, ...]


class Killed(BaseException):
    """The process died here."""


class FaultyDisk(Disk):
    """Dies at a chosen step, or is full, once."""

    def __init__(self) -> None:
        self.death: tuple[str, int, bool] | None = None
        self.full, self.dead = 0, False

    def step(self, name: str, path: Path) -> None:
        if name == "written" and self.full:
            self.full -= 1
            raise OSError(errno.ENOSPC, "no space left on device")
        if self.death is None or not name.startswith(self.death[0]):
            return
        step, left, lost = self.death
        if left:
            self.death = (step, left - 1, lost)
            return
        self.death, self.dead = None, True
        if name == "written":  # nothing was synced: any part of it may be there
            data = path.read_bytes()
            path.write_bytes(data[: len(data) // 2])
        if name == "renamed" and lost:  # the folder was not synced: the new name may be gone
            path.rename(path.with_name(path.name + PART))
        raise Killed


@dataclass
class Simulation:
    """One session and everything that was promised in it so far."""

    folder: Path
    acknowledged: dict[tuple[int, int], str] = field(default_factory=dict)
    reported: dict[tuple[int, int], str] = field(default_factory=dict)
    sent: list[tuple] = field(default_factory=list)
    uploads: list[bytes] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    fate: str = ""

    def __post_init__(self) -> None:
        self.facts = agreement(
            users=USERS, links=LINKS, widths=(USERS, USERS), seconds=100.0, leave_out=True
        )
        self.held = lists(USERS, LINKS, seed=3)
        self.rows = [one_hot(USERS, USERS), one_hot(USERS, USERS)]
        self.disks = {name: FaultyDisk() for name in ROLES}
        self.local = Local(self.facts, self.folder, self.held, dict(self.disks))
        for name in ROLES:
            self.local.get(name)
        self._intercept()

    def _intercept(self) -> None:
        local, report, deliver = self.local, self.local.report, self.local.deliver

        def reporting(name, message):
            if message["kind"] == "aggregated":  # it may have been heard though no answer came
                key = (int(name.removeprefix("party-")), message["round"])
                assert self.reported.setdefault(key, message["body"][1]) == message["body"][1], (
                    "a share that was reported has changed"
                )
            return self._carried(lambda: report(name, message))

        def delivering(party, number, batch, names, rows):
            work = (party, number, batch, names.copy(), rows.copy())
            self.sent.append(work)
            again = self.fate == "twice"
            receipt = self._carried(lambda: deliver(*work))
            if again:  # the same rows, in another order and under another name
                self._carried(lambda: deliver(party, number, f"{batch}-t", names[::-1], rows[::-1]))
            return receipt

        local.report, local.deliver = reporting, delivering

    def _carried(self, call):
        """A call over a network that may lose what is asked or what is answered."""
        fate, self.fate = self.fate, ""
        if fate == "request":
            raise UnreachableError("lost on its way")
        try:
            answer = call()
            if fate == "twice":
                answer = call()
        except Killed:
            self._bury()
            raise UnreachableError("died while answering") from None
        if fate == "response":
            raise UnreachableError("the answer was lost")
        return answer

    def _bury(self) -> None:
        """Forget the roles whose disks have pulled the plug; whoever called them lives on."""
        for name, disk in self.disks.items():
            if disk.dead:
                disk.dead = False
                self.local.kill(name)

    # -- operations ---------------------------------------------------------------------------

    def do(self, operation: Operation) -> None:
        """Carry out one operation; refusals and lost connections are part of the game."""
        kind, *words = operation
        try:
            getattr(self, f"do_{kind}")(*words)
        except Killed:
            self._bury()
        except SessionError as error:
            self.trouble.append(f"{operation}: {error}")

    def do_turn(self, name: str) -> None:
        if name == "user":
            self._send()
        else:
            self.local.step(name, self.rows)

    def _send(self) -> None:
        local = self.local
        look = {"session": self.facts.digest.hex(), "kind": "look", "round": 0}
        orders = local.report("user", look)
        number, shuffler = orders["round"], local.get("shuffler")
        if orders["phase"] != "open" or shuffler.phase(number) != "open":
            return
        agent = local.get("user")
        made = (
            agent.registrations()
            if number == REGISTRATION
            else agent.values(number, self.rows[number - 1])
        )
        for user, message in made:
            if self.acknowledged.get((number, user)):
                continue
            self.uploads.append(message)
            who = local.identity("user")
            self._carried(partial(local.get("shuffler").accept, who, message))
            self.acknowledged[number, user] = digest(message)

    def do_crash(self, name: str, step: str, skip: str, lost: str) -> None:
        self.disks[name].death = (step, int(skip), lost == "lost")

    def do_kill(self, name: str) -> None:
        self.local.kill(name)

    def do_full(self, name: str) -> None:
        self.disks[name].full = 1

    def do_lose(self, what: str) -> None:
        self.fate = what

    def do_clock(self, seconds: str) -> None:
        self.local.clock[0] += float(seconds)

    def do_replay(self, which: str, how: str) -> None:
        """An old batch again: as it was, in another round or session, with a flipped bit."""
        if not self.sent:
            return
        party, number, name, names, rows = self.sent[-1 - int(which) % min(len(self.sent), 6)]
        role, session = self.local.get(f"party-{party}"), self.facts.digest
        if how == "layer":
            number = (number + 1) % (len(self.facts.plan.rounds) + 1)
        if how == "session":
            session = bytes(32)
        if how == "flip":
            rows, name = rows.copy(), f"{name}-x"
            rows[0, int(which) % rows.shape[1]] ^= 1
        if how == "other":
            role = self.local.get(f"party-{(party + 1) % 3}")
            name = f"{name}-y"
        if how == "reversed":
            name, names, rows = f"{name}-z", names[::-1], rows[::-1]
        role.deliver(session, number, name, names, rows)

    def do_resend(self, which: str, how: str) -> None:
        """An old upload again: as it was, or changed on its way."""
        if not self.uploads:
            return
        message = bytearray(self.uploads[int(which) % len(self.uploads)])
        if how == "header":
            message[int(which) % 40] ^= 1
        if how == "short":
            message = message[:-1]
        if how == "long":
            message += b"\0"
        self.local.get("shuffler").accept(self.local.identity("user"), bytes(message))

    def do_old(self, name: str) -> None:
        """Restart with the configuration of yesterday: refused, and nothing is touched."""
        self.local.kill(name)
        old = replace(self.local, agreement=replace(self.facts, seconds=1.0))
        old.sealing, old.publics = self.local.sealing, self.local.publics
        with pytest.raises(RefusedError, match="belongs to another session or configuration"):
            old.get(name)

    def do_second(self, name: str) -> None:
        """A second coordinator, with a folder of its own, gives orders."""
        role = self.local.get(name)
        if not isinstance(role, Party | Shuffler) or role.store.get("term") is None:
            return
        rogue = Coordinator(self.facts, self.folder / "rogue", lambda number: None)
        try:
            with pytest.raises(RefusedError, match="a second coordinator"):
                check_orders(role.store, self.facts, rogue.orders())
        finally:
            rogue.close()

    # -- the end ------------------------------------------------------------------------------

    def finish(self, turns: int = 60) -> dict:
        """No more faults: everybody takes turns until the session is over."""
        self.fate = ""
        for disk in self.disks.values():
            disk.death, disk.full = None, 0
        for _ in range(turns):
            for name in ROLES:
                self.do(("turn", name))
            orders = self.local.get("coordinator").orders()
            if orders["done"] or orders["phase"] == "aborted":
                return orders
        raise AssertionError(f"the session does not end: {self.trouble[-5:]}")

    def check(self) -> str:
        """Everything that must hold, whatever happened. Returns how the session ended."""
        orders = self.finish()
        local = self.local
        shuffler, server = local.get("shuffler"), local.get("server")
        for (number, user), held in self.acknowledged.items():
            assert shuffler.taken(number).get(user) == held, "an acknowledged upload was lost"
        for number in (1, 2):
            if server.store.get(f"published {number}") is None:
                assert not orders["done"]
                continue
            heard = set(shuffler.taken(REGISTRATION)) & set(shuffler.taken(number))
            rows = self.rows[number - 1].copy()
            rows[[u for u in range(USERS) if u not in heard]] = 0
            exact = local.exact(number)
            assert set(np.unique(exact)) <= {0, 1}, "a pair was counted twice"
            np.testing.assert_array_equal(exact, expected(self.held, rows))
            shares = [local.get(f"party-{p}").share(number) for p in range(3)]
            for p, share in enumerate(shares):
                assert digest(share) == self.reported[p, number]
            ring, shape = self.facts.ring, (USERS, USERS)
            words = [ring.from_bytes(share, USERS * USERS).reshape(shape) for share in shares]
            np.testing.assert_array_equal(server.sums(number), reconstruct(words, ring))
            assert np.abs(server.sums(number) - exact).max() < 12 * 3**0.5 * 2**BITS
            assert number in local.charged
        assert REGISTRATION in local.charged or not shuffler.taken(1)
        local.close()
        return "aborted" if orders["phase"] == "aborted" else "done"


def generate(seed: int, cycles: int = 13) -> list[Operation]:
    """A sequence of operations: everybody's turns in some order, with faults in between."""
    rng = random.Random(seed)
    made: list[Operation] = []
    for _ in range(cycles):
        for turn in rng.sample(ROLES, len(ROLES)):
            if rng.random() < 0.35:
                made.append(_fault(rng))
            made.append(("turn", turn))
    return made


def _fault(rng: random.Random) -> Operation:
    name, which = rng.choice(ROLES), str(rng.randrange(1000))
    return rng.choice(
        [
            ("crash", name, rng.choice(STEPS), str(rng.randrange(3)), rng.choice(LOST)),
            ("crash", name, rng.choice(STEPS), "0", "lost"),
            ("kill", name),
            ("full", name),
            ("lose", rng.choice(["request", "response", "twice"])),
            ("replay", which, rng.choice(REPLAYS)),
            ("resend", which, rng.choice(["same", "header", "short", "long"])),
            ("old", name),
            ("second", name),
            ("clock", rng.choice(["1", "30", "101"]) if rng.random() < 0.1 else "1"),
        ]
    )


def run(operations: list[Operation], folder: Path) -> str:
    """Carry out a sequence and check what must hold."""
    simulation = Simulation(folder)
    try:
        for operation in operations:
            simulation.do(operation)
        return simulation.check()
    finally:
        simulation.local.close()
