import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import savemat
from scipy.sparse import csc_matrix, random_array

from tacit.errors import GraphError
from tacit.graph.readers.mat5 import Sparse, read_mat5


def written(compress=False, **matrices):
    buffer = io.BytesIO()
    savemat(buffer, matrices, do_compression=compress)
    return buffer.getvalue()


def read(content, *names, max_bytes=1 << 24):
    return read_mat5(content, set(names), max_bytes)


def dense(matrix):
    result = np.zeros(matrix.shape)
    result[matrix.rows, matrix.columns] = matrix.values
    return result


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("dtype", ["f8", "f4", "u1", "i2", "i4", "u8"])
def test_reads_what_scipy_writes(compress, dtype):
    matrix = np.arange(15).reshape(3, 5).astype(dtype)
    sparse = random_array((30, 20), density=0.2, rng=np.random.default_rng(3))
    content = written(compress, a=matrix, b=csc_matrix(sparse), text="hello", cell=[{}, 1])
    held = read(content, "a", "b", "text", "missing")
    assert held["a"].tolist() == matrix.tolist()
    assert isinstance(held["b"], Sparse)
    assert np.array_equal(dense(held["b"]), sparse.toarray())
    assert set(held) == {"a", "b"}


def test_reads_small_elements_and_big_endian():
    little = written(v=np.array([[7]], dtype=np.uint8))
    assert read(little, "v")["v"].tolist() == [[7]]
    # The same one-by-one matrix by hand, most significant byte first.
    name = struct.pack(">HHc3x", 1, 1, b"v")
    value = struct.pack(">HHB3x", 1, 2, 7)
    body = struct.pack(">IIII", 6, 8, 9, 0) + struct.pack(">IIii", 5, 8, 1, 1) + name + value
    content = b"MATLAB 5.0".ljust(124) + b"\x01\x00MI" + struct.pack(">II", 14, len(body)) + body
    assert read(content, "v")["v"].tolist() == [[7]]


def test_refuses_a_bomb_and_false_sizes():
    bomb = b"MATLAB 5.0".ljust(124) + b"\x00\x01IM"
    packed = zlib.compress(b"\0" * 50_000_000)
    content = bomb + struct.pack("<II", 15, len(packed)) + packed
    with pytest.raises(GraphError, match="inflates to more than 16,777,216"):
        read(content, "A")
    with pytest.raises(GraphError, match="claims 2,147,483,647 bytes where 0 are left"):
        read(bomb + struct.pack("<II", 14, 2**31 - 1), "A")
    with pytest.raises(GraphError, match="byte order"):
        read(b"MATLAB 5.0", "A")
    shape = written(A=csc_matrix(np.eye(3)))
    at = shape.index(struct.pack("<ii", 3, 3))
    wide = shape[:at] + struct.pack("<ii", 3, 2**31 - 1) + shape[at + 8 :]
    with pytest.raises(GraphError, match="2,147,483,647 columns has 4 column pointers"):
        read(wide, "A")
    flat = shape[:at] + struct.pack("<ii", 2, 3) + shape[at + 8 :]
    with pytest.raises(GraphError, match="2 rows has an entry in row 2"):
        read(flat, "A")


def test_refuses_a_sparse_matrix_that_lacks_a_part():
    content = written(A=csc_matrix(np.eye(3)))
    at = content.index(struct.pack("<II", 14, len(content) - 136))
    for cut in range(at + 8, len(content), 8):
        short = content[:at] + struct.pack("<II", 14, cut - at - 8) + content[at + 8 : cut]
        with pytest.raises(GraphError, match="truncated or damaged"):
            read(short, "A")


SAMPLES = [
    written(compress, A=csc_matrix(np.eye(4)), local_info=np.arange(28.0).reshape(4, 7))
    for compress in (False, True)
]


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(SAMPLES), st.data())
def test_damage_never_escapes(sample, data):
    content = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(120, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        held = read(bytes(content[: data.draw(st.integers(0, len(content)))]), "A", "local_info")
    except GraphError:
        return
    assert set(held) <= {"A", "local_info"}
