"""A whole deployment on this machine: every role its own process, all traffic on the loopback.

Processes end with the deployment: on leaving the ``with`` block, on errors and Ctrl-C they are told
to stop and then killed, and each holds a pipe whose end it takes for its parent's.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tacit.errors import SessionError
from tacit.multiparty.agreement import Agreement
from tacit.multiparty.certificates import Authority, Identity
from tacit.multiparty.config import Charging, to_toml
from tacit.multiparty.reporting import read_status

HOST = "127.0.0.1"
_GRACE = 3.0


class Deployment:
    """Starts, watches and stops the roles of a session.

    Args:
        folder: Empty or of the same session: everything lies in it.
        agreement: The session.
        records: For each agent the first and last user, and the npz file of their records.
        charging: Where the coordinator charges; None charges nothing.
        connections: ``one`` certificate and connection per agent, or ``each`` user its own.
        hosts: Addresses of roles that have one of their own.
        within: Commands in front of a role's, such as ``ip netns exec NAME``.
    """

    def __init__(
        self,
        folder: Path,
        agreement: Agreement,
        records: list[tuple[int, int, Path]],
        *,
        charging: Charging | None = None,
        connections: str = "one",
        hosts: Mapping[str, str] | None = None,
        within: Mapping[str, list[str]] | None = None,
    ) -> None:
        self.folder, self.agreement = folder.resolve(), agreement
        self._hosts, self._within = dict(hosts or {}), dict(within or {})
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.names = ["registry", "coordinator", "shuffler", "server"]
        self.names += [f"party-{p}" for p in range(agreement.plan.parties)]
        self.names += [f"user-{first}" for first, _, _ in records]
        if not (self.folder / "session.json").exists():
            self._write(records, charging, connections)
        elif (self.folder / "session.json").read_text() != agreement.to_json():
            raise SessionError(
                f"{folder} holds another session", remedy="name an empty folder for this one"
            )

    # -- files --------------------------------------------------------------------------------

    def _write(
        self, records: list[tuple[int, int, Path]], charging: Charging | None, connections: str
    ) -> None:
        """Keys, tokens and one TOML file per role; ``session.json`` last."""
        self.folder.mkdir(parents=True, exist_ok=True)
        authority = Authority.create()
        _write(self.folder / "authority.pem", authority.certificate.decode())
        _write(self.folder / "authority.key", authority.key_pem.decode())
        ports = iter(free_ports(4 + self.agreement.plan.parties))
        listening = self.names[: 4 + self.agreement.plan.parties]
        at = {name: f"{self._hosts.get(name, HOST)}:{next(ports)}" for name in listening}
        parties = [at[f"party-{p}"] for p in range(self.agreement.plan.parties)]
        ranges = {f"user-{first}": (first, last, path) for first, last, path in records}
        tokens = {}
        for name in self.names:
            role, _, number = name.partition("-")
            first = int(number or 0)
            last = ranges[name][1] if role == "user" else first
            identity = Identity(self.agreement.session, role, first, last)
            token = os.urandom(24).hex()
            said: dict[str, Any] = {
                "role": role, "folder": name, "authority": "authority.pem",
                "registry": at["registry"], "token": token, "number": first, "last": last,
                "coordinator": at["coordinator"], "shuffler": at["shuffler"],
                "server": at["server"], "parties": parties,
            }  # fmt: skip
            if role == "registry":
                said |= {"agreement": "session.json", "authority_key": "authority.key"}
            else:
                tokens[identity.uri] = token
            if role == "user":
                said |= {"records": str(ranges[name][2].resolve()), "connections": connections}
            else:
                said["listen"] = at[name]
            if role == "coordinator" and charging is not None:
                said["charging"] = vars(charging)
            _write(self.config(name), to_toml(said))
        (self.folder / "registry").mkdir(exist_ok=True)
        _write(self.folder / "registry" / "tokens.json", json.dumps(tokens))
        _write(self.folder / "session.json", self.agreement.to_json())

    def config(self, name: str) -> Path:
        """A role's TOML file."""
        return self.folder / f"{name}.toml"

    # -- processes ----------------------------------------------------------------------------

    def __enter__(self) -> Deployment:
        try:
            for name in self.names:
                self.start(name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str) -> None:
        """Start a role, unless it runs."""
        running = self._running.get(name)
        if running is not None and running.poll() is None:
            return
        command = [*self._within.get(name, []), sys.executable, "-m", "tacit.multiparty.serve"]
        threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE"}
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*command, str(self.config(name)), "--until-eof"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **threads},
                start_new_session=True,  # Ctrl-C reaches the parent, which stops them in order
            )

    def kill(self, name: str) -> None:
        """Kill (signal 9), and wait until it is gone."""
        process = self._running[name]
        process.send_signal(signal.SIGKILL)
        process.wait()
        _hang_up(process)

    def process(self, name: str) -> int:
        """The number of a role's process."""
        return self._running[name].pid

    def stop(self) -> None:
        """End every process: asked first, killed after a few seconds."""
        for process in self._running.values():
            if process.poll() is None:
                process.terminate()
        until = time.monotonic() + _GRACE
        for process in self._running.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _hang_up(process)

    # -- watching -----------------------------------------------------------------------------

    def status(self, name: str) -> dict[str, Any]:
        """What a role last wrote of itself; empty before it did."""
        return read_status(self.folder / name)

    def wait(
        self,
        until: Callable[[dict[str, Any]], bool],
        seconds: float,
        tick: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Wait for the coordinator's status to satisfy a condition.

        Raises:
            SessionError: The session was aborted, a role ended with an error, or time is up.
        """
        end = time.monotonic() + seconds
        while True:
            said = self.status("coordinator").get("counts", {})
            if said and until(said):
                return said
            if said.get("phase") == "aborted":
                raise SessionError("the session was aborted", why=str(said["why"]))
            for name, process in self._running.items():
                if process.poll() not in (None, 0) and process.returncode != -signal.SIGKILL:
                    raise SessionError(f"{name} ended early", why=self.last_words(name))
            if time.monotonic() > end:
                raise SessionError(
                    f"the session did not get there in {seconds:g} seconds",
                    why=f"it stands at round {said.get('round')}, {said.get('phase')}; "
                    + "; ".join(self._troubles()),
                )
            if tick is not None and said:
                tick(said)
            time.sleep(0.05)

    def last_words(self, name: str) -> str:
        """The end of a role's log."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-500:].strip()

    def _troubles(self) -> list[str]:
        found = ((name, self.status(name).get("trouble")) for name in self.names)
        return [f"{name}: {trouble}" for name, trouble in found if trouble]

    def measured(self) -> dict[str, float]:
        """Bytes and seconds, from what the roles counted.

        ``payload_mb_per_s`` is the sealed rows of the value rounds over the time from the opening
        of each round until all parties had them on disk.
        """
        when: Mapping[str, float] = self._last_status("coordinator")["counts"]["when"]
        sent = sum(
            self._last_status(name)["counts"].get("bytes sent", 0)
            for name in self.names
            if name.startswith("user-")
        )
        seconds = payload = 0.0
        heard = self._last_status("shuffler")["counts"]["uploads by round"]
        for number in range(1, len(self.agreement.plan.rounds) + 1):
            seconds += when[f"when {number} delivered"] - when[f"when {number} open"]
            rows = heard[str(number)] * self.agreement.rows(number)
            payload += rows * self.agreement.row_bytes(number)
        return {
            "bytes_uploaded": sent,
            "payload_bytes": payload,
            "payload_mb_per_s": payload / max(seconds, 1e-9) / 1e6,
        }

    def _last_status(self, name: str) -> dict[str, Any]:
        """What a role wrote once it knew that the session is over."""
        until = time.monotonic() + 10.0
        while not self.status(name).get("session", {}).get("done"):
            if time.monotonic() > until:
                raise SessionError(f"{name} has not noticed that the session is over")
            time.sleep(0.05)
        return self.status(name)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody uses at the moment."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()


def _write(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
