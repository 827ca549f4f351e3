"""Data of the tasks of a suite: missing files, texts of several fields, the part of train to choose rates on."""

from __future__ import annotations

import dataclasses
import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bertjax.config.extensions import TASK_KINDS
from bertjax.config.source_files import source_files
from bertjax.config.sources import Source, parse_task_source
from bertjax.config.suites import SuiteTask
from bertjax.config.task import task_config
from bertjax.data.sources import open_hub_data
from bertjax.errors import UserError
from bertjax.io import atomic
from bertjax.tasks.readers.examples import ChoiceExamples, TextExamples, read_examples
from bertjax.tasks.readers.labels import collect_labels
from bertjax.tasks.readers.tables import read_rows, require_field_text

HELD_OUT = 0.1
"""Share of the training examples that points of a grid are compared on."""
_SPLIT_SEED = 0


def why_missing(task: SuiteTask) -> str:
    """Returns why a task cannot run here: a kind of task or data that are not there; "" if it can.

    Raises:
        UserError: a source is of an unknown kind, or the Hub cannot be reached.
    """
    if task.missing:
        return task.missing
    kind = task.recipe.partition(":")[0].rpartition("/")[2]
    if task.recipe.startswith("finetune/") and kind not in TASK_KINDS:
        return f"needs task.kind={kind}, which this version does not have"
    for text in task.sources:
        source = parse_task_source(f"jsonl:{text}" if task.command == _PAIRS else text, "source")
        if reason := why_absent(source):
            return reason + (f"; {task.where}" if task.where else "")
    return ""


def why_absent(source: Source) -> str:
    """Returns why a source is not there: a file, or a config or split of the Hub; "" if it is, then in the cache.

    Raises:
        UserError: the Hub cannot be reached.
    """
    try:
        if source.spec.is_file:
            source_files(source)
        elif source.kind == "hub":
            open_hub_data(source.hub_parts)
    except UserError as error:
        if source.spec.is_file:
            return f"{source.where} is missing"
        if not isinstance(error.__cause__, ValueError | FileNotFoundError):
            raise
        return str(error)
    return ""


_PAIRS = "eval-minimal-pairs"


def with_packed_files(task: SuiteTask) -> SuiteTask:
    """Returns the task with FILE.gz in place of each file that exists only compressed."""

    def packed(sources: Sequence[str]) -> tuple[str, ...]:
        return tuple(map(_packed, sources))

    submit = {name: {**each, "source": _packed(each["source"])} for name, each in task.submit.items()}
    evals = {name: packed(each) for name, each in task.evals.items()}
    return dataclasses.replace(task, train=packed(task.train), eval=packed(task.eval), evals=evals, submit=submit)


def _packed(source: str) -> str:
    kind, colon, where = source.rpartition(":") if not source.startswith("hub:") else ("", "", source)
    path = Path(where).expanduser()
    exists = any(path.parent.glob(path.name)) if path.parent.is_dir() else False
    packed = any(path.parent.glob(f"{path.name}.gz")) if path.parent.is_dir() else False
    return f"{kind}{colon}{where}.gz" if packed and not exists else source


def fill_templates(task: SuiteTask, folder: Path) -> SuiteTask:
    """Writes texts that several fields make up, such as `{word}: {sentence1}`, and returns the task that reads them.

    Args:
        task: a task.
        folder: where the files are written.

    Raises:
        UserError: a row lacks a field.
    """
    templates = _templates(task)
    if not templates:
        return task
    label = {"label": str(task.settings.get("task.label_column", "label"))}

    def written(name: str, sources: Sequence[str]) -> tuple[str, ...]:
        return (_write_filled(task, sources, folder / f"{name}.jsonl", label),)

    settings = {**task.settings, **{_TEMPLATE_KEYS[name]: name for name in templates}}
    return dataclasses.replace(
        task,
        train=written("train", task.train),
        eval=written("eval", task.eval),
        evals={name: written(f"eval-{name}", sources) for name, sources in task.evals.items()},
        settings={**settings, "task.label_column": "label"},
    )


def fill_test_file(task: SuiteTask, name: str, folder: Path) -> Mapping[str, Any]:
    """Returns an entry of `submit` with the texts that `fill_templates` would make of its source.

    Args:
        task: the task with its templates.
        name: name of the entry.
        folder: where the file is written.

    Raises:
        UserError: a row lacks a field.
    """
    entry = task.submit[name]
    if not _templates(task):
        return entry
    ids = {"id": entry["id_column"]} if "id_column" in entry else {}
    source = _write_filled(task, [entry["source"]], folder / f"test-{Path(name).stem}.jsonl", ids)
    return {**entry, "source": source, **{f"{key}_column": key for key in ids}}


