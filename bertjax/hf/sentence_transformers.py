"""Sentence embeddings: pooled hidden states, and folders that the library sentence-transformers loads.

The folder is the encoder's own Hugging Face folder with a few JSON files more, so `load_pretrained` reads it, too.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, require_one_of
from bertjax.hf.forward import require_readable
from bertjax.hf.native_format import HEAD_BY_MODULE
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.safe_files import LIBRARY_FILE, MODULES_FILE, SETTINGS_FILE
from bertjax.hf.save import TokenizerSource, save_pretrained

_MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}  # class -> subfolder, in order
# The keys of modes up to version 5 of the library, which later versions still read; version 6 writes the mode itself.
MODE_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
POOLING_MODES = tuple(MODE_KEYS)
_IN_WORDS = {
    "cls": "the first token",
    "mean": "the mean of the tokens",
    "max": "the maximum of the tokens",
    "mean_sqrt_len_tokens": "the sum of the tokens over the root of their number",
    "weightedmean": "the mean of the tokens, weighted by position",
    "lasttoken": "the last token",
}
Layer = Callable[[np.ndarray], np.ndarray]
"""A function of vectors [n, D], of one of the library's modules."""


@dataclasses.dataclass(frozen=True)
class Pooling:
    """Settings by which a vector is made of a text.

    Attributes:
        mode: one of `POOLING_MODES`, such as "mean" of the real tokens or "cls", the first token; or several that are
            joined by "+", whose vectors are concatenated.
        normalize: scale to length one, so that dot products are cosines.
        max_length: tokens of a text that are read; None = all that the model can read.
        prompt: precedes every text.
        include_prompt: False: the tokens of the prompt are read, and not pooled.
        lowercase: read texts in lower case, whatever the tokenizer does.
        layers: further modules, applied before `normalize`.
        truncate_dim: only so many numbers of a vector are kept; None = all.

    Raises:
        UserError: a value is not supported.
    """

    mode: str = "mean"
    normalize: bool = True
    max_length: int | None = None
    prompt: str = ""
    include_prompt: bool = True
    lowercase: bool = False
    layers: tuple[Layer, ...] = ()
    truncate_dim: int | None = None

    def __post_init__(self) -> None:
        for mode in self.mode.split("+"):
            require_one_of("pooling", mode, POOLING_MODES)
        if self.max_length is not None and self.max_length < 1:
            raise UserError(f"max_length must be at least 1, not {self.max_length}")

    def __str__(self) -> str:
        pooled = " and ".join(_IN_WORDS[mode] for mode in self.mode.split("+"))
        prompt = f" after {self.prompt!r}" + ", whose tokens do not count" * (not self.include_prompt)
        parts = [
            pooled + prompt * bool(self.prompt),
            "lower case" * self.lowercase,
            f"{len(self.layers)} further modules" * bool(self.layers),
            "scaled to length one" * self.normalize,
            f"the first {self.truncate_dim} numbers" * (self.truncate_dim is not None),
        ]
        return ", ".join(filter(None, parts))


@functools.partial(jax.jit, static_argnums=2)
def pool(hidden: Float[Array, "B S D"], mask: Int[Array, "B S"], mode: str, skipped: int = 0) -> Float[Array, "B M"]:
    """Pools hidden states over the tokens where `mask` is 1, as sentence-transformers does.

    Args:
        hidden: [B, S, D].
        mask: [B, S], 1 = real token.
        mode: as of `Pooling`.
        skipped: first tokens of every sequence that do not count.
    """
    return pool_segments(hidden, (mask > 0).astype(jnp.int32), 1, mode, skipped)[:, 0]


def pool_segments(
    hidden: Float[Array, "B S D"], segment_ids: Int[Array, "B S"], count: int, mode: str, skipped: int = 0
) -> Float[Array, "B E M"]:
    """Pools the hidden states of each of E texts that share a sequence; zeros for those that it does not hold.

    Args:
        hidden: [B, S, D].
        segment_ids: [B, S], 1 to E, 0 = padding.
        count: E.
        mode, skipped: as of `pool`, for each text.
    """
    is_text = segment_ids[:, :, None] == jnp.arange(1, count + 1)[None, None, :]
    order = jnp.cumsum(is_text, axis=1) * is_text  # 1 for the first token of each text
    counts = order > skipped
    total = counts.sum(axis=1, keepdims=True)
    by_order = counts * order
    last = order.max(axis=1, keepdims=True)
    weights = {
        "cls": lambda: order == skipped + 1,
        "lasttoken": lambda: counts & (order == last),
        "mean": lambda: counts / jnp.maximum(total, 1),
        "mean_sqrt_len_tokens": lambda: counts / jnp.sqrt(jnp.maximum(total, 1)),
        "weightedmean": lambda: by_order / jnp.maximum(by_order.sum(axis=1, keepdims=True), 1),
    }

    def pooled(name: str) -> Float[Array, "B E D"]:
        if name == "max":
            of_text = [jnp.where(counts[:, :, each, None], hidden, -jnp.inf).max(axis=1) for each in range(count)]
            return jnp.stack(of_text, axis=1)
        values = weights[name]().astype(hidden.dtype)
        return jnp.einsum("bse,bsd->bed", values, hidden, precision=jax.lax.Precision.HIGHEST)

    return jnp.concatenate([pooled(name) for name in mode.split("+")], axis=-1)


def scale_to_unit_length(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors [n, D] of length one."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32(1e-12))


def summary_mode(config: EncoderConfig) -> str:
    """Returns the mode that takes the token which represents a text: the last one in XLNet and GPT-2."""
    return "lasttoken" if config.pooling == "last" else "cls"


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
        raise UserError("pooling=cls reads the first token, but this model is summarized by its last; use mean")
    require_readable(encoder.config, pooling.max_length, "max_length")
    plain = Pooling(pooling.mode, pooling.normalize, pooling.max_length)
    if pooling != plain or "+" in pooling.mode:
        raise UserError(f"a pooling like this cannot be written ({pooling}); model.save_pretrained keeps its files")
    pooling = dataclasses.replace(pooling, max_length=pooling.max_length or encoder.config.max_position_embeddings)
    files = library_files(pooling, encoder.config.hidden_size)
    save_pretrained(
        folder,
        encoder.params,
        encoder.config,
        heads=encoder.heads,
        tokenizer=tokenizer,
        card={**(card or {}), "sentence_vectors": f"{pooling}, of at most {pooling.max_length} tokens"},
        overwrite=overwrite,
        extra_files=files,
        sample_texts=sample_texts,
        **storage,
    )


def library_files(pooling: Pooling, hidden_size: int) -> dict[str, bytes]:
    """Returns the contents of the library's files by name, in the form that its versions from 2 on read."""
    modules = list(_MODULES.items())[: 3 if pooling.normalize else 2]
    modes = {key: mode in pooling.mode.split("+") for mode, key in MODE_KEYS.items()}
    files: dict[str, Any] = {
        MODULES_FILE: [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (kind, path) in enumerate(modules)
        ],
        SETTINGS_FILE: {"max_seq_length": pooling.max_length, "do_lower_case": False},
        LIBRARY_FILE: {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
        f"{_MODULES['Pooling']}/config.json": {
            "word_embedding_dimension": hidden_size,
            **modes,
            "include_prompt": True,
        },
    }
    files |= {f"{_MODULES['Normalize']}/config.json": {}} if pooling.normalize else {}
    return {name: f"{json.dumps(value, indent=2)}\n".encode() for name, value in files.items()}
