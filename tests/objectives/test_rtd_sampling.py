"""Words drawn from logits: the distribution, its limits, and words that are never drawn."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.objectives.rtd.objective import sample_tokens

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
SIZE, PADDED = 150, 192


def draws(logits: np.ndarray, temperature: float, count: int = 40_000, size: int = SIZE) -> np.ndarray:
    """Draws `count` words from one row of logits."""
    noise = jax.random.uniform(jax.random.key(3), (1, 1, count, 2))
    run = jit(lambda logits, noise: sample_tokens(logits, noise, temperature, size))
    return np.asarray(run(jnp.asarray(logits, jnp.float32)[None, None, :], noise))[0, 0]


def chi_square(counts: np.ndarray, shares: np.ndarray) -> tuple[float, int]:
    """Returns the statistic over words expected at least five times, the others together, and its freedom."""
    expected = shares * counts.sum()
    often = expected >= 5.0
    cells = [(counts[often], expected[often]), (counts[~often].sum(keepdims=True), expected[~often].sum(keepdims=True))]
    observed, due = (np.concatenate(part) for part in zip(*cells, strict=True))
    observed, due = observed[due > 0], due[due > 0]
    return float(((observed - due) ** 2 / due).sum()), len(due) - 1


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_words_come_as_often_as_the_softmax_says(temperature: float) -> None:
    logits = np.random.default_rng(0).normal(0.0, 2.0, PADDED)
    result = np.bincount(draws(logits, temperature), minlength=PADDED)
    assert result[SIZE:].sum() == 0
    scaled = np.exp((logits[:SIZE] - logits[:SIZE].max()) / temperature)
    statistic, degrees = chi_square(result[:SIZE], scaled / scaled.sum())
    assert degrees > 20 and abs(statistic - degrees) < 4.5 * np.sqrt(2 * degrees)


def test_a_low_temperature_takes_the_likeliest_and_a_high_one_all_alike() -> None:
    logits = np.random.default_rng(1).normal(0.0, 1.0, PADDED)
    assert set(draws(logits, 1e-4, 2000)) == {int(logits[:SIZE].argmax())}
    result = np.bincount(draws(logits, 1e6), minlength=PADDED)
    assert result[SIZE:].sum() == 0
    statistic, degrees = chi_square(result[:SIZE], np.full(SIZE, 1.0 / SIZE))
    assert degrees == SIZE - 1 and abs(statistic - degrees) < 4.5 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("size", [5, 64, 65, 150, 192])
def test_padding_is_never_drawn_even_at_the_ends(size: int) -> None:
    """Logits of the padding are as high as possible; the random numbers are the smallest and the largest."""
    logits = jnp.full((1, 1, PADDED), 3e38).at[..., :size].set(0.0)
    for number in (0.0, 1.0 - 2.0**-23, np.nextafter(np.float32(1.0), np.float32(0.0)), 0.5):
        words = sample_tokens(logits, jnp.full((1, 1, 1, 2), number, jnp.float32), 1.0, size)
        assert 0 <= int(words[0, 0, 0]) < size
    assert int(sample_tokens(logits, jnp.zeros((1, 1, 1, 2)), 1.0, size)[0, 0, 0]) == 0


@pytest.mark.parametrize("certain", [0, 63, 64, 149])
def test_one_certain_word_is_always_taken(certain: int) -> None:
    logits = np.full(SIZE, -200.0)
    logits[certain] = 100.0
    assert set(draws(logits, 1.0, 500)) == {certain}


def test_no_gradient_flows_through_the_words() -> None:
    def value(logits: jax.Array) -> jax.Array:
        return (
            sample_tokens(logits, jnp.full((1, 2, 1, 2), 0.3), 0.7, 10).astype(jnp.float32).sum() + 0.0 * logits.sum()
        )

    assert (np.asarray(jax.grad(value)(jax.random.normal(jax.random.key(0), (1, 2, 12)))) == 0.0).all()


def test_rows_and_positions_are_drawn_independently() -> None:
    logits = jax.random.normal(jax.random.key(0), (3, 4, 100)) * 3.0
    noise = jax.random.uniform(jax.random.key(1), (3, 4, 2, 2))
    run: Callable = jit(lambda logits, noise: sample_tokens(logits, noise, 1.0, 100))
    whole = np.asarray(run(logits, noise))
    for row in range(3):
        for slot in range(4):
            alone = run(logits[row : row + 1, slot : slot + 1], noise[row : row + 1, slot : slot + 1])
            np.testing.assert_array_equal(alone[0, 0], whole[row, slot])
