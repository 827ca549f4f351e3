"""Relative attention against its formula, one pair of tokens at a time."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.attention_context import AttentionContext
from bertjax.models.model import bind, init_params
from bertjax.models.relative_attention import RelativeAttention, make_relative_positions
from bertjax.types import Params

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
S, M = 6, 3
CONFIG = EncoderConfig(
    vocab_size=30,
    hidden_size=10,
    num_layers=2,
    num_heads=2,
    intermediate_size=12,
    position_embedding="none",
    type_vocab_size=0,
    embedding_norm="none",
    attention_position="relative",
    relative_segments=True,
    attention_bias="none",
    hidden_dropout=0.0,
    attention_dropout=0.0,
    initializer="normal",
    initializer_range=0.5,
)


def draw(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def by_hand(
    layer: RelativeAttention,
    config: EncoderConfig,
    x: np.ndarray,
    source: np.ndarray,
    positions: np.ndarray,
    types: tuple[np.ndarray, np.ndarray],
    sign: int,
) -> np.ndarray:
    """One row, in float64: query i has position `positions[i]`, key j has position j - M of the row."""
    names = ("query", "key", "value", "position", "output")
    kernel = {name: np.asarray(getattr(layer, name).kernel[...], np.float64) for name in names}
    u, w, z, s = (
        np.asarray(getattr(layer, name)[...], np.float64)
        for name in ("content_bias", "position_bias", "segment_bias", "segment_embeddings")
    )
    heads, size, width = config.num_heads, config.head_dim, config.hidden_size
    out = np.zeros((len(x), heads, size))
    for n in range(heads):
        head = slice(n * size, (n + 1) * size)
        for i, position in enumerate(positions):
            q, scores = x[i] @ kernel["query"][:, head], []
            for j, token in enumerate(source):
                distance = sign * (position - (j - (len(source) - S)))
                if config.clamp_len > 0:
                    distance = np.clip(distance, -config.clamp_len, config.clamp_len)
                angles = distance / 10_000 ** (np.arange(0, width, 2) / width)
                wave = np.concatenate([np.sin(angles), np.cos(angles)])
                score = (q + u[n]) @ (token @ kernel["key"][:, head]) + (q + w[n]) @ (
                    wave @ kernel["position"][:, head]
                )
                scores.append((score + (q + z[n]) @ s[int(types[0][i] != types[1][j]), n]) / np.sqrt(size))
            weights = np.exp(np.asarray(scores) - max(scores))
            out[i, n] = (weights / weights.sum()) @ (source @ kernel["value"][:, head])
    return out.reshape(len(x), -1) @ kernel["output"]


@pytest.mark.parametrize(("remembered", "clamp"), [(0, -1), (M, 2)])
def test_scores_are_those_of_the_formula(clamp: int, remembered: int) -> None:
    """Tokens and targets, with and without a memory, rows read forwards and backwards."""
    config = dataclasses.replace(CONFIG, clamp_len=clamp)
    layer = RelativeAttention(config, nnx.Rngs(0))
    targets, backward = jnp.asarray([[4, 0], [5, 2]]), jnp.asarray([True, False])
    x, source = draw(2, S + 2, 10), draw(2, remembered + S, 10, seed=1)
    types = jnp.asarray([[0, 0, 1, 1, 2, 2], [3, 0, 0, 1, 1, 1]])
    relative = make_relative_positions(config, types, None, remembered, targets, backward)
    mask = jnp.ones((2, 1, S + 2, remembered + S), bool)
    context = AttentionContext(jnp.ones((2, S), jnp.int32), mask=mask, relative=relative)
    result = jit(lambda x, source: layer(x, context, None, source))(x, source)
    for row in range(2):
        row_types = np.asarray(types[row])
        positions = np.concatenate([np.arange(S), np.asarray(targets[row])])
        kinds = (
            np.concatenate([row_types, row_types[np.asarray(targets[row])]]),
            np.concatenate([np.zeros(remembered, int), row_types]),
        )
        arrays = (np.asarray(a[row], np.float64) for a in (x, source))
        expected = by_hand(layer, config, *arrays, positions, kinds, -1 if bool(backward[row]) else 1)
        np.testing.assert_allclose(result[row], expected, atol=2e-5)


def test_half_of_a_batch_is_backward_where_the_config_says_so() -> None:
    types = jnp.zeros((4, S), jnp.int32)
    assert make_relative_positions(CONFIG, types, None).backward is None
    relative = make_relative_positions(dataclasses.replace(CONFIG, bi_data=True), types, None)
    np.testing.assert_array_equal(relative.backward, [False, False, True, True])
    sines, cosines = jnp.split(relative.sinusoids, 2, axis=-1)
    np.testing.assert_allclose(sines[0], -sines[1], atol=1e-6)
    np.testing.assert_allclose(cosines[0], cosines[1], atol=1e-6)


@pytest.fixture(scope="module")
def params() -> Params:
    return jit(lambda key: init_params(CONFIG, ("mlm",), key))(jax.random.key(0))


def encode(params: Params, ids: jax.Array, types: jax.Array, config: EncoderConfig = CONFIG, key=None) -> jax.Array:
    positions = jnp.zeros_like(ids)  # are not read
    return bind(config, ("mlm",), params).encode(ids, jnp.ones_like(ids), positions, types, key).last_hidden_state


@pytest.mark.long
def test_only_equality_of_segments_counts(params: Params) -> None:
    ids = jnp.asarray([[7, 8, 9, 10, 11, 12]])
    run = jit(lambda types: encode(params, ids, types))
    first = run(jnp.asarray([[0, 0, 0, 1, 1, 2]]))
    np.testing.assert_array_equal(first, run(jnp.asarray([[5, 5, 5, 0, 0, 9]])))
    assert np.abs(first - run(jnp.asarray([[0, 0, 1, 1, 1, 2]]))).max() > 1e-3


def test_dropout_reaches_the_sinusoids(params: Params) -> None:
    """With embedding dropout alone, rows of one repeated token differ only by their distances."""
    config = dataclasses.replace(CONFIG, embedding_dropout=0.5)
    zeros = jnp.zeros((1, S), jnp.int32)
    whole = make_relative_positions(config, zeros, None).sinusoids
    dropped = make_relative_positions(config, zeros, jax.random.key(0)).sinusoids
    nonzero = np.asarray(dropped != 0)
    assert 0.3 < nonzero.mean() < 0.7
    np.testing.assert_allclose(np.asarray(dropped)[nonzero], 2 * np.asarray(whole)[nonzero], rtol=1e-6)
    ids = jnp.asarray([[7, 8, 9, 10, 11, 12]])
    run = jit(lambda key: encode(params, ids, zeros, config, key))
    assert np.abs(run(jax.random.key(0)) - run(jax.random.key(1))).max() > 1e-3


@pytest.mark.long
def test_gradients_of_a_short_type_are_float32_and_near(params: Params) -> None:
    ids, types = jnp.asarray([[7, 8, 9, 10, 11, 12]]), jnp.asarray([[0, 0, 0, 1, 1, 1]])
    short = dataclasses.replace(CONFIG, compute_dtype="bfloat16", result_dtype="bfloat16")

    def gradient(config: EncoderConfig) -> Params:
        weights = draw(1, S, CONFIG.hidden_size, seed=3)
        return jit(jax.grad(lambda params: (encode(params, ids, types, config) * weights).sum()))(params)

    exact, near = gradient(CONFIG), gradient(short)
    assert {leaf.dtype for leaf in jax.tree.leaves(near)} == {np.dtype("float32")}
    one, other = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (exact, near))
    assert np.linalg.norm(one - other) < 0.1 * np.linalg.norm(one)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_bias": "all"}, "biases of their own"),
        ({"attention_position": "none", "relative_segments": False, "mem_len": 4}, "belong to attention_position"),
        ({"mem_len": 0}, "mem_len must be at least 1"),
        ({"hidden_size": 9, "num_heads": 3}, "even hidden_size"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        dataclasses.replace(CONFIG, **changes)
