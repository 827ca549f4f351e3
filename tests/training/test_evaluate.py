"""Held-out figures are ratios of sums, never means of means."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.objectives.base import Extra
from bertjax.training.evaluate import add_sums, evaluate, means
from bertjax.types import Sum

WEIGHTS = {"mlm": 2.0, "pair": 0.5}


def sums(mlm: float, count: float, pair: float) -> dict[str, Sum]:
    return {"mlm": Sum(mlm, count), "mlm_accuracy": Sum(1.0, count), "pair": Sum(pair, 1.0)}


def test_means_and_their_names() -> None:
    assert means(sums(6.0, 3.0, 4.0), WEIGHTS) == {
        "loss": 2.0 * 2.0 + 0.5 * 4.0,
        "mlm_loss": 2.0,
        "mlm_accuracy": pytest.approx(1 / 3),
        "pair_loss": 4.0,
    }
    assert means({"mlm": Sum(0.0, 0.0)}, {"mlm": 1.0}) == {"loss": 0.0, "mlm_loss": 0.0}


def test_sums_are_added_in_float64() -> None:
    parts = [{"mlm": Sum(np.float32(2**24), np.float32(1))}, {"mlm": Sum(np.float32(1), np.float32(1))}]
    assert add_sums(parts) == {"mlm": Sum(2.0**24 + 1, 2.0)}


def test_every_batch_counts_by_its_predictions(mesh_of: Callable) -> None:
    def eval_step(params: dict, extra: Extra, batch: dict) -> dict[str, Sum]:
        assert (params, extra) == ({"p": 1}, Extra({}, {}))
        value, count = batch["value"][0], batch["value"][1]
        return {"mlm": Sum(value, count), "unigram_loss": Sum(jnp.float32(10.0), count)}

    def batch(value: float, count: float) -> dict[str, np.ndarray]:
        return {"value": np.float32([value, count])}

    sets = {"news": [batch(6, 1), batch(6, 5)], "books": [batch(3, 3)]}
    figures = evaluate(eval_step, {"p": 1}, Extra({}, {}), sets, {"mlm": 1.0}, mesh_of(1))
    assert figures["eval/mlm_loss"] == figures["eval/loss"] == 15 / 9
    assert figures["eval/news/mlm_loss"] == 12 / 6 and figures["eval/books/mlm_loss"] == 1.0
    assert figures["eval/unigram_loss"] == 30 / 9
    alone = evaluate(eval_step, {"p": 1}, Extra({}, {}), {"news": sets["news"]}, {"mlm": 1.0}, mesh_of(1))
    assert alone == {"eval/loss": 2.0, "eval/mlm_loss": 2.0, "eval/unigram_loss": 20 / 6}
