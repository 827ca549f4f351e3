"""Layers with stacked parameters, run as few scans: whole periods of a pattern, shared groups, and what is left over.

Parameters of a stack carry a leading axis for each key of their path that is in `STACKS`: `layers` [L, ...], or
`groups/layers` [G, I, ...] for G groups of I shared layers. Parameters that only some layers have form a stack of their
own (`attention_norms/layers`, [L - 1, ...] where the first layer has none).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from bertjax.config.model import EncoderConfig
from bertjax.models.layer import Layer
from bertjax.models.linear import Key, KeyStream, Norm, abstract_module, make_norm
from bertjax.models.mesh import shard_batch
from bertjax.types import Params

STACKS = ("groups", "layers")
_ATTENTION_KERNELS = ("dot_product_attention_fwd_wrapper", "ffi_call", "pallas_call")  # cuDNN's; splash, ours
Apply = Callable[[Layer, Any, bool, Key | None, Any], Any]
"""`apply(layer, x, local, key, own)` returns the next hidden states; `own` is the layer's element of `per_layer`."""


def split_stacks(params: Params) -> Params:
    """Returns parameters with a tuple of layers in place of each stack, without a copy, on a CPU; `bind` takes both.

    XLA:CPU copies whatever a loop reads before it begins: with one text per call that takes longer than the layers.
    Stacks of shared groups remain, and accelerators keep all of them.
    """

    def split(stack: Params) -> Any:
        host = jax.tree.map(np.asarray, stack)
        count = len(jax.tree.leaves(host)[0])
        return tuple(jax.device_put(_take(host, index), may_alias=True) for index in range(count))

    leaves = jax.tree.leaves(params)
    if not all(isinstance(leaf, jax.Array) and leaf.is_fully_addressable for leaf in leaves):
        return params
    if {device.platform for leaf in leaves for device in leaf.devices()} != {"cpu"}:
        return params
    return _map_stacks(params, split)


def join_stacks(params: Params) -> tuple[Params, bool]:
    """Undoes `split_stacks` in a traced function, where XLA drops the stacks again; also returns if any was split."""
    were_split = []

    def join(layers: Any) -> Any:
        if isinstance(layers, tuple):
            were_split.append(True)
            return jax.tree.map(lambda *each: jnp.stack(each), *layers)
        return layers

    return _map_stacks(params, join), bool(were_split)


def _map_stacks(params: Params, function: Callable[[Any], Any]) -> Params:
    """Returns the parameters of a model or encoder with `function` of every stack of layers."""
    if "encoder" in params:
        networks = [name for name in ("encoder", "decoder") if name in params]
        return params | {name: _map_stacks(params[name], function) for name in networks}
    if "attention_norms" in params:
        norms = {"layers": function(params["attention_norms"]["layers"])}
        params = {**params, "attention_norms": norms}
    return {**params, "layers": function(params["layers"])} if "layers" in params else params


class Stacked(nnx.Module):
    """Holds a stack under the name `layers`."""

    def __init__(self, layers: nnx.Module):
        self.layers = layers


def init_layers(config: EncoderConfig, rngs: nnx.Rngs) -> Layer:
    """Returns one `Layer` whose parameters carry leading axes [L], or [G, I]; each layer is drawn from its own key."""
    norm = config.first_attention_norm
    shape = (config.num_layers,) if config.num_groups is None else (config.num_groups, config.inner_layers)
    keys = jax.random.split(rngs.params(), shape)
    return _init_stack(lambda rngs: Layer(config, rngs, norm), keys)


def init_attention_norms(config: EncoderConfig, rngs: nnx.Rngs) -> Norm:
    """Returns the attention norms of all layers but the first, [L - 1, D]."""
    keys = jax.random.split(rngs.params(), config.num_layers - 1)
    return _init_stack(lambda rngs: make_norm(config.hidden_size, config, rngs), keys)


def _init_stack(make: Callable[[nnx.Rngs], Any], keys: Array) -> Any:
    graphdef = None

    def draw(key: Array) -> Params:
        nonlocal graphdef
        graphdef, params = nnx.split(make(KeyStream(key)))
        return nnx.to_pure_dict(params)

    for _ in range(keys.ndim):
        draw = jax.vmap(draw)
    params = draw(keys)
    assert graphdef is not None
    return nnx.merge(graphdef, params)


