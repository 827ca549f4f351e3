"""Products, dropout and activations: the arithmetic that every module shares.

Every matrix product of the project goes through `dot`, so that its three products (forward, and backward to the input
and to the weight) read the same narrow type. Leaving the backward products to the transpose rules would multiply a
float32 cotangent with a bfloat16 weight, at float32 speed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.extend.random import threefry2x32_p
from jaxtyping import Array, Float

from bertjax.models.config import EncoderConfig
from bertjax.models.mesh import parts_by_hand

Key = Array
Activation = Callable[[Array], Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def dot(
    x: Float[Array, "*b I"], kernel: Float[Array, "I1 O1"], compute: str, result: str, transposed: bool = False
) -> Float[Array, "*b O"]:
    """`x @ kernel`, operands cast to `compute`, product returned as `result`, accumulated in float32.

    `transposed=True` takes the kernel as [N, K] (a tied word table). Passing `table.T` instead gives XLA:CPU a layout
    for which it has no bfloat16 kernel.
    """
    return _dot_forward(x, kernel, compute, result, transposed)[0]


def _product(a: Array, b: Array, a_axes: tuple[int, ...], b_axes: tuple[int, ...], result: str) -> Array:
    return jax.lax.dot_general(a, b, ((a_axes, b_axes), ((), ())), preferred_element_type=jnp.dtype(result))


def _dot_forward(
    x: Array, kernel: Array, compute: str, result: str, transposed: bool
) -> tuple[Array, tuple[Array, ...]]:
    operands = x.astype(compute), kernel.astype(compute)
    out = _product(*operands, (x.ndim - 1,), (int(transposed),), result)
    # The empty arrays carry the types in which the gradients must come back.
    return out, (*operands, jnp.zeros((), x.dtype), jnp.zeros((), kernel.dtype))


def _dot_backward(compute: str, result: str, transposed: bool, saved: tuple, grad: Array) -> tuple[Array, Array]:
    x, kernel, x_like, kernel_like = saved
    grad = grad.astype(compute)
    grad_x = _product(grad, kernel, (grad.ndim - 1,), (1 - int(transposed),), result)
    rows = tuple(range(x.ndim - 1))
    first, second = (grad, x) if transposed else (x, grad)
    grad_kernel = _product(first, second, rows, rows, "float32")
    return grad_x.astype(x_like.dtype), grad_kernel.astype(kernel_like.dtype)


dot.defvjp(_dot_forward, _dot_backward)


class Linear(nnx.Module):
    """`x @ kernel + bias`, kernel [in, out]; `bias=False` has none.

    `ends_block` marks what is added to the residual stream: some families draw it narrower.
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        config: EncoderConfig,
        rngs: nnx.Rngs,
        bias: bool = True,
        ends_block: bool = False,
    ):
        draw = initializer(config, ends_block and config.scale_residual_init)
        self.kernel = nnx.Param(draw(rngs.params(), (in_size, out_size), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((out_size,), jnp.float32)) if bias else None
        self.compute, self.result = config.compute_dtype, config.result_dtype

    def __call__(self, x: Float[Array, "*b K"]) -> Float[Array, "*b N"]:
        out = dot(x, self.kernel[...], self.compute, self.result)
        if self.bias is None:
            return out
        return out + jnp.expand_dims(self.bias[...], range(out.ndim - 1)).astype(out.dtype)


def layer_norm(size: int, config: EncoderConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Layer norm with the exact two-pass variance: the fast one loses digits that Hugging Face keeps."""
    return nnx.LayerNorm(
        size,
        epsilon=config.layer_norm_eps,
        use_bias=config.norm_bias,
        use_fast_variance=False,
        dtype=jnp.dtype(config.result_dtype),
        rngs=rngs,
    )


def initializer(config: EncoderConfig, narrow: bool = False) -> jax.nn.initializers.Initializer:
    """BERT's truncated normal is cut at two sigma and not rescaled (real deviation 0.88 of the given one).

    `narrow` divides sigma by the root of the number of blocks (Megatron-LM, arXiv:1909.08053; GPT-2's paper).
    """
    make = {"truncated_normal": jax.nn.initializers.truncated_normal, "normal": jax.nn.initializers.normal}
    return make[config.initializer](config.initializer_range / (math.sqrt(2 * config.num_layers) if narrow else 1.0))


def activation(name: str) -> Activation:
    """By Hugging Face's names."""
    return {"relu": jax.nn.relu, "silu": jax.nn.silu, "tanh": jnp.tanh, "gelu_new": jax.nn.gelu, "gelu": gelu}[name]


def gelu(x: Array) -> Array:
    """x times the normal distribution function, by `erf` as torch has it.

    `jax.nn.gelu` takes `erfc`, which XLA:CPU computes 2.5 times as slowly (the slope included, 1.4 times).
    """
    wide = x.astype(jnp.float32)
    return (0.5 * wide * (1.0 + jax.lax.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


@jax.named_scope("dropout")
def dropout(x: Array, rate: float, key: Key | None, by_row: bool = True) -> Array:
    """Zeroes a share `rate` of the elements and scales the rest; `key=None` means none is dropped.

    `by_row`: the first axis counts rows of the batch; else all rows share `x`, and what is dropped of it.

    Sixteen random bits an element (the rate is exact to 2^-17): random numbers are a large part of a small model's
    step, and one threefry word serves two elements.
    """
    if key is None or rate == 0.0:
        return x
    keep, scale = kept(key, rate, x.shape, by_row)
    return jnp.where(keep, x * jnp.asarray(scale, x.dtype), jnp.zeros((), x.dtype))


@jax.named_scope("dropout")
def kept(key: Key, rate: float, shape: tuple[int, ...], by_row: bool = True) -> tuple[Array, float]:
    """Which elements dropout leaves there, and what they are multiplied by."""
    threshold = round(rate * 65536)
    return _random_uint16(key, shape, by_row) >= threshold, 65536 / (65536 - threshold)


def _random_uint16(key: Key, shape: tuple[int, ...], by_row: bool) -> Array:
    if shape[-1] % 2:
        return _random_words(key, shape, by_row).astype(jnp.uint16)
    words = _random_words(key, (*shape[:-1], shape[-1] // 2), by_row)
    return jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(shape)


def _random_words(key: Key, shape: tuple[int, ...], by_row: bool) -> Array:
    """uint32 of this shape; of rows that were split by hand, those of the whole.

    `jax.random.bits` does the same wherever the compiler splits rows, for threefry numbers every word by its place.
    """
    axis, ways = parts_by_hand()
    if not axis or not by_row:
        return jax.random.bits(key, shape, jnp.uint32)
    part = jax.lax.axis_index(axis)
    if str(jax.random.key_impl(key)) != "threefry2x32":  # promises nothing of meshes
        return jax.random.bits(jax.random.fold_in(key, part), shape, jnp.uint32)
    size = math.prod(shape)
    starts = np.arange(ways, dtype=np.uint64) * size
    high, low = (jnp.asarray((starts >> shift).astype(np.uint32))[part] for shift in (32, 0))
    place = jax.lax.iota(jnp.uint32, size)
    counts = jnp.broadcast_to(high, (size,)) + (place + low < low), place + low
    halves = threefry2x32_p.bind(*(jnp.broadcast_to(half, (size,)) for half in jax.random.key_data(key)), *counts)
    return (halves[0] ^ halves[1]).reshape(shape)
