"""Matrix multiplications, norms, initializers and activations shared by every module.

Matmuls read operands in `compute_dtype` and accumulate in float32. `dot`, and `einsum` on accelerators, define their
backward passes as well: jax's transpose rules would multiply a float32 cotangent with a bfloat16 operand, at float32
speed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from bertjax.config.model import EncoderConfig
from bertjax.models.mesh import target_platform
from bertjax.types import Params

Key = Array
Activation = Callable[[Array], Array]


class KeyStream(nnx.Rngs):
    """The keys of `nnx.Rngs(key)`, without its variables: to count in one while tracing takes milliseconds per key."""

    def __init__(self, key: Key):
        numbers = itertools.count()
        self.params = lambda: key if _without_draws.get() else jax.random.fold_in(key, next(numbers))


_without_draws: ContextVar[bool] = ContextVar("without_draws", default=False)
Result = TypeVar("Result")


def abstract(draw: Callable[[Key], Result]) -> Result:
    """Returns the shapes of what `draw` makes of a key; to trace the draws of weights would take most of the time."""
    token = _without_draws.set(True)
    try:
        return jax.eval_shape(lambda key: draw(key), jax.random.key(0))  # not `draw`, whose trace may be reused
    finally:
        _without_draws.reset(token)


def abstract_module(make: Callable[[nnx.Rngs], nnx.Module]) -> tuple[nnx.GraphDef, Params]:
    """Returns structure and shapes of the module that `make` builds from a stream of keys."""
    structure = None

    def draw(key: Key) -> Params:
        nonlocal structure
        structure, params = nnx.split(make(KeyStream(key)))
        return nnx.to_pure_dict(params)

    params = abstract(draw)
    assert structure is not None
    return structure, params


def recompute(function: Callable) -> Callable:
    """Returns a function whose backward pass keeps its inputs alone, on accelerators, and computes the rest again.

    Elementwise work takes as long there as its bytes: GELU would keep two arrays of the size of its input. On a TPU the
    gradient may fuse with the matmul before it, which `jax.checkpoint` would prevent.
    """
    platform = target_platform()
    if platform != "tpu":
        return function if platform == "cpu" else jax.checkpoint(function)

    def backward(inputs: tuple[Array, ...], grad: Array) -> tuple[Array, ...]:
        return jax.vjp(function, *jax.lax.optimization_barrier(inputs))[1](grad)

    recomputed = jax.custom_vjp(lambda *inputs: function(*inputs))
    recomputed.defvjp(lambda *inputs: (function(*inputs), inputs), backward)
    return recomputed


class LayerNorm(nnx.LayerNorm):
    """`nnx.LayerNorm`, or with 1 + scale in place of the scale; on accelerators its backward pass is `normalize`'s."""

    zero_centered = False

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        if mask is not None or self.scale is None or (target_platform() == "cpu" and not self.zero_centered):
            return super().__call__(x, mask=mask)
        bias = None if self.bias is None else self.bias[...]
        return normalize(x, norm_factors(self), bias, True, self.epsilon, self.dtype)


class RMSNorm(nnx.RMSNorm):
    """`nnx.RMSNorm`, or with 1 + scale in place of the scale; on accelerators its backward pass is `normalize`'s."""

    zero_centered = False

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        if mask is not None or self.scale is None or (target_platform() == "cpu" and not self.zero_centered):
            return super().__call__(x, mask=mask)
        return normalize(x, norm_factors(self), None, False, self.epsilon, self.dtype)


