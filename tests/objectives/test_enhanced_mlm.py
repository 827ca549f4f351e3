"""Masked words predicted by DeBERTa's enhanced decoder: the loss, what it trains, what it must not see."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.models.model import bind
from bertjax.objectives.base import StepInputs
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.mlm import Mlm
from bertjax.types import Params, Vocabulary

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
MASK, S = 4, 40
NOTHING = StepInputs(frozen={}, carry={})


@pytest.fixture(scope="module")
def objective(vocabulary: Vocabulary) -> Mlm:
    model = EncoderConfig(
        family="deberta-v2",
        vocab_size=200,
        hidden_size=24,
        num_layers=3,
        num_heads=3,
        intermediate_size=40,
        max_position_embeddings=S,
        type_vocab_size=0,
        position_embedding="none",
        attention_position="disentangled",
        position_buckets=8,
        norm_relative_embeddings=True,
        share_att_key=True,
        conv_kernel_size=3,
        embedding_norm="after",
        zero_pad_embeddings=True,
        enhanced_decoder=True,
        classifier_dense="own",
    )
    return Mlm(Masking(max_predictions=16)).build({"model": model}, vocabulary)


@pytest.fixture(scope="module")
def params(objective: Mlm) -> Params:
    shapes = jax.eval_shape(objective.init, jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(rng.normal(float(path[-1].key == "scale"), 0.2, leaf.shape), jnp.float32), shapes
    )


@pytest.fixture(scope="module")
def batch(pack: Callable, example: Callable) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return pack([[example(rng, n) for n in row] for row in ([18, 22], [40], [31])], S, [[3, 4], [5], [6]])


@pytest.fixture(scope="module")
def corrupt(objective: Mlm) -> Callable:
    return jit(objective.corrupt)


@pytest.fixture(scope="module")
def hidden(corrupt: Callable, batch: dict) -> dict[str, jax.Array]:
    return corrupt(batch, jax.random.key(0), np.int32(0))


@pytest.fixture(scope="module")
def gradient(objective: Mlm) -> Callable[[Params, dict], tuple[jax.Array, Params]]:
    """Returns the gradient of the summed loss, without dropout."""

    def loss(params: Params, batch: dict[str, Any]) -> jax.Array:
        return objective.loss(params, NOTHING, batch, jax.random.key(0), False)[0]["mlm"].value

    return jit(jax.value_and_grad(loss))


@pytest.mark.long
def test_the_loss_is_read_from_the_decoder(objective: Mlm, params: Params, hidden: dict, gradient: Callable) -> None:
    @jit
    def everywhere(params: Params) -> jax.Array:
        model = bind(objective.model, objective.heads, params)
        encoded = model.encode(*(hidden[n] for n in ("input_ids", "segment_ids", "position_ids", "token_type_ids")))
        states = model.mlm_hidden_states(encoded, hidden["segment_ids"], hidden["position_ids"])
        return jax.nn.log_softmax(model.mlm_logits(states))

    scores, there = np.asarray(everywhere(params)), np.asarray(hidden["masked_weights"])
    rows, slots = np.nonzero(there)
    answers = (np.asarray(hidden[name])[rows, slots] for name in ("masked_positions", "masked_ids"))
    value, trained = gradient(params, hidden)
    np.testing.assert_allclose(value, -scores[rows, *answers].sum(), rtol=1e-5)
    assert len(rows) > 12 and all(np.abs(leaf).max() > 0.0 for leaf in jax.tree.leaves(trained))


@pytest.mark.long
def test_no_masked_position_reads_its_own_answer(
    corrupt: Callable, gradient: Callable, params: Params, batch: dict, hidden: dict
) -> None:
    """With other words under the masks, the decoder receives identical inputs, and sees none of the words."""
    hidden = jax.device_get(hidden)
    covered = (hidden["input_ids"] == MASK) & (batch["input_ids"] != MASK)
    others = {**batch, "input_ids": np.where(covered, 5 + (batch["input_ids"] + 50) % 195, batch["input_ids"])}
    again = jax.device_get(corrupt(others, jax.random.key(0), np.int32(0)))
    changed = {name for name in again if not np.array_equal(again[name], hidden[name])}
    assert covered.sum() > 8 and changed == {"original_ids", "masked_ids"}
    again["masked_ids"] = hidden["masked_ids"]  # the answers are compared with these
    np.testing.assert_array_equal(gradient(params, again)[0], gradient(params, hidden)[0])


@pytest.mark.long
def test_dropout_in_the_decoder_follows_the_key(objective: Mlm, params: Params, hidden: dict) -> None:
    @jit
    def value(key: jax.Array) -> jax.Array:
        return objective.loss(params, NOTHING, hidden, key, True)[0]["mlm"].value

    one, again, other = (value(jax.random.key(seed)) for seed in (0, 0, 1))
    assert one == again and one != other and np.isfinite(one)
