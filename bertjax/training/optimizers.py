"""Optimizers as chains of optax transforms; what differs by parameter is given by name tables.

A stacked leaf [L, ...] (or [G, I, ...]) holds L tensors: whatever is measured over "a tensor" is measured per layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from bertjax.config.training import OptimizerConfig, Rules
from bertjax.errors import UserError
from bertjax.io.tree_paths import map_with_path
from bertjax.training.bf16_moments import with_bf16_moments
from bertjax.training.ema import track_ema
from bertjax.training.param_rules import depth_rules, layer_rules, num_stacked, resolve_multipliers
from bertjax.types import Params


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule, params: Params, seed: int = 0
) -> optax.GradientTransformation:
    """clip by global norm -> direction -> + decay * parameter -> * rate; `params` may be abstract (names and shapes).

    Checkpoints name states by their place in this chain. `seed` decides how moments are rounded, where they are.
    """
    decay = resolve_multipliers(config.decay_rules, params, "weight decay")
    rates = resolve_multipliers(lr_rules(config, params), params, "optimizer.lr_mults")
    decay = jax.tree.map(lambda share: share * config.weight_decay, decay)
    average = [] if config.ema_decay is None else [track_ema(config.ema_decay)]
    links: tuple[optax.GradientTransformation, ...] = (
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm > 0 else optax.identity(),
        *_direction(config, decay, params, seed),
        _scale_by(rates),
        optax.scale_by_learning_rate(schedule),
    )
    if rules := unfreeze_rules(config, params):
        links = (unfreeze_gradually(optax.chain(*links), resolve_multipliers(rules, params, "optimizer.unfreeze")),)
    return optax.chain(*links, *average)


def lr_rules(config: OptimizerConfig, params: Params) -> Rules:
    """Factors of the learning rate: those that the config names, then those of the layers."""
    layers: Rules = []
    if config.layerwise_lr_decay is not None:
        layers = layer_rules(params, config.layerwise_lr_decay, config.layerwise_lr_decay_top)
    if config.bottom_lr is not None:
        depths = depth_rules(params)
        deepest = max(depth for _, depth in depths)
        share = config.bottom_lr / config.learning_rate
        layers = [(pattern, share ** (depth / deepest)) for pattern, depth in depths]
    return [*config.named_rates, *layers, (".*", 1.0)]


def unfreeze_rules(config: OptimizerConfig, params: Params) -> Rules:
    """The number of the update from which on a parameter moves; nothing where all do from the first one on."""
    every, named = config.unfreeze_every, config.named_openings
    groups = [] if every is None else [(pattern, depth * every) for pattern, depth in depth_rules(params)]
    return [*named, *groups, (".*", 0)] if named or groups else []


class UnfreezeState(NamedTuple):
    updates: Array
    inner: Any


def unfreeze_gradually(inner: optax.GradientTransformation, opens: Params) -> optax.GradientTransformation:
    """`inner` with every parameter left alone before the update (from 0) that `opens` says: gradual unfreezing.

    Until then its slope counts nowhere, neither for clipping nor in moments, and no decay moves it (arXiv:1801.06146,
    section 3.3).
    """

    def update(slopes: Params, state: UnfreezeState, params: Params) -> tuple[Params, UnfreezeState]:
        is_open = jax.tree.map(lambda first: state.updates >= first, opens)

        def where_open(tree: Params) -> Params:
            return jax.tree.map(lambda here, leaf: jnp.where(here, leaf, jnp.zeros_like(leaf)), is_open, tree)

        updates, after = inner.update(where_open(slopes), state.inner, params)
        return where_open(updates), UnfreezeState(optax.safe_increment(state.updates), after)

    return optax.GradientTransformation(
        lambda params: UnfreezeState(jnp.zeros((), jnp.int32), inner.init(params)), update
    )


def _direction(
    config: OptimizerConfig, decay: Params, params: Params, seed: int
) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
    """Two transforms: what becomes of a gradient, and how decay joins it."""
    if config.name == "stable_adamw":
        # the decay that this optimizer wants follows the share of the peak rate, not the rate
        decay = jax.tree.map(lambda share: share / config.learning_rate, decay)
        stable = scale_by_stable_adam(config.b1, config.b2, config.eps, decay, config.bias_correction)
        return _kept(config, seed, stable), optax.identity()
    if config.name == "lamb":
        included = resolve_multipliers(config.trust_rules, params, "optimizer.trust_exclude")
        return _adam(config, seed), optax.chain(_add_decay(decay), scale_by_trust_ratio(included))
    return _muon(config, params, seed) if config.name == "muon" else _adam(config, seed), _add_decay(decay)


def _adam(config: OptimizerConfig, seed: int) -> optax.GradientTransformation:
    make = optax.scale_by_adam if config.bias_correction else scale_by_uncorrected_adam
    return _kept(config, seed, make(config.b1, config.b2, config.eps))


def _kept(config: OptimizerConfig, seed: int, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimizer with its moments in the type that the config asks for."""
    return optimizer if config.moments_dtype == "float32" else with_bf16_moments(optimizer, seed)


