"""Reads and writes the folder of an encoder-decoder: a class of `transformers`, or the native format."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.model import float32_config
from bertjax.errors import UserError
from bertjax.hf import native_format
from bertjax.hf.encoder_decoder import native
from bertjax.hf.encoder_decoder.family import TOKEN_IDS, EncoderDecoderFamily, family_of, find_family
from bertjax.hf.generate import generation_file, read_generation
from bertjax.hf.keymap import KeyMap, Tensors, params_to_tensors, tensors_to_params
from bertjax.hf.load import local_model, read_config_json
from bertjax.hf.model_card import MARKER, render_facts
from bertjax.hf.safe_files import CONFIG, WEIGHTS, read_tensors
from bertjax.hf.save import ExportError, compare_tensors, require_free, round_params, write_weights
from bertjax.io.atomic import atomic_folder
from bertjax.io.foreign_files import read_tokenizer_files
from bertjax.io.tree_paths import flatten_tree
from bertjax.models.encoder_decoder import abstract_params, count_params, unpadded
from bertjax.types import Params

log = logging.getLogger(__name__)

_RUN = "transformers runs it with trust_remote_code=True, by the code in the folder"
_PRIVATE = "only bertjax runs it: transformers has no code of model.attention_class"


@dataclasses.dataclass(eq=False, repr=False)
class EncoderDecoderWeights:
    """An encoder-decoder as read from a folder.

    Attributes:
        config: the model, at the true vocabulary size.
        params: parameters {"encoder": ..., "decoder": ...}, float32.
        generation: values of generation_config.json: ids of the first and last token, settings of the search.
        tokenizer_files: bytes of the tokenizer's files by name; carried along, not parsed.
    """

    config: EncoderDecoderConfig
    params: Params
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tokenizer_files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        config = self.config
        networks = ", ".join(
            f"{name} {each.num_layers} layers of {each.hidden_size}"
            for name, each in (("encoder", config.encoder), ("decoder", config.decoder))
        )
        count = f"{count_params(config):,} parameters"
        return f"{type(self).__name__}({config.family}: {networks}, shared: {config.sharing}, {count})"


def read_weights(folder: str | os.PathLike[str]) -> EncoderDecoderWeights:
    """Reads the encoder-decoder of a folder or of the Hub as NumPy arrays; see `pretrained.load_pretrained`.

    Raises:
        UserError: a file is missing, unreadable or unsafe, or the model is not supported.
    """
    folder = local_model(folder)
    values, architecture = read_config_json(folder)
    where, family = f"{folder / CONFIG}", find_family(values["model_type"])
    if family is not None and architecture not in (family.architecture, family.headless):
        raise UserError(f"{where}: class {architecture} is not supported; {family.architecture} is")
    config = (family or native).parse_config(values, where)
    raw, file = read_tensors(folder, architecture)
    if family is not None and "encoder.pooler.dense.weight" in raw:
        config = dataclasses.replace(config, encoder_heads=("pooler",))
    layers = config.encoder.num_layers + config.decoder.num_layers
    if layers > len(raw) and family is None and config.encoder.num_groups is None:  # building them might not end
        raise UserError(f"{file}: config.json claims {layers} layers, but there are {len(raw)} tensors")
    keymap = (family or native).make_keymap(config)
    tensors = _with_defaults(keymap, keymap.canonicalize(raw, file))
    params = tensors_to_params(keymap, tensors, (), file)
    return EncoderDecoderWeights(config, params, read_generation(folder, values), read_tokenizer_files(folder))


def write_folder(
    folder: str | os.PathLike[str],
    model: EncoderDecoderWeights,
    overwrite: bool,
    dtype: str,
    max_shard_bytes: int,
    card: Mapping[str, Any] | None = None,
) -> None:
    """Writes the folder of a model.

    Args: as of `PretrainedEncoderDecoder.save_pretrained`, which describes the errors, too.
    """
    folder, config = Path(folder).absolute(), unpadded(model.config)
    require_free(folder, overwrite)
    limitation, files = _limitation(config), dict(model.tokenizer_files)
    family = None if limitation else family_of(config)
    params = round_params(_without_padding(model.params, config), dtype)
    if limitation:
        private = native.is_private(config)
        log.warning(
            "%s is written in bertjax's native format; %s (%s)", folder, _PRIVATE if private else _RUN, limitation
        )
        files |= {} if private else native_format.code_files("encoder_decoder")
    tensors = _to_tensors(config, params, family)
    values = _token_ids(model, TOKEN_IDS) | (family or native).render_config(config) | {"dtype": dtype}
    files[CONFIG] = (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()
    files |= generation_file(_generation(model, family))
    files["README.md"] = (_model_card(model, values, limitation) + render_facts(card or {})).encode()
    try:
        with atomic_folder(folder) as temporary:
            write_weights(temporary, tensors, max_shard_bytes, dtype)
            for name, content in files.items():
                (temporary / name).write_bytes(content)
            _verify(temporary, dataclasses.replace(model, config=config, params=params), tensors, family)
    except OSError as error:
        raise UserError(f"cannot write the export to {folder}: {error.strerror or error}") from error


def _with_defaults(keymap: KeyMap, tensors: Tensors) -> Tensors:
    """Returns the tensors with those that files may lack: T5 v1.1's output table, if tied, and the bias of scores."""
    names = {entry.tensor: entry.tensor_shape(keymap.sizes) for entry in keymap.entries if not entry.stack_axes}
    absent = names.keys() - tensors.keys()
    if "lm_head.weight" in absent and "shared.weight" in tensors:
        tensors = tensors | {"lm_head.weight": tensors["shared.weight"]}
    if "final_logits_bias" in absent:
        tensors = tensors | {"final_logits_bias": np.zeros(names["final_logits_bias"], np.float32)}
    return tensors


