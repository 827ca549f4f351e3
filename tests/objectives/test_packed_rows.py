"""Examples packed in rows: every objective of every family learns from them what it learns from each alone."""

from __future__ import annotations

import functools
import re
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import build, check
from bertjax.data.corpus import Corpus, offsets
from bertjax.data.forms import make_form
from bertjax.models.model import init_params
from bertjax.objectives.base import Extra, Network, Objective
from bertjax.objectives.config import MaskingConfig
from bertjax.objectives.masking.budgets import budgets, row_room
from bertjax.overrides import load_config
from bertjax.types import Params, Sum, UserError, Vocabulary

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiling is the cost
CONFIGS = Path(__file__).parents[2] / "configs"
S, MOST = 32, 5
SMALL = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 24, "initializer_range": 0.2}
SPECIAL_IDS = types.SimpleNamespace(pad_id=0, cls_id=2, sep_id=3)
RECIPES = [
    "bert",
    "modernbert",
    "electra",
    "simcse",
    *(
        pytest.param(name, marks=pytest.mark.long)
        for name in (
            "albert",
            "roberta",
            "spanbert",
            "deberta",
            "deberta:smoke-v1",
            "deberta:smoke-v2",
            "gpt2",
            "transformer",
            "distilbert",
            "minilm",
            "tinybert",
            "gpt_bert mlm",
            "gpt_bert clm",
        )
    ),
]


def corpus() -> Corpus:
    """Documents of a few sentences, some of one that is too short for a row."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(2, 9, 26)
    documents = offsets([1, 3, 2, 1, 6, 1, 4, 2, 1, 5])
    return Corpus(
        [rng.integers(5, 200, lengths.sum()).astype(np.int32)], lengths, documents, np.zeros(0, np.int64), "toy"
    )


def epoch_of(form: str, packing: str) -> dict[str, jax.Array]:
    """All rows of an epoch."""
    settings: dict[str, Any] = {"seq_len": S, "seed": 1, "special_ids": SPECIAL_IDS, "max_examples": MOST}
    made = make_form(form, corpus(), packing=packing, **settings)
    batch = made.rows(0, np.arange(made.num_rows(0)))
    return {name: jnp.asarray(array) for name, array in batch.items()}


def objective_of(recipe: str, vocabulary: Vocabulary) -> tuple[Objective, str, Any]:
    """A recipe in float32, two layers of 16 and no dropout; its form, and what it is given beside its parameters.

    Of a mixture it is the member named behind the recipe: which rows go to which is told by the rows.
    """
    spec, _, member = recipe.partition(" ")
    name, _, size = spec.partition(":")
    cfg = load_config(f"{CONFIGS / name}.py:{size or 'smoke'}")
    cfg.train.compute_dtype = "float32"
    cfg.data.seq_len, cfg.data.packing, cfg.data.pack_examples = S, "best_fit", MOST
    cfg.model.update(SMALL | {"max_position_embeddings": S, "window": 4 if name == "modernbert" else cfg.model.window})
    cfg.model.embedding_size = 8 if name == "albert" else cfg.model.embedding_size
    for rate in ("hidden_dropout", "attention_dropout", "attention_output_dropout", "activation_dropout"):
        cfg.model[rate] = 0.0
    check._check_packing(cfg)
    if cfg.objective.name != "distill":
        objective: Any = build.make_objective(cfg, vocabulary)
        return objective.members[member] if member else objective, cfg.data.form, {}
    config = check.encoder_config(cfg, vocabulary)
    objective = build.make_objective(cfg, vocabulary, Network(config, ("mlm",)))
    return objective, cfg.data.form, objective.frozen(init_params(config, ("mlm",), jax.random.key(7)))


@pytest.mark.parametrize("recipe", RECIPES)
def test_losses_and_gradients_are_those_of_the_examples_alone(recipe: str, vocabulary: Vocabulary) -> None:
    objective, form, frozen = objective_of(recipe, vocabulary)
    alone, packed = (epoch_of(form, packing) for packing in ("none", "best_fit"))
    assert len(packed["input_ids"]) < len(alone["input_ids"])
    assert int(packed["segment_ids"].max()) > 1

    @jit
    def run(params: Params, batch: dict[str, jax.Array]) -> tuple[Params, dict[str, Sum]]:
        hidden = objective.corrupt(batch, jax.random.key(1), jnp.asarray(3))
        counts = objective.counts(hidden)

        def loss(params: Params) -> tuple[jax.Array, dict[str, Sum]]:
            extra = Extra(frozen, objective.new_carry(len(batch["input_ids"])))
            sums, _ = objective.loss(params, extra, hidden, jax.random.key(2), train=False)
            return sum(w * sums[n].value / jnp.maximum(counts[n], 1) for n, w in objective.weights.items()), sums

        return jax.grad(loss, has_aux=True)(params)

    params = jit(objective.init)(jax.random.key(0))
    (slopes, sums), (slopes_alone, sums_alone) = run(params, packed), run(params, alone)
    assert sums.keys() == sums_alone.keys()
    for name, found in sums.items():
        assert found.count == sums_alone[name].count
        assert found.count > 0
        np.testing.assert_allclose(found.value, sums_alone[name].value, rtol=2e-5, err_msg=name)
    norm = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(slopes_alone)))
    assert norm > 0
    for found, wanted in zip(jax.tree.leaves(slopes), jax.tree.leaves(slopes_alone), strict=True):
        np.testing.assert_allclose(found / norm, wanted / norm, atol=1e-6)


@pytest.mark.parametrize("rate", [0.15, 0.4])
@pytest.mark.parametrize("seq_len", [64, 128, 512])
def test_rows_have_room_for_all_predictions_and_for_few_more(rate: float, seq_len: int) -> None:
    config = MaskingConfig(mask_rate=rate, max_predictions=round(rate * seq_len))
    table, rng, most = budgets(config, seq_len), np.random.default_rng(0), 8
    room = row_room(config, seq_len, most)
    for _ in range(300):
        cuts = np.sort(rng.choice(seq_len // 4, rng.integers(0, most), replace=False)) * 4
        lengths = np.diff([0, *cuts, seq_len])
        assert table[lengths].sum() <= room
    assert room <= rate * seq_len + 0.6 * most
    assert row_room(config, seq_len, 1) == config.max_predictions


@pytest.mark.parametrize("count", ["random", "ceil", "bernoulli"])
def test_the_room_of_random_numbers_grows_with_the_examples_by_one_at_most(count: str) -> None:
    config = MaskingConfig(mask_rate=0.15, count=count, max_predictions=120)
    assert row_room(config, 512, 16) <= 120 + 16
    assert row_room(MaskingConfig(count=count, max_predictions=2), 512, 16) == 32


@pytest.mark.parametrize(
    ("recipe", "form", "why"),
    [
        ("xlnet", "segments", "rows of data.form=segments are full, and go on from batch to batch"),
        ("xlnet", "stream", "rows of data.form=stream are full, and go on from batch to batch"),
        ("xlnet", "block", "objective.name=plm permutes whole rows, so that examples would see each other"),
    ],
)
def test_what_cannot_be_packed_is_refused_with_the_reason(recipe: str, form: str, why: str) -> None:
    cfg = load_config(f"{CONFIGS / recipe}.py:smoke")
    cfg.data.packing, cfg.data.form = "best_fit", form
    with pytest.raises(UserError, match=re.escape(why)):
        check.check(cfg)
