"""Optimizers as chains of optax transforms, with decay and rates given by name tables."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from bertjax.training.config import OptimizerConfig
from bertjax.training.tables import resolve_numbers
from bertjax.types import Params


def make_optimizer(config: OptimizerConfig, schedule: optax.Schedule, params: Params) -> optax.GradientTransformation:
    """clip by global norm -> Adam -> + decay * parameter -> * rate; `params` may be abstract (names and shapes)."""
    decay = resolve_numbers(config.decay_rules, params, "weight decay")
    rates = resolve_numbers(config.rate_rules, params, "optimizer.rates")
    decay = jax.tree.map(lambda share: share * config.weight_decay, decay)
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm > 0 else optax.identity(),
        _adam(config),
        _add_decay(decay),
        _scale_by(rates),
        optax.scale_by_learning_rate(schedule),
    )


def _adam(config: OptimizerConfig) -> optax.GradientTransformation:
    if config.bias_correction:
        return optax.scale_by_adam(config.b1, config.b2, config.eps)
    return scale_by_uncorrected_adam(config.b1, config.b2, config.eps)


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


def _add_decay(decay: Params) -> optax.GradientTransformation:
    def update(updates: Params, params: Params) -> Params:
        return jax.tree.map(lambda u, share, p: u + share * p if share.any() else u, updates, decay, params)

    return optax.stateless(update)


def _scale_by(factors: Params) -> optax.GradientTransformation:
    if all((factor == 1.0).all() for factor in jax.tree.leaves(factors)):
        return optax.identity()
    return optax.stateless(lambda updates, params: jax.tree.map(lambda u, factor: u * factor, updates, factors))
