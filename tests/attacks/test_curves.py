"""Curves against counting by hand, and against what guessing gets."""

import numpy as np
import pytest

from tacit.attacks import curves
from tacit.errors import AttackError

SCORES = [0.9, 0.8, 0.8, 0.3, 0.1]
TRUTH = [True, False, True, False, False]


def test_auc_counts_pairs_with_ties_one_half() -> None:
    pairs = [
        (1.0 if p > n else 0.5 if p == n else 0.0) for p in (0.9, 0.8) for n in (0.8, 0.3, 0.1)
    ]
    assert curves.auc(SCORES, TRUTH) == pytest.approx(sum(pairs) / len(pairs))


def test_roc_has_one_step_for_equal_scores_and_its_area_is_the_auc() -> None:
    curve = curves.roc(SCORES, TRUTH)
    np.testing.assert_allclose(curve.x, [0, 0, 1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(curve.y, [0, 0.5, 1, 1, 1])
    assert np.trapezoid(curve.y, curve.x) == pytest.approx(curves.auc(SCORES, TRUTH))


def test_precision_recall_at_every_cut() -> None:
    curve = curves.precision_recall(SCORES, TRUTH)
    np.testing.assert_allclose(curve.x, [0.5, 1, 1, 1])
    np.testing.assert_allclose(curve.y, [1, 2 / 3, 1 / 2, 2 / 5])


def test_the_top_is_counted() -> None:
    guess = curves.top(SCORES, TRUTH, 3, np.random.default_rng(0))
    assert (guess.precision, guess.recall) == (2 / 3, 1.0)
    assert guess.f1 == pytest.approx(2 * (2 / 3) / (2 / 3 + 1))
    none = curves.top(SCORES, TRUTH, 0, np.random.default_rng(0))
    assert (none.precision, none.recall, none.f1) == (0.0, 0.0, 0.0)


def test_a_constant_score_gets_what_guessing_gets() -> None:
    truth = np.arange(1000) < 100  # sorted: a stable cut would find all of them
    assert curves.auc(np.zeros(1000), truth) == 0.5
    rng = np.random.default_rng(1)
    means = [curves.top(np.zeros(1000), truth, 100, rng).precision for _ in range(50)]
    assert np.mean(means) == pytest.approx(0.1, abs=0.02)


def test_true_positive_rate_at_a_small_false_positive_rate() -> None:
    assert curves.true_positive_rate(SCORES, TRUTH, 0.0) == 0.5
    assert curves.true_positive_rate(SCORES, TRUTH, 0.4) == 1.0


@pytest.mark.parametrize(
    ("scores", "truth", "words"),
    [
        ([1.0, 2.0], [True, True], "tell apart"),
        ([1.0, float("nan")], [True, False], "finite"),
        ([1.0], [True, False], "candidates"),
    ],
)
def test_what_cannot_be_judged_is_refused(scores: list, truth: list, words: str) -> None:
    with pytest.raises(AttackError, match=words):
        curves.auc(scores, truth)
