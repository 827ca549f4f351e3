"""Parameters put into other parameters: pure functions over nested dicts of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.types import Params


def leaves_of(params: Params, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, leaf) of every leaf."""
    for name, value in params.items():
        where = f"{path}/{name}" if path else name
        if isinstance(value, dict):
            yield from leaves_of(value, where)
        else:
            yield where, value


def replace_leaves(params: Params, changed: dict[str, Any], path: str = "") -> Params:
    """The same tree with other leaves at the paths named."""
    rebuilt = {}
    for name, value in params.items():
        where = f"{path}/{name}" if path else name
        rebuilt[name] = replace_leaves(value, changed, where) if isinstance(value, dict) else changed.get(where, value)
    return rebuilt


def collapse_paths(params: Params, chosen: set[str], path: str = "") -> list[str]:
    """The fewest paths that name all `chosen` leaves and no other: a subtree where all of it is chosen."""
    found = []
    for name, value in params.items():
        where = f"{path}/{name}" if path else name
        below = [leaf for leaf, _ in leaves_of(value, where)] if isinstance(value, dict) else [where]
        if chosen.issuperset(below):
            found.append(where)
        elif isinstance(value, dict):
            found += collapse_paths(value, chosen, where)
    return found


def merge_params(fresh: Params, given: Params) -> tuple[Params, list[str]]:
    """`fresh` with every leaf that `given` has, and the paths that stay fresh.

    A given leaf may have fewer rows (a vocabulary without padding): the rows behind them stay fresh. Leaves that
    `fresh` lacks (a head that this objective has no use for) are left out. Raises `UserError` for any other shape.
    """
    kept: list[str] = []
    return _merge(fresh, given, "", kept), kept


def average_rows(table: Any, parts: Sequence[Sequence[int]]) -> np.ndarray:
    """A table with a row for each of `parts`: the mean of those old rows, which one row alone leaves as it is.

    What has no parts gets the mean of all old rows. Of a tied output table and its bias, that is a piece whose score is
    the mean of all scores: by Jensen's inequality it adds less than an average piece to the sum under the softmax, so
    that n of them cost known words at most log(1 + n / V). Rows drawn with the spread of the old ones have no such
    bound (J. Hewitt, Initializing New Word Embeddings for Pretrained Language Models, 2021).
    """
    table = np.asarray(table)
    composed = np.empty((len(parts), *table.shape[1:]), table.dtype)
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    composed[sizes == 0] = table.mean(axis=0, dtype=np.float64)
    for size in np.unique(sizes[sizes > 0]):
        places = np.flatnonzero(sizes == size)
        rows = table[np.array([parts[int(place)] for place in places])]
        composed[places] = rows[:, 0] if size == 1 else rows.mean(axis=1, dtype=np.float64)
    return composed


def resize_position_table(table: Any, length: int, offset: int, how: str) -> np.ndarray:
    """A position table of `length` rows behind the first `offset` ones, which stay; a shorter one is cut.

    "tile" begins again at the first position where the old table ends (Longformer, arXiv:2004.05150, section 5): rows
    that were there stay, and neighbours stay neighbours but where copies meet. "interpolate" spreads the old rows from
    the first to the last position: places keep their share of the length, and every distance shrinks.
    """
    table = np.asarray(table)
    first, rows = table[:offset], table[offset:]
    if length <= len(rows):
        return table[: offset + length]
    if how == "tile":
        return np.concatenate([first, rows[np.arange(length) % len(rows)]])
    places = np.arange(length) * ((len(rows) - 1) / (length - 1))
    below = np.minimum(places.astype(np.int64), max(len(rows) - 2, 0))
    above = np.minimum(below + 1, len(rows) - 1)
    share = (places - below)[:, None]
    return np.concatenate([first, (rows[below] * (1.0 - share) + rows[above] * share).astype(table.dtype)])


def select_layers(params: Params, indices: Sequence[int]) -> Params:
    """The parameters of a model that has only these layers of another, in this order; all else is as it was.

    Stacked leaves [L, ...] keep those rows. A stack that lacks the first layer (`attention_norms`) gets the rows of the
    layers behind the new first one. A shared group serves any number of layers. Raises `UserError` for a layer that
    there is not, for several groups, whose layers cannot be told apart, and where layer 0 alone has no norm and would
    get one or another layer would lose its own.
    """
    counts = {len(leaf) for path, leaf in leaves_of(params) if _is_layers(path) and "attention_norms" not in path}
    depth = min(counts, default=0)
    beyond = [index for index in indices if not 0 <= index < depth]
    if depth and beyond:
        raise UserError(f"there is no layer {beyond[0]}: the layers to take from are 0 to {depth - 1}")
    return _taken(params, list(indices), "")


def _is_layers(path: str) -> bool:
    """Whether the first axis of a leaf counts layers, each with parameters of its own."""
    keys = path.split("/")
    return "layers" in keys and "groups" not in keys


def _taken(params: Params, indices: list[int], path: str) -> Params:
    taken: dict[str, Any] = {}
    for name, value in params.items():
        where = f"{path}/{name}" if path else name
        taken[name] = _taken(value, indices, where) if isinstance(value, dict) else _rows_of(value, indices, where)
    return taken


def _rows_of(leaf: Any, indices: list[int], path: str) -> Any:
    keys = path.split("/")
    if "groups" in keys and leaf.shape[0] > 1:
        raise UserError(f"layers cannot be taken from {leaf.shape[0]} shared groups ({path})")
    if not _is_layers(path):
        return leaf
    if "attention_norms" not in keys:
        return np.asarray(leaf)[indices]
    if indices[0] != 0 or 0 in indices[1:]:
        raise UserError("layer 0 has no attention norm in this model: it must be taken, and be the first layer")
    return np.asarray(leaf)[[index - 1 for index in indices[1:]]]


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
