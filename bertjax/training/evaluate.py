"""Held-out figures: fixed rows, fixed masks, sums over everything before any mean is taken."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from bertjax.objectives.base import Objective, StepInputs
from bertjax.training.sharding import put_batch
from bertjax.types import Batch, Params, Sum


def mean_metrics(sums: Mapping[str, Sum], weights: Mapping[str, float]) -> dict[str, float]:
    """`name` -> value / count; the weighted losses get `_loss` behind their name, and `loss` is their weighted sum."""
    ratios = {name: float(total.value) / max(float(total.count), 1.0) for name, total in sums.items()}
    named = {f"{name}_loss" if name in weights else name: value for name, value in ratios.items()}
    return {"loss": sum(weight * ratios[name] for name, weight in weights.items()), **named}


def evaluate(
    eval_step: Callable[..., tuple[dict[str, Sum], Any]],
    params: Params,
    frozen: Any,
    eval_sets: Mapping[str, Iterable[Batch]],
    objective: Objective,
    mesh: Mesh,
) -> dict[str, float]:
    """`eval/...` over all sets and, where there are several, `eval/<set>/...` for each; every set carries its own."""
    totals: dict[str, dict[str, Sum]] = {}
    weights = objective.loss_weights
    for name, batches in eval_sets.items():
        pending, carry = [], None
        for batch in batches:  # all of them are dispatched first: reading a result waits for the device
            laid = put_batch(batch, mesh)
            if carry is None:
                carry = put_batch(objective.init_carry(len(next(iter(batch.values())))), mesh)
            sums, carry = eval_step(params, StepInputs(frozen, carry), laid)
            pending.append(sums)
        totals[name] = add_sums(jax.device_get(pending))
    figures = {f"eval/{name}": value for name, value in mean_metrics(add_sums(list(totals.values())), weights).items()}
    if len(totals) > 1:
        for source, sums in totals.items():
            figures |= {f"eval/{source}/{name}": value for name, value in mean_metrics(sums, weights).items()}
    return figures


def make_evaluate(
    eval_step: Callable[..., tuple[dict[str, Sum], Any]],
    eval_sets: Callable[[], Mapping[str, Iterable[Batch]]],
    objective: Objective,
    mesh: Mesh,
) -> Callable[[Params, Any], dict[str, float]]:
    """`evaluate` as a function of the parameters and of what is frozen; rows are made when they are first asked for."""
    rows = functools.cache(eval_sets)
    return lambda params, frozen: evaluate(eval_step, params, frozen, rows(), objective, mesh)


def eval_set_names(figures: Mapping[str, float]) -> list[str]:
    """The held-out sets that have figures of their own: `eval/<set>/<name>`."""
    return list(dict.fromkeys(key.split("/")[1] for key in figures if key.count("/") == 2))


def add_sums(parts: list[dict[str, Sum]]) -> dict[str, Sum]:
    """Values added to values, counts to counts, in float64 on the host."""
    return {
        name: Sum(sum(float(part[name].value) for part in parts), sum(float(part[name].count) for part in parts))
        for name in parts[0]
    }
