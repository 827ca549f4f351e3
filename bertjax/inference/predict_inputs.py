"""Examples to be predicted, as people have them: JSON lines, lines of text, tables, CoNLL and SQuAD files, stdin."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bertjax.config.sources import TASK_SOURCES, parse_task_source
from bertjax.config.task import TaskConfig
from bertjax.errors import UserError
from bertjax.finetuning.readers.examples import Examples, GoldAnswers, QaExamples, TextExamples, WordExamples
from bertjax.finetuning.readers.load import read_examples
from bertjax.finetuning.readers.records import Places
from bertjax.finetuning.readers.text_classification import READERS
from bertjax.inference.text_files import JsonRecord, is_jsonl, read_records, read_texts, records_of
from bertjax.io.jsonl import STDIN

WINDOW = 8192
"""Examples that are held, and sorted by length, together."""
PLACEHOLDER_SOURCE = "jsonl:-"
"""A source for configs that are never read from: `TaskConfig` wants one."""
_BY_ENDING = {".tsv": "tsv", ".csv": "csv", ".json": "squad", ".conll": "conll", ".bio": "conll", ".iob": "conll"}
_NO_LINES = (".parquet", ".zst", ".xz", ".bz2", ".zip", ".tar", ".tgz", ".7z", ".pdf", ".docx", ".html", ".xlsx")
_FLAGS = {
    "task.max_length": "--max-length",
    "task.qa.allow_no_answer=true": "--no-answer",
    "set task.kind=": "give --kind ",
}
_FLAGS |= {f"task.{name}_column": f"--{name}" for name in ("text", "pair", "label", "id")}
# A CJK character, a chain of letters and digits (state-of-the-art, U.S, 3.5), what hangs on behind an apostrophe
# (Smith 's), or a sign alone: about how CoNLL's words are cut.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+(?:[-.&/,][^\W{_CJK}]+)*|['\u2019][^\W\d_{_CJK}]+|\S")


class WordSpans(NamedTuple):
    """The words of a text, and their characters [begin, end)."""

    words: list[str]
    spans: list[tuple[int, int]]


@dataclasses.dataclass(eq=False)
class PredictInputs:
    """Examples with their ids as they were given (else the number of the example in the input, from 0).

    `split_texts[i]` is the text and the spans of its words, where words were cut here and not given.
    """

    examples: Examples
    ids: list[Any]
    split_texts: list[tuple[str, WordSpans] | None]


def split_words(text: str) -> WordSpans:
    """Words between blanks, punctuation apart; every character of Chinese or Japanese by itself."""
    found = [match.span() for match in _WORD.finditer(text)]
    return WordSpans([text[begin:end] for begin, end in found], found)


def name_flags(error: UserError) -> UserError:
    """What a reader says of keys of a config, said of the flags of the command line."""
    return UserError(replace_keys_by_flags(str(error)))


def replace_keys_by_flags(text: str) -> str:
    """A message with flags where it names keys of a config."""
    for key, flag in _FLAGS.items():
        text = re.sub(rf"{re.escape(key)}(?![\w.])" if key[-1] != "=" else re.escape(key), flag, text)
    return text.replace("task.train: ", "").replace("task.eval: ", "")


def read_inputs(
    config: TaskConfig, files: Sequence[str], gold: bool = False, window: int | None = WINDOW
) -> Iterator[PredictInputs]:
    """The examples of all files, in order, `window` of them at a time (None: all at once).

    A file is told by its ending, or written KIND:WHERE as in task.train; `-` is the standard input: JSON lines where
    its first line is an object, else a text a line. `gold` reads labels, too. Raises `UserError` naming file and line.
    """
    try:
        waiting: list[_Example] = []
        count = 0
        for example in itertools.chain.from_iterable(_of_file(config, file, gold) for file in files):
            waiting.append(example)
            if len(waiting) == window:
                yield _together(config, waiting, count, gold)
                count, waiting = count + len(waiting), []
        if waiting:
            yield _together(config, waiting, count, gold)
    except UserError as error:
        raise name_flags(error) from None


class _Example(NamedTuple):
    """One example of any kind: `first` and `second` are texts, or question and context; words instead of `first`."""

    place: str
    id: Any
    first: str
    second: str | None = None
    words: list[str] | None = None
    gold: Any = None


def _of_file(config: TaskConfig, file: str, gold: bool) -> Iterator[_Example]:
    kind, _, where = file.partition(":")
    if kind in TASK_SOURCES and where:
        return _of_source(config, file, gold)
    bare = file.lower().removesuffix(".gz")
    ending = next((each for each in _BY_ENDING if bare.endswith(each)), None)
    if ending is not None:
        return _of_source(config, f"{_BY_ENDING[ending]}:{file}", gold)
    if bare.endswith(_NO_LINES):
        raise UserError(f"--in {file}: give .jsonl, .txt (a text a line), .tsv or .csv, plain or .gz")
    if file == STDIN:
        return _of_stdin(config, gold)
    if is_jsonl(file):
        return _of_records(config, read_records(file), gold)
    if config.kind == "tokens" and not bare.endswith(".txt"):  # such as eng.testa, whose lines are words
        raise UserError(f"--in {file}: say what it is: conll:{file}, or rename it to .txt where a line is a text")
    return _of_lines(config, file, gold)


def _of_stdin(config: TaskConfig, gold: bool) -> Iterator[_Example]:
    lines = read_texts(STDIN)
    first = next(lines, None)
    if first is None:
        return iter(())
    lines = itertools.chain([first], lines)
    if not first[1].lstrip().startswith("{"):
        return _texts_of(config, "the standard input:", lines, gold)
    return _of_records(config, records_of(lines, "the standard input"), gold)


def _of_lines(config: TaskConfig, file: str, gold: bool) -> Iterator[_Example]:
    return _texts_of(config, f"{file}:", read_texts(file), gold)


def _texts_of(config: TaskConfig, prefix: str, lines: Iterator[tuple[int, str]], gold: bool) -> Iterator[_Example]:
    what = "answers" if config.kind == "qa" else "pairs" if config.is_pair else "labels" if gold else ""
    if what:
        needs = "questions with their contexts" if config.kind == "qa" else "two texts" if config.is_pair else "labels"
        raise UserError(f"{prefix.rstrip(':')}: lines of text hold no {needs}; give .jsonl (or .tsv where columns do)")
    for number, line in lines:
        yield _Example(f"{prefix}{number}", None, line)


def _of_records(config: TaskConfig, records: Iterator[JsonRecord], gold: bool) -> Iterator[_Example]:
    for record in records:
        name = record.values.get(config.id_column or "id")
        if config.id_column is not None and name is None:
            raise UserError(f"{record.place}: no field {config.id_column!r}, which --id names")
        if isinstance(name, dict | list):
            raise UserError(f"{record.place}: an id must be text or a number")
        label = _gold_of(config, record) if gold else None
        if config.kind == "qa":
            yield _Example(record.place, name, record.text("question"), record.text("context"), gold=label)
        elif config.kind == "tokens":
            yield _of_words(config, record, name, label)
        else:
            text = record.text(_column(config.text_column, "text", record), "--text")
            pair = (
                None
                if config.pair_column is None
                else record.text(_column(config.pair_column, "pair", record), "--pair")
            )
            yield _Example(record.place, name, text, pair, gold=label)


def _column(named: str | None, usual: str, record: JsonRecord) -> str:
    """The column that is named, unless only the usual one is there: a run was trained on a file of other columns."""
    return named if named is not None and (named in record.values or usual not in record.values) else usual


def _gold_of(config: TaskConfig, record: JsonRecord) -> Any:
    named, usual = {"qa": (None, "answers"), "tokens": (config.label_column, "tags")}.get(
        config.kind, (config.label_column, "label")
    )
    field = _column(named, usual, record)
    if record.values.get(field) is None:
        raise UserError(f"{record.place}: no field {field!r} to score against; leave --score out, or name it (--label)")
    return record.values[field]


def _of_words(config: TaskConfig, record: JsonRecord, name: Any, tags: Any) -> _Example:
    named = [
        each for each in (config.text_column, "words", "tokens", "text") if each is not None and each in record.values
    ]
    value = record.values[named[0]] if named else None
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        if tags is not None and (not isinstance(tags, list) or len(tags) != len(value)):
            raise UserError(f"{record.place}: {len(value)} words, but not as many tags")
        return _Example(record.place, name, "", words=value, gold=tags)
    if not isinstance(value, str):
        raise UserError(f"{record.place}: no field words or tokens (a list of words), nor text; name yours with --text")
    if tags is not None:
        raise UserError(f"{record.place}: --score needs words with their tags, not a text")
    return _Example(record.place, name, record.text(named[0]))


def _of_source(config: TaskConfig, text: str, gold: bool) -> Iterator[_Example]:
    """Through the readers of finetuning, without labels unless `gold`."""
    source = parse_task_source(text, "--in")
    if config.kind == "tokens" and source.kind in ("tsv", "csv") and not gold:
        columns = [("task.text_column", config.text_column or "text")]
        for prefix, number, values in READERS[source.kind](source, columns, config.header, "strict"):
            yield _Example(f"{prefix}{number}", None, values[0])
        return
    if source.kind not in config.spec.source_kinds:
        raise UserError(
            f"--in {source.where}: a {source.kind} file holds nothing for a model of kind {config.kind}; give one of "
            f"{', '.join(config.spec.source_kinds)}"
        )
    found = read_examples(config, sources=[text], labelled=gold)
    has_ids = config.id_column is not None or isinstance(found, QaExamples)
    for index in range(len(found)):
        yield _one(found, index, has_ids)


def _one(found: Examples, index: int, has_ids: bool) -> _Example:
    place, name = found.places[index], found.ids[index] if has_ids else None
    if isinstance(found, QaExamples):
        answers = None if found.answers is None else found.answers[index]
        return _Example(place, name, found.questions[index], found.contexts[found.context_of[index]], gold=answers)
    if isinstance(found, WordExamples):
        return _Example(
            place, name, "", words=found.words[index], gold=None if found.tags is None else found.tags[index]
        )
    gold: Any = None if found.labels is None else found.labels[index]
    gold = gold if found.scores is None else found.scores[index]
    return _Example(place, name, found.texts[index], None if found.pairs is None else found.pairs[index], gold=gold)


def _together(config: TaskConfig, found: Sequence[_Example], first: int, gold: bool) -> PredictInputs:
    """Examples as the features of their kind are made from; their own ids are numbers, those given may come twice."""
    places = Places()
    for example in found:
        before = example.place.rstrip("0123456789")
        places.add(before, int(example.place[len(before) :]))
    numbers = [str(first + index) for index in range(len(found))]
    ids = [number if example.id is None else example.id for number, example in enumerate(found, first)]
    cuts: list[tuple[str, WordSpans] | None] = [None] * len(found)
    examples: Examples
    if config.kind == "qa":
        examples = _questions(found, numbers, places, gold)
    elif config.kind == "tokens":
        cuts = [(each.first, split_words(each.first)) if each.words is None else None for each in found]
        words = [each.words if cut is None else cut[1].words for each, cut in zip(found, cuts, strict=True)]
        tags = [[str(tag) for tag in each.gold] for each in found] if gold else None
        examples = WordExamples([list(each or []) for each in words], tags, numbers, places)
    else:
        is_score = config.kind == "regression"
        pairs = [each.second or "" for each in found] if config.pair_column is not None else None
        labels = [_label(each) for each in found] if gold and not is_score else None
        scores = [_number(each) for each in found] if gold and is_score else None
        examples = TextExamples([each.first for each in found], pairs, labels, scores, numbers, places)
    return PredictInputs(examples, ids, cuts)


def _questions(found: Sequence[_Example], numbers: list[str], places: Places, gold: bool) -> QaExamples:
    contexts: dict[str, int] = {}
    context_of = [contexts.setdefault(each.second or "", len(contexts)) for each in found]
    answers = [_answers(each) for each in found] if gold else None
    return QaExamples([each.first for each in found], list(contexts), context_of, answers, numbers, places)


def _answers(example: _Example) -> GoldAnswers:
    """As on the hub {"text": [...], "answer_start": [...]}, or as in SQuAD's files [{"text", "answer_start"}]."""
    value = example.gold
    if isinstance(value, GoldAnswers):
        return value
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        value = {
            "text": [each.get("text") for each in value],
            "answer_start": [each.get("answer_start") for each in value],
        }
    texts = value.get("text") if isinstance(value, dict) else None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{example.place}: answers must be texts, as in SQuAD's files, to be scored against")
    return GoldAnswers(tuple(texts), (0,) * len(texts))


def _label(example: _Example) -> str:
    value = example.gold
    name = str(value).lower() if isinstance(value, bool) else str(value).strip()
    if not name or isinstance(value, list | dict):
        raise UserError(f"{example.place}: the gold label is none; --score needs one for every example")
    return name


def _number(example: _Example) -> float:
    try:
        return float(example.gold)
    except (TypeError, ValueError):
        raise UserError(f"{example.place}: the gold score must be a number, not {example.gold!r}") from None
