"""Question answering: the answer is a span of a context, in SQuAD's JSON, JSON Lines and hub data sets."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bertjax.compression import DamagedFileError
from bertjax.config.fields import setting
from bertjax.config.source_files import source_files
from bertjax.config.sources import Source
from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, named
from bertjax.io.store import open_decompressed
from bertjax.tasks.base import RECORDS, TaskKind, rounded
from bertjax.tasks.evaluate import EvalResult
from bertjax.tasks.metrics.squad import squad_scores
from bertjax.tasks.qa_answers import AnswerSpan, PredictedAnswer, select_answers
from bertjax.tasks.qa_features import QaData, qa_data
from bertjax.tasks.readers.examples import GoldAnswers, QaExamples, ReadRequest
from bertjax.tasks.readers.tables import read_rows, require_distinct, require_field_text
from bertjax.types import Batch, Sum

MAX_SPECIAL_TOKENS = 4  # <s> A </s></s> B </s>
_LOWEST = float(np.finfo(np.float32).min)
_COLUMNS = ("id", "question", "context")
_FORMAT = "the JSON of SQuAD: data[].paragraphs[].{context, qas[].{id, question, answers[].{text, answer_start}}}"
UNKNOWN_START = -1
"""Start of an answer whose position in the context is unknown: it can be scored, not trained on."""


@dataclasses.dataclass(frozen=True)
class QuestionAnswering(TaskKind, group="task.qa"):
    """Questions that are answered with a span of a context (SQuAD)."""

    name, title, head = "qa", "extractive question answering", "question_answering"
    main_metric, label_array = "f1", "start_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "exact_match": ("percent", "Answers that equal a gold answer, as in SQuAD's scripts."),
        "f1": ("percent", "Mean F1 of the words of the answers, as in SQuAD's scripts."),
        "has_answer_exact_match": ("percent", "The same of the questions that have an answer."),
        "has_answer_f1": ("percent", "The same of the questions that have an answer."),
        "no_answer_exact_match": ("percent", "The same of the questions that have none."),
        "no_answer_f1": ("percent", "The same of the questions that have none."),
        "best_exact_match": ("percent", "With the threshold for no answer that is best on these questions."),
        "best_exact_match_threshold": ("logits", "That threshold."),
        "best_f1": ("percent", "With the threshold for no answer that is best on these questions."),
        "best_f1_threshold": ("logits", "That threshold."),
    }
    per_token = is_pair = True
    examples = QaExamples
    source_kinds, example_source = ("squad", *RECORDS), "squad:train-v1.1.json"

    doc_stride: int = setting(
        128,
        at_least=0,
        help="Tokens that two windows of a context share, as in transformers' run_qa (google-research/bert's flag of "
        "this name is the step between windows).",
    )
    max_question_length: int = setting(64, at_least=1, help="Tokens of a question; the rest is cut off.")
    max_answer_length: int = setting(30, at_least=1, help="Tokens of an answer.")
    n_best_size: int = setting(20, at_least=1, help="Candidate answers kept per question.")
    allow_no_answer: bool = setting(
        False, help="Questions may have no answer (SQuAD 2.0; version_2_with_negative in transformers' run_qa)."
    )
    skip_invalid: bool = setting(
        False,
        help="Leave out questions that cannot be read (no answer, an answer that is not text) and print how many; "
        "false: the first one is an error.",
    )
    null_score_diff_threshold: float = setting(
        0.0, help="Margin by which the score of no answer must exceed that of the best span to predict no answer."
    )

    def check_task(self, config: TaskConfig) -> None:
        for name in ("text_column", "pair_column", "label_column", "id_column"):
            if (column := getattr(config, name)) is not None:
                key, kind = named(f"task.{name}"), named("task.kind", config.kind)
                raise UserError(
                    f"{key}={column!r}: the columns of {kind} have fixed names (id, question, context, answers); set "
                    f"{key} to None"
                )
        needed = self.max_question_length + self.doc_stride + MAX_SPECIAL_TOKENS
        if config.max_length <= needed:
            raise UserError(
                f"{named('task.max_length', config.max_length)} leaves no tokens for the context: it must exceed "
                f"task.qa.max_question_length + task.qa.doc_stride + {MAX_SPECIAL_TOKENS} special tokens = {needed}"
            )

    def read_examples(self, request: ReadRequest) -> QaExamples:
        return read_questions(request)

    def make_features(
        self, config: TaskConfig, examples: Any, tokenizer: Tokenizer, labels: Sequence[str], training: bool
    ) -> QaData:
        return qa_data(config, examples, tokenizer, labels, training)

    def loss(self, scores: Array, batch: Batch, class_weights: np.ndarray) -> dict[str, Sum]:
        """Sums the mean cross-entropy of start and end among the tokens of each window; `scores` [B, S, 2]."""
        weights = batch["example_weights"]
        examples = jnp.arange(1, weights.shape[1] + 1, dtype=jnp.int32)
        in_window = batch["segment_ids"][:, None, :] == examples[None, :, None]  # [B, E, S]
        losses, correct = [], []
        for side, name in enumerate(("start_labels", "end_labels")):
            of_window = jnp.where(in_window, scores[:, None, :, side], _LOWEST)
            of_label = jnp.take_along_axis(scores[..., side], batch[name], axis=1)
            losses.append(jax.nn.logsumexp(of_window, axis=-1) - of_label)
            correct.append(jnp.argmax(of_window, axis=-1) == batch[name])
        loss = jnp.where(weights > 0, (losses[0] + losses[1]) / 2.0, 0.0)  # an empty slot has no tokens
        count = weights.sum()
        return {
            "loss": Sum((loss * weights).sum(), count),
            "accuracy": Sum(((correct[0] & correct[1]) * weights).sum(), count),
        }

    def compute_metrics(
        self, config: TaskConfig, examples: QaExamples, data: QaData, scores: np.ndarray, labels: tuple[str, ...]
    ) -> EvalResult:
        assert data.examples.answers is not None
        predictions = select_answers(config, data, scores[:, 0], scores[:, 1])
        gold = {name: list(answer.texts) for name, answer in zip(data.examples.ids, data.examples.answers, strict=True)}
        result = {each.id: each.text for each in predictions}
        if not self.allow_no_answer:
            return EvalResult(squad_scores(gold, result))
        differences = {each.id: each.null_score_diff or 0.0 for each in predictions}
        return EvalResult(squad_scores(gold, result, differences, version="2.0"))

    def records(
        self, config: TaskConfig, examples: Any, data: Any, scores: Any, labels: tuple[str, ...], top_k: int | None
    ) -> Iterator[dict[str, Any]]:
        """Yields the answer to every question, and the best candidates. Args: as in the base class."""
        for index, answer in enumerate(select_answers(config, data, scores[:, 0], scores[:, 1])):
            yield _answer_record(answer, data.examples.contexts[data.examples.context_of[index]], top_k or 5)


def _answer_record(answer: PredictedAnswer, context: str, top_k: int) -> dict[str, Any]:
    best = next((span for span in answer.spans if span.text == answer.text), None)
    record = _span_record(best, context) if best is not None else _no_answer(answer.text)
    record["best"] = [_span_record(span, context) for span in answer.spans[:top_k]]
    if answer.null_score_diff is not None:
        is_finite = math.isfinite(answer.null_score_diff)
        record["null_score_diff"] = _float32(answer.null_score_diff) if is_finite else None
    return record


def _no_answer(text: str) -> dict[str, Any]:
    return {"answer": text, "start": None, "end": None, "score": None, "probability": None}


def _span_record(span: AnswerSpan, context: str) -> dict[str, Any]:
    """Returns the record of a span, with the characters of the answer without the blanks around it."""
    record = _no_answer(span.text)
    if span.text:
        start = span.begin + context[span.begin : span.end].index(span.text)
        record |= {"start": start, "end": start + len(span.text)}
    return record | {"score": _float32(span.score), "probability": rounded(span.probability)}


def _float32(value: float) -> float:
    """Returns the shortest decimal number that is this float32."""
    return float(str(np.float32(value)))


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
                if not config.spec.skip_invalid:
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
    if question.answers is not None and not question.answers.texts and not config.spec.allow_no_answer:
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
