"""Initialization of a student with layers of its teacher (DistilBERT: 0, 2, 4, 7, 9, 11 of 12).

Parameters are matched by their names with one layer each, `encoder/layers/3/attention/query/kernel`; a group of shared
parameters belongs to all layers that use it. Hence any two encoders can be paired whose layers have the same parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.io.tree_paths import flatten_tree, map_with_path
from bertjax.types import Params

_BLOCKS = ("num_heads", "head_dim", "norm_placement", "norm_type", "attention_position")
_SAME = (*_BLOCKS, "position_embedding", "position_offset", "depth_weighted_average")
"""Fields that equal shapes do not distinguish, or that make weights of equal shapes useless."""

_STACKS = re.compile(r"encoder/(?P<kind>groups/|attention_norms/|)layers/(?P<rest>.*)")
_POSITIONS = re.compile(r"(encoder/embeddings/position_embeddings|decoder_positions)/embedding")


def start_from_teacher(
    student: EncoderConfig, params: Params, teacher: EncoderConfig, teacher_params: Params, layers: Sequence[int]
) -> Params:
    """Copies the teacher's embeddings, heads and some of its layers into a student.

    Heads that only the student has stay as they are, and so does a `projection`. A longer position table is cut.

    Args:
        student: the student.
        params: its parameters (numpy, at the true vocabulary size).
        teacher: the teacher.
        teacher_params: its parameters.
        layers: the teacher's layer that each of the student's layers becomes.

    Returns:
        The student's new parameters.

    Raises:
        UserError: the two do not fit.
    """
    _require_same(student, teacher, layers)
    sources = _by_layer(teacher_params, teacher)
    num_positions = student.max_position_embeddings + student.position_offset

    def copy(path: str, leaf: np.ndarray) -> np.ndarray:
        stack = _stack(path, leaf, student)
        if stack is not None:
            users, rest, slots = stack
            names = [f"encoder/layers/{layers[users_of_slot[0]]}/{rest}" for users_of_slot in users]
            copies = [
                _fit(name, sources.get(name), slot, num_positions) for name, slot in zip(names, slots, strict=True)
            ]
            return np.stack(copies).reshape(leaf.shape)
        if path not in sources and not path.startswith("encoder/"):
            return leaf  # a head that the teacher does not have
        return _fit(path, sources.get(path), leaf, num_positions)

    return map_with_path(copy, params)


def _require_same(student: EncoderConfig, teacher: EncoderConfig, layers: Sequence[int]) -> None:
    for name in _SAME:
        ours, theirs = getattr(student, name), getattr(teacher, name)
        if ours != theirs:
            raise UserError(
                f"objective.distillation.teacher_layers: the student cannot start from its teacher: {name} is {ours} "
                f"here, {theirs} there; make them equal or leave teacher_layers out"
            )
    outside = [layer for layer in layers if layer not in range(teacher.num_layers)]
    if outside:
        raise UserError(
            f"objective.distillation.teacher_layers: the teacher has layers 0 to {teacher.num_layers - 1}, not "
            f"{outside[0]}"
        )
    if student.inner_layers > 1 or teacher.inner_layers > 1:
        raise UserError("objective.distillation.teacher_layers needs inner_layers=1 of both networks")


def _fit(name: str, source: np.ndarray | None, target: np.ndarray, num_positions: int) -> np.ndarray:
    """Returns the teacher's array, position tables cut, if it has the student's shape."""
    if source is None:
        raise UserError(f"objective.distillation.teacher_layers: the teacher has no {name}; leave teacher_layers out")
    if _POSITIONS.fullmatch(name):
        source = source[:num_positions]
    if source.shape != target.shape:
        raise UserError(
            f"objective.distillation.teacher_layers: {name} has shape {list(source.shape)} in the teacher, "
            f"{list(target.shape)} in the student; make the sizes equal or leave teacher_layers out"
        )
    return source


def _by_layer(params: Params, config: EncoderConfig) -> dict[str, np.ndarray]:
    """Returns every parameter by its name with one layer each."""
    named: dict[str, np.ndarray] = {}
    for path, leaf in flatten_tree(params).items():
        stack = _stack(path, np.asarray(leaf), config)
        if stack is None:
            named[path] = np.asarray(leaf)
            continue
        users, rest, slots = stack
        named |= {
            f"encoder/layers/{layer}/{rest}": slot
            for users_of_slot, slot in zip(users, slots, strict=True)
            for layer in users_of_slot
        }
    return named


def _stack(path: str, leaf: np.ndarray, config: EncoderConfig) -> tuple[list[list[int]], str, np.ndarray] | None:
    """Returns, for a stacked array, the layers that use each slot, its name inside a layer, and the slots."""
    match = _STACKS.fullmatch(path)
    if match is None:
        return None
    if match["kind"] == "groups/":
        users = [[i for i in range(config.num_layers) if config.group_of(i) == slot] for slot in range(len(leaf))]
        return users, match["rest"], leaf[:, 0]
    if match["kind"] == "attention_norms/":  # the first layer has none
        return [[slot + 1] for slot in range(len(leaf))], f"attention/norm/{match['rest']}", leaf
    return [[slot] for slot in range(len(leaf))], match["rest"], leaf
