import numpy as np
import pytest

from tacit.errors import GraphError
from tacit.graph import check_training, fingerprint, synthetic
from tacit.graph.synthetic import arc_point


def inside(graph, group):
    sources = np.repeat(np.arange(graph.nodes), graph.out_degrees)
    return np.mean(group[sources] == group[graph.indices])


def test_csbm_has_the_degrees_and_the_pull_asked_for():
    n, d, lam = 20_000, 10.0, 1.5
    graph = synthetic.csbm(nodes=n, mean_degree=d, mu=5.0, lam=lam, features=20, seed=1)
    links = n * d / 2
    assert abs(graph.arcs / 2 - links) < 6 * np.sqrt(links)
    # Share of links within a class: (d + lam sqrt d) / 2d.
    expected = (d + lam * np.sqrt(d)) / (2 * d)
    assert abs(inside(graph, graph.labels) - expected) < 6 * np.sqrt(0.25 / links)
    assert np.bincount(graph.labels).tolist() == [n // 2, n // 2]
    assert not graph.directed


def test_csbm_features_follow_the_model():
    n, f, mu = 20_000, 50, 400.0
    graph = synthetic.csbm(nodes=n, mean_degree=5, mu=mu, lam=0.0, features=f, seed=2)
    signs = 2 * graph.labels - 1
    mean = (graph.features * signs[:, None]).mean(axis=0)  # estimates sqrt(mu/n) u
    noise = graph.features - np.outer(signs, mean)
    assert noise.std() == pytest.approx(1 / np.sqrt(f), rel=0.01)
    # |u|^2 is 1 on average; f = 50 puts it within 1 ± 6 sqrt(2/50).
    assert np.sum(mean**2) * n / mu == pytest.approx(1, abs=1.2)
    assert np.sum(mean**2) > 0.1 * mu / n


@pytest.mark.parametrize("phi", [-1.0, -0.4, 0.0, 0.7, 1.0])
def test_phi_stays_on_the_arc(phi):
    lam, mu = arc_point(phi, nodes=10_000, features=200, margin=3.25)
    assert lam**2 + mu**2 / 50 == pytest.approx(4.25)
    assert np.sign(lam) == np.sign(phi)
    graph = synthetic.csbm_phi(phi, nodes=2000, features=40, seed=3)
    share = inside(graph, graph.labels)
    assert (share > 0.5) == (phi > 0) or abs(phi) < 0.1


def test_dense_and_tiny_graphs_come_out_whole():
    full = synthetic.csbm(nodes=4, mean_degree=3.0, mu=0, lam=0.0, features=1, seed=0)
    assert full.arcs <= 12
    tiny = synthetic.communities(nodes=6, mean_degree=5, classes=2, features=2, seed=0)
    assert tiny.arcs <= 30


def test_communities_meet_their_settings():
    graph = synthetic.communities(
        nodes=6000, mean_degree=30, homophily=0.7, label_noise=0.0, seed=4
    )
    assert graph.arcs == 6000 * 30
    assert inside(graph, graph.labels) == pytest.approx(0.7, abs=0.02)
    assert graph.out_degrees.max() > 5 * graph.out_degrees.mean()
    check_training(graph)
    noisy = synthetic.communities(
        nodes=6000, mean_degree=30, homophily=0.7, label_noise=0.5, seed=4
    )
    assert inside(noisy, noisy.labels) < 0.4


def test_the_demo_graph_rewards_neighbours():
    """Nearest class mean on features alone, and on the neighbours' labels: 60% against 85%."""
    graph = synthetic.communities(seed=0)
    assert graph.out_degrees.mean() == 40
    train, test = graph.train, graph.test
    means = np.stack([graph.features[train & (graph.labels == c)].mean(0) for c in range(6)])
    alone = (graph.features @ means.T).argmax(1)
    votes = np.zeros((graph.nodes, 6))
    sources = np.repeat(np.arange(graph.nodes), graph.out_degrees)
    known = train[sources]
    np.add.at(votes, (graph.indices[known], graph.labels[sources[known]]), 1)
    together = (votes + 0.01 * graph.features @ means.T).argmax(1)
    assert 0.55 < np.mean(alone[test] == graph.labels[test]) < 0.67
    assert 0.83 < np.mean(together[test] == graph.labels[test]) < 0.92


def test_same_seed_same_graph():
    for make in (
        lambda seed: synthetic.communities(nodes=500, seed=seed),
        lambda seed: synthetic.csbm(nodes=500, seed=seed),
    ):
        assert fingerprint(make(1)) == fingerprint(make(1))
        assert fingerprint(make(1)) != fingerprint(make(2))
        assert np.array_equal(make(1).train, make(1).train)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"nodes": 1}, "no graph has 1 nodes"),
        ({"mean_degree": 9000}, "cannot have mean degree"),
        ({"homophily": 1.5}, "are shares"),
        ({"features": 3}, "orthogonal"),
    ],
)
def test_refuses_impossible_communities(settings, says):
    with pytest.raises(GraphError, match=says):
        synthetic.communities(**settings)


def test_refuses_impossible_block_models():
    with pytest.raises(GraphError, match="raise the mean degree"):
        synthetic.csbm(mean_degree=2, lam=2.0)
    with pytest.raises(GraphError, match="mu is -1"):
        synthetic.csbm(mu=-1)
    with pytest.raises(GraphError, match="phi is 2"):
        synthetic.csbm_phi(2)
