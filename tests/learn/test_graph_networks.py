import warnings

import numpy as np
import pytest
import torch

import tacit
from tacit.errors import TrainingError
from tacit.graph import Graph
from tacit.learn.graph_networks import (
    KINDS,
    GatLayer,
    GcnLayer,
    GraphNetwork,
    Links,
    SageLayer,
    Sparse,
    pack,
    predict_on_links,
    train_on_links,
)
from tacit.learn.train import TrainConfig

with warnings.catch_warnings():
    # The peer compiles its layers with a function that this torch calls deprecated.
    warnings.simplefilter("ignore")
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv


def communities(directed: bool = False, nodes: int = 60) -> Graph:
    found = tacit.graph.synthetic.communities(nodes, mean_degree=5, features=7, classes=3, seed=4)
    if directed:
        kept = np.random.default_rng(0).random(found.arcs) < 0.6
        found = tacit.graph.from_arcs(
            np.repeat(np.arange(nodes), found.out_degrees)[kept], found.indices[kept],
            features=found.features, labels=found.labels, directed=True,
        )  # fmt: skip
    return tacit.graph.split(found, seed=0)


def parts(graph: Graph) -> tuple[torch.Tensor, Links, torch.Tensor]:
    """Features and links, and the links as PyTorch Geometric wants them."""
    sources = np.repeat(np.arange(graph.nodes), graph.out_degrees)
    pairs = torch.tensor(np.stack([sources, graph.indices]), dtype=torch.long)
    return (
        torch.tensor(graph.features),
        Links.of(*graph.in_lists, symmetric=not graph.directed),
        pairs,
    )


@pytest.fixture(params=[False, True], ids=["symmetric", "directed"])
def graph(request: pytest.FixtureRequest) -> Graph:
    return communities(directed=request.param)


def test_gcn_is_torch_geometrics(graph: Graph) -> None:
    x, adj, pairs = parts(graph)
    theirs, ours = GCNConv(7, 4), GcnLayer(7, 4)
    theirs.lin.weight.data = ours.weight.data
    theirs.bias.data = ours.bias.data.normal_()
    torch.testing.assert_close(ours(x, adj), theirs(x, pairs), atol=1e-5, rtol=1e-5)


def test_sage_is_torch_geometrics(graph: Graph) -> None:
    x, adj, pairs = parts(graph)
    theirs, ours = SAGEConv(7, 4), SageLayer(7, 4)
    theirs.lin_l.weight.data, theirs.lin_r.weight.data = ours.neighbours.data, ours.own.data
    theirs.lin_l.bias.data = ours.bias.data.normal_()
    torch.testing.assert_close(ours(x, adj), theirs(x, pairs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 3])
