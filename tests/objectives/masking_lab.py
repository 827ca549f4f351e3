"""Shared by the tests of masking: keys as the objective derives them, rows, words, and tests of counts."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.objectives.masking import corrupt
from bertjax.objectives.masking.corrupt import mask_tokens
from bertjax.objectives.masking.settings import Masking
from bertjax.types import Vocabulary

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
PAD, UNK, CLS, SEP, MASK, CONTINUATION = range(6)


@jit
def _keys(key: jax.Array, example_ids: jax.Array) -> jax.Array:
    return jax.vmap(jax.vmap(lambda identity: jax.random.fold_in(key, identity)))(example_ids)


def keys_of(batch: dict, seed: int) -> jax.Array:
    return _keys(jax.random.key(seed), jnp.asarray(batch["example_ids"]))


@functools.partial(jit, static_argnames=("length", "purpose"))
def _noise(keys: jax.Array, length: int, purpose: int) -> jax.Array:
    def draw(key: jax.Array, position: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, position), purpose))

    return jax.vmap(jax.vmap(lambda key: jax.vmap(lambda position: draw(key, position))(jnp.arange(length))))(keys)


def noise_of(batch: dict, seed: int, purpose: int) -> np.ndarray:
    """Returns [B, E, S]: the random numbers of the tokens of every example, by position, for one purpose."""
    return np.asarray(_noise(keys_of(batch, seed), batch["input_ids"].shape[1], purpose))


@functools.cache
def compiled(config: Masking, vocabulary: Vocabulary, predictions: int) -> Callable:
    return jit(lambda batch, keys, cursor: mask_tokens(batch, keys, config, vocabulary, predictions, cursor))


def mask_batch(
    batch: dict,
    vocabulary: Vocabulary,
    seed: int = 0,
    predictions: int = 60,
    cursor: int = 0,
    **changes,
) -> dict[str, np.ndarray]:
    """`mask_tokens` with numpy in and out, compiled once for every config and shape."""
    batch = {name: jnp.asarray(value) for name, value in batch.items()}
    function = compiled(Masking(**changes), vocabulary, predictions)
    return jax.device_get(function(batch, keys_of(batch, seed), jnp.int32(cursor)))


def chosen_of(hidden: dict[str, np.ndarray]) -> np.ndarray:
    """Returns bool [B, S] from the gathered positions."""
    chosen = np.zeros(hidden["input_ids"].shape, bool)
    rows, columns = np.nonzero(hidden["masked_weights"])
    chosen[rows, hidden["masked_positions"][rows, columns]] = True
    return chosen


def words_of(ids: np.ndarray, starts_word: np.ndarray, whole: bool) -> list[list[int]]:
    """Returns the positions of the words of one example, without [CLS] and [SEP], as the authors collect them."""
    words: list[list[int]] = []
    after_candidate = False
    for position, token in enumerate(ids):
        candidate = token not in (CLS, SEP)
        if candidate and whole and after_candidate and not starts_word[token]:
            words[-1].append(position)
        elif candidate:
            words.append([position])
        after_candidate = candidate
    return words


def examples_of(batch: dict) -> list[tuple[int, int, np.ndarray]]:
    """Returns (row, index, columns) of every example of a batch."""
    examples = []
    for row, segments in enumerate(batch["segment_ids"]):
        for index in range(segments.max(initial=0)):
            examples.append((row, index, np.flatnonzero(segments == index + 1)))
    return examples


def runs_of(chosen: np.ndarray) -> list[tuple[int, int]]:
    """Returns (first, last) of the runs of True in one row."""
    edges = np.flatnonzero(np.diff(np.pad(chosen.astype(int), 1)))
    return [(int(first), int(end) - 1) for first, end in edges.reshape(-1, 2)]


def text_rows(pack: Callable, count: int, length: int, seed: int = 0, max_ids: int = 200) -> dict[str, np.ndarray]:
    """Returns `count` full rows [CLS] text [SEP], each a separate example."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        ids = rng.integers(5, max_ids, length).astype(np.int32)
        ids[[0, -1]] = CLS, SEP
        rows.append([ids])
    return pack(rows, length, [[row] for row in range(count)])


def assert_share(hits: float, of: float, expected: float, sigmas: float = 4.5) -> None:
    """Asserts that `hits` of `of` independent trials fit a probability of `expected`."""
    error = np.sqrt(of * expected * (1 - expected))
    assert abs(hits - of * expected) <= sigmas * error + 1e-9, (hits / of, expected, error / of)


def assert_distribution(counts: np.ndarray, shares: np.ndarray, sigmas: float = 4.5) -> None:
    """Asserts that counts of independent draws fit these probabilities: chi-square neither too large nor too small."""
    expected = counts.sum() * np.asarray(shares, np.float64)
    assert expected.min() >= 5 and not counts[expected == 0].any()
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(counts) - 1
    assert abs(statistic - freedom) <= sigmas * np.sqrt(2 * freedom) + 2, (statistic, freedom)


def num_predictions_by_length(config: Masking, seq_len: int) -> np.ndarray:
    """Returns int32 [S + 1]: predictions of an example by its length, by the rule "round"."""
    lengths = np.arange(seq_len + 1)
    return np.asarray(corrupt._rounded(config, config.mask_rate, lengths), np.int32)
