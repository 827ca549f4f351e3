"""A trained model, ready to be asked: what `fill-mask`, `embed`, `similarity` and `minimal-pairs` begin with."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertjax.config.defaults import base_config
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.source_model import read_given
from bertjax.hf.pretrained import PretrainedModel
from bertjax.runtime import platform

_TOKENS = {"cpu": 8192}
_TOKENS_ELSEWHERE = 65536


class Loaded(NamedTuple):
    """A model in float32 and its tokenizer; `two_streams`: whether it reads masks by two streams, None = not known."""

    model: PretrainedModel
    tokenizer: Tokenizer
    two_streams: bool | None


def load_model(folder: Path, head: str | None = None) -> Loaded:
    """The model of a Hugging Face folder, of an export or of a run; raises `UserError` (`read_given`)."""
    given = read_given(folder, head)
    platform.use_compile_cache(base_config())
    params = jax.tree.map(jnp.asarray, given.params)
    model = PretrainedModel(build.float32_config(given.config), params, given.heads)
    return Loaded(model, given.tokenizer, None if given.objective is None else given.objective == "plm")


def require_batch_tokens(asked: int | None) -> None:
    """Raises `UserError` for what `batch_tokens` cannot take, before a model is read for nothing."""
    if asked is not None and asked < 1:
        raise UserError(f"--batch-tokens must be at least 1, not {asked}")


def batch_tokens(asked: int | None) -> int:
    """Tokens of a batch, padding included: what the user says, else what suits the platform."""
    return asked or _TOKENS.get(jax.default_backend(), _TOKENS_ELSEWHERE)
