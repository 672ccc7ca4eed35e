"""LinkTeller: its two theorems, the fast path against asking, and what it finds."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.attacks.black_box import NetworkBox, RowBox
from tacit.attacks.linkteller import influence_matrix, linkteller, probes, relative_influence
from tacit.attacks.pairs import choose, judge, linked
from tacit.attacks.remote import RemoteBox
from tacit.errors import AttackError
from tacit.graph import Graph, from_arcs, synthetic
from tacit.learn.graph_networks import GraphNetwork, Links, pack, train_on_links
from tacit.learn.train import TrainConfig


def box(graph: Graph, kind: str = "gcn", layers: int = 2, seed: int = 0) -> NetworkBox:
    network = GraphNetwork(
        kind, graph.features.shape[1], 8, graph.classes, layers, heads=2, seed=seed
    )
    return NetworkBox.of(network, Links.of(*graph.in_lists))


def hops(graph: Graph, most: int) -> np.ndarray:
    """Length of the shortest path from i to j in messages, ``most + 1`` for anything longer."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    ones = np.ones(graph.arcs)
    matrix = csr_array((ones, graph.indices, graph.indptr), shape=(graph.nodes, graph.nodes))
    return np.minimum(shortest_path(matrix, unweighted=True), most + 1)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    nodes = draw(st.integers(3, 12))
    cells = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    arcs = np.array([(a, b) for a, b in draw(st.lists(cells, max_size=20)) if a != b] or [(0, 1)])
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    kind = draw(st.sampled_from([{"directed": True}, {"symmetrize": True}]))
    return from_arcs(
        arcs[:, 0],
        arcs[:, 1],
        features=rng.random((nodes, 4), dtype=np.float32) + 0.1,
        labels=np.arange(nodes) % 2,
        **kind,
    )


@settings(max_examples=40, deadline=None)
@given(graphs(), st.sampled_from(["gcn", "sage", "gat"]), st.integers(1, 3), st.booleans())
def test_theorem_1_no_influence_beyond_k_links(
    graph: Graph, kind: str, layers: int, fast: bool
) -> None:
    target = box(graph, kind, layers)
    influence, _ = influence_matrix(target, np.arange(graph.nodes), graph.features, fast=fast)
    far = hops(graph, layers) > layers
    assert (influence[far] == 0).all()


@settings(max_examples=40, deadline=None)
@given(graphs(), st.booleans())
def test_proposition_1_one_layer_gives_influence_to_linked_pairs_alone(
    graph: Graph, fast: bool
) -> None:
    influence, _ = influence_matrix(
        box(graph, "gcn", 1), np.arange(graph.nodes), graph.features, fast=fast
    )
    near = hops(graph, 1) <= 1
    assert (influence[~near] == 0).all()
    assert (influence[near] > 0).all()


