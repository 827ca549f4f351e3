"""A smaller model is a part of a larger one: some of its layers, heads and inner units (the reverse of `growth`).

What stays comes from the text: layers that change their input most (ShortGPT's block influence, arXiv:2403.03853),
heads and units whose removal moves the last hidden states most. The latter is a Taylor expansion (arXiv:1905.10650,
arXiv:1906.10771): with L = <hidden states, r> for a random r, the expectation of the square of the sum of w dL/dw over
the weights of a unit is the squared distance that the states move, to first order. It needs no label and no head, and
is the same for every model.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, comma_list
from bertjax.experiment.growth import size_axes, units_together, with_equal_addition
from bertjax.hf.forward import ModelOutput, run_model
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.sentence_transformers import drop_heads
from bertjax.io.tree_paths import flatten_tree, unflatten_tree
from bertjax.models.model import bind
from bertjax.objectives.base import encoder_inputs
from bertjax.training.transforms import LAYER_MATRIX
from bertjax.types import Batch, Params

UNITS = {"intermediate_size": "feed_forward/output/kernel", "num_heads": "attention/output/kernel"}
"""Fields whose units can be removed, and the matrix of a layer that reads them."""
_EPSILON = 1e-12


def layer_influence(model: PretrainedModel, batches: Iterable[Batch]) -> Float[np.ndarray, " L"]:
    """Returns by how much every layer turns its input: the mean of 1 - cosine over the tokens of a text.

    Args:
        model: the model.
        batches: batches of text, one after the other.
    """
    total, count = np.zeros(model.config.num_layers), 0
    for batch in batches:
        states = forward(model, batch, output_hidden_states=True).hidden_states
        assert states is not None
        is_text = np.asarray(batch["segment_ids"]) > 0
        total += (1.0 - np.asarray(cosines(states[:-1], states[1:]), np.float64))[:, is_text].sum(axis=1)
        count += int(is_text.sum())
    return total / max(count, 1)


def forward(model: PretrainedModel, batch: Batch, output_hidden_states: bool = False) -> ModelOutput:
    """Runs the encoder of a model over a batch of text; compiled once per shape."""
    encoder = drop_heads(model)
    inputs = {name: jnp.asarray(array) for name, array in encoder_inputs(batch).items()}
    return run_model(encoder.config, encoder.heads, encoder.params, inputs, output_hidden_states=output_hidden_states)


@jax.jit
def cosines(one: Float[Array, "*b D"], other: Float[Array, "*b D"]) -> Float[Array, "*b"]:
    """Returns the cosine of every pair of states."""
    one, other = one.astype(jnp.float32), other.astype(jnp.float32)
    return (one * other).sum(-1) / jnp.sqrt(((one**2).sum(-1) + _EPSILON) * ((other**2).sum(-1) + _EPSILON))


def choose_layers(config: EncoderConfig, influence: Float[np.ndarray, " L"], count: int) -> tuple[int, ...]:
    """Returns the layers of most influence, in order, that a model of `count` layers can hold.

    Args:
        config: the model, in which layers may differ: local and global ones, groups that share parameters, a first one
            without a norm.
        influence: `layer_influence` of every layer.
        count: layers to keep.

    Raises:
        UserError: no such choice fits the pattern of the layers.
    """
    smaller, requested = _kinds(dataclasses.replace(config, num_layers=count)), _kinds(config)
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {(0, -1): (0.0, ())}
    for position in range(count):
        for layer in range(position, config.num_layers):
            if requested[layer] != smaller[position]:
                continue
            before = [best[key] for key in best if key[0] == position and key[1] < layer]
            if before:
                score, layers = max(before)
                best[position + 1, layer] = (score + float(influence[layer]), (*layers, layer))
    ends = [value for (position, _), value in best.items() if position == count]
    if not ends:
        raise UserError(f"no {count} layers of {config.num_layers} have the kinds of a model of {count} layers")
    return max(ends)[1]


def require_layers(config: EncoderConfig, layers: Sequence[int]) -> None:
    """Raises `UserError` if a model cannot consist of these of its layers, in this order."""
    outside = [layer for layer in layers if layer not in range(config.num_layers)]
    if outside or list(layers) != sorted({*layers}) or not layers:
        raise UserError(
            f"layers {comma_list(map(str, layers))} are not some of the model's, 0 to {config.num_layers - 1}, each "
            "once and in order"
        )
    ours = _kinds(config)
    theirs = _kinds(dataclasses.replace(config, num_layers=len(layers)))
    for position, layer in enumerate(layers):
        if ours[layer] != theirs[position]:
            raise UserError(
                f"layer {layer} cannot be number {position} of {len(layers)}: it is {ours[layer]} and would have to be "
                f"{theirs[position]}; give a number of layers instead, and they are chosen"
            )


def _kinds(config: EncoderConfig) -> list[str]:
    """Returns what distinguishes every layer from others of the model besides its weights."""
    has_special_first = not config.first_attention_norm or config.conv_kernel_size > 0
    kinds = []
    for layer in range(config.num_layers):
        kind = "local" if config.is_local(layer) else "global"
        kind += "" if config.num_groups is None else f" of group {config.group_of(layer)}"
        kinds.append(f"{kind}, the first" if has_special_first and layer == 0 else kind)
    return kinds


def importance(model: PretrainedModel, batches: Iterable[Batch], seed: int) -> dict[str, np.ndarray]:
    """Returns the importance of all units by their field: [L, units], or [G, I, units] of shared layers.

    Args:
        model: the model.
        batches: batches of text; few sequences in each, many batches, make a better estimate of the same text.
        seed: seed of the random directions.
    """
    config, total = model.config, dict[str, np.ndarray]()
    key = jax.random.key(seed)
    for number, batch in enumerate(batches):
        step_key = jax.random.fold_in(key, number)
        products = _weight_products(model.params, encoder_inputs(batch), step_key, config, model.heads)
        for field, name in UNITS.items():
            (path,) = (path for path in products if path.endswith(name))
            product = np.asarray(products[path], np.float64)
            unit = units_together("num_heads", product.shape[-1], config) if field == "num_heads" else 1
            sums = product.reshape(*product.shape[:-1], -1, unit).sum(axis=-1)
            total[field] = total.get(field, 0.0) + sums**2
    return total


@functools.partial(jax.jit, static_argnums=(3, 4))
def _weight_products(
    params: Params, inputs: Batch, key: Array, config: EncoderConfig, heads: tuple[str, ...]
) -> dict[str, Array]:
    """Returns w dL/dw of the matrices that read units, summed over their output."""
    shape = (*inputs["input_ids"].shape, config.hidden_size)
    direction = jax.random.normal(key, shape) * (inputs["segment_ids"] > 0)[..., None]

    def projection(params: Params) -> Array:
        states = bind(config, heads, params).encode(**inputs).last_hidden_state
        return (states.astype(jnp.float32) * direction).sum()

    gradients = flatten_tree(jax.grad(projection)(params))
    leaves = flatten_tree(params)
    paths = [path for path in leaves if path.endswith(tuple(UNITS.values()))]
    return {path: (leaves[path] * gradients[path]).sum(axis=-1) for path in paths}


def shrink(
    params: Params,
    heads: tuple[str, ...],
    config: EncoderConfig,
    *,
    layers: Sequence[int] | None = None,
    remaining: Mapping[str, np.ndarray] | None = None,
) -> tuple[Params, EncoderConfig]:
    """Returns a part of a model.

    Args:
        params: its parameters.
        heads: its heads.
        config: the model.
        layers: the layers to keep, as `require_layers` allows them; None: all.
        remaining: by field of `UNITS`, the units to keep of every layer, [L, n] or [G, I, n]; of grouped-query
            attention a unit is a head of keys and values with its query heads.

    Raises:
        UserError: heads share a table over the layers, so that no layer can lose some of its own.
    """
    layers, remaining = range(config.num_layers) if layers is None else layers, remaining or {}
    smaller = smaller_config(config, len(layers), {name: index.shape[-1] for name, index in remaining.items()})
    axes, result = size_axes(config, heads), dict[str, np.ndarray]()
    for path, leaf in flatten_tree(params).items():
        array = np.asarray(leaf)
        for axis, field in enumerate(axes[path]):
            name = "num_heads" if field == "num_key_value_heads" else field
            if name not in remaining:
                continue
            if "layers" not in path.split("/"):
                raise UserError(f"heads cannot be removed layer by layer: all layers share {path}")
            unit = units_together(field, array.shape[axis], config) if name == "num_heads" else 1
            array = _take(array, axis, remaining[name], unit)
        if axes[path] and axes[path][0] == "num_layers":
            missing = config.num_layers - len(array)  # the first layers lack this parameter
            array = array[[layer - missing for layer in layers if layer >= missing]]
        result[path] = with_equal_addition(path, array, config, smaller)
    return unflatten_tree(result), smaller


def smaller_config(config: EncoderConfig, layers: int, counts: Mapping[str, int]) -> EncoderConfig:
    """Returns the config of a part of a model.

    Args:
        config: the model.
        layers: its layers that stay.
        counts: by field of `UNITS`, the units of every layer that stay.
    """
    parts = {
        "attention_groups": "num_heads",
        "feed_forward_groups": "intermediate_size",
        "num_feedforward_networks": "intermediate_size",
    }
    for key, field in parts.items():
        if field in counts and getattr(config, key) > 1:
            raise UserError(f"{field} cannot be pruned: with {key}={getattr(config, key)} each has its own share")
    if config.depth_weighted_average and layers != config.num_layers:
        raise UserError("layers cannot be removed: with depth_weighted_average each has weights of all before it")
    changes: dict[str, Any] = dict(counts, num_layers=layers)
    if "num_heads" in counts:
        changes["num_heads"] = counts["num_heads"] * (config.num_heads // config.kv_heads)
        changes["head_size"] = config.head_dim
        changes["num_key_value_heads"] = None if config.num_key_value_heads is None else counts["num_heads"]
    return dataclasses.replace(config, **changes)


def _take(array: np.ndarray, axis: int, units: np.ndarray, unit: int) -> np.ndarray:
    """Returns the units [*stack, n] of an axis of an array [*stack, ...], each of `unit` numbers."""
    index = (units[..., None] * unit + np.arange(unit)).reshape(*units.shape[:-1], -1)
    stack, after = index.shape[:-1], array.ndim - axis - 1
    return np.take_along_axis(array, index.reshape(*stack, *(1,) * (axis - len(stack)), -1, *(1,) * after), axis)


def choose_units(scores: np.ndarray, count: int) -> np.ndarray:
    """Returns the `count` units of the highest scores of every layer, in their order, int64 [*stack, count]."""
    return np.sort(np.argsort(-scores, axis=-1, kind="stable")[..., :count], axis=-1)


def sparsify(params: Params, pattern: str) -> tuple[Params, float]:
    """Sets the smallest weights of the layers' matrices to zero.

    Args:
        params: parameters.
        pattern: "N:M": N of M neighbors along the input stay (NVIDIA's 2:4, arXiv:2104.08378); or the share of zeros of
            every matrix, such as "0.5".

    Returns:
        The parameters, and the share of zeros in these matrices.

    Raises:
        UserError: the pattern cannot be read, or does not divide a matrix.
    """
    changed, zeros, total = dict[str, np.ndarray](), 0, 0
    for path, leaf in flatten_tree(params).items():
        array = np.asarray(leaf)
        if LAYER_MATRIX.fullmatch(path):
            array = np.where(_largest(path, np.abs(array), pattern), array, np.zeros((), array.dtype))
            zeros, total = zeros + int((array == 0).sum()), total + array.size
        changed[path] = array
    return unflatten_tree(changed), zeros / max(total, 1)


def parse_sparsity(pattern: str) -> tuple[int, int] | float:
    """Reads N:M or a share; raises `UserError`."""
    stays, colon, group = pattern.partition(":")
    try:
        if colon:
            pair = int(stays), int(group)
            if 0 < pair[0] < pair[1]:
                return pair
        elif 0.0 < float(pattern) < 1.0:
            return float(pattern)
    except ValueError:
        pass
    raise UserError(f"sparsity {pattern!r} is neither N:M with N below M, such as 2:4, nor a share between 0 and 1")


def _largest(path: str, sizes: np.ndarray, pattern: str) -> np.ndarray:
    """Returns which weights stay, bool; of equal ones the first."""
    parsed = parse_sparsity(pattern)
    if isinstance(parsed, tuple):
        count, group = parsed
        if sizes.shape[-2] % group:
            raise UserError(f"sparsity {pattern}: the {sizes.shape[-2]} inputs of {path} are not a multiple of {group}")
        split = np.moveaxis(sizes, -2, -1).reshape(*sizes.shape[:-2], sizes.shape[-1], -1, group)
    else:
        split = sizes.reshape(*sizes.shape[:-2], -1)
        count = split.shape[-1] - round(parsed * split.shape[-1])
    order = np.argsort(-split, axis=-1, kind="stable")
    stays = np.zeros(split.shape, bool)
    np.put_along_axis(stays, order[..., :count], True, axis=-1)
    if isinstance(parsed, tuple):
        return np.moveaxis(stays.reshape(*sizes.shape[:-2], sizes.shape[-1], -1), -1, -2)
    return stays.reshape(sizes.shape)
