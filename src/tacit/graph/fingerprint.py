"""A name for the data that a privacy account is kept under."""

from __future__ import annotations

import hashlib

import numpy as np

from tacit.graph.graph import Graph

_BLOCK = 1 << 24


def fingerprint(graph: Graph) -> str:
    """SHA-256 over what the graph says about its individuals: links, features and labels.

    Masks, names, notes, identifiers and the directed flag do not enter: every split and every
    spelling of the same data shares one ledger account. Take it from the graph the owner brought,
    before transforms: a bounded or filtered copy has another fingerprint, although it speaks of
    the same people. Renumbered nodes have another fingerprint, too.

    Args:
        graph: The graph.

    Returns:
        64 hexadecimal digits, the same on every machine.
    """
    digest = hashlib.sha256(b"tacit graph 1\n")
    parts = (
        ("indptr", "<i8", graph.indptr),
        ("indices", "<i4", graph.indices),
        ("features", "<f4", graph.features),
        ("labels", "<i8", graph.labels),
    )
    for label, dtype, array in parts:
        # The shape is part of the name: the same bytes in another shape are other data.
        digest.update(f"{label} {array.shape}\n".encode())
        flat = np.ascontiguousarray(array).reshape(-1)
        step = _BLOCK // flat.itemsize
        for start in range(0, len(flat), step):
            block = flat[start : start + step].astype(dtype, copy=False)
            if dtype == "<f4":
                block = block + np.float32(0)  # -0.0 and 0.0 are the same number
            digest.update(block.tobytes())
    return digest.hexdigest()
