import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import savemat
from scipy.sparse import csc_matrix

from tacit.errors import GraphError
from tacit.graph import Graph, drop_isolated, keep_classes, load

#  student_fac, gender, major, second_major, dorm, year, high_school
INFO = np.array(
    [
        [1, 1, 10, 0, 0, 2007, 5],
        [1, 2, 20, 0, 0, 2008, 5],
        [2, 0, 10, 0, 0, 0, 0],
        [1, 2, 30, 0, 0, 2007, 9],
    ]
)
LINKS = np.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]], dtype=float)


def put(path, links=LINKS, info=INFO, compress=False):
    savemat(
        path, {"A": csc_matrix(links), "local_info": info.astype(float)}, do_compression=compress
    )
    return path


def test_year_is_the_label_and_the_rest_one_hot(tmp_path):
    graph = load(put(tmp_path / "Tiny1.mat"))
    assert graph.labels.tolist() == [0, 1, -1, 0]
    assert graph.class_names == ("2007", "2008")
    # Columns: student_fac 1, 2; gender 1, 2; major 10, 20, 30; high_school 5, 9.
    assert graph.features.tolist() == [
        [1, 0, 1, 0, 1, 0, 0, 1, 0],
        [1, 0, 0, 1, 0, 1, 0, 1, 0],
        [0, 1, 0, 0, 1, 0, 0, 0, 0],
        [1, 0, 0, 1, 0, 0, 1, 0, 1],
    ]
    assert graph.indices.tolist() == [1, 0, 2, 1]
    assert graph.name == "Tiny1"
    prepared = drop_isolated(keep_classes(graph, 1))
    assert prepared.ids.tolist() == [0, 1]


def test_any_field_can_be_the_label(tmp_path):
    path = put(tmp_path / "t.mat", compress=True)
    graph = load(path, label="gender", features=["student_fac"])
    assert graph.labels.tolist() == [0, 1, -1, 1]
    assert graph.features.tolist() == [[1, 0], [1, 0], [0, 1], [1, 0]]
    for options, says in (
        ({"label": "income"}, "income cannot be used"),
        ({"label": "year", "features": ["year"]}, "year cannot be used"),
        ({"features": ["dorm"]}, "has a value"),
    ):
        with pytest.raises(GraphError, match=says):
            load(path, **options)


def test_refuses_bad_matrices(tmp_path):
    path = tmp_path / "t.mat"
    for change, says in (
        ({"links": LINKS[:, :3]}, "holds A of shape"),
        ({"links": LINKS * 2}, "weight other than 1"),
        ({"links": np.triu(LINKS)}, None),
        ({"info": INFO[:, :6]}, "7 fields"),
        ({"info": INFO + 0.5}, "whole numbers"),
        ({"info": INFO * np.nan}, "whole numbers"),
        ({"info": INFO * 1e12}, "beyond 32 bits"),
    ):
        put(path, **change)
        if says is None:
            assert load(path).directed
            with pytest.raises(GraphError, match="symmetrize=True"):
                load(path, directed=False)
            assert not load(path, symmetrize=True).directed
            continue
        with pytest.raises(GraphError, match=says):
            load(path)
    savemat(path, {"B": INFO})
    with pytest.raises(GraphError, match="no sparse A"):
        load(path)


@settings(max_examples=50, deadline=None)
@given(st.booleans(), st.data())
def test_damage_never_escapes(compress, data):
    with tempfile.TemporaryDirectory() as folder:
        path = put(Path(folder) / "t.mat", compress=compress)
        content = bytearray(path.read_bytes())
        if data.draw(st.booleans()):
            content = content[: data.draw(st.integers(0, len(content)))]
        else:
            content[data.draw(st.integers(128, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        with suppress(GraphError):
            assert isinstance(load(path, max_bytes=1 << 24), Graph)
