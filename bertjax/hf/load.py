"""Reads folders of Hugging Face or of bertjax: config.json, safetensors and tokenizer files, nothing else.

Nothing is executed or unpickled: a model from an unknown source can fail to load, but not act.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, comma_list
from bertjax.hf import export_plan, native_format
from bertjax.hf.cross_encoder import select_keys
from bertjax.hf.encoder_decoder import native
from bertjax.hf.encoder_decoder.family import find_family as find_encoder_decoder
from bertjax.hf.generate import read_generation
from bertjax.hf.keymap import tensors_to_params
from bertjax.hf.keymaps import FAMILIES, find_family
from bertjax.hf.keymaps.family import IGNORED_KEYS, Family
from bertjax.hf.keymaps.published import translate_config
from bertjax.hf.safe_files import (
    CONFIG,
    INDEX,
    WEIGHTS,
    read_json,
    read_module_files,
    read_shard_names,
    read_tensor_names,
    read_tensors,
    require_safetensors,
)
from bertjax.io import hub
from bertjax.io.foreign_files import read_tokenizer_files
from bertjax.io.staging import local_copy
from bertjax.io.tree_paths import flatten_tree
from bertjax.models.model import HEADS
from bertjax.types import Params

_MAX_LAYERS = 100_000


@dataclasses.dataclass(eq=False, repr=False)
class ModelWeights:
    """A model as read from a folder.

    Attributes:
        config: architecture, at the true vocabulary size.
        params: parameters, float32.
        heads: heads that `params` holds, in the order of `HEADS`.
        tokenizer_files: bytes of the tokenizer's files by name; carried along, not parsed.
        module_files: bytes of the files by which sentence-transformers pools, by path; carried along, not parsed.
        generation: values of generation_config.json.
        config_keys: keys of config.json that say what libraries make of the head's outputs; carried along.
    """

    config: EncoderConfig
    params: Params
    heads: tuple[str, ...]
    tokenizer_files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    module_files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    config_keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        size = f"{self.config.num_layers} layers of {self.config.hidden_size}"
        count = sum(leaf.size for leaf in flatten_tree(self.params).values())
        return (
            f"{type(self).__name__}({self.config.family}, {size}, {count:,} parameters, heads {comma_list(self.heads)})"
        )


def read_folder(folder: str | os.PathLike[str]) -> ModelWeights:
    """Reads the model of a folder as NumPy arrays; see `pretrained.load_pretrained`.

    Raises:
        UserError: a file is missing, unreadable or unsafe, or the model is not supported.
    """
    folder = local_model(folder)
    values, architecture = read_config_json(folder)
    where = f"{folder / CONFIG}"
    if is_encoder_decoder(values):
        raise UserError(
            f"{where}: model_type {values['model_type']!r} is an encoder with a decoder, not a single network; "
            "bertjax.load_pretrained reads both"
        )
    family = _require_family(values, where, folder)
    if family is None:
        config, heads, params = _read_native(folder, values, where)
    else:
        config, heads, params = _read_family(folder, family, values, architecture)
    if config.num_layers > _MAX_LAYERS:  # where layers share parameters, no tensor is missing
        raise UserError(f"{where}: {config.num_layers} layers are more than can be run")
    generation = read_generation(folder, values) if config.causal else {}
    files = read_tokenizer_files(folder), read_module_files(folder)
    return ModelWeights(config, params, heads, *files, generation, select_keys(values))


def local_model(name: str | os.PathLike[str]) -> Path:
    """Returns the folder of a model: a path as it is, a URL or `hub:NAME[@REVISION]` after downloading its files.

    Raises:
        UserError: the Hub and its cache lack the model, it is not supported, it has no safetensors, or the path is a
            file of torch.
    """
    if not hub.is_hub_name(name):
        path = local_copy(name)
        _refuse_pickle(path)
        return path
    pinned = hub.pin(name)
    folder = hub.fetch(pinned)
    values, architecture = read_config_json(folder)
    if not is_encoder_decoder(values):
        _require_family(values, str(name), folder)  # before anything large is downloaded
    hub.fetch_weights(pinned, folder, read_shard_names(folder) if (folder / INDEX).exists() else [WEIGHTS])
    if not (folder / WEIGHTS).exists() and not (folder / INDEX).exists():
        require_safetensors(hub.list_files(pinned), str(name), architecture)
    return folder


def is_encoder_decoder(values: dict[str, Any]) -> bool:
    """Returns whether a config.json is that of an encoder with a decoder, and not of a class that has one of them."""
    kind, names = str(values.get("model_type")), values.get("architectures") or [""]
    alone = find_family(kind)
    if alone is not None and alone.heads_of(str(names[0])) is not None:
        return False
    return kind == native.MODEL_TYPE or find_encoder_decoder(kind) is not None


def _require_family(values: dict[str, Any], where: str, folder: Path) -> Family | None:
    """Returns the family of a config.json in a folder, which may lack the weights; None for our format.

    Raises:
        UserError: the model is not supported; names the nearest that is.
    """
    if values["model_type"] == native_format.MODEL_TYPE:
        return None
    family = find_family(values["model_type"])
    if family is None:
        supported = dict.fromkeys([*(each.model_type for each in FAMILIES.usable()), native_format.MODEL_TYPE])
        nearest = describe_nearest(values, read_tensor_names(folder))
        raise UserError(
            f"{where}: model_type {values['model_type']!r} is not supported; {nearest}{'; ' if nearest else ''}"
            f"supported: {comma_list(supported)}"
        )
    return family


def read_config_json(folder: Path) -> tuple[dict[str, Any], str]:
    """Reads config.json and the class name in its `architectures`.

    Raises:
        UserError: the file is missing, or the model needs code or quantization that bertjax does not have.
    """
    if not os.path.isdir(folder):  # Path.is_dir fails where a name is too long
        raise UserError(f"{folder} is not a folder; give one with config.json, or hub:NAME[@REVISION]")
    where = f"{folder / CONFIG}"
    values = translate_config(read_json(folder, CONFIG), where)
    family = find_family(str(values.get("model_type")))
    ours = {"auto_map"} if values.get("model_type") in (native_format.MODEL_TYPE, native.MODEL_TYPE) else set()
    if foreign := _foreign_code(values, ours if family is None else set(family.ignored_keys.split())):
        raise UserError(f"{where}: the model needs {foreign}, which is not supported and never run")
    names = values.get("architectures") or ["unknown"]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise UserError(f"{where}: architectures must be a list with a class name, not {names!r}")
    if "model_type" not in values:  # which the first versions of transformers did not write
        values["model_type"] = next(
            (each.model_type for each in FAMILIES.usable() if names[0] in each.architectures), None
        )
    if not isinstance(values.get("model_type"), str):
        raise UserError(f"{where}: model_type must be a word such as bert, not {values.get('model_type')!r}")
    return values, names[0] if family is None else family.old_classes.get(names[0], names[0])


def _refuse_pickle(path: Path) -> None:
    if os.path.isfile(path) and path.suffix in (".pt", ".pth", ".ckpt", ".bin"):
        raise UserError(
            f"{path} is a file of torch, which is not read (it can run code); docs/continued.md converts a checkpoint "
            "of Composer to a folder"
        )


def order_heads(heads: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the heads in the order of `HEADS`."""
    return tuple(head for head in HEADS if head in heads)


