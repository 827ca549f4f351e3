"""Our own format, for parts and models that no class of `transformers` can hold.

Tensors are named by our paths, one a layer: `encoder.layers.3.attention.query.kernel`; matrices are [in, out] as in
memory. Configs are the fields of `EncoderConfig`, with the heads beside them.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Collection
from typing import Any

import jax

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap, flatten
from bertjax.models.layer_stack import STACKS
from bertjax.models.model import HEADS, abstract_params

MODEL_TYPE = "bertjax"
ARCHITECTURE = "BertjaxModel"
# Of how a model is computed and held, not of what it computes.
_COMPUTING = (
    "padded_vocab_size",
    "compute_dtype",
    "result_dtype",
    "attention_implementation",
    "remat",
    "unroll",
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def render_config(config: EncoderConfig, heads: tuple[str, ...]) -> dict[str, Any]:
    """The config.json of a model in this format."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "dtype": "float32",
        **render_fields(config, heads),
    }


def parse_config(values: dict[str, Any], where: str) -> tuple[EncoderConfig, tuple[str, ...]]:
    """(config, heads) of a config.json in this format; raises `UserError`."""
    config, heads = parse_fields(values, where, also=("architectures", "model_type", "dtype"))
    return dataclasses.replace(config, family=MODEL_TYPE), heads


def render_fields(config: EncoderConfig, heads: tuple[str, ...]) -> dict[str, Any]:
    """Everything that a config says of the model, as JSON has it."""
    names = [field.name for field in dataclasses.fields(config) if field.name not in _COMPUTING]
    values = {name: getattr(config, name) for name in names}
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {"heads": list(heads), **listed}


def parse_fields(
    values: dict[str, Any], where: str, also: Collection[str] = ()
) -> tuple[EncoderConfig, tuple[str, ...]]:
    """The inverse of `render_fields`; absent fields take their defaults, keys of `also` are passed over."""
    heads = values.get("heads")
    if not isinstance(heads, list) or not set(map(str, heads)) <= set(HEADS):
        raise UserError(f"{where}: heads must be a list of {', '.join(HEADS)}, not {heads!r}")
    kinds, read = typing.get_type_hints(EncoderConfig), {}
    for key, value in values.items():
        if key == "heads" or key in also:
            continue
        if key not in kinds or key in _COMPUTING:
            raise UserError(f"{where}: unknown key {key}; the folder may be of a newer version")
        read[key] = _checked(value, kinds[key], f"{where}: {key}")
    return EncoderConfig(**read), tuple(head for head in HEADS if head in heads)


def _checked(value: Any, kind: Any, what: str) -> Any:
    """The value if JSON of this kind gives it; lists of strings become tuples."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = tuple(value)
    if type(value) is int and float in options and int not in options:
        value = float(value)
    allowed = [typing.get_origin(option) or option for option in options]
    if type(value) not in allowed or (isinstance(value, float) and not math.isfinite(value)):
        raise UserError(f"{what} must be {' or '.join(each.__name__ for each in allowed)}, not {value!r}")
    return value


def param_shapes(config: EncoderConfig, heads: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter by its path, at the true vocabulary size; allocates nothing.

    Raises `UserError` for sizes that are beyond all arrays.
    """
    true = dataclasses.replace(config, padded_vocab_size=None)
    try:
        shapes = abstract_params(true, heads)
    except (OverflowError, ValueError, TypeError, MemoryError) as error:
        raise UserError(f"no model has these sizes: {' '.join(str(error).split())[:200]}") from None
    return {path: leaf.shape for path, leaf in flatten(jax.tree.map(lambda leaf: leaf, shapes)).items()}


def make_keymap(shapes: dict[str, tuple[int, ...]]) -> KeyMap:
    """Names of parameters of these paths and shapes, all of them belonging to the encoder: none is optional."""
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


def require_enough_tensors(config: EncoderConfig, tensors: Collection[str], where: str) -> None:
    """Raises `UserError` where a config claims more layers than a file can hold: building them would not end."""
    layers = config.num_layers if config.num_groups is None else config.num_groups * config.inner_layers
    if layers > len(tensors):
        raise UserError(f"{where}: {layers} layers are claimed, {len(tensors)} tensors are there")
