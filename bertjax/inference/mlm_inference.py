"""Predictions for masked tokens; only the requested positions are projected to the vocabulary."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.forward import Inputs, check_inputs
from bertjax.hf.pretrained import PretrainedModel
from bertjax.models.model import bind
from bertjax.models.two_stream import run_two_streams
from bertjax.types import Params


class TokenBatch(NamedTuple):
    """Padded texts: token ids, 1 for tokens and 0 for padding, token types; int32 [B, S] each."""

    input_ids: np.ndarray
    attention_mask: np.ndarray
    token_type_ids: np.ndarray


class MaskMode(NamedTuple):
    """Manner of masking: `mask_id` replaces a token or, with two streams, no position may attend to it."""

    mask_id: int
    two_streams: bool


def choose_mask_mode(model: PretrainedModel, mask_id: int, two_streams: bool | None = None) -> MaskMode:
    """Returns the mode in which the model was pretrained.

    Args:
        model: a model with an MLM head.
        mask_id: id of the mask token; negative: there is none.
        two_streams: None: two streams for relative positions (XLNet), else the mask token.

    Raises:
        UserError: the model has no MLM head or is causal, or the tokenizer has no mask token.
    """
    if "mlm" not in model.heads:
        held = f"its heads: {', '.join(model.heads)}" if model.heads else "it has none at all"
        advice = "give a model as it was pretrained on masked words"
        if "rtd" in model.heads:
            advice = "of ELECTRA that is the generator: bertjax export --network generator"
        raise UserError(f"this model has no head for masked words ({held}); {advice}")
    if model.config.causal:
        raise UserError("this model reads from left to right only: it knows no masks")
    streams = model.config.attention_position == "relative" if two_streams is None else two_streams
    if mask_id < 0 and not streams:
        raise UserError("the tokenizer of this model has no mask token")
    return MaskMode(mask_id, streams)


def masked_token_logits(
    model: PretrainedModel,
    batch: TokenBatch,
    masked: Bool[np.ndarray, "B S"],
    positions: Int[np.ndarray, "B M"],
    mode: MaskMode,
) -> Float[Array, "B M V"]:
    """Computes the logits of all tokens at some positions, in float32 and without dropout.

    Args:
        model: a model with an MLM head.
        batch: the texts.
        masked: True for masked tokens.
        positions: the positions to predict; they should be masked, because in one stream an unmasked position reads
            its own token.
        mode: how tokens are masked.

    Raises:
        UserError: a token is masked that nothing can predict, or an input is wrong.
    """
    _require_predictable(model.config, masked)
    with jax.default_matmul_precision("float32"):
        return _jitted_logits(
            model.by_layer,
            check_inputs(model.config, model.heads, *batch),
            jax.device_put(masked),
            jax.device_put(positions),
            model.config,
            model.heads,
            mode,
        )


def masked_token_log_probs(
    model: PretrainedModel,
    batch: TokenBatch,
    masked: Bool[np.ndarray, "B S"],
    positions: Int[np.ndarray, "B M"],
    targets: Int[np.ndarray, "B M"],
    mode: MaskMode | None,
) -> Float[Array, "B M"]:
    """Computes the log-probabilities of target tokens, in nats.

    Args:
        model, batch, masked, positions: as of `masked_token_logits`.
        targets: ids of the tokens whose probability is computed.
        mode: how tokens are masked; None: not at all (causal models predict the next token).

    Raises:
        UserError: as of `masked_token_logits`.
    """
    _require_predictable(model.config, masked)
    inputs = check_inputs(model.config, model.heads, *batch)
    arrays = jax.device_put((masked, positions, targets))
    with jax.default_matmul_precision("float32"):
        return _log_probs(model.by_layer, inputs, *arrays, model.config, model.heads, mode)


def _require_predictable(config: EncoderConfig, masked: Bool[np.ndarray, "B S"]) -> None:
    if config.predicts_from_previous and masked[:, 0].any():
        raise UserError(
            "this model predicts a masked token from the one before it, and a text begins with a mask: write a word "
            "first"
        )


def _logits(
    params: Params,
    inputs: dict[str, Any],
    masked: Array,
    positions: Array,
    config: EncoderConfig,
    heads: tuple[str, ...],
    mode: MaskMode | None,
) -> Float[Array, "B M V"]:
    model = bind(config, heads, params)
    if mode is not None and mode.two_streams:
        visible = jnp.broadcast_to(~masked[:, None, :], (*masked.shape, masked.shape[1]))
        states = run_two_streams(model.encoder, **inputs, visible=visible, targets=positions).targets
        assert states is not None
    else:
        if mode is not None:
            inputs = inputs | {"input_ids": jnp.where(masked, mode.mask_id, inputs["input_ids"])}
        encoded = model.encode(**inputs)
        states = model.mlm_hidden_states(encoded, inputs["segment_ids"], inputs["position_ids"], positions)
    return model.mlm_logits(states)[..., : config.vocab_size]


_jitted_logits = functools.partial(jax.jit, static_argnums=(4, 5, 6))(_logits)


@functools.partial(jax.jit, static_argnums=(5, 6, 7))
def _log_probs(
    params: Params,
    inputs: Inputs,
    masked: Array,
    positions: Array,
    targets: Array,
    config: EncoderConfig,
    heads: tuple[str, ...],
    mode: MaskMode | None,
) -> Float[Array, "B M"]:
    logits = _logits(params, inputs, masked, positions, config, heads, mode)
    of_targets = jnp.take_along_axis(logits, targets[:, :, None], axis=2)[:, :, 0]
    return of_targets - jax.nn.logsumexp(logits, axis=2)
