"""Position encodings without parameters: rotary and sinusoidal."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Wave = Callable[[Array], Array]
Rotation = tuple[Float[Array, "B S 1 H"], Float[Array, "B S 1 H"]]
"""Cosines and sines of every token; the two halves of a head are equal."""


def sinusoids(positions: Int[Array, "*p"], size: int) -> Float[Array, "*p size"]:
    """Returns all sines, then all cosines, of positions / 10000^(2i / size) (zihangdai/xlnet:modeling.py; Marian)."""
    return _waves(positions, size, 10_000.0, jnp.sin, jnp.cos)


def rotation(position_ids: Int[Array, "B S"], head_dim: int, base: float) -> Rotation:
    """Returns the rotation of every token, in the layout of halves, not interleaved (arXiv:2104.09864).

    Args:
        position_ids: [B, S].
        head_dim: H.
        base: Hugging Face's `rope_theta`.
    """
    cosines = _waves(position_ids, head_dim, base, jnp.cos, jnp.cos)
    sines = _waves(position_ids, head_dim, base, jnp.sin, jnp.sin)
    return cosines[:, :, None, :], sines[:, :, None, :]


def rotate(x: Float[Array, "B S N H"], by: Rotation) -> Float[Array, "B S N H"]:
    """Rotates the pairs (x_i, x_{i + H/2}) by the angles of their token, in float32."""
    cosines, sines = by
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    swapped = jnp.concatenate([-second, first], axis=-1)
    return (x.astype(jnp.float32) * cosines + swapped * sines).astype(x.dtype)


def frequencies(size: int, base: float) -> Float[np.ndarray, "half"]:
    """Returns 1 / base^(2i / size), rounded after every operation as in torch's float32.

    Computed on the host, out of reach of the compiler: at position 8192 the last bit of a frequency moves a cosine by
    2e-4.
    """
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    return np.float32(1) / np.power(float(base), exponents, dtype=np.float64).astype(np.float32)


def _waves(positions: Array, size: int, base: float, first: Wave, second: Wave) -> Array:
    angles = positions[..., None].astype(jnp.float32) * jnp.expand_dims(frequencies(size, base), range(positions.ndim))
    return jnp.concatenate([first(angles), second(angles)], axis=-1)
