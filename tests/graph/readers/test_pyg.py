import warnings

import numpy as np
import pytest
import torch

from tacit.errors import GraphError
from tacit.graph import from_pyg, load, synthetic, to_pyg

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # the library's own, while it loads
    from torch_geometric.data import Data, HeteroData


def data(**changes):
    held = {
        "x": torch.tensor([[1.0, 0], [0, 1], [1, 1]]),
        "edge_index": torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
        "y": torch.tensor([0, 1, -1]),
    }
    return Data(**(held | changes))


def test_reads_data_and_keeps_masks():
    masks = {
        "train_mask": torch.tensor([True, True, False]),
        "test_mask": torch.tensor([False, False, False]),
    }
    graph = load(data(**masks))
    assert graph.train.tolist() == [True, True, False]
    assert not graph.val.any()
    assert (graph.nodes, graph.arcs, graph.directed, graph.classes) == (3, 4, False, 2)


@pytest.mark.parametrize("directed", [False, True])
def test_there_and_back_is_the_same_graph(directed):
    graph = synthetic.communities(nodes=300, mean_degree=8, seed=1).with_(directed=directed)
    again = from_pyg(to_pyg(graph), directed=directed)
    for key in ("indptr", "indices", "features", "labels", "train", "val", "test"):
        assert np.array_equal(getattr(graph, key), getattr(again, key))
    assert again.directed == directed


def test_an_arc_runs_from_row_0_to_row_1():
    graph = load(data(edge_index=torch.tensor([[0], [2]])))
    assert graph.directed
    assert graph.out_degrees.tolist() == [1, 0, 0]
    assert to_pyg(graph).edge_index.tolist() == [[0], [2]]


def test_the_graph_does_not_follow_later_changes():
    given = data()
    graph = load(given)
    given.x[0, 0] = 9
    given.y[0] = 1
    assert graph.features[0, 0] == 1
    assert graph.labels[0] == 0
    given = to_pyg(graph)
    given.x[0, 0] = 7
    assert graph.features[0, 0] == 1


def test_odd_but_usable_data():
    assert load(data(y=torch.tensor([[0.0], [1.0], [float("nan")]]))).labels.tolist() == [0, 1, -1]
    assert load(data(x=data().x.to_sparse())).features.tolist() == data().x.tolist()
    assert load(data(edge_attr=torch.ones(4, 1))).arcs == 4
    assert load(data(edge_attr=torch.ones(4, 3))).notes == ("edge attributes were left out",)
    nothing = load(data(x=None, num_nodes=3))
    assert nothing.features.tolist() == [[1], [1], [1]]
    several = torch.tensor([[True, False], [True, True], [False, False]])
    with pytest.raises(GraphError, match="holds 2 splits"):
        load(data(train_mask=several))
    assert load(data(train_mask=several), pyg_split=0).train.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"edge_weight": torch.tensor([1, 1, 0.5, 1])}, "weight other than 1"),
        ({"edge_index": torch.tensor([[0], [3]])}, "target 3, which is not a node"),
        ({"edge_index": torch.tensor([0, 1])}, "edge_index has shape"),
        ({"x": torch.tensor([[1.0], [float("inf")], [0.0]])}, "NaN or infinite"),
        ({"y": torch.eye(3)}, "y has shape"),
        ({"y": torch.tensor([0.5, 1, 0])}, "not classes"),
        ({"y": None}, "lacks edge_index, y"),
        ({"train_mask": torch.tensor([True, True])}, "one truth value"),
        ({"train_mask": torch.tensor([True, False, False])}, "class 1 has no training node"),
    ],
)
def test_refuses_bad_data(changes, says):
    with pytest.raises(GraphError, match=says):
        load(data(**changes))


def test_refuses_heterogeneous_data():
    held = HeteroData()
    held["user"].x = torch.ones(2, 1)
    with pytest.raises(GraphError, match="not a homogeneous"):
        load(held)