def _foreign_code(values: dict[str, Any], known: set[str]) -> str | None:
    """Names what of a config.json would make `transformers` run or download something; `known` keys are ignored.

    An attention implementation may be the name of a repository with kernels (CVE-2026-4372).
    """
    if "quantization_config" in values:
        return "quantization_config"
    needed: list[str] = [key for key in ("auto_map", "custom_generate") if key in values]
    if values.get("trust_remote_code"):
        needed.append("trust_remote_code")
    if set(needed) - known:
        return "auto_map (code of its own)"
    for key, value in values.items():
        named = value.values() if isinstance(value, dict) else [value]
        if "implementation" in key and any(isinstance(each, str) and "/" in each for each in named):
            return f"{key} = {value!r} (code from elsewhere)"
    return None


_Parts = tuple[EncoderConfig, tuple[str, ...], Params]


def _read_native(folder: Path, values: dict[str, Any], where: str) -> _Parts:
    config, heads = native_format.parse_config(values, where)
    tensors, file = read_tensors(folder)
    tensors = native_format.add_prefix(tensors)
    layers = config.num_layers if config.num_groups is None else config.num_groups * config.inner_layers
    if layers > len(tensors):  # building them might not end
        raise UserError(f"{file}: config.json claims {layers} layers, but there are {len(tensors)} tensors")
    heads = native_format.find_heads(config, heads, tensors)
    keymap = native_format.make_keymap(native_format.param_shapes(config, heads))
    return config, heads, tensors_to_params(keymap, keymap.canonicalize(tensors, file), (), file)


