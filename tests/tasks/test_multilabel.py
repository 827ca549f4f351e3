"""Any number of labels per text: reading, loss, metrics and thresholds, compared with torch and scikit-learn."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.special import expit, logit
from sklearn import metrics
from tokens_lab import make_features, task_config, trained

from bertjax.config.task import TaskConfig
from bertjax.errors import UserError
from bertjax.tasks.metrics.multilabel import multilabel_scores, tune_threshold, tune_thresholds
from bertjax.tasks.multilabel import Multilabel
from bertjax.tasks.readers.examples import TextExamples, read_examples

METHODS = Multilabel()
NAMES = ("joy", "fear", "anger", "grief")
EMPTY_ROW, ONE_LABEL, NEVER = "an example without labels", "one label only", "a label that no example has"


@st.composite
def decisions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws gold decisions, probabilities with ties, and thresholds that some probabilities equal."""
    shape = draw(st.tuples(st.integers(1, 12), st.integers(1, 4)))
    values = st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9])
    gold = draw(arrays.arrays(bool, shape))
    return (
        gold,
        draw(arrays.arrays(float, shape, elements=values)),
        draw(arrays.arrays(float, shape[1], elements=values)),
    )


def scikit(gold: np.ndarray, probabilities: np.ndarray, thresholds: np.ndarray) -> dict[str, float]:
    predicted = (probabilities >= thresholds).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about undefined values
        precisions = [metrics.average_precision_score(*each) for each in zip(gold.T, probabilities.T, strict=True)]
        result = {"map": float(np.mean(precisions)), "exact_match": float((gold == predicted).all(1).mean())}
        if gold.shape[1] == 1:  # a column is a task of two classes for scikit-learn
            f1 = metrics.f1_score(gold[:, 0], predicted[:, 0], zero_division=0)
            right = (gold & (predicted > 0))[:, 0].mean()  # of an example: 1 or 0
            return result | {"micro_f1": f1, "macro_f1": f1, "samples_f1": right}
        for average in ("micro", "macro", "samples"):
            result[f"{average}_f1"] = metrics.f1_score(gold, predicted, average=average, zero_division=0)
        assert result["exact_match"] == pytest.approx(metrics.accuracy_score(gold, predicted))
        assert result["map"] == pytest.approx(metrics.average_precision_score(gold, probabilities, average="macro"))
        return result


