"""Optax transforms of the optimizers: functions of numbers and trees, without settings.

A stacked leaf [L, ...] (or [G, I, ...]) holds L tensors: norms and means "of a tensor" are those of one layer.
Moments in bfloat16 take half the memory; stochastic rounding keeps small changes from being lost.
"""

from __future__ import annotations

import re
import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import keystr, tree_map_with_path
from jaxtyping import Array, Float, UInt32

from bertjax.errors import UserError
from bertjax.io.tree_paths import flatten_tree, map_with_path
from bertjax.models.dropout import random_bits
from bertjax.training.param_rules import layer_shape, num_stacked
from bertjax.training.state import purpose_key
from bertjax.types import Params


class UnfreezeState(NamedTuple):
    """Number of steps so far, how many of them a parameter was frozen for, and the state of the wrapped optimizer."""

    step: Array
    frozen_steps: Params
    inner: Any


def unfreeze_gradually(inner: optax.GradientTransformation, first_steps: Params) -> optax.GradientTransformation:
    """Wraps an optimizer so that every parameter stays frozen until its first step: gradual unfreezing.

    Until then its gradient counts neither for clipping nor in moments, and no decay moves it (arXiv:1801.06146, section
    3.3). `inner` gets `counts`, the steps of every parameter since its first one, for its bias correction. A checkpoint
    without `frozen_steps` goes on with 0 for what it has trained.

    Args:
        inner: Optimizer of all parameters.
        first_steps: First step (from 0) of every parameter.
    """
    inner = optax.with_extra_args_support(inner)

    def init(params: Params) -> UnfreezeState:
        frozen = map_with_path(lambda path, leaf: jnp.zeros(layer_shape(path, leaf), jnp.int32), params)
        return UnfreezeState(jnp.zeros((), jnp.int32), frozen, inner.init(params))

    def update(grads: Params, state: UnfreezeState, params: Params) -> tuple[Params, UnfreezeState]:
        step = optax.safe_increment(state.step)
        trained = jax.tree.map(lambda first: state.step >= first, first_steps)
        frozen = jax.tree.map(lambda here, before: jnp.where(here, before, step), trained, state.frozen_steps)
        counts = jax.tree.map(lambda steps: jnp.maximum(step - steps, 1), frozen)

        def zero_frozen(tree: Params) -> Params:
            return jax.tree.map(lambda here, leaf: jnp.where(here, leaf, jnp.zeros_like(leaf)), trained, tree)

        updates, inner_state = inner.update(zero_frozen(grads), state.inner, params, counts=counts)
        return zero_frozen(updates), UnfreezeState(step, frozen, inner_state)

    return optax.GradientTransformation(init, update)


LAYER_MATRIX = re.compile(r"(.*/)?layers/(.*/)?kernel")
"""Paths of the matrices of stacked layers."""


