"""Dropout, and the random bits that it takes: the same ones on every mesh, and at the speed of memory on a CPU."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p
from jaxtyping import Array

from bertjax.models.mesh import manual_batch_shard, target_platform

Key = Array
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


@jax.named_scope("dropout")
def dropout(x: Array, rate: float, key: Key | None, batched: bool = True) -> Array:
    """Zeroes a share `rate` of the elements and scales the rest; `key=None` means none is dropped.

    `batched`: the first axis counts rows of the batch; else all rows share `x`, and what is dropped of it.

    Sixteen random bits an element (the rate is exact to 2^-17): random numbers are a large part of a small model's
    step, and one threefry word serves two elements.
    """
    if key is None or rate == 0.0:
        return x
    keep, scale = keep_mask(key, rate, x.shape, batched)
    return jnp.where(keep, x * jnp.asarray(scale, x.dtype), jnp.zeros((), x.dtype))


@jax.named_scope("dropout")
def keep_mask(key: Key, rate: float, shape: tuple[int, ...], batched: bool = True) -> tuple[Array, float]:
    """Which elements dropout leaves there, and what they are multiplied by."""
    threshold = round(rate * 65536)
    return _random_uint16(key, shape, batched) >= threshold, 65536 / (65536 - threshold)


def _random_uint16(key: Key, shape: tuple[int, ...], batched: bool) -> Array:
    if shape[-1] % 2:
        return random_bits(key, shape, batched).astype(jnp.uint16)
    words = random_bits(key, (*shape[:-1], shape[-1] // 2), batched)
    return jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(shape)


def random_bits(key: Key, shape: tuple[int, ...], batched: bool = False) -> Array:
    """uint32 of this shape, as `jax.random.bits` gives them; of rows that were split by hand, those of the whole.

    threefry numbers every word by its place, so that it does not matter where it is made.
    """
    axis, ways = manual_batch_shard() if batched else ("", 1)
    part = jax.lax.axis_index(axis) if axis else None
    if str(jax.random.key_impl(key)) != "threefry2x32":  # promises nothing of meshes
        return jax.random.bits(key if part is None else jax.random.fold_in(key, part), shape, jnp.uint32)
    on_cpu = target_platform() == "cpu"
    if part is None and (not on_cpu or math.prod(shape) >= 1 << 32):
        return jax.random.bits(key, shape, jnp.uint32)
    low = _places(shape)
    high = jnp.zeros((), jnp.uint32)
    if part is not None:
        starts = np.arange(ways, dtype=np.uint64) * math.prod(shape)
        first_high, first_low = (jnp.asarray((starts >> shift).astype(np.uint32))[part] for shift in (32, 0))
        high, low = first_high + (low + first_low < first_low), low + first_low
    high = jnp.broadcast_to(high, shape)
    first, second = (jnp.broadcast_to(half, shape) for half in jax.random.key_data(key))
    one, other = threefry(first, second, high, low) if on_cpu else threefry2x32_p.bind(first, second, high, low)
    return one ^ other


def _places(shape: tuple[int, ...]) -> Array:
    """The number of every element in the order of rows: uint32, made of what lies on each device."""
    place = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        stride = np.uint32(math.prod(shape[axis + 1 :]) % (1 << 32))
        place = place + jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * stride
    return place


def threefry(key_high: Array, key_low: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """threefry2x32 with 20 rounds (Salmon et al. 2011, Parallel random numbers), uint32 each.

    Written out, XLA:CPU makes one loop over memory of it; jax's own is a loop of rounds there, each of which writes all
    words down: 20 times as slow (scripts/cpu_kernels.py).
    """
    keys = key_high, key_low, key_high ^ key_low ^ np.uint32(_PARITY)
    high, low = high + keys[0], low + keys[1]
    for turn in range(5):
        for rotation in _ROTATIONS[turn % 2]:
            high = high + low
            low = high ^ ((low << np.uint32(rotation)) | (low >> np.uint32(32 - rotation)))
        high = high + keys[(turn + 1) % 3]
        low = low + keys[(turn + 2) % 3] + np.uint32(turn + 1)
    return high, low
