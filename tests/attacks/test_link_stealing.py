"""The eight distances, each against its formula, and what they find."""

import numpy as np
import pytest

from tacit.attacks.link_stealing import DISTANCES, best, distances, link_stealing
from tacit.errors import AttackError

X, Y = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.3, 0.4])


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    return 1 - float(np.corrcoef(x, y)[0, 1])


FORMULAS = {
    "cosine": 1 - X @ Y / np.sqrt((X @ X) * (Y @ Y)),
    "euclidean": np.sqrt(((X - Y) ** 2).sum()),
    "correlation": _correlation(X, Y),
    "chebyshev": np.abs(X - Y).max(),
    "braycurtis": np.abs(X - Y).sum() / np.abs(X + Y).sum(),
    "cityblock": np.abs(X - Y).sum(),
    "canberra": (np.abs(X - Y) / (np.abs(X) + np.abs(Y))).sum(),
    "sqeuclidean": ((X - Y) ** 2).sum(),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_each_distance_is_its_formula(name: str) -> None:
    found = distances(np.stack([X, Y, X]), name)
    assert found[0, 1] == found[1, 0] == pytest.approx(FORMULAS[name])
    assert found[0, 2] == pytest.approx(0, abs=1e-12)


def test_rows_that_cannot_be_compared_are_far_apart() -> None:
    rows = np.array([[0.0, 0.0], [1.0, 0.2], [0.1, 1.0]])
    found = distances(rows, "cosine")
    assert found[0, 1] == found[0, 2] == found.max()


def test_similar_answers_give_links_away() -> None:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(10), 5)
    rows = rng.random((10, 6))[group] + 0.01 * rng.random((50, 6))
    first, second = np.triu_indices(50, 1)
    truth = group[first] == group[second]
    findings = link_stealing(rows, truth, source="posteriors")
    assert len(findings) == 8
    assert [f.name for f in findings][5] == "manhattan of posteriors"
    assert min(f.auc for f in findings) > 0.9
    assert best(findings).guess.f1 == max(f.guess.f1 for f in findings) > 0.9


def test_an_unknown_distance_is_refused() -> None:
    with pytest.raises(AttackError, match="unknown distance"):
        distances(np.eye(3), "hamming")
