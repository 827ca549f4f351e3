"""Packed rows: every objective of every family learns the same from packed examples as from each example alone."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from masking_lab import num_predictions_by_length
from recipes_lab import CONFIGS, MAXIMUM, epoch_of, objective_of

from bertjax.config.overrides import load_config
from bertjax.errors import UserError
from bertjax.experiment.config import parse
from bertjax.objectives.base import StepInputs
from bertjax.objectives.masking.corrupt import max_sequence_predictions
from bertjax.objectives.masking.settings import Masking
from bertjax.types import Params, Sum, Vocabulary

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
# An encoder, two networks, encoder and decoder; all other recipes are weekly.
LONG = ["bert", "electra", "t5"]
WEEKLY = ["modernbert", "simcse", "spanbert", "deberta:smoke-v2", "gpt2", "distilbert", "bart", "tsdae", "retromae"]
WEEKLY += ["albert", "roberta", "deberta", "deberta:smoke-v1", "transformer", "minilm", "tinybert", "gpt_bert mlm"]
RECIPES = [
    *(pytest.param(name, marks=pytest.mark.long) for name in LONG),
    *(pytest.param(name, marks=pytest.mark.weekly) for name in (*WEEKLY, "gpt_bert clm")),
]


@pytest.mark.parametrize("recipe", [*RECIPES, "xlnet"])
def test_every_network_reads_contiguous_examples_in_order_and_padding_last(recipe: str, vocabulary: Vocabulary) -> None:
    """So `EncoderConfig.max_examples` promises to kernels, before and after corruption, of sources and of targets."""
    for packing in ("none",) if recipe == "xlnet" else ("none", "best_fit"):
        objective, form, _ = objective_of(recipe, vocabulary, packing)
        batch = epoch_of(form, packing)
        corrupted = jit(lambda batch: objective.corrupt(batch, jax.random.key(1), jnp.asarray(3)))(batch)  # noqa: B023
        maximum = 1 if packing == "none" else MAXIMUM
        assert {network.config.max_examples for network in objective.networks.values()} == {maximum}
        for arrays in (batch, corrupted):
            for name in (each for each in arrays if each.endswith("segment_ids")):
                ids = np.asarray(arrays[name])
                assert (np.diff(np.where(ids == 0, MAXIMUM + 1, ids), axis=1) >= 0).all(), name
                assert ids.min() >= 0 and ids.max() <= maximum, name


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
            extra = StepInputs(frozen, objective.init_carry(len(batch["input_ids"])))
            sums, _ = objective.loss(params, extra, hidden, jax.random.key(2), train=False)
            return sum(w * sums[n].value / jnp.maximum(counts[n], 1) for n, w in objective.loss_weights.items()), sums

        return jax.grad(loss, has_aux=True)(params)

    missing = len(alone["input_ids"]) - len(packed["input_ids"])  # empty rows, so that one program is compiled for both
    packed = {name: jnp.pad(rows, [(0, missing), *[(0, 0)] * (rows.ndim - 1)]) for name, rows in packed.items()}
    params = jit(objective.init)(jax.random.key(0))
    (gradients, sums), (gradients_alone, sums_alone) = run(params, packed), run(params, alone)
    assert sums.keys() == sums_alone.keys()
    for name, result in sums.items():
        assert result.count == sums_alone[name].count
        assert result.count > 0
        np.testing.assert_allclose(result.value, sums_alone[name].value, rtol=2e-5, err_msg=name)
    norm = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradients_alone)))
    assert norm > 0
    for result, expected in zip(jax.tree.leaves(gradients), jax.tree.leaves(gradients_alone), strict=True):
        np.testing.assert_allclose(result / norm, expected / norm, atol=1e-6)


@pytest.mark.parametrize("rate", [0.15, 0.4])
@pytest.mark.parametrize("seq_len", [64, 128, 512])
def test_rows_have_slots_for_all_predictions_and_few_more(rate: float, seq_len: int) -> None:
    config = Masking(mask_rate=rate, max_predictions=round(rate * seq_len))
    table, rng, maximum = num_predictions_by_length(config, seq_len), np.random.default_rng(0), 8
    capacity = max_sequence_predictions(config, seq_len, maximum)
    for _ in range(300):
        cuts = np.sort(rng.choice(seq_len // 4, rng.integers(0, maximum), replace=False)) * 4
        lengths = np.diff([0, *cuts, seq_len])
        assert table[lengths].sum() <= capacity
    assert capacity <= rate * seq_len + 0.6 * maximum
    assert max_sequence_predictions(config, seq_len, 1) == config.max_predictions


@pytest.mark.parametrize("count", ["random", "ceil", "bernoulli"])
def test_the_number_of_slots_grows_with_the_examples_by_one_at_most(count: str) -> None:
    config = Masking(mask_rate=0.15, mask_rounding=count, max_predictions=120)
    assert max_sequence_predictions(config, 512, 16) <= 120 + 16
    assert max_sequence_predictions(Masking(mask_rounding=count, max_predictions=2), 512, 16) == 32


@pytest.mark.parametrize(
    ("recipe", "form", "why"),
    [
        ("xlnet", "segments", "sequences of data.example_format=segments are full and continue in the next batch"),
        ("xlnet", "stream", "sequences of data.example_format=stream are full and continue in the next batch"),
        ("xlnet", "block", "objective.name=plm permutes whole sequences, across examples"),
    ],
)
def test_what_cannot_be_packed_is_refused_with_the_reason(recipe: str, form: str, why: str) -> None:
    cfg = load_config(f"{CONFIGS / recipe}.py:smoke")
    cfg.data.packing, cfg.data.example_format, cfg.model.bi_data = "best_fit", form, form != "block"
    with pytest.raises(UserError, match=re.escape(why)):
        parse(cfg)
