"""The number of masked tokens of an example."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.objectives.masking.settings import Masking, default_max_predictions
from bertjax.objectives.masking.tokens import COUNT, Tokens, Words, draw_uniform, sum_by_example

_MIN_EXAMPLE = 3  # [CLS], a token, [SEP]


def mask_rate_at(config: Masking, cursor: Array | None) -> float | Float[Array, ""]:
    """Returns the share to mask in batch `cursor`, constant or linear in the cursor []; None = the first share."""
    if config.mask_rate_final is None or cursor is None:
        return config.mask_rate
    progress = jnp.clip(cursor.astype(jnp.float32) / config.schedule_steps, 0.0, 1.0)
    return config.mask_rate + (config.mask_rate_final - config.mask_rate) * progress


def max_sequence_predictions(config: Masking, seq_len: int, num_examples: int) -> int:
    """Computes M, the slots for predictions of a sequence.

    As many as one example of the sequence's length needs, and what rounding adds per example.

    Args:
        config: the masking.
        seq_len: tokens of a sequence.
        num_examples: E, the most examples in a sequence.
    """
    maximum = min(config.predictions_limit * num_examples, seq_len)
    if num_examples == 1:
        return maximum
    rate = max(config.mask_rate, config.last_rate)
    is_rounded = config.mask_rounding == "round" and config.mask_unit != "ngram_window"
    if is_rounded and rate == config.mask_rate == config.last_rate:
        lengths = np.arange(_MIN_EXAMPLE, seq_len + 1)
        gain = float((_rounded(config, rate, lengths) - rate * lengths).max())
        return min(maximum, math.floor(rate * seq_len + num_examples * max(gain, 0.0) + 1e-6))
    alone = default_max_predictions(config.mask_unit, config.mask_rounding, rate, seq_len)
    return min(maximum, alone if config.mask_rounding == "bernoulli" else alone + num_examples)


def example_num_predictions(
    config: Masking, tokens: Tokens, words: Words, rate: float | Float[Array, ""]
) -> Int[Array, "B E"]:
    """Computes the tokens (`mask_rounding="random_words"`: words) to mask in every example.

    Args:
        config: the masking.
        tokens: the tokens.
        words: the words.
        rate: the share to mask.
    """
    if config.mask_rounding == "random_words":
        examples = jnp.arange(tokens.keys.shape[1])[None, None, :]
        total = (words.example[:, :, None] == examples).sum(axis=1, dtype=jnp.int32)
    else:
        counted = tokens.candidates if config.mask_rounding == "ceil" else tokens.segments > 0
        total = sum_by_example(counted, tokens)
    length = tokens.ids.shape[1]
    # At a constant rate the numbers come from a table made in float64, like those of the authors' Python.
    lengths = jnp.arange(length + 1) if isinstance(rate, jax.Array) else np.arange(length + 1)
    if config.mask_rounding in ("random", "random_words"):
        share = jnp.asarray(rate * lengths, jnp.float32)[total]
        number = jnp.floor(share + draw_uniform(tokens.keys, COUNT)).astype(jnp.int32)
        return number if config.mask_rounding == "random_words" else jnp.minimum(number, config.predictions_limit)
    rule = _ceiled if config.mask_rounding == "ceil" else _rounded
    return jnp.asarray(rule(config, rate, lengths), jnp.int32)[total]


def _rounded(config: Masking, rate: float | Array, lengths: np.ndarray | Array) -> np.ndarray | Array:
    """google-research/bert:create_pretraining_data.py; halves go to the even number, like Python's round."""
    np_ = np if isinstance(lengths, np.ndarray) else jnp
    number = np_.minimum(np_.maximum(np_.round(rate * lengths), 1), config.predictions_limit)
    return np_.where(lengths > 0, number, 0)


def _ceiled(config: Masking, rate: float | Array, lengths: np.ndarray | Array) -> np.ndarray | Array:
    """Rounds up, as facebookresearch/SpanBERT:pretraining/fairseq/data/masking.py."""
    np_ = np if isinstance(lengths, np.ndarray) else jnp
    return np_.minimum(np_.ceil(rate * lengths), config.predictions_limit)
