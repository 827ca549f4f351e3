"""The examples of a split of a task, and the names of its labels."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from bertjax.config.sources import Source, parse_task_source, source_files
from bertjax.config.task import TaskConfig
from bertjax.errors import UserError, comma_list
from bertjax.finetuning.readers.examples import Examples, QaExamples, TextExamples, WordExamples
from bertjax.finetuning.readers.records import Places
from bertjax.finetuning.readers.squad import read_questions
from bertjax.finetuning.readers.text_classification import read_texts
from bertjax.finetuning.readers.token_classification import read_words


def read_examples(
    config: TaskConfig,
    split: str = "train",
    *,
    labelled: bool = True,
    errors: str = "strict",
    sources: Sequence[str] | None = None,
) -> Examples:
    """The examples of `task.train` or `task.eval`, or of other `sources`, in the order of the files.

    `labelled=False` reads no labels (to predict them); `errors` is data.encoding_errors, strict or replace.
    Raises `UserError` for whatever cannot be read, naming file and line, and where there is no example.
    """
    if sources is None:
        parsed: Sequence[Source] = config.sources(split)
    else:
        parsed = [parse_task_source(text, "the source") for text in sources]
    if config.kind == "qa":
        examples: Examples = read_questions(config, parsed, labelled, errors)
    elif config.kind == "tokens":
        examples = read_words(config, parsed, labelled, errors)
    else:
        examples = read_texts(config, parsed, labelled, errors)
    if not len(examples):
        raise UserError(f"task.{split}: {', '.join(source.text for source in parsed)} holds no example")
    return examples


def require_files(config: TaskConfig) -> None:
    """Raises `UserError` where a file of `task.train` or `task.eval` is not there, without reading any."""
    for split in ("train", "eval"):
        for source in config.sources(split):
            source_files(source)


def collect_labels(config: TaskConfig, examples: Examples) -> tuple[str, ...]:
    """The labels in the order of their numbers: `task.labels`, else those of these examples, sorted.

    Whole numbers are sorted as numbers, everything else as text (as transformers' examples do). Empty for regression
    and qa. Raises `UserError` where there are fewer than two.
    """
    if config.kind in ("regression", "qa"):
        return ()
    if config.labels:
        return config.labels
    found = set(_labels_of(examples))
    if all(_is_whole(name) for name in found):
        names = sorted(found, key=int)
    else:
        names = sorted(found)
        if config.kind == "classification" and all(map(_is_number, found)):
            raise UserError(
                f"task.label_column holds numbers such as {names[0]}, {len(found):,} different ones: set "
                "task.kind=regression, or task.labels if they are names"
            )
    if len(names) < 2:
        what = f"every example has the label {names[0]!r}" if names else "no example has a label"
        raise UserError(f"task.label_column: {what}; a task needs two labels to tell apart")
    return tuple(names)


def encode_labels(
    names: Sequence[str], labels: Iterable[str], where: Places, of: Sequence[int] | None = None
) -> np.ndarray:
    """int32 [labels]: the number of every label; raises `UserError` for an unknown one, naming its place.

    Where names are words, whole numbers in the data stand for the places in `task.labels`. `of[i]` is the example of
    label i (None: its own number).
    """
    numbers = {name: number for number, name in enumerate(names)}
    if not any(_is_whole(name) for name in names):
        numbers |= {str(number): number for number in range(len(names))}
    found = list(labels)
    try:
        return np.fromiter(map(numbers.__getitem__, found), np.int32, len(found))
    except KeyError:
        index = next(index for index, label in enumerate(found) if label not in numbers)
        known = comma_list(names, 12)
        place = where[index if of is None else of[index]]
        raise UserError(
            f"{place}: unknown label {found[index]!r}; known are {known} (task.labels, or those of task.train)"
        ) from None


def _labels_of(examples: Examples) -> Iterable[str]:
    if isinstance(examples, TextExamples):
        return examples.labels or []
    assert not isinstance(examples, QaExamples)
    return _tags_of(examples)


def _tags_of(examples: WordExamples) -> Iterable[str]:
    return itertools.chain.from_iterable(examples.tags or [])


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal() and name.isascii()


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
