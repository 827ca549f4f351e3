"""Scores by distance, converted to scores by key, against a look-up of every pair."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.models import relative_shift
from bertjax.models.relative_shift import block_size, distance_scores, distance_scores_at

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
CONFIG = EncoderConfig()


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape) + shape[1]).standard_normal(shape).astype(np.float32)


def looked_up(q: np.ndarray, rows: np.ndarray, positions: np.ndarray, keys: int, length: int) -> np.ndarray:
    """Returns q_i rows[i - j], pair by pair; key j has position j - (keys - length)."""
    distance = positions[:, :, None] - (np.arange(keys) - (keys - length))[None, None]
    tables = np.broadcast_to(rows, (len(q), *rows.shape[1:]))
    chosen = np.stack([each[(keys - 1) - offset] for each, offset in zip(tables, distance, strict=True)])
    return np.einsum("bqnh,bqknh->bnqk", q, chosen)


# rows of one block, of several, and of a length that no block divides; with and without a memory
@pytest.mark.parametrize(("length", "keys"), [(6, 6), (6, 9), (1, 4), (96, 101), (67, 67)])
@pytest.mark.parametrize("sets", [1, 2])
def test_scores_are_the_looked_up_ones(length: int, keys: int, sets: int) -> None:
    q, rows = draw(2, length, 2, 3), draw(sets, keys + length - 1, 2, 3)
    result = jit(lambda q, rows: distance_scores(q, rows, keys, CONFIG))(q, rows)
    everywhere = np.tile(np.arange(length), (2, 1))
    np.testing.assert_allclose(result, looked_up(q, rows, everywhere, keys, length), atol=2e-6)
    positions = np.random.default_rng(0).integers(0, length, (2, 3))
    some = draw(2, 3, 2, 3)
    result = jit(lambda q, rows, positions: distance_scores_at(q, rows, positions, keys, CONFIG))(some, rows, positions)
    np.testing.assert_allclose(result, looked_up(some, rows, positions, keys, length), atol=2e-6)


@pytest.mark.long
@pytest.mark.parametrize(("length", "size"), [(6, 6), (20, 13), (9, 8), (40, 1)])
def test_slices_by_bits_are_slices(length: int, size: int) -> None:
    """Values, and gradients where slices overlap; every possible start."""
    starts = np.arange(length - size + 1)[None]
    x, grad = draw(1, starts.size, 2, length), draw(1, starts.size, 2, size)
    (expected, transposed), (result, backward) = (
        jax.vjp(functools.partial(function, starts=jnp.asarray(starts), size=size), x)
        for function in (relative_shift._slices, relative_shift._slices_by_bits)
    )
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(backward(grad)[0], transposed(grad)[0])


def test_on_tpus_queries_are_not_sliced_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    q, rows, positions = draw(2, 3, 2, 3), draw(1, 11, 2, 3), np.array([[0, 5, 2], [1, 4, 3]])
    programs = []
    for platform in ("cpu", "tpu"):
        monkeypatch.setattr(relative_shift, "target_platform", lambda platform=platform: platform)
        scores = functools.partial(distance_scores_at, num_keys=6, config=CONFIG)
        programs.append(str(jax.make_jaxpr(scores)(q, rows, positions)))
    assert ["gather" in program for program in programs] == [True, False]


def test_shear_reads_rows_one_step_further_each() -> None:
    x = np.arange(2 * 3 * 6, dtype=np.float32).reshape(2, 3, 6)
    expected = np.stack([x[:, i, 2 - i : 6 - i] for i in range(3)], axis=1)
    np.testing.assert_array_equal(relative_shift.relative_shift(jnp.asarray(x), 4), expected)
    np.testing.assert_array_equal(relative_shift.relative_shift(jnp.asarray(x[:, :1]), 6), x[:, :1])


def test_blocks_divide_the_row() -> None:
    assert [block_size(length) for length in (512, 96, 66, 67, 20)] == [64, 48, 33, 67, 20]
