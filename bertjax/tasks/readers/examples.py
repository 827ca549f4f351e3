"""Examples of every kind of task as they are read: text and labels as in the files."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from bertjax.config.sources import Source, parse_task_source
from bertjax.config.task import TaskConfig
from bertjax.errors import UserError


class ReadRequest(NamedTuple):
    """Order for a reader, which raises `UserError` with file and line for what it cannot read.

    Attributes:
        config: Settings of the task: columns, tags, answers.
        sources: Where the examples are.
        labeled: Whether to read labels.
        errors: `data.encoding_errors`: "strict", or "replace" for invalid UTF-8.
    """

    config: TaskConfig
    sources: Sequence[Source]
    labeled: bool = True
    errors: str = "strict"


@dataclasses.dataclass
class _Lists:
    """Lists with an item per example."""

    def take(self, numbers: Sequence[int]) -> Self:
        """Returns the examples with these numbers, in this order, without the remarks."""
        lists = {name: values for name, values in vars(self).items() if name != "notes" and values is not None}
        taken: dict[str, Any] = {name: [values[each] for each in numbers] for name, values in lists.items()}
        return dataclasses.replace(self, **taken | {"notes": []})


@dataclasses.dataclass
class TextExamples(_Lists):
    """Texts or pairs of texts, n each.

    Attributes:
        texts: The first texts.
        pairs: The second texts; None for single texts.
        labels: Names of classes, targets, or what `TaskKind.label` returns; None if they were not read.
        scores: Numbers of a regression; None if they were not read.
        ids: Ids of the examples.
        locations: Where the examples were read, for messages: "train.tsv:17".
        notes: Remarks to print.
    """

    texts: list[str]
    pairs: list[str] | None
    labels: list[Any] | None
    scores: list[float] | None
    ids: list[str]
    locations: list[str]
    notes: list[str] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.texts)

    def all_texts(self, targets: bool = False) -> list[str]:
        """Returns the texts, to train a tokenizer; with `targets` also those that a decoder predicts."""
        return [*self.texts, *(self.pairs or []), *((self.labels or []) if targets else [])]


@dataclasses.dataclass
class WordExamples(_Lists):
    """Sentences of words with a tag per word; `tags` is None if they were not read; else as `TextExamples`."""

    words: list[list[str]]
    tags: list[list[str]] | None
    ids: list[str]
    locations: list[str]
    notes: list[str] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.words)

    def all_texts(self, targets: bool = False) -> list[str]:
        """Returns the sentences, their words between blanks."""
        return [" ".join(words) for words in self.words]


@dataclasses.dataclass
class ChoiceExamples(_Lists):
    """Contexts with choices; `answers` are the numbers of the right ones, None if they were not read.

    `questions` stand before every choice, None where there are none; else as `TextExamples`.
    """

    contexts: list[str]
    questions: list[str] | None
    choices: list[list[str]]
    answers: list[int] | None
    ids: list[str]
    locations: list[str]
    notes: list[str] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.contexts)

    def all_texts(self, targets: bool = False) -> list[str]:
        """Returns contexts, questions and choices, to train a tokenizer."""
        return [*self.contexts, *(self.questions or ()), *itertools.chain.from_iterable(self.choices)]


class GoldAnswers(NamedTuple):
    """Accepted answers of a question and the characters of the context at which they begin; none: no answer."""

    texts: tuple[str, ...]
    starts: tuple[int, ...]


@dataclasses.dataclass
class QaExamples:
    """Questions about contexts; question i is about `contexts[context_of[i]]`; else as `TextExamples`."""

    questions: list[str]
    contexts: list[str]
    context_of: list[int]
    answers: list[GoldAnswers] | None
    ids: list[str]
    locations: list[str]
    notes: list[str] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.questions)

    def all_texts(self, targets: bool = False) -> list[str]:
        """Returns questions and contexts."""
        return [*self.questions, *self.contexts]


Examples = TextExamples | WordExamples | QaExamples | ChoiceExamples


def read_examples(
    config: TaskConfig,
    split: str = "train",
    *,
    labeled: bool = True,
    errors: str = "strict",
    sources: Sequence[str] | None = None,
) -> Examples:
    """Reads the examples of a split, in the order of the files.

    Args:
        config: settings of the task.
        split: "train", "eval" or "test".
        labeled: whether to read labels.
        errors: `data.encoding_errors`: "strict", or "replace" for invalid UTF-8.
        sources: other sources than those of the split.

    Raises:
        UserError: something cannot be read, or the files hold nothing; names file and line.
    """
    if sources is None:
        parsed = config.sources(split)
    else:
        parsed = tuple(parse_task_source(text, "the source") for text in sources)
    examples: Examples = config.spec.read_examples(ReadRequest(config, parsed, labeled, errors))
    if not len(examples):
        raise UserError(f"task.{split}: {', '.join(source.text for source in parsed)} holds no example")
    return examples
