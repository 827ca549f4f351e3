"""Conversions between parameters of bertjax and tensors of Hugging Face.

Parameters are matrices [in, out] and vectors; several that make one tensor together (query, key, value) have equal
shapes. `sizes["N"]` is the number of attention heads, for the transforms that split or join heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Arrays = Sequence[np.ndarray]
Sizes = Mapping[str, int]
Shape = tuple[int, ...]


class Transform(NamedTuple):
    """A conversion in both directions, and the shape of its result without the numbers (they may not fit into memory).

    Attributes:
        join: (parameters, sizes) -> tensor.
        split: (tensor, number of parameters, sizes) -> parameters.
        tensor_shape: (shape of one parameter, number of parameters, sizes) -> shape of the tensor.
    """

    join: Callable[[Arrays, Sizes], np.ndarray]
    split: Callable[[np.ndarray, int, Sizes], list[np.ndarray]]
    tensor_shape: Callable[[Shape, int, Sizes], Shape]


def _single(join: Callable, split: Callable, tensor_shape: Callable) -> Transform:
    """Returns the transform of one parameter to one tensor."""
    return Transform(
        lambda params, sizes: join(params[0], sizes),
        lambda tensor, count, sizes: [split(tensor, sizes)],
        lambda shape, count, sizes: tensor_shape(shape, sizes),
    )


def _widen(shape: Shape, count: int) -> Shape:
    return (*shape[:-1], shape[-1] * count)


def _interleave_heads(params: Arrays, sizes: Sizes) -> np.ndarray:
    """[in, N * H] each -> rows of head 0 of all parameters, then of head 1, ...: [N * parameters * H, in]."""
    heads = [array.T.reshape(sizes["N"], -1, *array.T.shape[1:]) for array in params]
    return np.concatenate(heads, axis=1).reshape(-1, *params[0].T.shape[1:])


def _separate_heads(tensor: np.ndarray, count: int, sizes: Sizes) -> list[np.ndarray]:
    heads = tensor.reshape(sizes["N"], count, -1, *tensor.shape[1:])
    return [heads[:, index].reshape(-1, *tensor.shape[1:]).T for index in range(count)]


def _interleave_rotary_heads(params: Arrays, sizes: Sizes) -> np.ndarray:
    pairs = [_reorder_heads(array, sizes, (2, -1)) for array in params[:2]]
    return _interleave_heads((*pairs, *params[2:]), sizes)


def _separate_rotary_heads(tensor: np.ndarray, count: int, sizes: Sizes) -> list[np.ndarray]:
    separate = _separate_heads(tensor, count, sizes)
    return [*(_reorder_heads(array, sizes, (-1, 2)) for array in separate[:2]), *separate[2:]]


def _reorder_heads(array: np.ndarray, sizes: Sizes, halves: tuple[int, int]) -> np.ndarray:
    """[..., N * H] with (2, -1): numbers i and i + H / 2 of a head become neighbors; with (-1, 2) the inverse."""
    return array.reshape(*array.shape[:-1], sizes["N"], *halves).swapaxes(-1, -2).reshape(array.shape)


def _split_axis(size: int, sizes: Sizes) -> Shape:
    return sizes["N"], size // sizes["N"]


_TRANSPOSE = _single(lambda a, _: a.T, lambda a, _: a.T, lambda shape, _: shape[::-1])
TRANSFORMS: dict[str, Transform] = {
    "same": _single(lambda a, _: a, lambda a, _: a, lambda shape, _: shape),
    # [in, out] <-> torch's [out, in]
    "transpose": _TRANSPOSE,
    # several [in, out] <-> [in, parameters * out]: GPT-2's Conv1D, and fused biases of all families
    "concat": Transform(
        lambda params, _: np.concatenate(params, axis=-1),
        lambda tensor, count, _: np.split(tensor, count, axis=-1),
        lambda shape, count, _: _widen(shape, count),
    ),
    # several [in, out] <-> [parameters * out, in]: fused torch linears
    "concat_transpose": Transform(
        lambda params, _: np.concatenate(params, axis=-1).T,
        lambda tensor, count, _: np.split(tensor.T, count, axis=-1),
        lambda shape, count, _: _widen(shape, count)[::-1],
    ),
    # several [in, N * H] <-> [N * parameters * H, in], head by head: DeBERTa v1
    "interleave_heads": Transform(
        _interleave_heads, _separate_heads, lambda shape, count, _: _widen(shape, count)[::-1]
    ),
    # the same with rotated pairs of queries and keys side by side: NeoBERT
    "interleave_rotary_heads": Transform(
        _interleave_rotary_heads, _separate_rotary_heads, lambda shape, count, _: _widen(shape, count)[::-1]
    ),
    # [in, N * H] <-> torch's [N * H, in], and its bias, with rotated pairs side by side: RoFormer
    "rotary_pairs": _single(
        lambda a, sizes: _reorder_heads(a, sizes, (2, -1)).T,
        lambda a, sizes: _reorder_heads(a.T, sizes, (-1, 2)),
        lambda shape, _: shape[::-1],
    ),
    # [N * H, out] <-> torch's [out, N * H], the same of what reads rotated values: RoFormer
    "rotary_pairs_output": _single(
        lambda a, sizes: _reorder_heads(a.T, sizes, (2, -1)),
        lambda a, sizes: _reorder_heads(a, sizes, (-1, 2)).T,
        lambda shape, _: shape[::-1],
    ),
    # [in, N * H] <-> [in, N, H]: XLNet
    "split_heads": _single(
        lambda a, sizes: a.reshape(a.shape[0], *_split_axis(a.shape[1], sizes)),
        lambda a, _: a.reshape(a.shape[0], -1),
        lambda shape, sizes: (shape[0], *_split_axis(shape[1], sizes)),
    ),
    # [N * H, out] <-> [out, N, H]: XLNet's output
    "split_heads_output": _single(
        lambda a, sizes: a.T.reshape(a.shape[1], *_split_axis(a.shape[0], sizes)),
        lambda a, _: a.reshape(a.shape[0], -1).T,
        lambda shape, sizes: (shape[1], *_split_axis(shape[0], sizes)),
    ),
    # [D] <-> [1, 1, D]: XLNet's second stream
    "lone_vector": _single(lambda a, _: a[None, None], lambda a, _: a.reshape(-1), lambda shape, _: (1, 1, *shape)),
    # [N * 2 * H, out] <-> torch's [out, 2 * N * H]: the parts of a head apart, ConvBERT
    "head_parts_output": _single(
        lambda a, sizes: a.reshape(sizes["N"], 2, -1, a.shape[1]).swapaxes(0, 1).reshape(a.shape).T,
        lambda a, sizes: a.T.reshape(2, sizes["N"], -1, a.shape[0]).swapaxes(0, 1).reshape(a.T.shape),
        lambda shape, _: shape[::-1],
    ),
    # [in, groups * out] <-> [groups, in, out]: ConvBERT's matrices in groups of channels
    "blocks": _single(
        lambda a, sizes: a.reshape(a.shape[0], sizes["groups"], -1).swapaxes(0, 1),
        lambda a, _: a.swapaxes(0, 1).reshape(a.shape[1], -1),
        lambda shape, sizes: (sizes["groups"], shape[0], shape[1] // sizes["groups"]),
    ),
    # [A] <-> [A, 1]: the bias of a convolution of ConvBERT
    "column": _single(lambda a, _: a[:, None], lambda a, _: a[:, 0], lambda shape, _: (*shape, 1)),
    # [V] <-> [1, V]: the bias of BART's scores
    "row": _single(lambda a, _: a[None], lambda a, _: a.reshape(-1), lambda shape, _: (1, *shape)),
    # [in, out] <-> torch's [out, in, 1], a convolution of width 1: SqueezeBERT
    "pointwise": _single(lambda a, _: a.T[..., None], lambda a, _: a[..., 0].T, lambda shape, _: (*shape[::-1], 1)),
    # [k, in, out] <-> torch's [out, in, k]
    "conv": _TRANSPOSE,
}
