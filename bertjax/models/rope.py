"""Position encodings without parameters: rotary and sinusoidal."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.models.mesh import target_platform

Wave = Callable[[Array], Array]
Rotation = tuple[Float[Array, "B S 1 H"], Float[Array, "B S 1 H"]]
"""Cosines and sines of every token, equal in the two halves of a head but for the sign of the first half's sines."""


def sinusoids(positions: Int[Array, "*p"], size: int) -> Float[Array, "*p size"]:
    """Returns all sines, then all cosines, of positions / 10000^(2i / size) (zihangdai/xlnet:modeling.py; Marian)."""
    return _waves(positions, frequencies(size, 10_000.0), jnp.sin, jnp.cos)


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
