"""What stands in the place of a hidden token."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from bertjax.config.objectives.masking import MaskingConfig
from bertjax.errors import UserError
from bertjax.objectives.masking.tokens import DECISION, PIECE, Tokens, keys_at, uniform
from bertjax.types import Vocabulary


def replacements(
    tokens: Tokens,
    places: Int[Array, "B M"],
    deciding: Int[Array, "B M"],
    config: MaskingConfig,
    vocabulary: Vocabulary,
) -> Int[Array, "B M"]:
    """The mask piece, a random piece, or the token itself, for the tokens at `places`.

    The choice is made by the random number of the token at `deciding`; random pieces are drawn for every token.
    """
    ids = jnp.take_along_axis(tokens.ids, places, axis=1)
    dice = uniform(keys_at(tokens, deciding), DECISION)
    masked = jnp.full_like(ids, vocabulary.mask_id)
    share = config.mask_token_rate
    if not config.random_token_rate:
        return jnp.where(dice < share, masked, ids)
    random_ids = _random_pieces(keys_at(tokens, places), config, vocabulary).astype(ids.dtype)
    return jnp.where(dice < share, masked, jnp.where(dice < share + config.random_token_rate, random_ids, ids))


def _random_pieces(keys: Array, config: MaskingConfig, vocabulary: Vocabulary) -> Int[Array, "B M"]:
    """Pieces of the true vocabulary, from `random_first_id` on, uniform or as frequent as in the corpus."""
    first, size = config.min_random_id, vocabulary.size
    if first >= size:
        raise UserError(f"objective.random_first_id={first} leaves nothing of a vocabulary of {size} pieces")
    keys = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, PIECE)))(keys)
    if config.random_token_distribution == "uniform" or not vocabulary.counts[first:].any():
        return jax.vmap(jax.vmap(lambda key: jax.random.randint(key, (), first, size)))(keys)
    keep, other = (jnp.asarray(table) for table in build_alias_table(vocabulary.counts[first:]))

    def draw(key: Array) -> Array:
        slot_key, keep_key = jax.random.split(key)
        slot = jax.random.randint(slot_key, (), 0, size - first)
        return first + jnp.where(jax.random.uniform(keep_key) < keep[slot], slot, other[slot])

    return jax.vmap(jax.vmap(draw))(keys)


def build_alias_table(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`keep` float32 [n] and `other` int32 [n]: a uniform slot i, kept with chance keep[i], else other[i], is a draw
    with these weights. Two look-ups a draw however large the table, and rare pieces keep their exact share
    (A. J. Walker, Electronics Letters 10, 1974; M. D. Vose, IEEE TSE 17, 1991).
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
