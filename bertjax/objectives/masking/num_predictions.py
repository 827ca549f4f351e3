"""How many tokens an example hides."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.config.objectives.masking import MaskingConfig, default_max_predictions
from bertjax.objectives.masking.tokens import COUNT, Tokens, Words, sum_by_example, uniform

SHORTEST_EXAMPLE = 3  # [CLS], a token, [SEP]


def mask_rate_at(config: MaskingConfig, cursor: Array | None) -> float | Float[Array, ""]:
    """The share to hide in batch `cursor`: constant, or on its way from the first to the last; None = the first."""
    if config.mask_rate_final is None or cursor is None:
        return config.mask_rate
    progress = jnp.clip(cursor.astype(jnp.float32) / config.schedule_steps, 0.0, 1.0)
    return config.mask_rate + (config.mask_rate_final - config.mask_rate) * progress


def num_predictions_by_length(config: MaskingConfig, seq_len: int) -> np.ndarray:
    """int32 [S + 1]: predictions of an example by its length, as the rule "round" has them."""
    return np.asarray(_rounded(config, config.mask_rate, np.arange(seq_len + 1)), np.int32)


def max_sequence_predictions(config: MaskingConfig, seq_len: int, examples: int) -> int:
    """Predictions M that a row of up to so many examples has room for: what one example of the row's length needs, and
    what is gained where every example is rounded by itself.
    """
    most = min(config.max_predictions * examples, seq_len)
    if examples == 1:
        return most
    rate = max(config.mask_rate, config.last_rate)
    if (
        config.mask_rounding == "round"
        and config.mask_unit != "ngram_window"
        and rate == config.mask_rate == config.last_rate
    ):
        lengths = np.arange(SHORTEST_EXAMPLE, seq_len + 1)
        gain = float((_rounded(config, rate, lengths) - rate * lengths).max())
        return min(most, math.floor(rate * seq_len + examples * max(gain, 0.0) + 1e-6))
    alone = default_max_predictions(config.mask_unit, config.mask_rounding, rate, seq_len)
    return min(most, alone if config.mask_rounding == "bernoulli" else alone + examples)


def example_num_predictions(
    config: MaskingConfig, tokens: Tokens, words: Words, rate: float | Float[Array, ""]
) -> Int[Array, "B E"]:
    """Tokens (with "random_words": words) that every example hides; see `objective.mask_count`."""
    real = tokens.segments > 0
    if config.mask_rounding == "random_words":
        examples = jnp.arange(tokens.keys.shape[1])[None, None, :]
        total = (words.example[:, :, None] == examples).sum(axis=1, dtype=jnp.int32)
    else:
        total = sum_by_example(tokens.candidates if config.mask_rounding == "ceil" else real, tokens)
    length = tokens.ids.shape[1]
    # At a constant rate the numbers come from a table made in float64, as the authors' Python makes them.
    lengths = jnp.arange(length + 1) if isinstance(rate, jax.Array) else np.arange(length + 1)
    if config.mask_rounding in ("random", "random_words"):
        share = jnp.asarray(rate * lengths, jnp.float32)[total]
        wanted = jnp.floor(share + uniform(tokens.keys, COUNT)).astype(jnp.int32)
        return wanted if config.mask_rounding == "random_words" else jnp.minimum(wanted, config.max_predictions)
    rule = _ceiled if config.mask_rounding == "ceil" else _rounded
    return jnp.asarray(rule(config, rate, lengths), jnp.int32)[total]


def _rounded(config: MaskingConfig, rate: float | Array, lengths: np.ndarray | Array) -> np.ndarray | Array:
    """google-research/bert:create_pretraining_data.py; halves go to the even number, as Python's round has it."""
    np_ = np if isinstance(lengths, np.ndarray) else jnp
    wanted = np_.minimum(np_.maximum(np_.round(rate * lengths), 1), config.max_predictions)
    return np_.where(lengths > 0, wanted, 0)


def _ceiled(config: MaskingConfig, rate: float | Array, lengths: np.ndarray | Array) -> np.ndarray | Array:
    """facebookresearch/SpanBERT:pretraining/fairseq/data/masking.py"""
    np_ = np if isinstance(lengths, np.ndarray) else jnp
    return np_.minimum(np_.ceil(rate * lengths), config.max_predictions)