def test_gat_is_torch_geometrics(graph: Graph, heads: int) -> None:
    x, adj, pairs = parts(graph)
    theirs, ours = GATConv(7, 4, heads=heads), GatLayer(7, 4 * heads, heads)
    theirs.lin.weight.data = ours.weight.data
    theirs.att_src.data, theirs.att_dst.data = ours.source.data[None], ours.target.data[None]
    theirs.bias.data = ours.bias.data.normal_()
    torch.testing.assert_close(ours(x, adj), theirs(x, pairs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_dense_products(graph: Graph, kind: str) -> None:
    x, adj, _ = parts(graph)
    model = GraphNetwork(kind, 7, 8, 3, seed=1).double()
    names = [name for name, _ in model.named_parameters()]

    def loss(features: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        model.eval()
        named = dict(zip(names, values, strict=True))
        return torch.func.functional_call(model, named, (features, adj)).square().sum()

    small = (x.double()[:, :7].requires_grad_(), *(p.detach() for p in model.parameters()))
    chosen = [v.clone().requires_grad_() for v in small]
    assert torch.autograd.gradcheck(loss, chosen, fast_mode=True, nondet_tol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_no_node_hears_beyond_its_layers(kind: str, layers: int) -> None:
    """On a path, k layers carry a change of one end k nodes far and not one further."""
    n, ends = 8, np.arange(7)
    path = tacit.graph.symmetrize(
        tacit.graph.from_arcs(ends, ends + 1, features=np.ones((n, 2)), labels=np.arange(n) % 2)
    )
    x, adj, _ = parts(path)
    model = GraphNetwork(kind, 2, 8, 2, layers, dropout=0.0, seed=3)
    other = x.clone()
    other[0] += 1
    moved = (predict_on_links(model, x, adj) != predict_on_links(model, other, adj)).any(1)
    assert moved[: layers + 1].any()
    assert not moved[layers + 1 :].any()


def test_a_node_that_hears_no_one_has_a_row_all_the_same() -> None:
    adj = Links.of(np.array([0, 0, 1]), np.array([0]))
    for kind in KINDS:
        out = GraphNetwork(kind, 2, 8, 3)(torch.ones(2, 2), adj)
        assert torch.isfinite(out).all()
    torch.testing.assert_close(
        adj.mean.forth.to_dense(), torch.tensor([[0.0, 0.0], [1.0, 0.0]]), rtol=0, atol=0
    )


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_features_answer_as_dense_ones(kind: str) -> None:
    graph = communities()
    dense = torch.zeros(60, 90)
    dense[torch.arange(60), torch.arange(60)] = 2.0
    packed, adj = pack(dense.numpy()), Links.of(*graph.in_lists)
    assert isinstance(packed, Sparse)
    assert isinstance(pack(graph.features), torch.Tensor)
    model = GraphNetwork(kind, 90, 8, 3, dropout=0.0, seed=2)
    torch.testing.assert_close(model(packed, adj), model(dense, adj))
    first = model.layers[0].weight if kind != "sage" else model.layers[0].own
    grads = [torch.autograd.grad(model(x, adj).square().sum(), first)[0] for x in (packed, dense)]
    torch.testing.assert_close(*grads)


def test_dropout_of_sparse_features_is_consistent_in_both_directions() -> None:
    packed = pack(np.eye(50, dtype=np.float32))
    assert isinstance(packed, Sparse)
    dropped = GraphNetwork("gcn", 50, 8, 3, dropout=0.5).train()._dropped(packed)
    assert isinstance(dropped, Sparse)
    assert 0 < int((dropped.forth.values() == 0).sum()) < 50
    assert torch.equal(dropped.forth.to_dense().t(), dropped.back.to_dense())


class Mean(torch.nn.Module):
    """A third party's backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.map = torch.nn.Linear(7, 3)

    def forward(self, x: torch.Tensor, adj: Links) -> torch.Tensor:
        return adj.mean @ self.map(x) + self.map(x)


@pytest.mark.parametrize("kind", [*KINDS, "own"])
def test_training_learns_and_repeats(kind: str) -> None:
    graph = communities(nodes=200)
    x, adj, _ = parts(graph)
    rows, held = (torch.from_numpy(np.flatnonzero(m)) for m in (graph.train, graph.val))
    labels = torch.tensor(graph.labels)
    answers = []
    for _ in range(2):
        torch.manual_seed(0)
        model = Mean() if kind == "own" else GraphNetwork(kind, 7, 16, 3, dropout=0.2, seed=1)
        history = train_on_links(
            model, x, adj, rows, labels[rows], TrainConfig(60, patience=20), seed=0,
            val=(held, labels[held]),
        )  # fmt: skip
        assert history.losses[-1] < history.losses[0]
        answers.append(predict_on_links(model, x, adj))
    assert torch.equal(*answers)
    accuracy = (answers[0].argmax(1) == labels)[torch.tensor(graph.test)].float().mean()
    assert accuracy > 0.6


def test_refusals_name_the_reason() -> None:
    with pytest.raises(TrainingError, match="unknown backbone"):
        GraphNetwork("mlp", 2, 2, 2)
    with pytest.raises(TrainingError, match="nothing to train"):
        GraphNetwork("gcn", 2, 2, 2, 0)
    with pytest.raises(TrainingError, match="dropout"):
        GraphNetwork("gcn", 2, 2, 2, dropout=1.0)
    with pytest.raises(TrainingError, match="heads"):
        GraphNetwork("gat", 2, 9, 2)
    with pytest.raises(TrainingError, match="span"):
        Links.of(np.array([0, 2]), np.array([0]))
    with pytest.raises(TrainingError, match="span"):
        Links.of(np.array([0, 2, 1]), np.array([0]))
    with pytest.raises(TrainingError, match="does not exist"):
        Links.of(np.array([0, 1]), np.array([1]))
    with pytest.raises(TrainingError, match="two one-dimensional"):
        Links.of(np.array([0]), np.array([], dtype=int))
    with pytest.raises(TrainingError, match="whole graph"):
        train_on_links(
            Mean(), torch.ones(1, 7), Links.of(np.array([0, 0]), np.array([], dtype=int)),
            torch.tensor([0]), torch.tensor([0]), TrainConfig(1, batch_size=4), seed=0,
        )  # fmt: skip
