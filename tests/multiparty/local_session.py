"""A whole session in one process, without network: the roles call each other directly."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tacit.multiparty.agent import Agent, Lists
from tacit.multiparty.agreement import REGISTRATION, Agreement
from tacit.multiparty.certificates import Identity
from tacit.multiparty.coordinator import Coordinator
from tacit.multiparty.disk import Disk
from tacit.multiparty.driving import drive_party, drive_server, drive_shuffler
from tacit.multiparty.party import Party
from tacit.multiparty.ring import Stream
from tacit.multiparty.server import Server
from tacit.multiparty.session import Dummies, Round, SessionPlan
from tacit.multiparty.shuffler import Shuffler
from tacit.privacy.noise import NoiseSource

SESSION = "5e" * 16
BITS = 14


def agreement(
    users=6, links=3, widths=(2,), std=1.0, seconds=600.0, to=None, leave_out=False, **changes
) -> Agreement:
    """A session of 3 parties, 2 shares, 1 colluder, whose parties draw noise of ``std`` each."""
    contents = ("features", "labels", "profile", "summary")
    rounds = tuple(
        Round(content, 1, goes, width, std * 2**0.5)
        for content, width, goes in zip(contents, widths, to or ["lists"] * 4, strict=False)
    )
    facts = {
        "users": users, "features": 4, "classes": 3, "width": 4, "projection": "gaussian",
        "projection_seed": 0, "parties": 3, "shares": 2, "colluding": 1, "bits": 32,
        "fraction_bits": BITS, "longest": links, "degree": 0, "self_link": False,
        "scaling": "dummy", "with_val": False, "noise": "gaussian",
        "dummies": Dummies("gaussian", shift=2, std=1.0), "rounds": rounds,
    }  # fmt: skip
    return Agreement(
        SESSION, SessionPlan(**{**facts, **changes}), most=3, seconds=seconds, leave_out=leave_out
    )


def lists(users: int, links: int, seed: int = 0) -> Lists:
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(users, rng.integers(0, links + 1), replace=False) for _ in range(users)]
    indptr = np.concatenate([[0], np.cumsum([len(c) for c in chosen])])
    return Lists(indptr.astype(np.int64), np.concatenate(chosen).astype(np.int64))


def one_hot(users: int, width: int) -> np.ndarray:
    """Each user's value is 1 in its own column, in whole grid steps: every true cell is 0 or 1."""
    rows = np.zeros((users, width), np.int32)
    rows[np.arange(users), np.arange(users) % width] = 1
    return rows


def expected(held: Lists, rows: np.ndarray) -> np.ndarray:
    sums = np.zeros((len(held.indptr) - 1, rows.shape[1]), np.int64)
    for u in range(len(held.indptr) - 1):
        for v in held.indices[held.indptr[u] : held.indptr[u + 1]]:
            sums[v] += rows[u]
    return sums


@dataclass
class Local:
    """All roles of a session; any of them can be dropped and made again from its folder."""

    agreement: Agreement
    folder: Path
    held: Lists
    disks: dict[str, Disk] = field(default_factory=dict)
    clock: list[float] = field(default_factory=lambda: [0.0])
    charged: list[int] = field(default_factory=list)
    seed: int = 7

    def __post_init__(self) -> None:
        m = self.agreement.plan.parties
        self.sealing = [X25519PrivateKey.generate() for _ in range(m)]
        self.publics = {p: self.sealing[p].public_key() for p in range(m)}
        self.roles: dict[str, object] = {}
        self.names = [
            "coordinator",
            "shuffler",
            "server",
            "user",
            *(f"party-{p}" for p in range(m)),
        ]

    def make(self, name: str):
        folder, disk = self.folder / name, self.disks.get(name)
        if name == "coordinator":
            return Coordinator(
                self.agreement, folder, self.charged.append, lambda: self.clock[0], disk
            )
        if name == "shuffler":
            return Shuffler(self.agreement, folder, disk)
        if name == "server":
            return Server(self.agreement, folder, disk)
        if name == "user":
            return Agent(
                self.agreement, 0, self.held, self.publics, folder,
                NoiseSource.seeded(self.seed), Stream.seeded(self.seed), disk,
            )  # fmt: skip
        p = int(name.removeprefix("party-"))
        peers = {q: key for q, key in self.publics.items() if q != p}
        source = NoiseSource.seeded(100 + p)
        return Party(self.agreement, p, self.sealing[p], peers, folder, source, disk)

    def get(self, name: str):
        if name not in self.roles:
            self.roles[name] = self.make(name)
        return self.roles[name]

    def kill(self, name: str) -> None:
        """Forget a role; what it had stored is all that is left."""
        role = self.roles.pop(name, None)
        if role is not None:
            role.close()

    def close(self) -> None:
        for name in list(self.roles):
            self.kill(name)

    def identity(self, name: str) -> Identity:
        if name == "user":
            return Identity(self.agreement.session, "user", 0, self.agreement.plan.users - 1)
        role, _, number = name.partition("-")
        n = int(number or 0)
        return Identity(self.agreement.session, role, n, n)

    # -- what the network would carry ------------------------------------------------------

    def report(self, name: str, message: dict) -> dict:
        return self.get("coordinator").report(self.identity(name), message)

    def deliver(self, party, number, batch, names, rows):
        return self.get(f"party-{party}").deliver(self.agreement.digest, number, batch, names, rows)

    def held_by(self, me: int):
        return lambda other, number: self.get(f"party-{other}").held(number, me)

    def step(self, name: str, rows: list[np.ndarray]) -> None:
        """Let one role do what it can do now."""

        def look(message):
            return self.report(name, message)

        if name == "coordinator":
            self.get(name).tick()
        elif name == "shuffler":
            drive_shuffler(self.get(name), look, self.deliver)
        elif name == "server":
            drive_server(self.get(name), look, lambda p, n: self.get(f"party-{p}").share(n))
        elif name == "user":
            self.send(rows)
        else:
            drive_party(self.get(name), look, self.held_by(int(name.removeprefix("party-"))))

    def send(self, rows: list[np.ndarray]) -> None:
        digest = self.agreement.digest.hex()
        orders = self.report("user", {"session": digest, "kind": "look", "round": 0})
        number, shuffler = orders["round"], self.get("shuffler")
        if orders["phase"] != "open" or shuffler.phase(number) != "open":
            return
        agent, who = self.get("user"), self.identity("user")
        uploads = (
            agent.registrations() if number == REGISTRATION
            else agent.values(number, rows[number - 1])
        )  # fmt: skip
        for user, message in uploads:
            if user not in shuffler.taken(number):
                shuffler.accept(who, message)

    def run(self, rows: list[np.ndarray], turns: int = 200) -> dict:
        """Let everybody take turns until the session is over."""
        for _ in range(turns):
            for name in self.names:
                self.step(name, rows)
            orders = self.get("coordinator").orders()
            if orders["done"] or orders["phase"] == "aborted":
                break
        return self.get("coordinator").orders()

    def noise(self, party: int) -> list[np.ndarray]:
        """What a party's source gave in each round, drawn again."""
        source, plan = NoiseSource.seeded(100 + party), self.agreement.plan
        return [
            source.gaussian(plan.party_std(turn) * 2**BITS, plan.shape(turn))
            for turn in plan.rounds
        ]

    def exact(self, number: int) -> np.ndarray:
        """Sum of the parties' totals without noise, decoded."""
        totals = [self.get(f"party-{p}").exact(number) for p in range(self.agreement.plan.parties)]
        return self.agreement.ring.decode(np.sum(totals, axis=0, dtype=self.agreement.ring.dtype))
