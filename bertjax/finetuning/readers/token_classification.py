"""Examples of token classification: sentences of tagged words in CoNLL columns, JSON Lines and hub data sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertjax.config.source_files import source_files
from bertjax.config.sources import Source
from bertjax.data.readers import REPLACE_ERRORS
from bertjax.errors import UserError, named
from bertjax.finetuning.readers.examples import ReadRequest, WordExamples
from bertjax.finetuning.readers.tables import find_column, read_rows, require_distinct, require_text
from bertjax.finetuning.tag_schemes import normalize_tags
from bertjax.io.jsonl import read_lines

_DOCUMENT = "-DOCSTART-"
_Sentence = tuple[str, list[str], list[str] | None, str | None]
"""Location, words, tags, id."""


def read_words(request: ReadRequest) -> WordExamples:
    """Reads all sentences of conll files or of records, in order; a CoNLL sentence is located by its first line."""
    config = request.config
    examples = WordExamples([], [] if request.labelled else None, [], [])
    for source in request.sources:
        read = _read_conll if source.kind == "conll" else _read_records
        for location, words, tags, name in read(request, source):
            examples.locations.append(location)
            examples.words.append(words)
            if examples.tags is not None:
                examples.tags.append(tags or [])
            examples.ids.append(str(len(examples.ids)) if name is None else name)
    require_distinct(examples.ids, examples.locations)
    if examples.tags is not None:
        examples.tags, examples.notes = normalize_tags(examples.tags, config.tokens.tag_scheme, examples.locations)
    return examples


def _read_conll(request: ReadRequest, source: Source) -> Iterator[_Sentence]:
    id_column = request.config.id_column
    if id_column is not None:
        raise UserError(
            f"{named('task.id_column')}={id_column!r}: sentences of CoNLL files have no ids; leave it out (None)"
        )
    for path in source_files(source):
        yield from _read_conll_file(request, path)


def _read_conll_file(request: ReadRequest, path: str) -> Iterator[_Sentence]:
    first, width, word_column, tag_column = "", -1, -1, -1
    words: list[str] = []
    tags: list[str] = []
    for number, line in read_lines(path, request.errors, advice=REPLACE_ERRORS):
        fields = _split_fields(line)
        if not fields or fields[0] == _DOCUMENT:
            if words:
                yield first, words, tags if request.labelled else None, None
            words, tags = [], []
            continue
        where = f"{path}:{number}"
        if width < 0:
            width = len(fields)
            word_column, tag_column = _find_columns(request, width, where)
        if len(fields) != width:
            raise UserError(f"{where}: {len(fields)} columns, but the file begins with {width}; fix this line")
        if not words:
            first = where
        words.append(fields[word_column])
        if request.labelled:
            tags.append(fields[tag_column])
    if words:
        yield first, words, tags if request.labelled else None, None


def _split_fields(line: str) -> list[str]:
    """Splits a line at tabs if it has any, else at blanks."""
    if "\t" not in line:
        return line.split()
    fields = [field.strip() for field in line.split("\t")]
    return fields if any(fields) else []


def _find_columns(request: ReadRequest, width: int, where: str) -> tuple[int, int]:
    config, header = request.config, list(map(str, range(width)))
    word = find_column(config.text_column or "0", header, "task.text_column", where)
    if not request.labelled:
        return word, -1
    tag = find_column(config.label_column or "-1", header, "task.label_column", where)
    if word == tag:
        raise UserError(f"{where}: words and tags are both read from column {word}; the line has {width} columns")
    return word, tag


def _read_records(request: ReadRequest, source: Source) -> Iterator[_Sentence]:
    config, _, labelled, errors = request
    columns = [("task.text_column", config.text_column or "tokens")]
    columns += [("task.id_column", config.id_column)] if config.id_column is not None else []
    columns += [("task.label_column", config.label_column or "tags")] if labelled else []
    for where, values in read_rows(source, columns, errors=errors):
        words = _texts(values[0], columns[0][1], where, errors)
        name = str(values[1]) if config.id_column is not None else None
        tags = _texts(values[-1], columns[-1][1], where, errors) if labelled else None
        if tags is not None and len(tags) != len(words):
            raise UserError(f"{where}: {len(words)} words, but {len(tags)} tags; every word needs one")
        yield where, words, tags, name


def _texts(value: Any, name: str, where: str, errors: str) -> list[str]:
    if not isinstance(value, list):
        raise UserError(f"{where}: field {name!r} holds {type(value).__name__} where a list is expected")
    return [require_text(str(each) if isinstance(each, int) else each, name, where, errors) for each in value]
