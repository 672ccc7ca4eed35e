import os
import pickle
import tempfile
import warnings
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from tacit.errors import GraphError
from tacit.graph import Graph, load
from tacit.graph.readers.pickles import parse

# Nodes 0..3 in allx, 4, 5 and 7 are test nodes in the order 7, 4, 5; 6 has no row, as in Citeseer.
ALLX = np.array([[1, 0], [0, 1], [1, 1], [0, 2]], dtype=np.float32)
TX = np.array([[7, 0], [4, 0], [5, 0]], dtype=np.float32)
ALLY = np.array([[1, 0], [0, 1], [1, 0], [0, 1]], dtype=np.int32)
TY = np.array([[0, 1], [1, 0], [0, 0]], dtype=np.int32)
SHARED = list(range(200))
LINKS = {0: [1, 1], 1: [0], 2: [2], 4: [7], 7: [4], 6: []}


def contents(protocol=2):
    graph = defaultdict(list, LINKS)
    held = {
        "x": csr_matrix(ALLX[:2]),
        "tx": csr_matrix(TX),
        "allx": csr_matrix(ALLX),
        "y": ALLY[:2],
        "ty": TY,
        "ally": np.asfortranarray(ALLY),
        "graph": graph,
    }
    files = {part: pickle.dumps(value, protocol=protocol) for part, value in held.items()}
    return files | {"test.index": b"7\n4\n5\n"}


def put(folder, name="cora", **changes):
    for part, content in (
        contents() | {k.replace("_", "."): v for k, v in changes.items()}
    ).items():
        if content is not None:
            (Path(folder) / f"ind.{name}.{part}").write_bytes(content)
    return Path(folder)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_reads_the_public_split(tmp_path, protocol):
    graph = load(put(tmp_path, **{k.replace(".", "_"): v for k, v in contents(protocol).items()}))
    assert graph.nodes == 8
    assert graph.features[[7, 4, 5, 6]].tolist() == [[7, 0], [4, 0], [5, 0], [0, 0]]
    assert graph.features[:4].tolist() == ALLX.tolist()
    assert graph.labels.tolist() == [0, 1, 0, 1, 0, -1, -1, 1]
    assert np.flatnonzero(graph.train).tolist() == [0, 1]
    assert np.flatnonzero(graph.val).tolist() == [2, 3]
    assert np.flatnonzero(graph.test).tolist() == [4, 7]
    assert graph.indices.tolist() == [1, 0, 7, 4]
    assert not graph.directed
    assert graph.name == "cora"
    assert len(graph.notes) == 2


def python2(array):
    """A numpy array as Python 2 and numpy 1 pickled it: the published files look like this."""
    kind = array.dtype.str[1:]
    raw = array.tobytes()
    return (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b"
        b"\x87Rq\x03(K\x01"
        + b"".join(b"K" + bytes([k]) for k in array.shape)
        + (b"\x86" if array.ndim == 2 else b"\x85")
        + b"cnumpy\ndtype\nq\x04U\x02"
        + kind.encode()
        + b"K\x00K\x01\x87Rq\x05(K\x03U\x01<NNNJ"
        + b"\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + len(raw).to_bytes(4, "little")
        + raw
        + b"tb."
    )


def test_reads_what_python_2_wrote(tmp_path):
    wide = (TY * 200).astype(np.int32)  # bytes above 127 must survive
    graph = load(put(tmp_path, ty=python2(wide), y=python2(ALLY[:2])))
    assert graph.labels.tolist() == [0, 1, 0, 1, 0, -1, -1, 1]
    assert np.array_equal(
        pickle.loads(python2(wide), encoding="latin1"), wide
    )  # the sample is one that Python itself reads


def test_one_file_names_its_graph_where_there_are_several(tmp_path):
    put(put(tmp_path, "cora"), "pubmed")
    with pytest.raises(GraphError, match=r"holds 2 graphs.*planetoid cora, planetoid pubmed"):
        load(tmp_path)
    assert load(tmp_path / "ind.pubmed.x").name == "pubmed"
    assert load(tmp_path / "ind.cora.test.index").name == "cora"


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("part", ["allx", "y", "graph"])
def test_runs_nothing(tmp_path, part, protocol):
    marker = tmp_path / "ran"
    evil = pickle.dumps(Evil(str(marker)), protocol=protocol)
    with pytest.raises(GraphError, match=r"asks to run (posix|nt).mkdir"):
        load(put(tmp_path, **{part: evil}))
    assert not marker.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "damaged|truncated"),
        (b"\x80\x02]q", "damaged|truncated"),
        (b"I1\n", "damaged|truncated"),
        (b"cbuiltins\neval\n.", "asks to run builtins.eval"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "asks to run os.system"),
        (b"(S'x'\nios\nsystem\n.", "asks for INST"),
        (b"\x82\x01.", "asks for EXT1"),
        (b"P1\n.", "asks for PERSID"),
        (b"h\x05.", "damaged"),
        (b"(0.", "damaged|truncated|dictionary"),
        (b"}(I1\nI2\n)u.", "damaged"),
        (b"c\\i\nx\n.", "asks to run"),
        (b"})I1\ns.", "neither a number nor a text"),
        (pickle.dumps([1]), "dictionary of neighbour lists"),
        (pickle.dumps({1: 2}), "lists of node numbers"),
        (pickle.dumps({1: ["2"]}), "not a node number"),
        (pickle.dumps({1: [10**12]}), "not a node number"),
        (pickle.dumps({1: [2**30]}), "node 1073741824, which does not exist"),
        (pickle.dumps(dict.fromkeys(range(500), SHARED)), "more arcs than bytes"),
    ],
)
def test_refuses_hostile_link_files(tmp_path, content, says):
    with pytest.raises(GraphError, match=says):
        load(put(tmp_path, graph=content))


