"""How a role gets its certificate and learns of the session, once; afterwards from its folder."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from tacit.errors import SessionError
from tacit.multiparty.agreement import Agreement
from tacit.multiparty.calls import Calls, UnreachableError
from tacit.multiparty.certificates import Credentials, sealing_key_of, signing_request
from tacit.multiparty.config import RoleConfig
from tacit.multiparty.wire import pack, parse

_WAIT = 0.1


@dataclass(frozen=True)
class Enrolled:
    """What a role has once it is enrolled.

    Attributes:
        credentials: Its certificate and key.
        agreement: The session.
        parties: The parties' public keys, by number.
        sealing: A party's own X25519 key.
    """

    credentials: Credentials
    agreement: Agreement
    parties: dict[int, X25519PublicKey]
    sealing: X25519PrivateKey | None


def enrol(config: RoleConfig, deadline: float) -> Enrolled:
    """Enrol if that was not done before, and wait until all parties have.

    Args:
        config: The role's configuration.
        deadline: When to give up, on the monotonic clock.

    Raises:
        RefusedError: The registry refuses the token.
        UnreachableError: The registry did not answer in time.
    """
    authority = config.authority.read_bytes()
    folder = config.folder / "identity"
    sealing = _sealing_key(folder) if config.role == "party" else None
    with Calls(config.registry, authority=authority, seconds=10.0) as registry:
        last = max(config.last, config.number)
        numbers = (config.number, last) if config.role in ("party", "user") else (0, 0)
        held = credentials(registry, folder, config.token, authority, numbers, sealing, deadline)
        while True:
            said = json.loads(_patient(registry, "directory", b"{}", deadline))
            agreement = Agreement.from_json(json.dumps(said["agreement"]))
            if len(said["parties"]) == agreement.plan.parties:
                break
            _sleep(deadline, "the parties to enrol")
    if held.identity.session != agreement.session:
        raise SessionError(
            f"{folder} holds a certificate of another session", remedy="use an empty folder"
        )
    keys = {
        int(number): X25519PublicKey.from_public_bytes(sealing_key_of(pem.encode(), authority))
        for number, pem in said["parties"].items()
    }
    return Enrolled(held, agreement, keys, sealing)


def credentials(
    registry: Calls,
    folder: Path,
    token: str,
    authority: bytes,
    numbers: tuple[int, int],
    sealing: X25519PrivateKey | None,
    deadline: float,
) -> Credentials:
    """A certificate for a key of one's own; both are kept, so a crash in between costs nothing."""
    if (folder / "certificate.pem").exists():
        return Credentials.load(folder)
    folder.mkdir(parents=True, exist_ok=True)
    asked = folder / "request.json"
    if not asked.exists():
        key, request = signing_request()
        _write_secret(asked, json.dumps({"key": key.decode(), "request": request.decode()}))
    kept = json.loads(asked.read_text())
    message = {
        "token": token,
        "request": kept["request"],
        "sealing": _public(sealing).hex() if sealing is not None else "",
        "first": numbers[0],
        "last": numbers[1],
    }
    said = parse(_patient(registry, "enrol", pack(message), deadline), certificate=str)
    held = Credentials(kept["key"].encode(), said["certificate"].encode(), authority)
    held.save(folder)
    return held


def _patient(calls: Calls, method: str, message: bytes, deadline: float) -> bytes:
    while True:
        try:
            return calls(method, message)
        except UnreachableError:
            _sleep(deadline, f"the registry at {calls.address}")


def _sleep(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise UnreachableError(f"waited too long for {what}", remedy="is everybody started?")
    time.sleep(_WAIT)


def _sealing_key(folder: Path) -> X25519PrivateKey:
    path = folder / "sealing.key"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = X25519PrivateKey.generate()
        raw = made.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        _write_secret(path, raw.hex())
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text()))


def _public(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def _write_secret(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)
