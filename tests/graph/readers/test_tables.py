import gzip
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import GraphError
from tacit.graph import Graph, load
from tacit.graph.readers.tables import number_classes

NODES = "id,label,age,height\nada,red,1,0.5\nbob,blue,2,-1e-3\neve,red,3,0\n"
EDGES = "source,target\nada,bob\nbob,ada\nbob,eve\neve,bob\n"


def put(folder, nodes=NODES, edges=EDGES, nodes_name="nodes.csv", edges_name="edges.csv"):
    (folder / nodes_name).write_text(nodes, encoding="utf-8")
    (folder / edges_name).write_text(edges, encoding="utf-8")
    return folder


def test_reads_a_folder_and_a_pair(tmp_path):
    graph = load(put(tmp_path))
    assert graph.ids.tolist() == ["ada", "bob", "eve"]
    assert graph.class_names == ("blue", "red")
    assert graph.labels.tolist() == [1, 0, 1]
    assert graph.features.tolist() == np.float32([[1, 0.5], [2, -1e-3], [3, 0]]).tolist()
    assert (graph.indptr.tolist(), graph.indices.tolist()) == ([0, 1, 3, 4], [1, 0, 2, 1])
    assert not graph.directed
    pair = load((tmp_path / "nodes.csv", str(tmp_path / "edges.csv")), directed=False)
    assert np.array_equal(pair.indices, graph.indices)


def test_columns_can_be_named(tmp_path):
    put(
        tmp_path,
        "who;team;x;y;fold\n1;A;1;9;train\n2;B;2;9;train\n3;A;3;9;test\n4;;4;9;\n",
        "von;nach;w\n1;2;1\n3;4;1.0\n",
    )
    graph = load(
        tmp_path,
        node_id="who",
        label="team",
        features=["x"],
        split_column="fold",
        source_column="von",
        target_column="nach",
        weight_column="w",
        symmetrize=True,
    )
    assert graph.features[:, 0].tolist() == [1, 2, 3, 4]
    assert graph.labels.tolist() == [0, 1, 0, -1]
    assert graph.train.tolist() == [True, True, False, False]
    assert graph.test.tolist() == [False, False, True, False]
    assert graph.ids.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "ids",
    [
        ["4294967296", "4294967297", "9223372036854775807"],
        ["18446744073709551616", "340282366920938463463374607431768211456", "7"],
        ["007", "7", "07"],
        ['say "hi"', "a,b", "line\nbreak"],
        ["é", "日本", "🙂"],
        ["id", "NULL", "nan"],
        ["#comment", " space ", "'; DROP TABLE known; --"],
        ["1e3", "1000", "1000.0"],
    ],
)
def test_identifiers_are_the_text_they_are(tmp_path, ids):
    import csv

    for name, header, rows in (
        ("nodes.csv", ["id", "label", "x"], [[ids[k], k % 2, k] for k in range(3)]),
        ("edges.csv", ["source", "target"], [[ids[0], ids[1]], [ids[2], ids[0]]]),
    ):
        with (tmp_path / name).open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([header, *rows])
    graph = load(tmp_path, symmetrize=True)
    assert [str(value) for value in graph.ids] == ids
    assert graph.indices.tolist() == [1, 2, 0, 0]


@pytest.mark.parametrize("kind", ["int64", "string", "decimal"])
def test_parquet(tmp_path, kind):
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = {
        "int64": pa.array([2**40, 5, 2**62]),
        "string": pa.array(["x", "y", "z"]),
        "decimal": pa.array(["123456789012345678901234567890", "5", "6"]).cast(
            pa.decimal128(38, 0)
        ),
    }[kind]
    nodes = {
        "id": ids,
        "label": pa.array([3, 1, None]),
        "a": [1.0, 2.0, 3.0],
        "b": [True, False, True],
    }
    pq.write_table(pa.table(nodes), tmp_path / "nodes.parquet")
    edges = {"source": ids.take(pa.array([0, 1])), "target": ids.take(pa.array([1, 2]))}
    pq.write_table(pa.table(edges), tmp_path / "edges.parquet")
    graph = load(tmp_path)
    assert graph.directed
    assert graph.ids.tolist() == [
        value if kind == "int64" else str(value) for value in ids.to_pylist()
    ]
    assert graph.labels.tolist() == [1, 0, -1]
    assert graph.class_names == ("1", "3")
    assert graph.features.tolist() == [[1, 1], [2, 0], [3, 1]]


