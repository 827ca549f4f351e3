"""Published sizes as values, each citing its table. Needs no jax."""

from __future__ import annotations

from typing import Any

from bertjax.types import UserError


def _bert(layers: int, hidden: int) -> dict[str, Any]:
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
    }


# google-research/bert:README.md, "Smaller BERT Models" table (arXiv:1908.08962): L in {2..12} x H in {128..768},
# A = H / 64, F = 4 H; base and large: arXiv:1810.04805, section 3.
PRESETS: dict[str, dict[str, Any]] = {
    "bert-tiny": _bert(2, 128),
    "bert-mini": _bert(4, 256),
    "bert-small": _bert(4, 512),
    "bert-medium": _bert(8, 512),
    "bert-base": _bert(12, 768),
    "bert-large": _bert(24, 1024),
    **{
        f"bert-{layers}x{hidden}": _bert(layers, hidden)
        for layers in (2, 4, 6, 8, 10, 12)
        for hidden in (128, 256, 512, 768)
    },
}


def preset(name: str) -> dict[str, Any]:
    """The sizes of a published model; an unknown name lists those there are."""
    if name not in PRESETS:
        named = [key for key in PRESETS if "x" not in key]
        raise UserError(
            f"unknown model preset {name!r}; there are {', '.join(named)} and bert-LxH for L in 2..12, H in 128..768"
        )
    return dict(PRESETS[name])
