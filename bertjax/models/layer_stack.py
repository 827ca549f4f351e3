"""Layers with stacked parameters, run as few scans: whole periods of a pattern, shared groups, and what is left over.

Parameters of a stack carry a leading axis for each key of their path that is in `STACKS`: `layers` [L, ...], or
`groups/layers` [G, I, ...] where G groups of I layers are shared. What only some layers have lies in a stack of its
own (`attention_norms/layers`, [L - 1, ...] where the first layer has none).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from bertjax.config.model import EncoderConfig
from bertjax.models.layer import Layer
from bertjax.models.linear import Key, layer_norm
from bertjax.models.mesh import shard_batch
from bertjax.types import Params

STACKS = ("groups", "layers")
Apply = Callable[[Layer, Any, bool, Key | None, Any], Any]
"""`apply(layer, carry, local, key, own)`: the next carry; `own` is this layer's part of `per_layer`."""


class Stacked(nnx.Module):
    """Holds a stack under the name `layers`."""

    def __init__(self, layers: nnx.Module):
        self.layers = layers


def init_layers(config: EncoderConfig, rngs: nnx.Rngs) -> Layer:
    """One `Layer` whose parameters carry a leading [L] axis, or [G, I]; every layer is drawn from its own key."""
    norm = config.first_attention_norm
    shape = (config.num_layers,) if config.num_groups is None else (config.num_groups, config.inner_layers)
    keys = jax.random.split(rngs.params(), shape)
    return _stack(lambda rngs: Layer(config, rngs, norm), keys)


def init_attention_norms(config: EncoderConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """The attention norms of all layers but the first, [L - 1, D]."""
    keys = jax.random.split(rngs.params(), config.num_layers - 1)
    return _stack(lambda rngs: layer_norm(config.hidden_size, config, rngs), keys)


def _stack(make: Callable[[nnx.Rngs], Any], keys: Array) -> Any:
    graph = nnx.graphdef(nnx.eval_shape(lambda: make(nnx.Rngs(0))))

    def draw(key: Array) -> Params:
        return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(key))))

    for _ in range(keys.ndim):
        draw = jax.vmap(draw)
    return nnx.merge(graph, draw(keys))


@dataclasses.dataclass(frozen=True)
class ScanRun:
    """Consecutive layers that run as one scan: `repeats` times the `pattern` (True = local), from layer `start` on.

    `group` names the shared parameters; None = layers with their own.
    """

    start: int
    repeats: int
    pattern: tuple[bool, ...]
    group: int | None = None

    @property
    def stop(self) -> int:
        return self.start + self.repeats * len(self.pattern)


