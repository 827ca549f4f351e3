"""Answers from scores, compared with a slow implementation of transformers' described post-processing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_qa_features import config, questions
from tokens_lab import trained

from bertjax.config.task import TaskConfig
from bertjax.tasks.qa_answers import PredictedAnswer, select_answers
from bertjax.tasks.qa_features import QaData, qa_data


def slow(task: TaskConfig, data: QaData, starts: np.ndarray, ends: np.ndarray, example: int) -> dict[str, Any]:
    """One question at a time, one pair of positions at a time."""
    examples, features = data.examples, data.features
    context = examples.contexts[examples.context_of[example]]
    candidates: list[tuple[float, int, int]] = []
    null = float("inf")
    for window in np.flatnonzero(features.example == example):
        here = slice(features.offsets[window], features.offsets[window + 1])
        s, e = starts[here].astype(float), ends[here].astype(float)
        null = min(null, s[features.summary_position[window]] + e[features.summary_position[window]])
        for a in np.argsort(-s)[: task.spec.n_best_size]:
            for b in np.argsort(-e)[: task.spec.n_best_size]:
                first, last = a - data.context_position[window], b - data.context_position[window]
                inside = 0 <= first <= last < data.context_length[window]
                if inside and last - first + 1 <= task.spec.max_answer_length:
                    token = data.first_token[window]
                    begin, end = data.contexts.begins[token + first], data.contexts.ends[token + last]
                    candidates.append((s[a] + e[b], int(begin), int(end)))
    if task.spec.allow_no_answer:
        candidates.append((null, 0, 0))
    chosen = sorted(candidates, reverse=True)[: task.spec.n_best_size]
    if task.spec.allow_no_answer and (null, 0, 0) not in chosen:
        chosen.append((null, 0, 0))
    texts = [context[begin:end].strip() for _, begin, end in chosen]
    if not task.spec.allow_no_answer:
        return {"text": texts[0] if texts else "", "texts": texts, "scores": [score for score, _, _ in chosen]}
    best = next((i for i, text in enumerate(texts) if text), None)
    margin = float("inf") if best is None else null - chosen[best][0]
    text = "" if best is None or margin > task.spec.null_score_diff_threshold else texts[best]
    return {"text": text, "texts": texts, "scores": [score for score, _, _ in chosen], "margin": margin}


@pytest.mark.parametrize("family", ["bert", "roberta", "xlnet"])
@pytest.mark.parametrize(
    ("no_answer", "n_best", "max_answer_len", "threshold"),
    [(False, 20, 30, 0.0), (True, 20, 30, 0.0), (True, 3, 4, 0.0), (True, 1, 5, -1.5), (False, 1, 1, 0.0)],
)
def test_as_the_slow_reading(family: str, no_answer: bool, n_best: int, max_answer_len: int, threshold: float) -> None:
    task = config(
        allow_no_answer=no_answer,
        n_best_size=n_best,
        max_answer_length=max_answer_len,
        null_score_diff_threshold=threshold,
    )
    data = qa_data(task, questions(60, seed=3), trained(family))
    rng = np.random.default_rng(7)
    starts, ends = rng.normal(size=(2, len(data.features.tokens))).astype(np.float32)
    # No answer is likely, in some windows less than in others.
    position = data.features.offsets[:-1] + data.features.summary_position
    starts[position] += rng.normal(1.5, 2, len(position)).astype(np.float32)
    result = select_answers(task, data, starts, ends)
    assert [answer.id for answer in result] == data.examples.ids
    for example, answer in enumerate(result):
        expected = slow(task, data, starts, ends, example)
        assert answer.text == expected["text"]
        assert [span.text for span in answer.spans] == expected["texts"]
        np.testing.assert_allclose([span.score for span in answer.spans], expected["scores"])
        assert (answer.null_score_diff is None) == (not no_answer)
        if no_answer:
            assert answer.null_score_diff == pytest.approx(expected["margin"])
        if answer.spans:
            assert sum(span.probability for span in answer.spans) == pytest.approx(1.0)
    if no_answer:
        assert 0 < sum(not answer.text for answer in result) < 60


def answers(starts: np.ndarray, ends: np.ndarray, data: QaData, **values: Any) -> list[PredictedAnswer]:
    return select_answers(config(**values), data, starts, ends)


def test_the_right_scores_give_the_right_answers() -> None:
    data = qa_data(config(), questions(), trained("bert"))
    starts, ends = np.zeros((2, len(data.features.tokens)), np.float32)
    offsets = data.features.offsets[:-1]
    starts[offsets + data.features.labels["start_labels"]] = 9
    ends[offsets + data.features.labels["end_labels"]] = 9
    gold = data.examples.answers
    assert gold is not None
    result = answers(starts, ends, data, null_score_diff_threshold=0.0)
    for answer, expected in zip(result, gold, strict=True):
        if expected.texts:  # windows without the answer vote for no answer; the lowest such score counts
            assert answer.spans[0].text == expected.texts[0] or answer.spans[1].text == expected.texts[0]
        else:
            assert answer.text == ""


def test_a_question_without_any_possible_answer() -> None:
    data = qa_data(config(), questions(), trained("bert"))
    starts, ends = np.zeros((2, len(data.features.tokens)), np.float32)
    first = data.features.offsets[:-1]
    starts[first], ends[first] = 5, 5
    result = answers(starts, ends, data, allow_no_answer=False, n_best_size=1)
    assert all(answer.text == "" and answer.spans == [] for answer in result)
    result = answers(starts, ends, data, n_best_size=1)
    assert all(answer.text == "" and answer.null_score_diff == np.inf and len(answer.spans) == 1 for answer in result)
