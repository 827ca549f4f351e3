"""Scores of answers, as the evaluation scripts of SQuAD 1.1 and 2.0 compute them (rajpurkar/SQuAD-explorer).

Texts are compared without capitals, punctuation, articles and surplus blanks. An answer is scored against the gold
answer that fits best.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.errors import UserError, require_one_of
from bertjax.tasks.metrics.sklearn_compat import require_same_length

VERSIONS = ("1.1", "2.0")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def squad_scores(
    gold: Mapping[str, Sequence[str]],
    predicted: Mapping[str, str],
    no_answer_scores: Mapping[str, float] | None = None,
    threshold: float | None = None,
    version: str = "1.1",
) -> dict[str, float]:
    """Scores answers by question id.

    Args:
        gold: gold answers per question; none: the question has no answer (2.0).
        predicted: predicted answers; "" stands for no answer.
        no_answer_scores: probabilities of no answer, or differences of scores.
        threshold: "" replaces an answer whose score of no answer is above it; None: never.
        version: "1.1" or "2.0". They differ for texts that are empty after normalization ("the"): in 1.1 their F1 is
            0, in 2.0 they equal no answer, and such gold answers are ignored.

    Returns:
        Exact matches and word overlap in percent, as the scripts print them: `exact_match`, `f1`; with both kinds of
        questions also `has_answer_f1`, `no_answer_f1`, ...; with scores of no answer also `best_f1`,
        `best_f1_threshold`, ..., by the best threshold, which is selected on the scored questions themselves.

    Raises:
        UserError: ids differ, a score is missing or nan, or a question has no answer in 1.1.
    """
    require_one_of("version", version, VERSIONS)
    require_same_length(len(gold), len(predicted), "questions")
    _require_ids(gold, predicted, "prediction")
    ids = list(gold)
    answerable = np.array([len(gold[name]) > 0 for name in ids])
    if version == "1.1" and not answerable.all():
        raise UserError(f"question {ids[int(answerable.argmin())]!r} has no answer: score it with version 2.0")
    raw = np.array([_question_scores(gold[name], predicted[name], version) for name in ids], np.float64)  # [n, 2]
    against, best = None, {}
    if no_answer_scores is not None:
        _require_ids(gold, no_answer_scores, "score of no answer")
        against = np.array([no_answer_scores[name] for name in ids], np.float64)
        if np.isnan(against).any():
            raise UserError(f"the score of no answer of question {ids[int(np.isnan(against).argmax())]!r} is nan")
        best = _best_threshold(raw, against, answerable, np.array([bool(predicted[name]) for name in ids]))
    scores = raw
    if threshold is not None:
        if against is None:
            raise UserError("a threshold for no answer needs the scores of no answer")
        scores = np.where((against > threshold)[:, None], (~answerable)[:, None].astype(np.float64), raw)
    metrics = _means(scores)
    if answerable.any() and not answerable.all():
        metrics |= _means(scores[answerable], "has_answer_") | _means(scores[~answerable], "no_answer_")
    return metrics | best


def normalized(text: str) -> str:
    """Returns the text in lower case, without ASCII punctuation, articles and surplus blanks, removed in this order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _question_scores(golds: Sequence[str], answer: str, version: str) -> tuple[float, float]:
    """Returns (exact match, F1) with the gold answer that fits best."""
    prediction = normalized(answer)
    expected = [normalized(text) for text in golds]
    if version == "2.0":
        expected = [text for text in expected if text] or [""]
    return max(float(text == prediction) for text in expected), max(
        _overlap(text, prediction, version) for text in expected
    )


def _overlap(gold: str, prediction: str, version: str) -> float:
    """Returns the F1 of two bags of words."""
    expected, words = Counter(gold.split()), Counter(prediction.split())
    if not expected or not words:
        return float(version == "2.0" and expected == words)
    common = (expected & words).total()
    if not common:
        return 0.0
    precision, recall = common / words.total(), common / expected.total()
    return 2 * precision * recall / (precision + recall)


def _require_ids(gold: Mapping[str, object], values: Mapping[str, object], what: str) -> None:
    missing = next((name for name in gold if name not in values), None)
    if missing is not None:
        raise UserError(f"question {missing!r} has no {what}")


def _means(scores: np.ndarray, prefix: str = "") -> dict[str, float]:
    exact_match, f1 = 100.0 * scores.mean(axis=0)
    return {f"{prefix}exact_match": float(exact_match), f"{prefix}f1": float(f1)}


def _best_threshold(
    raw: np.ndarray, against: np.ndarray, answerable: np.ndarray, answered: np.ndarray
) -> dict[str, float]:
    """Returns the highest scores with their thresholds, the lowest of several equal ones.

    Like the script, it begins with no answer anywhere and lets the questions be answered one by one in the order of
    their scores of no answer, lowest first; so it may stop between equal scores, where no threshold can.
    """
    order = np.argsort(against, kind="stable")
    gains = np.where(answerable[:, None], raw, -answered[:, None].astype(np.float64))[order]
    no_answers = np.full((1, 2), (~answerable).sum(), np.float64)
    totals = np.cumsum(np.concatenate([no_answers, gains]), axis=0)
    # The script's "answer nothing" is a threshold of 0, made for probabilities; a difference of scores may be negative.
    lowest = 0.0 if against.min() >= 0 else float(np.nextafter(against.min(), -np.inf))
    thresholds = [lowest if count == 0 else float(against[order[count - 1]]) for count in totals.argmax(axis=0)]
    best = 100.0 * totals.max(axis=0) / len(raw)
    return {
        "best_exact_match": float(best[0]),
        "best_exact_match_threshold": thresholds[0],
        "best_f1": float(best[1]),
        "best_f1_threshold": thresholds[1],
    }
