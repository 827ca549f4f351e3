"""Entities of tagged words, counted as conlleval and seqeval do: right are type and both ends, or nothing.

Tags are read leniently, as conlleval reads them: an entity also begins at I-X behind O or behind another type, so IOB1
and broken IOB2 need no mending. Ends and singles may be marked (E, S; L and U mean the same). seqeval counts equally in
its default mode; it is a peer in the tests and no dependency: its last release is of 2020, and must be built.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.finetuning.metrics.classification import ClassScore
from bertjax.finetuning.metrics.sklearn_compat import require_same_length

_TAG = re.compile(r"O|([BIESLU])(?:-(.*))?", re.DOTALL)
_UNTYPED = "_"  # seqeval's name for the type of a bare B or I
_OUTSIDE, _INSIDE, _BEGIN, _END, _SINGLE = range(5)
_MARKS = {"B": _BEGIN, "I": _INSIDE, "E": _END, "L": _END, "S": _SINGLE, "U": _SINGLE}


@dataclasses.dataclass(frozen=True)
class EntityScores:
    """All in [0, 1]; `precision`, `recall`, `f1` over all entities, 0 where there are none to divide by.

    macro_f1   mean over the types that occur, gold or predicted; 0 without any
    accuracy   share of words whose tag is right
    per_type   in alphabetical order
    """

    precision: float
    recall: float
    f1: float
    macro_f1: float
    accuracy: float
    per_type: dict[str, ClassScore]

    def metrics(self) -> dict[str, float]:
        names = ("precision", "recall", "f1", "macro_f1", "accuracy")
        return {name: getattr(self, name) for name in names}


class Entity(NamedTuple):
    """Words `first` to `last`, both belonging to it."""

    kind: str
    first: int
    last: int


def are_entity_tags(labels: Iterable[str]) -> bool:
    """Whether all labels are O, B-X, I-X, ...: else entities make no sense, and tags are labels like any other."""
    return all(_TAG.fullmatch(label) for label in labels)


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> EntityScores:
    """Scores of the tags of sentences.

    Raises `UserError` for nothing, for sentences that differ in number or length, and for what is no tag.
    """
    require_same_length(len(gold), len(predicted), "sentences")
    for number, (right, found) in enumerate(zip(gold, predicted, strict=True), 1):
        if len(right) != len(found):
            raise UserError(f"sentence {number} has {len(right)} gold tags, but {len(found)} predicted ones")
    words = sum(map(len, gold))
    require_same_length(words, words, "words")
    table = _TagTable()
    right_tags, found_tags = table.numbers(gold), table.numbers(predicted)
    spans = table.spans(right_tags), table.spans(found_tags)
    return _scores(*spans, table.kinds, float((right_tags == found_tags).sum() - len(gold)) / words)


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence, in order."""
    table = _TagTable()
    return [Entity(table.kinds[kind], first, last) for first, last, kind in table.spans(table.numbers([tags])).tolist()]


class _TagTable:
    """Numbers for tags, and what they mark; a sentence ends with an O of ours: no entity crosses into the next."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self._tags: dict[str, int] = {"O": 0}
        self._marks, self._types = [_OUTSIDE], [-1]

    def numbers(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """int64 [words + sentences]."""
        return np.array([self._number(tag) for tags in sentences for tag in (*tags, "O")], np.int64)

    def _number(self, tag: str) -> int:
        if tag not in self._tags:
            match = _TAG.fullmatch(tag) if isinstance(tag, str) else None
            if match is None:
                raise UserError(f"{tag!r} is no tag of an entity; those are O, B-TYPE and I-TYPE (and E-, S-, L-, U-)")
            kind = match[2] or _UNTYPED
            if kind not in self.kinds:
                self.kinds.append(kind)
            self._tags[tag] = len(self._marks)
            self._marks.append(_MARKS[match[1]])
            self._types.append(self.kinds.index(kind))
        return self._tags[tag]

    def spans(self, numbers: np.ndarray) -> np.ndarray:
        """int64 [entities, 3]: first and last word (counted through all sentences, with their ends), type."""
        marks, types = np.array(self._marks)[numbers], np.array(self._types)[numbers]
        before, type_before = np.append(_OUTSIDE, marks[:-1]), np.append(-1, types[:-1])
        inside = marks != _OUTSIDE
        begins = (marks == _BEGIN) | (marks == _SINGLE) | (types != type_before)
        starts = inside & (
            begins | (before == _END) | (before == _SINGLE)
        )  # O has a type of its own: I behind it begins
        ends = inside & np.append(starts[1:] | ~inside[1:], True)
        first, last = np.flatnonzero(starts), np.flatnonzero(ends)
        return np.stack([first, last, types[first]], axis=1)


def _scores(gold: np.ndarray, found: np.ndarray, kinds: list[str], accuracy: float) -> EntityScores:
    _, here, there = np.intersect1d(gold[:, 0], found[:, 0], return_indices=True)
    hits = gold[here][(gold[here] == found[there]).all(axis=1)]
    right, all_gold, all_found = (np.bincount(spans[:, 2], minlength=len(kinds)) for spans in (hits, gold, found))
    seen = sorted((kind, index) for index, kind in enumerate(kinds) if all_gold[index] + all_found[index])
    per_type = {kind: _class_score(int(right[i]), int(all_found[i]), int(all_gold[i])) for kind, i in seen}
    total = _class_score(len(hits), len(found), len(gold))
    macro = float(np.mean([score.f1 for score in per_type.values()])) if per_type else 0.0
    return EntityScores(total.precision, total.recall, total.f1, macro, accuracy, per_type)


def _class_score(right: int, found: int, gold: int) -> ClassScore:
    precision, recall = right / found if found else 0.0, right / gold if gold else 0.0
    both = precision + recall
    return ClassScore(precision, recall, 2 * precision * recall / both if both else 0.0, gold)
