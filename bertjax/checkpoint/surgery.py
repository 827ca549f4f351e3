"""Trees of checkpoints: a comparison of their leaves, and pure functions that change or combine parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.errors import UserError
from bertjax.io.tree_paths import flatten_tree, unflatten_tree
from bertjax.types import Params

_MAX_NAMED = 5


def leaf_specs(leaves: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns type and shape of every leaf, as the manifest holds them."""
    return {path: [str(jnp.result_type(leaf)), list(np.shape(leaf))] for path, leaf in leaves.items()}


def _spec_text(spec: list[Any]) -> str:
    return f"{spec[0]}{spec[1]}"


def restore_target(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns what orbax restores as this leaf; without a sharding it goes to the first device."""
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf), sharding=sharding)


def require_same_leaves(checkpoint: str, stored: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compares leaves: orbax would cast types silently and report the rest on a page.

    Args:
        checkpoint: Step and directory, for the message.
        stored: Result of `leaf_specs` when the checkpoint was written.
        expected: That of this run.

    Raises:
        UserError: Leaves differ.
    """
    differing = [f"{path} is only in the checkpoint" for path in stored if path not in expected]
    differing += [f"{path} is not in the checkpoint" for path in expected if path not in stored]
    differing += [
        f"{path} is {_spec_text(stored[path])} in the checkpoint and {_spec_text(expected[path])} in this run"
        for path in expected
        if path in stored and stored[path] != expected[path]
    ]
    if differing:
        more = f"; and {len(differing) - _MAX_NAMED} more" if len(differing) > _MAX_NAMED else ""
        raise UserError(
            f"the checkpoint of {checkpoint} does not fit this run's model or optimizer: "
            f"{'; '.join(differing[:_MAX_NAMED])}{more}"
        )


def replace_leaves(params: Params, changed: Mapping[str, Any]) -> Params:
    """Returns the tree with the leaves of `changed` (by path) instead of its own."""
    return unflatten_tree({path: changed.get(path, leaf) for path, leaf in flatten_tree(params).items()})


def collapse_paths(params: Params, paths: Collection[str], prefix: str = "") -> list[str]:
    """Returns the fewest paths that name some leaves and no other; a subtree stands for all of its leaves.

    Args:
        params: nested dict.
        paths: paths of the leaves.
        prefix: path of `params` itself, with a slash at the end.
    """
    collapsed = []
    for name, value in params.items():
        path = f"{prefix}{name}"
        leaves = flatten_tree(value, f"{path}/") if isinstance(value, dict) else [path]
        if set(paths).issuperset(leaves):
            collapsed.append(path)
        elif isinstance(value, dict):
            collapsed += collapse_paths(value, paths, f"{path}/")
    return collapsed


def merge_params(initial: Params, source: Params) -> Params:
    """Returns `initial` with every leaf that `source` has.

    Args:
        initial: freshly drawn parameters.
        source: parameters of another model. A leaf may have fewer rows (a vocabulary without padding): the further rows
            of `initial` stay. Leaves that `initial` lacks (heads of another objective) are left out.

    Raises:
        UserError: a leaf has another shape.
    """
    leaves = flatten_tree(source)
    return unflatten_tree(
        {
            path: _merge_leaf(path, leaf, np.asarray(leaves[path])) if path in leaves else leaf
            for path, leaf in flatten_tree(initial).items()
        }
    )


def _merge_leaf(path: str, initial: Any, source: np.ndarray) -> np.ndarray:
    if source.shape == initial.shape:
        return source.astype(initial.dtype)
    if source.shape[1:] != initial.shape[1:] or source.shape[0] > initial.shape[0]:
        raise UserError(f"{path} has shape {source.shape} in the source, but {initial.shape} in this model")
    merged = np.array(initial)
    merged[: source.shape[0]] = source
    return merged


def average_rows(table: Any, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns a table with one row per group: the mean of those rows of `table`; a single row stays bit for bit.

    An empty group gets the mean of all rows. In a tied output table with its bias that is a token whose logit is the
    mean of all logits: by Jensen's inequality it adds less than an average token to the sum under the softmax, so that
    n of them cost known tokens at most log(1 + n / V). Rows drawn with the deviation of the old ones have no such bound
    (J. Hewitt, Initializing New Word Embeddings for Pretrained Language Models, 2021).

    Args:
        table: embedding table or bias, [V, ...].
        groups: per new row, the indices of the old rows that it combines.
    """
    table = np.asarray(table)
    averaged = np.empty((len(groups), *table.shape[1:]), table.dtype)
    sizes = np.fromiter(map(len, groups), np.int64, len(groups))
    averaged[sizes == 0] = table.mean(axis=0, dtype=np.float64)
    for size in np.unique(sizes[sizes > 0]):
        selected = np.flatnonzero(sizes == size)
        rows = table[np.array([groups[int(index)] for index in selected])]
        averaged[selected] = rows[:, 0] if size == 1 else rows.mean(axis=1, dtype=np.float64)
    return averaged


def resize_position_table(table: Any, length: int, offset: int, method: str) -> np.ndarray:
    """Returns a position table for another number of positions; a smaller one is cut.

    Args:
        table: position embeddings, [offset + P, D].
        length: number of positions of the result.
        offset: rows before the first position, which stay.
        method: "tile" begins again at the first position where the old table ends (Longformer, arXiv:2004.05150,
            section 5): old rows stay, and neighbors stay neighbors except where copies meet. "interpolate" spreads
            the old rows from the first to the last position: a position keeps its share of the length, and every
            distance shrinks.
    """
    table = np.asarray(table)
    first, rows = table[:offset], table[offset:]
    if length <= len(rows):
        return table[: offset + length]
    if method == "tile":
        return np.concatenate([first, rows[np.arange(length) % len(rows)]])
    positions = np.arange(length) * ((len(rows) - 1) / (length - 1))
    below = np.minimum(positions.astype(np.int64), max(len(rows) - 2, 0))
    above = np.minimum(below + 1, len(rows) - 1)
    share = (positions - below)[:, None]
    return np.concatenate([first, (rows[below] * (1.0 - share) + rows[above] * share).astype(table.dtype)])


def average_params(trees: Iterable[Params]) -> Params:
    """Returns the mean of every leaf, float32, summed in float64; only the sum and one tree are in memory."""
    total: dict[str, Any] = {}
    count = 0
    for tree in trees:
        count += 1
        for path, leaf in flatten_tree(tree).items():
            total[path] = leaf if count == 1 else np.add(total[path], leaf, dtype=np.float64)
    return unflatten_tree(
        {path: leaf if count == 1 else (leaf / count).astype(np.float32) for path, leaf in total.items()}
    )
