"""Dropout, with random bits that are the same on every mesh and cost no more than memory bandwidth on CPUs."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl, threefry2x32_p
from jaxtyping import Array

from bertjax.models.mesh import manual_batch_shard, target_platform

Key = Array
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


@jax.named_scope("dropout")
def dropout(x: Array, rate: float, key: Key | None, batched: bool = True) -> Array:
    """Sets a fraction `rate` of the elements to zero and scales the others.

    Args:
        x: any shape.
        rate: probability of zero, exact to 2^-17: an element takes 16 random bits, half a threefry word, because random
            numbers are a large part of a small model's step.
        key: None = no dropout.
        batched: the first axis is the batch; False = the whole batch shares `x`.
    """
    if key is None or rate == 0.0:
        return x

    # a hash costs less than the bytes of its result
    redraw = _name(key) == "hash" and target_platform() != "cpu"
    return (_redrawn if redraw else _drop)(x, key, rate, batched)


def _drop(x: Array, key: Key, rate: float, batched: bool) -> Array:
    keep, scale = keep_mask(key, rate, x.shape, batched)
    if target_platform() == "cuda" and x.dtype == jnp.bfloat16:
        # In float32, so that the factor is exact, and since XLA keeps an array of bfloat16 zeros of this shape for the
        # gradient of `gather_positions`, which every layer would read.
        return (x.astype(jnp.float32) * jnp.where(keep, jnp.float32(scale), jnp.float32(0.0))).astype(x.dtype)
    return jnp.where(keep, x * jnp.asarray(scale, x.dtype), jnp.zeros((), x.dtype))


_redrawn = jax.custom_vjp(_drop, nondiff_argnums=(2, 3))
"""Dropout whose backward pass draws the mask again. `jax.checkpoint` would not let the gradient fuse with others."""


def _redraw_forward(x: Array, key: Key, rate: float, batched: bool) -> tuple[Array, Key]:
    return _drop(x, key, rate, batched), key


def _redraw_backward(rate: float, batched: bool, key: Key, grad: Array) -> tuple[Array, None]:
    key = jax.lax.optimization_barrier(key)  # otherwise XLA keeps the mask of the forward pass
    return _drop(grad, key, rate, batched), None


_redrawn.defvjp(_redraw_forward, _redraw_backward)


@jax.named_scope("dropout")
def keep_mask(key: Key, rate: float, shape: tuple[int, ...], batched: bool = True) -> tuple[Array, float]:
    """Returns True for the elements that dropout keeps, and the factor that scales them. Args: as in `dropout`."""
    threshold, scale = keep_threshold(rate)
    return _random_uint16(key, shape, batched) >= threshold, scale


def keep_threshold(rate: float) -> tuple[int, float]:
    """Returns the lowest 16 random bits that keep an element, and the factor that scales it."""
    threshold = round(rate * 65536)
    return threshold, 65536 / (65536 - threshold)


def _random_uint16(key: Key, shape: tuple[int, ...], batched: bool) -> Array:
    if shape[-1] % 2 or _name(key) == "hash":  # a word for each: halves of words would not fuse
        return random_bits(key, shape, batched).astype(jnp.uint16)
    words = random_bits(key, (*shape[:-1], shape[-1] // 2), batched)
    return jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(shape)


def random_bits(key: Key, shape: tuple[int, ...], batched: bool = False) -> Array:
    """Returns uint32 as `jax.random.bits` does, also where `jax.shard_map` has split the batch.

    threefry is a function of the index of each word, so words do not depend on the device that computes them.

    Args:
        key: PRNG key; rbg draws per shard.
        shape: shape of this shard.
        batched: the first axis is the batch; False = all shards draw the same.
    """
    axis, _ = manual_batch_shard() if batched else ("", 1)
    name = _name(key)
    if name not in ("threefry2x32", "hash"):  # makes no promise about meshes
        return jax.random.bits(jax.random.fold_in(key, jax.lax.axis_index(axis)) if axis else key, shape, jnp.uint32)
    on_cpu = target_platform() == "cpu"
    if name == "threefry2x32" and not axis and (not on_cpu or math.prod(shape) >= 1 << 32):
        return jax.random.bits(key, shape, jnp.uint32)
    low = _flat_index(shape)
    high = jnp.zeros((), jnp.uint32)
    if axis:
        start_high, start_low = shard_start(shape)
        high, low = start_high + (low + start_low < start_low), low + start_low
    high = jnp.broadcast_to(high, shape)
    if name == "hash":
        return hash_bits(jax.random.key_data(key), high, low)
    key_high, key_low = (jnp.broadcast_to(half, shape) for half in jax.random.key_data(key))
    hash_words = threefry if on_cpu else threefry2x32_p.bind
    first, second = hash_words(key_high, key_low, high, low)
    return first ^ second


def shard_start(shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns the upper and lower half of the first element's index, where `jax.shard_map` has split the batch.

    Args:
        shape: shape of this shard.
    """
    axis, num_shards = manual_batch_shard()
    starts = np.arange(num_shards, dtype=np.uint64) * math.prod(shape)
    high, low = (jnp.asarray((starts >> shift).astype(np.uint32)) for shift in (32, 0))
    shard = jax.lax.axis_index(axis)
    return high[shard], low[shard]


