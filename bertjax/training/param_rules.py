"""Parameters addressed by name: ordered tables of regexes over virtual per-layer paths.

A stacked leaf `encoder/layers/attention/query/kernel` of shape [L, ...] stands for the paths
`encoder/layers/0/attention/query/kernel` to `.../L-1/...`. The first rule that matches a path wins, and every path
must be matched, so that a parameter added tomorrow cannot slip through a table written today.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np

from bertjax.config.training import Rules
from bertjax.errors import UserError
from bertjax.io.tree_paths import flatten_tree, map_with_path
from bertjax.models.layer_stack import STACKS
from bertjax.types import Params


def num_stacked(path: str) -> int:
    """How many leading axes of a leaf count layers: one for every key of `STACKS` in its path."""
    return sum(key in STACKS for key in path.split("/"))


def virtual_paths(path: str, shape: tuple[int, ...]) -> list[str]:
    """The per-layer paths of a leaf of this shape: one for a plain leaf, L for a stacked one, G x I for groups."""
    paths, axes = [""], iter(shape)
    for key in path.split("/"):
        paths = [f"{start}/{key}" for start in paths]
        if key in STACKS:
            size = next(axes)
            paths = [f"{start}/{index}" for start in paths for index in range(size)]
    return [start.removeprefix("/") for start in paths]


def match(rules: Rules, path: str, table: str) -> Any:
    """The value of the first rule that matches the whole path; `UserError` if none does."""
    for pattern, value in rules:
        if re.fullmatch(pattern, path):
            return value
    raise UserError(f"no rule of the {table} table matches parameter {path}; add a last rule '.*'")


def resolve_multipliers(rules: Rules, params: Params, table: str) -> Params:
    """A tree of multipliers: a scalar for each leaf, or a vector [L, 1, ...] where the layers of a stack differ."""

    def of_leaf(path: str, leaf: Any) -> Any:
        values = [float(match(rules, name, table)) for name in virtual_paths(path, leaf.shape)]
        if len(set(values)) == 1:
            return np.float32(values[0])
        stacked = num_stacked(path)
        return np.asarray(values, np.float32).reshape(*leaf.shape[:stacked], *(1,) * (leaf.ndim - stacked))

    return map_with_path(of_leaf, params)


def layer_rules(params: Params, decay: float, top: int = 1) -> Rules:
    """Factors that shrink from the last layer to the first: decay^(top + L - 1 - i) for layer i of L.

    Embeddings, and whatever else lies below the layers, get decay^(top + L); heads and final norms keep the whole rate.
    With `top` 1 that is lr / 1.2^(12 - i) for i from 0, and lr / 1.2^13 for the embeddings, in FinBERT's code; 2 is
    ELECTRA's, whose exponent counts a pooler that its code no longer has; 0 leaves the last layer alone (ULMFiT).
    """
    return [(pattern, decay ** (top - 1 + depth)) for pattern, depth in depth_rules(params)]


def depth_rules(params: Params) -> Rules:
    """How far below the heads a parameter lies: 1 for the last of L layers, L for the first, L + 1 for the embeddings.

    Heads and final norms match none of these. Stacks of a tower that lack the first layers (`attention_norms`) are
    counted from the last one.
    """
    stacks = sorted({_stack_of(path, leaf.shape) for path, leaf in flatten_tree(params).items() if num_stacked(path)})
    depths: dict[str, int] = {}
    for tower, _, sizes in stacks:
        depths[tower] = max(depths.get(tower, 0), math.prod(sizes))
    rules = []
    for tower, pattern, sizes in stacks:
        lacking = depths[tower] - math.prod(sizes)
        for place, index in enumerate(itertools.product(*map(range, sizes))):
            rules.append((f"{pattern.format(*index)}/.*", depths[tower] - lacking - place))
    for tower, depth in depths.items():
        rules.append((f"{re.escape(tower)}convolution/.*", depth))  # a part of DeBERTa's first layer
        rules.append((f"{re.escape(tower)}(embeddings|relative|mask_embedding)(/.*)?", depth + 1))
    return [*rules, (r"(.*/)?embeddings/.*", max(depths.values(), default=0) + 1)]


def _stack_of(path: str, shape: tuple[int, ...]) -> tuple[str, str, tuple[int, ...]]:
    """(tower, pattern with a gap for every index, sizes) of a stacked leaf: `encoder/`, `encoder/layers/{}`, (L,)."""
    keys = path.split("/")
    places = [place for place, key in enumerate(keys) if key in STACKS]
    first = places[0] - (keys[max(places[0] - 1, 0)] == "attention_norms")
    named = [re.escape(key) + "/{}" if key in STACKS else re.escape(key) for key in keys[: places[-1] + 1]]
    return "".join(f"{key}/" for key in keys[:first]), "/".join(named), shape[: len(places)]


def describe(rules: Rules, params: Params, table: str) -> list[str]:
    """One line a rule: its value and how many parameters it took, unused rules said so."""
    taken: dict[int, int] = {}
    for path, leaf in flatten_tree(params).items():
        names = virtual_paths(path, leaf.shape)
        for name in names:
            index = next((i for i, (pattern, _) in enumerate(rules) if re.fullmatch(pattern, name)), None)
            if index is None:
                match(rules, name, table)
            else:
                taken[index] = taken.get(index, 0) + leaf.size // len(names)
    return [
        f"{table}: {pattern} -> {value}: {taken.get(i, 0):,} parameters" + ("" if i in taken else " (matches nothing)")
        for i, (pattern, value) in enumerate(rules)
    ]
