"""Sequence to sequence: texts that follow from texts, the objective on them, and metrics of generated texts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.fields import linked, setting
from bertjax.config.generation import GenerationConfig
from bertjax.config.model import EncoderConfig, float32_config
from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.metrics import add_sums, mean_metrics
from bertjax.models.generation import generate
from bertjax.objectives.base import FlopsTerm, Key, LossOutputs, Network, StepInputs
from bertjax.objectives.seq2seq import Seq2Seq
from bertjax.tasks.base import RECORDS, TaskKind
from bertjax.tasks.batches import length_steps
from bertjax.tasks.evaluate import EvalResult, Evaluator
from bertjax.tasks.features import Features, Targets, TextData, require_tokens, truncation_note
from bertjax.tasks.metrics.generated_text import metric_names, require_libraries, text_scores
from bertjax.tasks.objective import TaskObjective
from bertjax.tasks.readers.examples import TextExamples
from bertjax.tasks.readers.tables import require_field_text
from bertjax.tasks.templates import TokenRanges, assemble_windows, encode_texts, find_template
from bertjax.training.sharding import host_copy, put_batch
from bertjax.types import Batch, Params, Sum, Vocabulary

_NUM_SAMPLES = 20
_NUM_LENGTHS = 3  # of sources: each is a program to compile


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


class GenerationEvaluator(Evaluator):
    """Loss of all held-out targets given the tokens before, and metrics of the texts that the model generates."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        require_libraries(self.config.spec.text_metrics)
        exact = float32_model(self.objective.seq2seq_model)
        objective = self.objective.targets.with_model(exact, self.objective.vocabulary)

        def step(params: Params, batch: Batch) -> dict[str, Sum]:
            key = jax.random.key(0)
            return objective.loss(params, StepInputs({}, {}), objective.corrupt(batch, key, jnp.int32(0)), key, False)[
                0
            ]

        search = generation_config(self.config, exact, self.tokenizer)
        self._generator = TextGenerator(exact, self.tokenizer, search, self.config.batch_size)
        self._step = jax.jit(step, out_shardings=NamedSharding(self.mesh, PartitionSpec()))

    def __call__(self, params: Params, frozen: Any) -> dict[str, float]:
        with jax.default_matmul_precision("float32"):
            sums = [self._step(params, put_batch(batch, self.mesh)) for batch in self.batches]
        metrics = self._loss_metrics(add_sums(jax.device_get(sums)))
        settings = self.config.spec
        if settings.text_metrics:
            count = settings.num_generated or len(self.examples)
            texts, length = self._generator(one_device(params, self.mesh), self.data.features, count)
            result = self.config.spec.compute_metrics(self.config, self.examples, self.data, texts, ())
            self.on_result(result)
            metrics |= result.metrics | {"generated_length": length}
        return {f"eval/{name}": value for name, value in metrics.items()}

    def names(self) -> list[str]:
        sums = {name: Sum(0.0, 1.0) for name in ("seq2seq", "seq2seq_nll", "seq2seq_accuracy")}
        names = [*self._loss_metrics(sums), *metric_names(self.config.spec.text_metrics)]
        return [f"eval/{name}" for name in names]

    def _loss_metrics(self, sums: dict[str, Sum]) -> dict[str, float]:
        means = mean_metrics(sums, self.objective.loss_weights)
        return means | {"perplexity": math.exp(min(means["seq2seq_nll"], 700.0))}


@dataclasses.dataclass(frozen=True)
class Seq2SeqTask(TaskKind, group="task.seq2seq"):
    """Texts that follow from texts: translations, summaries; see also `decoder` and `objective.seq2seq`."""

    name, title, head = "seq2seq", "sequence to sequence", "seq2seq"
    main_metric, label_array = "seq2seq_nll", "target_ids"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "seq2seq_nll": ("nats", "Mean negative log-likelihood of the target tokens, without label smoothing."),
        "perplexity": ("1", "exp of that."),
        "bleu": ("0 to 100", "BLEU of the generated texts (sacrebleu)."),
        "chrf": ("0 to 100", "chrF2 of the generated texts (sacrebleu)."),
        "rouge1": ("0 to 100", "F1 of words (rouge-score)."),
        "rouge2": ("0 to 100", "F1 of pairs of words (rouge-score)."),
        "rougeL": ("0 to 100", "F1 of the longest common subsequence of words (rouge-score)."),
        "generated_length": ("tokens", "Mean length of the generated texts."),
    }
    columns = ("source", "target")
    has_targets = True
    takes_pairs = False
    objective, evaluator = Seq2SeqTaskObjective, GenerationEvaluator
    source_kinds, example_source = ("parallel", "tsv", "csv", *RECORDS), "parallel:train:en-de"

    max_target_length: int = setting(128, at_least=2, help="Tokens of a target, its end token included.")
    source_prefix: str = setting(
        "", help='Text before every source, such as T5\'s "translate English to German: "; "": none.'
    )
    text_metrics: tuple[str, ...] = setting(
        ("bleu", "chrf"),
        choices=("bleu", "chrf", "rouge"),
        help="Metrics of generated texts; the first one selects the best checkpoint. (): nothing is generated.",
    )
    num_generated: int | None = setting(
        None,
        at_least=1,
        help="Held-out examples, the first ones, whose targets are generated per evaluation; None: all.",
    )
    num_beams: int = setting(1, at_least=1, at_most=64, help="Beams of the search at evaluation; 1: greedy.")
    length_penalty: float = setting(
        1.0, help="Power of the length by which scores of beams are divided; above 0 favors long texts."
    )
    max_new_tokens: int | None = setting(
        None, at_least=1, help="Tokens of a generated text at most; None: max_target_length."
    )
    min_new_tokens: int | None = setting(None, at_least=1, help="Tokens of a generated text at least; None: 1.")
    no_repeat_ngram_size: int = setting(
        0, at_least=0, help="No n-gram of this size occurs twice in a generated text; 0: any may."
    )
    bleu_tokenizer: str = setting(
        "13a",
        choices=("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"),
        help="Words of BLEU, as sacrebleu names its tokenizers: 13a for most languages, zh, ja-mecab and ko-mecab for "
        "Chinese, Japanese (pip install 'sacrebleu[ja]') and Korean.",
    )

    start_token: str = linked("decoder.start_token", "cls")

    @property
    def starts_with_end(self) -> bool:
        """True if decoders start with the end token, and targets with the first token of a source (BART)."""
        return self.start_token == "sep"

    @property
    def generation(self) -> dict[str, Any]:
        values: dict[str, Any] = {"max_new_tokens": self.max_new_tokens or self.max_target_length}
        values["num_beams"] = self.num_beams
        if self.num_beams > 1:
            values["length_penalty"] = self.length_penalty
        if self.min_new_tokens is not None:
            values["min_new_tokens"] = self.min_new_tokens
        return values | {"no_repeat_ngram_size": self.no_repeat_ngram_size}

    @property
    def metric(self) -> str:
        first = next(iter(self.text_metrics), self.main_metric)
        return "rougeL" if first == "rouge" else first

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
        references = examples.labels[: len(scores)]
        result = text_scores(self.text_metrics, list(scores), references, self.bleu_tokenizer)
        texts = zip(examples.texts, references, scores, strict=False)
        samples = [dict(zip(("source", "target", "output"), each, strict=True)) for each in texts]
        return EvalResult(result.metrics, samples=tuple(samples[:_NUM_SAMPLES]), signatures=result.signatures)

    def records(
        self, config: TaskConfig, examples: Any, data: Any, scores: Any, labels: tuple[str, ...], top_k: int | None
    ) -> Iterator[dict[str, Any]]:
        yield from ({"text": text} for text in scores)


