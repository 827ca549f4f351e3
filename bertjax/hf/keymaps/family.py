"""The protocol of a model family, and the entries and conversions that families share."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bertjax.config.generation import GenerationConfig
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap, Tensors
from bertjax.hf.safe_files import JsonKeys, refuse

log = logging.getLogger(__name__)

SEQUENCE = "sequence_classification"
_CLASSIFIER_BIAS = "sequence_head/output/bias"
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


class Activation(str):
    """The kind of a field that names an activation function."""


Entries = Callable[[EncoderConfig], tuple[Entry, ...]]
Fields = Mapping[str, tuple[str, Any, type]]
"""Key of config.json -> (field of `EncoderConfig`, default of the family's config class, kind)."""
Refusals = tuple[tuple[str, tuple[Any, ...], str], ...]
"""(key of config.json, values that are supported, reason for refusing others)."""

ABSOLUTE_POSITIONS: Refusals = (
    ("position_embedding_type", ("absolute", None), "only absolute positions are supported"),
)
ENCODER_ONLY: Refusals = (
    ("is_decoder", (False, None), "only encoders are supported"),
    ("add_cross_attention", (False, None), "only encoders are supported"),
    ("is_encoder_decoder", (False, None), "only encoders are supported"),
    ("pruned_heads", ({}, None), "pruned models are not supported"),
)
# Refused of every family.
_REFUSED: Refusals = (("per_layer_config", (None,), "all layers have the same sizes"),)
# Keys of any family that change nothing that is computed here: names, ids of tokens that the tokenizer knows, the form
# of outputs, kernels, what a file was converted from.
_INERT_KEYS = """
_attn_implementation _attn_implementation_autoset _name_or_path _num_labels architectures attn_implementation
bos_token_id chunk_size_feed_forward cls_token_id dtype eos_token_id finetuning_task gradient_checkpointing is_causal
label2id mask_token_id model_type output_attentions output_hidden_states output_past problem_type return_dict
sbert_ce_default_activation_function sentence_transformers sep_token_id task_specific_params thresholds
tie_word_embeddings tokenizer_class torch_dtype torchscript transformers_version unk_token_id use_cache
"""
IGNORED_KEYS = frozenset(_INERT_KEYS.split())


@dataclasses.dataclass(frozen=True)
class Family:
    """Names, classes and config.json of one kind of model in `transformers`; `EncoderConfig.family` names it.

    Attributes:
        name: value of `EncoderConfig.family`.
        model_type: value of the key in config.json.
        make_keymap: returns the names of the parameters of a config.
        architectures: class -> heads that it requires, richest first, the bare model last; an export gets the first
            class whose heads the model has.
        last_token_classes: further classes, which score a text by its last token that is not padding -> entries of
            their head.
        fields: keys of config.json that are fields of `EncoderConfig`.
        structure: fields of `EncoderConfig` that every model of the family has; `family` is another one's name where a
            folder is read as a model of that family.
        constants: keys of config.json that every export gets.
        unsupported: values that would change what is computed and are not supported.
        training_only: values that would change training alone and are not supported: a warning names them.
        aliases: other names of keys, as in `attribute_map` of the family's config class; they count before the keys.
        ignored_keys: further keys that change nothing, separated by spaces; others are named in a warning.
        extra_fields: further fields, from (config.json, parsed fields, file to name in errors).
        extra_keys: further keys, from (config, class).
        old_classes: classes of the authors' code -> classes of `transformers` with the same heads. A folder that names
            such code is read; the code is not run.
        prefix: what the tensor names begin with in all files except those of the bare model.
        prefixes: classes whose names begin with another prefix -> that prefix.
        decoder_classes: those of the classes that have a decoder after the encoder, `EncoderConfig.decoder_layers`.
        num_labels: labels of a config.json that names none.
        sidecar_paths: regexes of parameter paths that no class holds, though the keymap names other parameters of the
            same head; heads that it does not name at all need no mention.
        zero_heads: heads that files of every class hold; a model without one is written with zeros, which are read as
            none.
        stores_computed: files of the classes hold the computed tensors of the keymap.
        fields_of_tensors: fields that only tensors tell, from (config, tensors under their names in the file, file to
            name in errors).
        read_files: tensors that other files of a folder hold, from (config.json, folder); `cut_tensors` gets them, too.
        cut_tensors: tensors without what a value of config.json leaves unused, or with what it implies, from
            (config.json, tensors under their names in the file, file to name in errors).
        written: False where no class of `transformers` exists: folders are read, and exports are in the native format.
        flatten: keys of the network, from (config.json, file to name in errors), for classes with a table of them.
        nest: the inverse of `flatten`, for what is written.
    """

    name: str
    model_type: str
    make_keymap: Callable[[EncoderConfig], KeyMap]
    architectures: Mapping[str, tuple[str, ...]]
    fields: Fields
    structure: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unsupported: Refusals = ()
    training_only: Refusals = ()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored_keys: str = ""
    extra_fields: Callable[[dict[str, Any], dict[str, Any], str], dict[str, Any]] = lambda values, fields, where: {}
    extra_keys: Callable[[EncoderConfig, str], dict[str, Any]] = lambda config, architecture: {}
    old_classes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    prefix: str = ""
    sidecar_paths: tuple[str, ...] = ()
    last_token_classes: Mapping[str, Entries] = dataclasses.field(default_factory=dict)
    zero_heads: tuple[str, ...] = ()
    stores_computed: bool = False
    fields_of_tensors: Callable[[EncoderConfig, Tensors, str], dict[str, Any]] = lambda config, tensors, where: {}
    read_files: Callable[[Mapping[str, Any], Path], Tensors] = lambda values, folder: {}
    cut_tensors: Callable[[dict[str, Any], Tensors, str], Tensors] = lambda values, tensors, where: tensors
    prefixes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    decoder_classes: tuple[str, ...] = ()
    num_labels: int = 2
    written: bool = True
    flatten: Callable[[dict[str, Any], str], dict[str, Any]] = lambda values, where: values
    nest: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: values

    def heads_of(self, architecture: str) -> tuple[str, ...] | None:
        """Returns the heads of a class, None for one that is not of the family."""
        return (SEQUENCE,) if architecture in self.last_token_classes else self.architectures.get(architecture)

    def keymap_for(self, architecture: str, config: EncoderConfig) -> KeyMap:
        """Returns the names of the parameters in files of a class."""
        keymap = self.make_keymap(config)
        if prefix := self.prefixes.get(architecture):
            renames = (*keymap.renames, (f"^{re.escape(prefix)}", self.prefix))
            return dataclasses.replace(keymap, renames=renames)
        if architecture not in self.last_token_classes:
            return keymap
        others = tuple(entry for entry in keymap.entries if not entry.head)
        return dataclasses.replace(keymap, entries=(*others, *self.last_token_classes[architecture](config)))

    def architecture_for(self, heads: tuple[str, ...], config: EncoderConfig) -> str | None:
        """Returns the class for these heads; others (a pooler next to a masked LM) are stored with it, as by Google.

        None: the family has no such class.

        Args:
            heads: heads of the model.
            config: the model, whose summary and biases decide whether one of `last_token_classes` holds it.
        """
        if heads == (SEQUENCE,) and config.pooling == "last" and config.causal:
            for name, entries in self.last_token_classes.items():
                if config.classifier_bias == any(_CLASSIFIER_BIAS in entry.paths for entry in entries(config)):
                    return name
        has_decoder = config.decoder_layers is not None
        fitting = (name for name, required in self.architectures.items() if set(required) <= set(heads))
        return next((name for name in fitting if (name in self.decoder_classes) == has_decoder), None)

    def rename_for(self, architecture: str, name: str) -> str:
        """Returns the name of a tensor in a file of this class: files of the bare model have no prefix."""
        if self.heads_of(architecture) and architecture not in self.prefixes:
            return name
        bare = name.removeprefix(self.prefix)
        return name if bare == name else self.prefixes.get(architecture, "") + bare

    def parse_config(self, values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
        """Converts a config.json.

        A key that would change training alone, or that bertjax does not know, is named in a warning.

        Args:
            values: the JSON object.
            where: the file to name in errors.

        Raises:
            UserError: a key would change what is computed in a way that is not supported.
        """
        values = self.flatten(values, where)
        originals = values
        values = JsonKeys(values | {key: values[alias] for alias, key in self.aliases.items() if alias in values})
        labels = parse_labels(values, where, self.num_labels)
        for key, allowed, reason in (*_REFUSED, *self.unsupported):
            refuse(values, where, key, allowed, reason)
        has_scores = "mlm" in self.architectures.get(_first_architecture(values), ())
        if has_scores and "tie_word_embeddings" not in {**self.fields, **self.structure}:
            refuse(values, where, "tie_word_embeddings", (True, None), "the output table is the word table")
        parse_fields(originals, self.fields, where)  # a value that an alias replaces is of its type, too
        fields = {**self.structure, **parse_fields(values, self.fields, where)}
        fields |= self.extra_fields(values, fields, where)
        if _first_architecture(values) in self.last_token_classes:
            if values.get("pad_token_id") is None:
                raise UserError(
                    f"{where}: pad_token_id must be a number: the class scores the last token that has another"
                )
            refuse(values, where, "is_causal", (True, None), "the class scores the last token")
            fields["pooling"] = "last"
        try:
            config = EncoderConfig(**{"family": self.name, **fields, "labels": labels})
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        if config.pad_token_id >= config.vocab_size:
            raise UserError(f"{where}: pad_token_id {config.pad_token_id} is beyond vocab_size {config.vocab_size}")
        keymap = self.make_keymap(config)
        empty = [entry.tensor for entry in keymap.entries if 0 in entry.shape(keymap.sizes)]
        if empty:
            raise UserError(f"{where}: {empty[0]} would be empty; models of this class cannot do without it")
        self._warn_of_ignored(values, config, where)
        return config

    def _warn_of_ignored(self, values: JsonKeys, config: EncoderConfig, where: str) -> None:
        for key, allowed, reason in self.training_only:
            if key in values and values[key] not in allowed:
                log.warning("%s: %s = %r is ignored: %s", where, key, values[key], reason)
        of_generation = GenerationConfig.names() if config.causal else ()
        values.warn_of_unread(where, {*IGNORED_KEYS, *self.ignored_keys.split(), *self.aliases, *of_generation})

    def render_config(self, config: EncoderConfig, architecture: str) -> dict[str, Any]:
        """Returns the config.json of a model of class `architecture`, at the true vocabulary size.

        Labels are written only where they are predicted: `transformers` sizes heads with two outputs by them, too.
        """
        predicted = {"sequence_classification", "token_classification"} & set(self.heads_of(architecture) or ())
        rendered = {
            "architectures": [architecture],
            "model_type": self.model_type,
            "dtype": "float32",
            **(render_labels(config.labels, self.num_labels) if predicted else {}),
            **self.constants,
            **render_fields(config, self.fields),
            **self.extra_keys(config, architecture),
        }
        return self.nest(rendered)


# -- entries -----------------------------------------------------------------------------------------------------------

_BIAS_TRANSFORM = {"transpose": "same", "concat_transpose": "concat"}


def linear(
    param: str | tuple[str, ...],
    tensor: str,
    axes: str,
    bias: bool = True,
    head: str = "",
    transform: str = "transpose",
) -> tuple[Entry, ...]:
    """Returns the entries of a linear layer.

    Args:
        param: path of the layer; several paths where the tensor is fused.
        tensor: name of the layer in `transformers`.
        axes: letters of the kernel's axes, [in, out].
        bias: whether the layer has a bias.
        head: the head that it belongs to.
        transform: transform of the kernel.
    """
    kernel = Entry(_leaf(param, "kernel"), f"{tensor}.weight", axes, transform, head)
    if not bias:
        return (kernel,)
    of_bias = _BIAS_TRANSFORM.get(transform, transform)
    return kernel, Entry(_leaf(param, "bias"), f"{tensor}.bias", axes.split()[1], of_bias, head)


def norm(param: str, tensor: str, config: EncoderConfig, axis: str = "D", head: str = "") -> tuple[Entry, ...]:
    """Returns the entries of a norm: scale, and bias where the config's norms have one.

    Args:
        param: path of the norm.
        tensor: name of the norm in `transformers`.
        config: the model.
        axis: letter of its axis.
        head: the head that it belongs to.
    """
    scale = Entry(f"{param}/scale", f"{tensor}.weight", axis, "same", head)
    if not config.norm_bias or config.norm_type == "rms_norm":
        return (scale,)
    return scale, Entry(f"{param}/bias", f"{tensor}.bias", axis, "same", head)


def table(param: str, tensor: str, axes: str) -> tuple[Entry, ...]:
    """Returns the entry of an embedding table.

    Args:
        param: path of the table.
        tensor: name of the table in `transformers`.
        axes: letters of its axes.
    """
    return (Entry(f"{param}/embedding", f"{tensor}.weight", axes),)


def unbiased_scores(config: EncoderConfig) -> tuple[Entry, ...]:
    """Returns the entry of the classifier that most decoders have."""
    return linear("sequence_head/output", "score", "D C", bias=False, head=SEQUENCE)


def _leaf(param: str | tuple[str, ...], leaf: str) -> str | tuple[str, ...]:
    return f"{param}/{leaf}" if isinstance(param, str) else tuple(f"{each}/{leaf}" for each in param)


def axis_sizes(config: EncoderConfig) -> dict[str, int]:
    """Returns the lengths of the axis letters of every family; a family may add its own.

    V vocabulary   E width of the word table   D hidden size     P rows of the position table   T token types
    N heads        H head size                 A = N * H         B all heads of keys or values
    F feed-forward size                        C labels
    L layers       K layers without the first  G groups          I inner layers of a group
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
        "B": config.kv_heads * config.head_dim,
        "F": config.intermediate_size,
        "C": config.num_labels,
        "L": config.num_layers,
        "K": config.num_layers - 1,
        "G": config.num_groups or 0,
        "I": config.inner_layers,
    }


# -- config.json -------------------------------------------------------------------------------------------------------


def _first_architecture(values: Mapping[str, Any]) -> str:
    return str((values.get("architectures") or [""])[0])


_EXPECTED = {int: "a whole number", float: "a finite number", str: "a string", bool: "true or false"}
_NULL_PAD_ID = 0  # a model without a pad id can have any: what is padding, the attention mask says
_MAX_LABELS = 100_000


def change_defaults(fields: Fields, **defaults: Any) -> Fields:
    """Returns the fields with other defaults of their keys."""
    return {key: (name, defaults.get(key, default), kind) for key, (name, default, kind) in fields.items()}


def parse_fields(values: Mapping[str, Any], fields: Fields, where: str) -> dict[str, Any]:
    """Returns fields of `EncoderConfig` from keys of a config.json.

    Null is a value of keys whose default it is, and of the pad id.

    Args:
        values: config.json.
        fields: what to parse.
        where: the file to name in errors.

    Raises:
        UserError: a value has another type than its field, or names an unknown activation.
    """
    parsed: dict[str, Any] = {}
    for key, (name, default, kind) in fields.items():
        value = values.get(key, default)
        if value is None and key == "pad_token_id":
            value = _NULL_PAD_ID
        if kind is Activation:
            refuse(values, where, key, tuple(ACTIVATIONS), f"known are {', '.join(ACTIVATIONS)}")
            value = ACTIVATIONS[value]
        elif value is not None or default is not None:
            if kind is float and type(value) is int:
                value = float(value) if abs(value) < 2**63 else math.inf  # Python cannot convert every number
            if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
                raise UserError(f"{where}: {key} must be {_EXPECTED[kind]}, not {value!r}")
        parsed[name] = value
    return parsed


def render_fields(config: EncoderConfig, fields: Fields) -> dict[str, Any]:
    """Returns keys of config.json, the inverse of `parse_fields`.

    A dropout rate that the config leaves open is written as the rate it falls back to, unless the key may be null.
    """
    rendered = {key: getattr(config, name) for key, (name, _, _) in fields.items()}
    for key, (name, default, kind) in fields.items():
        if rendered[key] is None and kind is float and default is not None:
            rendered[key] = config.rate(name)
    return rendered


def parse_labels(values: Mapping[str, Any], where: str, default: int = 2) -> tuple[str, ...]:
    """Returns the names of the labels from `id2label`, or as many of transformers' default names as `num_labels` says.

    Args:
        values: config.json.
        where: the file to name in errors.
        default: number of labels where neither key is there.

    Raises:
        UserError: one of the two keys is malformed, or they contradict each other: versions of transformers differ in
            the one that counts.
    """
    names, count = values.get("id2label"), values.get("num_labels", default)
    if type(count) is not int or not 1 <= count <= _MAX_LABELS:
        raise UserError(f"{where}: num_labels must be a whole number from 1 to {_MAX_LABELS}, not {count!r}")
    if names is not None:
        if not isinstance(names, Mapping) or not names or not all(isinstance(name, str) for name in names.values()):
            raise UserError(f"{where}: id2label must map numbers to names")
        ordered = [names.get(str(index)) for index in range(len(names))]
        if None in ordered:
            some = ", ".join(map(str, list(names)[:4]))
            raise UserError(f"{where}: id2label must name 0 to {len(names) - 1}, not {some}")
        if "num_labels" in values and count != len(ordered):
            raise UserError(f"{where}: num_labels = {count}, but id2label names {len(ordered)}; remove one")
        return tuple(str(name) for name in ordered)
    return _default_labels(count)


def _default_labels(count: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{index}" for index in range(count))


def render_labels(labels: tuple[str, ...], default: int = 2) -> dict[str, Any]:
    """Returns the keys that name the labels; none where they are the `default` first of the default names."""
    if labels == _default_labels(default):
        return {}
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
