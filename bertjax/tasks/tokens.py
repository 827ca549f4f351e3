"""Token classification: a label per word, such as named entities, in CoNLL columns, JSON Lines and hub data sets."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bertjax.config.fields import setting
from bertjax.config.source_files import source_files
from bertjax.config.sources import Source
from bertjax.config.task import TaskConfig
from bertjax.data.readers import REPLACE_ERRORS
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, named
from bertjax.io.jsonl import read_lines
from bertjax.tasks.base import RECORDS, TaskKind, class_sums, label_weights, rounded, softmax
from bertjax.tasks.evaluate import EvalResult
from bertjax.tasks.metrics.classification import classification_scores
from bertjax.tasks.metrics.entities import entity_scores, find_entities
from bertjax.tasks.readers.examples import ReadRequest, WordExamples
from bertjax.tasks.readers.tables import find_column, read_rows, require_distinct, require_field_text
from bertjax.tasks.readers.text_classification import class_label
from bertjax.tasks.tag_schemes import PLAIN_TAGS, TAG, normalize_tags, recognize_scheme
from bertjax.tasks.token_features import TokenData, token_data, tokenizer_of_words
from bertjax.types import Batch, Sum

_DOCUMENT = "-DOCSTART-"
_CONLLU_COLUMNS = 10
_FIRST_ID = re.compile(r"1|1-\d+|0\.1")
_NO_WORD = re.compile(r"\d+-\d+|\d+\.\d+")  # of CoNLL-U: how several words are written as one; a word left out
_Sentence = tuple[str, list[str], list[str] | None, str | None]
"""Location, words, tags, id."""


@dataclasses.dataclass(frozen=True)
class TokenClassification(TaskKind, group="task.tokens"):
    """A label per word: named entities, parts of speech."""

    name, title, head = "tokens", "token classification", "token_classification"
    main_metric, label_array = "f1", "token_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "precision": ("share", "Predicted entities that are right: type and both ends."),
        "recall": ("share", "Gold entities that are predicted."),
        "f1": ("share", "F1 of entities, as in seqeval."),
        "macro_f1": ("share", "Mean F1 of the types; of plain labels, of the labels."),
        "accuracy": ("share", "Words with the right label."),
    }
    has_classes = per_token = True
    takes_pairs, examples = False, WordExamples
    source_kinds, example_source = ("conll", *RECORDS), "conll:train.txt"

    tag_scheme: str = setting(
        "auto",
        choices=("auto", "iob2", "iob1", "bioes", "bilou", "bmes", PLAIN_TAGS),
        help="Scheme of the labels. iob1 is converted to IOB2; plain: labels that mark no entities, scored word by "
        "word; auto: recognized and printed.",
    )

    @property
    def metric(self) -> str:
        return "accuracy" if self.tag_scheme == PLAIN_TAGS else self.main_metric

    def with_labels(self, labels: Sequence[str]) -> TokenClassification:
        plain = recognize_scheme(labels, self.tag_scheme) == PLAIN_TAGS
        return self.replace(tag_scheme=PLAIN_TAGS) if plain else self

    def read_examples(self, request: ReadRequest) -> WordExamples:
        return read_words(request)

    def tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        return tokenizer_of_words(tokenizer)

    def make_features(
        self, config: TaskConfig, examples: Any, tokenizer: Tokenizer, labels: Sequence[str], training: bool
    ) -> TokenData:
        return token_data(config, examples, tokenizer, labels, training)

    def count(self, batch: Batch, class_weights: np.ndarray) -> Array:
        return label_weights(batch["token_labels"], class_weights).sum()

    def loss(self, scores: Array, batch: Batch, class_weights: np.ndarray) -> dict[str, Sum]:
        labels = batch["token_labels"]
        return class_sums(scores, labels, (labels >= 0).astype(jnp.float32), class_weights)

    def compute_metrics(
        self, config: TaskConfig, examples: WordExamples, data: TokenData, scores: np.ndarray, labels: tuple[str, ...]
    ) -> EvalResult:
        assert examples.tags is not None
        predicted = data.predicted_tags(scores.argmax(axis=1))
        if recognize_scheme(data.labels, self.tag_scheme) != PLAIN_TAGS:
            entities = entity_scores(examples.tags, predicted)
            return EvalResult(entities.metrics(), entities.per_type)
        gold, result = ([tag for sentence in tags for tag in sentence] for tags in (examples.tags, predicted))
        plain = classification_scores(gold, result, data.labels)
        metrics = {"accuracy": plain.accuracy, "macro_f1": plain.macro_f1}
        return EvalResult(metrics, plain.per_class, data.labels, plain.confusion)

    def records(
        self, config: TaskConfig, examples: Any, data: Any, scores: Any, labels: tuple[str, ...], top_k: int | None
    ) -> Iterator[dict[str, Any]]:
        """Yields the tags of the words of every sentence, and its entities. Args: as in the base class."""
        tags = data.predicted_tags(scores.argmax(axis=1))
        is_read = data.first_token_of_word >= 0
        best = np.zeros(len(is_read))
        best[is_read] = softmax(scores[data.first_token_of_word[is_read]]).max(axis=1)
        are_entities = recognize_scheme(data.labels, self.tag_scheme) != PLAIN_TAGS
        for words, of_words, (begin, end) in zip(data.words, tags, itertools.pairwise(data.word_offsets), strict=True):
            confidences = best[begin:end]
            record = {"words": words, "tags": of_words, "tag_scores": [rounded(each) for each in confidences]}
            yield record | ({"entities": _entities(words, of_words, confidences)} if are_entities else {})


def _entities(words: list[str], tags: list[str], confidences: np.ndarray) -> list[dict[str, Any]]:
    return [
        {
            "entity": entity.kind,
            "text": " ".join(words[entity.first : entity.last + 1]),
            "first": entity.first,
            "last": entity.last,
            "score": rounded(confidences[entity.first : entity.last + 1].mean()),
        }
        for entity in find_entities(tags)
    ]


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
        examples.tags, notes = normalize_tags(examples.tags, config.spec.tag_scheme, examples.locations)
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