@dataclasses.dataclass(frozen=True)
class ScanRun:
    """Consecutive layers that run as one scan: `repeats` times the `pattern` (True = local), from layer `start` on.

    `group` is the index of the shared parameters; None = layers with their own.
    """

    start: int
    repeats: int
    pattern: tuple[bool, ...]
    group: int | None = None

    @property
    def stop(self) -> int:
        """The layer after the last one."""
        return self.start + self.repeats * len(self.pattern)


def scan_runs(config: EncoderConfig, start: int = 0, stop: int | None = None) -> list[ScanRun]:
    """Splits layers `start` to `stop` into scans over whole periods of the local/global pattern, and the remainders.

    The layers are also split where neighbors differ in more than the pattern: after layer 0 where that has no norm or
    is followed by a convolution, and between groups of shared parameters.

    Args:
        config: pattern and sharing.
        start: first layer.
        stop: layer after the last; None = all.
    """
    stop = config.num_layers if stop is None else stop
    cuts = {start, stop}
    if not config.first_attention_norm or config.conv_kernel_size:
        cuts.add(1)
    if config.num_groups is not None:
        cuts |= {i for i in range(1, config.num_layers) if config.group_of(i) != config.group_of(i - 1)}
    period = (config.global_attn_every_n_layers or 1) if config.local_attention else 1
    runs = []
    for low, high in itertools.pairwise(sorted(cut for cut in cuts if start <= cut <= stop)):
        group = None if config.num_groups is None else config.group_of(low)
        whole = low + (high - low) // period * period
        for first, count, width in ((low, (whole - low) // period, period), (whole, 1, high - whole)):
            if count and width:
                pattern = tuple(config.is_local(layer) for layer in range(first, first + width))
                runs.append(ScanRun(first, count, pattern, group))
    return runs


def run_layers(
    config: EncoderConfig,
    weights: dict[str, Params],
    x: Any,
    apply: Apply,
    key: Key | None,
    *,
    start: int = 0,
    stop: int | None = None,
    per_layer: Any = None,
    collect: Callable[[Any], Any] | None = None,
) -> tuple[Any, Any]:
    """Runs layers `start` to `stop`.

    Args:
        config: pattern, sharing, remat and unrolling.
        weights: stacks by name: `layers` or `groups`, and `attention_norms` where the first layer has none.
        x: hidden states [B, S, D], or a tree that begins with them.
        apply: applies one layer.
        key: key of the dropout; None = no dropout.
        start: first layer.
        stop: layer after the last; None = all.
        per_layer: a further input of each layer, a tree of arrays [L, ...].
        collect: what to keep of the hidden states after each layer.

    Returns:
        The last hidden states, and `collect(x)` after each layer [stop - start, ...] (None without `collect`).
    """
    keys = None if key is None else jax.random.split(key, (config.num_layers, config.inner_layers))
    runs = scan_runs(config, start, stop)
    bounds = [start, *(run.stop for run in runs)]
    shared = config.num_groups is not None
    params = [None] * len(runs) if shared else _layer_weights(weights, bounds)
    collected: list[Any] = []
    for run, *inputs in zip(runs, params, _cut(keys, bounds), _cut(per_layer, bounds), strict=True):
        group = None if run.group is None else _take(weights["groups"], run.group)
        x, states = _scan(config, run, group, inputs, x, apply, collect)
        collected.append(states)
    return x, None if collect is None else jax.tree.map(lambda *parts: jnp.concatenate(parts), *collected)


def _scan(
    config: EncoderConfig,
    run: ScanRun,
    group: Params | None,
    inputs: Any,
    x: Any,
    apply: Apply,
    collect: Callable[[Any], Any] | None,
) -> tuple[Any, Any]:
    graphdef = _layer_graphdef(config, config.first_attention_norm or run.start > 0)
    shared = None if group is None else _split(group, config.inner_layers)

    def apply_layer(x: Any, params: Params | None, keys: Key | None, layer_input: Any, local: bool) -> Any:
        for inner in range(config.inner_layers):
            layer = nnx.merge(graphdef, params if shared is None else shared[inner])
            x = apply(layer, x, local, None if keys is None else keys[inner], layer_input)
        return jax.tree.map(shard_batch, x)

    def run_pattern(x: Any, inputs: Sequence[Any], pattern: tuple[bool, ...]) -> tuple[Any, Any]:
        states: list[Any] = []
        for each, local in zip(inputs, pattern, strict=True):
            x = step(x, *each, local)
            states.append(None if collect is None else collect(x))
        return x, None if collect is None else jax.tree.map(lambda *each: jnp.stack(each), *states)

    def period(x: Any, inputs: Any) -> tuple[Any, Any]:
        return run_pattern(x, _split(inputs, len(run.pattern)), run.pattern)

    unroll = config.unroll or 1
    is_unrolled = unroll >= run.repeats  # then the layers are traced once, by jit
    step: Any = _remat(jax.jit(apply_layer, static_argnums=4) if is_unrolled else apply_layer, config.remat)
    if is_unrolled:
        return run_pattern(x, _split(inputs, run.stop - run.start), run.pattern * run.repeats)
    folded = jax.tree.map(lambda leaf: leaf.reshape(run.repeats, len(run.pattern), *leaf.shape[1:]), inputs)
    x, states = jax.lax.scan(period, x, folded, length=run.repeats, unroll=unroll)
    return x, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), states)