def _read_family(folder: Path, family: Family, values: dict[str, Any], architecture: str) -> _Parts:
    where = f"{folder / CONFIG}"
    required = family.heads_of(architecture)
    config = family.parse_config(values, where)
    sidecar = export_plan.read_sidecar(folder, family, values, config)
    config, sidecar_heads = sidecar or (config, ())
    raw, file = read_tensors(folder, architecture)
    raw |= family.read_files(values, folder)
    config = dataclasses.replace(config, **family.fields_of_tensors(config, raw, file))
    keymap = family.keymap_for(architecture, config)
    tensors = keymap.canonicalize(family.cut_tensors(values, raw, where), file)
    keymap.drop_zeros(tensors, family.zero_heads)
    if required is None:  # a shared name must not be taken for a head of ours
        keymap.drop_foreign(tensors, (), f"{file}: {architecture} is read without its head")
    stored = order_heads(keymap.detect_heads(tensors, required or ()))
    keymap.drop_foreign(tensors, stored, file)
    params = tensors_to_params(keymap, tensors, stored, file)
    if sidecar is None:
        return config, stored, params
    heads = order_heads((*stored, *sidecar_heads))
    return config, heads, export_plan.merge_sidecar(folder, params, config, heads)


_MIN_TENSORS, _MIN_KEYS, _MIN_NAME = 0.3, 0.5, 0.5  # shares from which on a likeness says something
_MAX_NAMED = 4


class _Likeness(NamedTuple):
    """Likeness of a folder and a family, as shares in [0, 1], and the differences.

    unknown   keys of config.json that the family does not have
    foreign   tensors that it does not have
    missing   tensors of its encoder that the folder does not have
    """

    family: Family
    tensors: float
    keys: float
    name: float
    unknown: list[str]
    foreign: list[str]
    missing: list[str]

    @property
    def score(self) -> float:
        return 2.0 * self.tensors + self.keys + 0.5 * self.name

    @property
    def is_close(self) -> bool:
        if self.foreign or self.missing:
            return self.tensors >= _MIN_TENSORS
        return self.tensors == 1.0 or self.keys >= _MIN_KEYS or self.name >= _MIN_NAME

    def __str__(self) -> str:
        differences = [
            f"{what} {comma_list(names, _MAX_NAMED)}"
            for what, names in (
                ("without the keys", self.unknown),
                ("without the tensors", self.foreign),
                ("with the tensors", self.missing),
            )
            if names
        ]
        name = self.family.model_type
        if differences:
            return f"the nearest is {name}, {', '.join(differences)}"
        return f"the nearest is {name}, with the same keys and tensors: to read it as one, set model_type = {name}"


def describe_nearest(values: Mapping[str, Any], tensors: Collection[str]) -> str:
    """Returns the family that a model resembles most and how it differs, in words; empty if it resembles none.

    Args:
        values: its config.json.
        tensors: names of its tensors; () = not known.
    """
    families = (family for family in FAMILIES.usable() if family.written)
    likenesses = [each for family in families if (each := _compare(family, values, tensors))]
    best = max(likenesses, key=lambda each: each.score)
    return str(best) if best.is_close else ""


def _compare(family: Family, values: Mapping[str, Any], tensors: Collection[str]) -> _Likeness | None:
    try:
        config = family.parse_config({})
    except UserError:  # a family whose config.json has no defaults
        return None
    model_type = str(values.get("model_type"))
    keys = values.keys() - IGNORED_KEYS - {"id2label", "num_labels", "auto_map"}
    refused = {key for key, *_ in (*family.unsupported, *family.training_only)}
    known = {*family.render_config(config, next(iter(family.architectures))), *family.fields, *family.aliases}
    known |= {*family.ignored_keys.split(), *refused}
    entries = family.make_keymap(config).entries
    every = {_without_index(entry.tensor.removeprefix(family.prefix)) for entry in entries}
    encoder = {_without_index(entry.tensor.removeprefix(family.prefix)) for entry in entries if not entry.head}
    names = max(_spellings(tensors), key=lambda each: len(each & every))
    return _Likeness(
        family,
        len(names & every) / len(names | encoder),
        len(keys & known) / max(1, len(keys | family.fields.keys())),
        len(family.model_type) / len(model_type) if family.model_type in model_type else 0.0,
        sorted(keys - known),
        sorted(names - every),
        sorted(encoder - names) if names else [],
    )


def _spellings(tensors: Collection[str]) -> list[set[str]]:
    """Returns the names with and without what most of them begin with: a prefix, or a part of a model without one."""
    names = {_without_index(name) for name in tensors}
    prefix = next(iter(Counter(name.partition(".")[0] for name in names).most_common(1)), ("", 0))[0]
    return [names, {name.removeprefix(f"{prefix}.") for name in names}]


def _without_index(name: str) -> str:
    return re.sub(r"\{\w[^}]*\}|(?<=\.)\d+(?=\.)", "N", name)
