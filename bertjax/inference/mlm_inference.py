"""What a model says of words that are hidden from it; only the places that are asked for go through the vocabulary."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.inputs import Inputs, check_inputs
from bertjax.hf.pretrained import PretrainedModel
from bertjax.models.model import bind
from bertjax.models.two_stream import run_two_streams
from bertjax.types import Params


class TokenBatch(NamedTuple):
    """Texts as a model reads them, padded: ids, 1 where there is text, token types; int32 [B, S] each."""

    input_ids: np.ndarray
    attention_mask: np.ndarray
    token_type_ids: np.ndarray


class MaskMode(NamedTuple):
    """How a word is hidden: `mask_id` stands in its place or, in two streams, nobody may look at it."""

    mask_id: int
    two_streams: bool


def choose_mask_mode(model: PretrainedModel, mask_id: int, two_streams: bool | None = None) -> MaskMode:
    """The way that the model was trained with: two streams for relative positions (XLNet), unless told otherwise.

    Raises `UserError` for a model without the masked-word head, or without a piece for masks.
    """
    if "mlm" not in model.heads:
        held = f"its heads: {', '.join(model.heads)}" if model.heads else "it has none at all"
        instead = "give a model as it was pretrained on masked words"
        if "rtd" in model.heads:
            instead = "of ELECTRA that is the generator: bertjax export --network generator"
        raise UserError(f"this model has no head for masked words ({held}); {instead}")
    if model.config.causal:
        raise UserError("this model reads from left to right only: it knows no masks")
    streams = model.config.attention_position == "relative" if two_streams is None else two_streams
    if mask_id < 0 and not streams:
        raise UserError("the tokenizer of this model has no piece for masks")
    return MaskMode(mask_id, streams)


def masked_token_logits(
    model: PretrainedModel,
    rows: TokenBatch,
    hidden: Bool[np.ndarray, "B S"],
    positions: Int[np.ndarray, "B M"],
    how: MaskMode,
) -> Float[Array, "B M V"]:
    """The scores of all pieces at `positions`, while the words at `hidden` cannot be read; float32, no dropout.

    A position should be hidden: in one stream it would read its own word.
    """
    inputs = _inputs(model, rows)
    with jax.default_matmul_precision("float32"):
        return _logits(
            model.params, inputs, jnp.asarray(hidden), jnp.asarray(positions), model.config, model.heads, how
        )


def masked_token_log_probs(
    model: PretrainedModel,
    rows: TokenBatch,
    hidden: Bool[np.ndarray, "B S"],
    positions: Int[np.ndarray, "B M"],
    words: Int[np.ndarray, "B M"],
    how: MaskMode | None,
) -> Float[Array, "B M"]:
    """log P of `words` at `positions`, in nats; `how` None: nothing is hidden (causal models predict the next)."""
    arrays = (jnp.asarray(each) for each in (hidden, positions, words))
    with jax.default_matmul_precision("float32"):
        return _log_probs(model.params, _inputs(model, rows), *arrays, model.config, model.heads, how)


def _inputs(model: PretrainedModel, rows: TokenBatch) -> Inputs:
    return check_inputs(model.config, model.heads, *rows)


def _scores(
    params: Params,
    inputs: dict[str, Any],
    hidden: Array,
    positions: Array,
    config: EncoderConfig,
    heads: tuple[str, ...],
    how: MaskMode | None,
) -> Float[Array, "B M V"]:
    model = bind(config, heads, params)
    if how is not None and how.two_streams:
        seen = jnp.broadcast_to(~hidden[:, None, :], (*hidden.shape, hidden.shape[1]))
        states = run_two_streams(model.encoder, **inputs, visible=seen, targets=positions).targets
        assert states is not None
    else:
        if how is not None:
            inputs = inputs | {"input_ids": jnp.where(hidden, how.mask_id, inputs["input_ids"])}
        encoded = model.encode(**inputs)
        states = model.mlm_hidden_states(encoded, inputs["segment_ids"], inputs["position_ids"], positions)
    return model.mlm_logits(states)[..., : config.vocab_size]


_logits = functools.partial(jax.jit, static_argnums=(4, 5, 6))(_scores)


@functools.partial(jax.jit, static_argnums=(5, 6, 7))
def _log_probs(
    params: Params,
    inputs: Inputs,
    hidden: Array,
    positions: Array,
    words: Array,
    config: EncoderConfig,
    heads: tuple[str, ...],
    how: MaskMode | None,
) -> Float[Array, "B M"]:
    logits = _scores(params, inputs, hidden, positions, config, heads, how)
    chosen = jnp.take_along_axis(logits, words[:, :, None], axis=2)[:, :, 0]
    return chosen - jax.nn.logsumexp(logits, axis=2)