class UncorrectedAdamState(NamedTuple):
    mu: Params
    nu: Params


def scale_by_uncorrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """m / (sqrt(v) + eps) without bias correction, as BERT, ALBERT, ELECTRA and XLNet were trained."""

    def init(params: Params) -> UncorrectedAdamState:
        return UncorrectedAdamState(jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    def update(grads: Params, state: UncorrectedAdamState, params: Params | None = None):
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu), UncorrectedAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


class StableAdamState(NamedTuple):
    updates: Array
    mu: Params
    nu: Params


def scale_by_stable_adam(
    b1: float, b2: float, eps: float, decay: Params, bias_correction: bool = True
) -> optax.GradientTransformation:
    """(m / (sqrt(v) + eps) + decay * parameter) / max(1, rms), rms = sqrt(mean(g^2 / max(v, eps^2))) of each tensor.

    The rms is what shrinks the rate of a tensor whose second moment lags behind its gradients, in place of clipping
    (arXiv:2304.13013, section 3.5). The betas of step t are (b - b^t) / (1 - b^t), which makes the means unbiased
    (AnswerDotAI/ModernBERT:src/optimizer.py, after optimi); `bias_correction=False` takes them as they are.
    """

    def init(params: Params) -> StableAdamState:
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return StableAdamState(jnp.zeros((), jnp.int32), mu, nu)

    def update(grads: Params, state: StableAdamState, params: Params):
        done = optax.safe_increment(state.updates)
        c1, c2 = (_debiased(beta, done) if bias_correction else beta for beta in (b1, b2))
        mu = jax.tree.map(lambda m, g: c1 * m + (1 - c1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: c2 * v + (1 - c2) * g * g, state.nu, grads)

        def direction(path: str, leaf: tuple[Array, ...]) -> Array:
            g, m, v, share, parameter = leaf
            rms = jnp.sqrt(jnp.mean(g * g / jnp.maximum(v, eps * eps), _own_axes(path, g), keepdims=True))
            return (m / (jnp.sqrt(v) + eps) + share * parameter) / jnp.maximum(rms, 1.0)

        return _map_leaves(direction, grads, mu, nu, decay, params), StableAdamState(done, mu, nu)

    return optax.GradientTransformation(init, update)


def _debiased(beta: float, done: Array) -> Array:
    power = beta**done
    return (beta - power) / (1.0 - power)


def scale_by_trust_ratio(included: Params) -> optax.GradientTransformation:
    """LAMB's |parameter| / |update|, of each layer of a stack by itself; 1 where either is 0 or `included` is.

    Not clamped (google-research/albert:lamb_optimizer.py). optax.scale_by_trust_ratio takes one ratio over a whole
    leaf, which ties the layers of a stack together, and has no exclusions.
    """

    def scaled(path: str, leaf: tuple[Array, ...]) -> Array:
        update, parameter, inside = leaf
        if not np.any(inside):
            return update
        ours, theirs = (_norm(value, _own_axes(path, value)) for value in (parameter, update))
        trusted = (inside > 0) & (ours > 0) & (theirs > 0)
        return update * jnp.where(trusted, ours / jnp.where(trusted, theirs, 1.0), 1.0)

    return optax.stateless(lambda updates, params: _map_leaves(scaled, updates, params, included))


def _norm(value: Array, axes: tuple[int, ...]) -> Array:
    return jnp.sqrt(jnp.sum(value * value, axes, keepdims=True))


def _own_axes(path: str, leaf: Array) -> tuple[int, ...]:
    """The axes of one layer's tensor: those behind the axes that count layers."""
    return tuple(range(num_stacked(path), leaf.ndim))


def _map_leaves(function: Any, first: Params, *others: Params) -> Params:
    """`function(path, leaves)` for the leaves that several trees have in one place."""
    paths = map_with_path(lambda path, _: path, first)
    return jax.tree.map(lambda path, *leaves: function(path, leaves), paths, first, *others)


def _muon(config: OptimizerConfig, params: Params, seed: int) -> optax.GradientTransformation:
    """Momentum made orthogonal, layer by layer, for the matrices that `muon_include` names; Adam for the others.

    optax.contrib.muon itself would take stacked biases [L, D] for matrices and stacked matrices [L, D, F] for none;
    its parts do the right thing when told which axes are rows and columns: all others are mapped over.
    """
    chosen = map_with_path(_is_chosen, resolve_multipliers(config.muon_rules, params, "optimizer.muon_include"))
    _require_matrices(chosen, params)
    if not any(jax.tree.leaves(chosen)):
        raise UserError("optimizer.muon_include matches no parameter: Muon would have nothing to do")
    others = jax.tree.map(lambda muon: not muon, chosen)
    momentum = 0.95 if config.muon_momentum is None else config.muon_momentum
    rms = 0.2 if config.muon_rms is None else config.muon_rms
    muon = _kept(config, seed, optax.contrib.scale_by_muon(beta=momentum, weight_dimension_numbers=_dimensions))
    orthogonal = optax.chain(muon, _scale_to_rms(rms))
    return optax.chain(optax.masked(orthogonal, chosen), optax.masked(_adam(config, seed), others))


def _is_chosen(path: str, share: np.ndarray) -> bool:
    """Whether Muon works on a leaf; a stack is one array in memory and cannot be shared between two optimizers."""
    if share.min() != share.max():
        raise UserError(f"optimizer.muon_include matches some layers of {path} only: all or none of a stack")
    return bool(share.all())


def _require_matrices(chosen: Params, params: Params) -> None:
    def check(path: str, leaf: tuple[bool, Any]) -> None:
        muon, array = leaf
        if muon and array.ndim - num_stacked(path) != 2:
            raise UserError(f"optimizer.muon_include matches {path}, which is no matrix: Muon orthogonalises matrices")

    _map_leaves(check, chosen, params)


def _scale_to_rms(rms: float) -> optax.GradientTransformation:
    """An orthogonal [in, out] has root mean square 1 / sqrt(max(in, out)); 0 = Keller Jordan's own scale instead."""

    def factor(rows: int, columns: int) -> float:
        return rms * max(rows, columns) ** 0.5 if rms > 0 else max(1.0, columns / rows) ** 0.5

    return optax.stateless(lambda updates, params: jax.tree.map(lambda u: u * factor(*u.shape[-2:]), updates))


def _dimensions(updates: Params) -> Params:
    """Kernels are [..., in, out]."""
    return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1), updates)


def _add_decay(decay: Params) -> optax.GradientTransformation:
    def update(updates: Params, params: Params) -> Params:
        return jax.tree.map(lambda u, share, p: u + share * p if share.any() else u, updates, decay, params)

    return optax.stateless(update)


def _scale_by(factors: Params) -> optax.GradientTransformation:
    if all((factor == 1.0).all() for factor in jax.tree.leaves(factors)):
        return optax.identity()
    return optax.stateless(lambda updates, params: jax.tree.map(lambda u, factor: u * factor, updates, factors))
