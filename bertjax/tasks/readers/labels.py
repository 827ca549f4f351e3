"""Names of the labels of a task, and their ids."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from bertjax.config.task import TaskConfig
from bertjax.errors import UserError, named
from bertjax.tasks.readers.examples import ChoiceExamples, Examples, QaExamples, TextExamples

_SEPARATORS = ",;|"


def collect_labels(config: TaskConfig, examples: Examples) -> tuple[str, ...]:
    """Returns the names of the labels in the order of their ids: `task.labels`, else those of the examples, sorted.

    Whole numbers are sorted as numbers (7 and 007 as text), everything else as text, as in transformers' examples.

    Args:
        config: settings of the task.
        examples: the training examples.

    Returns:
        The names; () if the task has no classes.

    Raises:
        UserError: there are fewer than two labels, or the labels look like the numbers of a regression, or several.
    """
    if isinstance(examples, QaExamples | ChoiceExamples) or not config.spec.has_classes:
        return ()
    if config.labels:
        return config.labels
    if isinstance(examples, TextExamples):
        values = set(examples.labels or [])
    else:
        values = set(itertools.chain.from_iterable(examples.tags or []))
    names = sorted_names(values)
    if isinstance(examples, TextExamples):
        _require_one_label(names)
        if all(map(_is_number, values)) and not all(map(is_whole, values)):
            raise UserError(
                f"{named('task.label_column')} holds numbers such as {names[0]}, {len(values):,} different ones: set "
                f"{named('task.kind', 'regression')}, or task.labels if they are names"
            )
    if len(names) < 2:
        what = f"every example has the label {names[0]!r}" if names else "no example has a label"
        raise UserError(f"{named('task.label_column')}: {what}; a task needs at least two labels")
    return tuple(names)


def sorted_names(names: Collection[str]) -> list[str]:
    """Returns names of labels in their order: whole numbers as numbers, others as text."""
    return sorted(names, key=lambda name: (int(name), name)) if all(map(is_whole, names)) else sorted(names)


def _require_one_label(names: Collection[str]) -> None:
    """Raises `UserError` if a label looks like several: `0,1,17`, or `joy;fear` where both are labels, too."""
    several = next((name for name in names if _holds_several(name, names)), None)
    if several is not None:
        raise UserError(
            f"{named('task.label_column')}: {several!r} looks like several labels of one example: set "
            f"{named('task.kind', 'multilabel')}, or task.labels if it is the name of one"
        )


def _holds_several(name: str, known: Collection[str]) -> bool:
    splits = [[part.strip() for part in name.split(separator)] for separator in _SEPARATORS if separator in name]
    return any(all(part in known or is_whole(part) for part in parts) for parts in splits)


def encode_labels(
    names: Sequence[str], labels: Iterable[str], locations: Sequence[str], example: Sequence[int] | None = None
) -> np.ndarray:
    """Returns the id of every label, int32 [labels].

    Args:
        names: names of the labels.
        labels: labels in the data.
        locations: where the examples were read.
        example: index of the example of every label; None: label i is that of example i.

    Raises:
        UserError: a label is unknown; names its location.
    """
    ids = {name: index for index, name in enumerate(names)}
    values = list(labels)
    try:
        return np.fromiter(map(ids.__getitem__, values), np.int32, len(values))
    except KeyError:
        index = next(index for index, label in enumerate(values) if label not in ids)
        known = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        location = locations[index if example is None else example[index]]
        is_id = is_whole(values[index]) and not any(map(is_whole, names))
        advice = "; if it is an id, give task.labels in the order of ids" if is_id else ""
        if example is None and _holds_several(values[index], names):
            advice = f"; for several labels per example set {named('task.kind', 'multilabel')}"
        raise UserError(
            f"{location}: unknown label {values[index]!r}; known are {known} (task.labels, or those of task.train)"
            + advice
        ) from None


def is_whole(name: str) -> bool:
    """Returns whether a label is a whole number, in ASCII digits."""
    return name.removeprefix("-").isdecimal() and name.isascii()


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