def get_layer(config: EncoderConfig, weights: dict[str, Params], index: int) -> Layer:
    """Returns layer `index`; of groups, the first layer of its group. Args: as in `run_layers`."""
    if config.num_groups is not None:
        return nnx.merge(_layer_graphdef(config, True), _take(weights["groups"], config.group_of(index), 0))
    (params,) = _layer_weights(weights, [index, index + 1])
    return nnx.merge(_layer_graphdef(config, config.first_attention_norm or index > 0), _take(params, 0))


def _layer_weights(weights: dict[str, Params], bounds: Sequence[int]) -> list[Params]:
    """Returns the parameters of the layers between neighboring bounds, including the separately stacked norms."""
    parts = _cut(weights["layers"], bounds)
    if "attention_norms" not in weights:
        return parts
    norms = _cut(weights["attention_norms"], [max(bound - 1, 0) for bound in bounds])  # layer 0 has none
    return [
        part if norm is None else {**part, "attention": {**part["attention"], "norm": norm}}
        for part, norm in zip(parts, norms, strict=True)
    ]


def _cut(tree: Any, bounds: Sequence[int]) -> list[Any]:
    """Returns the tree's parts between neighboring bounds along the first axis of all leaves; None for empty ones.

    The gradient of all parts is their concatenation, where that of slices would be a sum of padded arrays.
    """
    leaves: list[Array] = jax.tree.leaves(tree)
    structure: Any = jax.tree.structure(tree)

    def cut(leaf: Array) -> list[Array | None]:
        sizes = [high - low for low, high in itertools.pairwise((0, *bounds, len(leaf)))]
        parts = iter(jax.lax.split(leaf, [size for size in sizes if size]))
        return [next(parts) if size else None for size in sizes][1:-1]

    spans = [*itertools.pairwise(bounds)]
    parts = zip(*map(cut, leaves), strict=True) if leaves else [()] * len(spans)
    return [structure.unflatten(part) if low < high else None for (low, high), part in zip(spans, parts, strict=True)]


def _split(tree: Any, length: int) -> list[Any]:
    """Returns the elements along the first axis of all leaves."""
    return [_take(part, 0) for part in _cut(tree, range(length + 1))]


def _take(tree: Any, *index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


@functools.lru_cache(maxsize=256)
def _layer_graphdef(config: EncoderConfig, attention_norm: bool) -> nnx.GraphDef:
    return abstract_module(lambda rngs: Layer(config, rngs, attention_norm))[0]


def _remat(function: Callable, policy: str) -> Callable:
    if policy == "none":
        return function
    saved = _is_matmul if policy == "dots" else None
    return jax.checkpoint(function, policy=saved, prevent_cse=False, static_argnums=(4,))


def _is_matmul(primitive: Any, *inputs: Any, **params: Any) -> bool:
    """Returns True for matmuls with weights and for fused attention, whose results the backward pass keeps."""
    if primitive.name in _ATTENTION_KERNELS:
        return params.get("name") != "add_and_normalize_forward"  # as cheap as reading its results
    return bool(jax.checkpoint_policies.dots_with_no_batch_dims_saveable(primitive, *inputs, **params))