@pytest.mark.long
@given(decisions())
@settings(max_examples=80)
def test_metrics_as_scikit_learn(drawn: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    gold, probabilities, thresholds = drawn
    result = multilabel_scores(gold, probabilities, thresholds, NAMES[: gold.shape[1]])
    assert result.metrics == pytest.approx(scikit(gold, probabilities, thresholds), abs=1e-9)
    predicted = probabilities >= thresholds
    for index, (name, score) in enumerate(result.per_label.items()):
        pair = gold[:, index], predicted[:, index]
        expected = [metrics.precision_score(*pair, zero_division=0), metrics.recall_score(*pair, zero_division=0)]
        assert [score.precision, score.recall] == pytest.approx(expected, abs=1e-9), name
        assert (score.support, score.threshold) == (gold[:, index].sum(), thresholds[index])


@pytest.mark.parametrize("case", [EMPTY_ROW, ONE_LABEL, NEVER])
def test_metrics_of_unusual_examples(case: str) -> None:
    gold = {EMPTY_ROW: [[0, 0], [1, 0], [1, 1]], ONE_LABEL: [[1], [0], [1]], NEVER: [[1, 0], [0, 0], [1, 0]]}[case]
    probabilities = np.array([[0.6, 0.6], [0.2, 0.1], [0.4, 0.7]])[:, : len(gold[0])]
    result = multilabel_scores(
        np.array(gold, bool), probabilities, np.array([0.5] * len(gold[0])), NAMES[: len(gold[0])]
    )
    by_hand = {
        EMPTY_ROW: {"micro_f1": 1 / 3, "samples_f1": 2 / 9, "map": 19 / 24, "exact_match": 0.0},
        ONE_LABEL: {"micro_f1": 2 / 3, "macro_f1": 2 / 3, "samples_f1": 1 / 3, "map": 1.0, "exact_match": 2 / 3},
        NEVER: {"macro_f1": 1 / 3, "map": 0.5, "exact_match": 1 / 3, "micro_f1": 2 / 5},
    }[case]
    assert {name: result.metrics[name] for name in by_hand} == pytest.approx(by_hand)


def test_a_diverged_network_has_no_precision() -> None:
    result = multilabel_scores(np.eye(2) > 0, np.full((2, 2), np.nan), np.array([0.5, 0.5]), NAMES[:2])
    assert np.isnan(result.metrics["map"]) and result.metrics["micro_f1"] == 0.0
    with pytest.raises(UserError, match="nothing to score: no gold examples"):
        multilabel_scores(np.zeros((0, 2), bool), np.zeros((0, 2)), np.array([0.5, 0.5]), NAMES[:2])


@given(
    arrays.arrays(bool, 15), arrays.arrays(float, 15, elements=st.sampled_from(np.linspace(0.01, 0.99, 12).tolist()))
)
@settings(max_examples=80)
def test_a_threshold_has_the_best_f1_of_all(gold: np.ndarray, probabilities: np.ndarray) -> None:
    chosen = tune_threshold(gold, probabilities, 0.5)
    if not gold.any():
        assert chosen == 0.5
        return
    precision, recall, _ = metrics.precision_recall_curve(gold, probabilities)
    best = (2 * precision * recall / np.maximum(precision + recall, 1e-12)).max()
    assert metrics.f1_score(gold, probabilities >= chosen) == pytest.approx(best, abs=1e-9)
    assert 0.0 < chosen < 1.0 and chosen not in probabilities


def test_one_threshold_or_one_per_label() -> None:
    gold = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]], bool)
    probabilities = np.array([[0.9, 0.1, 0.6], [0.7, 0.3, 0.6], [0.2, 0.2, 0.6], [0.1, 0.1, 0.6]])
    default = np.full(3, 0.5)
    each = tune_thresholds(gold, probabilities, default, per_label=True)
    np.testing.assert_allclose(each, [0.45, 0.15, 0.5])  # no example has the last one
    together = tune_thresholds(gold, probabilities, default, per_label=False)
    assert len({*together.tolist()}) == 1 and 0.6 < together[0] < 0.7
    np.testing.assert_array_equal(tune_thresholds(gold, probabilities * np.nan, default, True), default)


def config_of(path: Path, source: str, **values: Any) -> TaskConfig:
    return task_config(**{"kind": "multilabel", "train": (f"{source}:{path}",)} | values)


def read(path: Path, source: str, content: str = "", **values: Any) -> tuple[TextExamples, tuple[str, ...]]:
    if content:
        path.write_text(content)
    config = config_of(path, source, **values)
    examples = read_examples(config)
    assert isinstance(examples, TextExamples)
    return examples, config.spec.collect_labels(config, examples)