def seq2seq_data(config: TaskConfig, examples: TextExamples, tokenizer: Tokenizer) -> TextData:
    """Returns the features of sources and, where they were read, of their targets.

    A source is arranged as the tokenizer's family arranges a text. A target ends with the same last token; it begins
    with the first one only where the decoder starts with the last one (BART: `</s> <s> text` predicts `<s> text </s>`).

    Args: as of `TaskKind.make_features`.

    Raises:
        UserError: a source has no token.
    """
    template = find_template(tokenizer, is_pair=False)
    settings, index = config.spec, np.arange(len(examples), dtype=np.int32)
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


class TextGenerator:
    """Generates the texts of windows, those of similar length together.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        settings: settings of the search.
        batch_size: windows at a time.
    """

    def __init__(
        self, model: EncoderDecoderConfig, tokenizer: Tokenizer, settings: GenerationConfig, batch_size: int
    ) -> None:
        self._model, self._tokenizer, self._settings, self._batch_size = model, tokenizer, settings, batch_size

    def __call__(self, params: Params, features: Features, count: int) -> tuple[list[str], float]:
        """Returns the texts of the first windows, and their mean number of tokens.

        Args:
            params: parameters on one device.
            features: the windows.
            count: number of windows.
        """
        lengths = features.lengths[:count]
        order = np.argsort(-lengths, kind="stable")
        size = min(self._batch_size, len(order))
        steps = length_steps((int(-(-lengths.max() // 8) * 8),), _NUM_LENGTHS)
        ids: list[Sequence[int]] = [()] * len(order)
        for begin in range(0, len(order), size):
            numbers = order[begin : begin + size]
            width = min(step for (step,) in steps if step >= lengths[numbers].max())
            inputs = self._inputs(features, numbers, size, width)
            with jax.default_matmul_precision("float32"):
                result = jax.device_get(generate(params, self._model, inputs, self._settings))
            for row, number in enumerate(numbers):
                ids[number] = result.sequences[row, 0, : int(result.lengths[row, 0])].tolist()
        return self._tokenizer.decode_texts(ids), float(np.mean([len(each) for each in ids]))

    def _inputs(self, features: Features, numbers: np.ndarray, size: int, width: int) -> dict[str, np.ndarray]:
        """Returns the windows as rows; those that fill the last batch repeat the first one."""
        ids = np.full((size, width), self._tokenizer.pad_id, np.int32)
        mask = np.zeros((size, width), np.int32)
        for row in range(size):
            number = numbers[row] if row < len(numbers) else numbers[0]
            tokens = features.tokens[features.offsets[number] : features.offsets[number + 1]]
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        return {"input_ids": ids, "attention_mask": mask}


def generation_config(config: TaskConfig, model: EncoderDecoderConfig, tokenizer: Tokenizer) -> GenerationConfig:
    """Returns the settings of the search, as an export stores them.

    Args:
        config: settings of the task.
        model: the model, with its start token.
        tokenizer: its tokenizer.
    """
    return GenerationConfig(
        **config.spec.generation,
        decoder_start_token_id=model.decoder_start_token_id,
        eos_token_id=(tokenizer.sep_id,),
        pad_token_id=tokenizer.pad_id,
    )


def float32_model(config: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Returns the model that computes in float32, as an export is read, whatever the dtype of training."""
    encoder, decoder = (
        dataclasses.replace(float32_config(network), padded_vocab_size=network.padded_vocab_size)
        for network in (config.encoder, config.decoder)
    )
    return dataclasses.replace(config, encoder=encoder, decoder=decoder)


def one_device(params: Params, mesh: Mesh) -> Params:
    """Returns parameters of a mesh on one device, where every process generates all texts."""
    return params if mesh.size == 1 else jax.tree.map(jnp.asarray, host_copy(params))
