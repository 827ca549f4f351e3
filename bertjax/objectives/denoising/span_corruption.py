"""Span corruption (T5, arXiv:1910.10683, section 3.1.4): sentinels replace spans, the target is what they stand for.

The text is divided as in google-research/text-to-text-transfer-transformer:t5/data/preprocessors.py: both the dropped
and the remaining tokens are cut into the same number of spans, each cut uniform among all that leave no span empty, and
the spans alternate, a remaining one first. Sentinels count up in every example, and [SEP] ends input and target.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.fields import linked, setting
from bertjax.errors import UserError
from bertjax.objectives.base import FlopsTerm, Key, example_keys
from bertjax.objectives.denoising.layout import WHOLE_TEXTS, as_target, count_in_example, drop_tokens, put
from bertjax.objectives.masking.selection import lookup_by_example, select_in_random_order
from bertjax.objectives.masking.tokens import (
    LENGTH,
    ORDER,
    Tokens,
    Words,
    draw_uniform,
    locate_tokens,
    locate_words,
    sum_by_example,
    token_keys,
)
from bertjax.objectives.seq2seq import EncoderDecoderObjective
from bertjax.types import Batch, Vocabulary

_SPECIALS = 2  # [CLS] and [SEP]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanCorruption(EncoderDecoderObjective, group="objective.span_corruption"):
    """An encoder-decoder that returns the dropped spans of a text; the defaults are T5's."""

    title = "span corruption"
    loss_name = "span_corruption"
    example_formats = WHOLE_TEXTS
    loss_titles: ClassVar[dict[str, str]] = {"span_corruption": "Dropped spans"}
    needs_mask_token = False

    noise_density: float = setting(0.15, above=0.0, below=1.0, help="Share of the tokens that are dropped.")
    mean_span: float = setting(3.0, at_least=1.0, help="Mean length of the dropped spans, in tokens.")
    num_sentinels: int = setting(
        100,
        at_least=1,
        help="Tokens <extra_id_0>, ... that stand for dropped spans; a tokenizer with fewer gets so many new ones.",
    )
    seq_len: int = linked("data.seq_len", 128)

    @classmethod
    def needed_sentinels(cls, cfg: ConfigDict) -> int:
        return cfg.objective.span_corruption.num_sentinels

    def check(self) -> None:
        maximum = int(self.spans(np.arange(self.seq_len + 1))[1].max())
        if maximum > self.num_sentinels:
            raise UserError(
                f"objective.span_corruption.num_sentinels={self.num_sentinels} is too small: a sequence of "
                f"data.seq_len={self.seq_len} tokens has up to {maximum} dropped spans"
            )

    def spans(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns dropped tokens and spans of texts of these lengths, special tokens not counted; int64 [n] each.

        As google-research/text-to-text-transfer-transformer:t5/data/preprocessors.py, random_spans_noise_mask; there
        one token at least stays and one is dropped. A text of one token stays whole.
        """
        exact = np.float32
        noise = np.round(lengths.astype(exact) * exact(self.noise_density)).astype(np.int64)
        noise = np.where(lengths > 1, np.clip(noise, 1, np.maximum(lengths - 1, 1)), 0)
        spans = np.maximum(np.round(noise.astype(exact) / exact(self.mean_span)).astype(np.int64), 1)
        return noise, np.where(noise > 0, np.minimum(spans, lengths - noise), 0)

    def network_lengths(self, seq_len: int, max_examples: int) -> dict[str, int]:
        """Returns the most tokens that remain, and that targets have; exact for one example per sequence."""
        lengths = np.arange(max(seq_len - _SPECIALS, 1) + 1)
        noise, spans = self.spans(lengths)
        bounds = []
        for sizes in (lengths - noise + spans + _SPECIALS, noise + spans + 1):
            # With E examples the sum of sizes is at most per_token x tokens + E x intercept.
            per_token = float(sizes[-1] - sizes[0]) / lengths[-1]
            intercept = float((sizes - per_token * lengths).max())
            packed = per_token * (seq_len - _SPECIALS * max_examples) + intercept * max_examples
            bounds.append(int(sizes.max()) if max_examples == 1 else int(np.floor(packed + 1e-6)))
        return {"model": min(bounds[0], seq_len), "decoder": bounds[1]}

    @property
    def summary(self) -> str:
        return f"{self.title} ({self.noise_density:.0%} of the tokens, spans of {self.mean_span:g})"

    def with_model(self, model: EncoderDecoderConfig, vocabulary: Vocabulary) -> SpanCorruption:
        """Returns the objective of a model; raises `UserError` if the tokenizer has too few sentinels."""
        if len(vocabulary.sentinel_ids) < self.num_sentinels:
            raise UserError(
                f"the tokenizer has {len(vocabulary.sentinel_ids)} sentinels <extra_id_0>, ..., but "
                f"objective.span_corruption.num_sentinels={self.num_sentinels}"
            )
        return super().with_model(model, vocabulary)

    @property
    def flops_terms(self) -> tuple[FlopsTerm, ...]:
        lengths = self.network_lengths(self.seq_len, 1)
        source, target = (lengths[name] / self.seq_len for name in ("model", "decoder"))
        model = self.seq2seq_model
        return (FlopsTerm(model.encoder, 0.0, source), FlopsTerm(model.decoder, target, target))

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Replaces spans by sentinels and adds the target; sequences become as short as their longest can be."""
        keys, vocabulary = example_keys(jax.random.fold_in(key, cursor), batch), self.vocabulary
        tokens = locate_tokens(batch, keys, vocabulary, allow_mask_special=False, allow_mask_unk=True)
        noise = random_spans(self, tokens, vocabulary)
        starts = noise & ~jnp.pad(noise[:, :-1], ((0, 0), (1, 0)))
        sizes = self.network_lengths(batch["input_ids"].shape[1], keys.shape[1])
        number = count_in_example(starts, tokens.segments) - 1
        sentinels = jnp.asarray(np.asarray(vocabulary.sentinel_ids, np.int32))[jnp.maximum(number, 0)]
        keep = ~noise | starts
        if vocabulary.cls_id == vocabulary.sep_id:  # no token of its own opens a text
            keep = keep & (tokens.positions > 0)
        ids = jnp.where(starts, sentinels, tokens.ids)
        target = self._target(tokens, noise, starts, sentinels, sizes["decoder"])
        corrupted = drop_tokens(batch, keep, sizes["model"], ids, vocabulary.pad_id)
        return super().corrupt({**corrupted, **target}, key, cursor)

    def _target(
        self,
        tokens: Tokens,
        noise: Bool[Array, "B S"],
        starts: Bool[Array, "B S"],
        sentinels: Int[Array, "B S"],
        size: int,
    ) -> Batch:
        """Returns, for every example, its spans, each after its sentinel, and the end token."""
        real = tokens.segments > 0
        ends = real & (tokens.segments != jnp.pad(tokens.segments[:, 1:], ((0, 0), (0, 1))))
        parts = ((starts, sentinels), (noise, tokens.ids), (ends, jnp.full_like(tokens.ids, self.vocabulary.sep_id)))
        total = sum(part.astype(jnp.int32) for part, _ in parts)
        slot = jnp.cumsum(total, axis=1) - total
        ids, segments = jnp.zeros((len(slot), size), jnp.int32), jnp.zeros((len(slot), size), jnp.int32)
        for part, values in parts:
            slots = jnp.where(part, slot, size)
            ids, segments = ids + put(slots, size, values), segments + put(slots, size, tokens.segments)
            slot = slot + part
        return as_target(jnp.where(segments > 0, ids, self.vocabulary.pad_id), segments)


def random_spans(config: SpanCorruption, tokens: Tokens, vocabulary: Vocabulary) -> Bool[Array, "B S"]:
    """Returns True for the tokens of the dropped spans.

    Args:
        config: density and mean length.
        tokens: the tokens.
        vocabulary: the tokenizer's vocabulary.
    """
    words = locate_words(tokens, vocabulary, whole=False)  # text alone: entry r is the r-th token of the text
    total = sum_by_example(tokens.candidates, tokens)
    tables = config.spans(np.arange(tokens.ids.shape[1] + 1))
    noise, spans = (jnp.asarray(table, jnp.int32)[total] for table in tables)
    before = jnp.cumsum(total, axis=1) - total
    base, of_noise, of_text = (lookup_by_example(each, words.example) for each in (before, noise, total - noise))
    rank = jnp.arange(tokens.ids.shape[1])[None, :] - base

    def cut(purpose: int, items: Int[Array, "B S"]) -> Bool[Array, "B S"]:
        """Returns True for the items, of ranks 0 to items - 1, that begin a span."""
        uniform = jnp.take_along_axis(draw_uniform(token_keys(tokens), purpose), words.first, axis=1)
        first = jnp.pad(_choose(words, uniform, rank < items - 1, spans - 1)[:, :-1], ((0, 0), (1, 0)))
        return (first | (rank == 0)) & (rank < items)

    noise_starts, text_starts = cut(ORDER, of_noise), cut(LENGTH, of_text)
    sequence, last = jnp.arange(len(rank))[:, None], rank.shape[1]
    # Span s of the text begins at its item `text_start[base + s]`, and after the last span at the end.
    text_span = count_in_example(text_starts, words.example) - 1
    slots = jnp.where(text_starts, base + text_span, last)
    text_start = of_text.at[sequence, slots].set(rank, mode="drop")
    following = base + count_in_example(noise_starts, words.example)  # the span of the text after that of each item
    position = rank + jnp.take_along_axis(text_start, jnp.minimum(following, last - 1), axis=1)
    slots = jnp.where(rank < of_noise, base + position, last)
    is_noise = jnp.zeros(rank.shape, bool).at[sequence, slots].set(True, mode="drop")
    return tokens.candidates & jnp.take_along_axis(is_noise, words.word_of_token, axis=1)


def _choose(
    words: Words, uniform: Float[Array, "B S"], allowed: Bool[Array, "B S"], number: Int[Array, "B E"]
) -> Bool[Array, "B S"]:
    """Chooses so many of the allowed words of every example, all subsets alike."""
    no_example = number.shape[1]
    allowed = allowed & (words.size > 0)
    candidates = words._replace(size=allowed.astype(jnp.int32), example=jnp.where(allowed, words.example, no_example))
    return select_in_random_order(candidates, uniform, candidates.size, number, passes=1)
