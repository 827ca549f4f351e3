"""The protocol of an objective: its settings, what others need to know of it, and its pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.fields import Settings, linked, phase_setting
from bertjax.config.model import EncoderConfig, encoder_config
from bertjax.config.objectives import PAIR_FORMATS, SENTENCE_OBJECTIVES, TEXT_FORMATS
from bertjax.errors import UserError
from bertjax.models.model import HEADS, Model, init_params
from bertjax.types import Batch, Params, Sum, Vocabulary

Key = Array
T = TypeVar("T", bound="Objective")

LossOutputs = tuple[dict[str, Sum], Any]
"""Sums of losses and metrics by name, and the new carry."""


class StepInputs(NamedTuple):
    """Inputs of a training step besides parameters and batch.

    Attributes:
        frozen: arrays that are passed to every step, not donated and not optimized (the parameters of a teacher).
        carry: arrays that belong to the train state and its checkpoints (a memory); the first axis of each is the
            batch. `{}` where nothing is carried.
    """

    frozen: Any
    carry: Any


class Network(NamedTuple):
    """A network of an objective; all but decoders can be exported, called and probed by themselves."""

    config: EncoderConfig
    heads: tuple[str, ...]

    @property
    def stands_alone(self) -> bool:
        """True if it needs no output of an encoder."""
        return self.config.cross_attention_hidden_size is None


class FlopsTerm(NamedTuple):
    """The computation of one network per token of the batch, for counting FLOPs.

    Attributes:
        config: the network.
        predictions: tokens that are scored against the vocabulary, per token of the batch.
        passes: forward passes per token of the batch.
        trained: True if there is a backward pass.
    """

    config: EncoderConfig
    predictions: float
    passes: float = 1.0
    trained: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class BuildInputs:
    """Inputs of an objective besides its settings, known once the text is read.

    Attributes:
        encoders: the encoders by their config groups, with the platform's types and unrolling.
        vocabulary: the tokenizer's vocabulary.
        teacher: the network that a student learns from; None for an objective without a teacher.
    """

    encoders: Mapping[str, EncoderConfig]
    vocabulary: Vocabulary
    teacher: Network | None = None


@dataclasses.dataclass(frozen=True)
class Objective(Settings):
    """A pretraining objective, which owns its networks and heads.

    A subclass declares its keys with `setting` in a group `objective.<name>`. `build` gives it its networks; the
    methods from `init` on need them and are pure.

    The training step minimizes the sum over `loss_weights` of weight * value / max(count, 1). The counts are those of
    the whole global batch and are known before the forward pass, so that microbatches and devices simply add.

    Attributes:
        title: what the objective is, in words of a model card.
        example_formats: values of `data.example_format` that it reads.
        loss_titles: headings of its losses in reports, by name.
        metrics: what it measures besides losses, by name: (unit, meaning).
        reads: groups of keys that it reads besides its own.
        needs_mask_token: the tokenizer must have a mask token.
        can_pack: several examples may share a sequence.
        two_streams: it predicts by two-stream attention, so that a network fills masks in the same way.
        uses_teacher: it learns from the model of `objective.distillation.teacher`.
        is_finetuning: it trains on the labeled examples of `task`.
    """

    title: ClassVar[str] = ""
    example_formats: ClassVar[tuple[str, ...]] = (*TEXT_FORMATS, *PAIR_FORMATS)
    loss_titles: ClassVar[dict[str, str]] = {}
    metrics: ClassVar[dict[str, tuple[str, str]]] = {}
    reads: ClassVar[tuple[str, ...]] = ("model",)
    needs_mask_token: ClassVar[bool] = True
    can_pack: ClassVar[bool] = True
    two_streams: ClassVar[bool] = False
    uses_teacher: ClassVar[bool] = False
    is_finetuning: ClassVar[bool] = False

    built_with: BuildInputs | None = dataclasses.field(default=None, repr=False, kw_only=True)

    @classmethod
    def read_encoders(cls, cfg: ConfigDict, vocabulary: Vocabulary | None = None) -> dict[str, EncoderConfig]:
        """Reads the objective's encoders by their config groups; `vocabulary` is the tokenizer's, once it is known.

        Raises:
            UserError: a value is not allowed.
        """
        return {"model": encoder_config(cfg, vocabulary)}

    @classmethod
    def needed_sentinels(cls, cfg: ConfigDict) -> int:
        """Returns how many sentinels the tokenizer must have."""
        return 0

    def network_lengths(self, seq_len: int, max_examples: int) -> dict[str, int]:
        """Returns the tokens per sequence that networks read, by the config groups of the networks."""
        return {"model": seq_len}

    @property
    def summary(self) -> str:
        """The title with what the values add to it."""
        return self.title

    @property
    def main_metric(self) -> str | None:
        """The held-out metric by which checkpoints are compared by default."""
        return None

    @property
    def embedding_pooling(self) -> str | None:
        """The pooling of the text embeddings that it trains: "first", "mean", or None where it trains none."""
        return None

    def check_model(self, model: EncoderConfig) -> None:
        """Raises `UserError` for an encoder that cannot learn this objective."""

    def check_example_format(self, example_format: str) -> None:
        """Raises `UserError` for an example format that lacks what the losses need."""
        if example_format not in self.example_formats:
            raise UserError(
                f"objective.name={self.group.rpartition('.')[2]} needs data.example_format to be one of "
                f"{', '.join(self.example_formats)}, not {example_format!r}"
            )

    def check_batch_size(self, key: str, batch_size: int, microbatches: int) -> None:
        """Raises `UserError`, which names `key`, when a batch cannot be divided."""

    def build(
        self: T, encoders: Mapping[str, EncoderConfig], vocabulary: Vocabulary, teacher: Network | None = None
    ) -> T:
        """Returns the objective with its networks; see `BuildInputs`."""
        return dataclasses.replace(self, built_with=BuildInputs(encoders, vocabulary, teacher))

    @property
    def inputs(self) -> BuildInputs:
        """Inputs of `build`."""
        assert self.built_with is not None, "build() the objective first"
        return self.built_with

    @property
    def model(self) -> EncoderConfig:
        """The encoder of the group `model`."""
        return self.inputs.encoders["model"]

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer's vocabulary."""
        return self.inputs.vocabulary

    @property
    def loss_weights(self) -> dict[str, float]:
        """The factor of every loss."""
        raise NotImplementedError

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads of the network, where there is one."""
        raise NotImplementedError

    @property
    def predicted_share(self) -> float:
        """The share of the tokens that are scored against the vocabulary, on average over the run."""
        return 0.0

    @property
    def networks(self) -> dict[str, Network]:
        """The networks by name; an export holds the first unless told otherwise."""
        return {"model": Network(self.model, self.heads)}

    @property
    def encoder_decoder(self) -> EncoderDecoderConfig | None:
        """The config of an encoder-decoder, of which an export holds both networks; None where there is none."""
        return None

    @property
    def flops_terms(self) -> tuple[FlopsTerm, ...]:
        """The computation per token of the batch."""
        return (FlopsTerm(self.model, self.predicted_share),)

    def init(self, key: Key) -> Params:
        """Returns freshly drawn parameters."""
        return init_params(self.model, self.heads, key)

    def init_carry(self, batch_size: int) -> Any:
        """Returns what is carried into the first batch of `batch_size` sequences."""
        return {}

    def network_params(self, params: Params, name: str) -> Params:
        """Returns the complete parameters of one of `networks`, as `bind` and an export need them."""
        return params

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Returns the global batch with tokens masked and targets added.

        Args:
            batch: the batch as it was read.
            key: the key of the run; `cursor` is folded in here.
            cursor: the index of the batch.
        """
        return batch

    def counts(self, batch: Batch) -> dict[str, Array]:
        """Returns the denominator of every weighted loss, float32 [], known without a forward pass."""
        raise NotImplementedError

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        """Computes the losses of a corrupted batch.

        Args:
            params: the trained parameters.
            inputs: frozen arrays and the carry of the batch before.
            batch: a batch, or microbatch, that `corrupt` returned.
            key: the key of dropout.
            train: False = no dropout, and metrics of held-out text.

        Returns:
            The sums of the weighted losses and of further metrics, and the new carry.
        """
        raise NotImplementedError

    def mean_loss(
        self,
        params: Params,
        batch: Batch,
        key: Key,
        cursor: int | Array = 0,
        *,
        inputs: StepInputs | None = None,
        train: bool = True,
    ) -> tuple[Array, dict[str, Array]]:
        """Computes the weighted loss of a batch, for a training loop of one's own; differentiate it by `params`.

        Args:
            params: the trained parameters.
            batch: a batch as it was read.
            key: the key of the run, from which masks and dropout are drawn.
            cursor: the index of the batch.
            inputs: frozen arrays and the carry; None for objectives that have none.
            train: False = no dropout.

        Returns:
            The loss [], and the mean of every loss and metric by name [].
        """
        mask_key, dropout_key = jax.random.split(key)
        batch = self.corrupt(jax.tree.map(jnp.asarray, batch), mask_key, jnp.asarray(cursor, jnp.int32))
        dropout_key = jax.random.fold_in(dropout_key, cursor)
        sums, _ = self.loss(params, inputs or StepInputs({}, {}), batch, dropout_key, train)
        means = {name: each.value / jnp.maximum(each.count, 1.0) for name, each in sums.items()}
        return weighted_loss(sums, self.counts(batch), self.loss_weights), means


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairObjective(Objective):
    """An objective of tokens that also classifies pairs of segments where the text comes in pairs."""

    example_format: str = linked("data.example_format", "block")
    pair_weight: float = phase_setting(
        1.0,
        help="Factor of the mean loss of sentence pairs: does the second segment follow the first "
        "(data.example_format=nsp_pairs), are they in order (sop_pairs); 0 = no such head.",
        at_least=0.0,
    )

    @property
    def sentence_objective(self) -> str:
        """The classification of the pairs, in words of a model card; "" where there is none."""
        return SENTENCE_OBJECTIVES.get(self.example_format, "") if self.pair_weight else ""

    @property
    def pair_loss_weights(self) -> dict[str, float]:
        """The factor of the loss `pair`, {} where the text has no pairs."""
        return {"pair": self.pair_weight} if self.sentence_objective else {}

    def with_pair_heads(self, *heads: str) -> tuple[str, ...]:
        """Returns these heads and, where the text has pairs, those that classify pairs, in the order of `HEADS`."""
        names = {*heads, *(("pooler", "pair") if self.sentence_objective else ())}
        return tuple(head for head in HEADS if head in names)


