"""Permutation language modelling, with a memory of the rows before (XLNet, arXiv:1906.08237).

A row is read by two streams: that of its tokens, and that of the M targets, which know their places and what comes
before them in a random order, but not their own words (models/two_stream.py). Only the targets are in the second
stream, and only they go through the vocabulary.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.plm import PlmConfig
from bertjax.models.model import bind, init_params
from bertjax.models.two_stream import run_two_streams
from bertjax.objectives.base import FlopsTerm, Key, Network, Objective, StepInputs, encoder_inputs, example_keys
from bertjax.objectives.masking.corrupt import selected_positions
from bertjax.objectives.plm.permutation import DRAWS, Part, permutation_visibility, sample_mask, sample_order
from bertjax.objectives.vocab_loss import unigram_nll, vocab_loss_sums
from bertjax.types import Batch, Params, Sum, Vocabulary


class PermutationLanguageModel(Objective):
    """An encoder with relative positions and the MLM head; `carry` is what its layers remember of every row.

    Like the original, the memory begins as zeros, which are attended to, and is never emptied: not where a document
    ends, nor where the text begins anew. An export has no memory and reads forwards, as the released models do.
    """

    config: PlmConfig

    def __init__(self, config: PlmConfig, model: EncoderConfig, vocabulary: Vocabulary):
        self.config, self.vocabulary = config, vocabulary
        # Without a memory one token is kept and thrown away: the layers' inputs are not held for it.
        kept = (config.mem_len, config.part_lengths[0]) if config.mem_len else (1, 1)
        alone = dataclasses.replace(model, mem_len=None, reuse_len=None, bi_data=False)
        self.model = dataclasses.replace(alone, mem_len=kept[0], reuse_len=kept[1])
        self.heads = ("mlm",)
        self.loss_weights = {"plm": 1.0}
        self.networks = {"model": Network(alone, self.heads)}
        self.flops_terms = (FlopsTerm(self.model, config.predicted_share, passes=1.0 + config.predicted_share),)
        self.unigram_nll = unigram_nll(vocabulary)

    def init(self, key: Key) -> Params:
        return init_params(self.model, self.heads, key)

    def init_carry(self, rows: int) -> dict:
        """`memory` [B, L, M, D], zeros."""
        if not self.config.mem_len:
            return {}
        shape = (rows, self.model.num_layers, self.config.mem_len, self.model.hidden_size)
        return {"memory": jnp.zeros(shape, self.model.result_dtype)}

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Hides nothing, but says what is predicted and in which order: `masked_positions`, `masked_ids`,
        `masked_weights` [B, M], ascending, and `order` int32 [B, S], -1 where a token is seen by everybody.
        """
        ids = batch["input_ids"]
        keys = example_keys(jax.random.fold_in(key, cursor), batch)[:, 0]
        bits = jax.vmap(lambda key: jax.random.bits(key, (DRAWS, ids.shape[1])))(keys).swapaxes(0, 1)
        chosen, order = [], []
        end = 0
        for width, goal in zip(self.config.part_lengths, self.config.num_predict_by_part, strict=True):
            begin, end = end, end + width
            chosen.append(self._chosen(batch, bits[:, :, begin:end], begin, goal))
            order.append(sample_order(bits[3, :, begin:end], self.config.perm_size))
        hidden, functional = jnp.concatenate(chosen, axis=1), self._functional(batch)
        places, present = selected_positions(hidden & ~functional, self.config.num_predict)
        return {
            **batch,
            "order": jnp.where(hidden | functional, jnp.concatenate(order, axis=1), -1),
            "masked_positions": places,
            "masked_ids": jnp.where(present > 0, jnp.take_along_axis(ids, places, axis=1), 0),
            "masked_weights": present,
        }

    def counts(self, batch: Batch) -> dict[str, Array]:
        return {"plm": batch["masked_weights"].sum()}

    def loss(
        self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool
    ) -> tuple[dict[str, Sum], dict]:
        model = bind(self.model, self.heads, params)
        memory = inputs.carry.get("memory")
        streams = run_two_streams(
            model.encoder,
            **encoder_inputs(batch),
            key=key if train else None,
            visible=permutation_visibility(batch["order"], self._functional(batch), self.config.part_lengths),
            targets=batch["masked_positions"],
            memory=None if memory is None else memory.swapaxes(0, 1),
            backward=batch.get("backward"),
        )
        assert streams.targets is not None
        sums = vocab_loss_sums("plm", model.mlm_logits(streams.targets), batch["masked_ids"], batch["masked_weights"])
        if not train:
            baseline = jnp.asarray(self.unigram_nll)[batch["masked_ids"]] * batch["masked_weights"]
            sums["unigram_loss"] = Sum(baseline.sum(), sums["plm"].count)
        carry = inputs.carry if memory is None else {"memory": streams.memory.swapaxes(0, 1).astype(memory.dtype)}
        return sums, carry

    def _functional(self, batch: Batch) -> Bool[Array, "B S"]:
        """[SEP] and [CLS], which are never predicted."""
        ids = batch["input_ids"]
        return (ids == self.vocabulary.sep_id) | (ids == self.vocabulary.cls_id)

    def _chosen(self, batch: Batch, bits: Array, begin: int, goal: int) -> Bool[Array, "B P"]:
        """What is hidden of a part of every row; rows read backwards are turned round, so that words begin first.

        A part that is not full predicts its share, and always leaves a token to predict from.
        """
        width, vocabulary = bits.shape[2], self.vocabulary
        own = slice(begin, begin + width)
        table = jnp.asarray(np.pad(vocabulary.starts_word, (0, vocabulary.padded_size - vocabulary.size)))
        real = batch["segment_ids"][:, own] > 0
        starts = table[batch["input_ids"][:, own]] & real
        text = (real & ~self._functional(batch)[:, own]).sum(axis=1)
        lengths = real.sum(axis=1)
        goals = jnp.clip(goal * lengths // width, 0, jnp.maximum(text - 1, 0))
        if "backward" not in batch:
            return sample_mask(Part(starts, lengths, goals, bits), self.config, goal)
        turn = batch["backward"][:, None]
        starts = jnp.where(turn, starts[:, ::-1], starts)
        found = sample_mask(Part(starts, lengths, goals, bits), self.config, goal)
        return jnp.where(turn, found[:, ::-1], found)
