"""Arithmetic of additive shares in Z mod 2^32 or 2^64, and nothing else: no network, no state.

A row on the fixed-point grid of :mod:`tacit.aggregate` becomes ring words by two's complement; a
value is split into t words that add up to it; a party adds up the words that arrived under each
key and adds its share of the noise; the sum over the parties is the noisy sum of the values. The
same integers come out as ``aggregate/`` computes with the same noise, because reduction modulo a
power of two commutes with addition (proofs/dpa.md, Theorem 1).

References:
    Jia, Zhao, Dong, Ling, Yang, Luo, Fu: "Distributed Private Aggregation in Graph Neural
    Networks" (USENIX Security 2025), Sections 2.3 and 4.3.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha512
from math import isfinite, prod, sqrt
from typing import NoReturn, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from tacit.errors import NoiseError
from tacit.privacy.noise import NoiseSource

Words: TypeAlias = NDArray[np.unsignedinteger]
Keys: TypeAlias = NDArray[np.int32]

SEED_BYTES = 32
"""Length of a slot's seed: a ChaCha20 key."""

MIN_STEPS = 16.0
"""Least standard deviation of one party's noise, in grid steps (proofs/dpa.md, Theorem 2)."""

_MARGIN = 10  # standard deviations of noise that must fit beside the largest sum
_CHUNK = 1 << 18
_ZEROS = bytes(_CHUNK)


@dataclass(frozen=True)
class Ring:
    """The integers modulo ``2^bits``, read as signed numbers when a result is decoded.

    Attributes:
        bits: 32 or 64.
    """

    bits: int = 64

    def __post_init__(self) -> None:
        if self.bits not in (32, 64):
            raise NoiseError(f"a ring of {self.bits} bits is not supported", remedy="use 32 or 64")

    @property
    def dtype(self) -> type[np.uint32] | type[np.uint64]:
        """The words' type."""
        return np.uint32 if self.bits == 32 else np.uint64

    @property
    def word_bytes(self) -> int:
        """Bytes of a word."""
        return self.bits // 8

    def holds(self, terms: int, fraction_bits: int, noise_std: float) -> bool:
        """Whether no sum of unit values with noise can leave the ring (up to ten deviations).

        ``(terms + 10 σ) 2^f < 2^(bits-1)``. Dummies do not count, because their values are zero.

        Args:
            terms: Most values of size at most 1 that one key can receive: a public number.
            fraction_bits: f, of the grid.
            noise_std: σ, of the noise of all parties together, where a row has norm 1.
        """
        return (terms + _MARGIN * noise_std) * 2.0**fraction_bits < 2.0 ** (self.bits - 1)

    def encode(self, values: NDArray[np.signedinteger]) -> Words:
        """Signed integers as ring words.

        Raises:
            NoiseError: The values are not integers, or one lies outside the ring's signed range.
        """
        values = np.asarray(values)
        if values.dtype.kind != "i":
            raise NoiseError("only signed integers enter the ring", remedy="use to_grid first")
        end = 2 ** (self.bits - 1)
        wide = values.dtype.itemsize * 8 > self.bits and values.size
        if wide and not (values.min() >= -end and values.max() < end):
            raise NoiseError(
                f"a value does not fit into {self.bits} bits", remedy="use the ring of 64 bits"
            )
        return values.astype(self.dtype)

    def decode(self, words: Words) -> NDArray[np.int64]:
        """The signed integers of smallest size that the words stand for."""
        signed = self._own(words).view(np.int32 if self.bits == 32 else np.int64)
        return signed.astype(np.int64)

    def from_bytes(self, payload: bytes, width: int) -> Words:
        """Little-endian words as they travel.

        Raises:
            NoiseError: The payload has another length than ``width`` words.
        """
        if len(payload) != width * self.word_bytes:
            raise NoiseError(
                f"a payload of {len(payload)} bytes is not {width} words of {self.bits} bits"
            )
        return np.frombuffer(payload, f"<u{self.word_bytes}").astype(self.dtype)

    def to_bytes(self, words: Words) -> bytes:
        """The words in little-endian order, for the wire."""
        return self._own(words).astype(f"<u{self.word_bytes}").tobytes()

    def _own(self, words: Words) -> Words:
        words = np.ascontiguousarray(words)
        if words.dtype != self.dtype:
            raise NoiseError(f"words of type {words.dtype} are not of the ring of {self.bits} bits")
        return words


def smallest_ring(terms: int, fraction_bits: int, noise_std: float) -> Ring:
    """The smaller ring if every sum fits into it, else the larger.

    Raises:
        NoiseError: Not even 64 bits suffice.
    """
    for ring in (Ring(32), Ring(64)):
        if ring.holds(terms, fraction_bits, noise_std):
            return ring
    raise NoiseError(
        f"sums of {terms:,} values with noise {noise_std:g} overflow 64 bits",
        remedy="use fewer fraction bits",
    )


# -- randomness of shares ----------------------------------------------------------------------


