"""The protocols of the six extensions, and functions that most of them need.

`docs/extending.md` explains them. A name is imported when it is first used, so that a module that only declares an
extension (a `SourceKind`, a `Family`) loads no jax.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax.config.fields import Reader as Reader
    from bertjax.config.fields import linked as linked
    from bertjax.config.fields import setting as setting
    from bertjax.config.model import EncoderConfig as EncoderConfig
    from bertjax.config.sources import SourceKind as SourceKind
    from bertjax.config.task import TaskConfig as TaskConfig
    from bertjax.errors import UserError as UserError
    from bertjax.hf.encoder_decoder.family import EncoderDecoderFamily as EncoderDecoderFamily
    from bertjax.hf.encoder_decoder.family import joint_axis_sizes as joint_axis_sizes
    from bertjax.hf.encoder_decoder.family import network_entries as network_entries
    from bertjax.hf.keymap import Entry as Entry
    from bertjax.hf.keymap import KeyMap as KeyMap
    from bertjax.hf.keymaps.family import Family as Family
    from bertjax.models.attention import Attention as Attention
    from bertjax.models.attention import dot_product_scores as dot_product_scores
    from bertjax.models.attention_context import AttentionContext as AttentionContext
    from bertjax.models.model import bind as bind
    from bertjax.models.model import init_params as init_params
    from bertjax.objectives.base import FlopsTerm as FlopsTerm
    from bertjax.objectives.base import Network as Network
    from bertjax.objectives.base import Objective as Objective
    from bertjax.objectives.base import StepInputs as StepInputs
    from bertjax.objectives.base import encoder_inputs as encoder_inputs
    from bertjax.objectives.base import example_keys as example_keys
    from bertjax.objectives.masking.corrupt import mask_batch as mask_batch
    from bertjax.objectives.masking.settings import Masking as Masking
    from bertjax.tasks.base import TaskKind as TaskKind
    from bertjax.tasks.evaluate import EvalResult as EvalResult
    from bertjax.types import Sum as Sum
    from bertjax.types import Vocabulary as Vocabulary

_NAMES = {
    "config.fields": "Reader linked setting",
    "config.model": "EncoderConfig",
    "config.sources": "SourceKind",
    "config.task": "TaskConfig",
    "errors": "UserError",
    "hf.encoder_decoder.family": "EncoderDecoderFamily network_entries joint_axis_sizes",
    "hf.keymap": "Entry KeyMap",
    "hf.keymaps.family": "Family",
    "models.attention": "Attention dot_product_scores",
    "models.attention_context": "AttentionContext",
    "models.model": "bind init_params",
    "objectives.base": "FlopsTerm Network Objective StepInputs encoder_inputs example_keys",
    "objectives.masking.corrupt": "mask_batch",
    "objectives.masking.settings": "Masking",
    "tasks.base": "TaskKind",
    "tasks.evaluate": "EvalResult",
    "types": "Sum Vocabulary",
}
_HOMES = {name: f"bertjax.{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Imports a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'bertjax.extensions' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
