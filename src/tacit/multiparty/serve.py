"""One role as a process: ``python -m tacit.multiparty.serve ROLE.toml``.

It enrols, listens, takes turns until the session is over, and writes its status beside its state.
Whatever goes wrong in a turn is tried again; how long, the coordinator decides. With
``--until-eof`` it also ends when its standard input does, so that it cannot outlive its parent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any, Protocol

from tacit.errors import LedgerError, SessionError, TacitError
from tacit.multiparty.agreement import Agreement, event_of
from tacit.multiparty.bulk import PartyClient, PartyServer
from tacit.multiparty.calls import Calls, CallServer, Handler, UnreachableError
from tacit.multiparty.certificates import Authority, Identity
from tacit.multiparty.config import Charging, RoleConfig
from tacit.multiparty.coordinator import Charge, Coordinator
from tacit.multiparty.driving import Orders, drive_party, drive_server, drive_shuffler
from tacit.multiparty.enrolment import Enrolled, enrol
from tacit.multiparty.party import Party
from tacit.multiparty.refusals import Counts, RefusedError
from tacit.multiparty.registry import Registry
from tacit.multiparty.reporting import STATUS
from tacit.multiparty.server import Server
from tacit.multiparty.shuffler import Shuffler
from tacit.multiparty.wire import MESSAGE_BYTES, pack, parse, upload_bytes
from tacit.privacy.noise import NoiseSource

ENROL_SECONDS = 120.0
_TURN, _SLOW = 0.04, 0.5


class _Role(Protocol):
    counts: Counts

    def status(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


class Ending:
    """Tells a process to end: a signal, or the end of its parent."""

    def __init__(self, *, until_eof: bool) -> None:
        self.asked = Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.asked.set())
        if until_eof:
            Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while os.read(0, 4096):
            pass
        self.asked.set()
        time.sleep(5)
        os._exit(3)  # a turn that hangs must not outlive the parent


def run_role(config: RoleConfig, ending: Ending) -> int:
    """Play a role until its part is over; 0 if the session was completed or the role stopped."""
    os.umask(0o077)
    if config.role == "registry":
        return _registry(config, ending)
    held = enrol(config, time.monotonic() + ENROL_SECONDS)
    if held.credentials.identity.role != config.role:
        raise SessionError(f"the token is for another role than {config.role}")
    roles: dict[str, Callable[[RoleConfig, Enrolled, Ending], int]] = {
        "coordinator": _coordinator,
        "shuffler": _shuffler,
        "party": _party,
        "server": _server,
        "user": _user,
    }
    return roles[config.role](config, held, ending)


# -- roles ------------------------------------------------------------------------------------


def _registry(config: RoleConfig, ending: Ending) -> int:
    if config.agreement is None or config.authority_key is None:
        raise SessionError("a registry needs the agreement and the authority's key")
    agreement = Agreement.from_json(config.agreement.read_text())
    authority = Authority(config.authority_key.read_bytes(), config.authority.read_bytes())
    registry = Registry(agreement, authority, config.folder)
    tokens = config.folder / "tokens.json"
    if tokens.exists():
        for uri, token in json.loads(tokens.read_text()).items():
            registry.admit(token, Identity.parse(uri))

    def enrolled(_: Identity | None, message: bytes) -> bytes:
        said = parse(message, token=str, request=str, sealing=str, first=int, last=int)
        sealing = _hex(said["sealing"]) if said["sealing"] else None
        made = registry.enrol(
            said["token"], said["request"].encode(), sealing, said["first"], said["last"]
        )
        return pack({"certificate": made.decode()})

    def directory(_: Identity | None, message: bytes) -> bytes:
        return pack(registry.directory())

    own = authority.enrol(Identity(agreement.session, "registry"))
    handlers: dict[str, Handler] = {"enrol": enrolled, "directory": directory}
    calls = CallServer(
        config.listen, own, handlers, most=MESSAGE_BYTES, counts=registry.counts, mutual=False
    )
    try:
        return _turns(config, registry, ending, lambda: None, stay=True)
    finally:
        calls.stop()
        registry.close()


def _coordinator(config: RoleConfig, held: Enrolled, ending: Ending) -> int:
    coordinator = Coordinator(
        held.agreement, config.folder, charging(held.agreement, config.charging)
    )

    def report(caller: Identity | None, message: bytes) -> bytes:
        said = parse(message, session=str, kind=str, round=int)
        return json.dumps(coordinator.report(_known(caller), said)).encode()

    handlers: dict[str, Handler] = {"report": report}
    calls = CallServer(
        config.listen,
        held.credentials,
        handlers,
        most=1 << 20,
        counts=coordinator.counts,
    )

    def turn() -> Orders:
        coordinator.tick()
        return coordinator.orders()

    try:
        return _turns(config, coordinator, ending, turn, stay=True)
    finally:
        calls.stop()
        coordinator.close()


def _shuffler(config: RoleConfig, held: Enrolled, ending: Ending) -> int:
    agreement = held.agreement
    shuffler = Shuffler(agreement, config.folder)
    parties = _party_clients(config, held)
    handlers: dict[str, Handler] = {
        "upload": lambda caller, message: pack(shuffler.accept(_known(caller), message))
    }
    most = max(upload_bytes(agreement, number) for number in range(len(agreement.plan.rounds) + 1))
    calls = CallServer(
        config.listen, held.credentials, handlers, most=most + 4096, counts=shuffler.counts
    )
    coordinator = Calls(config.coordinator, held.credentials, "coordinator")

    def deliver(party: int, number: int, name: str, names: Any, rows: Any) -> dict[str, int]:
        return parties[party].deliver(number, name, names, rows)

    def turn() -> Orders:
        # Two batches per party: one is on its way while the other is being written.
        return drive_shuffler(shuffler, _reporting(coordinator), deliver, 2 * len(parties))

    try:
        return _turns(config, shuffler, ending, turn)
    finally:
        calls.stop()
        shuffler.close()


def _party(config: RoleConfig, held: Enrolled, ending: Ending) -> int:
    if held.sealing is None:
        raise SessionError("a party needs its X25519 key")
    me = held.credentials.identity.first
    peers = {number: key for number, key in held.parties.items() if number != me}
    party = Party(
        held.agreement, me, held.sealing, peers, config.folder, NoiseSource.fresh()
    )  # fmt: skip
    server = PartyServer(party, config.listen, held.credentials)
    others = _party_clients(config, held)
    coordinator = Calls(config.coordinator, held.credentials, "coordinator")

    def turn() -> Orders:
        return drive_party(
            party, _reporting(coordinator), lambda other, number: others[other].held(number)
        )

    try:
        return _turns(config, party, ending, turn, stay=True)
    finally:
        server.shutdown()
        party.close()


def _server(config: RoleConfig, held: Enrolled, ending: Ending) -> int:
    server = Server(held.agreement, config.folder)
    parties = _party_clients(config, held)
    coordinator = Calls(config.coordinator, held.credentials, "coordinator")

    def rows(caller: Identity | None, message: bytes) -> bytes:
        said = parse(message, round=int, first=int, last=int)
        return server.rows(_known(caller), said["round"], said["first"], said["last"])

    def whole(caller: Identity | None, message: bytes) -> bytes:
        return server.whole(_known(caller), parse(message, round=int)["round"])

    handlers: dict[str, Handler] = {"rows": rows, "whole": whole}
    calls = CallServer(
        config.listen, held.credentials, handlers, most=MESSAGE_BYTES, counts=server.counts
    )

    def turn() -> Orders:
        return drive_server(
            server, _reporting(coordinator), lambda party, number: parties[party].share(number)
        )

    try:
        return _turns(config, server, ending, turn, stay=True)
    finally:
        calls.stop()
        server.close()


def _user(config: RoleConfig, held: Enrolled, ending: Ending) -> int:
    from tacit.multiparty.users import Users

    users = Users(config, held)
    try:
        return _turns(config, users, ending, users.turn)
    finally:
        users.close()


# -- what roles share -------------------------------------------------------------------------


def charging(agreement: Agreement, config: Charging | None) -> Charge:
    """Charges each round to the ledger under the session's name, before it can be seen."""
    if config is None:
        return lambda number: None
    from tacit.privacy.events import event_from_json
    from tacit.privacy.ledger import Ledger

    ledger = Ledger(config.ledger)

    def charge(number: int) -> None:
        name, event = event_of(agreement, number)
        if event is None:
            raise LedgerError(
                f"nobody said what {name} costs",
                why="a ledger was named, so every round must be charged",
            )
        ledger.charge(
            fingerprint=config.fingerprint,
            run=f"{agreement.session}:{number}",
            unit=config.unit,
            event=event_from_json(dict(event)),
            delta=config.delta,
            note=f"multi-party session: {name}",
        )

    return charge


