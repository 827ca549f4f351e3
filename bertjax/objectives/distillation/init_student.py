"""A student that starts as some of its teacher's layers (DistilBERT: 0, 2, 4, 7, 9, 11 of 12).

Layers are found by their names, one a layer: `encoder/layers/3/attention/query/kernel`; groups of shared parameters
stand for the layers that use them. So any two of our encoders can be paired whose layers have the same parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.io.tree_paths import flatten_tree, unflatten_tree
from bertjax.types import Params

Named = dict[str, np.ndarray]

_SAME = ("num_heads", "head_dim", "norm_placement", "attention_position", "position_embedding", "position_offset")
"""What equal shapes do not tell apart, or what makes weights of equal shapes useless."""

_NORM = "attention/norm/"


def start_from_teacher(
    student: EncoderConfig, params: Params, teacher: EncoderConfig, given: Params, layers: Sequence[int]
) -> Params:
    """The student's parameters (numpy, true vocabulary) with the teacher's embeddings, its `layers`, and its heads.

    Student layer i becomes teacher layer `layers[i]`. Heads that only the student has stay as they are, and so does a
    `projection`. A longer position table is cut. Raises `UserError` where the two do not fit.
    """
    _require_same(student, teacher, layers)
    theirs = _by_layer(given, teacher)
    wanted = {f"encoder/layers/{index}/": f"encoder/layers/{source}/" for index, source in enumerate(layers)}
    rows = student.max_position_embeddings + student.position_offset

    def of_leaf(path: str, leaf: np.ndarray) -> np.ndarray:
        names = _names(path, leaf.shape, student)
        if names is None:
            source = theirs.get(path)
            if source is None and not path.startswith("encoder/"):
                return leaf  # a head that the teacher does not have
            return _fitting(path, source, leaf, rows)
        found = [theirs.get(_renamed(name, wanted)) for name in names]
        single = leaf.reshape(len(names), *leaf.shape[leaf.ndim - _own_axes(path, leaf) :])
        fitted = [_fitting(name, one, own, rows) for name, one, own in zip(names, found, single, strict=True)]
        return np.stack(fitted).reshape(leaf.shape)

    return unflatten_tree({path: of_leaf(path, leaf) for path, leaf in _host_leaves(params).items()})


def _require_same(student: EncoderConfig, teacher: EncoderConfig, layers: Sequence[int]) -> None:
    for name in _SAME:
        ours, others = getattr(student, name), getattr(teacher, name)
        if ours != others:
            raise UserError(
                f"objective.teacher_layers: the student cannot start from its teacher: {name} is {ours} here, {others} "
                "there; make them equal or leave teacher_layers out"
            )
    outside = [layer for layer in layers if layer not in range(teacher.num_layers)]
    if outside:
        raise UserError(
            f"objective.teacher_layers: the teacher has layers 0 to {teacher.num_layers - 1}, not {outside[0]}"
        )
    if student.inner_layers > 1 or teacher.inner_layers > 1:
        raise UserError("objective.teacher_layers needs inner_layers=1 on both sides: else no layer has a number")


def _fitting(name: str, source: np.ndarray | None, wanted: np.ndarray, rows: int) -> np.ndarray:
    """The teacher's array where it has the student's shape, once a position table is cut to `rows`."""
    if source is None:
        raise UserError(f"objective.teacher_layers: the teacher has no {name}; leave teacher_layers out")
    if re.fullmatch(r"(encoder/embeddings/position_embeddings|decoder_positions)/embedding", name):
        source = source[:rows]
    if source.shape != wanted.shape:
        raise UserError(
            f"objective.teacher_layers: {name} has shape {list(source.shape)} in the teacher, {list(wanted.shape)} in "
            "the student; make the sizes equal or leave teacher_layers out"
        )
    return source


def _by_layer(params: Params, config: EncoderConfig) -> Named:
    """Every parameter by its name, one a layer, also where layers share them or have norms kept apart."""
    found: Named = {}
    for path, leaf in _host_leaves(params).items():
        if path.startswith("encoder/groups/layers/"):
            rest = path.removeprefix("encoder/groups/layers/")
            for layer in range(config.num_layers):
                found[f"encoder/layers/{layer}/{rest}"] = leaf[config.group_of(layer), 0]
        elif path.startswith("encoder/attention_norms/layers/"):
            rest = path.removeprefix("encoder/attention_norms/layers/")
            for index, own in enumerate(leaf):
                found[f"encoder/layers/{index + 1}/{_NORM}{rest}"] = own
        elif path.startswith("encoder/layers/"):
            rest = path.removeprefix("encoder/layers/")
            for layer, own in enumerate(leaf):
                found[f"encoder/layers/{layer}/{rest}"] = own
        else:
            found[path] = leaf
    return found


def _names(path: str, shape: tuple[int, ...], config: EncoderConfig) -> list[str] | None:
    """The names, one a layer, of what a stacked leaf of the student holds; None for a leaf that is not stacked."""
    if path.startswith("encoder/groups/layers/"):
        rest = path.removeprefix("encoder/groups/layers/")
        users = [next(i for i in range(config.num_layers) if config.group_of(i) == group) for group in range(shape[0])]
        return [f"encoder/layers/{layer}/{rest}" for layer in users]
    if path.startswith("encoder/attention_norms/layers/"):
        rest = path.removeprefix("encoder/attention_norms/layers/")
        return [f"encoder/layers/{index + 1}/{_NORM}{rest}" for index in range(shape[0])]
    if path.startswith("encoder/layers/"):
        rest = path.removeprefix("encoder/layers/")
        return [f"encoder/layers/{layer}/{rest}" for layer in range(shape[0])]
    return None


def _own_axes(path: str, leaf: np.ndarray) -> int:
    """Axes of a stacked leaf that are not those of the stack."""
    return leaf.ndim - (2 if path.startswith("encoder/groups/") else 1)


def _renamed(name: str, wanted: Mapping[str, str]) -> str:
    prefix = "/".join(name.split("/")[:3]) + "/"
    return wanted[prefix] + name.removeprefix(prefix)


def _host_leaves(params: Params) -> Named:
    return {path: np.asarray(leaf) for path, leaf in flatten_tree(params).items()}
