"""What the hub must know of a family, and the rows and readings that families share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap

DEFAULT_LABELS = ("LABEL_0", "LABEL_1")
# Three spellings of the tanh formula, two of the erf one (transformers: activations.py).
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


@dataclasses.dataclass(frozen=True)
class Family:
    """Names, classes and config.json of models of one kind; `EncoderConfig.family` names it.

    architectures  class -> the heads that it requires, richest first, the bare model last; an export gets the first
                   class whose heads are all there
    prefix         what the names of all but the bare model's files begin with
    side           regexes of our paths (`decoder_positions/.*`) that no class of the family has a place for, though the
                   keymap names other parts of the same head; heads that it does not name need no mention
    config_from_huggingface(values, where), config_to_huggingface(config, architecture)
                   without what `read` and `render` do for all: labels, family, model_type, architectures
    """

    name: str
    model_type: str
    make_keymap: Callable[[EncoderConfig], KeyMap]
    architectures: Mapping[str, tuple[str, ...]]
    from_hf_config: Callable[[dict[str, Any], str], EncoderConfig]
    to_hf_config: Callable[[EncoderConfig, str], dict[str, Any]]
    prefix: str = ""
    sidecar_paths: tuple[str, ...] = ()

    def architecture_for(self, heads: tuple[str, ...]) -> str:
        """The class whose heads these are; others (a pooler beside a masked LM) ride along as Google's files do."""
        return next(name for name, required in self.architectures.items() if set(required) <= set(heads))

    def rename_for(self, architecture: str, name: str) -> str:
        """The name of a tensor in a file of this class: the bare model's own files have no prefix."""
        return name.removeprefix(self.prefix) if not self.architectures[architecture] else name

    def parse_config(self, values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
        """Our config from a config.json; raises `UserError` for what would change the maths and is not supported."""
        labels = parse_labels(values, where)
        config = dataclasses.replace(self.from_hf_config(values, where), family=self.name, labels=labels)
        keymap = self.make_keymap(config)
        empty = [entry.tensor for entry in keymap.entries if 0 in entry.shape(keymap.sizes)]
        if empty:
            raise UserError(f"{where}: {empty[0]} would be empty; models of this class cannot do without it")
        return config

    def render_config(self, config: EncoderConfig, architecture: str) -> dict[str, Any]:
        """The config.json of a model of class `architecture`; the vocabulary at its true size.

        Labels only where they are what is scored: `transformers` sizes other heads by them, too, which have two scores.
        """
        values = {"architectures": [architecture], "model_type": self.model_type, "dtype": "float32"}
        scored = {"sequence_classification", "token_classification"} & set(self.architectures[architecture])
        labels = _rendered_labels(config.labels) if scored else {}
        return {**values, **labels, **self.to_hf_config(config, architecture)}


# -- rows --------------------------------------------------------------------------------------------------------------

_OF_BIAS = {"transpose": "same", "concat_transpose": "concat"}


def linear(
    param: str | tuple[str, ...],
    tensor: str,
    axes: str,
    bias: bool = True,
    head: str = "",
    transform: str = "transpose",
) -> tuple[Entry, ...]:
    """`weight` and `bias` of a linear layer; several of ours where theirs is fused."""
    kernel = Entry(_below(param, "kernel"), f"{tensor}.weight", axes, transform, head)
    if not bias:
        return (kernel,)
    of_bias = _OF_BIAS.get(transform, transform)
    return kernel, Entry(_below(param, "bias"), f"{tensor}.bias", axes.split()[1], of_bias, head)


def norm(param: str, tensor: str, config: EncoderConfig, axis: str = "D", head: str = "") -> tuple[Entry, ...]:
    """`weight` of a layer norm, and `bias` where the config's norms have one."""
    scale = Entry(f"{param}/scale", f"{tensor}.weight", axis, "same", head)
    return (scale, Entry(f"{param}/bias", f"{tensor}.bias", axis, "same", head)) if config.norm_bias else (scale,)


def table(param: str, tensor: str, axes: str, head: str = "") -> tuple[Entry, ...]:
    """The `weight` of an embedding table."""
    return (Entry(f"{param}/embedding", f"{tensor}.weight", axes, "same", head),)


def _below(param: str | tuple[str, ...], leaf: str) -> str | tuple[str, ...]:
    return f"{param}/{leaf}" if isinstance(param, str) else tuple(f"{each}/{leaf}" for each in param)


def sizes(config: EncoderConfig) -> dict[str, int]:
    """The letters of every family's axes; a family may add its own.

    V vocabulary   E width of the word table   D hidden size     P rows of the position table   T token types
    N heads        H head size                 A = N * H         F feed-forward size            C labels
    L layers       K layers but the first      G groups          I inner layers of a group
    """
    return {
        "V": config.vocab_size,
        "E": config.embedding_dim,
        "D": config.hidden_size,
        "P": config.position_offset + config.max_position_embeddings,
        "T": config.type_vocab_size,
        "N": config.num_heads,
        "H": config.head_dim,
        "A": config.num_heads * config.head_dim,
        "F": config.intermediate_size,
        "C": config.num_labels,
        "L": config.num_layers,
        "K": config.num_layers - 1,
        "G": config.num_groups or 0,
        "I": config.inner_layers,
    }


# -- config.json -------------------------------------------------------------------------------------------------------

_KINDS = {int: "a whole number", float: "a finite number", str: "a string", bool: "true or false"}
Fields = Mapping[str, tuple[str, Any, type]]
"""Hugging Face key -> (our field, the default of the family's config class, type)."""


def refuse(values: Mapping[str, Any], where: str, key: str, allowed: tuple[Any, ...], why: str) -> None:
    """Raises `UserError` if the key is there with a value that is not allowed."""
    if key in values and values[key] not in allowed:
        raise UserError(f"{where}: {key} = {values[key]!r} is not supported: {why}")


def refuse_decoders(values: Mapping[str, Any], where: str) -> None:
    """Raises `UserError` for what the shared base class of configs can ask for and encoders cannot do."""
    refuse(values, where, "is_decoder", (False, None), "only encoders are supported")
    refuse(values, where, "add_cross_attention", (False, None), "only encoders are supported")
    refuse(values, where, "pruned_heads", ({}, None), "pruned models are not supported")


def parse_activation(values: Mapping[str, Any], where: str, key: str = "hidden_act", default: str = "gelu") -> str:
    """Our name of an activation; raises `UserError` for one that we do not have."""
    refuse(values, where, key, (*ACTIVATIONS, None), f"known are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[values.get(key) or default]


def parse_fields(values: Mapping[str, Any], fields: Fields, where: str) -> dict[str, Any]:
    """Our fields from {their key: (our field, default, type)}; raises `UserError` for a value of another type."""
    read: dict[str, Any] = {}
    for tensor, (param, default, kind) in fields.items():
        value = values.get(tensor)
        value = default if value is None else value
        if value is None:  # a key whose absence says something, too: the default is None
            read[param] = None
            continue
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
            raise UserError(f"{where}: {tensor} must be {_KINDS[kind]}, not {value!r}")
        read[param] = value
    return read


def render_fields(config: EncoderConfig, fields: Fields) -> dict[str, Any]:
    """The inverse of `parse_fields`."""
    return {tensor: getattr(config, param) for tensor, (param, _, _) in fields.items()}


_MOST_LABELS = 100_000


def parse_labels(values: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Names of the labels from id2label, or as many as num_labels with transformers' names."""
    names, count = values.get("id2label"), values.get("num_labels")
    if names is not None:
        if not isinstance(names, Mapping) or not names or not all(isinstance(name, str) for name in names.values()):
            raise UserError(f"{where}: id2label must map numbers to names")
        ordered = [names.get(str(index)) for index in range(len(names))]
        if None in ordered:
            some = ", ".join(map(str, list(names)[:4]))
            raise UserError(f"{where}: id2label must name 0 to {len(names) - 1}, not {some}")
        return tuple(str(name) for name in ordered)
    if count is None:
        return DEFAULT_LABELS
    if type(count) is not int or not 1 <= count <= _MOST_LABELS:
        raise UserError(f"{where}: num_labels must be a whole number from 1 to {_MOST_LABELS}, not {count!r}")
    return tuple(f"LABEL_{index}" for index in range(count))


def _rendered_labels(labels: tuple[str, ...]) -> dict[str, Any]:
    if labels == DEFAULT_LABELS:
        return {}
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
