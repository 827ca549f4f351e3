"""What a model card tells of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.objectives import objective_config
from bertjax.config.phases import amounts
from bertjax.data.tokenizer import Tokenizer


def model_facts(
    cfg: ConfigDict, tokenizer: Tokenizer, tokens: int, step: int, figures: Mapping[str, float]
) -> dict[str, Any]:
    """What the model card tells of a run."""
    measured = {name.removeprefix("eval/"): value for name, value in figures.items() if name.startswith("eval/")}
    kept = [name for name in measured if "/" not in name and name.endswith(("_loss", "_accuracy"))]
    return {
        "data": f"{', '.join(cfg.data.sources)} ({tokens:,} tokens)",
        "objective": objective_config(cfg).summary,
        "steps": step,
        "batch_size": cfg.train.batch_size,
        "seq_len": cfg.data.seq_len,
        "tokens_seen": amounts(cfg, step)[1],
        "tokenizer": f"{tokenizer.kind}, {tokenizer.size:,} pieces",
        "seed": cfg.seed,
        "eval": {name: measured[name] for name in kept if math.isfinite(measured[name])},
    }
