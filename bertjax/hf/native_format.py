"""The native format, for parts and models that no class of `transformers` can hold.

Tensors have the names of the parameters, one per layer: `encoder.layers.3.attention.query.kernel`; matrices are [in,
out] as in memory. Configs are the fields of `EncoderConfig`, together with the heads.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Collection
from typing import Any

from bertjax.config.fields import settings_of
from bertjax.config.model import ComputeConfig, EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.io.tree_paths import flatten_tree
from bertjax.models.layer_stack import STACKS
from bertjax.models.model import HEADS, abstract_params

MODEL_TYPE = "bertjax"
ARCHITECTURE = "BertjaxModel"
# Fields that change how a model is computed and stored, not what it computes.
_COMPUTING = frozenset(settings_of(ComputeConfig))
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def render_config(config: EncoderConfig, heads: tuple[str, ...]) -> dict[str, Any]:
    """Returns the config.json of a model in this format."""
    fields = render_fields(dataclasses.replace(config, family=MODEL_TYPE), heads)
    return {"architectures": [ARCHITECTURE], "model_type": MODEL_TYPE, "dtype": "float32", **fields}


def parse_config(values: dict[str, Any], where: str) -> tuple[EncoderConfig, tuple[str, ...]]:
    """Returns (config, heads) of a config.json in this format; raises `UserError` as `parse_fields` does."""
    config, heads = parse_fields(values, where, ignored=("architectures", "model_type", "dtype"))
    return dataclasses.replace(config, family=MODEL_TYPE), heads


def render_fields(config: EncoderConfig, heads: tuple[str, ...]) -> dict[str, Any]:
    """Returns the heads and all fields that change what the model computes, as JSON values."""
    names = [field.name for field in dataclasses.fields(config) if field.name not in _COMPUTING]
    values = {name: getattr(config, name) for name in names}
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {"heads": list(heads), **listed}


def parse_fields(
    values: dict[str, Any], where: str, ignored: Collection[str] = ()
) -> tuple[EncoderConfig, tuple[str, ...]]:
    """Returns (config, heads) of what `render_fields` returned; absent fields get their defaults.

    Args:
        values: the JSON object.
        where: the file to name in errors.
        ignored: keys besides the fields.

    Raises:
        UserError: a key is unknown or has a value of another type.
    """
    heads = values.get("heads")
    if not isinstance(heads, list) or not set(map(str, heads)) <= set(HEADS):
        raise UserError(f"{where}: heads must be a list of {', '.join(HEADS)}, not {heads!r}")
    kinds, fields = typing.get_type_hints(EncoderConfig), {}
    for key, value in values.items():
        if key == "heads" or key in ignored:
            continue
        if key not in kinds or key in _COMPUTING:
            raise UserError(f"{where}: unknown key {key}; the folder may have been written by a newer version")
        fields[key] = _check_kind(value, kinds[key], f"{where}: {key}")
    return EncoderConfig(**fields), tuple(head for head in HEADS if head in heads)


def _check_kind(value: Any, kind: Any, what: str) -> Any:
    """Returns the value if it has the annotated type; a list of strings becomes a tuple, a whole number a float."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = tuple(value)
    if type(value) is int and float in options and int not in options:
        value = float(value) if abs(value) < 2**63 else math.inf  # Python cannot convert every number
    allowed = [typing.get_origin(option) or option for option in options]
    if type(value) not in allowed or (isinstance(value, float) and not math.isfinite(value)):
        raise UserError(f"{what} must be {' or '.join(each.__name__ for each in allowed)}, not {value!r}")
    return value


def param_shapes(config: EncoderConfig, heads: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter by its path, at the true vocabulary size; allocates nothing.

    Raises:
        UserError: the sizes are too large for any array.
    """
    true = dataclasses.replace(config, padded_vocab_size=None)
    try:
        shapes = abstract_params(true, heads)
    except (OverflowError, ValueError, TypeError, MemoryError) as error:
        raise UserError(f"no model has these sizes: {' '.join(str(error).split())[:200]}") from None
    return {path: leaf.shape for path, leaf in flatten_tree(shapes).items()}


def make_keymap(shapes: dict[str, tuple[int, ...]]) -> KeyMap:
    """Returns the names of parameters of these paths and shapes; all count as the encoder's, so none is optional."""
    letters: dict[tuple[int, int], str] = {}
    entries = []
    for path, shape in shapes.items():
        keys, axes = [], list(shape)
        for key in path.split("/"):
            keys.append(key)
            if key in STACKS:
                level = len([each for each in keys if each in STACKS])
                letter = letters.setdefault((level, axes[0]), _LETTERS[len(letters)])
                keys.append(f"{{{letter}}}")
                axes.pop(0)
        param = "/".join(keys)
        entries.append(Entry(param, param.replace("/", "."), " ".join(map(str, axes))))
    return KeyMap(tuple(entries), {letter: size for (_, size), letter in letters.items()})