class Affine(LayerNorm):
    """Scale and bias without statistics (MobileBERT's NoNorm, arXiv:2004.02984, section 3.3)."""

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        axes = range(x.ndim - 1)
        out = x.astype(jnp.float32) * jnp.expand_dims(norm_factors(self), axes)
        return (out if self.bias is None else out + jnp.expand_dims(self.bias[...], axes)).astype(self.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def normalize(
    x: Float[Array, "*b D"], scale: Float[Array, "D"], bias: Array | None, centered: bool, epsilon: float, dtype: Any
) -> Float[Array, "*b D"]:
    """Computes a layer norm (arXiv:1607.06450) or an RMS norm in float32; keeps x and the two numbers of every token.

    Automatic differentiation would keep, and write for the gradient of `scale`, float32 arrays as large as x.

    Args:
        x: inputs [..., D].
        scale: factor of every channel [D].
        bias: added to every channel [D]; None = nothing.
        centered: subtracts the mean.
        epsilon: added to the variance.
        dtype: type of the result.
    """
    return _normalize_forward(x, scale, bias, centered, epsilon, dtype)[0]


def _normalize_forward(
    x: Array, scale: Array, bias: Array | None, centered: bool, epsilon: float, dtype: Any
) -> tuple[Array, tuple]:
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True) if centered else jnp.zeros((*x.shape[:-1], 1), jnp.float32)
    factor = jax.lax.rsqrt(jnp.square(wide - mean).mean(-1, keepdims=True) + epsilon)
    axes = range(x.ndim - 1)
    out = (wide - mean) * factor * jnp.expand_dims(scale, axes)
    out = out if bias is None else out + jnp.expand_dims(bias, axes)
    return out.astype(dtype), (x, scale, bias, mean, factor)


def _normalize_backward(centered: bool, epsilon: float, dtype: Any, saved: tuple, grad: Array) -> tuple:
    # Otherwise XLA keeps what it could compute again. On a TPU the gradient may fuse with the matmul before it.
    if target_platform() == "tpu":
        x, scale, bias, mean, factor = jax.lax.optimization_barrier(saved)
    else:
        x, scale, bias, mean, factor, grad = jax.lax.optimization_barrier((*saved, grad))
    axes = tuple(range(x.ndim - 1))
    grad = grad.astype(jnp.float32)
    normed, inner = (x.astype(jnp.float32) - mean) * factor, grad * jnp.expand_dims(scale, axes)
    grad_x = inner - normed * (inner * normed).mean(-1, keepdims=True)
    if centered:
        grad_x = grad_x - inner.mean(-1, keepdims=True)
    grad_scale = (grad * normed).sum(axes).astype(scale.dtype)
    grad_bias = None if bias is None else grad.sum(axes).astype(bias.dtype)
    return (grad_x * factor).astype(x.dtype), grad_scale, grad_bias


normalize.defvjp(_normalize_forward, _normalize_backward)
Norm = LayerNorm | RMSNorm


def norm_factors(norm: Norm) -> Float[Array, "D"]:
    """Returns what a norm multiplies every channel with."""
    assert norm.scale is not None
    return 1.0 + norm.scale[...] if norm.zero_centered else norm.scale[...]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def dot(
    x: Float[Array, "*b I"], kernel: Float[Array, "I1 O1"], compute: str, result: str, transposed: bool = False
) -> Float[Array, "*b O"]:
    """Computes `x @ kernel`, accumulated in float32, forward and backward.

    Args:
        x: inputs [..., I].
        kernel: weights [I, O], or [O, I] if `transposed`.
        compute: dtype to which both operands are cast, in all three matmuls.
        result: dtype of the product.
        transposed: multiplies by `kernel.T`, as for a tied word embedding table. Passing `table.T` instead gives
            XLA:CPU a layout for which it has no bfloat16 kernel.

    Returns:
        The product [..., O].
    """
    return _dot_forward(x, kernel, compute, result, transposed)[0]


def grouped_dot(
    x: Float[Array, "*b I"], kernel: Float[Array, "I1 O"], compute: str, result: str, groups: int
) -> Float[Array, "*b O"]:
    """Computes `dot` of every group of channels by itself: a matrix of `groups` blocks on its diagonal.

    Args:
        x, compute, result: as of `dot`.
        kernel: weights [I / groups, O]; the columns of the first group come first.
        groups: number of groups.
    """
    parts, shares = (each.reshape(*each.shape[:-1], groups, -1) for each in (x, kernel))
    product = jax.vmap(lambda part, share: dot(part, share, compute, result), in_axes=(-2, -2), out_axes=-2)
    return product(parts, shares).reshape(*x.shape[:-1], -1)


def _matmul(a: Array, b: Array, a_axes: tuple[int, ...], b_axes: tuple[int, ...], result: str) -> Array:
    return jax.lax.dot_general(a, b, ((a_axes, b_axes), ((), ())), preferred_element_type=jnp.dtype(result))


