import subprocess
import sys

import pytest

from tacit.errors import GraphError
from tacit.graph import load, save


def test_a_graph_is_already_loaded(small):
    assert load(small) is small


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.png", b"\x89PNG\r\n\x1a\n0000", "x.png is not a graph file.*PNG picture.*npz file"),
        ("x.txt", b"hello, world\n", "x.txt is not a graph file"),
        ("x.npz", b"hello, world\n", "truncated or damaged"),
        ("x.npz", b"", "x.npz is empty"),
        ("x.npz", b"PK\x03\x04", "truncated or damaged"),
        ("x.mat", b"\x89HDF\r\n\x1a\n", "HDF5.*-v7"),
        ("x.mat", b"MATLAB 5.0 MAT-file", "MATLAB file is truncated"),
        ("x.npy", b"\x93NUMPY\x01\x00", "single numpy array"),
        ("x.pkl", b"\x80\x04N.", "a pickle, which can run any program"),
        ("nodes.csv", b"id,label\n", r"one table, and a graph is two.*load\(\(nodes, edges\)\)"),
    ],
)
def test_refuses_files_of_another_kind(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(GraphError, match=says):
        load(path)


def test_refuses_what_is_not_there(tmp_path, small):
    with pytest.raises(GraphError, match="does not exist"):
        load(tmp_path / "nowhere.npz")
    with pytest.raises(GraphError, match="is not a path"):
        load("x" * 5000)
    with pytest.raises(GraphError, match="holds no graph"):
        load(tmp_path)
    with pytest.raises(GraphError, match="a dict is not a graph"):
        load({})
    with pytest.raises(GraphError, match="tuple of 1"):
        load((tmp_path,))
    with pytest.raises(GraphError, match="is not a table"):
        load((save(small, tmp_path / "g"), tmp_path))
    (tmp_path / "nodes.csv").write_text("id,label\n")
    with pytest.raises(GraphError, match=r"0 tables of edges.*no edges.csv"):
        load(tmp_path)


def test_refuses_a_folder_with_two_graphs(tmp_path):
    for name in ("nodes.csv", "nodes.parquet", "edges.csv"):
        (tmp_path / name).write_text("id,label\n")
    with pytest.raises(GraphError, match=r"2 tables of nodes.*nodes.csv, nodes.parquet"):
        load(tmp_path)


def test_refuses_options_that_would_be_ignored(tmp_path, small):
    path = save(small, tmp_path / "g")
    with pytest.raises(GraphError, match=r"label, features has no meaning .* \(npz\).*classes"):
        load(path, label="year", features=["age"])


def test_heavy_libraries_wait_until_they_are_needed():
    code = (
        "import sys, tacit.graph; "
        "print([m for m in ('torch', 'scipy', 'duckdb', 'pyarrow', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