def lying(shape):
    """The pickle of ALLX as CSR, its shape (4, 2) replaced."""

    def pair(numbers):
        return b"".join(pickle.dumps(number, 2)[2:-1] for number in numbers) + b"\x86"

    content = pickle.dumps(csr_matrix(ALLX), 2)
    assert pair((4, 2)) in content
    return content.replace(pair((4, 2)), pair(shape))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"allx": pickle.dumps(np.array([{}, 1], dtype=object), 2)}, "not numbers"),
        ({"allx": pickle.dumps(np.ones((4, 3), np.float32), 2)}, "do not fit each other"),
        ({"y": pickle.dumps(np.ones((9, 2)), 2)}, "do not fit each other"),
        ({"ty": pickle.dumps(np.ones(3), 2)}, "do not fit each other"),
        ({"ally": pickle.dumps(5)}, "numpy array where one is due"),
        ({"test_index": b"7\n4\n"}, "do not fit each other"),
        ({"test_index": b"7\n4\n4\n"}, "names a node twice"),
        ({"test_index": b"7\n4\nfive\n"}, "one whole number a line"),
        ({"test_index": b"7\n4\n2000000000\n"}, "names node 2000000000"),
        ({"test_index": b"7\n4\n" + b"9" * 30}, "one whole number|usable"),
        ({"tx": None, "ty": None}, "ind.cora.tx, ind.cora.ty not found"),
    ],
)
def test_refuses_files_that_do_not_fit(tmp_path, changes, says):
    with pytest.raises(GraphError, match=says):
        load(put(tmp_path, **changes))


def test_refuses_a_matrix_that_claims_a_huge_shape(tmp_path):
    with pytest.raises(GraphError, match="GiB"):
        load(put(tmp_path, allx=lying((4, 2**60))))
    with pytest.raises(GraphError, match="does not fit its shape"):
        load(put(tmp_path, allx=lying((2**60, 2))))


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(["x", "allx", "ty", "graph", "test.index"]), st.data())
def test_damage_never_escapes(part, data):
    content = bytearray(contents()[part])
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    elif content:
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder, suppress(GraphError):
        graph = load(put(folder, **{part.replace(".", "_"): bytes(content)}), max_bytes=1 << 24)
        assert isinstance(graph, Graph)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=60))
def test_random_pickles(content):
    with suppress(GraphError):
        parse(content + b".", "sample")


@settings(max_examples=20, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner, inner, inner, inner)
            | st.dictionaries(st.integers() | st.text(max_size=2), inner, max_size=3)
        ),
        max_leaves=6,
    ),
    st.integers(2, 4),
)
def test_plain_values_mean_what_python_says(value, protocol):
    assert parse(pickle.dumps(value, protocol), "sample") == value


def test_agrees_with_pytorch_geometric(tmp_path):
    """The same eight files through the reader of another project, which unpickles them."""
    rng = np.random.default_rng(0)
    known, test = 550, rng.permutation(np.delete(np.arange(550, 600), [3, 7, 20]))
    tail, head = rng.integers(600, size=(2, 2000))
    held = {
        "x": csr_matrix(rng.random((40, 9)) < 0.3, dtype=np.float32),
        "allx": csr_matrix(rng.random((known, 9)) < 0.3, dtype=np.float32),
        "tx": csr_matrix(rng.random((47, 9)) < 0.3, dtype=np.float32),
        "y": np.eye(3, dtype=np.int32)[rng.integers(3, size=40)],
        "ally": np.eye(3, dtype=np.int32)[rng.integers(3, size=known)],
        "ty": np.eye(3, dtype=np.int32)[rng.integers(3, size=47)],
        "graph": {int(u): head[tail == u].tolist() for u in np.unique(tail)},
    }
    files = {part: pickle.dumps(value, protocol=2) for part, value in held.items()}
    put(tmp_path, "citeseer", **files, test_index="".join(f"{k}\n" for k in test).encode())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own
        from torch_geometric.io import read_planetoid_data

        expected = read_planetoid_data(str(tmp_path), "citeseer")
    graph = load(tmp_path)
    assert graph.features.tolist() == expected.x.tolist()
    labelled = graph.labels >= 0  # that reader gives class 0 to the nodes that have no row
    assert np.flatnonzero(~labelled).tolist() == [553, 557, 570]
    assert graph.labels[labelled].tolist() == expected.y[labelled].tolist()
    assert graph.train.tolist() == expected.train_mask.tolist()
    assert graph.val.tolist() == expected.val_mask.tolist()
    assert graph.test.tolist() == expected.test_mask.tolist()
    arcs = sorted(map(tuple, expected.edge_index.T.tolist()))
    sources = np.repeat(np.arange(graph.nodes), graph.out_degrees)
    assert arcs == list(zip(sources.tolist(), graph.indices.tolist(), strict=True))
