"""The slots registered at one party, sorted by name, and which of them every holder has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.errors import SessionError
from tacit.multiparty.agreement import EVERYONE
from tacit.multiparty.ring import SEED_BYTES
from tacit.multiparty.sealing import ID_BYTES, checksum

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]


def as_names(raw: Bytes) -> NDArray[np.bytes_]:
    """Rows of 16 bytes as sortable strings. numpy drops trailing zeros of both sides alike."""
    return np.ascontiguousarray(raw).view(f"S{ID_BYTES}").reshape(-1)


def split_names(raw: bytes) -> Bytes:
    """A list of names that a peer sent.

    Raises:
        SessionError: Its length is no multiple of a name's.
    """
    if len(raw) % ID_BYTES:
        raise SessionError("a list of slots was cut off on its way", remedy="ask again")
    return np.frombuffer(raw, np.uint8).reshape(-1, ID_BYTES)


@dataclass(frozen=True, eq=False)
class SlotTable:
    """Slots of one party.

    Attributes:
        names: (n, 16), sorted and different.
        keys: Whose sum each adds to; -1 for padding, -2 for everyone's.
        parties: (n, t): all holders in order; the last is sent bytes.
        seeds: (n, 32): this party's.
    """

    names: Bytes
    keys: NDArray[np.int32]
    parties: Bytes
    seeds: Bytes

    @classmethod
    def build(cls, names: Bytes, slots: Bytes, shares: int) -> SlotTable:
        """From the registered rows ``key | seed | parties``, in any order."""
        order = np.argsort(as_names(names), kind="stable")
        names, slots = names[order], slots[order]
        raw = np.ascontiguousarray(slots[:, :4]).view(">u4").reshape(-1)
        # In two's complement the two special keys are -1 and -2, and no user has such a number.
        keys = raw.astype(np.uint32).view(np.int32)
        end = 4 + SEED_BYTES
        return cls(names, keys, slots[:, end : end + shares], slots[:, 4:end])

    def __len__(self) -> int:
        return len(self.names)

    def rows(self) -> Bytes:
        """Back to registered rows."""
        keys = self.keys.view(np.uint32).astype(">u4")
        return np.hstack([keys.view(np.uint8).reshape(-1, 4), self.seeds, self.parties])

    def find(self, names: Bytes) -> NDArray[np.int64]:
        """The place of each name, -1 where it is not registered."""
        if not len(self):
            return np.full(len(names), -1)
        mine, asked = as_names(self.names), as_names(names)
        place = np.minimum(np.searchsorted(mine, asked), len(mine) - 1)
        return np.where(mine[place] == asked, place, -1)

    def held_with(self, party: int) -> Flags:
        """Which slots another party holds too."""
        return (self.parties == party).any(axis=1)

    def for_everyone(self) -> Flags:
        """Which slots add to everyone's sum; the rest is for lists."""
        return self.keys == EVERYONE - 2**32

    def receives(self, party: int) -> Flags:
        """For which slots this party is the one that is sent bytes."""
        return self.parties[:, -1] == party

    def only(self, chosen: Flags) -> SlotTable:
        """Some of the slots."""
        return SlotTable(
            self.names[chosen], self.keys[chosen], self.parties[chosen], self.seeds[chosen]
        )

    def agree(self, mine: Flags, others: Mapping[int, bytes]) -> Flags:
        """The slots that all their holders have in this round.

        Every holder fixed its list before it answered, and each drops what any other lacks, so all
        t holders of a slot come to the same verdict on it.

        Args:
            mine: What this party has.
            others: For each other party the sorted names of what it has in common with this one.
        """
        chosen = mine.copy()
        for party, raw in others.items():
            common = self.held_with(party)
            place = self.find(split_names(raw))
            theirs = np.zeros(len(self), bool)
            theirs[place[place >= 0]] = True
            chosen &= theirs | ~common
        return chosen

    def pairs(self, chosen: Flags, others: list[int]) -> dict[str, tuple[int, str]]:
        """For each other party how many of the chosen slots are held in common, and which."""
        found = {}
        for party in others:
            names = self.names[chosen & self.held_with(party)]
            found[str(party)] = (len(names), checksum(names.tobytes()))
        return found
