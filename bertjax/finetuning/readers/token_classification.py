"""Examples of token classification: sentences of tagged words in CoNLL columns, JSON Lines and hub data sets."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from bertjax.config.source_files import source_files
from bertjax.config.sources import Source
from bertjax.data.readers import REPLACE_ERRORS
from bertjax.errors import UserError, named
from bertjax.finetuning.readers.examples import ReadRequest, WordExamples
from bertjax.finetuning.readers.tables import find_column, read_rows, require_distinct, require_field_text
from bertjax.finetuning.readers.text_classification import class_label
from bertjax.finetuning.tag_schemes import TAG, normalize_tags
from bertjax.io.jsonl import read_lines

_DOCUMENT = "-DOCSTART-"
_CONLLU_COLUMNS = 10
_FIRST_ID = re.compile(r"1|1-\d+|0\.1")
_NO_WORD = re.compile(r"\d+-\d+|\d+\.\d+")  # of CoNLL-U: how several words are written as one; a word left out
_Sentence = tuple[str, list[str], list[str] | None, str | None]
"""Location, words, tags, id."""


def read_words(request: ReadRequest) -> WordExamples:
    """Reads all sentences of conll files or of records, in order; a CoNLL sentence is located by its first line."""
    config = request.config
    examples = WordExamples([], [] if request.labeled else None, [], [])
    for source in request.sources:
        read = _read_conll if source.kind == "conll" else _read_records
        for location, words, tags, name in read(request, source, examples.notes):
            examples.locations.append(location)
            examples.words.append(words)
            if examples.tags is not None:
                examples.tags.append(tags or [])
            examples.ids.append(str(len(examples.ids)) if name is None else name)
    require_distinct(examples.ids, examples.locations)
    if examples.tags is not None:
        examples.tags, notes = normalize_tags(examples.tags, config.tokens.tag_scheme, examples.locations)
        examples.notes += notes
    return examples


def _read_conll(request: ReadRequest, source: Source, notes: list[str]) -> Iterator[_Sentence]:
    id_column = request.config.id_column
    if id_column is not None:
        raise UserError(
            f"{named('task.id_column')}={id_column!r}: sentences of CoNLL files have no ids; leave it out (None)"
        )
    for path in source_files(source):
        yield from _read_conll_file(request, path, notes)


def _read_conll_file(request: ReadRequest, path: str, notes: list[str]) -> Iterator[_Sentence]:
    lines = read_lines(path, request.errors, advice=REPLACE_ERRORS)
    head = _until_first_word(lines)
    columns = next((_find_columns(request, line, f"{path}:{i}") for i, line in reversed(head) if line.strip()), None)
    first, comments = "", 0
    words: list[str] = []
    tags: list[str] = []
    for number, line in itertools.chain(head, lines):
        fields, where = _split_fields(line), f"{path}:{number}"
        if columns is None or not fields or fields[0] == _DOCUMENT:
            if words:
                yield first, words, tags if request.labeled else None, None
            words, tags = [], []
        elif columns.is_comment(line, fields, begins=not words):
            comments += 1
        elif len(fields) != columns.width:
            raise UserError(f"{where}: {len(fields)} columns, but the file begins with {columns.width}; fix this line")
        elif not (columns.have_ids and _NO_WORD.fullmatch(fields[0])):
            first = first if words else where
            words.append(fields[columns.word])
            if request.labeled:
                tags.append(class_label(request.config, fields[columns.tag], where))
    if words:
        yield first, words, tags if request.labeled else None, None
    if comments and columns is not None and not columns.have_ids:
        notes.append(f"{path}: {comments:,} lines that begin with # are comments")


def _until_first_word(lines: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    """Returns the lines up to the first that is certainly of a word, or all that there are."""
    head = []
    for number, line in lines:
        head.append((number, line))
        if line.strip() and not line.startswith(("#", _DOCUMENT)):
            break
    return head


class _Columns(NamedTuple):
    """Columns of a CoNLL file: their number, those of words and tags, tabs between them, ids of words in the first."""

    width: int
    word: int
    tag: int
    have_tabs: bool
    have_ids: bool

    def is_comment(self, line: str, fields: list[str], begins: bool) -> bool:
        """Returns whether a line is a comment, and not the word # or one that begins with it, such as #tag.

        With ids, as in CoNLL-U, every line with # in front is one. Else comments precede a sentence, and have no tabs
        where words have; or they begin with # alone, and have other columns than words or, between blanks, end in no
        tag such as O or B-PER.
        """
        if self.have_ids or not begins or not line.startswith("#"):
            return self.have_ids and line.startswith("#")
        if self.have_tabs and "\t" not in line:
            return True
        is_word = len(fields) == self.width and (
            self.have_tabs or self.width == 1 or TAG.fullmatch(fields[self.tag]) is not None
        )
        return line.split(maxsplit=1)[0] == "#" and not is_word


def _split_fields(line: str) -> list[str]:
    """Splits a line at tabs if it has any, else at blanks."""
    if "\t" not in line:
        return line.split()
    fields = [field.strip() for field in line.split("\t")]
    return fields if any(fields) else []


def _find_columns(request: ReadRequest, line: str, where: str) -> _Columns:
    """Reads the layout of a file from its first word; words and tags of CoNLL-U are the columns FORM and UPOS."""
    config, fields, has_tabs = request.config, _split_fields(line), "\t" in line
    header = list(map(str, range(len(fields))))
    has_ids = has_tabs and _FIRST_ID.fullmatch(fields[0]) is not None
    defaults = ("1", "3") if has_ids and len(fields) == _CONLLU_COLUMNS else ("0", "-1")
    word = find_column(config.text_column or defaults[0], header, "task.text_column", where)
    tag = -1
    if request.labeled:
        tag = find_column(config.label_column or defaults[1], header, "task.label_column", where)
        if word == tag:
            raise UserError(
                f"{where}: words and tags are both read from column {word}; the line has {len(fields)} columns"
            )
    return _Columns(len(fields), word, tag, has_tabs, has_ids and word != 0)


def _read_records(request: ReadRequest, source: Source, _notes: list[str]) -> Iterator[_Sentence]:
    config, _, labeled, errors = request
    columns = [("task.text_column", config.text_column or "tokens")]
    columns += [("task.id_column", config.id_column)] if config.id_column is not None else []
    columns += [("task.label_column", config.label_column or "tags")] if labeled else []
    for where, values in read_rows(source, columns, errors=errors):
        words = _texts(values[0], columns[0][1], where, errors)
        name = str(values[1]) if config.id_column is not None else None
        labels = _require_list(values[-1], columns[-1][1], where) if labeled else None
        tags = None if labels is None else [class_label(config, each, where) for each in labels]
        if tags is not None and len(tags) != len(words):
            raise UserError(f"{where}: {len(words)} words, but {len(tags)} tags; every word needs one")
        yield where, words, tags, name


def _texts(value: Any, name: str, where: str, errors: str) -> list[str]:
    values = _require_list(value, name, where)
    return [require_field_text(str(each) if isinstance(each, int) else each, name, where, errors) for each in values]


def _require_list(value: Any, name: str, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise UserError(f"{where}: field {name!r} holds {type(value).__name__} where a list is expected")
    return value
