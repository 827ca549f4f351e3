"""Examples of question answering: SQuAD's JSON, and JSON Lines and hub data sets of id, question, context, answers."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from bertjax.config.sources import Source, source_files
from bertjax.config.task import TaskConfig
from bertjax.errors import UserError
from bertjax.finetuning.readers.examples import GoldAnswers, QaExamples
from bertjax.finetuning.readers.tables import read_rows, require_distinct, require_text

_COLUMNS = ("id", "question", "context")
_FORMAT = "the JSON of SQuAD: data[].paragraphs[].{context, qas[].{id, question, answers[].{text, answer_start}}}"
_Question = tuple[str, str, str, str, GoldAnswers | None]
"""Location, id, question, context, answers."""


def read_questions(config: TaskConfig, sources: Sequence[Source], labelled: bool, errors: str) -> QaExamples:
    """Reads all questions of squad, jsonl or hub sources, in order; equal contexts are kept once.

    Args:
        config: `task.qa.allow_no_answer` says whether questions may have no answer.
        sources: where the questions are.
        labelled: whether to read answers.
        errors: "strict", or "replace" for invalid UTF-8.

    Raises:
        UserError: something cannot be read; names file and question.
    """
    examples = QaExamples([], [], [], [] if labelled else None, [], [])
    index: dict[str, int] = {}
    for source in sources:
        read = _read_squad if source.kind == "squad" else _read_records
        for location, name, question, context, answers in read(source, labelled, errors):
            if answers is not None and not answers.texts and not config.qa.allow_no_answer:
                raise UserError(f"{location}: question {name!r} has no answer; set task.qa.allow_no_answer=true")
            examples.locations.append(location)
            examples.ids.append(name)
            examples.questions.append(question)
            if context not in index:
                index[context] = len(index)
                examples.contexts.append(context)
            examples.context_of.append(index[context])
            if examples.answers is not None and answers is not None:
                examples.answers.append(answers)
    require_distinct(examples.ids, examples.locations)
    return examples


def gold_answers(texts: Any, starts: Any, where: str) -> GoldAnswers:
    """Returns checked answers.

    Args:
        texts: the answers.
        starts: the characters of the context at which they begin.
        where: location, for messages.

    Raises:
        UserError: they are not texts, each with its first character.
    """
    is_list = isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts)
    if not is_list or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where}: answers must be texts, each with its answer_start")
    if not all(type(start) is int and start >= 0 for start in starts):
        raise UserError(f"{where}: answer_start must be a number of characters, at least 0")
    return GoldAnswers(tuple(texts), tuple(starts))


def _read_squad(source: Source, labelled: bool, errors: str) -> Iterator[_Question]:
    for path in source_files(source):
        number = 0
        for paragraph in _paragraphs(_read_json(path, errors), path):
            where = f"{path}: question {number + 1}"
            context = require_text(_get(paragraph, "context", where), "context", where, errors)
            for entry in _get_list(paragraph, "qas", where):
                number += 1
                where = f"{path}: question {number}"
                name, question = (
                    require_text(_get(entry, key, where), key, where, errors) for key in ("id", "question")
                )
                yield where, name, question, context, _answers(entry, where) if labelled else None


def _read_json(path: str, errors: str) -> Any:
    try:
        with gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb") as file:
            return json.loads(file.read().decode("utf-8-sig", errors))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: invalid UTF-8 at byte {error.start}; convert the file to UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: broken JSON ({error}); squad: reads {_FORMAT}") from error
    except (EOFError, zlib.error) as error:
        raise UserError(f"{path}: broken gzip ({error}); copy or compress it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _paragraphs(content: Any, path: str) -> Iterator[Any]:
    for article in _get_list(content, "data", path):
        yield from _get_list(article, "paragraphs", path)


def _get(record: Any, key: str, where: str) -> Any:
    if not isinstance(record, dict) or key not in record:
        raise UserError(f"{where}: no {key!r} where one is expected; squad: reads {_FORMAT}")
    return record[key]


def _get_list(record: Any, key: str, where: str) -> list[Any]:
    value = _get(record, key, where)
    if not isinstance(value, list):
        raise UserError(f"{where}: {key!r} is not a list; squad: reads {_FORMAT}")
    return value


def _answers(entry: dict[str, Any], where: str) -> GoldAnswers:
    if entry.get("is_impossible") is True:
        return GoldAnswers((), ())
    value = _get_list(entry, "answers", where)
    texts, starts = ([_get(each, key, where) for each in value] for key in ("text", "answer_start"))
    return gold_answers(texts, starts, where)


def _read_records(source: Source, labelled: bool, errors: str) -> Iterator[_Question]:
    columns = [("task.train", name) for name in (*_COLUMNS, *["answers"] * labelled)]
    for where, values in read_rows(source, columns, errors=errors):
        name, question, context = (
            require_text(str(value) if key == "id" else value, key, where, errors)
            for key, value in zip(_COLUMNS, values[:3], strict=True)
        )
        yield where, name, question, context, _record_answers(values[3], where) if labelled else None


def _record_answers(value: Any, where: str) -> GoldAnswers:
    """Reads {"text": [...], "answer_start": [...]} as on the hub, or a list of objects as in SQuAD's files."""
    if isinstance(value, list):
        return _answers({"answers": value}, where)
    return gold_answers(_get(value, "text", where), _get(value, "answer_start", where), where)
