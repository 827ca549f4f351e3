"""The native format, for parts and models that no class of `transformers` can hold.

A folder brings its classes along (`remote_code/`), which `transformers` runs with `trust_remote_code=True`; bertjax
never runs code of a folder. Tensors are the parameters in torch's layout, one per layer:
`encoder.layers.3.attention.query.weight`. Configs are the fields of `EncoderConfig`, together with the heads.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import math
import re
import string
import types
import typing
from collections.abc import Collection
from typing import Any

from bertjax.config.extensions import ATTENTION
from bertjax.config.fields import settings_of
from bertjax.config.model import ComputeConfig, EncoderConfig
from bertjax.config.registry import PACKAGES, require_packages
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap, Tensors
from bertjax.hf.keymaps.family import IGNORED_KEYS, parse_labels, render_labels
from bertjax.io.tree_paths import flatten_tree
from bertjax.models.layer_stack import STACKS
from bertjax.models.model import HEADS, abstract_params

MODEL_TYPE = "bertjax"
PREFIX = "encoder."
"""Of all tensors of the encoder, except in files of the bare model that `transformers` saved."""
# Fields that change how a model is computed and stored, not what it computes.
_COMPUTING = frozenset(settings_of(ComputeConfig))
# First key of a parameter path -> the head that it belongs to.
HEAD_BY_MODULE = {
    "pooler": "pooler",
    "mlm_head": "mlm",
    "decoder_positions": "mlm",
    "pair_head": "pair",
    "rtd_head": "rtd",
    "span_head": "span_boundary",
    "sequence_head": "sequence_classification",
    "token_head": "token_classification",
    "answer_head": "question_answering",
    "choice_head": "multiple_choice",
    "contact_head": "contact",
}
_LETTERS = string.ascii_uppercase
_AUTO_HEADS = {
    "AutoModelForSequenceClassification": "sequence_classification",
    "AutoModelForTokenClassification": "token_classification",
    "AutoModelForQuestionAnswering": "question_answering",
    "AutoModelForMultipleChoice": "multiple_choice",
}
_PRETRAINING_HEADS = {"mlm", "pair", "rtd", "span_boundary"}
# First keys of a path, and the beginning of the tensor's name; other keys are joined by dots.
_RENAMES = (
    (r"^pooler/", "encoder/pooler/"),
    (r"^decoder/encoder/", "encoder/decoder/"),
    (r"^encoder/attention_norms/layers/\{(\w)\}/", r"encoder/layers/{\1+1}/attention/norm/"),
    (r"^mlm_head/table$", "mlm_head/decoder/weight"),
    (r"^mlm_head/bias$", "mlm_head/decoder/bias"),
    (r"/(kernel|scale|embedding)$", "/weight"),
)
_TIES = {"mlm_head.decoder.weight": "encoder.embeddings.word_embeddings.weight"}


def architecture_for(config: EncoderConfig, heads: tuple[str, ...]) -> str:
    """Returns the class that holds most of the heads: that of a task, of one objective, of several, of none."""
    pretraining = _PRETRAINING_HEADS & set(heads)
    auto = next((auto for auto, head in _AUTO_HEADS.items() if head in heads), "AutoModel")
    if auto == "AutoModel" and pretraining:
        auto = _language_model(config) if pretraining == {"mlm"} else "AutoModelForPreTraining"
    return _class_of(auto)


def _class_of(auto: str) -> str:
    return "BertjaxModel" if auto == "AutoModel" else auto.replace("AutoModel", "Bertjax")


def _language_model(config: EncoderConfig) -> str:
    return "AutoModelForCausalLM" if config.causal else "AutoModelForMaskedLM"


def code_files(last: str = "modeling") -> dict[str, bytes]:
    """Returns the contents of the modules that a folder brings along, by file name.

    Args:
        last: the module with the classes of the model, which imports the others.
    """
    folder = importlib.resources.files("bertjax.hf.remote_code")
    files = [f"{name}_bertjax.py" for name in ("configuration", "rotation", "layers", "heads", "encoder", last)]
    return {name: (folder / name).read_bytes() for name in files}


def render_config(config: EncoderConfig, heads: tuple[str, ...]) -> dict[str, Any]:
    """Returns the config.json of a model in this format."""
    fields = render_fields(config, heads)
    autos = ["AutoModel", "AutoModelForPreTraining", _language_model(config), *_AUTO_HEADS]
    return {
        "architectures": [architecture_for(config, heads)],
        "auto_map": {
            "AutoConfig": "configuration_bertjax.BertjaxConfig",
            **{auto: f"modeling_bertjax.{_class_of(auto)}" for auto in autos},
        },
        "model_type": MODEL_TYPE,
        "dtype": "float32",
        **{name: value for name, value in fields.items() if name not in ("family", "labels")},
        **render_labels(config.labels),
    }


def parse_config(values: dict[str, Any], where: str) -> tuple[EncoderConfig, tuple[str, ...]]:
    """Returns (config, heads) of a config.json in this format; raises `UserError` as `parse_fields` does."""
    foreign = {"family", "labels"} & values.keys()
    if foreign:
        raise UserError(f"{where}: unknown key {min(foreign)}; the folder was written by another version: export again")
    labels = parse_labels(values, where)
    config, heads = parse_fields(values, where, ignored=("auto_map", "id2label", "num_labels", *IGNORED_KEYS))
    return dataclasses.replace(config, family=MODEL_TYPE, labels=labels), heads


def render_fields(config: EncoderConfig, heads: tuple[str, ...]) -> dict[str, Any]:
    """Returns the heads and all fields that change what the model computes, as JSON values."""
    ours = {"attention_class", "attention_settings"} if config.attention_class is None else set()
    names = [field.name for field in dataclasses.fields(config) if field.name not in _COMPUTING | ours]
    values = {name: getattr(config, name) for name in names}
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    packages = {PACKAGES: [package]} if (package := ATTENTION.package(config.attention_class or "")) else {}
    return {"heads": list(heads), **listed, **packages}


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
    heads = values.get("heads", [])
    if not isinstance(heads, list) or not set(map(str, heads)) <= set(HEADS):
        raise UserError(f"{where}: heads must be a list of {', '.join(HEADS)}, not {heads!r}")
    require_packages(values.get(PACKAGES, []), where)
    kinds, fields = typing.get_type_hints(EncoderConfig), {}
    for key, value in values.items():
        if key in ("heads", PACKAGES) or (key in ignored and key not in kinds):
            continue
        if key not in kinds or key in _COMPUTING:
            raise UserError(f"{where}: unknown key {key}; the folder may have been written by a newer version")
        fields[key] = _check_kind(value, kinds[key], f"{where}: {key}")
    return EncoderConfig(**fields), tuple(head for head in HEADS if head in heads)


def _check_kind(value: Any, kind: Any, what: str) -> Any:
    """Returns the value if it has the annotated type; a list becomes a tuple of its items, a whole number a float."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    items = next((typing.get_args(option) for option in options if typing.get_origin(option) is tuple), ())
    if isinstance(value, list) and items:
        return tuple(_check_kind(each, items[0], f"every item of {what}") for each in value)
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
        param = tensor = "/".join(keys)
        for pattern, replacement in _RENAMES:
            tensor = re.sub(pattern, replacement, tensor)
        transform = "transpose" if keys[-1] == "kernel" else "same"
        entries.append(Entry(param, tensor.replace("/", "."), " ".join(map(str, axes)), transform))
    ties = {copy: original for copy, original in _TIES.items() if copy not in {entry.tensor for entry in entries}}
    return KeyMap(tuple(entries), {letter: size for (_, size), letter in letters.items()}, ties=ties)


def add_prefix(tensors: Tensors) -> Tensors:
    """Returns the tensors with the names of any class but the bare model, whose names lack `PREFIX`."""
    bare = not any(name.startswith(PREFIX) for name in tensors)
    return {f"{PREFIX}{name}": array for name, array in tensors.items()} if bare else tensors


def find_heads(config: EncoderConfig, declared: tuple[str, ...], tensors: Tensors) -> tuple[str, ...]:
    """Returns the heads that the tensors hold, and those that are declared and have no parameters.

    `transformers` may have saved another class than the one that was exported.

    Args:
        config: the model.
        declared: heads in config.json.
        tensors: tensors with `PREFIX`.
    """
    modules = {"pooler" if name.startswith("encoder.pooler.") else name.split(".")[0] for name in tensors}
    held = {HEAD_BY_MODULE[module] for module in modules if module in HEAD_BY_MODULE}
    with_parameters = {HEAD_BY_MODULE.get(path.split("/")[0]) for path in param_shapes(config, declared)}
    return tuple(head for head in HEADS if head in held or (head in declared and head not in with_parameters))
