"""Examples to predict: JSON Lines, lines of text, tables, CoNLL and SQuAD files, standard input."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bertjax.compression import bare_name
from bertjax.config.extensions import SOURCES, TASK_KINDS
from bertjax.config.sources import is_task_source, parse_task_source
from bertjax.config.task import TaskConfig
from bertjax.data.words import token_spans
from bertjax.errors import UserError, named, shortened
from bertjax.inference.text_files import (
    JsonRecord,
    is_jsonl,
    parse_records,
    read_records,
    read_texts,
    require_input_text,
)
from bertjax.io.jsonl import STDIN
from bertjax.tasks.multiple_choice import (
    NamedChoices,
    field_choices,
    joined_turns,
    parse_answer,
    parse_choices,
)
from bertjax.tasks.qa import read_answers
from bertjax.tasks.readers.examples import (
    ChoiceExamples,
    Examples,
    GoldAnswers,
    QaExamples,
    TextExamples,
    WordExamples,
    read_examples,
)
from bertjax.tasks.readers.tables import get_field, read_rows, with_text_column
from bertjax.tasks.readers.text_classification import class_label, score_number

WINDOW = 8192
"""Number of examples that are in memory, and sorted by length, at a time."""
PLACEHOLDER_SOURCE = "jsonl:-"
"""Source of a `TaskConfig` from which nothing is read."""
_KIND_OF_ENDING = {".tsv": "tsv", ".csv": "csv", ".parquet": "parquet", ".json": "squad"}
_KIND_OF_ENDING |= dict.fromkeys((".conll", ".bio", ".iob"), "conll")
_NOT_TEXT = (".arrow", ".zip", ".tar", ".7z", ".pdf", ".docx", ".html", ".xlsx")


class WordSpans(NamedTuple):
    """The words of a text, and the characters [begin, end) of each."""

    words: list[str]
    spans: list[tuple[int, int]]


@dataclasses.dataclass(eq=False)
class PredictInputs:
    """Examples to predict.

    Attributes:
        examples: The examples.
        ids: Their ids in the input, else their numbers in it, from 0.
        split_texts: Text and spans of its words where a text was split into words, else None.
    """

    examples: Examples
    ids: list[Any]
    split_texts: list[tuple[str, WordSpans] | None]


def split_words(text: str) -> WordSpans:
    """Splits a text into the words and signs of `token_spans`."""
    items = token_spans(text)
    return WordSpans([text[begin:end] for begin, end in items], items)


def read_inputs(
    config: TaskConfig, files: Sequence[str], gold: bool = False, window: int | None = WINDOW
) -> Iterator[PredictInputs]:
    """Yields the examples of all files, in order.

    Args:
        config: settings with which the examples are read.
        files: paths, whose format follows from the ending; KIND:WHERE as in `task.train`; or `-`, the standard input:
            JSON Lines if its first line is an object, else one text per line.
        gold: whether to read labels.
        window: number of examples at a time; None: all at once.

    Raises:
        UserError: something cannot be read; names file and line.
    """
    yield from _windows(config, (each for file in files for each in _read_file(config, file, gold)), gold, window)


def read_values(
    config: TaskConfig, records: Iterable[JsonRecord], gold: bool = False, window: int | None = WINDOW
) -> Iterator[PredictInputs]:
    """Yields the examples of records (see `to_record`), as `read_inputs` does those of a .jsonl file.

    Args:
        config: settings with which the examples are read.
        records: the examples.
        gold: whether to read labels.
        window: number of examples at a time; None: all at once.

    Raises:
        UserError: a record does not suit the task; names it.
    """
    return _windows(config, _read_records(config, iter(records), gold), gold, window)


def to_record(value: Any, index: int, kind: str) -> JsonRecord:
    """Returns an example that Python holds as a record.

    Args:
        value: a text, a pair of texts, a question with its context, or a list of words, as the task reads; or a mapping
            with the fields of a .jsonl file.
        index: its number, for messages.
        kind: kind of the task.

    Raises:
        UserError: the value is nothing that a model of this kind reads.
    """
    where = f"inputs[{index}]"
    if isinstance(value, Mapping):
        return JsonRecord(where, dict(value))
    form = TASK_KINDS.load(kind).examples
    if isinstance(value, str) and form is not QaExamples:
        return JsonRecord(where, {"text": value})
    if isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(each, str) for each in value):
        if form is WordExamples:
            return JsonRecord(where, {"words": list(value)})
        if len(value) == 2:
            names = ("question", "context") if form is QaExamples else ("text", "pair")
            return JsonRecord(where, dict(zip(names, value, strict=True)))
    expected = (
        "(question, context)" if form is QaExamples else "a text or a list of words" if form is WordExamples else ""
    )
    raise UserError(
        f"{where}: give {expected or 'a text or a pair of texts'}, or a dict of fields, not {shortened(value)}"
    )


def _windows(
    config: TaskConfig, examples: Iterator[_Example], gold: bool, window: int | None
) -> Iterator[PredictInputs]:
    count = 0
    while pending := list(itertools.islice(examples, window)):
        yield _collect(config, pending, count, gold)
        count += len(pending)


class _Example(NamedTuple):
    """An example of any kind.

    `first` and `second` are two texts, question and context, or context and question of `choices`; `words` replaces
    `first`.
    """

    location: str
    id: Any
    first: str
    second: str | None = None
    words: list[str] | None = None
    gold: Any = None
    choices: NamedChoices | None = None


def _read_file(config: TaskConfig, file: str, gold: bool) -> Iterator[_Example]:
    if is_task_source(file):
        return _read_source(config, file, gold)
    bare = bare_name(file)
    ending = next((each for each in _KIND_OF_ENDING if bare.endswith(each)), None)
    if ending is not None:
        return _read_source(config, f"{_KIND_OF_ENDING[ending]}:{file}", gold)
    if bare.endswith(_NOT_TEXT):
        raise UserError(
            f"{named('inputs')} {file}: give .jsonl, .txt (one text per line), .tsv or .csv, plain or compressed, or "
            ".parquet"
        )
    if file == STDIN:
        return _read_stdin(config, gold)
    if is_jsonl(file):
        return _read_records(config, read_records(file), gold)
    if config.spec.examples is WordExamples and not bare.endswith(".txt"):  # such as eng.testa, whose lines are words
        raise UserError(
            f"{named('inputs')} {file}: name its format: conll:{file}, or rename it to .txt if a line is a text"
        )
    return _read_lines(config, file, read_texts(file), gold)


def _read_stdin(config: TaskConfig, gold: bool) -> Iterator[_Example]:
    lines = read_texts(STDIN)
    first = next(lines, None)
    if first is None:
        return iter(())
    lines = itertools.chain([first], lines)
    if not first[1].lstrip().startswith("{"):
        return _read_lines(config, "the standard input", lines, gold)
    return _read_records(config, parse_records(lines, "the standard input"), gold)


def _read_lines(config: TaskConfig, name: str, lines: Iterator[tuple[int, str]], gold: bool) -> Iterator[_Example]:
    needed = {QaExamples: "questions with their contexts", ChoiceExamples: "choices"}.get(config.spec.examples, "")
    missing = needed or ("two texts" if config.is_pair else "labels" if gold else "")
    if missing:
        raise UserError(f"{name}: lines of text hold no {missing}; give .jsonl (or .tsv where columns do)")
    for number, line in lines:
        yield _Example(f"{name}:{number}", None, line)


def _read_records(config: TaskConfig, records: Iterator[JsonRecord], gold: bool) -> Iterator[_Example]:
    for record in records:
        name = record.values.get(config.id_column or "id")
        if config.id_column is not None and name is None:
            raise UserError(f"{record.location}: no field {config.id_column!r}, which {named('id_column')} names")
        if isinstance(name, dict | list):
            raise UserError(f"{record.location}: an id must be text or a number")
        label = _gold_field(config, record) if gold else None
        if config.spec.examples is QaExamples:
            yield _Example(record.location, name, record.text("question"), record.text("context"), gold=label)
        elif config.spec.examples is WordExamples:
            yield _read_words(config, record, name, label)
        elif config.spec.examples is ChoiceExamples:
            yield _read_choices(config, record, name, label)
        else:
            field = _field(config.column_names[0], "text", record)
            texts = [name for name, value in record.values.items() if isinstance(value, str)]
            ((_, field),) = with_text_column([("task.text_column", field)], record.values, texts)
            text = record.text(field, named("text_column"))
            pair = None
            if config.pair_column is not None:
                pair = record.text(_field(config.pair_column, "pair", record), named("pair_column"))
            yield _Example(record.location, name, text, pair, gold=label)


def _field(column: str | None, default: str, record: JsonRecord) -> str:
    """Returns the configured column, unless only the default one exists: a run may have read other columns."""
    return column if column is not None and (column in record.values or default not in record.values) else default


def _gold_field(config: TaskConfig, record: JsonRecord) -> Any:
    if flags := config.spec.label_columns:
        return {
            name: get_field(record.values, name, "task.multilabel.label_columns", record.location) for name in flags
        }
    default = {QaExamples: "answers", WordExamples: "tags"}.get(config.spec.examples, config.spec.columns[1])
    field = _field(config.label_column, default, record)
    if record.values.get(field) is None:
        raise UserError(
            f"{record.location}: no field {field!r} to score against; leave {named('score')} out, or name it with "
            f"{named('label_column')}"
        )
    return record.values[field]


def _read_words(config: TaskConfig, record: JsonRecord, name: Any, tags: Any) -> _Example:
    field = next(
        (each for each in (config.text_column, "words", "tokens", "text") if each and each in record.values), None
    )
    value = None if field is None else record.values[field]
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        for word in value:
            require_input_text(record.location, word)
        if tags is not None and (not isinstance(tags, list) or len(tags) != len(value)):
            raise UserError(f"{record.location}: {len(value)} words, but not as many tags")
        return _Example(record.location, name, "", words=value, gold=tags)
    if field is None or not isinstance(value, str):
        raise UserError(
            f"{record.location}: no field words or tokens (a list of words), nor text; name yours with "
            f"{named('text_column')}"
        )
    if tags is not None:
        raise UserError(f"{record.location}: {named('score')} needs words with their tags, not a text")
    return _Example(record.location, name, record.text(field))


def _read_choices(config: TaskConfig, record: JsonRecord, name: Any, label: Any) -> _Example:
    choices = parse_choices(field_choices(config, record.values), record.location)
    field = _field(config.column_names[0], "context", record)
    values = {**record.values, field: joined_turns(record.values.get(field))}
    context = JsonRecord(record.location, values).text(field, named("text_column"))
    column = _field(config.spec.question_column, "question", record)
    needed = config.spec.question_column is not None
    question = record.text(column) if needed or column in record.values else None
    gold = None if label is None else parse_answer(label, choices, record.location)
    return _Example(record.location, name, context, question, gold=gold, choices=choices)


def _read_source(config: TaskConfig, text: str, gold: bool) -> Iterator[_Example]:
    """Reads a source of finetuning, without labels unless `gold`."""
    source = parse_task_source(text, named("inputs"))
    if config.spec.examples is WordExamples and source.kind in ("tsv", "csv") and not gold:
        columns = [("task.text_column", config.text_column or "text")]
        for location, values in read_rows(source, columns, config.header):
            yield _Example(location, None, values[0])
        return
    if source.kind not in config.spec.source_kinds and not SOURCES.is_extension(source.kind):
        raise UserError(
            f"{named('inputs')} {source.where}: a {source.kind} file holds nothing for a model of kind {config.kind}; "
            f"give one of {', '.join(config.spec.source_kinds)}"
        )
    items = read_examples(config, sources=[text], labeled=gold)
    has_ids = config.id_column is not None or isinstance(items, QaExamples)
    for index in range(len(items)):
        yield _take(items, index, items.ids[index] if has_ids else None)


def _take(items: Examples, index: int, name: str | None) -> _Example:
    location = items.locations[index]
    if isinstance(items, QaExamples):
        context = items.contexts[items.context_of[index]]
        return _Example(location, name, items.questions[index], context, gold=_at(items.answers, index))
    if isinstance(items, WordExamples):
        return _Example(location, name, "", words=items.words[index], gold=_at(items.tags, index))
    if isinstance(items, ChoiceExamples):
        choices = NamedChoices(items.choices[index])
        question, gold = _at(items.questions, index), _at(items.answers, index)
        return _Example(location, name, items.contexts[index], question, gold=gold, choices=choices)
    gold = _at(items.labels if items.scores is None else items.scores, index)
    return _Example(location, name, items.texts[index], _at(items.pairs, index), gold=gold)


def _at(values: Sequence[Any] | None, index: int) -> Any:
    return None if values is None else values[index]


def _collect(config: TaskConfig, items: Sequence[_Example], first: int, gold: bool) -> PredictInputs:
    """Makes the examples of their kind; they are numbered, because the ids of an input need not be distinct."""
    locations = [each.location for each in items]
    numbers = [str(first + index) for index in range(len(items))]
    ids = [number if each.id is None else each.id for number, each in enumerate(items, first)]
    split: list[tuple[str, WordSpans] | None] = [None] * len(items)
    examples: Examples
    if config.spec.examples is QaExamples:
        contexts: dict[str, int] = {}
        context_of = [contexts.setdefault(each.second or "", len(contexts)) for each in items]
        answers = [_gold_answers(each) for each in items] if gold else None
        examples = QaExamples([each.first for each in items], list(contexts), context_of, answers, numbers, locations)
    elif config.spec.examples is ChoiceExamples:
        has_questions = any(each.second is not None for each in items)
        questions = [each.second or "" for each in items] if has_questions else None
        choices = [each.choices.texts for each in items if each.choices is not None]
        contexts_of = [each.first for each in items]
        right = [each.gold for each in items] if gold else None
        examples = ChoiceExamples(contexts_of, questions, choices, right, numbers, locations)
    elif config.spec.examples is WordExamples:
        split = [(each.first, split_words(each.first)) if each.words is None else None for each in items]
        words = [each.words if parts is None else parts[1].words for each, parts in zip(items, split, strict=True)]
        tags = [[class_label(config, tag, each.location) for tag in each.gold] for each in items] if gold else None
        examples = WordExamples([list(each or []) for each in words], tags, numbers, locations)
    else:
        pairs = [each.second or "" for each in items] if config.pair_column is not None else None
        examples = TextExamples([each.first for each in items], pairs, None, None, numbers, locations)
        if gold and (config.spec.has_classes or config.spec.has_targets):
            examples.labels = [config.spec.label(config, each.gold, each.location) for each in items]
        elif gold:
            examples.scores = [score_number(each.gold, each.location) for each in items]
    return PredictInputs(examples, ids, split)


def _gold_answers(example: _Example) -> GoldAnswers:
    is_read = isinstance(example.gold, GoldAnswers)
    return example.gold if is_read else read_answers(example.gold, example.location)
