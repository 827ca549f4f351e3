"""What a model card tells of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bertjax.config import parse_objective
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
        "objective": _objective_in_words(cfg),
        "steps": step,
        "batch_size": cfg.train.batch_size,
        "seq_len": cfg.data.seq_len,
        "tokens_seen": amounts(cfg, step)[1],
        "tokenizer": f"{tokenizer.kind}, {tokenizer.size:,} pieces",
        "seed": cfg.seed,
        "eval": {name: measured[name] for name in kept if math.isfinite(measured[name])},
    }


def _objective_in_words(cfg: ConfigDict) -> str:
    name = cfg.objective.name
    plain = {
        "clm": "causal language modelling",
        "plm": "permutation language modelling",
        "rtd": "replaced token detection",
        "mixture": f"masked and causal language modelling ({', '.join(cfg.objective.mixture)})",
    }
    if name in plain:
        return plain[name]
    if name == "distill":
        return f"distillation ({', '.join(parse_objective.distill_config(cfg).weights)})"
    if name == "contrastive":
        words = " and masked language modelling" if cfg.objective.mlm_weight else ""
        return f"contrastive sentence embeddings{words}"
    parts = ["masked language modelling"]
    parts += {"nsp": ["next-sentence prediction"], "sop": ["sentence-order prediction"]}.get(cfg.objective.pair, [])
    parts += ["the span-boundary objective"] if cfg.objective.span_boundary else []
    return " and ".join(parts)
