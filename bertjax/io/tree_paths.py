"""Parameter trees by path: nested dicts of arrays as `{"encoder/layers/attention/query/kernel": array}`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jax.tree_util import keystr, tree_flatten_with_path, tree_map_with_path


def flatten_tree(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the leaves of nested dicts, or of any pytree, by `prefix` + path, in the order of `jax.tree.leaves`."""
    leaves, _ = tree_flatten_with_path(tree)
    return {f"{prefix}{keystr(path, simple=True, separator='/')}": leaf for path, leaf in leaves}


def unflatten_tree(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the nested dicts of `flatten_tree`."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def map_with_path(function: Callable[[str, Any], Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the same tree with `function(path, leaf)` in place of every leaf."""
    mapped = tree_map_with_path(lambda path, leaf: function(keystr(path, simple=True, separator="/"), leaf), tree)
    return dict(mapped)
