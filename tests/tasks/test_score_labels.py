"""Scorers of labels, numbers, vectors and minimal pairs, compared with scikit-learn, scipy and manual arithmetic."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from bertjax.commands.eval_minimal_pairs import PairScore, minimal_pair_scores
from bertjax.commands.eval_sts import similarity_scores
from bertjax.errors import UserError
from bertjax.tasks.metrics.classification import ClassScore, classification_scores
from bertjax.tasks.metrics.regression import RegressionScores, regression_scores

NAMES = ("negative", "neutral", "positive", "mixed")
EQUAL = {"rtol": 0, "atol": 1e-9}


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@st.composite
def decisions(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Draws gold labels, predictions, number of classes; often few values, so that ties and missing classes occur."""
    classes = draw(st.integers(2, 4))
    used = draw(st.integers(1, classes))
    pairs = draw(st.lists(st.tuples(st.integers(0, used - 1), st.integers(0, classes - 1)), min_size=1, max_size=30))
    gold, predicted = (list(each) for each in zip(*pairs, strict=True))
    return gold, predicted, classes


@pytest.mark.long
@given(decisions(), st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_labels_as_scikit_learn(drawn: tuple[list[int], list[int], int], seed: int) -> None:
    gold, predicted, classes = drawn
    probabilities = np.random.default_rng(seed).dirichlet(np.full(classes, 0.3), len(gold))
    result = classification_scores(gold, predicted, NAMES[:classes], probabilities)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's warnings about undefined values
        options = {"y_true": gold, "y_pred": predicted, "zero_division": 0}
        expected = {
            "accuracy": metrics.accuracy_score(gold, predicted),
            "macro_f1": metrics.f1_score(average="macro", **options),
            "matthews": metrics.matthews_corrcoef(gold, predicted),
            "log_loss": metrics.log_loss(gold, probabilities, labels=list(range(classes))),
        }
        if classes == 2:
            expected["f1"] = metrics.f1_score(pos_label=1, average="binary", **options)
        each = metrics.precision_recall_fscore_support(labels=list(range(classes)), **options)
    assert result.metrics().keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(result.metrics()[name], value, err_msg=name, **EQUAL)
    np.testing.assert_allclose(list(result.per_class.values()), np.transpose(each), **EQUAL)
    np.testing.assert_array_equal(result.confusion, metrics.confusion_matrix(gold, predicted, labels=range(classes)))


def test_labels_by_hand() -> None:
    """3 of class 1: two true positives, one false negative; one false positive among 3 of class 0."""
    result = classification_scores(
        ["no", "no", "no", "yes", "yes", "yes"], ["no", "no", "yes", "yes", "yes", "no"], ("no", "yes")
    )
    assert result.confusion.tolist() == [[2, 1], [1, 2]]
    assert result.per_class["yes"] == ClassScore(2 / 3, 2 / 3, 2 / 3, 3) and result.f1 == 2 / 3
    assert result.matthews == pytest.approx((2 * 2 - 1 * 1) / 9, abs=1e-12) and result.log_loss is None
    assert set(result.metrics()) == {"accuracy", "f1", "macro_f1", "matthews"}


def test_constant_predictions_are_zero_not_undefined() -> None:
    result = classification_scores([0, 1, 1, 0], [1, 1, 1, 1], ("a", "b"))
    assert result.matthews == 0.0 and result.per_class["a"] == ClassScore(0.0, 0.0, 0.0, 2)
    assert classification_scores([1, 1], [0, 0], ("a", "b")).f1 == 0.0
    alone = classification_scores([1], [1], ("a", "b"))
    assert (alone.accuracy, alone.f1, alone.matthews, alone.macro_f1) == (1.0, 1.0, 0.0, 1.0)


def test_a_class_that_never_occurs_leaves_the_macro_mean_alone() -> None:
    assert classification_scores([0, 1], [0, 1], ("a", "b", "never")).macro_f1 == 1.0
    assert classification_scores([0, 1], [0, 2], ("a", "b", "c")).macro_f1 == pytest.approx(1 / 3, abs=1e-12)


def test_log_loss_of_a_sure_error_is_finite_and_of_a_diverged_network_is_nan() -> None:
    assert classification_scores([0], [1], "ab", np.array([[0.0, 1.0]])).log_loss == pytest.approx(36.04, abs=0.01)
    assert math.isnan(classification_scores([0], [1], "ab", np.full((1, 2), np.nan)).log_loss)
    coarse = np.array([[0.3, 0.703]], np.float32)  # rounded as bfloat16
    assert classification_scores([0], [1], "ab", coarse).log_loss == pytest.approx(-math.log(0.3 / 1.003), abs=1e-6)


@pytest.mark.parametrize(
    ("gold", "predicted", "probabilities", "message"),
    [
        ([], [], None, "nothing to score"),
        ([], [1], None, "nothing to score: no gold labels for 1 predictions"),
        ([0, 1], [0], None, "2 gold labels, but 1 predictions"),
        ([0, 5], [0, 0], None, "gold label 2 is 5, but labels are numbered 0 to 1"),
        ([0, 0], [0, -1], None, "prediction 2 is -1"),
        (["a", "b"], ["a", "x"], None, "prediction 2 is 'x', which is none of the labels a, b"),
        ([0.0, 1.0], [0, 1], None, "gold label 1 is 0.0"),
        ([[0], [1]], [0, 1], None, "list of labels"),
        ([0, 1], [0, 1], np.ones((2, 3)) / 3, r"shape \[2, 2\]"),
        ([0, 1], [0, 1], np.array([[0.5, 0.5], [2.0, -1.5]]), "example 2 add up to 0.5"),
    ],
)
def test_labels_refused(gold: list, predicted: list, probabilities: np.ndarray | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        classification_scores(gold, predicted, ("a", "b"), probabilities)


NUMBERS = st.floats(-100, 100, allow_nan=False, width=32)


@given(st.lists(st.tuples(NUMBERS, st.one_of(NUMBERS, st.sampled_from([0.0, 1.0, 2.5]))), min_size=2, max_size=25))
@settings(max_examples=60)
def test_numbers_as_scipy(pairs: list[tuple[float, float]]) -> None:
    gold, predicted = np.array(pairs, np.float32).T
    result = regression_scores(gold, predicted)
    right, guess = gold.astype(np.float64), predicted.astype(np.float64)
    np.testing.assert_allclose(result.mse, metrics.mean_squared_error(right, guess), rtol=1e-12)
    if np.ptp(right) == 0 or np.ptp(guess) == 0:
        assert math.isnan(result.pearson) and math.isnan(result.spearman)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_allclose(result.pearson, stats.pearsonr(right, guess)[0], **EQUAL)
        np.testing.assert_allclose(result.spearman, stats.spearmanr(right, guess)[0], **EQUAL)
    np.testing.assert_allclose(result.spearman, np.corrcoef(_ranks(right), _ranks(guess))[0, 1], **EQUAL)


def _ranks(column: np.ndarray) -> np.ndarray:
    """Returns ranks; ties share the mean of their ranks."""
    return np.array([(column < value).sum() + ((column == value).sum() + 1) / 2 for value in column])


def test_numbers_where_nothing_is_defined() -> None:
    constant = regression_scores([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    assert math.isnan(constant.pearson) and math.isnan(constant.spearman) and constant.mse == pytest.approx(2 / 3)
    alone = regression_scores([1.0], [1.5])
    assert math.isnan(alone.pearson) and alone.mse == 0.25
    assert all(math.isnan(value) for value in regression_scores([1.0, 2.0], [1.0, math.inf]))
    nearly = regression_scores([1.0, 2.0, 3.0], [1e9, 1e9, 1e9 + 1e-6])  # scipy would warn
    assert isinstance(nearly, RegressionScores)
    column = regression_scores(np.arange(4.0), np.arange(4.0)[:, None] * 2)  # a head with one label
    assert column.pearson == pytest.approx(1.0) and set(column._asdict()) == {"pearson", "spearman", "mse"}


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [([], [], "nothing"), ([1.0], [1.0, 2.0], "1 gold scores, but 2"), ([1.0, math.nan], [1.0, 2.0], "gold score 2")],
)
def test_numbers_refused(gold: list[float], predicted: list[float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        regression_scores(gold, predicted)


def test_similarity_is_of_cosines() -> None:
    draw = np.random.default_rng(0)
    one, other, gold = draw.normal(size=(40, 6)), draw.normal(size=(40, 6)), draw.integers(0, 6, 40)  # ties in gold
    result = similarity_scores(one, other, gold)
    expected = [u @ v / np.sqrt(u @ u * (v @ v)) for u, v in zip(one, other, strict=True)]
    np.testing.assert_allclose(
        result[:2], (stats.pearsonr(expected, gold)[0], stats.spearmanr(expected, gold)[0]), **EQUAL
    )
    np.testing.assert_allclose(similarity_scores(one * 7, other, gold), result, **EQUAL)
    one[0] = 0.0
    assert math.isfinite(similarity_scores(one, other, gold).pearson)
    with pytest.raises(UserError, match="pairs"):
        similarity_scores(one, other[:, :3], gold)
    with pytest.raises(UserError, match="40 gold similarities, but 39"):
        similarity_scores(one[1:], other[1:], gold)


def test_minimal_pairs_need_a_preference() -> None:
    good, bad = [-1.0, -2.0, -3.0, -4.0, -math.inf], [-2.0, -2.0, -1.0, -5.0, -math.inf]
    result = minimal_pair_scores(good, bad, ["b", "a", "b", "b", "a"])
    assert result.overall == PairScore(2 / 5, 5, 2)
    assert list(result.groups.items()) == [("b", PairScore(2 / 3, 3, 0)), ("a", PairScore(0.0, 2, 2))]
    assert result.macro_accuracy == pytest.approx(1 / 3) and result.overall.accuracy == 2 / 5
    assert minimal_pair_scores(good, bad).groups == {}


@pytest.mark.parametrize(
    ("good", "bad", "groups", "message"),
    [
        ([], [], None, "nothing"),
        ([1.0], [], None, "1 gold sentences, but 0"),
        ([1.0, math.nan], [0.0, 0.0], None, "pair 2 is nan"),
        ([1.0], [0.0], ["a", "b"], "1 gold pairs, but 2"),
    ],
)
def test_minimal_pairs_refused(good: list, bad: list, groups: list | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        minimal_pair_scores(good, bad, groups)


def test_without_scikit_learn_the_message_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError, match=r"pip install scikit-learn"):
        classification_scores([0], [0], ("a", "b"))
