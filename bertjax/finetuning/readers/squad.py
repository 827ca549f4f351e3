"""Questions on contexts: SQuAD's JSON, and the same as JSON lines or hub data sets (id, question, context, answers)."""

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
from bertjax.finetuning.readers.records import Places, text_of
from bertjax.finetuning.readers.text_classification import hub_columns, jsonl_rows, require_distinct

_COLUMNS = ("id", "question", "context")
_FORMAT = "the JSON of SQuAD: data[].paragraphs[].{context, qas[].{id, question, answers[].{text, answer_start}}}"
Question = tuple[str, int, str, str, str, GoldAnswers | None]
"""What stands before its number in messages, its number, id, question, context, answers."""


def read_questions(config: TaskConfig, sources: Sequence[Source], labelled: bool, errors: str) -> QaExamples:
    """All questions of the sources, in order, equal contexts kept once; raises `UserError` naming the place.

    Questions without an answer are refused unless `task.qa.allow_no_answer`.
    """
    examples = QaExamples([], [], [], [] if labelled else None, [], Places())
    known: dict[str, int] = {}
    for source in sources:
        read = _squad if source.kind == "squad" else _records
        for prefix, number, name, question, context, answers in read(source, labelled, errors):
            if answers is not None and not answers.texts and not config.qa.allow_no_answer:
                raise UserError(f"{prefix}{number}: question {name!r} has no answer; set task.qa.allow_no_answer=true")
            examples.places.add(prefix, number)
            examples.ids.append(name)
            examples.questions.append(question)
            if context not in known:
                known[context] = len(known)
                examples.contexts.append(context)
            examples.context_of.append(known[context])
            if examples.answers is not None and answers is not None:
                examples.answers.append(answers)
    require_distinct(examples.ids, examples.places)
    return examples


def _squad(source: Source, labelled: bool, errors: str) -> Iterator[Question]:
    for path in source_files(source):
        number = 0
        for paragraph in _paragraphs(_json(path, errors), path):
            where = f"{path}: question {number + 1}"
            context = text_of(_get(paragraph, "context", where), "context", where, errors)
            for entry in _list(paragraph, "qas", where):
                number += 1
                where = f"{path}: question {number}"
                name, question = (text_of(_get(entry, key, where), key, where, errors) for key in ("id", "question"))
                found = _answers(entry, where) if labelled else None
                yield f"{path}: question ", number, name, question, context, found


def _json(path: str, errors: str) -> Any:
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
    for article in _list(content, "data", path):
        yield from _list(article, "paragraphs", path)


def _get(record: Any, key: str, where: str) -> Any:
    if not isinstance(record, dict) or key not in record:
        raise UserError(f"{where}: no {key!r} where one is expected; squad: reads {_FORMAT}")
    return record[key]


def _list(record: Any, key: str, where: str) -> list[Any]:
    found = _get(record, key, where)
    if not isinstance(found, list):
        raise UserError(f"{where}: {key!r} is no list; squad: reads {_FORMAT}")
    return found


def _answers(entry: dict[str, Any], where: str) -> GoldAnswers:
    if entry.get("is_impossible") is True:
        return GoldAnswers((), ())
    found = _list(entry, "answers", where)
    return _checked(
        [_get(each, "text", where) for each in found], [_get(each, "answer_start", where) for each in found], where
    )


def _checked(texts: Any, starts: Any, where: str) -> GoldAnswers:
    is_list = isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts)
    if not is_list or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where}: answers must be texts, each with its answer_start")
    if not all(type(start) is int and start >= 0 for start in starts):
        raise UserError(f"{where}: answer_start must be a number of characters, at least 0")
    return GoldAnswers(tuple(texts), tuple(starts))


def _records(source: Source, labelled: bool, errors: str) -> Iterator[Question]:
    columns = [("task.train", name) for name in (*_COLUMNS, *["answers"] * labelled)]
    read = hub_columns if source.kind == "hub" else jsonl_rows
    for prefix, number, values in read(source, columns, False, errors):
        where = f"{prefix}{number}"
        name, question, context = (
            text_of(str(value) if key == "id" else value, key, where, errors)
            for key, value in zip(_COLUMNS, values[:3], strict=True)
        )
        yield prefix, number, name, question, context, _record_answers(values[3], where) if labelled else None


def _record_answers(found: Any, where: str) -> GoldAnswers:
    """Either {"text": [...], "answer_start": [...]} as on the hub, or a list of objects as in SQuAD's files."""
    if isinstance(found, list):
        return _answers({"answers": found}, where)
    return _checked(_get(found, "text", where), _get(found, "answer_start", where), where)
