import hashlib

import numpy as np
import pytest

from tacit.graph import fingerprint, load, save, split, synthetic


def test_is_the_hash_it_says_it_is(small):
    # Written out by hand with hashlib: the format is a promise, because ledgers are keyed by it.
    text = b"tacit graph 1\n"
    for name, kind in (
        ("indptr", "<i8"),
        ("indices", "<i4"),
        ("features", "<f4"),
        ("labels", "<i8"),
    ):
        array = getattr(small, name)
        text += f"{name} {array.shape}\n".encode() + array.astype(kind).tobytes()
    assert fingerprint(small) == hashlib.sha256(text).hexdigest()


def test_every_split_and_spelling_shares_one(small, tmp_path):
    name = fingerprint(small)
    assert fingerprint(split(small, seed=3)) == name
    assert fingerprint(small.with_(name="x", ids=np.arange(7) + 5, directed=True)) == name
    assert fingerprint(load(save(small, tmp_path / "g"))) == name
    negative_zero = small.with_(features=np.zeros((7, 3), np.float32) * np.float32(-1))
    assert fingerprint(negative_zero) == fingerprint(small.with_(features=np.zeros((7, 3))))


@pytest.mark.parametrize("key", ["features", "labels", "links", "shape"])
def test_any_content_changes_it(small, key):
    changed = {
        "features": lambda: small.with_(
            features=np.where(np.arange(21).reshape(7, 3) == 20, 9, small.features)
        ),
        "labels": lambda: small.with_(labels=np.where(np.arange(7) == 6, 0, small.labels)),
        "links": lambda: small.with_(indptr=np.zeros(8, int), indices=np.zeros(0, np.int32)),
        "shape": lambda: small.with_(features=np.zeros((7, 4))),
    }[key]()
    base = small.with_(features=np.zeros((7, 3))) if key == "shape" else small
    assert fingerprint(changed) != fingerprint(base)


def test_is_blind_to_block_size(monkeypatch):
    import sys

    graph = synthetic.communities(nodes=400, mean_degree=10, features=8)
    name = fingerprint(graph)
    monkeypatch.setattr(sys.modules[fingerprint.__module__], "_BLOCK", 64)
    assert fingerprint(graph) == name