class Stream:
    """Uniform ring words from AES-256-CTR. Hides shares; never used as privacy noise.

    Like a :class:`~tacit.privacy.noise.NoiseSource` it belongs to one process and is not copied.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._process = os.getpid()

    @classmethod
    def fresh(cls) -> Stream:
        """A stream keyed by the operating system."""
        return cls(os.urandom(32))

    @classmethod
    def seeded(cls, seed: int) -> Stream:
        """A repeatable stream, for research."""
        return cls(sha512(f"tacit seeded shares {int(seed)}".encode()).digest()[:32])

    def fill(self, words: Words) -> None:
        """Overwrite a contiguous array with uniform words."""
        if os.getpid() != self._process:
            raise NoiseError(
                "this stream belongs to another process",
                why="a forked copy would use the same words again, and two shares show a value",
                remedy="make a fresh stream in each process",
            )
        view = words.reshape(-1).view(np.uint8)  # a contiguous array reshapes without a copy
        for start in range(0, len(view), _CHUNK):
            part = view[start : start + _CHUNK]
            self._cipher.update_into(_ZEROS[: len(part)], part.data)

    def words(self, shape: int | Sequence[int], ring: Ring) -> Words:
        """New uniform words."""
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        found = np.empty(prod(dims), ring.dtype)
        self.fill(found)
        return found.reshape(dims)

    def __reduce__(self) -> NoReturn:
        raise NoiseError("a stream of shares cannot be copied", remedy="make a fresh one")


def expand(seed: bytes, width: int, ring: Ring, *, nonce: int) -> Words:
    """The words that a slot's seed stands for in one round: ChaCha20 (RFC 8439) of the seed.

    Whoever holds the seed computes its share of every round itself, so that only one of a slot's t
    parties is sent bytes.

    Args:
        seed: 32 secret bytes, drawn once per slot and role.
        width: Number of words.
        ring: The ring.
        nonce: Which round (layer and channel) of the session: equal nonces give equal words.

    Raises:
        NoiseError: The seed has another length, or the nonce is out of range.
    """
    if len(seed) != SEED_BYTES:
        raise NoiseError(f"a slot's seed has {SEED_BYTES} bytes, not {len(seed)}")
    if not 0 <= nonce < 2**64:
        raise NoiseError(f"the round {nonce} is out of range", remedy="use 0 to 2^64 - 1")
    counter = struct.pack("<IIQ", 0, 0, nonce)  # block counter, then a nonce of 96 bits
    stream = Cipher(algorithms.ChaCha20(seed, counter), None).encryptor()
    return ring.from_bytes(stream.update(bytes(width * ring.word_bytes)), width)


def last_share(value: Words, seeds: Sequence[bytes], ring: Ring, *, nonce: int) -> Words:
    """What the one party that is sent bytes receives: the value less the seeds' words."""
    rest = ring._own(value).copy()
    for seed in seeds:
        rest -= expand(seed, len(rest), ring, nonce=nonce)
    return rest


def split(values: Words, shares: int, stream: Stream, ring: Ring) -> list[Words]:
    """Additive shares: the first t-1 uniform, the last what is missing (Section 2.3).

    Args:
        values: Words of any shape.
        shares: t, at least 2.
        stream: Where the uniform shares come from.
        ring: The ring.

    Formal guarantees:
        Any t-1 of the shares are independent and uniform, whatever the values
        (proofs/dpa.md, Theorem 1).
    """
    if shares < 2:
        raise NoiseError("one share is the value itself", remedy="use at least 2 shares")
    last = ring._own(values).copy()
    first = []
    for _ in range(shares - 1):
        words = stream.words(last.shape, ring)
        last -= words
        first.append(words)
    return [*first, last]


def choose_parties(count: int, parties: int, shares: int, stream: Stream) -> NDArray[np.uint8]:
    """For each slot t of the m parties in random order, each ordered choice equally likely.

    Drawn once per session and kept: a second draw would show a slot to further parties
    (proofs/dpa.md, Theorem 5). The last column is the party that is sent bytes.

    Returns:
        One row of ``shares`` party numbers per slot.
    """
    check_sharing(parties, shares, colluding=0)
    chosen = np.empty((count, shares), np.uint8)
    for start in range(0, count, _CHUNK):
        part = chosen[start : start + _CHUNK]
        # The order of m independent 64-bit words is uniform up to ties of probability 2^-64.
        order = np.argsort(stream.words((len(part), parties), Ring(64)), axis=1, kind="stable")
        part[:] = order[:, :shares]
    return chosen


def check_sharing(parties: int, shares: int, colluding: int = 1) -> None:
    """Refuse numbers of parties and shares that protect nothing.

    Raises:
        NoiseError: Unless ``2 <= t <= m <= 255``, ``c < t`` and ``c <= m - t``.
    """
    if not 2 <= shares <= parties <= 255:
        raise NoiseError(
            f"{shares} shares among {parties} parties is not a sharing",
            remedy="use at least 2 shares, at least as many parties, and at most 255",
        )
    if not 0 <= colluding < shares:
        raise NoiseError(
            f"{colluding} colluding parties can put {shares} shares together",
            why="t parties that talk to each other know every value they were sent",
            remedy="use more shares than there are colluding parties",
        )
    if colluding > parties - shares:
        raise NoiseError(
            f"{colluding} colluding parties of {parties} see every slot of {shares} shares",
            why="then the number of slots under a key is hidden by its dummies alone",
            remedy="use more parties or fewer shares: colluding <= parties - shares",
        )


