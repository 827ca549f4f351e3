"""Optimizers as chains of optax transforms; tables of parameter names set what differs by parameter.

A stacked leaf [L, ...] (or [G, I, ...]) holds L tensors: norms and means "of a tensor" are those of one layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from bertjax.config.optimizer import OptimizerConfig, Rules
from bertjax.errors import UserError
from bertjax.io.tree_paths import map_with_path
from bertjax.training.bf16_moments import with_bf16_moments
from bertjax.training.ema import track_ema
from bertjax.training.param_rules import depth_rules, layer_rules, layer_shape, num_stacked, resolve_multipliers
from bertjax.types import Params


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule, params: Params, seed: int = 0
) -> optax.GradientTransformation:
    """Returns the chain: clip by global norm -> direction -> + decay * parameter -> * learning rate.

    Checkpoints name the states by their index in this chain.

    Args:
        config: Settings of the group `optimizer`.
        schedule: Learning rate by step.
        params: Parameters, which may be abstract (names and shapes).
        seed: Seed of the rounding of bfloat16 moments.
    """
    decay = resolve_multipliers(config.decay_rules, params, "weight decay")
    lr_mults = resolve_multipliers(lr_rules(config, params), params, "optimizer.lr_mults")
    decay = jax.tree.map(lambda share: share * config.weight_decay, decay)
    average = [] if config.ema_decay is None else [track_ema(config.ema_decay)]
    links: tuple[optax.GradientTransformation, ...] = (
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm > 0 else optax.identity(),
        *_direction(config, decay, params, seed),
        _scale_by(lr_mults),
        optax.scale_by_learning_rate(schedule),
    )
    if rules := unfreeze_rules(config, params):
        links = (unfreeze_gradually(optax.chain(*links), resolve_multipliers(rules, params, "optimizer.unfreeze")),)
    return optax.chain(*links, *average)


def lr_rules(config: OptimizerConfig, params: Params) -> Rules:
    """Returns the factors of the learning rate: `optimizer.lr_mults`, then those of the layers."""
    layers: Rules = []
    if config.layerwise_lr_decay is not None:
        layers = layer_rules(params, config.layerwise_lr_decay, config.layerwise_lr_decay_top)
    if config.bottom_lr is not None:
        depths = depth_rules(params)
        deepest = max(depth for _, depth in depths)
        share = config.bottom_lr / config.learning_rate
        layers = [(pattern, share ** (depth / deepest)) for pattern, depth in depths]
    return [*config.parsed_lr_mults, *layers, (".*", 1.0)]


def unfreeze_rules(config: OptimizerConfig, params: Params) -> Rules:
    """Returns the step from which on a parameter is trained; empty where all are from the first one on."""
    every, named = config.unfreeze_every, config.parsed_unfreeze
    groups = [] if every is None else [(pattern, depth * every) for pattern, depth in depth_rules(params)]
    return [*named, *groups, (".*", 0)] if named or groups else []


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


def _direction(
    config: OptimizerConfig, decay: Params, params: Params, seed: int
) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
    """Returns two transforms: gradient to direction, and the addition of the decay."""
    if config.name == "stable_adamw":
        # this optimizer's decay follows the share of the peak learning rate, not the learning rate
        decay = jax.tree.map(lambda share: share / config.learning_rate, decay)
        stable = scale_by_stable_adam(config.b1, config.b2, config.eps, decay, config.bias_correction)
        return _with_dtype(config, seed, stable), optax.identity()
    if config.name == "lamb":
        included = resolve_multipliers(config.trust_rules, params, "optimizer.trust_exclude")
        return _adam(config, seed), optax.chain(_add_decay(decay), scale_by_trust_ratio(included))
    return _muon(config, params, seed) if config.name == "muon" else _adam(config, seed), _add_decay(decay)


def _adam(config: OptimizerConfig, seed: int) -> optax.GradientTransformation:
    make = scale_by_corrected_adam if config.bias_correction else scale_by_uncorrected_adam
    return _with_dtype(config, seed, make(config.b1, config.b2, config.eps))


def _with_dtype(
    config: OptimizerConfig, seed: int, optimizer: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Returns the optimizer with its moments in `optimizer.moments_dtype`."""
    return optimizer if config.moments_dtype == "float32" else with_bf16_moments(optimizer, seed)


def scale_by_corrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformationExtraArgs:
    """Returns optax.scale_by_adam, whose bias correction counts the steps of every parameter where it gets `counts`.

    Args: those of `scale_by_uncorrected_adam`.
    """
    adam = optax.scale_by_adam(b1, b2, eps)

    def update(grads: Params, state: Any, params: Params | None = None, *, counts: Params | None = None, **_: Any):
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

    def update(grads: Params, state: UncorrectedAdamState, params: Params | None = None):
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

    def update(grads: Params, state: StableAdamState, params: Params, *, counts: Params | None = None, **_: Any):
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


def _muon(config: OptimizerConfig, params: Params, seed: int) -> optax.GradientTransformation:
    """Returns Muon, layer by layer, for the matrices of `optimizer.muon_include`, and Adam for the other parameters.

    optax.contrib.muon alone takes stacked biases [L, D] for matrices, and stacked matrices [L, D, F] for none; its
    parts map over all axes but those named as rows and columns.
    """
    use_muon = map_with_path(_uses_muon, resolve_multipliers(config.muon_rules, params, "optimizer.muon_include"))
    _require_matrices(use_muon, params)
    if not any(jax.tree.leaves(use_muon)):
        raise UserError("optimizer.muon_include matches no parameter: Muon would have nothing to do")
    others = jax.tree.map(lambda muon: not muon, use_muon)
    momentum = 0.95 if config.muon_momentum is None else config.muon_momentum
    rms = 0.2 if config.muon_rms is None else config.muon_rms
    muon = _with_dtype(config, seed, _scale_by_published_muon(momentum))
    orthogonal = optax.chain(muon, _scale_to_rms(rms))
    adam = optax.masked(_adam(config, seed), others, mask_compatible_extra_args=True)
    return optax.chain(optax.masked(orthogonal, use_muon), adam)


def _scale_by_published_muon(momentum: float) -> optax.GradientTransformation:
    """Returns Muon with the momentum of its author: orthogonalised is G + mu M, where M was mu M + G.

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
                f"optimizer.muon_include matches {path}, which is not a matrix: Muon orthogonalises matrices"
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


def _add_decay(decay: Params) -> optax.GradientTransformation:
    def update(updates: Params, params: Params) -> Params:
        return jax.tree.map(lambda u, share, p: u + share * p if share.any() else u, updates, decay, params)

    return optax.stateless(update)


def _scale_by(factors: Params) -> optax.GradientTransformation:
    if all((factor == 1.0).all() for factor in jax.tree.leaves(factors)):
        return optax.identity()
    return optax.stateless(lambda updates, params: jax.tree.map(lambda u, factor: u * factor, updates, factors))
