"""Messages that users send, as bytes whose length is checked before anything else.

An upload is one user's rows of one round: a header, then the recipients, the slots' names and the
sealed rows, each as one block. Every upload of a round has the same length, whoever sends it.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.multiparty.agreement import Agreement
from tacit.multiparty.refusals import RefusedError
from tacit.multiparty.sealing import ID_BYTES

_HEADER = struct.Struct(">4s32sIIII")
_MAGIC = b"TCT1"
MESSAGE_BYTES = 1 << 16
"""Most bytes of a message that carries no rows."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Upload:
    """One user's rows of one round.

    Attributes:
        number: The round.
        user: Whose they are.
        parties: The recipient of each row.
        names: The slots' names, (rows, 16).
        rows: Sealed rows, (rows, bytes).
        digest: SHA-256 of the whole message.
    """

    number: int
    user: int
    parties: Bytes
    names: Bytes
    rows: Bytes
    digest: str


def batch_name(number: int, party: int, turn: int) -> str:
    """Of the batches that the shuffler sends a party; others do not count as delivered."""
    return f"{number}-{party}-{turn}"


def upload_bytes(agreement: Agreement, number: int) -> int:
    """The length of every upload of a round."""
    width = 1 + ID_BYTES + agreement.row_bytes(number)
    return _HEADER.size + agreement.rows(number) * width


def pack_upload(
    agreement: Agreement, number: int, user: int, parties: Bytes, names: Bytes, rows: Bytes
) -> bytes:
    """An upload as bytes."""
    size = agreement.row_bytes(number)
    header = _HEADER.pack(_MAGIC, agreement.digest, number, user, len(parties), size)
    return b"".join((header, parties.tobytes(), names.tobytes(), rows.tobytes()))


def parse_upload(agreement: Agreement, message: bytes) -> Upload:
    """An upload, checked against the agreement.

    Raises:
        RefusedError: Another session, round, length or recipient.
    """
    if len(message) < _HEADER.size or message[:4] != _MAGIC:
        raise RefusedError("garbage", f"{len(message)} bytes that are no upload")
    _, session, number, user, count, size = _HEADER.unpack_from(message)
    if session != agreement.digest:
        raise RefusedError("session", "an upload for another session")
    if number > len(agreement.plan.rounds):
        raise RefusedError("round", f"an upload for round {number}")
    if user >= agreement.plan.users:
        raise RefusedError("role", "an upload for a user that does not exist")
    expected = upload_bytes(agreement, number)
    if len(message) > expected:
        raise RefusedError("oversize", f"an upload of {len(message):,} bytes, not {expected:,}")
    if (count, size) != (agreement.rows(number), agreement.row_bytes(number)) or (
        len(message) != expected
    ):
        raise RefusedError("length", f"an upload of {len(message):,} bytes, not {expected:,}")
    body = np.frombuffer(message, np.uint8, offset=_HEADER.size)
    parties, rest = body[:count], body[count:]
    names, rows = rest[: ID_BYTES * count], rest[ID_BYTES * count :]
    if count and int(parties.max()) >= agreement.plan.parties:
        raise RefusedError("role", "an upload to a party that does not exist")
    return Upload(
        number,
        user,
        parties,
        names.reshape(count, ID_BYTES),
        rows.reshape(count, size),
        sha256(message).hexdigest(),
    )


def pack(message: dict[str, Any]) -> bytes:
    """A message without rows."""
    return json.dumps(message, separators=(",", ":")).encode()


def parse(message: bytes, **fields: type) -> dict[str, Any]:
    """A message without rows, with the fields that it must have.

    Raises:
        RefusedError: It is too long, no JSON object, or a field is missing or of another type.
    """
    if len(message) > MESSAGE_BYTES:
        raise RefusedError("oversize", f"a message of {len(message):,} bytes")
    try:
        found = json.loads(message)
    except ValueError as error:
        raise RefusedError("garbage", "a message that is no JSON") from error
    if not isinstance(found, dict):
        raise RefusedError("garbage", "a message that is no JSON object")
    for name, kind in fields.items():
        value = found.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise RefusedError("garbage", f"a message without a proper {name!r}")
    return found
