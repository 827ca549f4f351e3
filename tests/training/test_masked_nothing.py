"""A batch with nothing to predict: loss 0, gradient 0, and only finite numbers (P27)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.metrics import mean_metrics
from bertjax.objectives.base import StepInputs
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.mlm import Mlm
from bertjax.training.step import weighted_loss
from bertjax.types import Params, Sum, Vocabulary

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
# The tokens of every row: [CLS] alone, then with [SEP], once and three times, and one word that may be masked.
BATCH_SIZE = {"one token": [2], "two tokens": [2, 3], "separators": [2, 3, 3, 3], "one word": [2, 7, 3]}


@pytest.fixture(scope="module")
def run(tiny_model: EncoderConfig, vocabulary: Vocabulary) -> Callable:
    """`run(batch)` -> loss, gradients, sums."""
    config = Mlm(Masking(mask_rate=0.3, max_predictions=8))
    objective = config.build({"model": dataclasses.replace(tiny_model, num_layers=1)}, vocabulary)
    params = jit(objective.init)(jax.random.key(0))

    @jit
    def run(batch: dict[str, jax.Array]) -> tuple[jax.Array, Params, dict[str, Sum]]:
        hidden = objective.corrupt(batch, jax.random.key(1), jnp.asarray(0))
        counts = objective.counts(hidden)

        def loss(params: Params) -> tuple[jax.Array, dict[str, Sum]]:
            sums, _ = objective.loss(params, StepInputs({}, {}), hidden, jax.random.key(2), train=True)
            return weighted_loss(sums, counts, objective.loss_weights), sums

        (value, sums), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return value, grads, sums

    return run


def batch_of_rows(batch: dict[str, np.ndarray], tokens: list[int]) -> dict[str, np.ndarray]:
    ids = np.zeros_like(batch["input_ids"])
    ids[:, : len(tokens)] = tokens
    real = (ids > 0).astype(np.int32)
    indices = {
        "segment_ids": real,
        "position_ids": real * np.arange(ids.shape[1], dtype=np.int32),
        "token_type_ids": 0 * real,
    }
    return {name: array for name, array in batch.items() if name != "pair_labels"} | {"input_ids": ids} | indices


@pytest.mark.long
@pytest.mark.parametrize("name", BATCH_SIZE)
def test_a_batch_with_nothing_to_predict_teaches_nothing(name: str, run: Callable, batch_of: Callable) -> None:
    loss, grads, sums = run(batch_of_rows(batch_of(0), BATCH_SIZE[name]))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    if name == "one word":  # the control: here the loss is not zero
        assert sums["mlm"].count == 16 and loss > 1.0
        return
    assert loss == 0.0 and sums["mlm"].count == 0
    assert all((np.asarray(leaf) == 0.0).all() for leaf in jax.tree.leaves(grads))
    assert all(np.isfinite(value) for value in mean_metrics(jax.device_get(sums), {"mlm": 1.0}).values())