def test_gzip_tabs_and_odd_paths(tmp_path):
    folder = tmp_path / "it's [a] *graph?"
    folder.mkdir()
    with gzip.open(folder / "nodes.csv.gz", "wt", encoding="utf-8") as stream:
        stream.write("\ufeff" + NODES)
    (folder / "edges.tsv").write_text(EDGES.replace(",", "\t"))
    graph = load(folder)
    assert (graph.nodes, graph.arcs, graph.name) == (3, 4, folder.name)


def test_order_is_that_of_the_file_also_when_large(tmp_path):
    n = 150_000
    order = np.random.default_rng(0).permutation(n)
    nodes = "id,label,x\n" + "".join(f"{i},{i % 3},{i / 8}\n" for i in order)
    edges = "source,target\n" + "".join(f"{i},{(i + 1) % n}\n" for i in range(n))
    graph = load(put(tmp_path, nodes, edges), symmetrize=True)
    assert np.array_equal(graph.ids, order)
    assert np.array_equal(graph.labels, order % 3)
    assert np.array_equal(graph.features[:, 0], (order / 8).astype(np.float32))
    first = set(graph.ids[graph.indices[: graph.indptr[1]]].tolist())
    assert first == {(order[0] + 1) % n, (order[0] - 1) % n}


def test_without_features_every_node_has_a_constant(tmp_path):
    graph = load(put(tmp_path, "id,label\nada,0\nbob,1\neve,1\n"))
    assert graph.features.tolist() == [[1], [1], [1]]
    assert "no features" in graph.notes[0]


@pytest.mark.parametrize(
    ("nodes", "edges", "says"),
    [
        (NODES.replace("eve", "ada"), EDGES, "duplicate node ids.*id ada stands in 2 rows"),
        (NODES.replace("\neve", "\n"), EDGES, "1 rows of nodes.csv have no id"),
        (NODES.replace("label", "colour"), EDGES, "no column label.*id, colour, age.*label="),
        (NODES, EDGES.replace("target", "to"), "no column target.*source, to"),
        (NODES, EDGES + "eve,mallory\n", "1 ends of links in edges.csv.*'mallory'"),
        (NODES, EDGES + "eve,\n", "does not exist.*empty"),
        (NODES.replace("3,0", "3,tall"), EDGES, "height of nodes.csv is 'tall' for node eve"),
        (NODES.replace("3,0", "3,"), EDGES, "height of nodes.csv is empty for node eve"),
        (NODES.replace("3,0", "3,nan"), EDGES, "NaN or infinite"),
        (NODES.replace("3,0", "3,1e300"), EDGES, "NaN or infinite"),
        (NODES + "dan,red,1\n", EDGES, "cannot be read as tables"),
        (NODES + "dan,red,1,2,3\n", EDGES, "cannot be read as tables"),
        ("id,label,age,height\n", EDGES, "has no nodes"),
        ("", EDGES, "nodes.csv is empty"),
        ("id,label,,\n", EDGES, "column without a name"),
        ("id,label,x,X\n", EDGES, "names a column twice"),
        (NODES, "source,target,weight\nada,bob,1\nbob,ada,0.5\n", "bob -> ada .* weight 0.5"),
        (NODES, "source,target,weight\nada,bob,\n", "weight None"),
        ("id,label,split\na,0,train\nb,1,maybe\n", EDGES, "split of nodes.csv says 'maybe'"),
        ("id,label\na,0\nb,-7\n", EDGES, "label '-7' in nodes.csv is out of range"),
    ],
)
def test_refuses_bad_tables(tmp_path, nodes, edges, says):
    with pytest.raises(GraphError, match=says):
        load(put(tmp_path, nodes, edges))


