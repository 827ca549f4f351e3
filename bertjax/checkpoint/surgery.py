"""Parameters put into other parameters: pure functions over nested dicts of arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bertjax.types import Params, UserError


def merge_params(fresh: Params, given: Params) -> tuple[Params, list[str]]:
    """`fresh` with every leaf that `given` has, and the paths that stay fresh.

    A given leaf may have fewer rows (a vocabulary without padding): the rows behind them stay fresh. Leaves that
    `fresh` lacks (a head that this objective has no use for) are left out. Raises `UserError` for any other shape.
    """
    kept: list[str] = []
    return _merge(fresh, given, "", kept), kept


def average_params(trees: Iterable[Params]) -> Params:
    """The mean of every leaf; one tree is held beside the sum, however many there are. One tree is itself."""
    total: Any = None
    count = 0
    for tree in trees:
        total = tree if total is None else _added(total, tree)
        count += 1
    return total if count == 1 else _divided(total, count)


def _added(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {name: _added(value, other[name]) for name, value in one.items()}
    return np.add(one, other, dtype=np.float64)


def _divided(total: Any, count: int) -> Any:
    if isinstance(total, dict):
        return {name: _divided(value, count) for name, value in total.items()}
    return (total / count).astype(np.float32)


def _merge(fresh: Any, given: Any, path: str, kept: list[str]) -> Any:
    if isinstance(fresh, dict):
        merged = {}
        for name, value in fresh.items():
            where = f"{path}/{name}" if path else name
            if name in given:
                merged[name] = _merge(value, given[name], where, kept)
            else:
                kept.append(where)
                merged[name] = value
        return merged
    given = np.asarray(given)
    if given.shape == fresh.shape:
        return given.astype(fresh.dtype)
    if given.shape[1:] != fresh.shape[1:] or given.shape[0] > fresh.shape[0]:
        raise UserError(f"{path} has shape {given.shape} where it comes from, but {fresh.shape} in this model")
    rows = np.array(fresh)
    rows[: given.shape[0]] = given
    return rows