def weighted_loss(sums: Mapping[str, Sum], counts: Mapping[str, Array], loss_weights: Mapping[str, float]) -> Array:
    """Returns the sum of weight * value / max(count, 1) over all losses, float32 [].

    Args:
        sums: losses of this part of the batch; their own counts are not used.
        counts: counts of the whole global batch.
        loss_weights: factor of every loss.
    """
    return sum(
        (weight * sums[name].value / jnp.maximum(counts[name], 1.0) for name, weight in loss_weights.items()),
        start=jnp.zeros((), jnp.float32),
    )


def example_keys(key: Key, batch: Batch, copies: str = "example_epochs") -> Array:
    """Returns a key per example [B, E], whatever its sequence or device.

    Args:
        key: the key of the batch, or for what repeats that of the run.
        batch: a batch.
        copies: `example_epochs`, so that copies of an example in one batch differ, or `example_draws`, so that it is
            the same again in a later epoch.
    """
    fold = jax.vmap(jax.vmap(lambda identity, copy: jax.random.fold_in(jax.random.fold_in(key, identity), copy)))
    return fold(batch["example_ids"], batch[copies])


def encoder_inputs(batch: Batch) -> Batch:
    """Returns the arrays of a batch that every encoder reads."""
    return {name: batch[name] for name in ("input_ids", "segment_ids", "position_ids", "token_type_ids")}


def classify_pairs(model: Model, hidden_states: Float[Array, "B S D"], batch: Batch) -> dict[str, Sum]:
    """Returns `pair` and `pair_accuracy` of a batch with `pair_labels`; {} for a model without a pair head.

    Args:
        model: Model whose pooler and pair head are used.
        hidden_states: Last hidden states.
        batch: Batch that they were computed from.
    """
    if model.pair_head is None:
        return {}
    pooled = model.pooled(hidden_states, batch["example_positions"], batch["segment_ids"])
    return sentence_pair_sums(model.pair_logits(pooled), batch["pair_labels"], batch["example_weights"])


def sentence_pair_sums(
    logits: Float[Array, "B E 2"], labels: Int[Array, "B E"], weights: Float[Array, "B E"]
) -> dict[str, Sum]:
    """Computes the loss of next-sentence or sentence-order prediction.

    Args:
        logits: Scores of the two labels.
        labels: 0 = the second segment follows the first, as in Hugging Face.
        weights: 0 = no example.

    Returns:
        `pair` and `pair_accuracy`.
    """
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    is_right = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
    count = weights.sum()
    return {"pair": Sum((losses * weights).sum(), count), "pair_accuracy": Sum((is_right * weights).sum(), count)}