def test_refuses_bad_declarations(tmp_path):
    put(tmp_path, edges="source,target\nada,bob\n")
    with pytest.raises(GraphError, match=r"arc ada -> bob and not bob -> ada.*symmetrize=True"):
        load(tmp_path, directed=False)
    with pytest.raises(GraphError, match="no column weights"):
        load(tmp_path, weight_column="weights")
    with pytest.raises(GraphError, match="no column fold"):
        load(tmp_path, split_column="fold")
    with pytest.raises(GraphError, match="no column size"):
        load(tmp_path, features=["size"])
    with pytest.raises(GraphError, match=r"'red' in nodes.csv is out of range"):
        load(tmp_path, classes=2)
    with pytest.raises(GraphError, match="features of 3 rows"):
        load(tmp_path, max_bytes=8)


def test_refuses_the_wrong_encoding_and_a_false_parquet(tmp_path):
    put(tmp_path)
    (tmp_path / "nodes.csv").write_bytes(NODES.replace("ada", "adä").encode("latin1"))
    with pytest.raises(GraphError, match=r"nodes.csv"):
        load(tmp_path)
    (tmp_path / "nodes.csv").unlink()
    (tmp_path / "nodes.parquet").write_bytes(b"PAR1 but not really PAR1")
    with pytest.raises(GraphError, match="cannot be read as tables"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("texts", "numbers", "names"),
    [
        (["0", "2", "1"], [0, 2, 1], None),
        (["0.0", "1.0", "nan"], [0, 1, -1], None),
        (["3", "10"], [0, 1], ("3", "10")),
        (["b", "a", "10"], [2, 1, 0], ("10", "a", "b")),
        (["-1", "1", "0"], [-1, 1, 0], None),
        ([], [], None),
    ],
)
def test_classes_are_numbered(texts, numbers, names):
    number, found = number_classes(texts, "t.csv")
    assert [number[text] for text in texts] == numbers
    assert found == names


def test_declared_classes_keep_their_numbers():
    assert number_classes(["4", "0"], "t.csv", 5) == ({"4": 4, "0": 0}, None)
    with pytest.raises(GraphError, match=r"'5' in t.csv is out of range"):
        number_classes(["5"], "t.csv", 5)


cells = st.text(alphabet='ab01-,."\n; \té\x00', max_size=5)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(cells, min_size=1, max_size=4).map(",".join), max_size=6).map("\n".join),
    st.lists(st.lists(cells, min_size=1, max_size=3).map(",".join), max_size=6).map("\n".join),
    st.booleans(),
)
def test_random_tables(nodes, edges, headed):
    if headed:
        nodes, edges = "id,label,x\n" + nodes, "source,target\n" + edges
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder), nodes, edges)
        with suppress(GraphError):
            assert isinstance(load(folder), Graph)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1),
        min_size=3,
        max_size=6,
        unique=True,
    ),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=8),
)
def test_any_text_is_an_identifier(ids, arcs):
    import csv

    with tempfile.TemporaryDirectory() as folder:
        for name, rows in (
            ("nodes.csv", [["id", "label"], *([key, k % 2] for k, key in enumerate(ids))]),
            ("edges.csv", [["source", "target"], *([ids[u], ids[v]] for u, v in arcs)]),
        ):
            with (Path(folder) / name).open("w", newline="", encoding="utf-8") as stream:
                csv.writer(stream, quoting=csv.QUOTE_ALL).writerows(rows)
        graph = load(folder, directed=True)
        found = range(graph.nodes) if graph.ids is None else graph.ids.tolist()
        assert [str(key) for key in found] == ids
        assert graph.arcs == len({(u, v) for u, v in arcs if u != v})
