"""Examples of question answering: SQuAD's JSON, and JSON Lines and hub data sets of id, question, context, answers."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bertjax.compression import DamagedFileError
from bertjax.config.source_files import source_files
from bertjax.config.sources import Source
from bertjax.config.task import TaskConfig
from bertjax.errors import UserError
from bertjax.finetuning.readers.examples import GoldAnswers, QaExamples, ReadRequest
from bertjax.finetuning.readers.tables import read_rows, require_distinct, require_field_text
from bertjax.io.store import open_decompressed

_COLUMNS = ("id", "question", "context")
_FORMAT = "the JSON of SQuAD: data[].paragraphs[].{context, qas[].{id, question, answers[].{text, answer_start}}}"
UNKNOWN_START = -1
"""Start of an answer whose position in the context is unknown: it can be scored, not trained on."""


class _Question(NamedTuple):
    id: str
    question: str
    context: str
    answers: GoldAnswers | None


_Questions = Iterator[tuple[str, Callable[[], _Question]]]
"""Location of every question, and a function that reads it."""


def read_questions(request: ReadRequest) -> QaExamples:
    """Reads all questions of squad files or of records, in order; equal contexts are kept once.

    `task.qa.allow_no_answer` says whether questions may have no answer, `task.qa.skip_invalid` whether those that
    cannot be read are left out.

    Raises:
        UserError: a question cannot be read, and `task.qa.skip_invalid` is not set; names file and question.
    """
    config = request.config
    examples = QaExamples([], [], [], [] if request.labeled else None, [], [])
    index: dict[str, int] = {}
    invalid: list[str] = []
    for source in request.sources:
        questions = _squad_questions if source.kind == "squad" else _record_questions
        for location, read in questions(source, request.labeled, request.errors):
            try:
                question = read()
                _require_answer(config, question, location)
            except UserError as error:
                if not config.qa.skip_invalid:
                    raise UserError(f"{error}; task.qa.skip_invalid=true leaves such questions out") from None
                invalid.append(str(error))
                continue
            examples.locations.append(location)
            examples.ids.append(question.id)
            examples.questions.append(question.question)
            if question.context not in index:
                index[question.context] = len(index)
                examples.contexts.append(question.context)
            examples.context_of.append(index[question.context])
            if examples.answers is not None and question.answers is not None:
                examples.answers.append(question.answers)
    if invalid:
        examples.notes.append(f"{len(invalid):,} questions are left out (task.qa.skip_invalid), first {invalid[0]}")
    require_distinct(examples.ids, examples.locations)
    return examples


def _require_answer(config: TaskConfig, question: _Question, where: str) -> None:
    if question.answers is not None and not question.answers.texts and not config.qa.allow_no_answer:
        raise UserError(f"{where}: question {question.id!r} has no answer; set task.qa.allow_no_answer=true")


def read_answers(value: Any, where: str) -> GoldAnswers:
    """Reads {"text": [...], "answer_start": [...]} as on the hub, or a list of objects as in SQuAD's files.

    A start that is absent or no whole number is `UNKNOWN_START`.

    Args:
        value: the answers.
        where: their location, for messages.

    Raises:
        UserError: an answer is not text, or there are more or fewer starts than texts.
    """
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        names = ("text", "answer_start")
        value = {name: [each.get(name) for each in value] for name in names}
    texts = value.get("text") if isinstance(value, dict) else None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where}: answers must be texts, as in SQuAD's files or on the hub")
    starts = value.get("answer_start") or [UNKNOWN_START] * len(texts)
    if not isinstance(starts, list) or len(starts) != len(texts):
        raise UserError(f"{where}: {len(texts)} answers, but not as many answer_start")
    return GoldAnswers(tuple(texts), tuple(start if type(start) is int else UNKNOWN_START for start in starts))


def _squad_questions(source: Source, labeled: bool, errors: str) -> _Questions:
    for path in source_files(source):
        number = 0
        for paragraph in _paragraphs(_read_json(path, errors), path):
            for entry in _get_list(paragraph, "qas", f"{path}: question {number + 1}"):
                number += 1
                where = f"{path}: question {number}"
                yield where, functools.partial(_squad_question, paragraph, entry, where, labeled, errors)


def _squad_question(paragraph: Any, entry: Any, where: str, labeled: bool, errors: str) -> _Question:
    context = require_field_text(_get(paragraph, "context", where), "context", where, errors)
    name, question = (require_field_text(_get(entry, key, where), key, where, errors) for key in ("id", "question"))
    answers = None
    if labeled:
        is_impossible = entry.get("is_impossible") is True
        answers = read_answers([] if is_impossible else _get(entry, "answers", where), f"{where} ({name!r})")
    return _Question(name, question, context, answers)


def _read_json(path: str, errors: str) -> Any:
    try:
        with open_decompressed(path) as (_, file):
            return json.loads(file.read().decode("utf-8-sig", errors))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: invalid UTF-8 at byte {error.start}; convert the file to UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: broken JSON ({error}); squad: reads {_FORMAT}") from error
    except DamagedFileError as error:
        raise UserError(error.explain(path)) from error
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


def _record_questions(source: Source, labeled: bool, errors: str) -> _Questions:
    columns = [("task.train", name) for name in (*_COLUMNS, *["answers"] * labeled)]
    for where, values in read_rows(source, columns, errors=errors):
        yield where, functools.partial(_record_question, values, where, errors)


def _record_question(values: list[Any], where: str, errors: str) -> _Question:
    name, question, context = (
        require_field_text(str(value) if key == "id" else value, key, where, errors)
        for key, value in zip(_COLUMNS, values[:3], strict=True)
    )
    answers = read_answers(values[3], f"{where} ({name!r})") if len(values) > 3 else None
    return _Question(name, question, context, answers)
