"""Bias, dropout, residual and norm in one kernel, and their gradients in another, for GPUs (Triton).

XLA takes three kernels and two, which read and write the same arrays again. Here a program holds whole tokens: in the
forward pass one block of them, in the backward pass several, whose sums over tokens it writes once. Masks are those of
`dropout`, bit by bit; the backward pass draws them again. On a CPU the kernels are interpreted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.dropout import Key, hash_bits, is_hash, keep_threshold, shard_start
from bertjax.models.mesh import manual_batch_shard, per_device, target_platform, triton_compiles

MAX_WIDTH = 4096  # a token is a block
_BLOCK = {"forward": 4096, "backward": 2048}  # numbers: 32 and 16 per thread, which its registers hold
_WARPS = 4
_PROGRAMS = 384  # of the backward pass at most: what an H100 runs at a time, with 142 registers per thread


class NormSettings(NamedTuple):
    """Constants of a compiled kernel: rate of the dropout, kind of the norm, and whether the sum is a result too."""

    interpret: bool
    rate: float
    centered: bool
    epsilon: float
    returns_total: bool


class NormWeights(NamedTuple):
    """Bias of the block's output, scale and bias of the norm, each [D]; None = there is none."""

    output_bias: Any
    scale: Any
    bias: Any


class NormInputs(NamedTuple):
    """Inputs of a kernel: arrays [T, D] of tokens, weights, words of the dropout's key, and its first index [B]."""

    tokens: tuple[Any, ...]
    start: Any
    words: Any
    weights: NormWeights


def choose_norm_kernel(config: EncoderConfig, key: Key | None) -> bool:
    """Returns True where `add_and_normalize` is to be used: where the config names it.

    Args:
        config: `norm_implementation`, sizes and dtypes.
        key: key of the dropout; None = no dropout.

    Raises:
        UserError: the config names the kernel, which cannot compute this.
    """
    if config.norm_implementation == "xla":
        return False
    reason, width = "", config.layer_width
    if target_platform() not in ("cpu", "cuda"):
        reason = f"is a kernel for NVIDIA's GPUs, not for {target_platform()}"
    elif key is not None and not is_hash(key):
        reason = "draws the masks of train.dropout_prng=hash alone"
    elif config.norm_type == "affine":
        reason = "computes the statistics that norm_type=affine leaves out"
    elif width % 16 or width > MAX_WIDTH:
        reason = f"needs a hidden size that is a multiple of 16 and at most {MAX_WIDTH}, not {width}"
    elif not triton_compiles():
        reason = "is compiled by Triton, which needs a GPU of compute capability 8.0"
    if reason:
        raise UserError(f"norm_implementation=pallas {reason}; set xla")
    return True


def add_and_normalize(
    x: Float[Array, "B S D"],
    residual: Float[Array, "B S D"],
    weights: NormWeights,
    rate: float,
    key: Key | None,
    centered: bool,
    epsilon: float,
    returns_total: bool = False,
) -> tuple[Float[Array, "B S D"], ...]:
    """Computes the norm of `residual + dropout(x + output_bias)`, in float32.

    Args:
        x: output of a block.
        residual: what it is added to, in the dtype of the results.
        weights: biases and scale.
        rate: as in `dropout`.
        key: key of the dropout, for `hash`; None = no dropout.
        centered, epsilon: as in `normalize`.
        returns_total: returns the sum as well.

    Returns:
        The norm, and the sum if it is asked for.
    """
    x, start, words = x.astype(residual.dtype), None, None
    if key is not None and rate:
        size = math.prod(x.shape[1:])
        start = jnp.asarray((np.arange(len(x), dtype=np.uint64) * size).astype(np.uint32))
        words = jax.random.key_data(key)
        words = jnp.concatenate([words, jnp.stack(shard_start(x.shape))]) if manual_batch_shard()[0] else words
    interpret = target_platform() == "cpu"
    settings = NormSettings(interpret, 0.0 if words is None else rate, centered, epsilon, returns_total)
    return _add_and_normalize(settings, NormInputs((x, residual), start, words, weights))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add_and_normalize(settings: NormSettings, inputs: NormInputs) -> tuple[Array, ...]:
    return tuple(_call("forward", settings, inputs))


