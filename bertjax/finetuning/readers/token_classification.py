"""Sentences of tagged words: CoNLL columns, JSON lines, hub data sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bertjax.config.sources import Source, source_files
from bertjax.config.task import TaskConfig
from bertjax.data.readers import REPLACE_ERRORS
from bertjax.errors import UserError
from bertjax.finetuning.readers.bio_tags import normalize_tags
from bertjax.finetuning.readers.examples import WordExamples
from bertjax.finetuning.readers.records import Places, column_of, text_of
from bertjax.finetuning.readers.text_classification import hub_columns, jsonl_rows, require_distinct
from bertjax.io.jsonl import read_lines

_DOCUMENT = "-DOCSTART-"
Sentence = tuple[str, int, list[str], list[str] | None, str | None]
"""What stands before its number in messages, its number, words, tags, id."""


def read_words(config: TaskConfig, sources: Sequence[Source], labelled: bool, errors: str) -> WordExamples:
    """All sentences of the sources, in order; raises `UserError` naming file and line.

    The number of a sentence of a CoNLL file is that of its first line.
    """
    words: list[list[str]] = []
    tags: list[list[str]] = []
    ids: list[str] = []
    places = Places()
    for source in sources:
        read = _conll if source.kind == "conll" else _records
        for prefix, number, found, found_tags, name in read(config, source, labelled, errors):
            places.add(prefix, number)
            words.append(found)
            tags.append(found_tags or [])
            ids.append(str(len(ids)) if name is None else name)
    require_distinct(ids, places)
    taught, notes = normalize_tags(tags, config.tokens.tag_scheme, places) if labelled else (None, [])
    return WordExamples(words, taught, ids, places, notes)


def _conll(config: TaskConfig, source: Source, labelled: bool, errors: str) -> Iterator[Sentence]:
    if config.id_column is not None:
        raise UserError(
            f"task.id_column={config.id_column!r}: sentences of CoNLL files have no ids; set task.id_column to None"
        )
    for path in source_files(source):
        yield from _conll_file(config, path, labelled, errors)


def _conll_file(config: TaskConfig, path: str, labelled: bool, errors: str) -> Iterator[Sentence]:
    prefix, first = f"{path}:", 0
    width = word_column = tag_column = -1
    words: list[str] = []
    tags: list[str] = []
    for number, line in read_lines(path, errors, advice=REPLACE_ERRORS):
        fields = _fields(line)
        if not fields or fields[0] == _DOCUMENT:
            if words:
                yield prefix, first, words, tags if labelled else None, None
            words, tags = [], []
            continue
        if width < 0:
            width = len(fields)
            word_column, tag_column = _columns(config, width, labelled, f"{prefix}{number}")
        if len(fields) != width:
            raise UserError(
                f"{prefix}{number}: {len(fields)} columns, but the file begins with {width}; mend this line"
            )
        if not words:
            first = number
        words.append(fields[word_column])
        if labelled:
            tags.append(fields[tag_column])
    if words:
        yield prefix, first, words, tags if labelled else None, None


def _fields(line: str) -> list[str]:
    """The columns of a line: between tabs where there are any, else between blanks."""
    if "\t" not in line:
        return line.split()
    fields = [field.strip() for field in line.split("\t")]
    return fields if any(fields) else []


def _columns(config: TaskConfig, width: int, labelled: bool, where: str) -> tuple[int, int]:
    header = list(map(str, range(width)))
    word = column_of(config.text_column or "0", header, "task.text_column", where)
    if not labelled:
        return word, -1
    tag = column_of(config.label_column or "-1", header, "task.label_column", where)
    if word == tag:
        raise UserError(f"{where}: words and tags are both read from column {word}; the line has {width} columns")
    return word, tag


def _records(config: TaskConfig, source: Source, labelled: bool, errors: str) -> Iterator[Sentence]:
    columns = [("task.text_column", config.text_column or "tokens")]
    columns += [("task.id_column", config.id_column)] if config.id_column is not None else []
    columns += [("task.label_column", config.label_column or "tags")] if labelled else []
    read = hub_columns if source.kind == "hub" else jsonl_rows
    for prefix, number, values in read(source, columns, False, errors):
        where = f"{prefix}{number}"
        words = _strings(values[0], columns[0][1], where, errors)
        name = str(values[1]) if config.id_column is not None else None
        tags = _strings(values[-1], columns[-1][1], where, errors) if labelled else None
        if tags is not None and len(tags) != len(words):
            raise UserError(f"{where}: {len(words)} words, but {len(tags)} tags; every word needs one")
        yield prefix, number, words, tags, name


def _strings(value: Any, name: str, where: str, errors: str) -> list[str]:
    if not isinstance(value, list):
        raise UserError(f"{where}: field {name!r} holds {type(value).__name__} where a list is expected")
    return [text_of(str(each) if isinstance(each, int) else each, name, where, errors) for each in value]
