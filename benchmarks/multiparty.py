"""Networked sums on one machine: megabytes of payload a second, and the restart after kill -9.

Users' uploads go to the shuffler, the shuffler's batches to the parties, over mutual TLS; each is
acknowledged once it is on disk. Users are devices of their own, so their uploads are sealed before
the clock starts; everything else runs in separate processes. Three rates are given: uploads until
acknowledged, deliveries until acknowledged by the parties, and both one after the other. In the
same run the disk is measured with one file written and synced, because every payload byte is
written twice: by the shuffler and by a party; and the processor time that all processes took, which
is what is left to compare where other programs share the machine.

    python benchmarks/multiparty.py [--users 256] [--columns 1204] [--slots 64] [--json]

Targets: at least 100 MB of payload a second, a killed party back in under 5 seconds, sums exact.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tacit.multiparty.agent import Agent, Lists
from tacit.multiparty.agreement import Agreement
from tacit.multiparty.calls import Calls, RefusedError
from tacit.multiparty.config import RoleConfig
from tacit.multiparty.deployment import Deployment
from tacit.multiparty.enrolment import enrol
from tacit.multiparty.ring import Stream
from tacit.multiparty.session import Dummies, Round, SessionPlan
from tacit.privacy.noise import NoiseSource

BITS = 14


def session(users: int, slots: int, columns: int) -> Agreement:
    plan = SessionPlan(
        users=users, features=columns, classes=2, width=columns, projection="gaussian",
        projection_seed=0, parties=3, shares=2, colluding=1, bits=32, fraction_bits=BITS,
        longest=slots, degree=0, self_link=False, scaling="dummy", with_val=False, noise="gaussian",
        dummies=Dummies("none"), rounds=(Round("features", 1, "lists", columns, 0.003),),
    )  # fmt: skip
    return Agreement(secrets.token_hex(16), plan, most=0, seconds=120.0)


def disk_rate(folder: Path, megabytes: int) -> float:
    block, path = os.urandom(8 << 20), folder / "probe"
    started = time.perf_counter()
    with path.open("wb") as stream:
        for _ in range(max(1, megabytes // 8)):
            stream.write(block)
        stream.flush()
        os.fsync(stream.fileno())
    rate = path.stat().st_size / (time.perf_counter() - started) / 1e6
    path.unlink()
    return rate


def processor_seconds(deployment: Deployment) -> dict[str, float]:
    """User and system time of every role and of this process, which plays the users."""
    found = {"users": sum(os.times()[:2])}
    for name in deployment.names:
        said = Path(f"/proc/{deployment.process(name)}/stat").read_text().rpartition(")")[2].split()
        found[name] = (int(said[11]) + int(said[12])) / os.sysconf("SC_CLK_TCK")
    return found


def send(lines: list[Calls], uploads: list[bytes]) -> float:
    """Sends all uploads, a few at a time, over the users' connections; seconds until the last."""

    def one(work: tuple[int, bytes]) -> None:
        for _ in range(1000):
            try:
                lines[work[0] % len(lines)]("upload", work[1])
                return
            except RefusedError as refusal:
                if refusal.cause != "round":
                    raise
                time.sleep(0.02)

    started = time.perf_counter()
    with ThreadPoolExecutor(len(lines)) as pool:
        list(pool.map(one, enumerate(uploads)))
    return time.perf_counter() - started


def restart(deployment: Deployment, name: str) -> float:
    deployment.kill(name)
    started = time.perf_counter()
    deployment.start(name)
    while True:
        said = deployment.status(name)
        if said.get("process") == deployment.process(name) and said["session"]:
            return time.perf_counter() - started
        time.sleep(0.01)


def measure(folder: Path, users: int, slots: int, columns: int) -> dict[str, object]:
    agreed = session(users, slots, columns)
    rng = np.random.default_rng(0)
    picks = [np.sort(rng.choice(users, slots, replace=False)) for _ in range(users)]
    lists = Lists(np.arange(users + 1) * slots, np.concatenate(picks))
    # A role file and a token for the users, whose part this process plays.
    deployment = Deployment(folder / "s", agreed, [(0, users - 1, folder / "none.npz")])
    deployment.names.remove("user-0")
    with deployment:
        config = RoleConfig.load(deployment.config("user-0"))
        held = enrol(config, time.monotonic() + 60)
        agent = Agent(
            agreed, 0, lists, held.parties, folder / "agent", NoiseSource.fresh(), Stream.fresh()
        )
        lines = [Calls(config.shuffler, held.credentials, "shuffler") for _ in range(16)]
        send(lines, [message for _, message in agent.registrations()])
        rows = rng.integers(-(2**BITS) // 40, 2**BITS // 40, (users, columns)).astype(np.int32)
        uploads = [message for _, message in agent.values(1, rows)]
        deployment.wait(lambda said: said["round"] == 1, 120)
        payload = users * agreed.rows(1) * agreed.row_bytes(1)
        probe = disk_rate(folder, payload >> 20)
        before = processor_seconds(deployment)
        started = time.time()
        uploading = send(lines, uploads)
        deployment.wait(lambda said: "when 1 delivered" in said["when"], 120)
        after = processor_seconds(deployment)
        when = deployment.status("coordinator")["counts"]["when"]
        delivering = when["when 1 delivered"] - when["when 1 frozen"]
        whole = when["when 1 delivered"] - started
        back = restart(deployment, "party-1")
        deployment.wait(lambda said: said["done"], 120)
        sums = np.load(deployment.folder / "server" / "released-1.npy")
        end = deployment.status("coordinator")["counts"]["when"]["when 1 released"]
        agent.close()
    exact = np.zeros_like(sums)
    for user, picked in enumerate(picks):
        exact[picked] += rows[user]
    noise = sums - exact
    std = agreed.plan.party_std(agreed.round(1)) * 3**0.5 * 2**BITS
    found: dict[str, Any] = {
        "payload_mb": payload / 1e6,
        "payload_mb_per_s": payload / whole / 1e6,
        "upload_mb_per_s": payload / uploading / 1e6,
        "delivery_mb_per_s": payload / delivering / 1e6,
        "rows_per_s": users * slots / whole,
        "disk_mb_per_s": probe,
        "processor_seconds_per_100_mb": sum(after.values()) - sum(before.values()),
        "by_role": {name: round(after[name] - before[name], 2) for name in after},
        "seconds_to_release": end - started,
        "restart_seconds": back,
        "noise_std_over_planned": float(noise.std() / std),
        "exact": bool(np.abs(noise).max() < 8 * std),
    }
    found["processor_seconds_per_100_mb"] *= 100e6 / payload
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--users", type=int, default=256)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--columns", type=int, default=1204, help="words of four bytes in a row")
    parser.add_argument("--folder", type=Path, help="where state lies; a temporary folder if none")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(Path(folder), options.users, options.slots, options.columns)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:24s} {value:12,.2f}" if isinstance(value, float) else f"{name:24s} {value}")
    print("not counted: slots are registered once per session")


if __name__ == "__main__":
    main()
