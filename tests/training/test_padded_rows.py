"""Rows of padding alone change nothing, alone or among others, with any attention (P24, P27)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.config.overrides import load_config
from bertjax.experiment import build
from bertjax.experiment.config import Config
from bertjax.objectives.base import Objective, StepInputs
from bertjax.runtime import platform
from bertjax.training.step import weighted_loss
from bertjax.types import Params, Sum, Vocabulary

CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 24, "initializer_range": 0.2}
REAL, EMPTY, S = 6, 3, 24
# Implementations of attention: the plain form, windows and rotation, disentangled with a convolution, two streams
# with a memory, causal, and the kernel for TPUs in interpret mode.
RECIPES = ["bert", "modernbert", "deberta", "xlnet", "gpt2", "bert interpret"]
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}
FEW = dict.fromkeys([("bert", "bfloat16"), *((name, "float32") for name in RECIPES)], pytest.mark.long)
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def objective_of(recipe: str, dtype: str, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> Objective:
    """Returns a small recipe without dropout, with activations in `dtype` as on an accelerator."""
    name, _, kernel = recipe.partition(" ")
    cfg = load_config(f"{CONFIGS / name}.py:smoke")
    cfg.data.seq_len = S
    cfg.model.update(
        SMALL
        | {"max_position_embeddings": S, "local_attention": 4 if name == "modernbert" else cfg.model.local_attention}
    )
    for rate in ("hidden_dropout", "attention_dropout", "attention_output_dropout", "activation_dropout"):
        cfg.model[rate] = 0.0

    def platform_config(_: object, model: EncoderConfig) -> EncoderConfig:
        return dataclasses.replace(
            model, compute_dtype=dtype, result_dtype=dtype, attention_implementation=kernel or "xla"
        )

    monkeypatch.setattr(platform, "platform_config", platform_config)
    return build.make_objective(Config.read(cfg), vocabulary)


@pytest.mark.parametrize(
    ("recipe", "dtype"),
    [
        pytest.param(recipe, dtype, marks=FEW.get((recipe, dtype), pytest.mark.weekly))
        for recipe in RECIPES
        for dtype in TOLERANCE
    ],
)
def test_a_batch_with_empty_rows_teaches_what_it_teaches_without_them(
    recipe: str, dtype: str, vocabulary: Vocabulary, batch_of: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = objective_of(recipe, dtype, vocabulary, monkeypatch)
    whole = {name: value[:REAL] for name, value in batch_of(0).items()}
    padded = {name: np.concatenate([value, np.zeros_like(value[:EMPTY])]) for name, value in whole.items()}

    @jit
    def run(params: Params, batch: dict[str, jax.Array]) -> tuple[jax.Array, Params, dict[str, Sum], dict]:
        hidden = objective.corrupt(batch, jax.random.key(1), jnp.asarray(3))
        counts = objective.counts(hidden)

        def loss(params: Params) -> tuple[jax.Array, tuple[dict[str, Sum], dict]]:
            extra = StepInputs({}, objective.init_carry(len(batch["input_ids"])))
            sums, carry = objective.loss(params, extra, hidden, jax.random.key(2), train=True)
            return weighted_loss(sums, counts, objective.loss_weights), (sums, carry)

        (value, (sums, carry)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return value, grads, sums, carry

    params = jit(objective.init)(jax.random.key(0))
    result, expected = (jax.device_get(run(params, batch)) for batch in (padded, whole))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result))
    assert expected[0] > 0
    np.testing.assert_allclose(result[0], expected[0], rtol=TOLERANCE[dtype])
    assert {name: total.count for name, total in result[2].items()} == {
        name: total.count for name, total in expected[2].items()
    }
    norm = np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(expected[1])))
    for mine, plain in zip(jax.tree.leaves(result[1]), jax.tree.leaves(expected[1]), strict=True):
        assert np.abs(mine - plain).max() <= TOLERANCE[dtype] * norm
    loss, grads, *_ = run(params, {name: np.zeros_like(value) for name, value in whole.items()})
    assert loss == 0.0 and all((np.asarray(leaf) == 0.0).all() for leaf in jax.tree.leaves(grads))
