"""Examples of texts or pairs of texts with a label: a class, a number, or a text that follows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bertjax.config.task import TaskConfig
from bertjax.errors import UserError, named
from bertjax.tasks.readers.examples import ReadRequest, TextExamples
from bertjax.tasks.readers.labels import is_whole
from bertjax.tasks.readers.tables import read_rows, require_distinct, require_field_text

Label = Callable[[TaskConfig, Any, str], Any]


def read_texts(request: ReadRequest, label: Label | None = None) -> TextExamples:
    """Reads all examples of tables, in order.

    Args:
        request: settings and sources.
        label: returns a label from (settings, value, location); by default the name of a class.
    """
    config, sources, labeled, errors = request
    text_column, label_column = config.column_names
    names = {"text_column": text_column, "pair_column": config.pair_column}
    flags = config.spec.label_columns if labeled else ()
    names |= {"id_column": config.id_column, "label_column": label_column if labeled and not flags else None}
    columns = [(f"task.{key}", name) for key, name in names.items() if name is not None]
    keys = [key for key, _ in columns]
    columns += [("task.multilabel.label_columns", name) for name in flags]
    values: dict[str, list[Any]] = {key: [] for key in (*keys, *["task.label_column"][: len(flags)])}
    locations: list[str] = []
    for source in sources:
        for location, row in read_rows(source, columns, config.header, errors):
            locations.append(location)
            for key, value in zip(keys, row, strict=False):
                values[key].append(value)
            if flags:
                values["task.label_column"].append(dict(zip(flags, row[len(keys) :], strict=True)))
    texts, pairs = (
        [
            require_field_text(value, str(names[key]), where, errors)
            for value, where in zip(column, locations, strict=True)
        ]
        if (column := values.get(f"task.{key}")) is not None
        else None
        for key in ("text_column", "pair_column")
    )
    assert texts is not None
    ids = [str(value) for value in values.get("task.id_column", range(len(locations)))]
    require_distinct(ids, locations)
    examples = TextExamples(texts, pairs, None, None, ids, locations)
    labels = zip(values.get("task.label_column", ()), locations, strict=labeled)
    if labeled and (config.spec.has_classes or config.spec.has_targets):
        read_label = label or class_label
        examples.labels = [read_label(config, value, where) for value, where in labels]
    elif labeled:
        examples.scores = [score_number(value, where) for value, where in labels]
    empty = sum(not text.strip() for text in [*texts, *(pairs or [])])
    if empty:
        examples.notes.append(f"{empty:,} texts are empty")
    return examples


def class_label(config: TaskConfig, value: Any, where: str) -> str:
    """Returns the name of a class as text; a whole number is an id where `task.labels` holds words.

    Args:
        config: settings of the task.
        value: what the column holds.
        where: its location.

    Raises:
        UserError: it is empty, not a scalar, or not valid text.
    """
    if isinstance(value, list) and not (config.spec.per_token or config.spec.many_labels):
        raise UserError(f"{where}: a list of labels needs {named('task.kind', 'multilabel')}")
    name = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value).strip()
    if not name or isinstance(value, list | dict):
        raise UserError(
            f"{where}: no label in the column of {named('task.label_column')}; every example or word needs one"
        )
    if is_whole(name) and 0 <= int(name) < len(config.labels) and not any(map(is_whole, config.labels)):
        return config.labels[int(name)]
    return require_field_text(name, config.label_column or "label", where)


def score_number(value: Any, where: str) -> float:
    """Returns the label of a regression; raises `UserError` if it is not a finite number."""
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise UserError(f"{where}: {named('task.kind', 'regression')} needs a finite number as label, not {value!r}")
    return score
