"""Settings of permutation language modeling; targets, order and visibility of XLNet (zihangdai/xlnet:data_utils.py).

`_sample_mask` there lays spans from left to right, each at a random position of a context of its own. The next step
depends only on where a span's context begins, so every position of the sequence gets the random numbers of a context
that would begin there and, from them, the position where the next one would begin. The contexts of a sequence are then
the positions reached from the first one, found by doubling: 1, 2, 4, ... steps at a time, a few gathers and no loop
along the sequence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from bertjax.config.fields import Reader, phase_setting
from bertjax.config.model import EncoderConfig, encoder_config, reuse_len
from bertjax.config.objectives import PAIR_FORMATS, STREAM_FORMATS, TEXT_FORMATS
from bertjax.errors import UserError
from bertjax.models.attention_context import PredictionRanks
from bertjax.objectives.base import PairObjective
from bertjax.objectives.masking.selection import sample_ngram_lengths

T = TypeVar("T", bound="PlmSettings")

_NUM_SPECIAL = 3  # tokens of a part that may be special and hence never targets
_MAX_PART_LENGTH = 1 << 14  # the order of prediction keeps at least 17 random bits besides the position


@dataclasses.dataclass(frozen=True)
class PlmSettings(PairObjective, group="objective.plm"):
    """XLNet's objective (zihangdai/xlnet:data_utils.py); the defaults are those of its released code.

    Attributes:
        part_lengths: tokens of the parts of a sequence; each part is permuted separately and attends to all earlier
            parts.
        mem_len: tokens of earlier sequences that every layer remembers; 0 = none.
    """

    title = "permutation language modeling"
    example_formats = (*STREAM_FORMATS, *TEXT_FORMATS, *PAIR_FORMATS)
    loss_titles: ClassVar[dict[str, str]] = {"plm": "Tokens of a permutation", "pair": "Sentence pairs"}
    can_pack = False
    two_streams = True

    part_lengths: tuple[int, ...]
    num_predict: int | None = phase_setting(
        None, help="Tokens predicted per sequence; None = a sixth of it (85 of 512).", at_least=1
    )
    perm_size: int | None = phase_setting(
        None,
        help="Tokens that are permuted together; sequences (form segments: their two parts) are cut into blocks of "
        "this size, predicted one after the other. None = one block.",
        at_least=1,
    )
    mem_len: int = 0
    max_ngram: int = phase_setting(
        3, help="Longest span of targets; the probability of n is proportional to 1 / n.", at_least=1, at_most=16
    )
    mask_alpha: int = phase_setting(
        6, at_least=1, help="A span of n lies in a context of n * mask_alpha // mask_beta tokens."
    )
    mask_beta: int = phase_setting(1, help="See mask_alpha.", at_least=1)
    whole_words: bool = phase_setting(
        False, help="Spans are n words; False = n tokens from the start of a word on, as in the released code."
    )

    @classmethod
    def read(cls: type[T], reader: Reader) -> T:
        """Makes the objective; published for 512 tokens: 85 predicted, 256 reused and permuted, 384 remembered.

        Raises:
            UserError: `model.reuse_len` does not fit streams, or a value is not allowed.
        """
        cfg = reader.cfg
        example_format, length = cfg.data.example_format, cfg.data.seq_len
        model, reused = encoder_config(cfg), reuse_len(cfg)
        if example_format == "stream" and model.reuse_len not in (None, length):
            raise UserError(
                "data.example_format=stream continues after the whole sequence: model.reuse_len must be "
                f"data.seq_len={length} or None, not {model.reuse_len}"
            )
        has_parts = example_format == "segments"
        mem_len = (3 * length // 4 if has_parts else length) if model.mem_len is None else model.mem_len
        return cls(
            part_lengths=(reused, length - reused) if has_parts else (length,),
            mem_len=mem_len if example_format in STREAM_FORMATS else 0,
            **reader.fields_of(cls),
        )

    def check(self) -> None:
        self.check_example_format(self.example_format)
        if self.mask_alpha < self.mask_beta:
            raise UserError(
                f"objective.plm.mask_alpha={self.mask_alpha} must be at least "
                f"objective.plm.mask_beta={self.mask_beta}: a span lies inside its context"
            )
        if max(self.part_lengths) > _MAX_PART_LENGTH:
            raise UserError(
                f"objective.name=plm permutes at most {_MAX_PART_LENGTH} tokens, not {max(self.part_lengths)}"
            )
        for length, num_predict in zip(self.part_lengths, self.num_predict_by_part, strict=True):
            if length % self.block_size:
                raise UserError(
                    f"objective.plm.perm_size={self.block_size} must divide every part of a sequence: "
                    f"{' and '.join(map(str, self.part_lengths))} tokens (model.reuse_len cuts sequences of form "
                    "segments)"
                )
            if num_predict > length - _NUM_SPECIAL - 1:
                raise UserError(
                    f"objective.plm.num_predict={self.num_targets} leaves no token to predict from: at most "
                    f"{length - _NUM_SPECIAL - 1} of the {length} tokens of a part"
                )

    @property
    def block_size(self) -> int:
        """The tokens that are permuted together."""
        return self.part_lengths[0] if self.perm_size is None else self.perm_size

    @property
    def num_targets(self) -> int:
        """The tokens predicted in a full sequence, M."""
        return max(sum(self.part_lengths) // 6, 1) if self.num_predict is None else self.num_predict

    @property
    def num_predict_by_part(self) -> tuple[int, ...]:
        """The tokens predicted in each part: 43 and 42 of 85."""
        total = sum(self.part_lengths)
        ends = [
            math.ceil(self.num_targets * sum(self.part_lengths[: i + 1]) / total) for i in range(len(self.part_lengths))
        ]
        return tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))

    @property
    def predicted_share(self) -> float:
        """The share of the tokens that are scored against the vocabulary."""
        return self.num_targets / sum(self.part_lengths)

    @property
    def summary(self) -> str:
        return " and ".join(filter(None, [self.title, self.sentence_objective]))

    def check_model(self, model: EncoderConfig) -> None:
        for reason in self._invalid_values(model):
            raise UserError(f"objective.name=plm: {reason}")

    def _invalid_values(self, model: EncoderConfig) -> Iterator[str]:
        if model.attention_position != "relative":
            yield (
                "model.attention_position must be relative, so that a target knows its position but not its token; "
                f"not {model.attention_position}"
            )
        if model.position_embedding != "none":
            yield "model.position_embedding must be none: targets have no embeddings"
        if model.causal:
            yield "model.causal must be false: the order of prediction is random"
        if model.conv_kernel_size > 0:
            yield "model.conv_kernel_size must be 0: it would show targets their own tokens"
        if self.mem_len > 0 and model.inner_layers > 1:
            yield "model.inner_layers must be 1: each layer has one memory"
        if self.example_format == "segments" and model.type_vocab_size in (1, 2):
            yield "model.type_vocab_size must be 0 (XLNet) or at least 3: form segments has three token types"
        if model.bi_data and self.example_format not in STREAM_FORMATS:
            yield (
                f"model.bi_data needs data.example_format to be {' or '.join(STREAM_FORMATS)}: sequences of "
                f"{self.example_format} are never reversed"
            )


NUM_DRAWS = 4
"""Random numbers per token: length of a span, its position in the context, single tokens, order of prediction."""


class SequencePart(NamedTuple):
    """A part of every sequence, of P tokens, in reading order: reversed where sequences are read backwards.

    Attributes:
        starts: where a token starts a word.
        lengths: real tokens, which come first.
        goals: real tokens that are to be predicted.
        bits: K = `NUM_DRAWS` random numbers per token.
    """

    starts: Bool[Array, "B P"]
    lengths: Int[Array, "B"]
    goals: Int[Array, "B"]
    bits: UInt32[Array, "K B P"]


def sample_targets(part: SequencePart, config: PlmSettings, max_targets: int) -> Bool[Array, "B P"]:
    """Selects `goals` tokens per sequence: spans, and single tokens where spans are too few.

    Special tokens can be among the single tokens; a caller that excludes them predicts fewer.

    Args:
        part: the part.
        config: the objective's config.
        max_targets: the largest of `goals`.
    """
    spans = _sample_spans(part, config, max_targets)
    position = jnp.arange(spans.shape[1])[None, :]
    is_open = (position < part.lengths[:, None]) & ~spans
    keys = jnp.where(is_open, _unique(part.bits[2]), jnp.uint32(0xFFFFFFFF))
    missing = (part.goals - spans.sum(axis=1))[:, None]
    last = jnp.take_along_axis(jnp.sort(keys, axis=1), jnp.maximum(missing - 1, 0), axis=1)
    return spans | (is_open & (keys <= last) & (missing > 0))


def _sample_spans(part: SequencePart, config: PlmSettings, max_targets: int) -> Bool[Array, "B P"]:
    """Returns True for tokens of spans. The last one is cut to the goal; one that meets the end is dropped."""
    batch_size, length = part.starts.shape
    here = jnp.broadcast_to(jnp.arange(length)[None, :], (batch_size, length))
    everywhere = _Contexts(part, config, here)
    number = min(max_targets, -(-length // (1 + config.mask_alpha // config.mask_beta)))
    positions = _reached(everywhere.next_positions(jnp.full((batch_size, 1), length)), number)
    contexts = _Contexts(part, config, positions)
    size = contexts.size(contexts.ngram)
    budget = jnp.maximum(part.goals[:, None] - (jnp.cumsum(size, axis=1) - size), 0)
    start, end = contexts.span(jnp.minimum(contexts.ngram, budget))
    is_used = (budget > 0) & (end < part.lengths[:, None])
    start, end = jnp.where(is_used, start, length), jnp.where(is_used, jnp.minimum(end, start + budget), length)
    sequence = jnp.arange(batch_size)[:, None]
    edges = jnp.zeros((batch_size, length + 1), jnp.int32).at[sequence, start].add(1).at[sequence, end].add(-1)
    return jnp.cumsum(edges, axis=1)[:, :length] > 0


class _Contexts:
    """Contexts that begin at `positions` [B, C] of a part: the lengths of their spans, and where these lie."""

    def __init__(self, part: SequencePart, config: PlmSettings, positions: Int[Array, "B C"]):
        self.part, self.config, self.positions = part, config, positions
        length = part.starts.shape[1]
        bits = [jnp.take_along_axis(each, jnp.minimum(positions, length - 1), axis=1) for each in part.bits[:2]]
        length_noise, self.noise = (_uniform(each) for each in bits)
        self.ngram = sample_ngram_lengths(length_noise, config.max_ngram)
        index = jnp.broadcast_to(jnp.arange(length)[None, :], part.starts.shape)
        self.next_start = jax.lax.cummin(jnp.where(part.starts, index, length), axis=1, reverse=True)
        if config.whole_words:
            self.word = jnp.cumsum(part.starts, axis=1) - 1
            slot = jnp.where(part.starts, self.word, length)
            sequence = jnp.arange(len(slot))[:, None]
            self.word_start = jnp.full(slot.shape, length).at[sequence, slot].set(index, mode="drop")

    def span(self, ngram: Int[Array, "B C"]) -> tuple[Int[Array, "B C"], Int[Array, "B C"]]:
        """Returns [start, end) of spans of `ngram` tokens or words; `end` is at least P where there is none."""
        length = self.part.starts.shape[1]
        start = _lookup(self.next_start, self.positions + self._left(ngram), length)
        if not self.config.whole_words:
            return start, start + ngram
        word = _lookup(self.word, start, length)
        return start, _lookup(self.word_start, word + ngram, length)

    def size(self, ngram: Int[Array, "B C"]) -> Int[Array, "B C"]:
        """Returns the tokens of such a span."""
        start, end = self.span(ngram)
        return jnp.maximum(end - start, 0)

    def next_positions(self, nowhere: Int[Array, "B 1"]) -> Int[Array, "B C"]:
        """Returns where the next contexts begin; `nowhere` after one whose span meets the end of the sequence."""
        _, end = self.span(self.ngram)
        following = end + self._context(self.ngram) - self._left(self.ngram)
        return jnp.where(end < self.part.lengths[:, None], jnp.minimum(following, nowhere), nowhere)

    def _context(self, ngram: Array) -> Array:
        return ngram * self.config.mask_alpha // self.config.mask_beta

    def _left(self, ngram: Array) -> Array:
        """Returns the tokens of the context before the span, or before the word at which it then begins."""
        context = self._context(ngram)
        return jnp.minimum((self.noise * context).astype(jnp.int32), context - 1)


def _reached(jump: Int[Array, "B P"], number: int) -> Int[Array, "B C"]:
    """Returns the first `number` positions reached from position 0 by repeated jumps, P where there are no more."""
    batch_size, length = jump.shape
    positions = jnp.zeros((batch_size, 1), jump.dtype)
    while positions.shape[1] < number:  # log2(number) times
        positions = jnp.concatenate([positions, _lookup(jump, positions, length)], axis=1)
        jump = _lookup(jump, jump, length)
    return positions[:, :number]


def _lookup(table: Int[Array, "B P"], positions: Int[Array, "B C"], default: int) -> Int[Array, "B C"]:
    """Returns entries of a sequence's table; `default` after its end."""
    length = table.shape[1]
    entries = jnp.take_along_axis(table, jnp.minimum(positions, length - 1), axis=1)
    return jnp.where(positions < length, entries, default)


