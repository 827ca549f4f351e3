"""Corpora: sources, tokenizers, prepared corpora, example formats, packing, batches by cursor."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax.data.corpus_batches import CorpusBatches as CorpusBatches
    from bertjax.data.corpus_batches import batches as batches

__all__ = ["CorpusBatches", "batches"]


def __getattr__(name: str) -> Any:
    """Imports a public name on first use (PEP 562): submodules that need no corpus stay light."""
    if name in __all__:
        return getattr(importlib.import_module("bertjax.data.corpus_batches"), name)
    raise AttributeError(f"module 'bertjax.data' has no attribute {name!r}")
