"""Position encodings without parameters: rotary and sinusoidal.

Rotations have the frequencies of `model.rope_type` (transformers: modeling_rope_utils.py). What depends on the number
of tokens depends on those of the example, so that a vector is the same alone, padded and in any batch. `transformers`
takes the longest of the batch with its padding: one text at a time gives the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.config.rotation import BY_LENGTH
from bertjax.models.mesh import target_platform

Wave = Callable[[Array], Array]
Rotation = tuple[Float[Array, "B S 1 H"], Float[Array, "B S 1 H"]]
"""Cosines and sines of every token, equal in the two halves of a head but for the sign of the first half's sines."""


def sinusoids(positions: Int[Array, "*p"], size: int) -> Float[Array, "*p size"]:
    """Returns all sines, then all cosines, of positions / 10000^(2i / size) (zihangdai/xlnet:modeling.py; Marian)."""
    return _waves(positions, frequencies(size, 10_000.0), jnp.sin, jnp.cos)


def absolute_sinusoids(config: EncoderConfig, positions: Int[Array, "*p"]) -> Float[Array, "*p size"]:
    """Returns the sinusoids of positions from 0, which a model adds to its embeddings; -1: padding."""
    size = config.position_dim
    if config.position_embedding == "sinusoidal":
        return sinusoids(positions, size)
    waves = _waves(positions + config.position_offset, closed_frequencies(size), jnp.sin, jnp.cos)
    return jnp.where(positions[..., None] < 0, 0.0, waves)


def closed_frequencies(size: int) -> Float[np.ndarray, "half"]:
    """Returns 1 / 10000^(i / (size / 2 - 1)), rounded as in torch's float32.

    The last is 1 / 10000 itself (facebookresearch/fairseq:fairseq/modules/sinusoidal_positional_embedding.py).
    """
    half = size // 2
    exponents = np.arange(half, dtype=np.float32) * np.float32(-math.log(10_000) / (half - 1))
    return np.exp(exponents, dtype=np.float64).astype(np.float32)


def rotation(
    position_ids: Int[Array, "B S"], by: Float[np.ndarray, "half"] | Float[Array, "B S half"], factor: float = 1.0
) -> Rotation:
    """Returns the rotation of every token, in the layout of halves, not interleaved (arXiv:2104.09864).

    Args:
        position_ids: [B, S].
        by: frequencies of the pairs of a head, for all tokens or for each.
        factor: factor of what is rotated.
    """
    cosines = _waves(position_ids, by, jnp.cos, jnp.cos)
    sines = _waves(position_ids, by, lambda angles: -jnp.sin(angles), jnp.sin)
    if factor != 1.0:
        cosines, sines = cosines * factor, sines * factor
    return cosines[:, :, None, :], sines[:, :, None, :]


@jax.custom_vjp
def rotate(x: Float[Array, "B S N H"], by: Rotation) -> Float[Array, "B S N H"]:
    """Rotates the pairs (x_i, x_{i + H/2}) by the angles of their token, in float32; `by` gets no gradient."""
    cosines, sines = by
    return (x * cosines + _swap_halves(x) * sines).astype(x.dtype)


def _rotate_back(by: Rotation, grad: Array) -> tuple[Array, None]:
    """Rotates the gradient by the opposite angles; for the transpose of `rotate`, a TPU would write float32 halves."""
    cosines, sines = by
    return rotate(grad, (cosines, -sines)), None


rotate.defvjp(lambda x, by: (rotate(x, by), by), _rotate_back)


def _swap_halves(x: Array) -> Array:
    """Exchanges the halves of the last axis; on TPUs by a matmul, which is exact and moves no parts of registers."""
    half = x.shape[-1] // 2
    if target_platform() == "tpu" and x.dtype == jnp.bfloat16:
        exchange = jnp.asarray(np.roll(np.eye(2 * half), half, axis=1), x.dtype)
        return jax.lax.dot_general(x, exchange, (((x.ndim - 1,), (0,)), ((), ())), preferred_element_type=x.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([second, first], axis=-1)


def frequencies(size: int, base: float) -> Float[np.ndarray, "half"]:
    """Returns 1 / base^(2i / size), rounded after every operation as in torch's float32.

    Computed on the host, out of reach of the compiler: at position 8192 the last bit of a frequency moves a cosine by
    2e-4.
    """
    return np.float32(1) / powers(size, base)


def round_frequencies(by: Float[np.ndarray, "half"], rounding: str) -> Float[np.ndarray, "half"]:
    """Returns frequencies rounded to a type of fewer bits, float32."""
    return by.astype(jnp.dtype(rounding)).astype(np.float32)


def powers(size: int, base: float) -> Float[np.ndarray, "half"]:
    """Returns base^(2i / size), rounded as in torch's float32."""
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    return np.power(float(base), exponents, dtype=np.float64).astype(np.float32)


def _waves(positions: Array, by: np.ndarray | Array, first: Wave, second: Wave) -> Array:
    by = jnp.expand_dims(by, range(positions.ndim)) if by.ndim == 1 else by
    angles = positions[..., None].astype(jnp.float32) * by
    return jnp.concatenate([first(angles), second(angles)], axis=-1)


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
