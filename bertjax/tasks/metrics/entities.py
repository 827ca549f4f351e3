"""Entity-level scores of tagged words, as conlleval and seqeval count them: type and both ends must be right.

Tags are read leniently, as by conlleval: an entity also begins at I-X after O or after another type, so IOB1 and broken
IOB2 are accepted. Marks are those of `tag_schemes`: M means I, L means E, U means S. seqeval's default mode counts the
same, but its last release dates from 2020 and has to be built; only the tests use it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.tasks.metrics.classification import ClassScore
from bertjax.tasks.metrics.sklearn_compat import require_same_length
from bertjax.tasks.tag_schemes import TAG

_UNTYPED = "_"  # seqeval's name for the type of a bare B or I
_OUTSIDE, _INSIDE, _BEGIN, _END, _SINGLE = range(5)
_MARKS = {"B": _BEGIN, "I": _INSIDE, "M": _INSIDE, "E": _END, "L": _END, "S": _SINGLE, "U": _SINGLE}


@dataclasses.dataclass(frozen=True)
class EntityScores:
    """Scores in [0, 1].

    Attributes:
        precision, recall, f1: Over all entities; 0 if there are none to divide by.
        macro_f1: Mean over the types that occur, gold or predicted; 0 without any.
        accuracy: Share of words whose tag is right.
        per_type: Scores of each type, in alphabetical order.
    """

    precision: float
    recall: float
    f1: float
    macro_f1: float
    accuracy: float
    per_type: dict[str, ClassScore]

    def metrics(self) -> dict[str, float]:
        """Returns the scalar scores by name."""
        return {name: getattr(self, name) for name in ("precision", "recall", "f1", "macro_f1", "accuracy")}


class Entity(NamedTuple):
    """An entity that reaches from word `first` to word `last`, both included."""

    kind: str
    first: int
    last: int


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> EntityScores:
    """Scores the tags of sentences.

    Args:
        gold: gold tags, one list per sentence.
        predicted: predicted tags, likewise.

    Raises:
        UserError: there is nothing to score, sentences differ in number or length, or a tag is invalid.
    """
    require_same_length(len(gold), len(predicted), "sentences")
    for number, (expected, predictions) in enumerate(zip(gold, predicted, strict=True), 1):
        if len(expected) != len(predictions):
            raise UserError(f"sentence {number} has {len(expected)} gold tags, but {len(predictions)} predicted ones")
    num_words = sum(map(len, gold))
    require_same_length(num_words, num_words, "words")
    table = _TagTable()
    gold_tags, predicted_tags = table.encode(gold), table.encode(predicted)
    accuracy = float((gold_tags == predicted_tags).sum() - len(gold)) / num_words  # without the O after each sentence
    return _scores(table.spans(gold_tags), table.spans(predicted_tags), table.kinds, accuracy)


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """Returns the entities of one sentence, in order."""
    table = _TagTable()
    return [Entity(table.kinds[kind], first, last) for first, last, kind in table.spans(table.encode([tags])).tolist()]


class _TagTable:
    """Ids of tags, with their marks and types. An added O ends every sentence, so no entity crosses into the next."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self._ids: dict[str, int] = {"O": 0}
        self._marks, self._types = [_OUTSIDE], [-1]

    def encode(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """Returns int64 [words + sentences]."""
        return np.array([self._id(tag) for tags in sentences for tag in (*tags, "O")], np.int64)

    def _id(self, tag: str) -> int:
        if tag not in self._ids:
            match = TAG.fullmatch(tag) if isinstance(tag, str) else None
            if match is None:
                raise UserError(f"{tag!r} is not the tag of an entity: O, B-TYPE or I-TYPE (or M-, E-, S-, L-, U-)")
            kind = match[2] or _UNTYPED
            if kind not in self.kinds:
                self.kinds.append(kind)
            self._ids[tag] = len(self._marks)
            self._marks.append(_MARKS[match[1]])
            self._types.append(self.kinds.index(kind))
        return self._ids[tag]

    def spans(self, ids: np.ndarray) -> np.ndarray:
        """Returns int64 [entities, 3]: first and last word (counted through all sentences, with their ends), type."""
        marks, types = np.array(self._marks)[ids], np.array(self._types)[ids]
        before, type_before = np.append(_OUTSIDE, marks[:-1]), np.append(-1, types[:-1])
        inside = marks != _OUTSIDE
        # O has a type of its own, so I after O begins an entity.
        begins = (marks == _BEGIN) | (marks == _SINGLE) | (types != type_before)
        starts = inside & (begins | (before == _END) | (before == _SINGLE))
        ends = inside & np.append(starts[1:] | ~inside[1:], True)
        first, last = np.flatnonzero(starts), np.flatnonzero(ends)
        return np.stack([first, last, types[first]], axis=1)


def _scores(gold: np.ndarray, predicted: np.ndarray, kinds: list[str], accuracy: float) -> EntityScores:
    _, in_gold, in_predicted = np.intersect1d(gold[:, 0], predicted[:, 0], return_indices=True)
    hits = gold[in_gold][(gold[in_gold] == predicted[in_predicted]).all(axis=1)]
    right, support, num_predicted = (
        np.bincount(spans[:, 2], minlength=len(kinds)) for spans in (hits, gold, predicted)
    )
    occurring = sorted((kind, index) for index, kind in enumerate(kinds) if support[index] + num_predicted[index])
    per_type = {kind: _class_score(int(right[i]), int(num_predicted[i]), int(support[i])) for kind, i in occurring}
    total = _class_score(len(hits), len(predicted), len(gold))
    macro = float(np.mean([score.f1 for score in per_type.values()])) if per_type else 0.0
    return EntityScores(total.precision, total.recall, total.f1, macro, accuracy, per_type)


def _class_score(right: int, num_predicted: int, support: int) -> ClassScore:
    precision, recall = right / num_predicted if num_predicted else 0.0, right / support if support else 0.0
    both = precision + recall
    return ClassScore(precision, recall, 2 * precision * recall / both if both else 0.0, support)