# -- what a party does --------------------------------------------------------------------------


def add_by_key(totals: Words, keys: Keys, rows: Words) -> None:
    """``totals[keys[j]] += rows[j]`` in the ring, in place: a party's aggregation (Equation 12).

    Raises:
        NoiseError: Types or shapes differ, or a key is not a row of the totals.
    """
    if rows.ndim != 2 or totals.ndim != 2 or rows.shape != (len(keys), totals.shape[1]):
        raise NoiseError(f"rows {rows.shape} for {len(keys)} keys do not fit {totals.shape}")
    if rows.dtype != totals.dtype or totals.dtype not in (np.uint32, np.uint64):
        raise NoiseError(f"cannot add words of {rows.dtype} to totals of {totals.dtype}")
    keys = np.ascontiguousarray(keys, np.int64)
    if len(keys) and not (keys.min() >= 0 and keys.max() < len(totals)):
        raise NoiseError("a key names no row of the totals")
    from tacit.multiparty.kernels import scatter_add

    scatter_add(totals, keys, np.ascontiguousarray(rows))


def party_std(std: float, parties: int, colluding: int) -> float:
    """One party's noise, of variance ``σ²/(m - c)``: the others' suffices without the colluders'.

    The paper divides by m, which is short by what colluders know, a party's own noise included.
    """
    return std / sqrt(parties - colluding)


def noise_words(
    source: NoiseSource,
    std: float,
    shape: int | Sequence[int],
    ring: Ring,
    *,
    fraction_bits: int,
) -> Words:
    """One party's noise on the grid, as ring words; drawn once, stored before anything is sent.

    Args:
        source: The party's own cryptographic stream.
        std: Its standard deviation where a row has norm 1 (:func:`party_std`).
        shape: Of the totals.
        ring: The ring.
        fraction_bits: Of the grid.

    Raises:
        NoiseError: The noise is finer than 16 grid steps.

    Formal guarantees:
        The sum over the parties that do not collude is the Gaussian mechanism of variance σ² up to
        a factor that 2^-1000 bounds (proofs/dpa.md, Theorem 2).
    """
    steps = std * 2.0**fraction_bits
    check_steps(steps)
    return source.gaussian(steps, shape).astype(ring.dtype)


def check_steps(steps: float) -> None:
    """Refuse noise too fine for sums of rounded noise to be as good as noise.

    Raises:
        NoiseError: Fewer than 16 grid steps, or not finite.
    """
    if not (isfinite(steps) and steps >= MIN_STEPS):
        raise NoiseError(
            f"one party's noise of {steps:g} grid steps is too fine to be shared out",
            why="sums of rounded noise are as good as rounded sums only above 16 steps",
            remedy="use more fraction bits",
        )


def mask_words(
    seeds: Mapping[int, bytes], me: int, shape: int | Sequence[int], ring: Ring, *, nonce: int
) -> Words:
    """What a party adds to its total so that honest totals show nothing but their sum.

    Each pair of parties shares a seed; the one of the smaller number adds its words, the other
    subtracts them. All masks together are zero.

    Args:
        seeds: For every other party the seed shared with it.
        me: This party's number.
        shape: Of the totals.
        ring: The ring.
        nonce: The round.

    Formal guarantees:
        Totals of parties whose common seeds are unknown are uniform given their sum
        (proofs/dpa.md, Theorem 3; without masks a key with few slots gives more away).
    """
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    mask = np.zeros(prod(dims), ring.dtype)
    for other, seed in seeds.items():
        if other == me:
            raise NoiseError("a party shares no seed with itself")
        words = expand(seed, len(mask), ring, nonce=nonce)
        if me < other:
            mask += words
        else:
            mask -= words
    return mask.reshape(dims)


def reconstruct(totals: Sequence[Words], ring: Ring) -> NDArray[np.int64]:
    """The signed sum of what the parties published (Equation 18)."""
    if not len(totals):
        raise NoiseError("nothing was published that could be put together")
    found = ring._own(totals[0]).copy()
    for part in totals[1:]:
        if part.shape != found.shape:
            raise NoiseError(f"totals of shapes {found.shape} and {part.shape} do not fit")
        found += ring._own(part)
    return ring.decode(found)


def to_real(sums: NDArray[np.int64], fraction_bits: int) -> NDArray[np.float32]:
    """Sums in units where a row has norm 1, rounded as ``aggregate/`` rounds them."""
    found = np.empty(sums.shape, np.float32)
    np.multiply(sums, 2.0**-fraction_bits, out=found, casting="same_kind")
    return found