def test_lists_separators_columns_and_ids_say_the_same(tmp_path: Path) -> None:
    gold = [("joy", "fear"), (), ("anger",)]
    rows_of_flags = [
        [f"t{index}", *(str(int(name in names)) for name in NAMES[:3])] for index, names in enumerate(gold)
    ]
    flags = "".join(",".join(row) + "\n" for row in rows_of_flags)
    features = {"text": datasets.Value("string"), "label": datasets.List(datasets.ClassLabel(names=[*NAMES]))}
    ids = [[NAMES.index(name) for name in names] for names in gold]
    table = datasets.Dataset.from_dict({"text": ["t0", "t1", "t2"], "label": ids}, datasets.Features(features))
    table.to_parquet(str(tmp_path / "a.parquet"))
    plain = {"header": False, "text_column": "0"}

    def lines(labels: list[Any]) -> str:
        return "".join(json.dumps({"text": "t", "label": each}) + "\n" for each in labels)

    forms: list[tuple[str, str, dict[str, Any]]] = [
        ("jsonl", lines(gold), {}),
        ("jsonl", lines([",".join(map(str, each)) for each in ids]), {"labels": NAMES}),
        ("jsonl", lines([{name: name in names for name in NAMES} for names in gold]), {}),
        ("tsv", "text\tlabel\nt0\tjoy; fear;joy\nt1\t\nt2\tanger\n", {"separator": ";"}),
        ("tsv", "t0\t0 1\nt1\t \nt2\t2\n", {"separator": " ", "labels": NAMES, "label_column": "1", **plain}),
        ("csv", "text,joy,fear,anger\n" + flags, {"label_columns": NAMES[:3]}),
        ("csv", flags, {"label_columns": ("1", "2", "3"), "labels": NAMES[:3], **plain}),
    ]
    for number, (source, content, values) in enumerate(forms):
        examples, labels = read(tmp_path / str(number), source, content, **values)
        assert [set(each) for each in examples.labels or ()] == [set(each) for each in gold], (source, values)
        assert set(labels) >= {"joy", "fear", "anger"}
    examples, _ = read(tmp_path / "a.parquet", "parquet")
    assert examples.labels == gold
    assert read(tmp_path / "0", "jsonl")[1] == ("anger", "fear", "joy")  # sorted
    assert read(tmp_path / "5", "csv", label_columns=NAMES[:3])[1] == NAMES[:3]  # in the order of the columns


