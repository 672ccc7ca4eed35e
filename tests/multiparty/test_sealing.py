"""Envelopes: HPKE against RFC 9180, slots and values that open in one place only."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from tacit.multiparty.refusals import RefusedError
from tacit.multiparty.sealing import (
    Slot,
    mask_seed,
    open_slot,
    open_value,
    seal_slot,
    seal_value,
)

DIGEST, NAME, KEY = bytes(range(32)), bytes(range(16)), bytes(range(100, 132))


def hkdf_expand(secret: bytes, info: bytes, size: int) -> bytes:
    found, block, counter = b"", b"", 1
    while len(found) < size:
        block = hmac.digest(secret, block + info + bytes([counter]), "sha256")
        found, counter = found + block, counter + 1
    return found[:size]


def extract(suite: bytes, salt: bytes, label: bytes, material: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + material, hashlib.sha256)


def expand(suite: bytes, secret: bytes, label: bytes, info: bytes, size: int) -> bytes:
    labelled = size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hkdf_expand(secret, labelled, size)


def rfc_open(private: X25519PrivateKey, enc: bytes, text: bytes, info: bytes, aad: bytes) -> bytes:
    """RFC 9180, Sections 4.1, 5.1 and 5.2, base mode, written out from the text."""
    public = private.public_key().public_bytes_raw()
    kem, suite = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x03"
    shared = private.exchange(X25519PublicKey.from_public_bytes(enc))
    prk = extract(kem, b"", b"eae_prk", shared)
    secret = expand(kem, prk, b"shared_secret", enc + public, 32)
    context = b"\0" + extract(suite, b"", b"psk_id_hash", b"")
    context += extract(suite, b"", b"info_hash", info)
    scheduled = extract(suite, secret, b"secret", b"")
    key = expand(suite, scheduled, b"key", context, 32)
    nonce = expand(suite, scheduled, b"base_nonce", context, 12)
    return ChaCha20Poly1305(key).decrypt(nonce, text, aad)


def test_the_oracle_opens_the_published_vector():
    # RFC 9180, Appendix A.2.1 (base mode) and A.2.1.1, sequence number 0.
    private = X25519PrivateKey.from_private_bytes(
        bytes.fromhex("8057991eef8f1f1af18f4a9491d16a1ce333f695d4db8e38da75975c4478e0fb")
    )
    enc = bytes.fromhex("1afa08d3dec047a643885163f1180476fa7ddb54c6a8029ea33f95796bf2ac4a")
    text = bytes.fromhex(
        "1c5250d8034ec2b784ba2cfd69dbdb8af406cfe3ff938e131f0def8c8b60b4db21993c62ce81883d2dd1b51a28"
    )
    found = rfc_open(private, enc, text, b"Ode on a Grecian Urn", b"Count-0")
    assert found == b"Beauty is truth, truth beauty"


def test_what_we_seal_opens_by_the_rfc():
    private = X25519PrivateKey.generate()
    slot = Slot(NAME, 77, bytes([2, 0]), KEY)
    sealed = seal_slot(slot, private.public_key(), DIGEST, 2)
    info = b"tacit dpa slot 1" + DIGEST + b"\x02"
    plain = rfc_open(private, sealed[:32], sealed[32:], info, b"")
    assert plain == NAME + (77).to_bytes(4, "big") + KEY + bytes([2, 0])
    assert open_slot(sealed, private, DIGEST, 2, 2) == slot


def test_a_slot_opens_at_its_party_in_its_session_and_nowhere_else():
    private = X25519PrivateKey.generate()
    sealed = seal_slot(Slot(NAME, 1, bytes([0, 2]), KEY), private.public_key(), DIGEST, 0)
    for wrong in (
        lambda: open_slot(sealed, X25519PrivateKey.generate(), DIGEST, 0, 2),
        lambda: open_slot(sealed, private, bytes(32), 0, 2),
        lambda: open_slot(sealed, private, DIGEST, 1, 2),
        lambda: open_slot(sealed[:-1] + bytes([sealed[-1] ^ 1]), private, DIGEST, 0, 2),
        lambda: open_slot(sealed[:-1], private, DIGEST, 0, 2),
        lambda: open_slot(bytes(len(sealed)), private, DIGEST, 0, 2),
    ):
        with pytest.raises(RefusedError) as refusal:
            wrong()
        assert refusal.value.cause in ("garbage", "length")
    elsewhere = seal_slot(Slot(NAME, 1, bytes([1, 2]), KEY), private.public_key(), DIGEST, 0)
    twice = seal_slot(Slot(NAME, 1, bytes([0, 0]), KEY), private.public_key(), DIGEST, 0)
    for sealed in (elsewhere, twice):
        with pytest.raises(RefusedError) as refusal:
            open_slot(sealed, private, DIGEST, 0, 2)
        assert refusal.value.cause == "role"


def test_a_value_opens_in_its_round_slot_and_session_only_and_seals_the_same_way_twice():
    sealed = seal_value(b"words", KEY, DIGEST, 3, NAME)
    assert sealed == seal_value(b"words", KEY, DIGEST, 3, NAME)
    assert open_value(sealed, KEY, DIGEST, 3, NAME) == b"words"
    assert open_value(sealed, KEY, DIGEST, 4, NAME) is None
    assert open_value(sealed, KEY, bytes(32), 3, NAME) is None
    assert open_value(sealed, KEY, DIGEST, 3, bytes(16)) is None
    assert open_value(sealed, bytes(32), DIGEST, 3, NAME) is None
    flipped = bytes([sealed[0] ^ 1]) + sealed[1:]
    assert open_value(flipped, KEY, DIGEST, 3, NAME) is None


def test_two_parties_find_the_same_mask_seed_and_other_pairs_and_sessions_another():
    a, b, c = (X25519PrivateKey.generate() for _ in range(3))
    seed = mask_seed(a, b.public_key(), DIGEST, 0, 1)
    assert seed == mask_seed(b, a.public_key(), DIGEST, 1, 0)
    assert seed != mask_seed(a, c.public_key(), DIGEST, 0, 2)
    assert seed != mask_seed(a, b.public_key(), bytes(32), 0, 1)
