"""Random token substitution: a classifier of every token, as ELECTRA's discriminator, without a generator."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bertjax.extensions import FlopsTerm, Network, Objective, StepInputs, Sum, bind, encoder_inputs, example_keys
from bertjax.extensions import init_params as init_model
from bertjax_extras.rts_config import RtsConfig

Batch = dict[str, Any]


class RandomTokenSubstitution(Objective):
    """An encoder with a score per token; `model.family=electra` exports it as ElectraForPreTraining."""

    config: RtsConfig

    def __init__(self, config: RtsConfig, model: Any, vocabulary: Any):
        self.config, self.model, self.vocabulary = config, model, vocabulary
        self.loss_weights = {"rts": 1.0}
        self.networks = {"model": Network(model, ("rtd",))}
        self.flops_terms = (FlopsTerm(model, 0.0),)

    def init(self, key: jax.Array) -> Any:
        return init_model(self.model, ("rtd",), key)

    def corrupt(self, batch: Batch, key: jax.Array, cursor: jax.Array) -> Batch:
        """Replaces tokens by others, uniformly; which ones depends on the example, not on its sequence or device."""
        ids, segments = batch["input_ids"], batch["segment_ids"]
        keys = example_keys(jax.random.fold_in(key, cursor), batch)  # [B, E]
        of_token = jnp.take_along_axis(keys, jnp.maximum(segments - 1, 0), axis=1)

        def draw(key: jax.Array, position: jax.Array) -> tuple[jax.Array, jax.Array]:
            replaced, token = jax.random.split(jax.random.fold_in(key, position))
            return jax.random.uniform(replaced), jax.random.randint(token, (), 0, self.vocabulary.size)

        chance, token = jax.vmap(jax.vmap(draw))(of_token, batch["position_ids"])
        special = jnp.asarray([self.vocabulary.pad_id, self.vocabulary.cls_id, self.vocabulary.sep_id])
        is_text = (segments > 0) & ~jnp.isin(ids, special)
        new_ids = jnp.where(is_text & (chance < self.config.rate), token, ids)
        labels = (new_ids != ids).astype(jnp.float32)  # a token that replaces itself is not a replacement
        return {**batch, "input_ids": new_ids, "rts_labels": labels, "rts_weights": is_text.astype(jnp.float32)}

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        return {"rts": batch["rts_weights"].sum()}

    def loss(self, params: Any, inputs: StepInputs, batch: Batch, key: jax.Array, train: bool) -> Any:
        model = bind(self.model, ("rtd",), params)
        hidden = model.encode(**encoder_inputs(batch), key=key if train else None).last_hidden_state
        logits = model.rtd_logits(hidden, batch["example_positions"], batch["segment_ids"])
        labels, weights = batch["rts_labels"], batch["rts_weights"]
        losses, correct = optax.sigmoid_binary_cross_entropy(logits, labels), (logits > 0) == (labels > 0)
        count = weights.sum()
        sums = {"rts": Sum((losses * weights).sum(), count), "rts_accuracy": Sum((correct * weights).sum(), count)}
        return sums, inputs.carry
