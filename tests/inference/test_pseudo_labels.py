"""Labels from a larger model: which are kept or dropped, and how they agree with a gold sample."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from bertjax.config.task import TaskConfig
from bertjax.errors import UserError
from bertjax.inference.pseudo_labels import (
    NO_TEXT,
    Candidate,
    compute_agreement,
    describe_trust,
    label_spellings,
    parse_label,
    read_label_summaries,
    select_candidates,
    sort_candidates,
    summarize,
    summary_path,
    wilson_interval,
)

LABELS = ("negative", "positive", "not sure")


def answer(text: str, label: str, confidence: float | None = 0.9) -> Candidate:
    return Candidate((text, None), label, confidence)


@pytest.mark.parametrize(
    ("written", "label"),
    [
        ("positive", "positive"),
        ('  "Positive."', "positive"),
        ("Label: **NEGATIVE**", "negative"),
        ("The answer is not sure", "not sure"),
        ("`positive`!", "positive"),
        ("It is positive", None),
        ("positive or negative", None),
        ("not positive", None),
        ("I cannot judge this text.", None),
        ("", None),
        (None, None),
        (["positive"], None),
        (1, None),
    ],
)
def test_an_answer_is_a_label_or_none(written: object, label: str | None) -> None:
    assert parse_label(written, label_spellings(LABELS)) == label


def test_numbers_and_truth_values_are_labels() -> None:
    assert (
        parse_label(1, label_spellings(("0", "1"))) == "1"
        and parse_label(True, label_spellings(("true", "false"))) == "true"
    )
    with pytest.raises(UserError, match="two labels differ in capitals alone"):
        label_spellings(("A", "a"))


def test_answers_are_sorted() -> None:
    written = [
        answer("a", "Positive", 0.9),
        answer("a", "positive", 0.6),
        answer("b", "positive"),
        answer("b", "negative"),
        answer("b", "positive"),
        answer("c", "hm, hard to say"),
        answer("d", "Hm"),
        answer("e", "Hm"),
        answer(" ", "positive"),
        answer("gold", "negative"),
        Candidate(NO_TEXT, "negative", 0.9),
        Candidate(("a", "other"), "negative", 0.8),
    ]
    result = sort_candidates(written, LABELS, {("gold", None): "positive"})
    assert result.candidates == [answer("a", "positive", 0.6), Candidate(("a", "other"), "negative", 0.8)]
    dropped = {"duplicates": 1, "conflicting": 3, "no_label": 3, "empty": 1, "no_text": 1, "gold": 1}
    assert result.dropped() == dropped and len(written) == len(result.candidates) + sum(dropped.values())
    assert result.unknown_labels == [("Hm", 2), ("hm, hard to say", 1)]


def test_what_is_kept() -> None:
    answers = [answer(str(i), "negative" if i % 3 else "positive", (i * 7 % 10) / 10) for i in range(20)]
    sure = select_candidates(answers, 0.5)
    assert sure == [each for each in answers if each.confidence is not None and each.confidence >= 0.5]
    capped = select_candidates(answers, 0.5, max_per_class=2)
    assert Counter(each.label for each in capped) == {"negative": 2, "positive": 2}
    assert capped == [each for each in answers if each in capped], "the order of the input"
    for label in ("negative", "positive"):
        confidences = [each.confidence or 0 for each in capped if each.label == label]
        left = [each.confidence or 0 for each in sure if each.label == label and each not in capped]
        assert min(confidences) >= max(left, default=0.0)
    assert len(sure) > len(capped)
    counts = Counter(each.label for each in sure)
    assert Counter(each.label for each in select_candidates(answers, 0.5, balance=True)) == dict.fromkeys(
        counts, min(counts.values())
    )
    assert select_candidates(answers, None) == answers
    with pytest.raises(UserError, match="--min-confidence: 1 answers have no confidence"):
        select_candidates([answer("a", "positive", None)], 0.5)


@pytest.mark.long
@given(
    st.lists(
        st.tuples(st.sampled_from(LABELS), st.sampled_from(LABELS), st.sampled_from((0.3, 0.7, 0.9))),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from((None, 0.7)),
)
def test_agreement_as_scikit_learn(drawn: list[tuple[str, str, float]], threshold: float | None) -> None:
    answers = [answer(str(index), written, confidence) for index, (written, _, confidence) in enumerate(drawn)]
    gold = {(str(index), None): right for index, (_, right, _) in enumerate(drawn)} | {("more", None): "negative"}
    result = compute_agreement(answers, gold, LABELS, threshold)
    at = [(written, right) for written, right, confidence in drawn if threshold is None or confidence >= threshold]
    assert (result.total, result.unanswered, result.at.examples) == (len(drawn) + 1, 1, len(at))
    for level in result.thresholds:
        there = [written == right for written, right, confidence in drawn if confidence >= level.confidence]
        assert (level.examples, level.correct) == (len(there), sum(there))
    if not at:
        return
    written, right = zip(*at, strict=True)
    assert result.at.agreement == pytest.approx(metrics.accuracy_score(right, written))
    kappa = metrics.cohen_kappa_score(right, written) if len({*written, *right}) > 1 else None
    assert result.kappa == (pytest.approx(kappa) if kappa is not None else None)
    for label, row in result.rows.items():
        assert (row["predicted"], row["gold"]) == (written.count(label), right.count(label))
        precision = metrics.precision_score(right, written, labels=[label], average="micro", zero_division=0)
        assert row["correct"] / max(row["predicted"], 1) == pytest.approx(precision)


@pytest.mark.parametrize(("right", "count"), [(0, 5), (5, 5), (37, 40), (1, 2)])
def test_the_interval_is_wilsons(right: int, count: int) -> None:
    expected = stats.binomtest(right, count).proportion_ci(method="wilson")
    assert wilson_interval(right, count) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_no_gold_example_is_no_agreement() -> None:
    gold = {("a", None): "negative"}
    with pytest.raises(UserError, match="no text of the gold sample has an answer"):
        compute_agreement([answer("b", "positive")], gold, LABELS, None)
    with pytest.raises(UserError, match="--gold: unknown label 'good'; known are negative"):
        compute_agreement([answer("a", "positive")], {("a", None): "good"}, LABELS, None)
    result = compute_agreement([answer("a", "positive", 0.5)], gold, LABELS, 0.9)
    assert result.at.agreement is None and result.kappa is None
    assert "nothing is known" in describe_trust(result) and "accuracy of these labels is unknown" in describe_trust(
        None
    )


def test_what_is_written_is_found_again(tmp_path: Path) -> None:
    """Next to a training file, under its name; a file of that name about other labels is ignored."""
    answers = sort_candidates([answer(str(i), "positive" if i % 4 else "negative") for i in range(8)], LABELS)
    result = compute_agreement(answers.candidates, {("0", None): "negative", ("1", None): "negative"}, LABELS, 0.5)
    facts = summarize("silver.jsonl", "teacher", LABELS, answers, answers.candidates[:6], 0.5, result)
    assert (facts["kept"], facts["of"], facts["agreement"]) == (6, 8, 0.5)
    rows = {row["label"]: (row["kept"], row["of"], row["agreement"]) for row in facts["rows"]}
    assert rows == {"negative": (2, 2, 1.0), "positive": (4, 6, 0.0), "not sure": (0, 0, None)}
    for name in ("silver.jsonl", "own.tsv"):
        (tmp_path / name).write_text("")
        summary_path(tmp_path / name).write_text(json.dumps(facts))
    assert summary_path(tmp_path / "a.b.jsonl.gz").name == "a.b.labels.json"
    config = TaskConfig("classification", (f"jsonl:{tmp_path}/silver.jsonl", f"tsv:{tmp_path}/own.tsv"))
    (shown,) = read_label_summaries(config)
    assert set(shown) == {"kept", "of", "threshold", "agreement", "rows"} and shown["kept"] == 6
    summary_path(tmp_path / "silver.jsonl").write_text("{")
    assert read_label_summaries(config) == []