def _dot_forward(
    x: Array, kernel: Array, compute: str, result: str, transposed: bool
) -> tuple[Array, tuple[Array, ...]]:
    operands = x.astype(compute), kernel.astype(compute)
    out = _matmul(*operands, (x.ndim - 1,), (int(transposed),), result)
    # The empty arrays carry the dtypes that the gradients must have.
    return out, (*operands, jnp.zeros((), x.dtype), jnp.zeros((), kernel.dtype))


def _dot_backward(compute: str, result: str, transposed: bool, saved: tuple, grad: Array) -> tuple[Array, Array]:
    x, kernel, x_like, kernel_like = saved
    grad = grad.astype(compute)
    grad_x = _matmul(grad, kernel, (grad.ndim - 1,), (1 - int(transposed),), result)
    batch_axes = tuple(range(x.ndim - 1))
    first, second = (grad, x) if transposed else (x, grad)
    grad_kernel = _matmul(first, second, batch_axes, batch_axes, "float32")
    return grad_x.astype(x_like.dtype), grad_kernel.astype(kernel_like.dtype)


dot.defvjp(_dot_forward, _dot_backward)


def add_bias(x: Float[Array, "*b O"], bias: Float[Array, "O"]) -> Float[Array, "*b O"]:
    """Adds a bias; on TPUs the gradient of a bfloat16 sum is a matmul with ones, accumulated in float32.

    There a matmul lets the gradient of `x` fuse with what made it, and reads heads narrower than a register without
    padding: for BERT-large the compiler counts 6 % fewer cycles per layer than with a reduction.
    """
    return (_add_bias if target_platform() == "tpu" and x.dtype == jnp.bfloat16 else _plain_add_bias)(x, bias)


def _plain_add_bias(x: Array, bias: Array) -> Array:
    return x + jnp.expand_dims(bias, range(x.ndim - 1)).astype(x.dtype)


def _add_bias_backward(saved: tuple[Array], grad: Array) -> tuple[Array, Array]:
    axes = tuple(range(grad.ndim - 1))
    ones = jnp.ones((*grad.shape[:-1], 8), grad.dtype)  # equal rows; XLA may turn a product of one row into a sum
    return grad, _matmul(ones, grad, axes, axes, "float32")[0].astype(saved[0].dtype)


_add_bias = jax.custom_vjp(_plain_add_bias)
_add_bias.defvjp(lambda x, bias: (_plain_add_bias(x, bias), (bias,)), _add_bias_backward)


def einsum(equation: str, a: Array, b: Array, config: EncoderConfig) -> Array:
    """Computes an einsum of two arrays cast to `compute_dtype`; accumulates and returns float32.

    On accelerators the cotangent is cast as well, and the gradients are in `compute_dtype`.

    Args:
        equation: as in `jnp.einsum`.
        a: first operand.
        b: second operand.
        config: `compute_dtype`.
    """
    compute = jnp.dtype(config.compute_dtype)
    product = float32_einsum if target_platform() == "cpu" else _einsum
    return product(equation, a.astype(compute), b.astype(compute))