def keep_zeros() -> optax.GradientTransformation:
    """Returns a transform after which weights of `LAYER_MATRIX` that are zero stay zero; it needs no state."""

    def update(updates: Params, state: Any, params: Params) -> tuple[Params, Any]:
        weights = flatten_tree(params)

        def hold(path: str, step: Array) -> Array:
            return jnp.where(weights[path] == 0, jnp.zeros_like(step), step) if LAYER_MATRIX.fullmatch(path) else step

        return map_with_path(hold, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def scale_by_corrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformationExtraArgs:
    """Returns optax.scale_by_adam, whose bias correction counts the steps of every parameter where it gets `counts`.

    Args: those of `scale_by_uncorrected_adam`.
    """
    adam = optax.scale_by_adam(b1, b2, eps)

    def update(
        grads: Params, state: Any, params: Params | None = None, *, counts: Params | None = None, **_: Any
    ) -> tuple[Params, Any]:
        updates, state = adam.update(grads, state, params)
        if counts is None:
            return updates, state

        def direction(m: Array, v: Array, count: Array) -> Array:
            return m / (1 - b1**count) / (jnp.sqrt(v / (1 - b2**count)) + eps)

        return jax.tree.map(direction, state.mu, state.nu, counts), state

    return optax.GradientTransformationExtraArgs(adam.init, update)


class UncorrectedAdamState(NamedTuple):
    """First and second moment."""

    mu: Params
    nu: Params


def scale_by_uncorrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Returns Adam's m / (sqrt(v) + eps) without bias correction, as BERT, ALBERT, ELECTRA and XLNet were trained.

    Args:
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Added to the root of the second moment.
    """

    def init(params: Params) -> UncorrectedAdamState:
        return UncorrectedAdamState(jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    def update(
        grads: Params, state: UncorrectedAdamState, params: Params | None = None
    ) -> tuple[Params, UncorrectedAdamState]:
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu), UncorrectedAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


class StableAdamState(NamedTuple):
    """Number of steps so far, first and second moment."""

    step: Array
    mu: Params
    nu: Params


def scale_by_stable_adam(
    b1: float, b2: float, eps: float, decay: Params, bias_correction: bool = True
) -> optax.GradientTransformationExtraArgs:
    """Returns StableAdamW: (m / (sqrt(v) + eps) + decay * parameter) / max(1, rms) with the rms of each tensor.

    rms = sqrt(mean(g^2 / max(v, eps^2))) lowers the learning rate of a tensor whose second moment is too small for its
    gradients, in place of clipping (arXiv:2304.13013, section 3.5). The betas (b - b^t) / (1 - b^t) of step t make the
    means unbiased (AnswerDotAI/ModernBERT:src/optimizer.py, after optimi).

    Args:
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Added to the root of the second moment.
        decay: Weight decay of every parameter.
        bias_correction: False takes the betas as they are.
    """

    def init(params: Params) -> StableAdamState:
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return StableAdamState(jnp.zeros((), jnp.int32), mu, nu)

    def update(
        grads: Params, state: StableAdamState, params: Params, *, counts: Params | None = None, **_: Any
    ) -> tuple[Params, StableAdamState]:
        step = optax.safe_increment(state.step)

        def betas(beta: float) -> Params:
            if bias_correction and counts is not None:
                return jax.tree.map(lambda count: _debiased(beta, count), counts)
            same = _debiased(beta, step) if bias_correction else beta
            return jax.tree.map(lambda _: same, grads)

        mu = jax.tree.map(lambda b, m, g: b * m + (1 - b) * g, betas(b1), state.mu, grads)
        nu = jax.tree.map(lambda b, v, g: b * v + (1 - b) * g * g, betas(b2), state.nu, grads)

        def direction(path: str, leaf: tuple[Array, ...]) -> Array:
            g, m, v, share, parameter = leaf
            rms = jnp.sqrt(jnp.mean(g * g / jnp.maximum(v, eps * eps), _layer_axes(path, g), keepdims=True))
            return (m / (jnp.sqrt(v) + eps) + share * parameter) / jnp.maximum(rms, 1.0)

        return _map_leaves(direction, grads, mu, nu, decay, params), StableAdamState(step, mu, nu)

    return optax.GradientTransformationExtraArgs(init, update)


def _debiased(beta: float, step: Array) -> Array:
    power = beta**step
    return (beta - power) / (1.0 - power)


def scale_by_trust_ratio(included: Params) -> optax.GradientTransformation:
    """Scales parameter updates by LAMB's |parameter| / |update| per layer; by 1 where either is 0, or `included` is.

    The ratio is not clamped (google-research/albert:lamb_optimizer.py). optax.scale_by_trust_ratio takes one ratio over
    a whole leaf, which ties the layers of a stack together, and has no exclusions.
    """

    def scaled(path: str, leaf: tuple[Array, ...]) -> Array:
        update, parameter, inside = leaf
        if not np.any(inside):
            return update
        param_norm, update_norm = (_norm(value, _layer_axes(path, value)) for value in (parameter, update))
        trusted = (inside > 0) & (param_norm > 0) & (update_norm > 0)
        return update * jnp.where(trusted, param_norm / jnp.where(trusted, update_norm, 1.0), 1.0)

    return optax.stateless(lambda updates, params: _map_leaves(scaled, updates, params, included))


def _norm(value: Array, axes: tuple[int, ...]) -> Array:
    return jnp.sqrt(jnp.sum(value * value, axes, keepdims=True))


def _layer_axes(path: str, leaf: Array) -> tuple[int, ...]:
    """Returns the axes of one layer's tensor: those after the axes that count layers."""
    return tuple(range(num_stacked(path), leaf.ndim))


def _map_leaves(function: Any, first: Params, *others: Params) -> Params:
    """Calls `function(path, leaves)` for the leaves of several trees at every path."""
    paths = map_with_path(lambda path, _: path, first)
    return jax.tree.map(lambda path, *leaves: function(path, leaves), paths, first, *others)


def muon_leaves(included: Params, params: Params) -> Params:
    """Returns which leaves Muon trains, True or False; raises `UserError` if one is not a matrix, or none is.

    Args:
        included: Multipliers of `optimizer.muon_include`, 1 where it matches.
        params: Parameters, which may be abstract.
    """
    use_muon = map_with_path(_uses_muon, included)
    _require_matrices(use_muon, params)
    if not any(jax.tree.leaves(use_muon)):
        raise UserError("optimizer.muon_include matches no parameter: Muon would have nothing to do")
    return use_muon


def scale_by_orthogonal(momentum: float, rms: float, with_dtype: Any) -> optax.GradientTransformation:
    """Returns Muon's direction, layer by layer.

    optax.contrib.muon alone takes stacked biases [L, D] for matrices, and stacked matrices [L, D, F] for none; its
    parts map over all axes but those named as rows and columns.

    Args:
        momentum: Decay of the mean of the gradients.
        rms: Root mean square of the steps; 0 = Keller Jordan's scale.
        with_dtype: Stores the moments of a transform in their type.
    """
    return optax.chain(with_dtype(_scale_by_published_muon(momentum)), _scale_to_rms(rms))


def _scale_by_published_muon(momentum: float) -> optax.GradientTransformation:
    """Returns Muon with the momentum of its author: orthogonalized is G + mu M, where M was mu M + G.

    (Keller Jordan, kellerjordan.github.io/posts/muon.) optax's divides G and M by bias corrections that differ in the
    first steps; at a late count both are 1. Orthogonalisation removes a common factor, such as 1 - mu in its means.
    """
    late = 2**30
    inner = optax.contrib.scale_by_muon(beta=momentum, weight_dimension_numbers=_dimensions)

    def update(grads: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        updates, after = inner.update(grads, state._replace(count=jnp.full_like(state.count, late)), params)
        return updates, after._replace(count=optax.safe_increment(state.count))

    return optax.GradientTransformation(inner.init, update)


def _uses_muon(path: str, share: np.ndarray) -> bool:
    """Returns whether Muon trains a leaf; a stack is one array and cannot be split between two optimizers."""
    if share.min() != share.max():
        raise UserError(f"optimizer.muon_include matches some layers of {path} only: all or none of a stack")
    return bool(share.all())


def _require_matrices(use_muon: Params, params: Params) -> None:
    def check(path: str, leaf: tuple[bool, Any]) -> None:
        muon, array = leaf
        if muon and array.ndim - num_stacked(path) != 2:
            raise UserError(
                f"optimizer.muon_include matches {path}, which is not a matrix: Muon orthogonalizes matrices"
            )

    _map_leaves(check, use_muon, params)


def _scale_to_rms(rms: float) -> optax.GradientTransformation:
    """Scales an orthogonal [in, out] from 1 / sqrt(max(in, out)) to a root mean square; 0 = Keller Jordan's scale."""

    def factor(rows: int, columns: int) -> float:
        return rms * max(rows, columns) ** 0.5 if rms > 0 else max(1.0, columns / rows) ** 0.5

    return optax.stateless(lambda updates, params: jax.tree.map(lambda u: u * factor(*u.shape[-2:]), updates))


def _dimensions(updates: Params) -> Params:
    """Returns the rows and columns of kernels [..., in, out]."""
    return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1), updates)


