"""Shared by the tests of every recipe: a small version of each, and a toy corpus in the format that it reads."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config.model import encoder_config
from bertjax.config.overrides import load_config
from bertjax.data.corpus import Corpus, offsets
from bertjax.data.formats import make_format
from bertjax.experiment import build
from bertjax.experiment import config as settings
from bertjax.models.model import init_params
from bertjax.objectives.base import Network, Objective
from bertjax.types import Vocabulary

CONFIGS = Path(__file__).parents[2] / "configs"
S, MAXIMUM = 32, 5
SMALL = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 24, "initializer_range": 0.2}
SPECIAL_IDS = types.SimpleNamespace(pad_id=0, cls_id=2, sep_id=3)


def corpus() -> Corpus:
    """Returns documents of a few sentences, some with one sentence that is too short for a row."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(2, 9, 26)
    documents = offsets([1, 3, 2, 1, 6, 1, 4, 2, 1, 5])
    return Corpus(
        [rng.integers(5, 200, lengths.sum()).astype(np.int32)], lengths, documents, np.zeros(0, np.int64), "toy"
    )


def epoch_of(form: str, packing: str) -> dict[str, jax.Array]:
    """Returns all rows of an epoch."""
    settings: dict[str, Any] = {"seq_len": S, "seed": 1, "special_ids": SPECIAL_IDS, "max_examples": MAXIMUM}
    made = make_format(form, corpus(), packing=packing, **settings)
    batch = made.sequences(0, np.arange(made.num_sequences(0)))
    return {name: jnp.asarray(array) for name, array in batch.items()}


def objective_of(
    recipe: str, vocabulary: Vocabulary, packing: str = "best_fit", dropout: float = 0.0
) -> tuple[Objective, str, Any]:
    """Returns a recipe in float32, two layers of 16, one rate of dropout; its form, and its frozen parameters.

    Of a mixture, it is the member named after the recipe; the rows determine which member they belong to.
    """
    spec, _, member = recipe.partition(" ")
    name, _, size = spec.partition(":")
    cfg = load_config(f"{CONFIGS / name}.py:{size or 'smoke'}")
    cfg.train.compute_dtype = "float32"
    cfg.data.seq_len, cfg.data.packing, cfg.data.pack_examples = S, packing, MAXIMUM
    cfg.data.example_format = "block" if name == "xlnet" else cfg.data.example_format  # rows of single examples
    cfg.data.example_format = (
        "doc_sentences" if name == "roberta" else cfg.data.example_format
    )  # full rows cannot be packed
    cfg.model.update(
        SMALL
        | {"max_position_embeddings": S, "local_attention": 4 if name == "modernbert" else cfg.model.local_attention}
    )
    cfg.model.embedding_size = 8 if name == "albert" else cfg.model.embedding_size
    for rate in ("hidden_dropout", "attention_dropout", "attention_output_dropout", "activation_dropout"):
        cfg.model[rate] = dropout
    settings._check_packing(settings.Config.read(cfg))
    if cfg.objective.name != "distillation":
        objective: Any = build.make_objective(settings.Config.read(cfg), vocabulary)
        return objective.by_name[member] if member else objective, cfg.data.example_format, {}
    config = encoder_config(cfg, vocabulary)
    objective = build.make_objective(settings.Config.read(cfg), vocabulary, Network(config, ("mlm",)))
    return objective, cfg.data.example_format, objective.frozen(init_params(config, ("mlm",), jax.random.key(7)))
