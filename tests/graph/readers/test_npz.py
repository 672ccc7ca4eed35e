import io
import struct
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import GraphError
from tacit.graph import Graph, from_arcs, load, save
from tacit.graph.readers.npz import read_npz

SMALL = 1 << 24  # max_bytes of the fuzzing tests


def layout(**changes):
    held = {
        "adj_data": np.ones(4, dtype=np.uint8),
        "adj_indices": np.array([1, 0, 2, 1], dtype=np.int32),
        "adj_indptr": np.array([0, 1, 3, 4], dtype=np.int32),
        "adj_shape": np.array([3, 3]),
        "attr_data": np.array([2.0, 3.0], dtype=np.float32),
        "attr_indices": np.array([0, 1], dtype=np.int32),
        "attr_indptr": np.array([0, 1, 1, 2], dtype=np.int32),
        "attr_shape": np.array([3, 2]),
        "labels": np.array([0, 1, -1], dtype=np.int16),
    }
    held.update(changes)
    return {key: value for key, value in held.items() if value is not None}


def write(path, **changes):
    np.savez(path, **layout(**changes))
    return path


def same(a: Graph, b: Graph) -> bool:
    keys = ("indptr", "indices", "features", "labels", "train", "val", "test")
    return all(np.array_equal(getattr(a, key), getattr(b, key)) for key in keys) and (
        a.directed,
        a.classes,
        a.class_names,
    ) == (b.directed, b.classes, b.class_names)


def test_reads_the_layout(tmp_path):
    graph = load(write(tmp_path / "g.npz"))
    assert graph.features.tolist() == [[2, 0], [0, 0], [0, 3]]
    assert graph.labels.tolist() == [0, 1, -1]
    assert (graph.indptr.tolist(), graph.indices.tolist()) == ([0, 1, 3, 4], [1, 0, 2, 1])
    assert (graph.directed, graph.classes, graph.name) == (False, 2, "g")
    assert not graph.train.any()


def test_reads_what_others_write(tmp_path):
    dense = np.asfortranarray(np.array([[1.5, 0], [0, 2], [3, 4]], dtype=">f8"))
    changes = {f"attr_{part}": None for part in ("data", "indices", "indptr", "shape")}
    path = write(
        tmp_path / "g.npz",
        **changes,
        attr_matrix=dense,
        labels=np.array([0.0, 1.0, 1.0]),
        node_names=np.array([{}, None, []], dtype=object),
    )
    graph = load(path)
    assert graph.features.tolist() == dense.tolist()
    assert graph.labels.tolist() == [0, 1, 1]


def test_drops_loops_and_merges_duplicates_and_says_so(tmp_path):
    path = write(
        tmp_path / "g.npz",
        adj_indices=np.array([1, 1, 1, 0]),
        adj_indptr=np.array([0, 2, 4, 4]),
    )
    graph = load(path)
    assert graph.indices.tolist() == [1, 0]
    assert graph.notes == ("1 self-loops were dropped", "1 duplicate arcs were merged")


