"""Reading a folder of Hugging Face or of ours: config.json and safetensors, nothing else.

Nothing is executed, nothing is unpickled, nothing is fetched: a folder from a stranger can be refused, not obeyed.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf import native_format, sidecar_files
from bertjax.hf.keymap import KeyMap, Tensors, tensors_to_params
from bertjax.hf.keymaps import FAMILIES, find_family
from bertjax.hf.keymaps.family import Family
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.safe_files import CONFIG, read_json, read_tensors, read_tokenizer_files
from bertjax.models.model import HEADS
from bertjax.types import Params

log = logging.getLogger(__name__)

_MOST_LAYERS = 100_000


def load_pretrained(folder: str | os.PathLike[str]) -> PretrainedModel:
    """The model of a folder, in float32; raises `UserError` naming what is wrong with it.

    Needs config.json and model.safetensors (or its shards with an index). The heads are those that the class in
    `architectures` requires and any other that the files hold; heads that we do not have are named in a warning.
    """
    folder = Path(folder)
    values, architecture = read_config_json(folder)
    where = f"{folder / CONFIG}"
    if values["model_type"] == native_format.MODEL_TYPE:
        config, heads, params = _read_own(folder, values, where)
    else:
        family = find_family(values["model_type"])
        if family is None:
            known = dict.fromkeys([*(family.model_type for family in FAMILIES.values()), native_format.MODEL_TYPE])
            supported = ", ".join(known)
            raise UserError(f"{where}: model_type {values['model_type']!r} is not supported; supported: {supported}")
        config, heads, params = _read_family(folder, family, values, architecture)
    if config.num_layers > _MOST_LAYERS:  # where layers share parameters, no tensor is missing
        raise UserError(f"{where}: {config.num_layers} layers are more than would ever end")
    return PretrainedModel(config, jax.tree.map(jnp.asarray, params), heads, read_tokenizer_files(folder))


def read_config_json(folder: Path) -> tuple[dict[str, Any], str]:
    """(config.json, class name); a model that needs code or arithmetic of its own is refused."""
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder} (models are not downloaded; give a folder with config.json)")
    where = f"{folder / CONFIG}"
    values = read_json(folder, CONFIG)
    if foreign := _foreign_code(values):
        raise UserError(f"{where}: the model needs {foreign}, which is not supported and never run")
    if not isinstance(values.get("model_type"), str):
        raise UserError(f"{where}: model_type must be a word such as bert, not {values.get('model_type')!r}")
    names = values.get("architectures") or ["unknown"]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise UserError(f"{where}: architectures must be a list with a class name, not {names!r}")
    return values, names[0]


def _foreign_code(values: dict[str, Any]) -> str | None:
    """What of a config.json would make `transformers` run or fetch something, in words.

    An implementation of attention may be the name of a repository with kernels (CVE-2026-4372).
    """
    if "quantization_config" in values:
        return "quantization_config"
    if "auto_map" in values or "custom_generate" in values or values.get("trust_remote_code"):
        return "auto_map (code of its own)"
    for key, value in values.items():
        named = value.values() if isinstance(value, dict) else [value]
        if "implementation" in key and any(isinstance(each, str) and "/" in each for each in named):
            return f"{key} = {value!r} (code from elsewhere)"
    return None


Found = tuple[EncoderConfig, tuple[str, ...], Params]


def _read_own(folder: Path, values: dict[str, Any], where: str) -> Found:
    config, heads = native_format.parse_config(values, where)
    tensors, file = read_tensors(folder)
    native_format.require_enough_tensors(config, tensors, file)
    return (
        config,
        heads,
        tensors_to_params(native_format.make_keymap(native_format.param_shapes(config, heads)), tensors, (), file),
    )


def _read_family(folder: Path, family: Family, values: dict[str, Any], architecture: str) -> Found:
    where = f"{folder / CONFIG}"
    required = family.architectures.get(architecture, ())
    if values.get("tie_word_embeddings") is False and "mlm" in required:
        raise UserError(f"{where}: tie_word_embeddings = false is not supported: the output table is the word table")
    config = family.parse_config(values, where)
    beside = sidecar_files.read_sidecar(folder, family, values, config)
    config, more_heads = beside or (config, ())
    keymap = family.keymap(config)
    raw, file = read_tensors(folder, architecture)
    tensors = keymap.canonicalize(raw, file)
    if architecture not in family.architectures:
        _drop_foreign_heads(keymap, tensors, architecture, file)  # before a shared name is taken for a head of ours
    named = _ordered(keymap.detect_heads(tensors, required))
    params = tensors_to_params(keymap, tensors, named, file)
    if beside is None:
        return config, named, params
    heads = _ordered((*named, *more_heads))
    return config, heads, sidecar_files.merge_sidecar(folder, params, config, heads)


def _ordered(heads: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(head for head in HEADS if head in heads)


def _drop_foreign_heads(keymap: KeyMap, tensors: Tensors, architecture: str, where: str) -> None:
    """A head that we do not have is not ours to run; it is named, and the encoder below it is used."""
    foreign = sorted(name for name in tensors if not re.match(keymap.backbone, name))
    for name in foreign:
        del tensors[name]
    if foreign:
        log.warning("%s: %s is read without its head; ignored: %s", where, architecture, ", ".join(foreign))
