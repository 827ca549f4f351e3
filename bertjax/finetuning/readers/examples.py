"""Examples of every kind of task, as readers give them: text and labels as they stand in the files."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from bertjax.finetuning.readers.records import Places


@dataclasses.dataclass
class TextExamples:
    """Texts, or pairs of them. `labels` are names, None where they were not asked for, `scores` those of regression."""

    texts: list[str]
    pairs: list[str] | None
    labels: list[str] | None
    scores: list[float] | None
    ids: list[str]
    places: Places
    notes: list[str] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.texts)


@dataclasses.dataclass
class WordExamples:
    """Sentences of words, with a tag for every word; `tags` is None where they were not asked for."""

    words: list[list[str]]
    tags: list[list[str]] | None
    ids: list[str]
    places: Places
    notes: list[str] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.words)


class GoldAnswers(NamedTuple):
    """All accepted answers of a question and the characters of the context at which they begin; none: impossible."""

    texts: tuple[str, ...]
    starts: tuple[int, ...]


@dataclasses.dataclass
class QaExamples:
    """Questions on contexts; question i is about `contexts[context_of[i]]`; `answers` is None where not asked for."""

    questions: list[str]
    contexts: list[str]
    context_of: list[int]
    answers: list[GoldAnswers] | None
    ids: list[str]
    places: Places
    notes: list[str] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.questions)


Examples = TextExamples | WordExamples | QaExamples