@pytest.mark.parametrize(
    ("source", "content", "values", "message"),
    [
        ("jsonl", '{"text": "a", "label": null}', {}, r"a:1: no labels in the column .* write \[\] or "),
        ("jsonl", '{"text": "a", "label": ["x", null]}', {}, "a:1: no label in the column"),
        ("jsonl", '{"text": "a", "label": {"x": 2}}', {}, "a:1: 'x' holds 2, where 0 or 1 says"),
        ("csv", "text,x,y\na,1,maybe\n", {"label_columns": ("x", "y")}, "a:2: 'y' holds 'maybe', where 0 or 1 says"),
        ("csv", "text,x\na,1\n", {"label_columns": ("x", "z")}, r"a:1: no column 'z' .*task.multilabel.label_columns"),
        ("jsonl", '{"text": "a", "label": []}', {}, "no example has a label"),
        ("jsonl", '{"text": "a", "label": ["x"]}', {"thresholds": (0.1, 0.2)}, "has 2 numbers for 1 labels"),
        ("csv", "", {"label_columns": ("x", "x")}, "names a column twice"),
        ("csv", "", {"label_columns": ("x",), "label_column": "y"}, "names the labels: set task.label_column"),
        ("csv", "", {"label_columns": ("x",), "labels": ("y", "z")}, "names 2 labels, task.multilabel.label_columns 1"),
        ("csv", "", {"thresholds": (1.0,)}, r"task.multilabel.thresholds must lie in \(0, 1\)"),
        ("csv", "", {"thresholds": ()}, "thresholds is empty"),
        ("csv", "", {"separator": ""}, "separator is empty"),
    ],
)  # fmt: skip
def test_wrong_labels_are_named(
    tmp_path: Path, source: str, content: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a", source, content, **values)


def test_features_hold_a_number_per_label(tmp_path: Path) -> None:
    content = 'text,pair,label\none,two,"b,a"\nthree,four,\n'
    columns = {"pair_column": "pair", "swap_pairs": True}
    examples, labels = read(tmp_path / "a", "csv", content, **columns)
    config = config_of(tmp_path / "a", "csv", **columns)
    data = make_features(config, examples, trained("bert"), labels, training=True)
    np.testing.assert_array_equal(data.features.labels["multi_labels"], [[1, 1], [0, 0], [1, 1], [0, 0]])
    assert data.notes == ("1 of 2 examples have no label",)
    with pytest.raises(UserError, match="a:2: unknown label 'b'; known are a "):
        make_features(config, examples, trained("bert"), ("a",))


@pytest.mark.parametrize(
    ("source", "content", "message"),
    [
        ("tsv", "text\tlabel\na\t0\nb\t0,1,17\nc\t3\n", "'0,1,17' looks like several labels"),
        ("tsv", "text\tlabel\na\tjoy\nb\tjoy; fear\nc\tfear\n", "'joy; fear' looks like several labels"),
        ("jsonl", '{"text": "a", "label": ["joy"]}\n', "a:1: a list of labels needs task.kind=multilabel"),
    ],
)
def test_classification_names_this_kind(tmp_path: Path, source: str, content: str, message: str) -> None:
    (tmp_path / "a").write_text(content)
    config = task_config(kind="classification", train=(f"{source}:{tmp_path / 'a'}",))
    with pytest.raises(UserError, match=message) as caught:
        config.spec.collect_labels(config, read_examples(config))
    assert "task.kind=multilabel" in str(caught.value) and "\n" not in str(caught.value)


def test_classification_with_names_that_hold_a_comma(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text\tlabel\na\tParis, France\nb\tRome, Italy\nc\tItaly\n")
    config = task_config(kind="classification", train=(f"tsv:{tmp_path / 'a'}",))
    assert config.spec.collect_labels(config, read_examples(config)) == ("Italy", "Paris, France", "Rome, Italy")
    (tmp_path / "a").write_text("text\tlabel\na\t0\nb\t0,1\n")
    config = task_config(kind="classification", train=config.train, labels=("x", "y"))
    with pytest.raises(
        UserError, match=r"a:3: unknown label '0,1'.*several labels per example set task.kind=multilabel"
    ):
        make_features(config, read_examples(config), trained("bert"), ("x", "y"))


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.5, 3.0, 0.0]])
def test_the_loss_is_that_of_torch(weights: list[float]) -> None:
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(0)
    scores, labels = draw.normal(0, 4, (3, 2, 3)).astype(np.float32), draw.integers(0, 2, (3, 2, 3)).astype(np.float32)
    mask = np.array([[1, 1], [1, 0], [1, 1]], np.float32)
    loss = METHODS.loss(scores, {"multi_labels": labels, "example_weights": mask}, np.array(weights, np.float32))[
        "loss"
    ]
    theirs = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(weights))
    expected = theirs(torch.tensor(scores[mask > 0]), torch.tensor(labels[mask > 0])).item()
    assert float(loss.value / loss.count) == pytest.approx(expected, rel=1e-5) and loss.count == 5


def test_class_weights_are_negatives_per_positive() -> None:
    counts = METHODS.class_counts(np.array([[1, 0], [1, 0], [1, 1], [0, 0]], np.float32), 2)
    np.testing.assert_allclose(METHODS.class_weights("balanced", counts, 4), [1 / 3, 3.0])
    np.testing.assert_allclose(METHODS.class_weights("sqrt", counts, 4), [3**-0.5, 3**0.5])


def test_records_have_the_labels_that_reach_their_threshold(tmp_path: Path) -> None:
    config = config_of(tmp_path / "a", "csv", thresholds=(0.5, 0.2, 0.9))
    scores = logit(np.array([[0.5, 0.1, 0.95], [0.4, 0.15, 0.8]]))
    first, second = config.spec.records(config, None, None, scores, NAMES[:3], 2)
    assert first["labels"] == ["joy", "anger"] and second["labels"] == []
    assert first["probabilities"] == {"anger": 0.95, "joy": 0.5} and second["probabilities"]["joy"] == 0.4
    np.testing.assert_allclose(expit(scores[0, 0]), 0.5)
