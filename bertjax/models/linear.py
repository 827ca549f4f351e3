"""Products and activations: the arithmetic that every module shares.

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
from flax import nnx
from jaxtyping import Array, Float

from bertjax.config.model import EncoderConfig

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

    `residual_output` marks what is added to the residual stream: some families draw it narrower.
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        config: EncoderConfig,
        rngs: nnx.Rngs,
        bias: bool = True,
        residual_output: bool = False,
    ):
        draw = initializer(config, residual_output and config.scale_residual_init)
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