def is_hash(key: Key) -> bool:
    """Returns True for a key whose bits are `hash_bits`, which a kernel can draw itself."""
    return _name(key) == "hash"


def _name(key: Key) -> str:
    return str(jax.random.key_impl(key))


def _flat_index(shape: tuple[int, ...]) -> Array:
    """Returns the row-major index of every element, uint32; each device computes its own part."""
    index = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        stride = np.uint32(math.prod(shape[axis + 1 :]) % (1 << 32))
        index = index + jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * stride
    return index


def threefry(key_high: Array, key_low: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """Computes threefry2x32 with 20 rounds (Salmon et al. 2011, Parallel random numbers).

    XLA:CPU fuses the unrolled rounds into one loop over memory. jax's own is a loop over rounds there, each of which
    writes all words to memory: 20 times as slow (scripts/cpu_kernels.py).

    Args:
        key_high, key_low: first and second word of the key, uint32 [].
        high, low: upper and lower half of the counter, uint32 [...].

    Returns:
        Two words of random bits for every counter, uint32 [...].
    """
    keys = key_high, key_low, key_high ^ key_low ^ np.uint32(_PARITY)
    high, low = high + keys[0], low + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            high = high + low
            low = high ^ ((low << np.uint32(rotation)) | (low >> np.uint32(32 - rotation)))
        high = high + keys[(group + 1) % 3]
        low = low + keys[(group + 2) % 3] + np.uint32(group + 1)
    return high, low


def mix_bits(x: Array) -> Array:
    """Hashes uint32 [...] one to one (Chris Wellons, hash-prospector: lowbias32)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def hash_bits(key_data: Array | tuple[Array, Array], high: Array, low: Array) -> Array:
    """Returns uint32 of a key's two words and a counter, for dropout alone, in a sixth of threefry's operations.

    Args:
        key_data: the words, uint32 [2] or two scalars.
        high, low: upper and lower half of the counter, uint32 [...].
    """
    first, second = (jnp.broadcast_to(half, low.shape) for half in key_data)
    return mix_bits(mix_bits(low ^ first) + (mix_bits(high) ^ second))


def _threefry_key(data: Array) -> Key:
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def _draw(data: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    if bit_width > 32:
        raise NotImplementedError("hash draws words of at most 32 bits")
    index = _flat_index(shape)
    return hash_bits(data, jnp.zeros_like(index), index).astype(f"uint{bit_width}")


# its keys are made as threefry's
HASH = define_prng_impl(
    key_shape=(2,),
    seed=lambda seed: jax.random.key_data(jax.random.key(seed, impl="threefry2x32")),
    split=lambda data, shape: jax.random.key_data(jax.random.split(_threefry_key(data), shape)),
    random_bits=_draw,
    fold_in=lambda data, number: jax.random.key_data(jax.random.fold_in(_threefry_key(data), number)),
    name="hash",
    tag="hash",
)