def scan_runs(config: EncoderConfig, start: int = 0, stop: int | None = None) -> list[ScanRun]:
    """Layers `start` to `stop` as scans over whole periods of the local/global pattern, and what is left over.

    Cuts fall where a layer differs from the next in more than the pattern: behind layer 0 where that has no norm or is
    followed by a convolution, and between groups of shared parameters.
    """
    stop = config.num_layers if stop is None else stop
    cuts = {start, stop}
    if not config.first_attention_norm or config.conv_kernel_size:
        cuts.add(1)
    if config.num_groups is not None:
        cuts |= {i for i in range(1, config.num_layers) if config.group_of(i) != config.group_of(i - 1)}
    period = config.global_attn_every_n_layers if config.local_attention else 1
    found = []
    for low, high in itertools.pairwise(sorted(cut for cut in cuts if start <= cut <= stop)):
        group = None if config.num_groups is None else config.group_of(low)
        whole = low + (high - low) // period * period
        for first, count, width in ((low, (whole - low) // period, period), (whole, 1, high - whole)):
            if count and width:
                pattern = tuple(config.is_local(layer) for layer in range(first, first + width))
                found.append(ScanRun(first, count, pattern, group))
    return found


def run_layers(
    config: EncoderConfig,
    weights: dict[str, Params],
    carry: Any,
    apply: Apply,
    key: Key | None,
    *,
    start: int = 0,
    stop: int | None = None,
    per_layer: Any = None,
    keep: Callable[[Any], Any] | None = None,
) -> tuple[Any, Any]:
    """(last carry, `keep(carry)` of every layer run, stacked [stop - start, ...]).

    `weights` has `layers` or `groups`, and `attention_norms` where the first layer has none; `per_layer` is a tree with
    leading axis [L].
    """
    keys = None if key is None else jax.random.split(key, (config.num_layers, config.inner_layers))
    kept = []
    for run in scan_runs(config, start, stop):
        carry, parts = _scan(config, run, weights, carry, apply, keys, per_layer, keep)
        kept.append(parts)
    if keep is None:
        return carry, None
    return carry, jax.tree.map(lambda *parts: jnp.concatenate(parts), *kept)


def _scan(
    config: EncoderConfig,
    run: ScanRun,
    weights: dict[str, Params],
    carry: Any,
    apply: Apply,
    keys: Key | None,
    per_layer: Any,
    keep: Callable[[Any], Any] | None,
) -> tuple[Any, Any]:
    width = len(run.pattern)
    normed = config.first_attention_norm or run.start > 0
    graph = _graph(config, normed)
    shared = None if run.group is None else [_part(weights["groups"], run.group, i) for i in _inner(config)]
    own = None if shared is not None else _layer_weights(config, weights, run)

    @functools.partial(_remat, policy=config.remat)
    def one(carry: Any, params: Params | None, keys: Key | None, own_part: Any, local: bool) -> Any:
        for inner in _inner(config):
            layer = nnx.merge(graph, params if shared is None else shared[inner])
            carry = apply(layer, carry, local, None if keys is None else keys[inner], own_part)
        return jax.tree.map(shard_batch, carry)

    def body(carry: Any, parts: tuple[Any, Any, Any]) -> tuple[Any, Any]:
        found = []
        for place, local in enumerate(run.pattern):
            carry = one(carry, *(jax.tree.map(lambda leaf, at=place: leaf[at], part) for part in parts), local)
            found.append(None if keep is None else keep(carry))
        return carry, None if keep is None else jax.tree.map(lambda *states: jnp.stack(states), *found)

    parts = own, *(_slice(tree, run.start, run.stop, config.num_layers) for tree in (keys, per_layer))
    folded = jax.tree.map(lambda leaf: leaf.reshape(run.repeats, width, *leaf.shape[1:]), parts)
    carry, kept = jax.lax.scan(body, carry, folded, length=run.repeats, unroll=config.unroll)
    return carry, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), kept)


def get_layer(config: EncoderConfig, weights: dict[str, Params], index: int) -> Layer:
    """One layer; of groups, the first of its group."""
    if config.num_groups is not None:
        return nnx.merge(_graph(config, True), _part(weights["groups"], config.group_of(index), 0))
    params = _layer_weights(config, weights, ScanRun(index, 1, (config.is_local(index),)))
    graph = _graph(config, config.first_attention_norm or index > 0)
    return nnx.merge(graph, jax.tree.map(lambda leaf: leaf[0], params))


def _layer_weights(config: EncoderConfig, weights: dict[str, Params], run: ScanRun) -> Params:
    """The parameters of a segment's layers, the norms that are kept apart put where a layer has them."""
    params = _slice(weights["layers"], run.start, run.stop, config.num_layers)
    if "attention_norms" not in weights or run.start == 0:
        return params
    norms = _slice(weights["attention_norms"], run.start - 1, run.stop - 1, config.num_layers - 1)
    return {**params, "attention": {**params["attention"], "norm": norms}}


def _slice(tree: Any, start: int, stop: int, length: int) -> Any:
    return tree if (start, stop) == (0, length) else jax.tree.map(lambda leaf: leaf[start:stop], tree)


def _part(tree: Any, *index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _inner(config: EncoderConfig) -> range:
    return range(config.inner_layers)


@functools.lru_cache(maxsize=64)
def _graph(config: EncoderConfig, normed: bool) -> nnx.GraphDef:
    return nnx.graphdef(nnx.eval_shape(lambda: Layer(config, nnx.Rngs(0), normed)))


def _remat(function: Callable, policy: str) -> Callable:
    if policy == "none":
        return function
    saved = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if policy == "dots" else None
    return jax.checkpoint(function, policy=saved, prevent_cse=False, static_argnums=(4,))
