"""How parameters of ours become a tensor of Hugging Face's, and back.

Ours are matrices [in, out] and vectors; several that make one tensor together (query, key, value) have equal shapes.
Letters of `sizes` that a transform asks for: N, the attention heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Arrays = Sequence[np.ndarray]
Sizes = Mapping[str, int]
Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Transform:
    """`join(ours, sizes)` is theirs; `split(theirs, how many of ours, sizes)` is its inverse."""

    join: Callable[[Arrays, Sizes], np.ndarray]
    split: Callable[[np.ndarray, int, Sizes], list[np.ndarray]]

    def their_shape(self, shape: Shape, count: int, sizes: Sizes) -> Shape:
        """Shape of theirs when ours are `count` arrays of `shape`; allocates nothing, whatever the sizes claim."""
        ghost = np.broadcast_to(np.zeros((), np.bool_), shape)
        return _shape_of(self, ghost, count, sizes)
