"""What a party takes of a batch: opens it, checks every row, and counts each slot once.

Functions of the batch and of what the party has; they store nothing and change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from tacit.multiparty.agreement import EVERYONE, PAD, Agreement
from tacit.multiparty.refusals import RefusedError
from tacit.multiparty.ring import SEED_BYTES
from tacit.multiparty.sealing import ID_BYTES, TAG_BYTES, Slot, open_slot, open_value
from tacit.multiparty.slots import Bytes, Flags, SlotTable

Receipt = dict[str, int]
"""How many rows were ``kept``, how many ``repeated``, how many refused by cause."""


@dataclass(frozen=True)
class Registered:
    """New slots.

    Attributes:
        receipt: The answer.
        columns: What to keep on disk.
        fresh: The same by name.
    """

    receipt: Receipt
    columns: dict[str, Bytes]
    fresh: dict[bytes, bytes]


@dataclass(frozen=True)
class Values:
    """New shares.

    Attributes:
        receipt: The answer.
        columns: What to keep on disk.
        slots: The places of the slots in the table.
    """

    receipt: Receipt
    columns: dict[str, Bytes]
    slots: NDArray[np.int64]


def take_slots(
    agreement: Agreement,
    party: int,
    sealing: X25519PrivateKey,
    registered: Mapping[bytes, bytes],
    names: Bytes,
    rows: Bytes,
) -> Registered:
    """Open sealed slots.

    Raises:
        RefusedError: A slot was registered before with other contents; nothing is taken.
    """
    tally = Counter[str](kept=0, repeated=0)
    fresh: dict[bytes, bytes] = {}
    for name, row in zip(split_rows(names), split_rows(rows), strict=True):
        try:
            slot = open_slot(row, sealing, agreement.digest, party, agreement.plan.shares)
            _check_slot(slot, name, agreement)
        except RefusedError as refusal:
            tally[f"refused {refusal.cause}"] += 1
            continue
        held = slot.key.to_bytes(4, "big") + slot.seed + slot.parties
        before = registered.get(name, fresh.get(name))
        if before is None:
            fresh[name] = held
            tally["kept"] += 1
        elif before == held:
            tally["repeated"] += 1
        else:
            raise RefusedError("conflict", "a slot was registered before with other contents")
    columns = {
        "name": joined(list(fresh), ID_BYTES),
        "slot": joined(list(fresh.values()), 4 + SEED_BYTES + agreement.plan.shares),
    }
    return Registered(dict(tally), columns, fresh)


def _check_slot(slot: Slot, name: bytes, agreement: Agreement) -> None:
    plan = agreement.plan
    if slot.name != name:
        raise RefusedError("slot", "an envelope under another slot's name")
    if slot.key >= plan.users and slot.key not in (EVERYONE, PAD):
        raise RefusedError("slot", "a slot for a key that does not exist")
    if max(slot.parties) >= plan.parties:
        raise RefusedError("role", "a slot for a party that does not exist")


def take_values(
    agreement: Agreement,
    number: int,
    table: SlotTable,
    party: int,
    meant: Flags,
    have: Flags,
    tags: Bytes,
    names: Bytes,
    rows: Bytes,
) -> Values:
    """Open the sealed shares of a round.

    Args:
        agreement: The session.
        number: The round.
        table: The party's slots.
        party: Its number.
        meant: Which slots take part in the round.
        have: For which a share has arrived.
        tags: Those shares' authentication tags: equal tags, equal shares.
        names: The slots' names.
        rows: Their sealed shares.

    Raises:
        RefusedError: A share arrived before with other contents; nothing is taken.
    """
    tally = Counter[str](kept=0, repeated=0)
    size, session = rows.shape[1], agreement.digest
    place, sent = table.find(names), rows[:, -TAG_BYTES:]
    sealed = np.ascontiguousarray(rows).reshape(-1).data
    known = np.flatnonzero(place >= 0)
    # A slot for lists has no place in a round for everyone, nor the other way round.
    known = known[meant[place[known]]]
    own = known[table.receives(party)[place[known]]]
    refused = {"slot": len(rows) - len(known), "role": len(known) - len(own)}
    tally.update({f"refused {cause}": amount for cause, amount in refused.items() if amount})
    kept: list[int] = []
    shares: list[bytes] = []
    seen: dict[int, int] = {}
    for j, key in zip(own.tolist(), split_rows(table.seeds[place[own]]), strict=True):
        one = sealed[j * size : (j + 1) * size]
        share = open_value(one, key, session, number, names[j].tobytes())
        if share is None:
            tally["refused garbage"] += 1
            continue
        slot = int(place[j])
        first = seen.get(slot)
        if first is None and not have[slot]:
            seen[slot] = j
            kept.append(j)
            shares.append(share)
        elif np.array_equal(sent[j], tags[slot] if first is None else sent[first]):
            tally["repeated"] += 1
        else:
            raise RefusedError("conflict", "a slot's value was sent before with other contents")
    tally["kept"] = len(kept)
    columns = {
        "name": names[kept],
        "tag": sent[kept],
        "share": joined(shares, size - TAG_BYTES),
    }
    return Values(dict(tally), columns, place[kept])


def split_rows(array: Bytes) -> list[bytes]:
    """The rows of a matrix of bytes, each as bytes."""
    rows, width = array.shape
    raw = np.ascontiguousarray(array).tobytes()
    return [raw[j * width : (j + 1) * width] for j in range(rows)]


def joined(rows: list[bytes], width: int) -> Bytes:
    """Rows of equal length as a matrix of bytes."""
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), width)