@pytest.mark.parametrize("ids", [None, np.array([5, 6, 2**40]), np.array(["a", "ü", "c"], object)])
def test_save_and_load_give_the_same_graph(tmp_path, ids):
    graph = from_arcs(
        [0, 1, 1],
        [1, 0, 2],
        features=np.array([[0.5, 0], [0, 0], [-1, 2]]),
        labels=np.array([0, 1, -1]),
        classes=3,
        train=np.array([1, 1, 0], dtype=bool),
        directed=True,
        ids=ids,
        class_names=("x", "y", "z"),
    )
    again = read_npz(save(graph, tmp_path / "g"))
    assert same(graph, again)
    assert ids is None or again.ids.tolist() == list(ids)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"labels": None}, "has no labels"),
        ({"adj_indptr": None, "adj_data": None}, "has no adj_data, adj_indptr"),
        ({"adj_data": np.array([1, 1, 2, 1])}, r"weight other than 1, the first 2.*ignore_weights"),
        ({"adj_data": np.array([1, 1, np.nan, 1])}, "weight other than 1"),
        ({"adj_shape": np.array([3, 4])}, "3 by 4, not square"),
        ({"adj_shape": np.array([3.0, 3])}, "two whole numbers"),
        ({"adj_shape": np.array([10**12, 10**12])}, "does not fit its shape"),
        ({"adj_indices": np.array([1, 0, 9, 1])}, "row 1 of adj.* points to 9"),
        ({"adj_indices": np.array([1, 0, 2**40, 1])}, "points to 1099511627776"),
        ({"adj_indices": np.array([1, 0, -1, 1])}, "points to -1"),
        ({"adj_indices": np.array([1.0, 0, 2, 1])}, "not whole numbers"),
        ({"adj_indptr": np.array([0, 3, 1, 4])}, "do not span"),
        ({"attr_data": np.array([np.nan, 1], np.float32)}, "NaN or infinite.*node 0"),
        ({"attr_data": np.array([1, 1e300])}, "NaN or infinite.*node 2"),
        ({"attr_data": np.array([1j, 1])}, "type <c16, not numbers"),
        ({"attr_data": np.array([{}, 1], dtype=object)}, "Python objects.*run code"),
        ({"attr_shape": np.array([3, 2**40])}, "need .* GiB.*max_bytes"),
        ({"attr_shape": np.array([2, 2])}, "does not fit its shape"),
        ({"labels": np.array([0, 1, -2])}, "label is out of range"),
        ({"labels": np.array([0, 1, 10**6])}, "label 1000000 is out of range"),
        ({"labels": np.array([0, 1, 0.5])}, "not class numbers"),
        ({"labels": np.array([0, 1, 2**63], dtype=np.uint64)}, "label is out of range"),
        ({"labels": np.array([0, 1])}, "labels of shape"),
        ({"labels": np.zeros((1, 1, 3))}, "3 dimensions"),
        ({"train_mask": np.array([1, 1, 1], dtype=bool)}, "training node has no label"),
        ({"train_mask": np.array([1, 0, 0], dtype=bool)}, "class 1 has no training node"),
        ({"train_mask": np.array([2, 0, 0], dtype=np.uint8)}, "one truth value"),
        ({"ids": np.array([1, 1, 2])}, "duplicate node ids"),
        ({"ids_json": np.frombuffer(b"[1,2", np.uint8)}, "ids_json in g.npz is damaged"),
        (
            {
                "adj_shape": np.array([0, 0]),
                "adj_indptr": np.array([0]),
                "adj_indices": np.zeros(0, int),
                "adj_data": np.zeros(0),
                "attr_shape": np.array([0, 2]),
                "attr_indptr": np.array([0]),
                "attr_indices": np.zeros(0, int),
                "attr_data": np.zeros(0),
                "labels": np.zeros(0, int),
            },
            "no nodes",
        ),
    ],
)
def test_refuses_bad_contents(tmp_path, changes, says):
    with pytest.raises(GraphError, match=says):
        load(write(tmp_path / "g.npz", **changes))


def test_weights_may_be_ignored(tmp_path):
    path = write(tmp_path / "g.npz", adj_data=np.array([0.5, 2, 3, 4]))
    assert load(path, ignore_weights=True).arcs == 4


def test_directed_declared_undirected(tmp_path):
    path = write(tmp_path / "g.npz", adj_indices=np.array([1, 0, 2, 0]))
    assert load(path).directed
    with pytest.raises(GraphError, match=r"arc 1 -> 2 and not 2 -> 1.*symmetrize=True"):
        load(path, directed=False)
    assert load(path, symmetrize=True).arcs == 6


def header(shape, descr="<f4"):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def with_member(path, name, content, compression=zipfile.ZIP_STORED):
    arrays = layout()
    del arrays[name]
    np.savez(path, **arrays)
    with zipfile.ZipFile(path, "a", compression) as archive:
        archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (header("(1099511627776,)"), "lies about its size"),
        (header("(4, 9223372036854775807)"), "lies about its size"),
        (header("(-4,)"), "has the shape"),
        (header("(True,)"), "has the shape"),
        (header("4"), "has the shape"),
        (header("(4,)", "|O"), "Python objects"),
        (header("(4,)", "V999999999"), "not numbers"),
        (header("(4,)", "f1"), "not numbers"),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': __imp", "damaged header"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "header of 4,294,967,295 bytes"),
        (b"", "not a numpy array"),
        (b"cos\nsystem\n(S'true'\ntR.", "not a numpy array"),
        (header("(" * 3000), "damaged header"),
    ],
)
def test_refuses_hostile_headers_cheaply(tmp_path, content, says):
    path = with_member(tmp_path / "g.npz", "attr_data", content)
    start = time.perf_counter()
    with pytest.raises(GraphError, match=says):
        load(path)
    assert time.perf_counter() - start < 1


