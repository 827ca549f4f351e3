"""Held-out metrics are ratios of sums, never means of means."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.metrics import add_sums, mean_metrics
from bertjax.objectives.base import StepInputs
from bertjax.training.evaluate import evaluate
from bertjax.types import Sum

WEIGHTS = {"mlm": 2.0, "pair": 0.5}


def sums(mlm: float, count: float, pair: float) -> dict[str, Sum]:
    return {"mlm": Sum(mlm, count), "mlm_accuracy": Sum(1.0, count), "pair": Sum(pair, 1.0)}


def test_means_and_their_names() -> None:
    assert mean_metrics(sums(6.0, 3.0, 4.0), WEIGHTS) == {
        "loss": 2.0 * 2.0 + 0.5 * 4.0,
        "mlm_loss": 2.0,
        "mlm_accuracy": pytest.approx(1 / 3),
        "pair_loss": 4.0,
    }
    assert mean_metrics({"mlm": Sum(0.0, 0.0)}, {"mlm": 1.0}) == {"loss": 0.0, "mlm_loss": 0.0}


def test_sums_are_added_in_float64() -> None:
    parts = [{"mlm": Sum(np.float32(2**24), np.float32(1))}, {"mlm": Sum(np.float32(1), np.float32(1))}]
    assert add_sums(parts) == {"mlm": Sum(2.0**24 + 1, 2.0)}


def test_every_batch_counts_by_its_predictions(mesh_of: Callable) -> None:
    class Objective:
        loss_weights = {"mlm": 1.0}  # noqa: RUF012

        def init_carry(self, rows: int) -> dict:
            return {"seen": np.zeros(rows)}

    def eval_step(params: dict, extra: StepInputs, batch: dict) -> tuple[dict[str, Sum], dict]:
        assert (params, extra.frozen) == ({"p": 1}, {"teacher": 2})
        carried.append(float(extra.carry["seen"][1]))
        value, count = batch["value"][0], batch["value"][1]
        sums = {"mlm": Sum(value, count), "mlm_unigram_loss": Sum(jnp.float32(10.0), count)}
        return sums, {"seen": extra.carry["seen"] + 1}

    def batch(value: float, count: float) -> dict[str, np.ndarray]:
        return {"value": np.float32([value, count])}

    sets = {"news": [batch(6, 1), batch(6, 5)], "books": [batch(3, 3)]}
    carried: list[float] = []
    inputs = eval_step, {"p": 1}, {"teacher": 2}
    metrics = evaluate(*inputs, sets, Objective(), mesh_of(1))
    assert carried == [0.0, 1.0, 0.0]  # from batch to batch of a set, and reset in the next
    assert metrics["eval/mlm_loss"] == metrics["eval/loss"] == 15 / 9
    assert metrics["eval/news/mlm_loss"] == 12 / 6 and metrics["eval/books/mlm_loss"] == 1.0
    assert metrics["eval/mlm_unigram_loss"] == 30 / 9
    alone = evaluate(*inputs, {"news": sets["news"]}, Objective(), mesh_of(1))
    assert alone == {"eval/loss": 2.0, "eval/mlm_loss": 2.0, "eval/mlm_unigram_loss": 20 / 6}
