"""Settings per parameter: ordered tables of regexes over virtual per-layer paths.

A stacked leaf `encoder/layers/attention/query/kernel` of shape [L, ...] stands for the paths
`encoder/layers/0/attention/query/kernel` to `.../L-1/...`. The first rule that matches a path wins, and every path
must be matched, so that a parameter added tomorrow cannot slip through a table written today.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.io.tree_paths import flatten_tree, map_with_path
from bertjax.models.layer_stack import STACKS
from bertjax.types import Params

Rules = Sequence[tuple[str, Any]]
"""(regex over a parameter's whole path, value); the first that matches wins."""


def num_stacked(path: str) -> int:
    """Returns the number of leading axes of a leaf that count layers: one per key of `STACKS` in its path."""
    return sum(key in STACKS for key in path.split("/"))


def layer_shape(path: str, leaf: Any) -> tuple[int, ...]:
    """Returns the shape of one number per layer, which broadcasts to the leaf: [L, 1, ...], or [1, ...]."""
    stacked = num_stacked(path)
    return *leaf.shape[:stacked], *(1,) * (leaf.ndim - stacked)


def virtual_paths(path: str, shape: tuple[int, ...]) -> list[str]:
    """Returns the per-layer paths of a leaf: one for a plain leaf, L for a stacked one, G x I for groups."""
    paths, axes = [""], iter(shape)
    for key in path.split("/"):
        paths = [f"{start}/{key}" for start in paths]
        if key in STACKS:
            size = next(axes)
            paths = [f"{start}/{index}" for start in paths for index in range(size)]
    return [start.removeprefix("/") for start in paths]


def match_rule(rules: Rules, path: str, table: str) -> Any:
    """Returns the value of the first rule that matches a path.

    Args:
        rules: (regex, value) pairs in order; a regex must match the whole path.
        path: Per-layer path of a parameter.
        table: Name of the table, for the message.

    Raises:
        UserError: No rule matches.
    """
    for pattern, value in rules:
        if re.fullmatch(pattern, path):
            return value
    raise UserError(f"no rule of the {table} table matches parameter {path}; add a last rule '.*'")


def resolve_multipliers(rules: Rules, params: Params, table: str) -> Params:
    """Returns a tree of multipliers: a scalar per leaf, or a vector [L, 1, ...] where the layers of a stack differ.

    Args:
        rules: (regex, number) pairs; every parameter must be matched.
        params: Parameters, which may be abstract.
        table: Name of the table, for messages.
    """

    def resolve(path: str, leaf: Any) -> Any:
        values = [float(match_rule(rules, name, table)) for name in virtual_paths(path, leaf.shape)]
        if len(set(values)) == 1:
            return np.float32(values[0])
        return np.asarray(values, np.float32).reshape(layer_shape(path, leaf))

    return map_with_path(resolve, params)


def layer_rules(params: Params, decay: float, top: int = 1) -> Rules:
    """Returns factors that shrink from the last layer to the first: decay^(top + L - 1 - i) for layer i of L.

    Embeddings, and all else below the layers, get decay^(top + L); heads and final norms keep the whole learning rate.
    With `top` 1 that is lr / 1.2^(12 - i) for i from 0, and lr / 1.2^13 for the embeddings, in FinBERT's code; 2 is
    ELECTRA's, whose exponent counts a pooler that its code no longer has; 0 leaves the last layer as it is (ULMFiT).

    Args:
        params: Parameters, which may be abstract.
        decay: Factor from a layer to the one below.
        top: Exponent of the last layer.
    """
    return [(pattern, decay ** (top - 1 + depth)) for pattern, depth in depth_rules(params)]


def depth_rules(params: Params) -> Rules:
    """Returns the depth of parameters below the heads: 1 for the last of L layers, L + 1 for the embeddings.

    Heads and final norms match none of the rules. Stacks without the first layers (`attention_norms`) are counted from
    the last one.
    """
    stacks = sorted({_stack_of(path, leaf.shape) for path, leaf in flatten_tree(params).items() if num_stacked(path)})
    depths: dict[str, int] = {}
    for network, _, sizes in stacks:
        depths[network] = max(depths.get(network, 0), math.prod(sizes))
    rules = []
    for network, pattern, sizes in stacks:
        missing = depths[network] - math.prod(sizes)
        for number, index in enumerate(itertools.product(*map(range, sizes))):
            rules.append((f"{pattern.format(*index)}/.*", depths[network] - missing - number))
    for network, depth in depths.items():
        rules.append((f"{re.escape(network)}convolution/.*", depth))  # a part of DeBERTa's first layer
        rules.append(
            (f"{re.escape(network)}(embeddings|relative|relative_attention_bias|mask_embedding)(/.*)?", depth + 1)
        )
    return [*rules, (r"(.*/)?embeddings/.*", max(depths.values(), default=0) + 1)]


def _stack_of(path: str, shape: tuple[int, ...]) -> tuple[str, str, tuple[int, ...]]:
    """Returns (network, pattern with {} per index, sizes) of a stacked leaf: `encoder/`, `encoder/layers/{}`, (L,)."""
    keys = path.split("/")
    stacks = [number for number, key in enumerate(keys) if key in STACKS]
    first = stacks[0] - (keys[max(stacks[0] - 1, 0)] == "attention_norms")
    named = [re.escape(key) + "/{}" if key in STACKS else re.escape(key) for key in keys[: stacks[-1] + 1]]
    return "".join(f"{key}/" for key in keys[:first]), "/".join(named), shape[: len(stacks)]


def describe_rules(rules: Rules, params: Params, table: str) -> list[str]:
    """Returns one line per rule: its value, and the number of parameters that it matches.

    Args:
        rules: (regex, value) pairs; every parameter must be matched.
        params: Parameters, which may be abstract.
        table: Name of the table.
    """
    matched: dict[int, int] = {}
    for path, leaf in flatten_tree(params).items():
        names = virtual_paths(path, leaf.shape)
        for name in names:
            index = next((i for i, (pattern, _) in enumerate(rules) if re.fullmatch(pattern, name)), None)
            if index is None:
                match_rule(rules, name, table)
            else:
                matched[index] = matched.get(index, 0) + leaf.size // len(names)
    return [
        f"{table}: {pattern} -> {value}: {matched.get(i, 0):,} parameters"
        + ("" if i in matched else " (matches nothing)")
        for i, (pattern, value) in enumerate(rules)
    ]