def test_refuses_a_directory_that_lies(tmp_path):
    path = write(tmp_path / "g.npz")
    raw = bytearray(path.read_bytes())
    # Claim 2 GiB for the first member in the central directory (uncompressed size at offset 24).
    place = raw.index(b"PK\x01\x02")
    struct.pack_into("<I", raw, place + 24, 2**31)
    path.write_bytes(raw)
    with pytest.raises(GraphError, match="cannot unpack to that"):
        load(path)


def test_refuses_a_bomb_before_unpacking(tmp_path):
    content = header("(100000000,)", "|u1") + b"\0" * 100_000_000
    path = with_member(tmp_path / "g.npz", "adj_data", content, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 200_000
    with pytest.raises(GraphError, match="unpacks to"):
        load(path, max_bytes=SMALL)


def test_refuses_doubled_encrypted_and_strange_members(tmp_path):
    path = write(tmp_path / "g.npz")
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(path, "a") as archive,
    ):
        archive.writestr("labels.npy", b"")
    with pytest.raises(GraphError, match="twice"):
        load(path)
    path = with_member(tmp_path / "h.npz", "labels", header("(0,)"), zipfile.ZIP_BZIP2)
    with pytest.raises(GraphError, match="numpy does not write"):
        load(path)
    path = write(tmp_path / "i.npz")
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(raw)
    with pytest.raises(GraphError, match="encrypted"):
        load(path)


def test_refuses_a_zip_of_the_future(tmp_path):
    path = write(tmp_path / "g.npz")
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"PK\x01\x02") + 6] = 66  # version needed: 6.6
    path.write_bytes(raw)
    with pytest.raises(GraphError, match=r"zip file version 6.6"):
        load(path)


def never_anything_else(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "g.npz"
        path.write_bytes(content)
        with suppress(GraphError):
            assert isinstance(load(path, max_bytes=SMALL), Graph)


def valid(compressed: bool) -> bytes:
    buffer = io.BytesIO()
    masks = {f"{role}_mask": np.arange(3) == k for k, role in enumerate(("train", "test", "val"))}
    writer = np.savez_compressed if compressed else np.savez
    writer(buffer, **layout(labels=np.array([0, 0, 0]), classes=np.array([2]), **masks))
    return buffer.getvalue()


VALID = {True: valid(True), False: valid(False)}


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes(content, magic):
    never_anything_else(b"PK\x03\x04" * magic + content)


@settings(max_examples=50, deadline=None)
@given(st.booleans(), st.data())
def test_truncations(compressed, data):
    content = VALID[compressed]
    never_anything_else(content[: data.draw(st.integers(0, len(content) - 1))])


@settings(max_examples=50, deadline=None)
@given(st.booleans(), st.data())
def test_bit_flips(compressed, data):
    content = bytearray(VALID[compressed])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    never_anything_else(bytes(content))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_damaged_arrays_behind_a_right_checksum(data):
    """Bit flips inside the arrays, repacked, so that the checksum cannot catch them."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(VALID[False])) as source,
        zipfile.ZipFile(buffer, "w") as target,
    ):
        names = source.namelist()
        hit = data.draw(st.sampled_from(names))
        for name in names:
            content = bytearray(source.read(name))
            if name == hit:
                place = data.draw(st.integers(0, len(content) - 1))
                content[place] = data.draw(st.integers(0, 255))
            target.writestr(name, bytes(content))
    never_anything_else(buffer.getvalue())


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "nodes", "arcs", "directed", "features", "classes"),
    # From the table in ../shared/data/README.md.
    [
        ("cora", 2708, 10_556, False, 1433, 7),
        ("citeseer", 3312, 9072, False, 3703, 6),
        ("chameleon", 2277, 36_051, True, 3132, 5),
        ("twitch_ptbr", 1912, 62_598, False, 3170, 2),
        ("fb100_reed98", 779, 29_288, False, 113, 5),
        ("fb100_cornell5", 15_348, 1_303_452, False, 346, 6),
    ],
)
def test_real_files(data, name, nodes, arcs, directed, features, classes):
    path = data / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"no {path.name}")
    graph = load(path)
    assert (graph.nodes, graph.arcs, graph.directed) == (nodes, arcs, directed)
    assert (graph.features.shape[1], graph.classes) == (features, classes)
    with np.load(path, allow_pickle=False) as held:
        assert np.array_equal(graph.indices, held["adj_indices"])
        assert np.array_equal(graph.labels, held["labels"])
