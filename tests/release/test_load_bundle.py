from pathlib import Path

import numpy as np
import pytest
from release_models import fitted

from tacit import Edge, Node
from tacit.errors import ReleaseError
from tacit.graph import Graph
from tacit.methods import Method
from tacit.release import Bundle, load_bundle, release


def opened(model: Method, tmp_path: Path) -> Bundle:
    return load_bundle(release(model, tmp_path / "b"))


def list_of(graph: Graph, v: int) -> np.ndarray:
    return graph.indices[graph.indptr[v] : graph.indptr[v + 1]]


def own_answer(bundle: Bundle, graph: Graph, v: int) -> np.ndarray:
    label = int(graph.labels[v]) if graph.train[v] else None
    return bundle.predict_record(graph.features[v], list_of(graph, v), node=v, label=label)


def test_edge_bundle_answers_for_every_node(
    edge_model: Method, graph: Graph, tmp_path: Path
) -> None:
    bundle = opened(edge_model, tmp_path)
    assert np.array_equal(bundle.predict_proba(), edge_model.fitted.outcome.posteriors)
    assert np.array_equal(bundle.predict(nodes=[7, 2]), edge_model.predict()[[7, 2]])
    assert bundle.classes == ("north", "south", "east", "west")
    again = bundle.predict_proba(graph.features)
    held = ~graph.train
    assert np.allclose(again[held], edge_model.fitted.outcome.posteriors[held], atol=1e-5)
    one = bundle.predict_proba(graph.features[[5]], nodes=[5])
    assert np.allclose(one, again[[5]], atol=1e-5)


def test_edge_bundle_wants_to_know_which_rows(
    edge_model: Method, graph: Graph, tmp_path: Path
) -> None:
    bundle = opened(edge_model, tmp_path)
    with pytest.raises(ReleaseError, match="do not say which"):
        bundle.predict(graph.features[:3])
    for bad in ([150], [-1], [0.5], ["a"], [[1]]):
        with pytest.raises(ReleaseError, match="nodes are named by their numbers"):
            bundle.predict(nodes=bad)
    with pytest.raises(ReleaseError, match="do not fit"):
        bundle.predict(graph.features[:, :3])
    with pytest.raises(ReleaseError, match="not finite"):
        bundle.predict(np.full_like(graph.features, np.nan))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"carry": "both"},
        {"carry": "classes", "hops": 2},
        {"carry": "features"},
        {"max_degree": 3},
        {"preset": "paper"},
        {"overrides": {"own_list": False}},
    ],
    ids=str,
)
def test_own_record_gets_the_answer_of_the_run(options: dict, graph: Graph, tmp_path: Path) -> None:
    options = {"overrides": {}, **options}
    model = fitted("gap", Node(), graph, **options)
    bundle = opened(model, tmp_path)
    for v in range(0, 150, 9):
        found = own_answer(bundle, graph, v)
        assert np.allclose(found, model.fitted.outcome.posteriors[v], atol=1e-5), v


def test_a_record_reads_its_own_list_and_label(
    own_model: Method, graph: Graph, tmp_path: Path
) -> None:
    bundle = opened(own_model, tmp_path)
    v = int(np.flatnonzero(graph.train & (graph.out_degrees > 3))[0])
    whole = own_answer(bundle, graph, v)
    label = int(graph.labels[v])
    shorter = bundle.predict_record(graph.features[v], list_of(graph, v)[:1], node=v, label=label)
    assert not np.allclose(whole, shorter)
    # Its own label is in the sums of those it lists; not taking it out would be a leak to itself.
    unlabelled = bundle.predict_record(graph.features[v], list_of(graph, v), node=v)
    assert not np.allclose(whole, unlabelled)


@pytest.mark.parametrize("options", [{}, {"carry": "features"}], ids=str)
def test_someone_who_took_no_part_is_answered(options: dict, graph: Graph, tmp_path: Path) -> None:
    model = fitted("gap", Node(), graph, overrides={}, **options)
    bundle = opened(model, tmp_path)
    found = bundle.predict_record(graph.features[0], [3, 4, 5])
    assert found.shape == (4,)
    assert np.isclose(found.sum(), 1, atol=1e-5)
    assert np.isfinite(bundle.predict_record(graph.features[0])).all()


def test_impossible_records_are_refused(own_model: Method, graph: Graph, tmp_path: Path) -> None:
    bundle, row = opened(own_model, tmp_path), graph.features[0]
    for links, options in (
        ([1, 1], {}),
        ([0, 1], {"node": 0}),
        ([1], {"label": 2}),
        ([1], {"node": 0, "label": 9}),
        ([1], {"node": 500}),
        ([999], {}),
    ):
        with pytest.raises(ReleaseError):
            bundle.predict_record(row, links, **options)
    with pytest.raises(ReleaseError, match="one feature row"):
        bundle.predict_record(graph.features[:2], [5])


def test_own_unit_refuses_predictions_for_all(
    own_model: Method, graph: Graph, tmp_path: Path
) -> None:
    bundle = opened(own_model, tmp_path)
    with pytest.raises(ReleaseError, match="no predictions under the unit node") as caught:
        bundle.predict()
    assert "predict_record" in caught.value.remedy
    with pytest.raises(ReleaseError, match="features alone"):
        bundle.predict(graph.features)


def test_cut_lists_cannot_be_guessed(graph: Graph, tmp_path: Path) -> None:
    overrides = {"bound": "sample"}
    bundle = opened(fitted("gap", Node(), graph, max_degree=2, overrides=overrides), tmp_path)
    with pytest.raises(ReleaseError, match="longer than max_degree=2"):
        bundle.predict_record(graph.features[0], [1, 2, 3])
    assert bundle.predict_record(graph.features[0], [1, 2]).shape == (4,)


def test_node_all_bundle_leaves_answers_to_the_owner(graph: Graph, tmp_path: Path) -> None:
    bundle = opened(fitted("gap", Node(links="all", max_degree=60), graph), tmp_path)
    assert not bundle.released
    for ask in (
        bundle.predict,
        lambda: bundle.predict(graph.features),
        lambda: bundle.predict_record(graph.features[0], [1], node=0),
    ):
        with pytest.raises(ReleaseError):
            ask()


@pytest.mark.parametrize("unit", [Edge(), Node(), Node(links="all", max_degree=60)], ids=str)
def test_mlp_bundle_answers_for_any_rows(unit: object, graph: Graph, tmp_path: Path) -> None:
    model = fitted("mlp", unit, graph)
    bundle = opened(model, tmp_path)
    assert np.allclose(
        bundle.predict_proba(graph.features), model.fitted.outcome.posteriors, atol=1e-5
    )
    one = bundle.predict_record(graph.features[3])
    assert np.allclose(one, model.fitted.outcome.posteriors[3], atol=1e-5)
    if unit == Edge():
        assert np.array_equal(bundle.predict(), model.predict())
    else:
        with pytest.raises(ReleaseError, match="no predictions"):
            bundle.predict()


def test_the_zip_is_the_same_bundle(edge_model: Method, tmp_path: Path) -> None:
    folder = load_bundle(release(edge_model, tmp_path / "b"))
    archive = load_bundle(release(edge_model, tmp_path / "b.zip"))
    assert np.array_equal(folder.predict_proba(), archive.predict_proba())
