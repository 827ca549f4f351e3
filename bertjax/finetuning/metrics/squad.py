"""Answers to questions, counted as the evaluation scripts of SQuAD 1.1 and 2.0 do (rajpurkar/SQuAD-explorer).

Texts are compared without capitals, punctuation, articles and surplus blanks. An answer counts by the gold answer that
it fits best.
"""

from __future__ import annotations

import dataclasses
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.errors import UserError, require_one_of
from bertjax.finetuning.metrics.sklearn_compat import require_same_length

VERSIONS = ("1.1", "2.0")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclasses.dataclass(frozen=True)
class AnswerScores:
    """Exact matches and word overlap of `total` questions, in percent as the scripts print them."""

    exact_match: float
    f1: float
    total: int


@dataclasses.dataclass(frozen=True)
class BestThreshold:
    """What the best threshold would have given, in percent; it is found on the very questions that it is scored on."""

    exact_match: float
    exact_match_threshold: float
    f1: float
    f1_threshold: float


@dataclasses.dataclass(frozen=True)
class SquadScores:
    """`has_answer` and `no_answer` are the two kinds of questions, None where there are none; `best` needs scores."""

    overall: AnswerScores
    has_answer: AnswerScores | None
    no_answer: AnswerScores | None
    best: BestThreshold | None

    def metrics(self) -> dict[str, float]:
        """`exact_match`, `f1`; where there are both kinds of questions also `has_answer_f1`, ...; `best_f1`, ..."""
        found = {"exact_match": self.overall.exact_match, "f1": self.overall.f1}
        if self.has_answer is not None and self.no_answer is not None:
            for kind, scores in (("has_answer", self.has_answer), ("no_answer", self.no_answer)):
                found |= {f"{kind}_exact_match": scores.exact_match, f"{kind}_f1": scores.f1}
        if self.best is not None:
            found |= {f"best_{name}": value for name, value in dataclasses.asdict(self.best).items()}
        return found


def squad_scores(
    gold: Mapping[str, Sequence[str]],
    predicted: Mapping[str, str],
    no_answer_scores: Mapping[str, float] | None = None,
    threshold: float | None = None,
    version: str = "1.1",
) -> SquadScores:
    """Scores of the answers by question id; a question without gold answers has none (2.0), and "" is that answer.

    `no_answer_scores` say how much speaks against an answer: probabilities, or differences of scores. Where one exceeds
    `threshold`, "" counts instead of the prediction (None: never). The versions differ where a text is empty after
    normalisation ("the"): in 1.1 its F1 is 0, in 2.0 it equals no answer, and such gold answers are left out.
    Raises `UserError` where ids differ, a score is missing or no number, or 1.1 meets a question without an answer.
    """
    require_one_of("version", version, VERSIONS)
    require_same_length(len(gold), len(predicted), "questions")
    _require_ids(gold, predicted, "prediction")
    numbers = list(gold)
    answerable = np.array([len(gold[number]) > 0 for number in numbers])
    if version == "1.1" and not answerable.all():
        raise UserError(f"question {numbers[int(answerable.argmin())]!r} has no answer: score it with version 2.0")
    pairs = [_question_scores(gold[number], predicted[number], version) for number in numbers]
    raw = np.array(pairs, np.float64)  # [n, 2]: exact match, F1
    against, best = None, None
    if no_answer_scores is not None:
        _require_ids(gold, no_answer_scores, "score of no answer")
        against = np.array([no_answer_scores[number] for number in numbers], np.float64)
        if np.isnan(against).any():
            raise UserError(f"the score of no answer of question {numbers[int(np.isnan(against).argmax())]!r} is nan")
        best = _best(raw, against, answerable, np.array([bool(predicted[number]) for number in numbers]))
    scores = raw
    if threshold is not None:
        if against is None:
            raise UserError("a threshold for no answer needs the scores of no answer")
        scores = np.where((against > threshold)[:, None], (~answerable)[:, None].astype(np.float64), raw)
    return SquadScores(_mean(scores), _part(scores, answerable), _part(scores, ~answerable), best)


def normalized(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single blanks: in this order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _question_scores(golds: Sequence[str], answer: str, version: str) -> tuple[float, float]:
    """(exact match, F1) by the gold answer that fits best."""
    found = normalized(answer)
    right = [normalized(text) for text in golds]
    if version == "2.0":
        right = [text for text in right if text] or [""]
    return max(float(text == found) for text in right), max(_overlap(text, found, version) for text in right)


def _overlap(gold: str, found: str, version: str) -> float:
    """F1 of two bags of words."""
    right, words = Counter(gold.split()), Counter(found.split())
    if not right or not words:
        return float(version == "2.0" and right == words)
    common = (right & words).total()
    if not common:
        return 0.0
    precision, recall = common / words.total(), common / right.total()
    return 2 * precision * recall / (precision + recall)


def _require_ids(gold: Mapping[str, object], given: Mapping[str, object], what: str) -> None:
    missing = next((number for number in gold if number not in given), None)
    if missing is not None:
        raise UserError(f"question {missing!r} has no {what}")


def _mean(scores: np.ndarray) -> AnswerScores:
    exact_match, f1 = 100.0 * scores.mean(axis=0)
    return AnswerScores(float(exact_match), float(f1), len(scores))


def _part(scores: np.ndarray, chosen: np.ndarray) -> AnswerScores | None:
    return _mean(scores[chosen]) if chosen.any() else None


def _best(raw: np.ndarray, against: np.ndarray, answerable: np.ndarray, answered: np.ndarray) -> BestThreshold:
    """Of all thresholds the one that would have scored best, of several equal ones the lowest.

    Like the script, it begins with no answer anywhere and lets the questions be answered one by one, those with the
    least score of no answer first; so among equal scores it may stop between two, where no threshold can.
    """
    order = np.argsort(against, kind="stable")
    gains = np.where(answerable[:, None], raw, -answered[:, None].astype(np.float64))[order]
    nowhere = np.full((1, 2), (~answerable).sum(), np.float64)
    reached = np.cumsum(np.concatenate([nowhere, gains]), axis=0)
    places = reached.argmax(axis=0)
    # The script's "answer nothing" is a threshold of 0, made for probabilities; a difference of scores may be negative.
    nothing = 0.0 if against.min() >= 0 else float(np.nextafter(against.min(), -np.inf))
    thresholds = [nothing if place == 0 else float(against[order[place - 1]]) for place in places]
    best = 100.0 * reached.max(axis=0) / len(raw)
    return BestThreshold(float(best[0]), thresholds[0], float(best[1]), thresholds[1])
