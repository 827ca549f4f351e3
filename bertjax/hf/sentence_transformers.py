"""Sentence embeddings: pooled hidden states, and folders that the library sentence-transformers loads.

The folder is the encoder's own Hugging Face folder with a few JSON files more, so `load_pretrained` reads it, too.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.errors import UserError, comma_list, require_one_of
from bertjax.hf.inputs import require_readable
from bertjax.hf.native_format import HEAD_BY_MODULE
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.safe_files import MODULES_FILE, SETTINGS_FILE, read_json, read_modules
from bertjax.hf.save import TokenizerSource, save_pretrained

POOLING_MODES = ("mean", "cls")
_MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}  # class -> subfolder, in order
# The keys of modes up to version 5 of the library, which later versions still read; version 6 writes the mode itself.
_MODE_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


@dataclasses.dataclass(frozen=True)
class Pooling:
    """Pooling of hidden states to one embedding per text.

    Attributes:
        mode: "mean" of the real tokens, or "cls", the first token.
        normalize: scale to length one, so that dot products are cosines.
        max_length: tokens of a text that are read; None = all that the model can read.

    Raises:
        UserError: a value is not supported.
    """

    mode: str = "mean"
    normalize: bool = True
    max_length: int | None = None

    def __post_init__(self) -> None:
        require_one_of("pooling", self.mode, POOLING_MODES)
        if self.max_length is not None and self.max_length < 1:
            raise UserError(f"max_length must be at least 1, not {self.max_length}")


@functools.partial(jax.jit, static_argnums=(2, 3))
def pool(hidden: Float[Array, "B S D"], mask: Int[Array, "B S"], mode: str, normalize: bool) -> Float[Array, "B D"]:
    """Pools hidden states over the tokens where `mask` is 1; a sequence without any gives zeros.

    Args:
        hidden: [B, S, D].
        mask: [B, S], 1 = real token.
        mode: one of `POOLING_MODES`.
        normalize: scale to length one.
    """
    if mode == "cls":
        first = jnp.argmax(mask, axis=1)  # 0, unless padding precedes the text
        pooled = jnp.take_along_axis(hidden, first[:, None, None], axis=1)[:, 0]
    else:
        weights = mask.astype(jnp.float32)[:, :, None]
        pooled = (hidden * weights).sum(axis=1) / jnp.maximum(weights.sum(axis=1), 1.0)
    if not normalize:
        return pooled
    length = jnp.sqrt(jnp.square(pooled).sum(axis=-1, keepdims=True))
    return pooled / jnp.maximum(length, 1e-12)


def drop_heads(model: PretrainedModel) -> PretrainedModel:
    """Returns the encoder alone, with its pooler where it has one: other heads are neither run nor stored."""
    heads = tuple(head for head in model.heads if head == "pooler")
    params = {name: value for name, value in model.params.items() if HEAD_BY_MODULE.get(name, "pooler") == "pooler"}
    return dataclasses.replace(model, params=params, heads=heads)


def save_sentence_transformers(
    folder: str | os.PathLike[str],
    model: PretrainedModel,
    pooling: Pooling = Pooling(),
    *,
    tokenizer: TokenizerSource | None = None,
    card: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    sample_texts: Sequence[str] = (),
    **storage: Any,
) -> None:
    """Writes a folder that `SentenceTransformer(folder)` loads, verified as any export is.

    Args:
        folder: where to write.
        model: its heads are left out.
        pooling: how the library pools.
        tokenizer: replaces the model's own tokenizer files.
        card, overwrite, sample_texts: as of `save_pretrained`.
        **storage: `dtype` and `max_shard_bytes`, likewise.

    Raises:
        UserError: the tokenizer is missing, `max_length` exceeds the positions, or the model represents a text by its
            last token and not by the first.
    """
    tokenizer = tokenizer or model.tokenizer_files
    if not tokenizer:
        raise UserError("a folder for sentence-transformers needs the tokenizer's files; this model has none")
    encoder = drop_heads(model)
    if pooling.mode == "cls" and encoder.config.pooling == "last":
        raise UserError("pooling=cls reads the first token, but this model is summarised by its last; use mean")
    require_readable(encoder.config, pooling.max_length, "max_length")
    pooling = dataclasses.replace(pooling, max_length=pooling.max_length or encoder.config.max_position_embeddings)
    files = _library_files(pooling, encoder.config.hidden_size)
    save_pretrained(
        folder,
        encoder.params,
        encoder.config,
        heads=encoder.heads,
        tokenizer=tokenizer,
        card={**(card or {}), "sentence_vectors": _describe(pooling)},
        overwrite=overwrite,
        extra_files={name: f"{json.dumps(value, indent=2)}\n".encode() for name, value in files.items()},
        sample_texts=sample_texts,
        **storage,
    )


def read_pooling(folder: str | os.PathLike[str]) -> Pooling:
    """Reads how a sentence-transformers folder pools.

    Raises:
        UserError: the library did not write the folder, or it has modules or a mode that bertjax does not support.
    """
    folder = Path(folder)
    modules = read_modules(folder)
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], list(_MODULES)) or modules[0][1]:
        raise UserError(f"{folder / MODULES_FILE}: supported are {', '.join(_MODULES)}, not {comma_list(kinds)}")
    where = f"{modules[1][1]}/config.json"
    mode = _parse_mode(read_json(folder, where), f"{folder / where}")
    length = read_json(folder, SETTINGS_FILE).get("max_seq_length") if (folder / SETTINGS_FILE).is_file() else None
    if length is not None and type(length) is not int:
        raise UserError(f"{folder / SETTINGS_FILE}: max_seq_length must be a whole number, not {length!r}")
    return Pooling(mode, len(modules) == 3, length)


def _parse_mode(values: Mapping[str, Any], where: str) -> str:
    modes = [mode for mode, key in _MODE_KEYS.items() if values.get(key) is True]
    if "pooling_mode" in values:
        value = values["pooling_mode"]
        modes = value if isinstance(value, list) else [value]
    if len(modes) != 1 or modes[0] not in POOLING_MODES:
        raise UserError(f"{where}: pooling must be {' or '.join(POOLING_MODES)}, not {comma_list(modes)}")
    return str(modes[0])


def _library_files(pooling: Pooling, hidden_size: int) -> dict[str, Any]:
    """Returns the library's files by name, in the form that its versions from 2 on read."""
    modules = list(_MODULES.items())[: 3 if pooling.normalize else 2]
    modes = {key: mode == pooling.mode for mode, key in _MODE_KEYS.items()}
    files = {
        MODULES_FILE: [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (kind, path) in enumerate(modules)
        ],
        SETTINGS_FILE: {"max_seq_length": pooling.max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        f"{_MODULES['Pooling']}/config.json": {
            "word_embedding_dimension": hidden_size,
            **modes,
            "include_prompt": True,
        },
    }
    return files | ({f"{_MODULES['Normalize']}/config.json": {}} if pooling.normalize else {})


def _describe(pooling: Pooling) -> str:
    pooled = "the mean of the tokens' hidden states" if pooling.mode == "mean" else "the first token's hidden state"
    scaled = ", scaled to length one" if pooling.normalize else ""
    return f"{pooled}{scaled}, of at most {pooling.max_length} tokens"
