"""Recipes of `configs/finetune/`: those of the authors of every family, else BERT's, and of sequence to sequence."""

from __future__ import annotations

import functools
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.extensions import TASK_KINDS
from bertjax.config.nodes import derived, reference
from bertjax.errors import require_one_of

Values = dict[str, Any]

_QA: Values = {"task.max_length": 384, "task.qa.doc_stride": 128, "task.qa.max_question_length": 64}
# RoBERTa, ALBERT and DeBERTa were trained with Adam as torch has it; BERT and ELECTRA without its bias correction.
_CORRECTED: Values = {"optimizer.bias_correction": True, "schedule.name": "linear"}

# family -> what all of its tasks share, and what a kind has of its own; `warmup` is a share of the run.
RECIPES: dict[str, dict[str, Values]] = {
    # google-research/bert: run_classifier.py, run_squad.py; of the paper's 2e-5, 3e-5, 5e-5 x 16, 32 x 2 to 4 epochs
    "bert": {
        "all": {"optimizer.learning_rate": 2e-5, "task.batch_size": 32, "task.epochs": 3.0, "warmup": 0.1},
        "tokens": {"optimizer.learning_rate": 5e-5},
        "qa": {**_QA, "optimizer.learning_rate": 3e-5, "task.batch_size": 12, "task.epochs": 2.0},
    },
    # google-research/bert, the 24 smaller models: the best of 3e-4, 1e-4, 5e-5, 3e-5 x 8 to 128, 4 epochs
    "bert-small": {
        "all": {"optimizer.learning_rate": 1e-4, "task.batch_size": 32, "task.epochs": 4.0, "warmup": 0.1},
        "qa": _QA,
    },
    # arXiv:1907.11692, tables 10: 1e-5, 2e-5, 3e-5 x 16, 32, up to 10 epochs; SQuAD 1.5e-5 x 48, 2 epochs
    "roberta": {
        "all": {
            **_CORRECTED,
            "optimizer.learning_rate": 2e-5,
            "optimizer.b2": 0.98,
            "optimizer.weight_decay": 0.1,
            "task.batch_size": 16,
            "task.epochs": 10.0,
            "warmup": 0.06,
        },
        "qa": {
            **_QA,
            "optimizer.learning_rate": 1.5e-5,
            "optimizer.weight_decay": 0.01,
            "task.batch_size": 48,
            "task.epochs": 2.0,
        },
    },
    # google-research/albert: SST-2 1e-5 x 32, 20,935 steps, 1,256 of them warmup; SQuAD 1.1 5e-5 x 48, 3,649 steps
    "albert": {
        "all": {
            **_CORRECTED,
            "optimizer.learning_rate": 1e-5,
            "task.batch_size": 32,
            "task.epochs": 10.0,
            "warmup": 0.06,
            "model.classifier_dropout": 0.1,
        },
        "qa": {**_QA, "optimizer.learning_rate": 5e-5, "task.batch_size": 48, "task.epochs": 2.0, "warmup": 0.1},
    },
    # zihangdai/xlnet: scripts/tpu_squad_large.sh, 3e-5 x 48, 8,000 steps, 1,000 of them warmup, to 0
    "xlnet": {
        "all": {
            **_CORRECTED,
            "optimizer.learning_rate": 3e-5,
            "optimizer.weight_decay": 0.0,
            "task.batch_size": 48,
            "task.epochs": 4.0,
            "warmup": 0.125,
        },
        "qa": {"task.max_length": 512, "task.qa.doc_stride": 384},
    },
    # google-research/electra: configure_finetuning.py; 10 epochs for RTE and STS, 2 for SQuAD; set task.swap_pairs for
    # MRPC and STS
    "electra": {
        "all": {
            "optimizer.learning_rate": 1e-4,
            "optimizer.layerwise_lr_decay": 0.8,
            "optimizer.layerwise_lr_decay_top": 2,
            "schedule.name": "electra",
            "task.batch_size": 32,
            "task.epochs": 3.0,
            "warmup": 0.1,
        },
        "regression": {"task.epochs": 10.0},
        "qa": {**_QA, "task.max_length": 512, "task.epochs": 2.0},
    },
    "electra-large": {"all": {"optimizer.learning_rate": 5e-5, "optimizer.layerwise_lr_decay": 0.9}},
    # microsoft/DeBERTa, MNLI: v3-base 1.5e-5 x 64, 3 epochs, 1,000 steps of warmup; v3-large 7e-6, 2 epochs
    "deberta": {
        "all": {
            **_CORRECTED,
            "optimizer.learning_rate": 1.5e-5,
            "task.batch_size": 64,
            "task.epochs": 3.0,
            "warmup": 0.05,
        },
        "qa": _QA,
    },
    "deberta-large": {"all": {"optimizer.learning_rate": 7e-6, "task.epochs": 2.0, "model.classifier_dropout": 0.3}},
    # FinBERT (arXiv:1908.10063): unfreezing by a third of an epoch, rates that shrink by 0.85, roots as class weights
    "finbert": {
        "all": {
            "optimizer.learning_rate": 2e-5,
            "optimizer.layerwise_lr_decay": 0.85,
            "optimizer.layerwise_lr_decay_top": 1,
            "schedule.name": "linear",
            "task.batch_size": 64,
            "task.epochs": 6.0,
            "task.max_length": 64,
            "task.unfreeze_epochs": 1 / 3,
            "warmup": 0.2,
        },
        "classification": {"task.class_weights": ("sqrt",)},
        "qa": {**_QA, "task.batch_size": 12},
    },
    # ProsusAI/finbert: finbert/finbert.py, which differs from the paper
    "finbert-code": {
        "all": {"optimizer.layerwise_lr_decay": 1 / 1.2, "task.batch_size": 32, "task.epochs": 4.0},
        "classification": {"task.class_weights": ("balanced",)},
    },
    # ULMFiT (arXiv:1801.06146): one group an epoch, each layer 2.6 times as slow as the next, slanted triangles
    "ulmfit": {
        "all": {
            "optimizer.learning_rate": 1e-4,
            "optimizer.b1": 0.7,
            "optimizer.b2": 0.99,
            "optimizer.bias_correction": True,
            "optimizer.layerwise_lr_decay": 1 / 2.6,
            "optimizer.layerwise_lr_decay_top": 0,
            "schedule.name": "slanted_triangular",
            "task.batch_size": 64,
            "task.epochs": 8.0,
            "task.unfreeze_epochs": 1.0,
            "warmup": 0.1,
        },
        "qa": {**_QA, "task.batch_size": 12},
    },
}
_OF_KIND: dict[str, Values] = {"tokens": {"task.max_length": 256}}
_AFTER = {"electra-large": "electra", "deberta-large": "deberta", "finbert-code": "finbert"}

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
SEQ2SEQ_RECIPES: dict[str, Values] = {
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


def make_task(config: ConfigDict, kind: str, family: str = "bert") -> ConfigDict:
    """Turns a base config into one for a task.

    Args:
        config: The base config, which is changed.
        kind: Value of `task.kind`.
        family: Name of `RECIPES`.

    Returns:
        The same config.

    Raises:
        UserError: The kind or the recipe is unknown.
    """
    require = TASK_KINDS.require_no_clash if kind in TASK_KINDS.builtin else TASK_KINDS.load  # imports none of ours
    require(kind, f"the kind {kind}")
    require_one_of("the recipe", family, tuple(RECIPES))
    values = dict(_OF_KIND.get(kind, {}))
    for name in (_AFTER.get(family), family):
        if name is not None:
            values |= RECIPES[name].get("all", {}) | RECIPES[name].get(kind, {})
    return _set_values(config, kind, values)


def make_seq2seq(config: ConfigDict, recipe: str) -> ConfigDict:
    """Turns a base config into one for sequence to sequence, in place, and returns it.

    Raises:
        UserError: The recipe is unknown.
    """
    require_one_of("the recipe", recipe, tuple(SEQ2SEQ_RECIPES))
    return _set_values(config, "seq2seq", SEQ2SEQ_RECIPES[recipe])


def _set_values(config: ConfigDict, kind: str, values: Values) -> ConfigDict:
    config.objective.name, config.task.kind, config.checkpoint.keep = "task", kind, 1
    for key, value in values.items():
        if key != "warmup":
            reference(config, key).set(value)
    at_least = 1 if config.schedule.name == "slanted_triangular" else 0  # which begins with a rise
    warmup_steps = functools.partial(_warmup_steps, warmup=values["warmup"], at_least=at_least)
    config.schedule.warmup_steps = derived(config, "train.num_steps", warmup_steps)
    return config


def _warmup_steps(steps: int, warmup: float, at_least: int) -> int:
    """Returns a share of the run or, of a number of steps, at most a fifth of the run."""
    return max(int(steps * warmup + 0.5), at_least) if warmup < 1 else min(int(warmup), max(steps // 5, 1))
