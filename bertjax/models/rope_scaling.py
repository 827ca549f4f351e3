"""Rotations of a batch, with the frequencies of `model.rope_type` (transformers: modeling_rope_utils.py).

What depends on the number of tokens depends on those of the example, so that a vector is the same alone, padded and in
any batch. `transformers` takes the longest of the batch with its padding: one text at a time gives the same.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.config.rotation import BY_LENGTH
from bertjax.models.rope import Rotation, frequencies, powers, rotation, round_frequencies

Frequencies = Float[np.ndarray, "half"]


def batch_rotation(
    config: EncoderConfig, segment_ids: Int[Array, "B S"], position_ids: Int[Array, "B S"], local: bool
) -> Rotation:
    """Returns the rotation of every token in the local or in the global layers.

    Args:
        config: bases, rescaling and rounding.
        segment_ids, position_ids: as in `types.Batch`.
        local: True for layers with a window.
    """
    base = config.local_rope_theta if local else config.global_rope_theta
    kind = "default" if local and config.rope_layers == "global" else config.rope_type
    factor = config.rope_attention_factor if kind in ("yarn", "longrope") else 1.0
    if kind in BY_LENGTH:
        lengths = jnp.sum(segment_ids[:, :, None] == segment_ids[:, None, :], axis=2)
        return rotation(position_ids, frequencies_by_length(config, base, lengths), factor)
    by = frequencies(config.head_dim, base) if kind == "default" else scaled_frequencies(config, base)
    return rotation(position_ids, round_frequencies(by, config.rope_rounding), factor)


def scaled_frequencies(config: EncoderConfig, base: float) -> Frequencies:
    """Returns the frequencies of types that do not depend on the length, rounded as in torch's float32.

    Args:
        config: type and factors.
        base: base of the powers.
    """
    plain, factor = frequencies(config.head_dim, base), np.float32(config.rope_factor)
    if config.rope_type == "linear":
        return plain / factor
    return _yarn(config, base) if config.rope_type == "yarn" else _llama3(config, plain)


def frequencies_by_length(config: EncoderConfig, base: float, lengths: Int[Array, "B S"]) -> Float[Array, "B S half"]:
    """Returns the frequencies of dynamic and longrope.

    Args:
        config: type and factors.
        base: base of the powers.
        lengths: tokens of the example of every token.
    """
    size, original = config.head_dim, config.rope_original_length
    if config.rope_type == "longrope":
        table = powers(size, base)
        short, long = (
            np.float32(1) / (np.asarray(factors, np.float32) * table)
            for factors in (config.rope_short_factors, config.rope_long_factors)
        )
        return jnp.where((lengths > original)[:, :, None], long[None, None], short[None, None])
    factor = np.float32(config.rope_factor)
    growth = jnp.maximum(lengths, original) * factor / np.float32(original) - (factor - 1)
    exponents = -np.arange(0, size, 2, dtype=np.float32) / np.float32(size - 2)
    return growth[:, :, None] ** exponents[None, None] * frequencies(size, base)[None, None]


def _yarn(config: EncoderConfig, base: float) -> Frequencies:
    """Interpolates between both frequencies along a ramp over the pairs of a head (arXiv:2309.00071, section 3.2)."""
    size, table = config.head_dim, powers(config.head_dim, base)

    def pair_that_turns(times: float) -> float:
        return size * math.log(config.rope_original_length / (times * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_that_turns(config.rope_fast_turns), pair_that_turns(config.rope_slow_turns)
    if config.rope_truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width: Any = 0.001 if low == high else high - low
    ramp = (np.arange(size // 2, dtype=np.float32) - np.float32(low)) / np.float32(width)
    slow, one = np.clip(ramp, 0, 1), np.float32(1)
    return one / (np.float32(config.rope_factor) * table) * slow + one / table * (one - slow)


def _llama3(config: EncoderConfig, plain: Frequencies) -> Frequencies:
    """Interpolates between both frequencies by the number of turns (meta-llama/llama-models:models/llama3/model.py)."""
    slow, fast, one = np.float32(config.rope_slow_turns), np.float32(config.rope_fast_turns), np.float32(1)
    turns = np.float32(config.rope_original_length) / (np.float32(2 * math.pi) / plain)
    divided = plain / np.float32(config.rope_factor)
    share = np.clip((turns - slow) / (fast - slow), 0, 1)
    return (one - share) * divided + share * plain
