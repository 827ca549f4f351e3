"""The optimizer: its settings, the chain of optax transforms that they make, and the average of the weights in it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from bertjax.config.fields import Settings, phase_setting, setting
from bertjax.errors import UserError
from bertjax.training.param_rules import Rules, depth_rules, layer_rules, resolve_multipliers
from bertjax.training.sharding import put_tree
from bertjax.training.transforms import (
    add_decay,
    keep_zeros,
    muon_leaves,
    scale_by,
    scale_by_corrected_adam,
    scale_by_orthogonal,
    scale_by_stable_adam,
    scale_by_trust_ratio,
    scale_by_uncorrected_adam,
    unfreeze_gradually,
    with_bf16_moments,
)
from bertjax.types import Params


@dataclasses.dataclass(frozen=True)
class Optimizer(Settings, group="optimizer"):
    """The optimizer; the defaults are BERT's (google-research/bert:optimization.py)."""

    name: str = setting(
        "adamw",
        choices=("adamw", "lamb", "stable_adamw", "muon"),
        help="adamw: Adam with decoupled weight decay. lamb (ALBERT): every tensor of every layer moves in proportion "
        "to its norm. stable_adamw (ModernBERT): a tensor slows down where its gradients jump; use clip_norm=0. muon: "
        "matrices of the layers move by orthogonal matrices, all else by adamw.",
    )
    learning_rate: float = phase_setting(
        1e-4, above=0.0, help="Peak learning rate, reached at the end of warmup; phases may have others."
    )
    b1: float = phase_setting(0.9, at_least=0.0, below=1.0, help="Decay of the mean of the gradients.")
    b2: float = phase_setting(0.999, at_least=0.0, below=1.0, help="Decay of the mean of their squares.")
    eps: float = phase_setting(1e-6, at_least=0.0, help="Added to the root of the mean square.")
    bias_correction: bool = setting(
        False, help="Correct both means for their short history; BERT and ALBERT do not (google-research/bert#153)."
    )
    weight_decay: float = phase_setting(
        0.01,
        at_least=0.0,
        help="Share of a weight that is subtracted per step, times the learning rate; with stable_adamw times the "
        "schedule's share of the peak instead, so that much smaller numbers do the same.",
    )
    clip_norm: float = phase_setting(1.0, at_least=0.0, help="Largest global norm of the gradient; 0: no clipping.")
    decay_exclude: tuple[str, ...] = phase_setting(
        (r".*/(bias|scale)",),
        help='Parameters without decay: regexes of whole paths such as "encoder/layers/3/attention/query/bias".',
    )
    lr_mults: tuple[str, ...] = phase_setting(
        (), help='"REGEX=FACTOR" on the learning rate of the parameters whose whole path matches; the first match wins.'
    )
    layerwise_lr_decay: float | None = phase_setting(
        None,
        above=0.0,
        below=1.0,
        help="Learning rates shrink by this factor per layer from the last one down, embeddings lowest; `lr_mults` "
        "come first. None: the same rate for all layers.",
    )
    layerwise_lr_decay_top: int = phase_setting(
        1,
        at_least=0,
        help="Power of `layerwise_lr_decay` at the last layer: 1 (FinBERT), 2 (ELECTRA's code), 0 (ULMFiT).",
    )
    bottom_lr: float | None = phase_setting(
        None,
        above=0.0,
        help="Learning rate of the embeddings; those of the layers rise to `learning_rate`, which heads have, by equal "
        "factors (fastai's slice(bottom_lr, learning_rate)). None: see `layerwise_lr_decay`.",
    )
    unfreeze_every: int | None = setting(
        None,
        at_least=1,
        help="Gradual unfreezing: heads train from the start, the last layer after this many steps, the next one below "
        "after twice as many, ..., the embeddings last. None: all train from the start.",
    )
    unfreeze: tuple[str, ...] = setting(
        (),
        help='"REGEX=STEP" over whole paths: matching parameters train from that step on; the first match wins, before '
        '`unfreeze_every`. "encoder/embeddings/.*=1000000000" never trains.',
    )
    trust_exclude: tuple[str, ...] | None = phase_setting(
        None,
        names=("lamb",),
        help="lamb: parameters that are not rescaled to their norm; None: those of `decay_exclude`.",
    )
    muon_include: tuple[str, ...] | None = setting(
        None, names=("muon",), help="muon: parameters that it trains, each a matrix; None: the kernels of the layers."
    )
    muon_momentum: float | None = phase_setting(
        None, names=("muon",), above=0.0, below=1.0, help="muon: decay of the mean of the gradients; None: 0.95."
    )
    muon_rms: float | None = phase_setting(
        None,
        names=("muon",),
        at_least=0.0,
        help="muon: root mean square of its steps; None: 0.2, like Adam's, so that both can share a learning rate "
        "(arXiv:2502.16982). 0: an orthogonal matrix times sqrt(max(1, out / in)), as first published, with learning "
        "rates about 0.02.",
    )
    ema_decay: float | None = setting(
        None,
        above=0.0,
        below=1.0,
        help="Decay of an exponential average of the weights, such as 0.9999 (4 bytes per parameter), smaller at the "
        "start; `eval.use_ema` says whether it is evaluated. None: no average.",
    )
    keep_zeros: bool = setting(
        False,
        help="Weights of the layers' matrices that are exactly zero stay zero, as after `bertjax prune --sparsity`; a "
        "matrix of zeros alone would never train.",
    )
    moments_dtype: str = setting(
        "float32",
        choices=("float32", "bfloat16"),
        help="Type of the stored means: bfloat16 takes 4 bytes per parameter instead of 8 (muon: 2 instead of 4), with "
        "stochastic rounding, because rounded to nearest they would stop moving.",
    )

    def check(self) -> None:
        if self.bottom_lr is not None and self.layerwise_lr_decay is not None:
            raise UserError("optimizer.bottom_lr and optimizer.layerwise_lr_decay exclude each other")
        if self.bottom_lr is not None and self.bottom_lr > self.learning_rate:
            raise UserError(
                f"optimizer.bottom_lr must be at most optimizer.learning_rate={self.learning_rate}, not "
                f"{self.bottom_lr}"
            )
        for key in ("decay_exclude", "trust_exclude", "muon_include"):
            _check_regexes(f"optimizer.{key}", getattr(self, key) or ())
        _ = self.parsed_lr_mults, self.parsed_unfreeze  # raise for a broken rule

    def make(self, rate: optax.Schedule, params: Params, seed: int = 0) -> optax.GradientTransformation:
        """Returns the chain: clip by global norm -> direction -> + decay * parameter -> * learning rate.

        Checkpoints name the states by their index in this chain.

        Args:
            rate: Learning rate by step, such as `Schedule.rate`.
            params: Parameters, which may be abstract (names and shapes).
            seed: Seed of the rounding of bfloat16 moments.
        """
        decay = resolve_multipliers(self.decay_rules, params, "weight decay")
        lr_mults = resolve_multipliers(self.lr_rules(params), params, "optimizer.lr_mults")
        decay = jax.tree.map(lambda share: share * self.weight_decay, decay)
        average = [] if self.ema_decay is None else [track_ema(self.ema_decay)]
        holds = [keep_zeros()] if self.keep_zeros else []
        links: tuple[optax.GradientTransformation, ...] = (
            optax.clip_by_global_norm(self.clip_norm) if self.clip_norm > 0 else optax.identity(),
            *self._direction(decay, params, seed),
            scale_by(lr_mults),
            optax.scale_by_learning_rate(rate),
        )
        if rules := self.unfreeze_rules(params):
            links = (unfreeze_gradually(optax.chain(*links), resolve_multipliers(rules, params, "optimizer.unfreeze")),)
        return optax.chain(*links, *holds, *average)

    def lr_rules(self, params: Params) -> Rules:
        """Returns the factors of the learning rate: `lr_mults`, then those of the layers."""
        layers: Rules = []
        if self.layerwise_lr_decay is not None:
            layers = layer_rules(params, self.layerwise_lr_decay, self.layerwise_lr_decay_top)
        if self.bottom_lr is not None:
            depths = depth_rules(params)
            deepest = max(depth for _, depth in depths)
            share = self.bottom_lr / self.learning_rate
            layers = [(pattern, share ** (depth / deepest)) for pattern, depth in depths]
        return [*self.parsed_lr_mults, *layers, (".*", 1.0)]

    def unfreeze_rules(self, params: Params) -> Rules:
        """Returns the step from which on a parameter is trained; empty where all are from the first one on."""
        every, named = self.unfreeze_every, self.parsed_unfreeze
        groups = [] if every is None else [(pattern, depth * every) for pattern, depth in depth_rules(params)]
        return [*named, *groups, (".*", 0)] if named or groups else []

    @property
    def decay_rules(self) -> Rules:
        """Parameter rules whose value is 1 where weights decay."""
        return [*((pattern, 0.0) for pattern in self.decay_exclude), (".*", 1.0)]

    @property
    def trust_rules(self) -> Rules:
        """Parameter rules, 1 where LAMB rescales (google-research/albert:lamb_optimizer.py); default: `decay_rules`."""
        excluded = self.decay_exclude if self.trust_exclude is None else self.trust_exclude
        return [*((pattern, 0.0) for pattern in excluded), (".*", 1.0)]

    @property
    def muon_rules(self) -> Rules:
        """Parameter rules, 1 where Muon trains: the matrices of the layers, unless the config names others."""
        included = (r"(.*/)?layers/\d+/.*kernel",) if self.muon_include is None else self.muon_include
        return [*((pattern, 1.0) for pattern in included), (".*", 0.0)]

    @property
    def parsed_lr_mults(self) -> Rules:
        """The rules of `lr_mults`; `lr_rules` adds those of the layers."""
        return parse_rules(self.lr_mults, "optimizer.lr_mults")

    @property
    def parsed_unfreeze(self) -> Rules:
        """The rules of `unfreeze`."""
        return parse_rules(self.unfreeze, "optimizer.unfreeze", "STEP")

    def _direction(
        self, decay: Params, params: Params, seed: int
    ) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
        """Returns two transforms: gradient to direction, and the addition of the decay."""
        if self.name == "stable_adamw":
            # this optimizer's decay follows the share of the peak learning rate, not the learning rate
            decay = jax.tree.map(lambda share: share / self.learning_rate, decay)
            stable = scale_by_stable_adam(self.b1, self.b2, self.eps, decay, self.bias_correction)
            return self._with_dtype(seed, stable), optax.identity()
        if self.name == "lamb":
            included = resolve_multipliers(self.trust_rules, params, "optimizer.trust_exclude")
            return self._adam(seed), optax.chain(add_decay(decay), scale_by_trust_ratio(included))
        return self._muon(params, seed) if self.name == "muon" else self._adam(seed), add_decay(decay)

    def _adam(self, seed: int) -> optax.GradientTransformation:
        make = scale_by_corrected_adam if self.bias_correction else scale_by_uncorrected_adam
        return self._with_dtype(seed, make(self.b1, self.b2, self.eps))

    def _muon(self, params: Params, seed: int) -> optax.GradientTransformation:
        """Returns Muon for the matrices of `muon_include`, and Adam for the other parameters."""
        use_muon = muon_leaves(resolve_multipliers(self.muon_rules, params, "optimizer.muon_include"), params)
        others = jax.tree.map(lambda muon: not muon, use_muon)
        momentum = 0.95 if self.muon_momentum is None else self.muon_momentum
        rms = 0.2 if self.muon_rms is None else self.muon_rms
        orthogonal = scale_by_orthogonal(momentum, rms, lambda transform: self._with_dtype(seed, transform))
        adam = optax.masked(self._adam(seed), others, mask_compatible_extra_args=True)
        return optax.chain(optax.masked(orthogonal, use_muon), adam)

    def _with_dtype(self, seed: int, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """Returns the optimizer with its moments in `moments_dtype`."""
        return optimizer if self.moments_dtype == "float32" else with_bf16_moments(optimizer, seed)


def _check_regexes(key: str, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(f"{key}: {pattern!r} is not a regular expression ({error})") from None


def parse_rules(texts: Iterable[str], key: str, number: str = "FACTOR") -> list[tuple[str, float]]:
    """Parses ("REGEX=NUMBER", ...).

    Args:
        texts: The rules as text.
        key: The config key that messages name.
        number: What the number is, for messages.

    Raises:
        UserError: A rule is not REGEX=NUMBER.
    """
    rules = []
    for text in texts:
        pattern, _, value = text.rpartition("=")
        try:
            re.compile(pattern)
            rules.append((pattern, float(value)))
        except (re.error, ValueError) as error:
            raise UserError(f"{key}: {text!r} is not REGEX={number} ({error})") from None
        if not pattern:
            raise UserError(f"{key}: {text!r} is not REGEX={number} (no regex)")
    return rules


class EmaState(NamedTuple):
    """Number of steps so far, and the average."""

    step: Array
    average: Params


def track_ema(decay: float) -> optax.GradientTransformation:
    """Averages the weights after each step, and leaves the step as it is; the last transform of a chain.

    average <- d average + (1 - d) weights with d = min(decay, (1 + t) / (10 + t)): the first weights are random, and
    must not stay in it for 1 / (1 - decay) steps (the rule of TensorFlow's ExponentialMovingAverage).
    As a part of the optimizer's state the average is sharded, saved and donated as the moments are.
    """

    def init(params: Params) -> EmaState:
        return EmaState(jnp.zeros((), jnp.int32), jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), params))

    def update(updates: Params, state: EmaState, params: Params) -> tuple[Params, EmaState]:
        step = optax.safe_increment(state.step)
        d = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
        weights = optax.apply_updates(params, updates)
        average = jax.tree.map(lambda old, new: old + (1.0 - d) * (new - old), state.average, weights)
        return updates, EmaState(step, average)

    return optax.GradientTransformation(init, update)


def ema_params(opt_state: Any) -> Params | None:
    """Returns the averaged weights in the state of an optimizer, None without `track_ema`."""
    last = opt_state[-1] if isinstance(opt_state, tuple) and opt_state else None
    return last.average if isinstance(last, EmaState) else None


def reset_ema(opt_state: Any, params: Params) -> Any:
    """Returns the state of a new optimizer with an average that begins with `params`, if it has one.

    The buffers are new, with the shardings of the old ones: the step donates weights and average alike.
    """
    old = ema_params(opt_state)
    if old is None:
        return opt_state
    if jax.process_count() > 1:  # every process has the values
        average = put_tree(params, jax.tree.map(lambda leaf: leaf.sharding, old))
    else:
        average = jax.tree.map(lambda leaf, new: jax.device_put(new, leaf.sharding, may_alias=False), old, params)
    return (*opt_state[:-1], opt_state[-1]._replace(average=average))