_TEMPLATE_KEYS = {"text": "task.text_column", "pair": "task.pair_column"}


def _templates(task: SuiteTask) -> dict[str, str]:
    """Returns the columns of the texts, if one of them is a template."""
    columns = {name: str(task.settings[key]) for name, key in _TEMPLATE_KEYS.items() if task.settings.get(key)}
    return columns if any("{" in column for column in columns.values()) else {}


def _write_filled(task: SuiteTask, sources: Sequence[str], path: Path, others: Mapping[str, str]) -> str:
    """Writes the texts of all rows, and further columns by their new names; returns the source of the file."""
    parts = {name: _parse_template(column) for name, column in _templates(task).items()}
    fields = list(dict.fromkeys(field for each in parts.values() for _, field in each if field))
    columns = [(_TEMPLATE_KEYS["text"], field) for field in fields]
    columns += [(f"task.{name}_column", column) for name, column in others.items()]
    rows = []
    for source in (parse_task_source(text, "the source") for text in sources):
        for where, values in read_rows(source, columns, task.settings.get("task.header")):
            texts = {field: require_field_text(each, field, where) for field, each in zip(fields, values, strict=False)}
            filled = {name: "".join(a + texts.get(b, "") for a, b in each) for name, each in parts.items()}
            rows.append(filled | dict(zip(others, values[len(fields) :], strict=True)))
    return _write_rows(path, rows)


def _parse_template(column: str) -> list[tuple[str, str]]:
    """Returns pairs of a text and the field that follows it, "" at the end; a column without braces is one field."""
    if "{" not in column:
        return [("", column)]
    return [(text, field or "") for text, field, _, _ in string.Formatter().parse(column)]


def hold_out(cfg: ConfigDict, folder: Path) -> dict[str, Any]:
    """Splits the training examples of a task into two files; a fixed draw, so that all models get the same split.

    Args:
        cfg: config of a task of texts, pairs of texts or choices.
        folder: where the files are written.

    Returns:
        The config keys that train on the larger part and score on the other.

    Raises:
        UserError: the task has no texts to split, or fewer than two examples.
    """
    config = task_config(cfg)
    examples = read_examples(config)
    if not isinstance(examples, TextExamples | ChoiceExamples) or len(examples) < 2:
        raise UserError(
            "a grid needs texts, pairs of texts or choices, two or more: part of them is held out to choose by"
        )
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(examples)).tolist()
    count = max(1, round(len(order) * HELD_OUT))
    parts = {"held-out": examples.take(sorted(order[:count])), "fit": examples.take(sorted(order[count:]))}
    held_out, fit = (_write_rows(folder / f"{name}.jsonl", _rows(part)) for name, part in parts.items())
    keys: dict[str, Any] = {"task.train": (fit,), "task.eval": (held_out,), "task.label_column": "label"}
    keys |= {"task.id_column": None, "task.header": None, "task.labels": collect_labels(config, examples)}
    if isinstance(examples, TextExamples):
        return keys | {"task.text_column": "text", "task.pair_column": None if examples.pairs is None else "pair"}
    names: dict[str, Any] = {
        "question_column": None if examples.questions is None else "question",
        "choices_column": "choices",
        "choice_columns": (),
    }
    return keys | {"task.text_column": "context"} | {f"task.multiple_choice.{key}": each for key, each in names.items()}


def _rows(examples: TextExamples | ChoiceExamples) -> list[dict[str, Any]]:
    if isinstance(examples, ChoiceExamples):
        lists: dict[str, Any] = {"context": examples.contexts, "question": examples.questions}
        lists |= {"choices": examples.choices, "label": examples.answers}
        columns = {name: values for name, values in lists.items() if values is not None}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    labels = examples.scores if examples.labels is None else examples.labels
    assert labels is not None
    rows = [{"text": text, "label": label} for text, label in zip(examples.texts, labels, strict=True)]
    pairs = examples.pairs or []
    return [row | {"pair": pair} for row, pair in zip(rows, pairs, strict=True)] if pairs else rows


def _write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return f"jsonl:{path}"