def _limitation(config: EncoderDecoderConfig) -> str:
    """Returns why no class of `transformers` holds the model; "" if one does."""
    family = family_of(config)
    return "its classes are unlike these networks" if family is None else family.limitation(config)


def _to_tensors(config: EncoderDecoderConfig, params: Params, family: EncoderDecoderFamily | None) -> Tensors:
    """Returns all tensors of a file; shared layers are written twice for classes that do not share them."""
    keymap = (family or native).make_keymap(config)
    tensors = params_to_tensors(keymap, params, float32_config(config.encoder), ())
    tensors |= keymap.computed if family is not None and family.stores_computed else {}
    if family is None or config.sharing != "all":
        return tensors
    return tensors | {
        copy: tensors[name] for copy, name in keymap.ties.items() if ".cls." not in copy and "lm_head" not in copy
    }


def _without_padding(params: Params, config: EncoderDecoderConfig) -> Params:
    """Returns the parameters at the true vocabulary size, in memory of the host."""

    def cut(leaf: Any, expected: Any) -> np.ndarray:
        return np.asarray(leaf)[tuple(slice(size) for size in expected.shape)]

    return jax.tree.map(cut, params, abstract_params(config))


def _token_ids(model: EncoderDecoderWeights, names: tuple[str, ...]) -> dict[str, Any]:
    ids = {key: model.generation[key] for key in names if key in model.generation}
    start = model.config.decoder_start_token_id
    return ids if start is None else ids | {"decoder_start_token_id": start}


def _generation(model: EncoderDecoderWeights, family: EncoderDecoderFamily | None) -> dict[str, Any]:
    """Returns generation_config.json; of the native format it always says with which token a target starts."""
    if family is not None:
        return dict(model.generation)
    return {"pad_token_id": model.config.decoder.pad_token_id} | _token_ids(model, ()) | dict(model.generation)


def _verify(folder: Path, model: EncoderDecoderWeights, tensors: Tensors, family: EncoderDecoderFamily | None) -> None:
    """Reads a written folder and compares it with the model in memory: tensors, config, parameters, other files."""
    compare_tensors(WEIGHTS, tensors, read_tensors(folder)[0])
    back, config = read_weights(folder), model.config
    render = (family or native).render_config
    expected, values = render(config), render(back.config)
    differing = [f"{CONFIG}: {key}" for key in sorted(expected) if expected[key] != values.get(key)]
    leaves = flatten_tree(back.params)
    differing += [path for path, leaf in flatten_tree(model.params).items() if not np.array_equal(leaf, leaves[path])]
    if (back.config.encoder_heads, back.config.sharing) != (config.encoder_heads, config.sharing):
        differing += ["what encoder and decoder share"]
    if dict(back.tokenizer_files) != dict(model.tokenizer_files):
        differing += ["a file of its tokenizer"]
    if differing:
        raise ExportError(f"{folder}: the model read back differs from memory, first in {differing[0]}")


def loader(values: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns what loads a folder with this config.json: package, name of the class or function, further argument."""
    if "auto_map" in values:
        return "transformers", "AutoModelForSeq2SeqLM", ", trust_remote_code=True"
    if values["model_type"] == native.MODEL_TYPE:
        return "bertjax", "load_pretrained", ""
    return "transformers", values["architectures"][0], ""


def _model_card(model: EncoderDecoderWeights, values: dict[str, Any], limitation: str) -> str:
    config, (library, name, argument) = model.config, loader(values)
    sizes = " and ".join(
        f"{'an encoder' if not each.causal else 'a decoder'} of {each.num_layers} layers of {each.hidden_size}"
        for each in (config.encoder, config.decoder)
    )
    auto, tokenizer, note = "", "", ""
    if model.tokenizer_files:
        auto, tokenizer = "AutoTokenizer, ", 'tokenizer = AutoTokenizer.from_pretrained("PATH_OR_NAME")\n'
    use = (
        f'from transformers import {auto}{name}\n\n{tokenizer}model = {name}.from_pretrained("PATH_OR_NAME"{argument})'
    )
    if library == "bertjax":
        use, note = f'import bertjax\n\nmodel = bertjax.{name}("PATH_OR_NAME")', f"\n\nNote: {_PRIVATE}."
    elif limitation:
        note = f"\n\nIts code (PyTorch) is in this folder, since `transformers` has no class for it ({limitation})."
    tags = ["---", f"library_name: {library}", "tags:", *["- custom_code"] * bool(argument), "- bertjax", "---"]
    head = "\n".join([*tags, "", MARKER, "", f"# {values['architectures'][0]}", ""])
    return (
        f"{head}\n{sizes[0].upper()}{sizes[1:]}, {count_params(config):,} parameters, written by bertjax (JAX).{note}"
        f"\n\n## Use\n\n```python\n{use}\n```\n"
    )