def _uniform(bits: UInt32[Array, "*b"]) -> Float[Array, "*b"]:
    """Returns uniform numbers in [0, 1), of the 24 bits that a float32 holds."""
    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def _unique(bits: UInt32[Array, "B P"]) -> UInt32[Array, "B P"]:
    """Puts the position into the low bits: the order stays random, and no two numbers of a sequence are equal."""
    length = bits.shape[1]
    low = (1 << (length - 1).bit_length()) - 1
    return (bits & jnp.uint32(~low & 0xFFFFFFFF)) | jnp.arange(length, dtype=jnp.uint32)[None, :]


def sample_order(bits: UInt32[Array, "B P"], perm_size: int) -> Int[Array, "B P"]:
    """Returns when each token of a part would be predicted: distinct numbers >= 0, of which only the order matters.

    Blocks of `perm_size` tokens come one after the other, all in the same permutation, as in the original.
    """
    batch_size, length = bits.shape
    block_bits = (length // perm_size - 1).bit_length()
    within = _unique(bits[:, :perm_size] >> (1 + block_bits))
    block = jnp.arange(length // perm_size, dtype=jnp.uint32) << (31 - block_bits)
    return (block[None, :, None] | within[:, None, :]).reshape(batch_size, length).astype(jnp.int32)


def permutation_ranks(
    order: Int[Array, "B S"], is_functional: Bool[Array, "B S"], part_lengths: tuple[int, ...]
) -> PredictionRanks:
    """Returns the order of prediction as ranks: token i may attend to the tokens of a lower rank.

    That is 1 - `perm_mask` of the original, without an array [B, S, S].

    Args:
        order: when targets and functional tokens are predicted, distinct numbers; -1 = visible to all.
        is_functional: [SEP] and [CLS], which are never targets: visible from their turn on, even to themselves, and to
            no token that is visible to all.
        part_lengths: tokens of the parts; a token attends to all earlier parts and to no later one.
    """
    keys: list[Array] = []
    start = 0
    for length in part_lengths:
        part = order[:, start : start + length]
        earlier = (part[:, None, :] < part[:, :, None]).sum(axis=2, dtype=jnp.int32)
        keys.append(2 * (start + jnp.where(part < 0, 0, 1 + earlier) + len(keys)))
        start += length
    ranks = jnp.concatenate(keys, axis=1)
    return PredictionRanks(ranks + ((order < 0) | is_functional), ranks)
