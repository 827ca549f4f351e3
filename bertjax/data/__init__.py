"""Corpora: sources, tokenizers, prepared corpora, example formats, packing, batches by cursor."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["CorpusBatches", "batches"]


def __getattr__(name: str) -> Any:
    """Imports a public name on first use (PEP 562): it checks a whole config, which no other part of `data` does."""
    if name in __all__:
        return getattr(importlib.import_module("bertjax.experiment.loop_parts"), name)
    raise AttributeError(f"module 'bertjax.data' has no attribute {name!r}")
