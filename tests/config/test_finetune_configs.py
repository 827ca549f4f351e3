"""Finetuning recipes: each can be loaded and checked, and has the settings of its authors."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertjax.config.encoder_decoder import encoder_decoder_config
from bertjax.config.extensions import TASK_KINDS
from bertjax.config.fields import Reader
from bertjax.config.finetune_recipes import RECIPES, SEQ2SEQ_RECIPES
from bertjax.config.overrides import load_config
from bertjax.config.task import task_config
from bertjax.errors import UserError
from bertjax.experiment.config import parse
from bertjax.training.optimizer import Optimizer

CONFIGS = Path(__file__).parents[2] / "configs" / "finetune"


HEADS = [kind for kind in TASK_KINDS if kind != "seq2seq"]


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_of_every_kind(kind: str, recipe: str) -> None:
    cfg = load_config(f"{CONFIGS / kind}.py:{recipe}")
    cfg.task.train = ({"tokens": "conll", "qa": "squad"}.get(kind, "tsv") + ":train",)
    cfg.train.num_steps = 1000
    parse(cfg)
    assert task_config(cfg).kind == kind and cfg.objective.name == "task"
    assert 0 < parse(cfg).schedule.warmup_steps < 1000
    for steps in (1, 4):
        cfg.train.num_steps = steps
        parse(cfg)


@pytest.mark.parametrize("recipe", SEQ2SEQ_RECIPES)
def test_every_recipe_of_sequence_to_sequence(recipe: str) -> None:
    cfg = load_config(f"{CONFIGS}/seq2seq.py:{recipe}")
    cfg.task.train, cfg.task.eval = ("parallel:train:en-de",), ("jsonl:dev.jsonl",)
    cfg.train.num_steps = 1000
    parse(cfg)
    assert task_config(cfg).spec.has_targets and 0 < parse(cfg).schedule.warmup_steps <= 200
    assert parse(cfg).best_metric == ("eval/rougeL" if recipe == "summarization" else "eval/bleu")
    assert cfg.task.from_scratch == (recipe in ("translation", "translation-small"))
    model = encoder_decoder_config(cfg)
    assert model.decoder.causal and model.decoder.num_layers == model.encoder.num_layers


@pytest.mark.parametrize("kind", HEADS)
def test_what_pretraining_reads_does_not_concern_a_task(kind: str) -> None:
    """Neither its corpus, nor the form of its examples, nor its batches, whose size follows from the task."""
    cfg = load_config(f"{CONFIGS / kind}.py")
    cfg.task.train = ({"tokens": "conll", "qa": "squad"}.get(kind, "tsv") + ":train",)
    cfg.model.update({"preset": "roberta-base", "max_position_embeddings": 64})
    assert cfg.data.example_format == "nsp_pairs"
    parse(cfg)
    cfg.data.update({"example_format": "stream", "packing": "best_fit", "seq_len": 4096, "decontaminate": ()})
    cfg.data.sources, cfg.data.eval_sources = ("text:gone.txt", "text:gone too.txt@2"), ("text:gone.txt@2",)
    cfg.mesh.data, cfg.train.microbatches, cfg.eval.batch_size = 3, 7, 9
    parse(cfg)


def test_what_authors_say() -> None:
    """bert-family.md and modern-family.md, rows on finetuning."""
    electra = load_config(f"{CONFIGS}/classification.py:electra-large")
    assert (
        electra.optimizer.learning_rate,
        electra.optimizer.layerwise_lr_decay,
        electra.optimizer.layerwise_lr_decay_top,
    ) == (
        5e-5,
        0.9,
        2,
    )
    squad = load_config(f"{CONFIGS}/qa.py:roberta")
    assert (squad.optimizer.learning_rate, squad.task.batch_size, squad.optimizer.weight_decay) == (1.5e-5, 48, 0.01)
    bert = load_config(f"{CONFIGS}/qa.py")
    assert (bert.task.batch_size, bert.task.epochs, bert.task.max_length, bert.task.qa.doc_stride) == (
        12,
        2.0,
        384,
        128,
    )
    finbert = load_config(f"{CONFIGS}/classification.py:finbert")
    finbert.train.num_steps = 100
    assert (finbert.schedule.warmup_steps, finbert.task.class_weights, finbert.task.max_length) == (20, ("sqrt",), 64)
    assert Reader(finbert)(Optimizer).layerwise_lr_decay == 0.85 and finbert.task.unfreeze_epochs == pytest.approx(
        1 / 3
    )


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(UserError, match=r"the recipe must be one of bert, .*, not 'electro'; did you mean 'electra'"):
        load_config(f"{CONFIGS}/tokens.py:electro")
