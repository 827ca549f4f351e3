"""Answers from the scores of starts and ends: the best spans of every question, over all of its windows."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from bertjax.config.task import TaskConfig
from bertjax.data.counter_rng import IntArray
from bertjax.tasks.qa_features import QaData

_WINDOWS_PER_PASS = 512  # limits the memory of n_best_size squared pairs per window


class AnswerSpan(NamedTuple):
    """A candidate answer: the characters [begin, end) of the context; (0, 0) stands for no answer.

    `probability` is the softmax over the scores of the candidates that are kept.
    """

    text: str
    begin: int
    end: int
    score: float
    probability: float


@dataclasses.dataclass(frozen=True)
class PredictedAnswer:
    """The answer to a question.

    Attributes:
        id: Id of the question.
        text: The answer; "" stands for no answer.
        spans: The candidates, highest score first.
        null_score_diff: Score of no answer minus that of the best span; None if every question has an answer.
    """

    id: str
    text: str
    spans: list[AnswerSpan]
    null_score_diff: float | None


class _Pairs(NamedTuple):
    """Pairs of a start and an end: index of the question, characters and score."""

    question: IntArray
    begin: IntArray
    end: IntArray
    score: np.ndarray


def select_answers(
    config: TaskConfig, data: QaData, start_scores: np.ndarray, end_scores: np.ndarray
) -> list[PredictedAnswer]:
    """Selects the answer to every question that has windows (transformers, run_qa: postprocess_qa_predictions).

    The `task.qa.n_best_size` highest starts and ends of a window are paired; pairs inside the context, in order and of
    at most `task.qa.max_answer_length` tokens are candidates, of which a question keeps the `n_best_size` best. With
    `task.qa.allow_no_answer` the score of no answer is that of the summary token, the lowest over the windows; no
    answer is predicted if it exceeds the best span's by `task.qa.null_score_diff_threshold`.

    Args:
        config: settings of the task.
        data: questions and their windows.
        start_scores: float [total], one per token of `data.features.tokens`.
        end_scores: the same for ends.

    Returns:
        One prediction per question, in order, without blanks around its text; "" without a candidate.
    """
    features = data.features
    windows = np.arange(len(features))
    passes = [
        _window_pairs(config, data, start_scores, end_scores, windows[begin : begin + _WINDOWS_PER_PASS])
        for begin in range(0, len(features), _WINDOWS_PER_PASS)
    ]
    pairs = _Pairs(*(np.concatenate(values) for values in zip(*passes, strict=True)))
    order = np.lexsort((-pairs.score, pairs.question))
    pairs = _Pairs(*(values[order] for values in pairs))
    summary = features.offsets[:-1] + features.summary_position
    null_of_window = start_scores[summary].astype(np.float64) + end_scores[summary]
    questions, first = np.unique(features.example, return_index=True)
    null_scores = np.minimum.reduceat(null_of_window, first)
    bounds = np.searchsorted(pairs.question, [questions, questions + 1]).T
    answers = []
    for question, (begin, end), null in zip(questions.tolist(), bounds.tolist(), null_scores.tolist(), strict=True):
        best = slice(begin, min(end, begin + config.spec.n_best_size))
        answers.append(_answer(config, data, question, _Pairs(*(values[best] for values in pairs)), null))
    return answers


def _window_pairs(
    config: TaskConfig, data: QaData, start_scores: np.ndarray, end_scores: np.ndarray, windows: IntArray
) -> _Pairs:
    """Returns the candidates of some windows, at most `n_best_size` of each."""
    features, qa = data.features, config.spec
    begins, lengths = features.offsets[windows], features.lengths[windows]
    starts, start_best = _highest(start_scores, begins, lengths, qa.n_best_size)
    ends, end_best = _highest(end_scores, begins, lengths, qa.n_best_size)
    first, count = data.context_position[windows, None, None], data.context_length[windows, None, None]
    start, end = starts[:, :, None], ends[:, None, :]
    allowed = (start >= first) & (end < first + count) & (start <= end) & (end - start < qa.max_answer_length)
    score = np.where(allowed, start_best[:, :, None] + end_best[:, None, :], -np.inf).reshape(len(windows), -1)
    top = np.argsort(-score, axis=1, kind="stable")[:, : qa.n_best_size]
    row, column = np.nonzero(np.take_along_axis(score, top, axis=1) > -np.inf)
    pair = top[row, column]
    window = windows[row]
    to_token = data.first_token[window] - data.context_position[window]
    start_token = starts[row, pair // ends.shape[1]] + to_token
    end_token = ends[row, pair % ends.shape[1]] + to_token
    return _Pairs(
        features.example[window].astype(np.int64),
        data.contexts.begins[start_token],
        data.contexts.ends[end_token],
        score[row, pair],
    )


def _highest(scores: np.ndarray, begins: IntArray, lengths: IntArray, count: int) -> tuple[IntArray, np.ndarray]:
    """Returns positions of the `count` highest scores of every window, highest first, and the scores in float64."""
    columns = np.arange(int(lengths.max()))
    inside = columns < lengths[:, None]
    padded = np.where(inside, scores[np.where(inside, begins[:, None] + columns, 0)], -np.inf).astype(np.float64)
    if count < padded.shape[1]:
        best = np.argpartition(-padded, count - 1, axis=1)[:, :count]
    else:
        best = np.broadcast_to(columns, padded.shape)
    values = np.take_along_axis(padded, best, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1), np.take_along_axis(values, order, axis=1)


def _answer(config: TaskConfig, data: QaData, question: int, pairs: _Pairs, null: float) -> PredictedAnswer:
    examples, qa = data.examples, config.spec
    context = examples.contexts[examples.context_of[question]]
    candidates = list(zip(pairs.begin.tolist(), pairs.end.tolist(), pairs.score.tolist(), strict=True))
    if qa.allow_no_answer:
        candidates = _insert_null(candidates, null, qa.n_best_size)
    scores = np.array([score for _, _, score in candidates])
    weights = np.exp(scores - scores.max()) if len(scores) else scores
    spans = [
        AnswerSpan(context[begin:end].strip(), begin, end, score, float(weight))
        for (begin, end, score), weight in zip(candidates, weights / weights.sum() if len(weights) else [], strict=True)
    ]
    name = examples.ids[question]
    best = next((span for span in spans if span.text), None)
    if not qa.allow_no_answer:
        return PredictedAnswer(name, spans[0].text if spans else "", spans, None)
    if best is None:
        return PredictedAnswer(name, "", spans, np.inf)
    difference = null - best.score
    return PredictedAnswer(name, "" if difference > qa.null_score_diff_threshold else best.text, spans, difference)


def _insert_null(
    candidates: list[tuple[int, int, float]], null: float, n_best_size: int
) -> list[tuple[int, int, float]]:
    """Inserts no answer among the candidates by its score; it is kept as the last one if the score is too low."""
    rank = sum(score >= null for _, _, score in candidates)
    top = [*candidates[:rank], (0, 0, null), *candidates[rank:]]
    return top[:n_best_size] if rank < n_best_size else [*top[:n_best_size], (0, 0, null)]
