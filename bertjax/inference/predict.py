"""Predictions of finetuned models for texts, words and questions, as JSON records."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax.config.distributed import MeshConfig
from bertjax.config.extensions import TASK_KINDS
from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, comma_list, named
from bertjax.hf.cross_encoder import stored_activation
from bertjax.hf.forward import max_input_length, require_readable
from bertjax.hf.native_format import HEAD_BY_MODULE
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.generate import Generative, encoder_of
from bertjax.inference.predict_inputs import PLACEHOLDER_SOURCE, PredictInputs, WordSpans
from bertjax.inference.text_batches import TOKENS_PER_BATCH
from bertjax.tasks.base import TaskKind
from bertjax.tasks.batches import InferenceBatches
from bertjax.tasks.classification import Classification
from bertjax.tasks.evaluate import EvalResult, ForwardPass, TaskData
from bertjax.tasks.features import TextData
from bertjax.tasks.multilabel import Multilabel
from bertjax.tasks.objective import TaskObjective
from bertjax.tasks.qa import QuestionAnswering
from bertjax.tasks.readers.examples import Examples, QaExamples
from bertjax.tasks.regression import Regression
from bertjax.tasks.seq2seq import Seq2SeqTask
from bertjax.tasks.token_features import TokenData
from bertjax.training.sharding import make_mesh
from bertjax.types import Batch

Prediction = dict[str, Any]


def infer_task_kind(model: Generative, requested: str | None = None) -> str:
    """Returns the kind of task that a model was finetuned for, according to its heads.

    A head for classes with one label is regression, as in transformers, unless `problem_type` says that it has several.

    Args:
        model: the finetuned model.
        requested: `--kind`; checked against the heads.

    Raises:
        UserError: no kind or several kinds fit, or the requested one does not.
    """
    heads = model.heads if isinstance(model, PretrainedModel) else (Seq2SeqTask.head,)
    classifier = _classifier_kind(model)
    is_regression = encoder_of(model).num_labels == 1
    fitting = [
        name
        for name in TASK_KINDS.builtin
        if (spec := TASK_KINDS[name]).head in heads and (spec.head != Classification.head or name == classifier.name)
    ]
    if requested is not None:
        if TASK_KINDS.load(requested, f"{named('kind')} {requested}").head not in heads:
            raise UserError(f"{named('kind')} {requested}: the model has no such head (it has {comma_list(heads)})")
        if requested == Regression.name and not is_regression:
            raise UserError(
                f"{named('kind')} regression: the head has {encoder_of(model).num_labels} labels, a number needs one"
            )
        if requested == Classification.name and classifier is Multilabel:
            raise UserError(f"{named('kind')} classification: the head has several labels per text; use multilabel")
        return requested
    if len(fitting) != 1:
        what = (
            f"the model has the heads of several tasks; choose one with {named('kind')}"
            if fitting
            else "the model has no task"
        )
        hint = "" if fitting else "; finetune it first (`bertjax finetune`)"
        raise UserError(f"{what} (heads: {comma_list(heads)}){hint}")
    return fitting[0]


def _classifier_kind(model: Generative) -> type[TaskKind]:
    """Returns the kind of task of a head for whole examples, as a pipeline of `transformers` reads it."""
    keys = model.config_keys if isinstance(model, PretrainedModel) else {}
    if keys.get("problem_type") == Multilabel().config_keys["problem_type"]:
        return Multilabel
    return Regression if encoder_of(model).num_labels == 1 else Classification


def make_task_config(model: Generative, kind: str, trained: TaskConfig | None = None, **overrides: Any) -> TaskConfig:
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
    limit = max_input_length(encoder_of(model))
    require_readable(encoder_of(model), values.get("max_length"), "max_length")
    if trained is None or trained.kind != kind:
        trained = TaskConfig(kind, (PLACEHOLDER_SOURCE,), max_length=4096)
        values.setdefault("max_length", min(384 if kind == QuestionAnswering.name else 512, limit or 512))
        if kind == Multilabel.name and isinstance(model, PretrainedModel):
            values["spec"] = _with_stored_thresholds(model)
    if kind == QuestionAnswering.name:
        qa = trained.spec if allow_no_answer is None else trained.spec.replace(allow_no_answer=allow_no_answer)
        if "max_length" in values:  # leaves tokens for the context, however short the windows
            stride, question = values["max_length"] // 3, values["max_length"] // 4
            qa = qa.replace(
                doc_stride=min(qa.doc_stride, stride), max_question_length=min(qa.max_question_length, question)
            )
        values["spec"] = qa
    unused = {"train": (PLACEHOLDER_SOURCE,), "eval": (), "labels": _distinct_labels(model, kind), "swap_pairs": False}
    return trained.replace(**unused, **values, export_checkpoint="last")


def _with_stored_thresholds(model: PretrainedModel) -> Multilabel:
    """Returns the settings of several labels with the thresholds of config.json, if it has some."""
    stored = model.config_keys.get("thresholds", Multilabel().thresholds)
    try:
        return Multilabel(thresholds=tuple(stored))
    except (TypeError, UserError) as error:
        raise UserError(f"config.json: thresholds {stored!r} must be probabilities ({error})") from None


def _distinct_labels(model: Generative, kind: str) -> tuple[str, ...]:
    """Returns the labels, whose ids gold labels may be; () where `task.labels` could not name them."""
    labels = encoder_of(model).labels
    distinct = {*labels} & {*map(str.strip, labels)} - {""}
    return labels if TASK_KINDS.load(kind).has_classes and len(labels) == len(distinct) else ()


class Predictions(NamedTuple):
    """One record per example, in order; the outputs of the head, as `HeadOutputs.scores`, or texts; the features."""

    records: list[Prediction]
    scores: Any
    data: TaskData


class Predictor:
    """Maps examples to records.

    The records of each kind hold

    - classification: label, score, probabilities {label: p};
    - multilabel: labels, those that reach their threshold, and probabilities {label: p};
    - regression: score;
    - multiple_choice: choice, the number of the predicted one, its text and score, and probabilities of all;
    - tokens: tags and tag_scores of the words, and entities [{entity, text, first, last, score}] with the indices of
      their words; with start and end, characters of the text, if the text was split into words here;
    - qa: answer, start, end, score, probability, best [{...}]; no answer is "" with start and end None; and
      null_score_diff, the score of no answer minus that of the best span.

    Args:
        model: a finetuned model.
        tokenizer: its tokenizer.
        config: settings of its task; see `make_task_config`.
        tokens: token slots of a batch.
        top_k: probabilities or candidate answers per record; None: all probabilities, 5 answers.

    Attributes:
        num_truncated: Examples that were truncated so far.
        num_truncated_words: Words that were cut off so far.
    """

    def __init__(
        self,
        model: PretrainedModel,
        tokenizer: Tokenizer,
        config: TaskConfig,
        tokens: int = TOKENS_PER_BATCH,
        top_k: int | None = None,
    ) -> None:
        # With bi_data half of a batch would be read backwards.
        model_config = dataclasses.replace(model.config, bi_data=False)
        self.config, self.labels, self._tokenizer, self._top_k = config, model.config.labels, tokenizer, top_k
        self._objective = TaskObjective(kind=config.kind, spec=config.spec).build(
            {"model": model_config}, tokenizer.vocabulary()
        )
        self._params = {
            name: leaf
            for name, leaf in model.by_layer.items()
            if HEAD_BY_MODULE.get(name) in (None, *self._objective.heads)
        }
        self._activation = stored_activation(model.config_keys, model.module_files, model.config.num_labels)
        self._mesh = make_mesh(MeshConfig(1, 1, 1), jax.local_devices()[:1])
        self._forward = ForwardPass(self._objective, self._mesh, labeled=False)
        self._tokens = tokens
        self._most_per_row: int | None = None
        self.num_truncated, self.num_truncated_words = 0, 0

    @property
    def num_classes(self) -> int:
        """Outputs of the head per text or token."""
        return self._objective.num_outputs

    @property
    def summary_is_last(self) -> bool:
        """True where the last position represents a text, and so padding precedes it (XLNet)."""
        config = self._objective.model
        has_summary = not self._objective.spec.per_token
        return has_summary and config.pooling == "last" and not config.causal

    def with_outputs(self, outputs: Callable[[Batch], np.ndarray]) -> Predictor:
        """Returns a predictor like this one, whose outputs are those of a function of batches with one text per row."""
        other = copy.copy(self)
        other._forward = ForwardPass(self._objective, self._mesh, labeled=False, outputs=outputs)
        other._most_per_row = 1
        return other

    @property
    def notes(self) -> list[str]:
        """Remarks on truncated examples."""
        result, limit = [], f"{self.config.max_length:,} tokens"
        if self.num_truncated:
            result.append(f"{self.num_truncated:,} were longer than {limit}, and cut ({named('max_length')})")
        if self.num_truncated_words:
            result.append(f"{self.num_truncated_words:,} words are beyond {limit} of their sentence: O")
        return result

    def __call__(self, inputs: PredictInputs) -> Predictions:
        """Returns the records of examples; raises `UserError` if one has no token or its label is unknown."""
        data = self._make_features(inputs.examples)
        spec, scores = self.config.spec, self._scores(data)
        scores = self._activation(scores) if spec.head == Classification.head else scores
        result = spec.records(self.config, inputs.examples, data, scores, self.labels, self._top_k)
        records = [{"id": name, **record} for name, record in zip(inputs.ids, result, strict=True)]
        for record, split in zip(records, inputs.split_texts, strict=True):
            if split is not None:
                _add_characters(record, *split)
        return Predictions(records, scores, data)

    def outputs(self, examples: Examples) -> np.ndarray:
        """Returns the outputs of the head for texts [n, K], as `Predictions.scores`. Raises as a call."""
        return self._activation(self._scores(self._make_features(examples)))

    def score(self, inputs: PredictInputs, predictions: Predictions) -> EvalResult:
        """Returns the metrics of examples that were read with their gold labels."""
        result: EvalResult = self.config.spec.compute_metrics(
            self.config, inputs.examples, predictions.data, predictions.scores, self.labels
        )
        return result

    def _make_features(self, examples: Examples) -> TaskData:
        answers = examples.answers or () if isinstance(examples, QaExamples) else ()
        if any(not each.texts for each in answers) and not self.config.spec.allow_no_answer:
            flag = named("allow_no_answer", True)
            raise UserError(f"a question has no gold answer; set {flag}, if the model knows such questions")
        data: TaskData = self.config.spec.make_features(self.config, examples, self._tokenizer, self.labels, False)
        if isinstance(data, TextData):
            self.num_truncated += data.num_truncated
        elif isinstance(data, TokenData):
            self.num_truncated_words += int((data.first_token_of_word < 0).sum())
        return data

    def _scores(self, data: TaskData) -> np.ndarray:
        model = self._objective.model
        batches = InferenceBatches(
            data.features,
            tokens=self._tokens,
            width=model.hidden_size,
            limit=max_input_length(model),
            pad_id=self._tokenizer.pad_id,
            vocab_size=model.vocab_size,
            most=self._most_per_row,
        )
        with jax.set_mesh(self._mesh):
            scores = self._forward(self._params, batches).scores
        if not np.isfinite(scores).all():
            raise UserError("the outputs of the model are not finite: its weights are broken, or its training diverged")
        return scores


def _add_characters(record: Prediction, text: str, split: WordSpans) -> None:
    """Adds the characters of words, and replaces the words of entities by characters, if a text was split here."""
    record["spans"] = [list(span) for span in split.spans]
    for entity in record.get("entities", ()):
        begin, end = split.spans[entity.pop("first")][0], split.spans[entity.pop("last")][1]
        entity |= {"text": text[begin:end], "start": begin, "end": end}
