"""A larger model begins as a smaller one (`init_growth`): wider by copies of its units, deeper by copies of its layers.

Width: new unit i copies old unit (i - offset) mod n, the old ones in the middle (ModernBERT, arXiv:2412.13663, section
2.2.2, whose code tiles from the middle); heads are copied whole. Depth: `tile` repeats each layer before the next, as
ModernBERT and Gopher (arXiv:2112.11446); `stack` repeats the whole stack (Gong et al., Efficient Training of BERT by
Progressively Stacking, 2019); `identity` does, too, and new layers begin by adding nothing (LLaMA Pro,
arXiv:2401.02415). `stack` and `identity` divide what sums over copies by their number (Net2Net, arXiv:1511.05641):
widths that are whole multiples then compute what the source does.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.io.tree_paths import flatten_tree, unflatten_tree
from bertjax.models.model import abstract_params
from bertjax.types import Params

_WIDTHS = ("hidden_size", "num_heads", "num_key_value_heads", "intermediate_size", "embedding_size")
_PARTS = ("attention_groups", "feed_forward_groups", "bottleneck_size", "embedding_ngram")
GROWING = ("num_layers", "hidden_size", "num_key_value_heads", "num_heads", "intermediate_size", "embedding_size")
"""Fields of `EncoderConfig` that may be larger than those of the source."""
_OUTPUTS = ("attention/output/", "feed_forward/output/", "adapter/output/")
# What ends the blocks where a norm does.
_LAST_NORMED = {"sandwich": ("output_norm/",), "normformer": ("attention/output_norm/", *_OUTPUTS[1:])}


def needs_growth(old: EncoderConfig, new: EncoderConfig) -> bool:
    """Returns whether two models differ in a size that `grow` changes."""
    return any(getattr(old, name) != getattr(new, name) for name in GROWING)


def larger_sizes(old: EncoderConfig, new: EncoderConfig) -> list[str]:
    """Returns the names of the sizes that `grow` can enlarge from one model to the other."""
    return [name for name in GROWING if (getattr(old, name) or 0) < (getattr(new, name) or 0)]


def grow(params: Params, heads: tuple[str, ...], old: EncoderConfig, new: EncoderConfig, how: str) -> Params:
    """Returns the parameters of a larger model.

    Args:
        params: parameters of the source, as long as the new model in vocabulary and positions.
        heads: its heads.
        old: config of the source.
        new: config of the new model.
        how: `init_growth`: tile, stack or identity.

    Raises:
        UserError: the new model is not larger in every size, or cannot grow in this way.
    """
    _require_growth(old, new, how)
    axes = size_axes(old, heads)
    new_shapes = {path: leaf.shape for path, leaf in flatten_tree(abstract_params(_unpadded(new), heads)).items()}
    grown: dict[str, np.ndarray] = {}
    for path, leaf in flatten_tree(params).items():
        array, shape = np.asarray(leaf), new_shapes.get(path)
        if shape is None:  # a table that the new model lacks
            continue
        offset = float(old.norm_zero_centered and path.endswith("/scale"))  # norms multiply by offset + scale
        if axes[path] and axes[path][0] == "num_layers":
            layers = layer_sources(old.num_layers, new.num_layers, how) - (old.num_layers - len(array))
            layers = layers[new.num_layers - shape[0] :]
            array, axis_from = _take_layers(path, array, layers, how, len(leaf), offset), 1
        else:
            axis_from = 0
        for axis in range(axis_from, array.ndim):
            if axes[path][axis] in GROWING:
                sources = tiled_sources(
                    array.shape[axis], shape[axis], units_together(axes[path][axis], array.shape[axis], old)
                )
                is_divided = how != "tile" and _is_summed(path, axis - array.ndim, "mlm_head/table" in new_shapes)
                array = _widen(array, axis, sources, is_divided, offset)
        grown[path] = with_equal_addition(path, array, old, new)
    return unflatten_tree(grown)


def with_equal_addition(path: str, array: np.ndarray, old: EncoderConfig, new: EncoderConfig) -> np.ndarray:
    """Returns a parameter so that its block adds what it did, where `residual_depth` divides by another number.

    Args:
        path: its path.
        array: the parameter.
        old: config of its model.
        new: config of a model with more or fewer layers.
    """
    factor = new.residual_divisor / old.residual_divisor
    last = _LAST_NORMED.get(new.norm_placement, _OUTPUTS)
    if factor == 1.0 or not any(part in path for part in last):
        return array
    offset = float(old.norm_zero_centered and path.endswith("/scale"))
    return ((array + offset) * factor - offset).astype(array.dtype)


def layer_sources(old: int, new: int, how: str) -> np.ndarray:
    """Returns, for every new layer, the old layer that it copies, int64 [new].

    Args:
        old: layers of the source.
        new: layers of the new model.
        how: `init_growth`.
    """
    layers = np.arange(new)
    return np.minimum(np.round(layers * old / new).astype(int), old - 1) if how == "tile" else layers % old


def tiled_sources(old: int, new: int, unit: int = 1) -> np.ndarray:
    """Returns, for every new index of an axis, the old index that it copies, int64 [new]: centered, wrapping around.

    Args:
        old: size of the axis in the source.
        new: size in the new model.
        unit: indices that stay together, the numbers of a head.
    """
    offset = (new - old) // unit // 2 * unit
    return (np.arange(new) - offset) % old


def _take_layers(path: str, stack: np.ndarray, layers: np.ndarray, how: str, count: int, offset: float) -> np.ndarray:
    """Copies layers; a norm that the copied first layer lacks is one that does nothing."""
    taken = stack[np.maximum(layers, 0)]
    taken[layers < 0] = float(path.endswith("/scale")) - offset
    if how == "identity" and any(part in path for part in _OUTPUTS):
        taken[count:] = 0.0
    return taken


def _is_summed(path: str, axis: int, untied: bool) -> bool:
    """Returns whether a product sums over an axis, counted from the last; a tied word table is also read by rows."""
    if untied and path == "mlm_head/table":
        return axis == -1
    return (path.endswith("/kernel") and axis == -2) or (not untied and path.startswith("mlm_head/norm/"))


def _widen(array: np.ndarray, axis: int, sources: np.ndarray, is_divided: bool, offset: float) -> np.ndarray:
    taken = np.take(array, sources, axis)
    if not is_divided:
        return taken
    copies = np.bincount(sources, minlength=array.shape[axis])[sources].astype(array.dtype)
    return (taken + offset) / copies.reshape([-1 if each == axis else 1 for each in range(array.ndim)]) - offset


def size_axes(config: EncoderConfig, heads: tuple[str, ...]) -> dict[str, list[str]]:
    """Returns, for every axis of every parameter, the field of `GROWING` that it grows with, "" for none.

    Each field is doubled on its own, and the shapes are compared.
    """
    fixed = dataclasses.replace(_unpadded(config), head_size=config.head_dim)
    shapes = {path: leaf.shape for path, leaf in flatten_tree(abstract_params(fixed, heads)).items()}
    axes = {path: [""] * len(shape) for path, shape in shapes.items()}
    for field in GROWING:
        if (size := getattr(config, field)) is None:
            continue
        changed = {field: 2 * size} | ({"num_heads": 2 * config.num_heads} if field == "num_key_value_heads" else {})
        doubled = flatten_tree(abstract_params(dataclasses.replace(fixed, **changed), heads))
        for path, shape in shapes.items():
            axes[path] = [
                field if before != after else name
                for name, before, after in zip(axes[path], shape, doubled[path].shape, strict=True)
            ]
    return axes


def units_together(field: str, size: int, config: EncoderConfig) -> int:
    """Returns how many numbers of an axis stay together: a head, or the query heads of a head of keys and values."""
    if field not in ("num_heads", "num_key_value_heads"):
        return 1
    return size // (config.num_key_value_heads or config.num_heads)


def _unpadded(config: EncoderConfig) -> EncoderConfig:
    return dataclasses.replace(config, padded_vocab_size=None)


def _require_growth(old: EncoderConfig, new: EncoderConfig, how: str) -> None:
    smaller = [name for name in GROWING if (getattr(new, name) or 0) < (getattr(old, name) or 0)]
    if smaller:
        raise UserError(
            f"init_growth={how} grows models: "
            + "; ".join(f"{name} is {getattr(old, name)} there, {getattr(new, name)} here" for name in smaller)
        )
    computed = new.attention_position == "relative" or new.position_embedding in ("sinusoidal", "fairseq")
    if computed and old.hidden_size != new.hidden_size:
        raise UserError(f"init_growth={how}: positions of another width are computed, not copied; keep hidden_size")
    parts = [key for key in _PARTS if (getattr(new, key) or 1) > 1]
    parts += ["output_embedding_size"] if new.tie_word_embeddings and new.output_embedding_size is not None else []
    if parts and any(getattr(old, name) != getattr(new, name) for name in _WIDTHS):
        raise UserError(
            f"init_growth={how}: with {parts[0]} only num_layers can grow: copied units would be in other parts"
        )
    if new.depth_weighted_average and old.num_layers != new.num_layers:
        raise UserError(f"init_growth={how}: with depth_weighted_average every layer has weights of all before it")
    if (old.embedding_size is None) != (new.embedding_size is None):
        raise UserError(
            f"init_growth={how}: embedding_size is {old.embedding_size} there, {new.embedding_size} here; both models "
            "need a width of their embeddings, or neither"
        )
    if old.head_dim != new.head_dim:
        raise UserError(
            f"init_growth={how} copies heads whole: heads of {old.head_dim} there, of {new.head_dim} here; set "
            f"model.num_heads or model.head_size so that they are of {old.head_dim}"
        )
    if old.num_heads * (new.num_key_value_heads or new.num_heads) != new.num_heads * (
        old.num_key_value_heads or old.num_heads
    ):
        raise UserError(f"init_growth={how} keeps the query heads of every head of keys: set num_key_value_heads")
    if how == "identity" and (new.norm_placement not in ("pre", "parallel") or new.num_groups is not None):
        raise UserError(
            "init_growth=identity needs model.norm_placement=pre or parallel, and no num_groups: elsewhere a layer "
            "that adds nothing still changes its input; use tile or stack"
        )
