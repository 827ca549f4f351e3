"""How parameters of ours become a tensor of Hugging Face's, and back.

Ours are matrices [in, out] and vectors; several that make one tensor together (query, key, value) have equal shapes.
`sizes["N"]` is the number of attention heads, for the transforms that take heads apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Arrays = Sequence[np.ndarray]
Sizes = Mapping[str, int]
Shape = tuple[int, ...]


class Transform(NamedTuple):
    """Two directions, and the shape without the numbers (a config may claim sizes that fit no memory).

    join(ours, sizes) -> theirs   split(theirs, how many of ours, sizes) -> ours
    their_shape(shape of one of ours, how many, sizes)
    """

    join: Callable[[Arrays, Sizes], np.ndarray]
    split: Callable[[np.ndarray, int, Sizes], list[np.ndarray]]
    tensor_shape: Callable[[Shape, int, Sizes], Shape]


def _single(there: Callable, back: Callable, shape: Callable) -> Transform:
    """One of ours is one of theirs."""
    return Transform(
        lambda ours, sizes: there(ours[0], sizes),
        lambda theirs, count, sizes: [back(theirs, sizes)],
        lambda of_ours, count, sizes: shape(of_ours, sizes),
    )


def _wide(shape: Shape, count: int) -> Shape:
    return (*shape[:-1], shape[-1] * count)


def _interleaved(ours: Arrays, sizes: Sizes) -> np.ndarray:
    """[in, N * H] each -> rows of head 0 of all parts, then of head 1, ...: [N * parts * H, in]."""
    heads = [array.T.reshape(sizes["N"], -1, *array.T.shape[1:]) for array in ours]
    return np.concatenate(heads, axis=1).reshape(-1, *ours[0].T.shape[1:])


def _parted(theirs: np.ndarray, count: int, sizes: Sizes) -> list[np.ndarray]:
    heads = theirs.reshape(sizes["N"], count, -1, *theirs.shape[1:])
    return [heads[:, part].reshape(-1, *theirs.shape[1:]).T for part in range(count)]


def _in_heads(size: int, sizes: Sizes) -> Shape:
    return sizes["N"], size // sizes["N"]


TRANSFORMS: dict[str, Transform] = {
    "same": _single(lambda a, _: a, lambda a, _: a, lambda shape, _: shape),
    # [in, out] <-> torch's [out, in]
    "transpose": _single(lambda a, _: a.T, lambda a, _: a.T, lambda shape, _: shape[::-1]),
    # several [in, out] <-> [in, parts * out]: GPT-2's Conv1D, and fused biases everywhere
    "concat": Transform(
        lambda ours, _: np.concatenate(ours, axis=-1),
        lambda theirs, count, _: np.split(theirs, count, axis=-1),
        lambda shape, count, _: _wide(shape, count),
    ),
    # several [in, out] <-> [parts * out, in]: fused torch linears
    "concat_transpose": Transform(
        lambda ours, _: np.concatenate(ours, axis=-1).T,
        lambda theirs, count, _: np.split(theirs.T, count, axis=-1),
        lambda shape, count, _: _wide(shape, count)[::-1],
    ),
    # several [in, N * H] <-> [N * parts * H, in], head by head: DeBERTa v1
    "interleave_heads": Transform(_interleaved, _parted, lambda shape, count, _: _wide(shape, count)[::-1]),
    # [in, N * H] <-> [in, N, H]: XLNet
    "split_heads": _single(
        lambda a, sizes: a.reshape(a.shape[0], *_in_heads(a.shape[1], sizes)),
        lambda a, _: a.reshape(a.shape[0], -1),
        lambda shape, sizes: (shape[0], *_in_heads(shape[1], sizes)),
    ),
    # [N * H, out] <-> [out, N, H]: XLNet's output
    "split_heads_output": _single(
        lambda a, sizes: a.T.reshape(a.shape[1], *_in_heads(a.shape[0], sizes)),
        lambda a, _: a.reshape(a.shape[0], -1).T,
        lambda shape, sizes: (shape[1], *_in_heads(shape[0], sizes)),
    ),
    # [D] <-> [1, 1, D]: XLNet's second stream
    "lone_vector": _single(
        lambda a, _: a[None, None],
        lambda a, _: a.reshape(-1),
        lambda shape, _: (1, 1, *shape),
    ),
    # [k, in, out] <-> torch's [out, in, k]
    "conv": _single(lambda a, _: a.T, lambda a, _: a.T, lambda shape, _: shape[::-1]),
}
