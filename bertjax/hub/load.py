"""Reading a Hugging Face folder: config.json and safetensors, nothing else.

Nothing is executed, nothing is unpickled, nothing is fetched: a folder from a stranger can be refused, not obeyed.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax.hub.keymap import Tensors, from_huggingface
from bertjax.hub.keymaps import FAMILIES
from bertjax.hub.keymaps.family import Family
from bertjax.models.config import EncoderConfig
from bertjax.models.model import HEADS, bind
from bertjax.types import Params, UserError

log = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = (
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "model.pt",
    "model.pth",
    "tf_model.h5",
    "flax_model.msgpack",
)
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
)
_FLOATS = ("F32", "F16", "BF16", "F64")


class ModelOutput(NamedTuple):
    """What a loaded model returns; None where the model has no such head or it was not asked for.

    last_hidden_state [B, S, D]   pooler_output [B, D]   logits [B, S, V] (masked words)
    pair_logits [B, 2]            hidden_states [L + 1, B, S, D], embeddings first
    """

    last_hidden_state: Float[Array, "B S D"]
    pooler_output: Float[Array, "B D"] | None = None
    logits: Float[Array, "B S V"] | None = None
    pair_logits: Float[Array, "B 2"] | None = None
    hidden_states: Float[Array, "L1 B S D"] | None = None


@dataclasses.dataclass(eq=False)
class PretrainedModel:
    """Parameters with what is needed to run and save them; `tokenizer_files` are carried along byte for byte."""

    config: EncoderConfig
    params: Params
    heads: tuple[str, ...]
    model_type: str = "bert"
    tokenizer_files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    def __call__(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
        output_hidden_states: bool = False,
    ) -> ModelOutput:
        """Runs the model without dropout, in float32; every input is [B, S], compiled once per shape.

        Raises `UserError` for ids that the tables do not have: JAX would clamp them in silence.
        """
        batch = _checked_inputs(self.config, input_ids, attention_mask, token_type_ids, position_ids)
        with jax.default_matmul_precision("float32"):  # accelerators multiply float32 more coarsely unless told
            return _forward(self.params, *batch, self.config, self.heads, output_hidden_states)

    def save_pretrained(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes a folder that `transformers` loads, and reads it back to compare."""
        from bertjax.hub.save import save_pretrained

        save_pretrained(
            folder,
            self.params,
            self.config,
            heads=self.heads,
            tokenizer=self.tokenizer_files,
            model_type=self.model_type,
            overwrite=overwrite,
        )


@functools.partial(jax.jit, static_argnums=(5, 6, 7))
def _forward(
    params: Params,
    input_ids: Array,
    segment_ids: Array,
    position_ids: Array,
    token_type_ids: Array,
    config: EncoderConfig,
    heads: tuple[str, ...],
    output_hidden_states: bool,
) -> ModelOutput:
    model = bind(config, heads, params)
    collect = ("hidden_states",) if output_hidden_states else ()
    encoded = model.encode(input_ids, segment_ids, position_ids, token_type_ids, None, collect)
    hidden = encoded.last_hidden_state
    first = jnp.zeros((hidden.shape[0], 1), jnp.int32)
    pooled = model.pooled(hidden, first)[:, 0] if "pooler" in heads else None
    return ModelOutput(
        last_hidden_state=hidden,
        pooler_output=pooled,
        logits=model.mlm_logits(hidden)[..., : config.vocab_size] if "mlm" in heads else None,
        pair_logits=model.pair_logits(pooled) if pooled is not None and "pair" in heads else None,
        hidden_states=encoded.hidden_states,
    )


def load_pretrained(folder: str | os.PathLike[str]) -> PretrainedModel:
    """The model of a Hugging Face folder, in float32; raises `UserError` naming what is wrong with it.

    Needs config.json and model.safetensors (or its shards with an index). The heads are those that the class in
    `architectures` requires and any other that the file holds; heads that we do not have are named in a warning.
    """
    folder = Path(folder)
    family, config, architecture = read_config(folder)
    raw, where = read_tensors(folder)
    tensors = family.keymap.canonical(raw, where)
    required = family.architectures.get(architecture, ())
    found = (*required, *family.keymap.heads_in(tensors, config))
    heads = tuple(head for head in HEADS if head in found)
    if architecture not in family.architectures:
        _drop_foreign_heads(family, tensors, architecture, where)
    params = from_huggingface(family.keymap, tensors, config, heads, where)
    params = jax.tree.map(jnp.asarray, params)
    return PretrainedModel(config, params, heads, family.model_type, read_tokenizer_files(folder))


def read_config(folder: Path) -> tuple[Family, EncoderConfig, str]:
    """(family, config, class name) from config.json; keys that are not known to be harmless are refused."""
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder} (models are not downloaded; give a folder with config.json)")
    where = f"{folder / 'config.json'}"
    values = _read_json(_inside(folder, "config.json"))
    if "auto_map" in values or "quantization_config" in values:
        what = "auto_map (code of its own)" if "auto_map" in values else "quantization_config"
        raise UserError(f"{where}: the model needs {what}, which is not supported and never run")
    family = FAMILIES.get(values["model_type"]) if isinstance(values.get("model_type"), str) else None
    if family is None:
        supported = ", ".join(FAMILIES)
        raise UserError(f"{where}: model_type {values.get('model_type')!r} is not supported; supported: {supported}")
    names = values.get("architectures") or ["unknown"]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise UserError(f"{where}: architectures must be a list with a class name, not {names!r}")
    if values.get("tie_word_embeddings") is False and "mlm" in family.architectures.get(names[0], ()):
        raise UserError(f"{where}: tie_word_embeddings = false is not supported: the output table is the word table")
    return family, family.config_from_huggingface(values, where), names[0]


