"""Temperature and reliability, compared with scikit-learn, scipy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, logit, softmax
from sklearn.calibration import CalibratedClassifierCV, calibration_curve
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from tokens_lab import make_features, trained
from torch.nn.functional import binary_cross_entropy_with_logits

from bertjax.config.task import TaskConfig
from bertjax.tasks.calibration import NUM_BINS, fit_temperature, reliability
from bertjax.tasks.evaluate import EvalResult
from bertjax.tasks.features import TextData
from bertjax.tasks.multilabel import Multilabel
from bertjax.tasks.multiple_choice import ChoiceData, MultipleChoice
from bertjax.tasks.readers.examples import ChoiceExamples, TextExamples

LABELS = ("joy", "fear", "anger", "grief")
GRID = np.linspace(0.05, 0.95, 91)


def outputs(seed: int, factor: float, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores that are `factor` times too large, and classes drawn from what they should say."""
    draw = np.random.default_rng(seed)
    scores = draw.normal(size=(4000, classes)) * 1.5
    right = (softmax(scores, axis=1).cumsum(axis=1) > draw.random((4000, 1))).argmax(axis=1)
    return (scores * factor).astype(np.float32), right


@pytest.mark.parametrize("factor", [0.25, 1.0, 4.0])
def test_the_temperature_is_found(factor: float) -> None:
    scores, right = outputs(0, factor)
    assert fit_temperature(scores, right) == pytest.approx(factor, rel=0.06)


def test_the_temperature_is_that_of_scikit_learn() -> None:
    draw = np.random.default_rng(1)
    inputs = draw.normal(size=(600, 4))
    right = (inputs @ draw.normal(size=(4, 3)) + draw.gumbel(size=(600, 3)) * 2).argmax(axis=1)
    model = LogisticRegression(C=100.0).fit(inputs[:60], right[:60])
    held_out = inputs[60:], right[60:]
    calibrated = CalibratedClassifierCV(FrozenEstimator(model), method="temperature", cv=2).fit(*held_out)
    scores = model.decision_function(inputs[60:])
    ours = softmax(scores / fit_temperature(scores, right[60:]), axis=1)
    np.testing.assert_allclose(ours, calibrated.predict_proba(held_out[0]), atol=2e-4)


def test_no_temperature_is_better() -> None:
    scores, right = outputs(2, 3.0)
    best = fit_temperature(scores, right)

    def loss(temperature: float) -> float:
        return -float(log_softmax(scores / temperature, axis=1)[np.arange(len(right)), right].mean())

    assert all(loss(best) <= loss(best * factor) for factor in (0.9, 0.99, 1.01, 1.1))


def test_scores_that_say_nothing_about_a_temperature() -> None:
    never_wrong = np.eye(3, dtype=np.float32)
    assert fit_temperature(never_wrong, np.arange(3)) == 1.0  # the lower, the better
    assert fit_temperature(never_wrong, (np.arange(3) + 1) % 3) == 1.0  # the higher
    assert fit_temperature(never_wrong * np.nan, np.arange(3)) == 1.0
    assert fit_temperature(np.zeros((0, 3), np.float32), np.zeros(0, np.int64)) == 1.0


@given(st.lists(st.tuples(st.floats(0.01, 0.99), st.booleans()), min_size=1, max_size=50))
def test_bins_are_those_of_scikit_learn(examples: list[tuple[float, bool]]) -> None:
    confidences, correct = np.array([each[0] for each in examples]), np.array([each[1] for each in examples])
    accuracy, confidence = calibration_curve(correct, confidences, n_bins=NUM_BINS)
    result = reliability(confidences, correct)
    np.testing.assert_allclose([each[:2] for each in result.bins], np.stack([confidence, accuracy], 1), atol=1e-12)
    assert sum(each[2] for each in result.bins) == len(examples) and 0.0 <= result.error <= 1.0


def test_the_error_by_hand() -> None:
    confidences, correct = np.array([0.5, 0.5, 0.9, 1.0, 1.0]), np.array([True, False, False, True, True])
    result = reliability(confidences, correct)
    assert result.error == pytest.approx((2 * 0.0 + 0.9 + 2 * 0.0) / 5)
    assert np.isnan(reliability(np.array([np.nan]), np.array([False])).error)


# -- kinds of tasks ----------------------------------------------------------------------------------------------------


def multilabel_data(count: int = 400, factor: float = 3.0) -> tuple[TextData, np.ndarray]:
    """Returns features of examples with labels drawn from sigmoids, and scores that are `factor` times too large."""
    draw = np.random.default_rng(5)
    scores = draw.normal(-1.0, 1.5, size=(count, 4))
    gold = draw.random(scores.shape) < expit(scores)
    labels = [tuple(np.array(LABELS)[row].tolist()) for row in gold]
    numbers = list(map(str, range(count)))
    examples = TextExamples(["a cat"] * count, None, labels, None, numbers, numbers)
    data = make_features(TaskConfig("multilabel", ("tsv:x",)), examples, trained("bert"), LABELS)
    return data, (scores * factor).astype(np.float32)


def choice_data(count: int = 1000, factor: float = 3.0) -> tuple[ChoiceData, np.ndarray, list[int]]:
    """Returns features of examples with two to four choices, scores of their windows, and the right choices."""
    draw = np.random.default_rng(6)
    sizes = draw.integers(2, 5, count).tolist()
    scores = draw.normal(size=(count, 4)) * 1.5
    right = [int(draw.choice(size, p=softmax(row[:size]))) for row, size in zip(scores, sizes, strict=True)]
    numbers = list(map(str, range(count)))
    choices = [["a dog"] * size for size in sizes]
    examples = ChoiceExamples(["a cat"] * count, None, choices, right, numbers, numbers)
    data = make_features(TaskConfig("multiple_choice", ("jsonl:x",)), examples, trained("bert"))
    return data, (scores.reshape(-1, 1) * factor).astype(np.float32), right