def _forward(settings: NormSettings, inputs: NormInputs) -> tuple[tuple[Array, ...], NormInputs]:
    results = _call("forward", settings._replace(returns_total=True), inputs)
    return tuple(results[: 1 + settings.returns_total]), inputs._replace(tokens=(results[1],))


def _backward(settings: NormSettings, saved: NormInputs, grads: tuple[Array, ...]) -> tuple[NormInputs]:
    *gradients, sums = _call("backward", settings, saved._replace(tokens=(*saved.tokens, *grads)))
    vectors, structure = jax.tree.flatten(saved.weights)
    weights = [row.astype(x.dtype) for row, x in zip(sums.sum(0), vectors, strict=True)]
    return (NormInputs((gradients[-1], gradients[0]), None, None, jax.tree.unflatten(structure, weights)),)


_add_and_normalize.defvjp(_forward, _backward)


def _call(direction: str, settings: NormSettings, inputs: NormInputs) -> list[Array]:
    """Runs a kernel on every device for its tokens; results as `inputs.tokens`, and sums over tokens [P, W, D]."""
    arrays, structure = jax.tree.flatten(inputs)

    def run(*arrays: Array) -> list[Array]:
        return _call_on_device(direction, settings, jax.tree.unflatten(structure, arrays))

    shared = len(jax.tree.leaves((inputs.words, inputs.weights)))
    return per_device(run, (None,) * len(arrays), None, *arrays, shared=shared)


