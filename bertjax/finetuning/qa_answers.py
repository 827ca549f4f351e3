"""Scores of starts and ends to answers: the best spans of every question, over all of its windows."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from bertjax.config.task import TaskConfig
from bertjax.data.counter_rng import IntArray
from bertjax.finetuning.qa_features import QaData

_WINDOWS_PER_PASS = 512  # times n_best squared pairs of places at a time


class AnswerSpan(NamedTuple):
    """One possible answer: the characters [begin, end) of the context, (0, 0) = no answer.

    `probability` is that among the answers kept, of a softmax over their scores.
    """

    text: str
    begin: int
    end: int
    score: float
    probability: float


@dataclasses.dataclass(frozen=True)
class PredictedAnswer:
    """What is answered to a question: `text`, "" = no answer; the best spans, the highest score first; and by how much
    the score of no answer exceeds that of the best span (None where every question has an answer).
    """

    id: str
    text: str
    spans: list[AnswerSpan]
    null_score_diff: float | None


class _Pairs(NamedTuple):
    """Possible answers of all windows: their question, characters and score."""

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
        One prediction per question, in order, without blanks around its text; "" where there is no candidate.
    """
    features = data.features
    pairs = _joined(
        [
            _pairs(
                config, data, start_scores, end_scores, np.arange(begin, min(begin + _WINDOWS_PER_PASS, len(features)))
            )
            for begin in range(0, len(features), _WINDOWS_PER_PASS)
        ]
    )
    order = np.lexsort((-pairs.score, pairs.question))
    pairs = _Pairs(*(values[order] for values in pairs))
    place = features.offsets[:-1] + features.summary_position
    null_of_window = start_scores[place].astype(np.float64) + end_scores[place]
    questions, first = np.unique(features.example, return_index=True)
    null = np.minimum.reduceat(null_of_window, first)
    bounds = np.searchsorted(pairs.question, [questions, questions + 1]).T
    return [
        _answer(
            config,
            data,
            int(question),
            _Pairs(*(values[begin : min(end, begin + config.qa.n_best_size)] for values in pairs)),
            score,
        )
        for question, (begin, end), score in zip(questions, bounds.tolist(), null.tolist(), strict=True)
    ]


def _pairs(
    config: TaskConfig, data: QaData, start_scores: np.ndarray, end_scores: np.ndarray, windows: IntArray
) -> _Pairs:
    """The possible answers of some windows, at most `n_best` of each."""
    features = data.features
    lengths = features.lengths[windows]
    starts, start_best = _best_places(start_scores, features.offsets[windows], lengths, config.qa.n_best_size)
    ends, end_best = _best_places(end_scores, features.offsets[windows], lengths, config.qa.n_best_size)
    place, count = data.context_position[windows, None, None], data.context_length[windows, None, None]
    start, end = starts[:, :, None], ends[:, None, :]
    possible = (start >= place) & (end < place + count) & (start <= end) & (end - start < config.qa.max_answer_length)
    score = np.where(possible, start_best[:, :, None] + end_best[:, None, :], -np.inf).reshape(len(windows), -1)
    kept = np.argsort(-score, axis=1, kind="stable")[:, : config.qa.n_best_size]
    row, column = np.nonzero(np.take_along_axis(score, kept, axis=1) > -np.inf)
    pair = kept[row, column]
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


def _best_places(scores: np.ndarray, begins: IntArray, lengths: IntArray, count: int) -> tuple[IntArray, np.ndarray]:
    """The places of the `count` highest scores of every window, the highest first, and those scores in float64."""
    columns = np.arange(int(lengths.max()))
    inside = columns < lengths[:, None]
    own = np.where(inside, scores[np.where(inside, begins[:, None] + columns, 0)], -np.inf).astype(np.float64)
    if count < own.shape[1]:
        best = np.argpartition(-own, count - 1, axis=1)[:, :count]
    else:
        best = np.broadcast_to(columns, own.shape)
    values = np.take_along_axis(own, best, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1), np.take_along_axis(values, order, axis=1)


def _joined(parts: list[_Pairs]) -> _Pairs:
    return _Pairs(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def _answer(config: TaskConfig, data: QaData, question: int, pairs: _Pairs, null: float) -> PredictedAnswer:
    examples = data.examples
    context = examples.contexts[examples.context_of[question]]
    found = list(zip(pairs.begin.tolist(), pairs.end.tolist(), pairs.score.tolist(), strict=True))
    if config.qa.allow_no_answer:
        found = _with_null(found, null, config.qa.n_best_size)
    scores = np.array([score for _, _, score in found])
    weights = np.exp(scores - scores.max()) if len(scores) else scores
    spans = [
        AnswerSpan(context[begin:end].strip(), begin, end, score, float(weight))
        for (begin, end, score), weight in zip(found, weights / weights.sum() if len(weights) else [], strict=True)
    ]
    best = next((span for span in spans if span.text), None)
    if not config.qa.allow_no_answer:
        return PredictedAnswer(examples.ids[question], spans[0].text if spans else "", spans, None)
    if best is None:
        return PredictedAnswer(examples.ids[question], "", spans, np.inf)
    margin = null - best.score
    return PredictedAnswer(
        examples.ids[question], "" if margin > config.qa.null_score_diff_threshold else best.text, spans, margin
    )


def _with_null(found: list[tuple[int, int, float]], null: float, n_best: int) -> list[tuple[int, int, float]]:
    """No answer takes its place among the answers, and the last one where its score is too low for the `n_best`."""
    place = sum(score >= null for _, _, score in found)
    kept = [*found[:place], (0, 0, null), *found[place:]]
    return kept[:n_best] if place < n_best else [*kept[:n_best], (0, 0, null)]
