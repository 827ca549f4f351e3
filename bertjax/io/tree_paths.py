"""Nested dicts of arrays by the paths of their leaves, such as `encoder/layers/attention/query/kernel`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flatten_tree(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the leaves by their path, keys joined with `/`, in the order of the tree."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        leaves |= flatten_tree(value, f"{path}/") if isinstance(value, Mapping) else {path: value}
    return leaves


def unflatten_tree(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the nested dict of leaves by path, the inverse of `flatten_tree`."""
    root: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, last = path.split("/")
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return root
