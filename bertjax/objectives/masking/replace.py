"""Replacements of masked tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from bertjax.errors import UserError, comma_list
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.masking.tokens import DECISION, RANDOM_TOKEN, Tokens, draw_uniform, token_keys_at
from bertjax.types import Vocabulary


def sample_replacements(
    tokens: Tokens,
    positions: Int[Array, "B M"],
    deciding: Int[Array, "B M"],
    config: Masking,
    vocabulary: Vocabulary,
) -> Int[Array, "B M"]:
    """Returns the mask token, a random token, or the token itself, for each position.

    Args:
        tokens: the tokens.
        positions: the positions to replace.
        deciding: the positions whose random numbers choose among the three; random tokens are drawn per position.
        config: the masking.
        vocabulary: the tokenizer's vocabulary.

    Raises:
        UserError: `min_random_id` excludes the whole vocabulary.
    """
    ids = jnp.take_along_axis(tokens.ids, positions, axis=1)
    noise = draw_uniform(token_keys_at(tokens, deciding), DECISION)
    mask_ids = jnp.full_like(ids, vocabulary.mask_id)
    share = config.mask_token_rate
    if not config.random_token_rate:
        return jnp.where(noise < share, mask_ids, ids)
    random_ids = _sample_random_tokens(token_keys_at(tokens, positions), config, vocabulary).astype(ids.dtype)
    return jnp.where(noise < share, mask_ids, jnp.where(noise < share + config.random_token_rate, random_ids, ids))


def _sample_random_tokens(keys: Array, config: Masking, vocabulary: Vocabulary) -> Int[Array, "B M"]:
    """Draws tokens of the true vocabulary from `min_random_id` on, uniformly or by their counts in the corpus."""
    first, size = config.min_random_id, vocabulary.size
    allowed = np.setdiff1d(np.arange(first, size), never_masked_ids(config, vocabulary))
    if not len(allowed):
        raise UserError(f"objective.masking.min_random_id={first} leaves nothing of a vocabulary of {size} tokens")
    keys = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, RANDOM_TOKEN)))(keys)
    is_range, table = len(allowed) == size - first, jnp.asarray(allowed, jnp.int32)

    def token(number: Array) -> Array:
        return first + number if is_range else table[number]

    if config.random_token_distribution == "uniform" or not vocabulary.counts[allowed].any():
        numbers = jax.vmap(jax.vmap(lambda key: jax.random.randint(key, (), 0, len(allowed))))(keys)
        return token(numbers)
    keep, other = (jnp.asarray(table) for table in build_alias_table(vocabulary.counts[allowed]))

    def draw(key: Array) -> Array:
        slot_key, keep_key = jax.random.split(key)
        slot = jax.random.randint(slot_key, (), 0, len(allowed))
        return token(jnp.where(jax.random.uniform(keep_key) < keep[slot], slot, other[slot]))

    return jax.vmap(jax.vmap(draw))(keys)


def never_masked_ids(config: Masking, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Returns the ids of `never_masked`; raises `UserError` for a token that the vocabulary lacks."""
    if not vocabulary.tokens:  # a stand-in that knows sizes alone
        return ()
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    absent = [token for token in config.never_masked if token not in ids]
    if absent:
        raise UserError(f"objective.masking.never_masked: the tokenizer has no token {comma_list(absent)}")
    return tuple(ids[token] for token in config.never_masked)


def build_alias_table(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Builds the tables of the alias method, by which tokens are drawn with these weights.

    A uniform slot i, kept with probability keep[i] and else replaced by other[i], is such a draw: two look-ups however
    large the table, and rare tokens keep their exact share (A. J. Walker, Electronics Letters 10, 1974; M. D. Vose,
    IEEE TSE 17, 1991).

    Returns:
        `keep` float32 [n] and `other` int32 [n].
    """
    share = weights.astype(np.float64) * (len(weights) / weights.sum())
    keep, other = np.ones(len(weights)), np.arange(len(weights), dtype=np.int32)
    small, large = (list(np.flatnonzero(side)) for side in (share < 1.0, share >= 1.0))
    while small and large:
        low, high = small.pop(), large[-1]
        keep[low], other[low] = share[low], high
        share[high] -= 1.0 - share[low]
        if share[high] < 1.0:
            small.append(large.pop())
    return keep.astype(np.float32), other
