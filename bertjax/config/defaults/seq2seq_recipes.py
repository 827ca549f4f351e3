"""Recipes of sequence to sequence, for `configs/finetune/seq2seq.py`."""

from __future__ import annotations

import functools
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.nodes import derived, reference
from bertjax.errors import require_one_of

Values = dict[str, Any]

_FROM_SCRATCH: Values = {
    "task.from_scratch": True,
    "model.preset": "transformer-base",
    "data.tokenizer": "bpe",  # of bytes: every text comes back as it was
    "data.tokenizer_family": "roberta",
    "data.lowercase": False,
    "optimizer.b2": 0.98,
    "optimizer.eps": 1e-9,
    "optimizer.bias_correction": True,
    "optimizer.weight_decay": 0.0,
    "schedule.name": "inverse_sqrt",
    "task.max_length": 128,
    "task.seq2seq.num_beams": 4,
    "task.seq2seq.length_penalty": 0.6,
    "checkpoint.keep": 5,
    "export.average_last": 5,
}

# `warmup` is a share of the run, or a number of steps
RECIPES: dict[str, Values] = {
    # arXiv:1706.03762, section 5: shared vocabulary of 37,000, 25,000 source and target tokens per step, 4,000 steps of
    # warmup to 512**-0.5 * 4000**-0.5, label smoothing 0.1; section 6.1: 5 checkpoints averaged, beam 4, alpha 0.6
    "translation": {
        **_FROM_SCRATCH,
        "data.vocab_size": 37_000,
        "optimizer.learning_rate": 7e-4,
        "optimizer.clip_norm": 0.0,
        "warmup": 4000,
        "task.batch_size": 1000,
        "task.epochs": 20.0,
    },
    # the same for some ten thousand pairs, such as Multi30k: 4 + 4 layers of 256, and more dropout
    "translation-small": {
        **_FROM_SCRATCH,
        "model.num_layers": 4,
        "model.hidden_size": 256,
        "model.num_heads": 4,
        "model.intermediate_size": 1024,
        "model.hidden_dropout": 0.3,
        "data.vocab_size": 8_000,
        "optimizer.learning_rate": 1e-3,
        "warmup": 1000,
        "task.max_length": 64,
        "task.seq2seq.max_target_length": 64,
        "task.batch_size": 128,
        "task.epochs": 20.0,
    },
    # a pretrained encoder or encoder-decoder in init_from: Adam at a small rate after a warmup, as BART is finetuned
    "translation-pretrained": {
        "optimizer.learning_rate": 5e-5,
        "optimizer.bias_correction": True,
        "optimizer.b2": 0.98,
        "schedule.name": "linear",
        "warmup": 0.05,
        "task.batch_size": 64,
        "task.epochs": 10.0,
        "task.seq2seq.num_beams": 4,
    },
    # BART on CNN / Daily Mail (facebookresearch/fairseq, examples/bart/README.summarization.md): 3e-5, 500 of 20,000
    # steps warmup, clipping at 0.1, label smoothing 0.1; at evaluation 4 beams, lengths 55 to 140, no repeated trigram
    "summarization": {
        "optimizer.learning_rate": 3e-5,
        "optimizer.bias_correction": True,
        "optimizer.clip_norm": 0.1,
        "optimizer.eps": 1e-8,
        "schedule.name": "linear",
        "warmup": 0.025,
        "task.max_length": 512,
        "task.seq2seq.max_target_length": 144,
        "task.seq2seq.max_new_tokens": 140,
        "task.seq2seq.min_new_tokens": 55,
        "task.seq2seq.num_beams": 4,
        "task.seq2seq.length_penalty": 2.0,
        "task.seq2seq.no_repeat_ngram_size": 3,
        "task.seq2seq.text_metrics": ("rouge",),
        "task.seq2seq.num_generated": 500,
        "task.batch_size": 32,
        "task.epochs": 3.0,
    },
}


def make_seq2seq(config: ConfigDict, recipe: str) -> ConfigDict:
    """Turns a base config into one for sequence to sequence, in place, and returns it; `recipe` is one of `RECIPES`.

    Raises:
        UserError: The recipe is unknown.
    """
    require_one_of("the recipe", recipe, tuple(RECIPES))
    config.objective.name, config.task.kind = "task", "seq2seq"
    config.checkpoint.keep = 1
    values = dict(RECIPES[recipe])
    warmup_steps = functools.partial(_warmup_steps, warmup=values.pop("warmup"))
    config.schedule.warmup_steps = derived(config, "train.num_steps", warmup_steps)
    for key, value in values.items():
        reference(config, key).set(value)
    return config


def _warmup_steps(steps: int, warmup: float) -> int:
    """Returns a share of the run or, of a number of steps, at most a fifth of the run."""
    return int(steps * warmup + 0.5) if warmup < 1 else min(int(warmup), max(steps // 5, 1))
