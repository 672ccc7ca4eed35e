import json
import tempfile
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import GraphError
from tacit.graph import Graph, load

FACEBOOK = {
    "edges.csv": "id_1,id_2\n0,1\n1,2\n2,2\n",
    "features.json": json.dumps({"0": [0, 3], "1": [], "2": [1]}),
    "target.csv": "id,facebook_id,page_name,page_type\n"
    '0,9,"A, b",tvshow\n1,8,C,company\n2,7,é,tvshow\n',
}
TWITCH = {
    "edges.csv": "from,to\n2,0\n1,0\n",
    "features.json": json.dumps({"0": [0], "1": [1], "2": [1]}),
    "target.csv": "id,days,mature,views,partner,new_id\n73,1,True,5,False,2\n98,2,False,6,False,0\n"
    "44,2,True,6,False,1\n",
}
WIKIPEDIA = {
    "edges.csv": "id1,id2\n0,1\n2,3\n4,5\n",
    "features.json": json.dumps({str(k): [k] for k in range(6)}),
    "target.csv": "id,target\n" + "".join(f"{k},{(k * 7) % 6 * 100}\n" for k in range(6)),
}


def put(folder, name, files, **changes):
    for part, text in (files | changes).items():
        (folder / f"musae_{name}_{part.replace('_csv', '.csv')}").write_text(text, encoding="utf-8")
    return folder


def test_reads_facebook_pages(tmp_path):
    graph = load(put(tmp_path, "facebook", FACEBOOK))
    assert graph.features.tolist() == [[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert graph.class_names == ("company", "tvshow")
    assert graph.labels.tolist() == [1, 0, 1]
    assert graph.indices.tolist() == [1, 0, 2, 1]
    assert (graph.directed, graph.ids, graph.name) == (False, None, "musae_facebook")
    assert graph.notes == ("1 self-loops were dropped",)
    assert load(tmp_path / "musae_facebook_edges.csv", directed=True).directed


def test_reads_twitch_by_its_new_ids(tmp_path):
    graph = load(put(tmp_path, "DE", TWITCH))
    assert graph.ids.tolist() == [2, 0, 1]
    assert graph.class_names == ("False", "True")
    assert graph.labels.tolist() == [1, 0, 1]
    assert graph.indptr.tolist() == [0, 1, 3, 4]
    assert load(tmp_path, label="partner").classes == 1


def test_cuts_wikipedia_traffic_into_equal_classes(tmp_path):
    graph = load(put(tmp_path, "chameleon", WIKIPEDIA), classes=3)
    assert graph.directed
    assert np.bincount(graph.labels).tolist() == [2, 2, 2]
    visits = np.array([(k * 7) % 6 for k in range(6)])
    assert np.array_equal(graph.labels, visits // 2)
    assert load(tmp_path).classes == 5
    assert not load(tmp_path, symmetrize=True).directed


@pytest.mark.parametrize(
    ("part", "text", "says"),
    [
        ("edges.csv", "id_1,id_2\n0,7\n", "row 1 of musae_facebook_edges.csv names.*0, 7"),
        ("edges.csv", "id_1,id_2\n0\n", "has 1 cells, not 2"),
        ("edges.csv", "", "is empty"),
        ("features.json", "{", "not valid JSON"),
        ("features.json", "[" * 100_000, "not valid JSON"),
        ("features.json", "[1]", "must map each node"),
        ("features.json", '{"0": [0], "1": [], "2": ["a"]}', "'a'"),
        ("features.json", '{"0": [-1], "1": [], "2": []}', "'-1'"),
        ("features.json", '{"0": [1099511627776], "1": [], "2": []}', "GiB"),
        ("features.json", '{"0": [0], "1": []}', "1 nodes have no attributes"),
        ("features.json", '{"0": [0], "1": [], "2": [], "3": []}', "1 of its nodes are unknown"),
        ("target.csv", "id,page_type\n0,a\n0,b\n", "duplicate node ids.*0 stands in rows 1 and 2"),
        ("target.csv", "id,kind\n0,a\n", "no column target"),
        ("target.csv", "id,page_type\n", "no nodes"),
    ],
)
def test_refuses_bad_files(tmp_path, part, text, says):
    with pytest.raises(GraphError, match=says):
        load(put(tmp_path, "facebook", FACEBOOK, **{part: text}))


def test_refuses_a_missing_file(tmp_path):
    put(tmp_path, "facebook", FACEBOOK)
    (tmp_path / "musae_facebook_target.csv").unlink()
    with pytest.raises(GraphError, match=r"musae_facebook_target.csv not found"):
        load(tmp_path)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(FACEBOOK)), st.data())
def test_damage_never_escapes(part, data):
    from pathlib import Path

    content = bytearray(FACEBOOK[part].encode())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place : place + 1] = data.draw(st.binary(max_size=3))
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder), "facebook", FACEBOOK)
        (Path(folder) / f"musae_facebook_{part}").write_bytes(content)
        with suppress(GraphError):
            assert isinstance(load(folder, max_bytes=1 << 24), Graph)