def add_decay(decay: Params) -> optax.GradientTransformation:
    def update(updates: Params, params: Params) -> Params:
        return jax.tree.map(lambda u, share, p: u + share * p if share.any() else u, updates, decay, params)

    return optax.stateless(update)


def scale_by(factors: Params) -> optax.GradientTransformation:
    if all((factor == 1.0).all() for factor in jax.tree.leaves(factors)):
        return optax.identity()
    return optax.stateless(lambda updates, params: jax.tree.map(lambda u, factor: u * factor, updates, factors))


MOMENTS = "mu", "nu"
"""Fields of optimizer states that hold one mean per parameter; a random word has 16 bits for each of the two."""


class Bf16State(NamedTuple):
    """Number of steps so far, and the state of the wrapped optimizer with its moments in bfloat16."""

    step: Array
    inner: Any


def with_bf16_moments(optimizer: optax.GradientTransformation, seed: int) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimizer, still computed in float32, so that its moments are stored in bfloat16 between steps.

    A mean of decay b moves by a share 1 - b of the difference, and half of the distance between two bfloat16 is 2^-9 to
    2^-8 of their value: rounded to the nearest, a mean with b = 0.999 never changes. So it is rounded up with a
    probability in proportion to how near it is to the upper value: the expectation is the float32 one. For b = 0.999
    this adds 5 % to the second moment (one standard deviation), 2.5 % to its root.
    The random bits are a function of the seed, the number of the step and the parameter's name: the same on every mesh
    and after every resume.

    Args:
        optimizer: Transform whose state has fields of `MOMENTS`.
        seed: Seed of the run.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def init(params: Params) -> Bf16State:
        inner = optimizer.init(params)
        zeros = {name: optax.tree.cast(getattr(inner, name), jnp.bfloat16) for name in _moments(inner)}
        return Bf16State(jnp.zeros((), jnp.int32), inner._replace(**zeros))

    def update(grads: Params, state: Bf16State, params: Params | None = None, **extra: Any) -> tuple[Params, Bf16State]:
        wide = {name: optax.tree.cast(getattr(state.inner, name), jnp.float32) for name in _moments(state.inner)}
        updates, inner = optimizer.update(grads, state.inner._replace(**wide), params, **extra)
        words = _random_words(jax.random.fold_in(purpose_key(seed, "moments"), state.step), inner.mu)
        moments = {
            name: jax.tree.map(
                lambda leaf, word, part=part: stochastic_round(leaf, word >> (16 * part)), getattr(inner, name), words
            )
            for part, name in enumerate(MOMENTS)
            if name in _moments(inner)
        }
        return updates, Bf16State(optax.safe_increment(state.step), inner._replace(**moments))

    return optax.GradientTransformationExtraArgs(init, update)


def stochastic_round(value: Float[Array, "..."], bits: UInt32[Array, "..."]) -> Array:
    """Rounds float32 [...] to a neighboring bfloat16, the nearer one more likely, by the lower 16 of `bits`.

    A bfloat16 is the upper half of a float32: what is added to the lower half carries over in proportion to it.
    """
    whole = jax.lax.bitcast_convert_type(value, jnp.uint32) + (bits & 0xFFFF)
    upper = jax.lax.bitcast_convert_type((whole >> 16).astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isfinite(value), upper, value.astype(jnp.bfloat16))  # a NaN may carry over into a number


def _random_words(key: Array, moments: Params) -> Params:
    """Returns a random uint32 for every number of a tree."""

    def draw(path: Any, leaf: Array) -> Array:
        return random_bits(jax.random.fold_in(key, zlib.crc32(keystr(path).encode())), leaf.shape)

    return tree_map_with_path(draw, moments)


def _moments(state: Any) -> list[str]:
    return [name for name in MOMENTS if name in state._fields]