def _turns(
    config: RoleConfig,
    role: _Role,
    ending: Ending,
    turn: Callable[[], Orders | None],
    *,
    stay: bool = False,
) -> int:
    """Take turns until the session is over, or until told to stop where others still ask."""
    written, trouble, pause = 0.0, "", _TURN
    orders: Orders | None = None
    while not ending.asked.is_set():
        over = orders is not None and (orders["done"] or orders["phase"] == "aborted")
        try:
            if not over:
                orders, trouble, pause = turn(), "", _TURN
        except UnreachableError as error:
            trouble, pause = str(error), min(2 * pause, _SLOW)
        except RefusedError as error:
            role.counts.refused(error.cause)
            trouble, pause = str(error), _SLOW
        except TacitError as error:
            trouble, pause = str(error), _SLOW
        now = time.monotonic()
        over = orders is not None and (orders["done"] or orders["phase"] == "aborted")
        if now - written > 0.5 or over:
            _write_status(config, role, orders, trouble)
            written = now
        if over and not stay:
            break
        ending.asked.wait(0.2 if over else pause)
    _write_status(config, role, orders, trouble)
    return 1 if orders is not None and orders["phase"] == "aborted" else 0


def _write_status(config: RoleConfig, role: _Role, orders: Orders | None, trouble: str) -> None:
    session = {} if orders is None else {k: orders[k] for k in ("round", "phase", "done", "why")}
    said = {
        "role": config.role,
        "number": config.number if config.role == "party" else 0,
        "process": os.getpid(),
        "at": time.time(),
        "session": session,
        "trouble": trouble,
        "counts": role.status(),
    }
    path = config.folder / STATUS
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(json.dumps(said))
        part.replace(path)
    except OSError:
        pass  # a full disk must not stop a role from refusing properly


def _party_clients(config: RoleConfig, held: Enrolled) -> list[PartyClient]:
    if len(config.parties) != held.agreement.plan.parties:
        raise SessionError("the file names another number of parties than the session has")
    digest = held.agreement.digest
    return [
        PartyClient(address, held.credentials, digest, number)
        for number, address in enumerate(config.parties)
    ]


def _reporting(coordinator: Calls) -> Callable[[dict[str, Any]], Orders]:
    def report(message: dict[str, Any]) -> Orders:
        return dict(json.loads(coordinator("report", json.dumps(message).encode())))

    return report


def _known(caller: Identity | None) -> Identity:
    if caller is None:
        raise RefusedError("certificate", "a call without a certificate")
    return caller


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise RefusedError("garbage", "a key that is not hexadecimal") from error


def main(arguments: list[str]) -> int:
    """Run the role of a TOML file."""
    until_eof = "--until-eof" in arguments
    paths = [argument for argument in arguments if argument != "--until-eof"]
    ending = Ending(until_eof=until_eof)
    try:
        if len(paths) != 1:
            raise SessionError("name one file", remedy="python -m tacit.multiparty.serve ROLE.toml")
        return run_role(RoleConfig.load(Path(paths[0])), ending)
    except TacitError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
