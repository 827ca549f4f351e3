"""Permutation language modeling with a memory of earlier sequences (XLNet, arXiv:1906.08237).

A sequence is read by two streams: the content stream of its tokens, and the query stream of the M targets, which know
their positions and the tokens before them in a random order, but not their own tokens (models/two_stream.py). Only the
targets are in the second stream, and only they go through the vocabulary projection.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from bertjax.config.model import EncoderConfig
from bertjax.models.model import bind
from bertjax.models.two_stream import run_two_streams
from bertjax.objectives.base import (
    FlopsTerm,
    Key,
    LossOutputs,
    Network,
    StepInputs,
    classify_pairs,
    encoder_inputs,
    example_keys,
)
from bertjax.objectives.masking.corrupt import selected_positions
from bertjax.objectives.plm.permutation import (
    NUM_DRAWS,
    PlmSettings,
    SequencePart,
    permutation_ranks,
    sample_order,
    sample_targets,
)
from bertjax.objectives.vocab_loss import unigram_nll, unigram_sums, vocab_loss_sums
from bertjax.types import Batch, Params


@dataclasses.dataclass(frozen=True)
class Plm(PlmSettings):
    """An encoder with relative positions and the MLM head; `carry` is the memory of its layers.

    Like the original, the memory begins as zeros, which are attended to, and is never emptied: neither at the end of a
    document nor at the start of an epoch. An export has no memory and reads forwards, like the released models.
    """

    @functools.cached_property
    def exported(self) -> EncoderConfig:
        """The encoder without a memory."""
        return dataclasses.replace(self.inputs.encoders["model"], mem_len=None, reuse_len=None, bi_data=False)

    @functools.cached_property
    def model(self) -> EncoderConfig:
        # Without a memory one token is cached and dropped, so that the layers' inputs are not kept for it.
        mem_len, reuse_len = (self.mem_len, self.part_lengths[0]) if self.mem_len else (1, 1)
        return dataclasses.replace(self.exported, mem_len=mem_len, reuse_len=reuse_len)

    @property
    def heads(self) -> tuple[str, ...]:
        return self.with_pair_heads("mlm")

    @functools.cached_property
    def loss_weights(self) -> dict[str, float]:
        return {"plm": 1.0, **self.pair_loss_weights}

    @property
    def networks(self) -> dict[str, Network]:
        return {"model": Network(self.exported, self.heads)}

    @property
    def flops_terms(self) -> tuple[FlopsTerm, ...]:
        return (FlopsTerm(self.model, self.predicted_share, passes=1.0 + self.predicted_share),)

    def init_carry(self, batch_size: int) -> dict:
        """Returns `memory` [B, L, M, D] of zeros, M = `mem_len`."""
        if not self.mem_len:
            return {}
        shape = (batch_size, self.model.num_layers, self.mem_len, self.model.hidden_size)
        return {"memory": jnp.zeros(shape, self.model.result_dtype)}

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Adds the targets and the order of prediction; no token is replaced.

        `masked_positions`, `masked_ids` and `masked_weights` are [B, M], ascending; `prediction_order` is int32 [B, S],
        -1 where a token is visible to all.
        """
        ids = batch["input_ids"]
        keys = example_keys(jax.random.fold_in(key, cursor), batch)[:, 0]
        bits = jax.vmap(lambda key: jax.random.bits(key, (NUM_DRAWS, ids.shape[1])))(keys).swapaxes(0, 1)
        targets, order = [], []
        end = 0
        for length, num_predict in zip(self.part_lengths, self.num_predict_by_part, strict=True):
            start, end = end, end + length
            targets.append(self._targets(batch, bits[:, :, start:end], start, num_predict))
            order.append(sample_order(bits[3, :, start:end], self.block_size))
        is_target, is_functional = jnp.concatenate(targets, axis=1), self._is_functional(batch)
        positions, exists = selected_positions(is_target & ~is_functional, self.num_targets)
        return {
            **batch,
            "prediction_order": jnp.where(is_target | is_functional, jnp.concatenate(order, axis=1), -1),
            "masked_positions": positions,
            "masked_ids": jnp.where(exists > 0, jnp.take_along_axis(ids, positions, axis=1), 0),
            "masked_weights": exists,
        }

    def counts(self, batch: Batch) -> dict[str, Array]:
        counted = {"plm": "masked_weights", "pair": "example_weights"}
        return {name: batch[counted[name]].sum() for name in self.loss_weights}

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        model = bind(self.model, self.heads, params)
        memory = inputs.carry.get("memory")
        is_functional = self._is_functional(batch)
        streams = run_two_streams(
            model.encoder,
            **encoder_inputs(batch),
            key=key if train else None,
            visible=permutation_ranks(batch["prediction_order"], is_functional, self.part_lengths),
            targets=batch["masked_positions"],
            memory=None if memory is None else memory.swapaxes(0, 1),
            backward=batch.get("backward"),
        )
        assert streams.targets is not None
        targets = batch["masked_ids"], batch["masked_weights"]
        sums = vocab_loss_sums("plm", model.mlm_logits(streams.targets), *targets)
        if not train:
            sums |= unigram_sums("plm", unigram_nll(self.vocabulary), *targets)
        sums |= classify_pairs(model, streams.content, batch)
        carry = inputs.carry if memory is None else {"memory": streams.memory.swapaxes(0, 1).astype(memory.dtype)}
        return sums, carry

    def _is_functional(self, batch: Batch) -> Bool[Array, "B S"]:
        """Returns True for [SEP] and [CLS], which are never predicted."""
        ids = batch["input_ids"]
        return (ids == self.vocabulary.sep_id) | (ids == self.vocabulary.cls_id)

    def _targets(self, batch: Batch, bits: Array, start: int, num_predict: int) -> Bool[Array, "B P"]:
        """Samples the targets of a part of every sequence.

        Sequences that are read backwards are reversed, so that words begin first. A part that is not full predicts its
        share, and always leaves a token to predict from.
        """
        length, vocabulary = bits.shape[2], self.vocabulary
        current = slice(start, start + length)
        table = jnp.asarray(np.pad(vocabulary.starts_word, (0, vocabulary.padded_size - vocabulary.size)))
        is_real = batch["segment_ids"][:, current] > 0
        starts = table[batch["input_ids"][:, current]] & is_real
        num_text = (is_real & ~self._is_functional(batch)[:, current]).sum(axis=1)
        lengths = is_real.sum(axis=1)
        goals = jnp.clip(num_predict * lengths // length, 0, jnp.maximum(num_text - 1, 0))
        if "backward" not in batch:
            return sample_targets(SequencePart(starts, lengths, goals, bits), self, num_predict)
        is_backward = batch["backward"][:, None]
        starts = jnp.where(is_backward, starts[:, ::-1], starts)
        targets = sample_targets(SequencePart(starts, lengths, goals, bits), self, num_predict)
        return jnp.where(is_backward, targets[:, ::-1], targets)
