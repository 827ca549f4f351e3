"""Pretrains encoder language models in JAX/Flax. `import bertjax` is free: what is heavy is imported when used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax.hf.pretrained import load_pretrained as load_pretrained

__version__ = "0.1.0"

_HOMES = {"load_pretrained": "bertjax.hf.pretrained"}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Imports a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'bertjax' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