def test_the_temperature_of_labels_is_that_of_the_lowest_loss_in_torch() -> None:
    data, scores = multilabel_data()
    kind = Multilabel(calibrate=True).tune(TaskConfig("multilabel", ("tsv:x",)), data, scores, LABELS)
    gold = torch.tensor(data.features.labels["multi_labels"])
    grid = np.exp(np.linspace(-3, 3, 6001))
    losses = [binary_cross_entropy_with_logits(torch.tensor(scores) / each, gold).item() for each in grid]
    assert kind.temperature == pytest.approx(grid[int(np.argmin(losses))], rel=2e-3)
    assert kind.temperature == pytest.approx(3.0, rel=0.1) and kind.thresholds == (0.5,)


def test_the_temperature_of_choices_is_that_of_the_lowest_loss() -> None:
    data, scores, right = choice_data()
    kind = MultipleChoice(calibrate=True).tune(TaskConfig("multiple_choice", ("jsonl:x",)), data, scores, ())
    rows = [row[:size] for row, size in zip(scores.reshape(-1, 4), data.counts, strict=True)]

    def loss(temperature: float) -> float:
        return -sum(log_softmax(row / temperature)[answer] for row, answer in zip(rows, right, strict=True))

    expected = minimize(lambda each: loss(np.exp(each[0])), [0.0], method="Nelder-Mead", options={"xatol": 1e-5}).x
    assert kind.temperature == pytest.approx(np.exp(expected[0]), rel=1e-3)
    assert kind.temperature == pytest.approx(3.0, rel=0.15)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_labels_are_as_reliable_as_in_scikit_learn(temperature: float) -> None:
    data, scores = multilabel_data()
    result = Multilabel(temperature=temperature).compute_metrics(
        TaskConfig("multilabel", ("tsv:x",)), None, data, scores, LABELS
    )
    gold = data.features.labels["multi_labels"].reshape(-1) > 0
    check_reliability(result, expit(scores.astype(np.float64) / temperature).reshape(-1), gold)
    assert (result.metrics["calibration_error"] < 0.05) == (temperature == 3.0)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_choices_are_as_reliable_as_in_scikit_learn(temperature: float) -> None:
    data, scores, right = choice_data()
    config = TaskConfig("multiple_choice", ("jsonl:x",))
    result = MultipleChoice(temperature=temperature).compute_metrics(config, None, data, scores, ())
    rows = [row[:size] for row, size in zip(scores.reshape(-1, 4), data.counts, strict=True)]
    confidences = [softmax(row.astype(np.float64) / temperature).max() for row in rows]
    check_reliability(result, np.array(confidences), np.array([row.argmax() for row in rows]) == right)
    assert (result.metrics["calibration_error"] < 0.05) == (temperature == 3.0)


def check_reliability(result: EvalResult, confidences: np.ndarray, right: np.ndarray) -> None:
    accuracy, confidence = calibration_curve(right, confidences, n_bins=NUM_BINS)
    np.testing.assert_allclose([each[:2] for each in result.reliability], np.stack([confidence, accuracy], 1))
    counts = np.histogram(confidences, np.linspace(0, 1, NUM_BINS + 1))[0]
    expected = (counts[counts > 0] * np.abs(accuracy - confidence)).sum() / len(right)
    assert result.metrics["calibration_error"] == pytest.approx(expected)
    assert sum(each[2] for each in result.reliability) == len(right)


def test_thresholds_are_tuned_on_calibrated_probabilities() -> None:
    data, scores = multilabel_data()
    config, gold = TaskConfig("multilabel", ("tsv:x",)), data.features.labels["multi_labels"] > 0
    both = Multilabel(calibrate=True, tune_thresholds="one")
    assert both.tuning_fraction == Multilabel(calibrate=True).tuning_fraction == 0.1
    assert Multilabel().tuning_fraction == MultipleChoice().tuning_fraction == 0.0
    tuned = both.tune(config, data, scores, LABELS)
    alone = Multilabel(tune_thresholds="one").tune(config, data, scores, LABELS)
    assert tuned.temperature != 1.0 and alone.temperature == 1.0
    assert logit(tuned.thresholds[0]) * tuned.temperature == pytest.approx(logit(alone.thresholds[0]), abs=1e-3)
    (record,) = tuned.records(config, None, data, scores[:1], LABELS, None)
    expected = expit(scores[0].astype(np.float64) / tuned.temperature)
    assert list(record["probabilities"].values()) == pytest.approx(expected, abs=1e-6)
    best = max(f1_score(gold, expit(scores / tuned.temperature) >= each, average="micro") for each in GRID)
    ours = tuned.compute_metrics(config, None, data, scores, LABELS).metrics["micro_f1"]
    assert ours >= best


def test_the_records_of_choices_are_calibrated() -> None:
    data, scores, _ = choice_data(20)
    examples = ChoiceExamples([], None, [["a dog"] * size for size in data.counts], None, [], [])
    kind = MultipleChoice(temperature=2.5)
    records = kind.records(TaskConfig("multiple_choice", ("jsonl:x",)), examples, data, scores, (), None)
    for record, row, size in zip(records, scores.reshape(-1, 4), data.counts, strict=True):
        assert record["probabilities"] == pytest.approx(softmax(row[:size] / 2.5), abs=1e-6)