@pytest.mark.parametrize("kind", ["gcn", "sage"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("probe", ["scale", "shift"])
def test_the_fast_path_equals_asking(kind: str, layers: int, probe: str) -> None:
    graph = synthetic.communities(150, mean_degree=6, features=12, seed=3)
    target, nodes = box(graph, kind, layers), choose(graph, 40, seed=1)
    slow, asked = influence_matrix(target, nodes, graph.features, probe=probe, fast=False)
    fast, free = influence_matrix(target, nodes, graph.features, probe=probe)
    assert (asked, free) == (41, 0)
    # Both divide differences of posteriors, exact to about 1e-16, by Delta = 1e-4.
    np.testing.assert_allclose(fast, slow, atol=1e-10)
    assert slow.max() > 1e-4
    np.testing.assert_array_equal(fast > 1e-10, slow > 1e-10)


def test_the_fast_path_follows_large_changes_through_relu() -> None:
    graph = synthetic.communities(80, mean_degree=6, features=6, seed=4)
    target, nodes = box(graph, layers=3), np.arange(80)
    slow, _ = influence_matrix(target, nodes, graph.features, delta=-3.0, fast=False)
    fast, _ = influence_matrix(target, nodes, graph.features, delta=-3.0)
    small, _ = influence_matrix(target, nodes, graph.features)
    np.testing.assert_allclose(fast, slow, atol=1e-12)
    assert np.abs(small - fast).max() > 1e-3  # nothing was linearised


def test_attention_is_asked_because_its_weights_move() -> None:
    graph = synthetic.communities(40, mean_degree=4, features=6, seed=4)
    nodes = np.arange(10)
    assert box(graph, "gat").distances(nodes, graph.features, graph.features[nodes]) is None
    assert linkteller(box(graph, "gat"), graph, nodes=10).queries == 11


def test_the_box_answers_as_the_network_does() -> None:
    graph = synthetic.communities(50, mean_degree=4, features=6, seed=4)
    target = box(graph)
    nodes = np.array([7, 3])
    scores = target.network.float()(torch.tensor(graph.features), target.links)
    expected = scores.softmax(dim=1)[[7, 3]].detach().numpy()
    target.network.double()
    np.testing.assert_allclose(target(nodes, graph.features), expected, atol=1e-6)


@pytest.fixture(scope="module")
def victim() -> tuple[NetworkBox, Graph]:
    """A two-layer GCN trained on one graph, serving another."""
    seen = synthetic.communities(300, mean_degree=10, features=16, seed=5)
    graph = synthetic.communities(300, mean_degree=10, features=16, seed=6)
    network = GraphNetwork("gcn", 16, 16, seen.classes, 2, seed=0)
    rows = torch.from_numpy(np.flatnonzero(seen.train))
    train_on_links(
        network,
        pack(seen.features),
        Links.of(*seen.in_lists),
        rows,
        torch.tensor(seen.labels)[rows],
        TrainConfig(epochs=30, learning_rate=0.02),
        seed=0,
    )
    return NetworkBox.of(network, Links.of(*graph.in_lists)), graph


def test_it_finds_links_that_similarity_does_not(victim: tuple[NetworkBox, Graph]) -> None:
    from tacit.attacks.link_stealing import best, link_stealing

    target, graph = victim
    found = linkteller(target, graph, nodes=200, seed=1)
    assert found.finding.auc > 0.95
    assert found.relative.auc > 0.95
    rows = target(found.nodes, graph.features)
    baseline = best(link_stealing(rows, found.finding.linked, source="posteriors"))
    assert found.finding.guess.f1 > baseline.guess.f1 + 0.2
    guess = found.finding.guess
    assert guess.precision == guess.recall == guess.f1  # at the true density
    assert found.finding.guesses[4.0].recall >= guess.recall


def test_it_finds_nothing_where_answers_read_no_links(victim: tuple[NetworkBox, Graph]) -> None:
    _, graph = victim
    weight = np.random.default_rng(0).standard_normal((16, graph.classes))
    target = RowBox(lambda rows: np.tanh(rows @ weight))
    nodes = choose(graph, 60)
    slow, _ = influence_matrix(target, nodes, graph.features, fast=False)
    fast, _ = influence_matrix(target, nodes, graph.features)
    np.testing.assert_allclose(fast, slow, atol=1e-9)
    found = linkteller(target, graph, nodes=200, seed=1)
    assert found.finding.auc == found.relative.auc == 0.5
    assert found.finding.guess.f1 < 0.15


def test_a_shift_reaches_models_that_undo_a_scaling() -> None:
    graph = synthetic.communities(60, mean_degree=6, features=6, seed=2)
    inner, nodes = box(graph, layers=1), np.arange(20)

    def unit(asked: np.ndarray, rows: np.ndarray) -> np.ndarray:
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return inner(asked, rows / np.maximum(lengths, 1e-12))

    scaled, _ = influence_matrix(unit, nodes, graph.features)
    shifted, _ = influence_matrix(unit, nodes, graph.features, probe="shift")
    assert scaled.max() < 1e-9
    assert shifted.max() > 1e-4


def test_relative_influence_takes_degrees_out() -> None:
    matrix = np.array([[4.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    relative = relative_influence(matrix)
    assert relative[0, 1] == relative[1, 0] == 0.5
    assert (relative[2] == 0).all()


def test_nodes_are_chosen_by_degree() -> None:
    graph = synthetic.communities(400, mean_degree=8, seed=1)
    low, high = choose(graph, 50, "low", 3), choose(graph, 50, "high", 3)
    degrees = graph.out_degrees
    assert degrees[low].max() <= np.quantile(degrees, 0.25) + 1
    assert degrees[high].min() >= np.quantile(degrees, 0.75) - 1
    assert (degrees[low] > 0).all()
    assert len(np.unique(choose(graph, 50))) == 50
    assert np.array_equal(choose(graph, 50, seed=3), choose(graph, 50, seed=3))
    assert len(choose(graph, 1000)) == 400


def test_pairs_are_linked_either_way() -> None:
    graph = from_arcs(
        np.array([2, 0]),
        np.array([0, 3]),
        features=np.ones((4, 2), np.float32),
        labels=np.zeros(4, int),
        directed=True,
    )
    pairs = linked(graph, np.array([0, 2, 3]))
    assert pairs.tolist() == [True, True, False]


def test_a_density_names_the_number_of_guesses() -> None:
    matrix = np.arange(25.0).reshape(5, 5)
    truth = np.arange(10) < 3
    found = judge("x", matrix, truth, density=0.2)
    assert [guess.chosen for guess in found.guesses.values()] == [0, 1, 2, 4, 8]
    assert judge("x", matrix, truth).density == pytest.approx(0.3)
    with pytest.raises(AttackError, match="density"):
        judge("x", matrix, truth, density=1.5)


def test_what_is_not_an_attack_is_refused() -> None:
    graph = synthetic.communities(30, mean_degree=4, features=6, seed=1)
    with pytest.raises(AttackError, match="one row of posteriors"):
        linkteller(lambda nodes, rows: rows[:3], graph, nodes=5)
    with pytest.raises(AttackError, match="probe"):
        probes(graph.features, np.arange(3), 0.1, "twist")
    with pytest.raises(AttackError, match="reweighting"):
        probes(graph.features, np.arange(3), 0.0)
    with pytest.raises(AttackError, match="no pairs"):
        linkteller(lambda nodes, rows: rows, graph, nodes=1)


@pytest.fixture
def service(victim: tuple[NetworkBox, Graph]) -> Iterator[str]:
    """The victim behind HTTP, by the protocol of docs/attacks.md."""
    target, graph = victim

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            features = graph.features.astype(float)
            for node, row in asked["features"].items():
                features[int(node)] = row
            if self.path == "/broken":
                answer: dict = {"labels": []}
            else:
                answer = {"posteriors": target(np.array(asked["nodes"]), features).tolist()}
            body = json.dumps(answer).encode()
            self.send_response(403 if self.path == "/closed" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_service_over_http_leaks_the_same(victim: tuple[NetworkBox, Graph], service: str) -> None:
    target, graph = victim
    nodes = choose(graph, 25)
    there, asked = influence_matrix(RemoteBox(service, graph.features), nodes, graph.features)
    here, _ = influence_matrix(target, nodes, graph.features)
    assert asked == 26
    np.testing.assert_allclose(there, here, atol=1e-10)


def test_a_service_that_does_not_answer_is_named(
    victim: tuple[NetworkBox, Graph], service: str
) -> None:
    _, graph = victim
    for path, words in (("/broken", "protocol"), ("/closed", "403")):
        with pytest.raises(AttackError, match=words):
            RemoteBox(service + path, graph.features)(np.array([1]), graph.features)
    with pytest.raises(AttackError, match="does not answer"):
        RemoteBox("http://127.0.0.1:9", graph.features)(np.array([1]), graph.features)
    with pytest.raises(AttackError, match="address"):
        RemoteBox("file:///etc/hosts", graph.features)
