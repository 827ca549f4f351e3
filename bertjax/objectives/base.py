"""The protocol between an objective and the training step. All methods are pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.base import ObjectiveConfig
from bertjax.types import Batch, Params, Sum, Vocabulary

Key = Array

LossOutputs = tuple[dict[str, Sum], Any]
"""Sums of losses and metrics by name, and the new carry."""


class StepInputs(NamedTuple):
    """Inputs of a training step besides parameters and batch.

    Attributes:
        frozen: arrays that are passed to every step, not donated and not optimised (the parameters of a teacher).
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


class Objective:
    """A pretraining objective, which owns its networks and heads.

    The training step minimises the sum over `loss_weights` of weight * value / max(count, 1). The counts are those of
    the whole global batch and are known before the forward pass, so that microbatches and devices simply add.

    Attributes:
        config: the objective's config.
        loss_weights: the factor of every loss.
        networks: the networks by name; an export holds the first unless told otherwise.
        encoder_decoder: where the model is an encoder-decoder, its config: an export then holds both of its networks,
            `model` and `decoder`. None for all others.
        flops_terms: the computation per token of the batch.
    """

    config: ObjectiveConfig
    loss_weights: dict[str, float]
    networks: dict[str, Network]
    encoder_decoder: EncoderDecoderConfig | None = None
    flops_terms: tuple[FlopsTerm, ...]

    def __init__(self, config: Any, model: Any, vocabulary: Vocabulary):
        raise NotImplementedError

    @classmethod
    def build(
        cls,
        config: Any,
        encoders: Mapping[str, EncoderConfig],
        vocabulary: Vocabulary,
        teacher: Network | None = None,
    ) -> Objective:
        """Builds the objective of a config.

        Args:
            config: the objective's config.
            encoders: the encoders by their config groups, with the platform's types and unrolling.
            vocabulary: the tokenizer's vocabulary.
            teacher: the network that a student learns from; None for an objective without a teacher.
        """
        return cls(config, encoders["model"], vocabulary)

    def init(self, key: Key) -> Params:
        """Returns freshly drawn parameters."""
        raise NotImplementedError

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
