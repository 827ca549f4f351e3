"""Types that packages exchange. Imports neither our packages nor jax and flax.

Axis letters, the same in every signature of the project:

    B  sequences of a batch       S  tokens of a sequence     E  most examples packed in a sequence
    D  hidden size                N  attention heads          H  head size (D = N * H)
    F  feed-forward size          L  layers                   V  vocabulary (padded inside training)
    M  masked positions per sequence T  tokens of a target sequence
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

Batch = Mapping[str, Any]
"""Named arrays of one global batch, numpy on the host and jax on the device.

    input_ids         int32   [B, S]
    segment_ids       int32   [B, S]   0 = padding, 1.. = which example of the row; attention never crosses it. Examples
                                       are contiguous, in order and before the padding (`EncoderConfig.max_examples`)
    position_ids      int32   [B, S]   restart with every example
    token_type_ids    int32   [B, S]
    example_positions int32   [B, E]   the summary token of each example
    example_weights   float32 [B, E]   0 = no example
    example_ids       uint32  [B, E]   stable identity in the corpus, the same in every epoch
    example_epochs    uint32  [B, E]   number of the epoch: tells copies of an example in one batch apart
    example_draws     uint32  [B, E]   epoch modulo dupe_factor: which of the repeated draws this is
    pair_labels       int32   [B, E]   sentence pairs only; 0 = B follows A, 1 = it does not (or precedes A)
    backward          bool    [B]      streams with model.bi_data only: the text is reversed

Of an encoder-decoder these are the source, and the target has T tokens per sequence:

    target_ids          int32 [B, T]   tokens to predict, the end token included
    target_segment_ids  int32 [B, T]   0 = padding; example i of the target belongs to example i of the source
    target_position_ids int32 [B, T]

Objectives add masking: `original_ids`, `masked_positions`, `masked_ids`, `masked_weights` (and, for SpanBERT's
span-boundary loss, `span_left_positions`, `span_right_positions`, `span_position_ids`, `span_weights`; for XLNet's
permutations, `order` [B, S]).
"""

Params = dict[str, Any]
"""Nested dict of arrays; stacked layers carry a leading [L] axis below a key named `layers`."""


class Sum(NamedTuple):
    """A sum and the number of things summed; means are made last, so that they are exact on any mesh."""

    value: Any
    count: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """Facts of a tokenizer for objectives.

    `size` is the true number of tokens; `padded_size` exists only inside training (masked logits, aligned
    matrices). `starts_word[id]` is True where a token starts a word (special tokens are words). `counts[id]` is the
    number of occurrences of the token in the training corpus, for the unigram baseline. `sentinel_ids` are those of
    T5's sentinels in their order, `full_stop_ids` those of tokens that end a sentence. `tokens[id]` is the
    token; () where only sizes are known.
    """

    size: int
    padded_size: int
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    starts_word: np.ndarray  # bool [size]
    counts: np.ndarray  # int64 [size]
    sentinel_ids: tuple[int, ...] = ()
    full_stop_ids: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.padded_size < self.size:
            raise ValueError(f"padded_size {self.padded_size} is smaller than size {self.size}")
        for name in ("starts_word", "counts"):
            if getattr(self, name).shape != (self.size,):
                raise ValueError(f"{name} must have shape ({self.size},), not {getattr(self, name).shape}")


def padded_vocab_size(size: int, multiple: int = 64) -> int:
    """The next multiple of `multiple`: matrix units like aligned sizes."""
    return -(-size // multiple) * multiple
