"""Changes of logits that depend on the tokens before (transformers: logits_process.py), and samples of the next one."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.generation import GenerationConfig
from bertjax.models.linear import Key


class History(NamedTuple):
    """Sequences so far.

    Attributes:
        tokens: prompts, new tokens, then anything [R, T].
        prompt_mask: real tokens of the prompts [R, P].
        added: number of new tokens.
        limits: most new tokens of every sequence [R].
    """

    tokens: Int[Array, "R T"]
    prompt_mask: Int[Array, "R P"]
    added: Int[Array, ""]
    limits: Int[Array, "R"]

    @property
    def written(self) -> Bool[Array, "R T"]:
        """Mask of the real tokens: prompts without their padding, and the new tokens."""
        length = self.prompt_mask.shape[1]
        new = self.tokens.shape[1] - length
        real = jnp.pad(self.prompt_mask > 0, ((0, 0), (0, new)), constant_values=True)
        return real & (jnp.arange(length + new) < length + self.added)[None]

    @property
    def lengths(self) -> Int[Array, "R"]:
        """Number of real tokens."""
        return self.prompt_mask.sum(axis=1) + self.added

    def back(self, size: int) -> tuple[Int[Array, "R size"], Bool[Array, "R size"]]:
        """Returns the last `size` tokens, and whether they are real."""
        columns = self.prompt_mask.shape[1] + self.added - size + jnp.arange(size)
        at = jnp.maximum(columns, 0)
        return self.tokens[:, at], self.written[:, at] & (columns >= 0)[None]


def process_logits(logits: Float[Array, "R V"], history: History, settings: GenerationConfig) -> Float[Array, "R V"]:
    """Applies the settings to logits, or to log probabilities, in the order of `transformers`.

    Args:
        logits: logits of the next token.
        history: tokens before it.
        settings: settings of the search.
    """
    size, rows = logits.shape[-1], jnp.arange(len(logits))[:, None]
    if settings.repetition_penalty != 1.0:
        occurred = jnp.zeros(logits.shape, bool).at[rows, history.tokens].max(history.written)
        penalty = settings.repetition_penalty
        logits = jnp.where(occurred, jnp.where(logits < 0, logits * penalty, logits / penalty), logits)
    banned = jnp.zeros(logits.shape, bool)
    if settings.no_repeat_ngram_size:
        banned = banned.at[rows, history.tokens].max(_ends_of_repeated(history, settings.no_repeat_ngram_size))
    words = [word for word in settings.bad_words_ids if word not in {(end,) for end in settings.eos_token_id}]
    if words:
        banned = banned | _completes_word(history, words, size)
    if settings.suppress_tokens:
        banned = banned.at[:, jnp.asarray(settings.suppress_tokens)].set(True)
    too_short = _too_short(history, settings)
    if too_short is not None:
        banned = banned | (too_short[:, None] & _one_hot(settings.eos_token_id, size)[None])
    logits = jnp.where(banned, -jnp.inf, logits)
    if settings.forced_bos_token_id is not None:
        logits = _force(logits, settings.forced_bos_token_id, history.lengths == 1)
    if settings.forced_eos_token_id is not None:
        logits = _force(logits, settings.forced_eos_token_id, history.added + 1 == history.limits)
    return logits


def _force(logits: Array, token: int, where: Bool[Array, "R"]) -> Array:
    only = jnp.where(_one_hot((token,), logits.shape[-1]), 0.0, -jnp.inf)
    return jnp.where(where[:, None], only[None], logits)


def _too_short(history: History, settings: GenerationConfig) -> Bool[Array, "R"] | None:
    """Returns the sequences that may not end yet; None where all may."""
    if not settings.eos_token_id:
        return None
    if settings.min_new_tokens is not None:
        return jnp.broadcast_to(history.added < settings.min_new_tokens, history.limits.shape)
    return history.lengths < settings.min_length if settings.min_length else None


def _ends_of_repeated(history: History, size: int) -> Bool[Array, "R T"]:
    """Returns where tokens are that would complete an n-gram which is there already."""
    tokens, written = history.tokens, history.written
    last, real = history.back(size - 1)
    equal = written & (history.lengths >= size)[:, None]
    for offset in range(1, size):
        before = jnp.pad(tokens, ((0, 0), (offset, 0)))[:, : tokens.shape[1]]
        exists = jnp.pad(written, ((0, 0), (offset, 0)))[:, : tokens.shape[1]]
        equal = equal & exists & (before == last[:, size - 1 - offset, None]) & real[:, size - 1 - offset, None]
    return equal


def _completes_word(history: History, words: list[tuple[int, ...]], size: int) -> Bool[Array, "R V"]:
    """Returns the tokens that would complete one of these sequences of tokens."""
    longest = max(map(len, words))
    prefixes = np.full((len(words), max(longest - 1, 1)), -1)
    for row, word in enumerate(words):
        if len(word) > 1:
            prefixes[row, 1 - len(word) :] = word[:-1]
    last, real = history.back(prefixes.shape[1])
    matches = ((last[:, None] == prefixes[None]) & real[:, None]) | (prefixes < 0)[None]
    ends = jnp.asarray([word[-1] for word in words])
    rows = jnp.arange(len(last))[:, None]
    return jnp.zeros((len(last), size), bool).at[rows, ends[None]].max(matches.all(axis=-1))


def _one_hot(tokens: tuple[int, ...], size: int) -> Bool[np.ndarray, "V"]:
    return np.isin(np.arange(size), tokens)


def draw_tokens(
    logits: Float[Array, "R V"], count: Int[Array, ""], keys: Key, settings: GenerationConfig
) -> Int[Array, "R"]:
    """Draws one token per sequence, a function of its key and of the number of tokens before it.

    Args:
        logits: processed logits.
        count: number of new tokens.
        keys: keys of the sequences [R].
        settings: temperature, top_k, top_p.
    """
    logits = restrict_logits(logits, settings)
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, count)
    return jax.vmap(jax.random.categorical)(keys, logits)


def restrict_logits(logits: Float[Array, "R V"], settings: GenerationConfig) -> Float[Array, "R V"]:
    """Divides logits by the temperature and excludes tokens that are not among the most probable, in this order."""
    logits = logits / settings.temperature
    if 0 < settings.top_k < logits.shape[-1]:
        smallest = jax.lax.top_k(logits, settings.top_k)[0][:, -1:]
        logits = jnp.where(logits < smallest, -jnp.inf, logits)
    if settings.top_p < 1.0:
        falling = -jnp.sort(-logits, axis=-1)
        probabilities = jax.nn.softmax(falling)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        smallest = jnp.min(jnp.where(before < settings.top_p, falling, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits < smallest, -jnp.inf, logits)
    return logits
