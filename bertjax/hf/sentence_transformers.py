"""One vector a text: pooled hidden states, and folders that the library sentence-transformers loads.

The folder is the encoder's own Hugging Face folder with a few JSON files beside it, so `load_pretrained` reads it, too.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.errors import UserError, require_one_of
from bertjax.hf.export_plan import HEAD_BY_MODULE
from bertjax.hf.inputs import max_input_length
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.safe_files import read_json
from bertjax.hf.save import TokenizerSource, save_pretrained

POOLING_MODES = ("mean", "cls")
MODULES_FILE = "modules.json"
SETTINGS_FILE = "sentence_bert_config.json"
_POOLING = "1_Pooling/config.json"
_NORMALIZE = "2_Normalize/config.json"
# The words of the library up to version 5 for a mode, which later ones still read; version 6 writes the mode itself.
_OLD_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


@dataclasses.dataclass(frozen=True)
class Pooling:
    """How a text becomes a vector; raises `UserError` for what there is not.

    mode        mean of the real tokens, or cls: the first token
    normalize   scaled to length one, so that products are cosines
    max_length  tokens of a text that are read; None = all that the model can
    """

    mode: str = "mean"
    normalize: bool = True
    max_length: int | None = None

    def __post_init__(self) -> None:
        require_one_of("pooling", self.mode, POOLING_MODES)
        if self.max_length is not None and self.max_length < 1:
            raise UserError(f"max_length must be at least 1, not {self.max_length}")


def embed_ids(
    model: PretrainedModel,
    input_ids: Any,
    attention_mask: Any = None,
    token_type_ids: Any = None,
    pooling: Pooling = Pooling(),
) -> Float[Array, "B D"]:
    """The vectors of texts given as ids [B, S], with their special pieces; float32."""
    hidden = drop_heads(model)(input_ids, attention_mask, token_type_ids).last_hidden_state
    mask = jnp.ones(hidden.shape[:2], jnp.int32) if attention_mask is None else jnp.asarray(attention_mask, jnp.int32)
    return pool(hidden, mask, pooling.mode, pooling.normalize)


@functools.partial(jax.jit, static_argnums=(2, 3))
def pool(hidden: Float[Array, "B S D"], mask: Int[Array, "B S"], mode: str, normalize: bool) -> Float[Array, "B D"]:
    """Pools hidden states over the tokens where `mask` is 1; a row without any gives zero."""
    if mode == "cls":
        first = jnp.argmax(mask, axis=1)  # 0, unless padding stands in front
        vectors = jnp.take_along_axis(hidden, first[:, None, None], axis=1)[:, 0]
    else:
        weights = mask.astype(jnp.float32)[:, :, None]
        vectors = (hidden * weights).sum(axis=1) / jnp.maximum(weights.sum(axis=1), 1.0)
    if not normalize:
        return vectors
    length = jnp.sqrt(jnp.square(vectors).sum(axis=-1, keepdims=True))
    return vectors / jnp.maximum(length, 1e-12)


def drop_heads(model: PretrainedModel) -> PretrainedModel:
    """The encoder alone, with its pooler where it has one: no head's products are computed or stored."""
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
) -> None:
    """Writes a folder that `SentenceTransformer(folder)` loads, whole or not at all, verified as any export is.

    `tokenizer` stands in for the model's own files. Raises `UserError` for a model without a tokenizer, with a
    `max_length` beyond its positions, or that `transformers` has no class for.
    """
    tokenizer = tokenizer or model.tokenizer_files
    if not tokenizer:
        raise UserError("a folder for sentence-transformers needs the tokenizer's files; this model has none")
    encoder = drop_heads(model)
    if pooling.mode == "cls" and encoder.config.pooling == "last":
        raise UserError("pooling=cls reads the first token, but this model's summary is its last; use mean")
    longest = max_input_length(encoder.config)
    if pooling.max_length is not None and longest is not None and pooling.max_length > longest:
        raise UserError(f"max_length {pooling.max_length} is beyond the {longest} tokens that the model can read")
    pooling = dataclasses.replace(pooling, max_length=pooling.max_length or encoder.config.max_position_embeddings)
    save_pretrained(
        folder,
        encoder.params,
        encoder.config,
        heads=encoder.heads,
        tokenizer=tokenizer,
        card={**(card or {}), "sentence_vectors": _described(pooling)},
        overwrite=overwrite,
        extra_files={name: json.dumps(value, indent=2) + "\n" for name, value in _files(encoder, pooling).items()},
        require_transformers=True,
    )


def read_pooling(folder: str | os.PathLike[str]) -> Pooling:
    """How the vectors of a sentence-transformers folder are made; raises `UserError` for what `embed_ids` cannot do."""
    folder = Path(folder)
    steps = _read_steps(folder)
    kinds = [kind for kind, _ in steps]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or steps[0][1]:
        raise UserError(
            f"{folder / MODULES_FILE}: only Transformer, Pooling, Normalize are supported, not {', '.join(kinds)}"
        )
    where = f"{steps[1][1]}/config.json"
    mode = _read_mode(read_json(folder, where), f"{folder / where}")
    length = read_json(folder, SETTINGS_FILE).get("max_seq_length") if (folder / SETTINGS_FILE).is_file() else None
    if length is not None and type(length) is not int:
        raise UserError(f"{folder / SETTINGS_FILE}: max_seq_length must be a whole number, not {length!r}")
    return Pooling(mode, len(steps) == 3, length)


def _read_steps(folder: Path) -> list[tuple[str, str]]:
    """(class without its module, subfolder) of every module, in their order."""
    where = folder / MODULES_FILE
    try:
        steps = json.loads(where.read_text(encoding="utf-8"))
        return [(step["type"].rpartition(".")[2], step["path"]) for step in sorted(steps, key=lambda step: step["idx"])]
    except FileNotFoundError:
        raise UserError(f"{folder} is no folder of sentence-transformers: it has no {MODULES_FILE}") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(f"{where} is not a list of modules with idx, path and type") from None


def _read_mode(values: Mapping[str, Any], where: str) -> str:
    modes = [mode for mode, key in _OLD_KEYS.items() if values.get(key) is True]
    if "pooling_mode" in values:
        given = values["pooling_mode"]
        modes = given if isinstance(given, list) else [given]
    if len(modes) != 1 or modes[0] not in POOLING_MODES:
        raise UserError(
            f"{where}: pooling must be {' or '.join(POOLING_MODES)}, not {', '.join(map(str, modes)) or 'nothing'}"
        )
    return str(modes[0])


def _files(model: PretrainedModel, pooling: Pooling) -> dict[str, Any]:
    """The library's files by name, in the form that its versions from 2 on read."""
    parts = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(parts[: 3 if pooling.normalize else 2])
    ]
    modes = {key: mode == pooling.mode for mode, key in _OLD_KEYS.items()}
    files = {
        MODULES_FILE: modules,
        SETTINGS_FILE: {"max_seq_length": pooling.max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        _POOLING: {"word_embedding_dimension": model.config.hidden_size, **modes, "include_prompt": True},
    }
    return files | ({_NORMALIZE: {}} if pooling.normalize else {})


def _described(pooling: Pooling) -> str:
    what = "the mean of the tokens' hidden states" if pooling.mode == "mean" else "the first token's hidden state"
    scaled = ", scaled to length one" if pooling.normalize else ""
    return f"{what}{scaled}, of at most {pooling.max_length} tokens"