def _call_on_device(direction: str, settings: NormSettings, inputs: NormInputs) -> list[Array]:
    *_, like = inputs.tokens
    width, columns = like.shape[-1], pl.next_power_of_2(like.shape[-1])
    shape = max(_BLOCK[direction] // columns, 1), columns
    blocks = pl.cdiv(like.size // width, shape[0])
    repeats = 1 if direction == "forward" else pl.cdiv(blocks, _PROGRAMS)
    inputs = inputs._replace(tokens=tuple(x.reshape(-1, width) for x in inputs.tokens))
    programs, outputs = pl.cdiv(blocks, repeats), [jax.ShapeDtypeStruct((like.size // width, width), like.dtype)]
    if direction == "forward":
        outputs *= 1 + settings.returns_total
    else:
        sums = programs, len(jax.tree.leaves(inputs.weights)), width
        outputs = [*outputs * (2 if settings.rate else 1), jax.ShapeDtypeStruct(sums, jnp.float32)]
    arrays, structure = jax.tree.flatten(inputs)

    def run(*refs: Any) -> None:
        inputs, results = jax.tree.unflatten(structure, refs[: len(arrays)]), refs[len(arrays) :]
        block = functools.partial(_Block, settings, inputs, shape)
        if direction == "forward":
            _normalize(block(pl.program_id(0)), results)
        else:
            _differentiate(block, repeats, results)

    results = pl.pallas_call(
        run,
        grid=(programs,),
        out_shape=outputs,
        interpret=settings.interpret,
        compiler_params=None if settings.interpret else triton.CompilerParams(num_warps=_WARPS),
        name=f"add_and_normalize_{direction}",
    )(*arrays)
    return [x.reshape(like.shape) if x.ndim == 2 else x for x in results]


class _Block:
    """A block of tokens [R, C], C the next power of two of their width; what is beyond an array reads as zero."""

    def __init__(self, settings: NormSettings, refs: NormInputs, shape: tuple[int, int], number: Any):
        self.settings, self.refs = settings, refs
        num_tokens, self.width = refs.tokens[0].shape
        self.rows, self.columns = pl.ds(number * shape[0], shape[0]), pl.ds(0, shape[1])
        row, column = number * shape[0] + jnp.arange(shape[0])[:, None], jnp.arange(shape[1])
        self.index = row.astype(jnp.uint32) * np.uint32(self.width) + column.astype(jnp.uint32)[None]
        self.present, self.inside = column < self.width, (row < num_tokens) & (column < self.width)[None]

    def load(self, ref: Any) -> Float[Array, "R C"]:
        """Reads the block's part of an array [T, D]."""
        return triton.load(ref.at[self.rows, self.columns], mask=self.inside, other=0.0).astype(jnp.float32)

    def vector(self, ref: Any) -> Float[Array, "1 C"]:
        """Reads weights [D]."""
        return triton.load(ref.at[self.columns], mask=self.present, other=0.0).astype(jnp.float32)[None]

    def store(self, ref: Any, x: Float[Array, "R C"]) -> None:
        """Writes the block's part of an array."""
        triton.store(ref.at[self.rows, self.columns], x.astype(ref.dtype), mask=self.inside)

    def mean(self, x: Float[Array, "R C"]) -> Float[Array, "R 1"]:
        """Returns the mean of every token, of numbers that are zero beyond the width."""
        return x.sum(axis=1, keepdims=True) * np.float32(1 / self.width)

    def standardize(self, total: Float[Array, "R C"]) -> tuple[Float[Array, "R C"], Float[Array, "R 1"]]:
        """Returns the norm without its weights, and the factor by which it multiplied."""
        if self.settings.centered:
            total = jnp.where(self.inside, total - self.mean(total), 0.0)
        factor = jax.lax.rsqrt(self.mean(total * total) + self.settings.epsilon)
        return total * factor, factor

    def drop(self, x: Float[Array, "R C"]) -> Float[Array, "R C"]:
        """Applies the dropout of `dropout` with a key of `hash`."""
        if not self.settings.rate:
            return x
        words, (threshold, scale) = self.refs.words, keep_threshold(self.settings.rate)
        low, high = self.index + self.refs.start[0], jnp.uint32(0)
        if words.shape[0] == 4:  # of a shard
            low = low + words[3]
            high = words[2] + (low < words[3]).astype(jnp.uint32)
        bits = hash_bits((words[0], words[1]), high, low) & np.uint32(0xFFFF)
        return jnp.where(bits >= np.uint32(threshold), x * np.float32(scale), 0.0)


def _normalize(block: _Block, outputs: Sequence[Any]) -> None:
    """Writes the norm, and the sum where it is a result."""
    (x, residual), weights = map(block.load, block.refs.tokens), block.refs.weights
    x = x if weights.output_bias is None else x + block.vector(weights.output_bias)
    out, *total = outputs
    # the norm, and its gradient, are those of the sum as it is kept
    added = (residual + block.drop(x)).astype(out.dtype).astype(jnp.float32)
    normed, _ = block.standardize(added)
    normed = normed * block.vector(weights.scale)
    block.store(out, normed if weights.bias is None else normed + block.vector(weights.bias))
    for each in total:
        block.store(each, added)


def _differentiate(block: Callable[[Any], _Block], repeats: int, outputs: Sequence[Any]) -> None:
    """Writes the gradients of the sum, of the block's output if dropout makes it another one, and of the weights."""
    *gradients, sums = outputs
    program = pl.program_id(0)

    def add(number: Any, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        part = block(program * repeats + number)
        (total, grad, *more), weights = map(part.load, part.refs.tokens), part.refs.weights
        normed, factor = part.standardize(total)
        inner = grad * part.vector(weights.scale)
        result = inner - normed * part.mean(inner * normed)
        if part.settings.centered:
            result = result - part.mean(inner)
        result = sum(more, start=result * factor)
        dropped = part.drop(result)
        for ref, x in zip(gradients, (result, dropped), strict=False):
            part.store(ref, x)
        parts = dropped, grad * normed, grad
        return tuple(map(jnp.add, totals, (x for x, w in zip(parts, weights, strict=True) if w is not None)))

    first = block(0)
    totals = jax.lax.fori_loop(0, repeats, add, (jnp.zeros(first.inside.shape, jnp.float32),) * sums.shape[1])
    for row, each in enumerate(totals):
        triton.store(sums.at[program, jnp.int32(row), first.columns], each.sum(axis=0), mask=first.present)