def float32_einsum(equation: str, a: Array, b: Array) -> Array:
    """Computes an einsum that accumulates and returns float32."""
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def _einsum_backward(equation: str, saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    _, gradients = jax.vjp(functools.partial(jnp.einsum, equation), *saved)
    return gradients(grad.astype(saved[0].dtype))


_einsum = jax.custom_vjp(float32_einsum, nondiff_argnums=(0,))
_einsum.defvjp(lambda equation, a, b: (float32_einsum(equation, a, b), (a, b)), _einsum_backward)


_without_bias: ContextVar[Linear | None] = ContextVar("without_bias", default=None)


@contextlib.contextmanager
def leave_out_bias(linear: Linear | None) -> Iterator[Array | None]:
    """Yields the bias of a projection, which it does not add here: a kernel adds it, and computes its gradient."""
    token = _without_bias.set(linear)
    try:
        yield None if linear is None or linear.bias is None else linear.bias[...]
    finally:
        _without_bias.reset(token)


class Linear(nnx.Module):
    """`x @ kernel + bias` with kernel [in, out], or [in / groups, out] where a group of outputs reads one of inputs.

    Args:
        in_size: width of the inputs.
        out_size: width of the outputs.
        config: initializer and dtypes.
        rngs: the stream `params` draws the kernel.
        bias: False leaves out the bias.
        residual_output: True for a projection that is added to the residual stream; some models draw it smaller.
        groups: groups of channels (SqueezeBERT, arXiv:2006.11316); 1 = dense.
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        config: EncoderConfig,
        rngs: nnx.Rngs,
        bias: bool = True,
        residual_output: bool = False,
        groups: int = 1,
    ):
        draw = initializer(config, residual_output and config.scale_residual_init)
        self.kernel = nnx.Param(draw(rngs.params(), (in_size // groups, out_size), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((out_size,), jnp.float32)) if bias else None
        self.compute, self.result, self.groups = config.compute_dtype, config.result_dtype, groups

    def __call__(self, x: Float[Array, "*b I"]) -> Float[Array, "*b O"]:
        multiply = dot if self.groups == 1 else functools.partial(grouped_dot, groups=self.groups)
        out = multiply(x, self.kernel[...], self.compute, self.result)
        if self.bias is None or _without_bias.get() is self:
            return out
        return add_bias(out, self.bias[...])


class Projection(nnx.Module):
    """norm(dense(x)), or norm(dense(x) + residual), the ends of a bottleneck (MobileBERT). Args: as of `Linear`."""

    def __init__(self, in_size: int, out_size: int, config: EncoderConfig, rngs: nnx.Rngs):
        self.dense = Linear(in_size, out_size, config, rngs)
        self.norm = make_norm(out_size, config, rngs)

    def __call__(self, x: Float[Array, "*b I"]) -> Float[Array, "*b O"]:
        return self.norm(self.dense(x))


def make_norm(size: int, config: EncoderConfig, rngs: nnx.Rngs, bias: bool = True) -> Norm:
    """Returns a norm, with two-pass variance: the one-pass form loses digits that Hugging Face's keeps.

    RMS norms divide by the root mean square, without centring and without a bias (arXiv:1910.07467).

    Args:
        size: width of the normalized axis.
        config: kind, epsilon, bias and dtype.
        rngs: stream of the parameters.
        bias: False leaves out the bias of any config.
    """
    draw = jax.nn.initializers.zeros if config.norm_zero_centered else jax.nn.initializers.ones
    options: Any = {"epsilon": config.layer_norm_eps, "dtype": jnp.dtype(config.result_dtype), "scale_init": draw}
    if config.norm_type == "rms_norm":
        norm: Norm = RMSNorm(size, **options, rngs=rngs)
    else:
        kind = Affine if config.norm_type == "affine" else LayerNorm
        norm = kind(size, **options, use_bias=config.norm_bias and bias, use_fast_variance=False, rngs=rngs)
    norm.zero_centered = config.norm_zero_centered
    return norm


def initializer(config: EncoderConfig, scale_residual: bool = False) -> jax.nn.initializers.Initializer:
    """Returns the initializer of weights; `scale_residual` divides sigma by sqrt(2 * num_layers).

    The truncated normal is BERT's: cut at two sigma and not rescaled, so that the standard deviation is 0.88 sigma.
    The scaling is that of GPT-2's paper (also Megatron-LM, arXiv:1909.08053).
    """
    if _without_draws.get():
        return jax.nn.initializers.zeros
    draw = {"truncated_normal": jax.nn.initializers.truncated_normal, "normal": jax.nn.initializers.normal}
    scale = math.sqrt(2 * config.num_layers) if scale_residual else 1.0
    return draw[config.initializer](config.initializer_range / scale)


def soft_cap(scores: Array, cap: float | None) -> Array:
    """Returns `cap * tanh(scores / cap)`, whose size stays below `cap`; None = the scores as they are."""
    return scores if cap is None else cap * jnp.tanh(scores / cap)


def activation(name: str) -> Activation:
    """Returns the activation function that Hugging Face calls `name`."""
    return {"relu": jax.nn.relu, "silu": jax.nn.silu, "tanh": jnp.tanh, "gelu_new": jax.nn.gelu, "gelu": gelu}[name]


def gelu(x: Array) -> Array:
    """Computes x [...] times the normal distribution function by `erf`, as torch does (GELU, arXiv:1606.08415).

    `jax.nn.gelu` uses `erfc`, which XLA:CPU computes 2.5 times as slowly (1.4 times with the gradient).
    """
    wide = x.astype(jnp.float32)
    return (0.5 * wide * (1.0 + jax.lax.erf(wide * math.sqrt(0.5)))).astype(x.dtype)
