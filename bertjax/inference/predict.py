"""What a finetuned model says of texts, words and questions, as records to write down; the same pass that scores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax.config.objectives.task import TaskObjectiveConfig
from bertjax.config.task import TASK_KINDS, ClassificationConfig, QaConfig, RegressionConfig, TaskConfig
from bertjax.config.training import MeshConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, comma_list
from bertjax.finetuning.batches import EvalBatches
from bertjax.finetuning.evaluate import EvalResult, ForwardPass, probabilities, score
from bertjax.finetuning.features import TextData
from bertjax.finetuning.metrics.entities import are_entity_tags, find_entities
from bertjax.finetuning.objective import TaskObjective
from bertjax.finetuning.qa_answers import AnswerSpan, PredictedAnswer, select_answers
from bertjax.finetuning.qa_features import QaData
from bertjax.finetuning.readers.examples import Examples, QaExamples
from bertjax.finetuning.tasks import TaskData, make_features
from bertjax.finetuning.token_features import TokenData
from bertjax.hf.export_plan import HEAD_BY_MODULE
from bertjax.hf.inputs import max_input_length
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.predict_inputs import PLACEHOLDER_SOURCE, PredictInputs, name_flags
from bertjax.training.sharding import make_mesh

TOKENS = 8192
"""Of a batch of the longest rows, padding included."""
_MAX_LENGTH = {True: 384, False: 512}  # default of questions, and of everything else
_SHAPES = 5  # row lengths: max_length, its half, its quarter, ...
_DIGITS = 6

Prediction = dict[str, Any]


def infer_task_kind(model: PretrainedModel, requested: str | None = None) -> str:
    """Returns the kind of task that a model was finetuned for, according to its heads.

    A head for classes with one label is regression, as in transformers.

    Args:
        model: the finetuned model.
        requested: `--kind`; checked against the heads.

    Raises:
        UserError: no kind or several kinds fit, or the requested one does not.
    """
    is_regression = model.config.num_labels == 1
    fitting = [
        name
        for name, spec in TASK_KINDS.items()
        if spec.head in model.heads and (spec.head != ClassificationConfig.head or spec.has_classes != is_regression)
    ]
    if requested is not None:
        if TASK_KINDS[requested].head not in model.heads:
            raise UserError(f"--kind {requested}: the model has no such head (it has {comma_list(model.heads)})")
        if requested == RegressionConfig.name and not is_regression:
            raise UserError(f"--kind regression: the head has {model.config.num_labels} labels, a number needs one")
        return requested
    if len(fitting) != 1:
        what = (
            "the model has the heads of several tasks; choose one with --kind" if fitting else "the model has no task"
        )
        hint = "" if fitting else "; finetune it first (`bertjax finetune`)"
        raise UserError(f"{what} (heads: {comma_list(model.heads)}){hint}")
    return fitting[0]


def make_task_config(
    model: PretrainedModel, kind: str, trained: TaskConfig | None = None, **overrides: Any
) -> TaskConfig:
    """Returns the settings with which examples are read for a model.

    Args:
        model: the finetuned model.
        kind: kind of its task.
        trained: settings that it was finetuned with, if they are known.
        **overrides: other values of `TaskConfig`, and `allow_no_answer`; those that are None are ignored.

    Raises:
        UserError: a length beyond the model's positions, or another wrong value.
    """
    values = {name: value for name, value in overrides.items() if value is not None}
    allow_no_answer = values.pop("allow_no_answer", None)
    limit = max_input_length(model.config)
    if limit is not None and values.get("max_length", 0) > limit:
        raise UserError(f"--max-length {values['max_length']} is beyond the {limit} tokens that the model can read")
    try:
        if trained is None or trained.kind != kind:
            trained = TaskConfig(kind, (PLACEHOLDER_SOURCE,), max_length=4096)
            values.setdefault("max_length", min(_MAX_LENGTH[kind == QaConfig.name], limit or _MAX_LENGTH[False]))
        qa = trained.qa if allow_no_answer is None else trained.qa.replace(allow_no_answer=allow_no_answer)
        if kind == QaConfig.name and "max_length" in values:  # leaves tokens for the context, however short the windows
            stride, question = values["max_length"] // 3, values["max_length"] // 4
            qa = qa.replace(
                doc_stride=min(qa.doc_stride, stride), max_question_length=min(qa.max_question_length, question)
            )
        unused = {"train": (PLACEHOLDER_SOURCE,), "eval": (), "labels": (), "swap_pairs": False}
        return trained.replace(**unused, **values, qa=qa, export_checkpoint="last")
    except UserError as error:
        raise name_flags(error) from None


class Predictions(NamedTuple):
    """Of some examples one record each, in their order, and, for texts, the scores of the head float32 [n, K]."""

    records: list[Prediction]
    scores: np.ndarray
    data: TaskData


class Predictor:
    """Examples to records; `notes` says what was cut, over all examples that it has seen.

    classification  label, score, probabilities {label: p} · regression  score · tokens  tags and tag_scores of words,
    entities [{entity, text, first, last, score}] by the numbers of their words, or with start and end, characters of
    the text, where words were cut here · qa  answer, start, end, score, probability, best [{...}]; no answer is "" with
    start and end None, no_answer_margin its score over that of the best answer.
    """

    def __init__(
        self,
        model: PretrainedModel,
        tokenizer: Tokenizer,
        config: TaskConfig,
        tokens: int = TOKENS,
        top: int | None = None,
    ) -> None:
        own = dataclasses.replace(model.config, bi_data=False)  # half of a batch would be read backwards
        self.config, self.labels, self._tokenizer, self._top = config, model.config.labels, tokenizer, top
        self._objective = TaskObjective(TaskObjectiveConfig(config.kind), own, tokenizer.vocabulary())
        kept = {
            name: leaf
            for name, leaf in model.params.items()
            if HEAD_BY_MODULE.get(name) in (None, *self._objective.heads)
        }
        self._params = kept
        self._mesh = make_mesh(MeshConfig(1, 1, 1), jax.local_devices()[:1])
        self._pass = ForwardPass(self._objective, self._mesh, labelled=False)
        self._seq_len = -(-config.max_length // 8) * 8
        self._rows = max(1, tokens // self._seq_len)
        self.num_truncated, self.num_truncated_words = 0, 0

    @property
    def notes(self) -> list[str]:
        """What there is to say of texts that were too long."""
        found = []
        if self.num_truncated:
            found.append(
                f"{self.num_truncated:,} were longer than {self.config.max_length:,} tokens, and cut (--max-length)"
            )
        if self.num_truncated_words:
            found.append(
                f"{self.num_truncated_words:,} words are beyond {self.config.max_length:,} tokens of their sentence: O"
            )
        return found

    def __call__(self, asked: PredictInputs) -> Predictions:
        """The records of some examples; raises `UserError` where one has no token, or its label is unknown."""
        try:
            data = self._data(asked.examples)
        except UserError as error:
            raise name_flags(error) from None
        scores = self._scores(data)
        if isinstance(data, TokenData):
            found = self._tagged(asked, data, scores)
        elif isinstance(data, QaData):
            found = self._answered(data, scores)
        else:
            found = self._labelled(data, scores)
        return Predictions(
            [{"id": name, **record} for name, record in zip(asked.ids, found, strict=True)], scores, data
        )

    def score(self, asked: PredictInputs, predicted: Predictions) -> EvalResult:
        """The figures of examples that were read with their gold labels."""
        found = score(self.config, asked.examples, predicted.data, predicted.scores, self.labels)
        return found

    def _data(self, examples: Examples) -> TaskData:
        if not isinstance(examples, QaExamples):
            data = make_features(self.config, examples, self._tokenizer, self.labels)
            if isinstance(data, TextData):
                self.num_truncated += data.num_truncated
            elif isinstance(data, TokenData):
                self.num_truncated_words += int((data.first_token_of_word < 0).sum())
            return data
        if self.config.qa.allow_no_answer is False and any(not each.texts for each in examples.answers or ()):
            raise UserError("a question has no gold answer; give --no-answer, if the model knows such questions")
        asked = dataclasses.replace(examples, answers=None)  # gold answers need not say where they stand
        found = make_features(self.config, asked, self._tokenizer)
        assert isinstance(found, QaData)
        return dataclasses.replace(found, examples=examples)

    def _scores(self, data: TaskData) -> np.ndarray:
        features = data.features
        rows = min(self._rows, 1 << (len(features) - 1).bit_length())
        batches = EvalBatches(
            features,
            batch_size=rows,
            pad_id=self._tokenizer.pad_id,
            vocab_size=self._objective.model.vocab_size,
            seq_len=self._seq_len,
            packing=False,
            num_lengths=_SHAPES,
            name="in",
        )
        with jax.set_mesh(self._mesh), jax.default_matmul_precision("float32"):
            scores = self._pass(self._params, batches).scores
        if not np.isfinite(scores).all():
            raise UserError("the model says what is no number: its weights are broken, or its training diverged")
        return scores

    def _labelled(self, data: TextData, scores: np.ndarray) -> Iterator[Prediction]:
        if self.config.kind == "regression":
            yield from ({"score": _float32(value)} for value in scores[:, 0])
            return
        shares = probabilities(scores)
        for row in shares:
            order = np.argsort(-row, kind="stable")
            kept = range(len(row)) if self._top is None else order[: self._top]
            yield {
                "label": self.labels[order[0]],
                "score": _rounded(row[order[0]]),
                "probabilities": {self.labels[place]: _rounded(row[place]) for place in kept},
            }

    def _tagged(self, asked: PredictInputs, data: TokenData, scores: np.ndarray) -> Iterator[Prediction]:
        tags = data.predicted_tags(scores.argmax(axis=1))
        seen = data.first_token_of_word >= 0
        best = np.zeros(len(seen))
        best[seen] = probabilities(scores[data.first_token_of_word[seen]]).max(axis=1)
        begins = data.word_offsets
        are_entities = are_entity_tags(data.labels)
        for index, (words, own, cut) in enumerate(zip(data.words, tags, asked.split_texts, strict=True)):
            shares = best[begins[index] : begins[index + 1]]
            record: Prediction = {"words": words, "tags": own, "tag_scores": [_rounded(share) for share in shares]}
            if are_entities:
                record["entities"] = [
                    {
                        "entity": entity.kind,
                        "text": " ".join(words[entity.first : entity.last + 1]),
                        "first": entity.first,
                        "last": entity.last,
                        "score": _rounded(shares[entity.first : entity.last + 1].mean()),
                    }
                    for entity in find_entities(own)
                ]
            if cut is not None:
                _place(record, *cut)
            yield record

    def _answered(self, data: QaData, scores: np.ndarray) -> Iterator[Prediction]:
        answers = select_answers(self.config, data, scores[:, 0], scores[:, 1])
        for number, answer in enumerate(answers):
            yield _answer_record(answer, data.examples.contexts[data.examples.context_of[number]], self._top or 5)


def _place(record: Prediction, text: str, cut: Any) -> None:
    """Characters of the text for words and entities that were cut from it."""
    record["spans"] = [list(span) for span in cut.spans]
    for entity in record.get("entities", ()):
        begin, end = cut.spans[entity.pop("first")][0], cut.spans[entity.pop("last")][1]
        entity |= {"text": text[begin:end], "start": begin, "end": end}


def _answer_record(answer: PredictedAnswer, context: str, top: int) -> Prediction:
    best = next((span for span in answer.spans if span.text == answer.text), None)
    record = _span_record(best, context) if best is not None else _nothing(answer.text)
    record["best"] = [_span_record(span, context) for span in answer.spans[:top]]
    if answer.null_score_diff is not None:
        record["no_answer_margin"] = _float32(answer.null_score_diff) if math.isfinite(answer.null_score_diff) else None
    return record


def _nothing(text: str) -> Prediction:
    return {"answer": text, "start": None, "end": None, "score": None, "probability": None}


def _span_record(span: AnswerSpan, context: str) -> Prediction:
    """Places of the answer without the blanks around it."""
    found: Prediction = _nothing(span.text)
    if span.text:
        start = span.begin + context[span.begin : span.end].index(span.text)
        found |= {"start": start, "end": start + len(span.text)}
    return found | {"score": _float32(span.score), "probability": _rounded(span.probability)}


def _rounded(share: float) -> float:
    return round(float(share), _DIGITS)


def _float32(value: float) -> float:
    """The shortest number that is this float32."""
    return float(str(np.float32(value)))
