"""Sequence to sequence as a task: sources and targets as tokens, and the objective on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.model import EncoderConfig
from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.finetuning.features import Features, Targets, TextData, require_tokens, truncation_note
from bertjax.finetuning.methods import EvalResult, TaskMethods
from bertjax.finetuning.metrics.generated_text import text_scores
from bertjax.finetuning.objective import TaskObjective
from bertjax.finetuning.readers.examples import TextExamples
from bertjax.finetuning.readers.tables import require_field_text
from bertjax.finetuning.templates import (
    TokenRanges,
    assemble_windows,
    encode_texts,
    find_template,
)
from bertjax.objectives.base import FlopsTerm, Key, LossOutputs, Network, StepInputs
from bertjax.objectives.seq2seq import Seq2Seq
from bertjax.types import Batch, Params, Vocabulary

_NUM_SAMPLES = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seq2SeqTaskObjective(TaskObjective):
    """The loss of sequence-to-sequence learning on the examples of a task.

    Attributes:
        targets: the objective that predicts the targets.
    """

    targets: Seq2Seq = dataclasses.field(default_factory=Seq2Seq)

    def build(
        self, encoders: Mapping[str, EncoderConfig], vocabulary: Vocabulary, teacher: Network | None = None
    ) -> Seq2SeqTaskObjective:
        built = super().build(encoders, vocabulary, teacher)
        return dataclasses.replace(built, targets=self.targets.build(encoders, vocabulary))

    @property
    def seq2seq_model(self) -> EncoderDecoderConfig:
        """The model."""
        return self.targets.seq2seq_model

    @property
    def encoder_decoder(self) -> EncoderDecoderConfig | None:
        return self.targets.encoder_decoder

    @property
    def loss_weights(self) -> dict[str, float]:
        return self.targets.loss_weights

    @property
    def networks(self) -> dict[str, Network]:
        return self.targets.networks

    @property
    def flops_terms(self) -> tuple[FlopsTerm, ...]:
        return self.targets.flops_terms

    def init(self, key: Key) -> Params:
        return self.targets.init(key)

    def network_params(self, params: Params, name: str) -> Params:
        return self.targets.network_params(params, name)

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        return self.targets.corrupt(batch, key, cursor)

    def counts(self, batch: Batch) -> dict[str, Array]:
        return self.targets.counts(batch)

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        return self.targets.loss(params, inputs, batch, key, train)


class SequenceToSequenceTask(TaskMethods):
    """A text that follows from a text. The scores of `compute_metrics` and `records` are the generated texts."""

    def label(self, config: TaskConfig, value: Any, where: str) -> str:
        """Returns the target. Args: as in the base class."""
        return require_field_text(value, config.column_names[1], where)

    def make_features(
        self, config: TaskConfig, examples: Any, tokenizer: Tokenizer, labels: Sequence[str], training: bool
    ) -> TextData:
        return seq2seq_data(config, examples, tokenizer)

    def compute_metrics(
        self, config: TaskConfig, examples: TextExamples, data: TextData, scores: Any, labels: tuple[str, ...]
    ) -> EvalResult:
        assert examples.labels is not None
        references, settings = examples.labels[: len(scores)], config.seq2seq
        result = text_scores(settings.text_metrics, list(scores), references, settings.bleu_tokenizer)
        texts = zip(examples.texts, references, scores, strict=False)
        samples = [dict(zip(("source", "target", "output"), each, strict=True)) for each in texts]
        return EvalResult(result.metrics, samples=tuple(samples[:_NUM_SAMPLES]), signatures=result.signatures)

    def records(
        self, config: TaskConfig, scores: Any, labels: tuple[str, ...], top_k: int | None
    ) -> Iterator[dict[str, Any]]:
        yield from ({"text": text} for text in scores)


def seq2seq_data(config: TaskConfig, examples: TextExamples, tokenizer: Tokenizer) -> TextData:
    """Returns the features of sources and, where they were read, of their targets.

    A source is arranged as the tokenizer's family arranges a text. A target ends with the same last token; it begins
    with the first one only where the decoder starts with the last one (BART: `</s> <s> text` predicts `<s> text </s>`).

    Args: as of `TaskMethods.make_features`.

    Raises:
        UserError: a source has no token.
    """
    template = find_template(tokenizer, is_pair=False)
    settings, index = config.seq2seq, np.arange(len(examples), dtype=np.int32)
    sources = [settings.source_prefix + text for text in examples.texts]
    parts, cut = _truncated(tokenizer, sources, config.max_length - template.num_special)
    tokens, offsets, types, summary = assemble_windows(template, [parts])
    require_tokens(offsets, index, examples.locations)
    notes = truncation_note(cut, len(examples), f"task.max_length={config.max_length}", "sources")
    targets = None
    if examples.labels is not None:
        first = template.gaps[0] if settings.starts_with_end else ()
        of_target = dataclasses.replace(template, gaps=(first, ((tokenizer.sep_id, 0),)), types=(0,))
        limit = settings.max_target_length
        parts, count = _truncated(tokenizer, examples.labels, limit - of_target.num_special)
        targets = Targets(*assemble_windows(of_target, [parts])[:2])
        reason = f"task.seq2seq.max_target_length={limit}"
        notes += truncation_note(count, len(examples), reason, "targets")
    features = Features(tokens, offsets, types, index, summary, {}, targets)
    return TextData(features, (*examples.notes, *notes), cut)


def _truncated(tokenizer: Tokenizer, texts: Sequence[str], limit: int) -> tuple[TokenRanges, int]:
    """Returns the first tokens of texts, `limit` each, and how many texts are longer."""
    whole = TokenRanges.of(*encode_texts(tokenizer, texts))
    part = whole.truncate(np.minimum(whole.lengths, limit), tokenizer.spec.truncation_side)
    return part, int((whole.lengths > limit).sum())
