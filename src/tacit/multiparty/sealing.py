"""Envelopes: slots sealed to a party by HPKE, values sealed by the slot's own key.

A slot is sealed once per session to each of its t parties with HPKE in base mode (RFC 9180:
X25519, HKDF-SHA256, ChaCha20-Poly1305); the session and the party are bound in as ``info``. A
value is sealed with AES-256-GCM under the seed of the one party that is sent bytes, which is used
for nothing else; round, session and slot are bound in as nonce and associated data, so that a
value of another round or session does not open.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.multiparty.refusals import RefusedError
from tacit.multiparty.ring import SEED_BYTES

ID_BYTES = 16
TAG_BYTES = 16
_FIXED = ID_BYTES + 4 + SEED_BYTES
SLOT_OVERHEAD = 32 + _FIXED + 16
"""Bytes of a sealed slot besides its t party numbers: encapsulated key, contents, tag."""

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


@dataclass(frozen=True)
class Slot:
    """What one of a slot's parties learns of it.

    Attributes:
        name: 16 random bytes, the same at all its parties.
        key: Under which its values are summed.
        parties: The t parties in order; the last is sent bytes, the others expand their seeds.
        seed: This party's own.
    """

    name: bytes
    key: int
    parties: bytes
    seed: bytes


def _info(digest: bytes, party: int) -> bytes:
    return b"tacit dpa slot 1" + digest + bytes([party])


def seal_slot(slot: Slot, public: X25519PublicKey, digest: bytes, party: int) -> bytes:
    """A slot for one of its parties."""
    plain = slot.name + slot.key.to_bytes(4, "big") + slot.seed + slot.parties
    return _SUITE.encrypt(plain, public, _info(digest, party))


def open_slot(
    sealed: bytes, private: X25519PrivateKey, digest: bytes, party: int, shares: int
) -> Slot:
    """What a party finds in an envelope.

    Raises:
        RefusedError: It was not sealed to this party in this session, or makes no sense.
    """
    if len(sealed) != SLOT_OVERHEAD + shares:
        raise RefusedError("length", f"a sealed slot of {len(sealed)} bytes")
    try:
        plain = _SUITE.decrypt(sealed, private, _info(digest, party))
    except Exception as error:  # InvalidTag, or ValueError for a point of small order
        raise RefusedError("garbage", "a sealed slot does not open") from error
    parties = plain[_FIXED:]
    if len(set(parties)) != shares or party not in parties:
        raise RefusedError("role", "a slot names other parties than those it was sent to")
    return Slot(
        name=plain[:ID_BYTES],
        key=int.from_bytes(plain[ID_BYTES : ID_BYTES + 4], "big"),
        parties=parties,
        seed=plain[ID_BYTES + 4 : _FIXED],
    )


def _bound(digest: bytes, number: int, name: bytes) -> tuple[bytes, bytes]:
    return number.to_bytes(12, "big"), digest + number.to_bytes(4, "big") + name


def seal_value(words: bytes, key: bytes, digest: bytes, number: int, name: bytes) -> bytes:
    """A slot's last share in one round.

    The nonce is the round, so a key must never seal two different values in one round: whoever
    calls stores a digest of what it sealed first and compares (:mod:`tacit.multiparty.agent`).
    """
    nonce, bound = _bound(digest, number, name)
    return AESGCM(key).encrypt(nonce, words, bound)


def open_value(
    sealed: bytes | memoryview, key: bytes, digest: bytes, number: int, name: bytes
) -> bytes | None:
    """The share, or None if it was not sealed for this slot, round and session."""
    nonce, bound = _bound(digest, number, name)
    try:
        return AESGCM(key).decrypt(nonce, sealed, bound)
    except InvalidTag:
        return None


def mask_seed(
    private: X25519PrivateKey, public: X25519PublicKey, digest: bytes, me: int, other: int
) -> bytes:
    """The seed that two parties share for their masks, from their X25519 keys and the session."""
    pair = bytes([min(me, other), max(me, other)])
    derive = HKDF(SHA256(), SEED_BYTES, salt=digest, info=b"tacit dpa mask 1" + pair)
    return derive.derive(private.exchange(public))


def checksum(names: bytes) -> str:
    """Of a sorted list of slot names."""
    return sha256(names).hexdigest()