def read_tensors(folder: Path) -> tuple[Tensors, str]:
    """(tensors by name, the file to name in messages); refuses pickled weights and paths that leave the folder."""
    if (folder / WEIGHTS).exists():
        return _read_file(_inside(folder, WEIGHTS)), f"{folder / WEIGHTS}"
    if (folder / INDEX).exists():
        return _read_shards(folder), f"{folder / INDEX}"
    pickled = [name for name in PICKLED if (folder / name).exists()]
    if pickled:
        raise UserError(
            f"{folder} holds {pickled[0]}, which is not read (it can run code); convert it where torch is installed: "
            "AutoModelForPreTraining.from_pretrained(DIR).save_pretrained(OUT, safe_serialization=True)"
        )
    raise UserError(f"{folder} holds neither {WEIGHTS} nor {INDEX}")


def read_tokenizer_files(folder: Path) -> dict[str, bytes]:
    """The tokenizer's files, as they are; they are carried, not parsed."""
    return {name: _inside(folder, name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}


def _read_shards(folder: Path) -> Tensors:
    where = folder / INDEX
    table = _read_json(_inside(folder, INDEX)).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(file, str) for file in table.values()) or not table:
        raise UserError(f"{where}: weight_map must map tensor names to file names")
    tensors: Tensors = {}
    for file in sorted(set(table.values())):
        if not file.endswith(".safetensors"):
            raise UserError(f"{where}: {file!r} is not a safetensors file")
        shard = _read_file(_inside(folder, file))
        twice = shard.keys() & tensors.keys()
        if twice:
            raise UserError(f"{where}: {min(twice)} is in two files")
        tensors |= shard
    missing = table.keys() - tensors.keys()
    if missing:
        raise UserError(f"{where}: no file holds {', '.join(sorted(missing)[:4])}")
    return tensors


def _read_file(path: Path) -> Tensors:
    """Every tensor of a file; numbers that are not floats are left to `KeyMap.canonical` to ignore by name."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (not a dict)
            odd = [name for name, kind in kinds.items() if kind not in _FLOATS and not kind.startswith(("I", "U", "B"))]
            if odd:
                raise UserError(f"{path}: {odd[0]} has type {kinds[odd[0]]}; supported are {', '.join(_FLOATS)}")
            return {name: _widened(file.get_tensor(name), kinds[name]) for name in kinds}
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is not a readable safetensors file: {_first_line(error)}") from None


def _widened(array: np.ndarray, kind: str) -> np.ndarray:
    return array.astype(np.float32, copy=False) if kind in _FLOATS else array


def _drop_foreign_heads(family: Family, tensors: Tensors, architecture: str, where: str) -> None:
    """A classifier on top is not ours to run; it is named, and the encoder below it is used."""
    foreign = sorted(name for name in tensors if not re.match(family.keymap.backbone, name))
    for name in foreign:
        del tensors[name]
    if foreign:
        log.warning("%s: %s is read without its head; ignored: %s", where, architecture, ", ".join(foreign))


def _inside(folder: Path, name: str) -> Path:
    """`folder/name`, if that is a plain file below the folder, or a link of the Hugging Face cache to its own blobs."""
    parts = PurePosixPath(name)
    path = folder / name
    if not name or parts.is_absolute() or ".." in parts.parts or "\\" in name or "\0" in name:
        raise UserError(f"{folder}: {name!r} is not a plain file name below the folder")
    if not path.is_file():
        raise UserError(f"{path} is missing")
    root, real = folder.resolve(), path.resolve()
    allowed = [root] + ([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])
    if not any(real.is_relative_to(place) for place in allowed):
        raise UserError(f"{path} is a link to {real}, outside the folder; it is not followed")
    return path


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not readable JSON: {_first_line(error)}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a JSON object")
    return values


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _checked_inputs(
    config: EncoderConfig, input_ids: Any, attention_mask: Any, token_type_ids: Any, position_ids: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(input_ids, segment_ids, position_ids, token_type_ids), int32 [B, S], every id within its table."""
    ids = _ids("input_ids", input_ids, None, config.vocab_size)
    positions, types = np.arange(ids.shape[1])[None].repeat(ids.shape[0], 0), np.zeros_like(ids)
    if position_ids is None and ids.shape[1] > config.max_position_embeddings:
        raise UserError(f"{ids.shape[1]} tokens in a row; the model has {config.max_position_embeddings} positions")
    if position_ids is not None:
        positions = _ids("position_ids", position_ids, ids.shape, config.max_position_embeddings)
    if token_type_ids is not None:
        types = _ids("token_type_ids", token_type_ids, ids.shape, config.type_vocab_size)
    mask = np.ones(ids.shape, np.int32)
    if attention_mask is not None:
        mask = np.asarray(attention_mask)
        if mask.shape != ids.shape or not np.isin(mask, (0, 1)).all():
            raise UserError(f"attention_mask must hold 0 and 1 in shape {list(ids.shape)}, as input_ids")
    return ids, mask.astype(np.int32), positions.astype(np.int32), types


def _ids(name: str, values: Any, shape: tuple[int, ...] | None, size: int) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:
        raise UserError(f"{name} has rows of different lengths; pad them and pass attention_mask") from None
    if array.dtype.kind not in "iu" or array.ndim != 2 or array.size == 0:
        raise UserError(f"{name} must be whole numbers in shape [rows, tokens], not {array.dtype} {list(array.shape)}")
    if shape is not None and array.shape != shape:
        raise UserError(f"{name} has shape {list(array.shape)}; input_ids have {list(shape)}")
    if array.min() < 0 or array.max() >= size:
        bad = int(array.min()) if array.min() < 0 else int(array.max())
        raise UserError(f"{name} holds {bad}; the model has ids 0 to {size - 1}")
    return array.astype(np.int32)
