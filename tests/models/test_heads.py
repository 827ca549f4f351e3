"""Heads: the tied projection, the padded vocabulary, the pooler, and models without some of them."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.heads import gather_positions
from bertjax.models.model import abstract_params, bind, init_params
from bertjax.types import Params

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
ALL = ("pooler", "mlm", "pair")


def test_logits_are_scores_against_the_word_table(small: EncoderConfig, small_params: Params) -> None:
    hidden = np.random.default_rng(0).normal(size=(3, 32))
    logits = jit(lambda params, hidden: bind(small, ALL, params).mlm_logits(hidden))
    result = logits(small_params, jnp.asarray(hidden, jnp.float32)[None])[0]
    head = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), small_params["mlm_head"])
    x = hidden @ head["dense"]["kernel"] + head["dense"]["bias"]
    x = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) * head["norm"]["scale"] + head["norm"]["bias"]
    table = np.asarray(small_params["encoder"]["embeddings"]["word_embeddings"]["embedding"], np.float64)
    np.testing.assert_allclose(result, x @ table.T + head["bias"], atol=2e-5)


def test_the_activation_of_the_head_is_that_of_the_config(small: EncoderConfig, small_params: Params) -> None:
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(1, 3, 32)), jnp.float32)
    names = ("gelu_new", "gelu", "relu")

    @jit
    def run(params: Params) -> list[jax.Array]:
        models = [bind(dataclasses.replace(small, hidden_act=name), ALL, params) for name in names]
        return [model.mlm_logits(hidden) for model in models]

    logits = [np.asarray(each) for each in run(small_params)]
    assert 1e-6 < np.abs(logits[0] - logits[1]).max() < 1e-2 < np.abs(logits[0] - logits[2]).max()


@pytest.mark.long
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_padding_of_the_vocabulary_can_never_be_predicted(small: EncoderConfig, compute: str) -> None:
    config = dataclasses.replace(small, padded_vocab_size=64, compute_dtype=compute, result_dtype=compute)
    params = jit(lambda key: init_params(config, ("mlm",), key))(jax.random.key(0))
    hidden = jnp.ones((1, 2, 32), compute)

    @jit
    @functools.partial(jax.grad, has_aux=True)
    def gradient_and_logits(params: Params) -> tuple[jax.Array, jax.Array]:
        logits = bind(config, ("mlm",), params).mlm_logits(hidden)
        return jax.nn.logsumexp(logits, axis=-1).sum(), logits

    gradient, logits = gradient_and_logits(params)
    assert (logits.shape, logits.dtype) == ((1, 2, 64), jnp.float32)
    np.testing.assert_array_equal(logits[..., 50:], np.finfo(np.float32).min)
    assert np.abs(np.asarray(logits[..., :50])).max() < 100
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    np.testing.assert_array_equal(gradient["encoder"]["embeddings"]["word_embeddings"]["embedding"][50:], 0.0)
    np.testing.assert_array_equal(gradient["mlm_head"]["bias"][50:], 0.0)


def test_pooler_and_pair_head_read_the_summary_token(small: EncoderConfig, small_params: Params) -> None:
    hidden = np.random.default_rng(0).normal(size=(2, 6, 32)).astype(np.float32)

    @jit
    def run(params: Params) -> tuple[jax.Array, jax.Array]:
        model = bind(small, ALL, params)
        pooled = model.pooled(jnp.asarray(hidden), jnp.asarray([[0, 3], [0, 5]]))
        return pooled, model.pair_logits(pooled)

    pooled, pair_logits = run(small_params)
    dense, pair = small_params["pooler"]["dense"], small_params["pair_head"]
    for row, example, position in ((0, 0, 0), (0, 1, 3), (1, 1, 5)):
        expected = np.tanh(hidden[row, position] @ np.asarray(dense["kernel"]) + np.asarray(dense["bias"]))
        np.testing.assert_allclose(pooled[row, example], expected, atol=1e-5)
    expected = np.asarray(pooled) @ np.asarray(pair["kernel"]) + np.asarray(pair["bias"])
    np.testing.assert_allclose(pair_logits, expected, atol=1e-5)


def test_gather_positions() -> None:
    hidden = jnp.arange(12.0).reshape(2, 3, 2)
    result = gather_positions(hidden, jnp.asarray([[2, 0], [1, 1]]))
    np.testing.assert_array_equal(result, [[[4, 5], [0, 1]], [[8, 9], [8, 9]]])


@pytest.mark.parametrize(
    ("heads", "words"),
    [
        (("pair",), "the head pair needs the head pooler"),
        (("mlm", "pair"), "the head pair needs the head pooler"),
        (("sequence_classification",), "the head sequence_classification needs the head pooler"),
        (("mlm", "decoder"), "unknown head 'decoder'; known heads: pooler, mlm"),
    ],
)
def test_heads_that_do_not_exist_or_lack_the_pooler_are_refused(small: EncoderConfig, heads: tuple, words: str) -> None:
    with pytest.raises(UserError, match=words):
        abstract_params(small, heads)


@pytest.mark.long
def test_every_weight_is_drawn_and_every_bias_and_scale_is_neutral(small: EncoderConfig) -> None:
    """The model is wide enough to measure the deviation of every leaf; every layer differs from the others."""
    config = dataclasses.replace(small, hidden_size=64, intermediate_size=128, vocab_size=500)
    params = jit(lambda key: init_params(config, ALL, key))(jax.random.key(0))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), abstract_params(config, ALL)
    )
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    for path, leaf in flat:
        name, values = path[-1].key, np.asarray(leaf)
        if name in ("kernel", "embedding"):
            assert abs(values.std() - 0.01759) < 5 * 0.01759 / np.sqrt(2 * values.size), path
            assert len(np.unique(values)) > 0.9 * values.size, path  # no two layers and no two tables share a draw
        else:
            np.testing.assert_array_equal(values, 1.0 if name == "scale" else 0.0, err_msg=str(path))
    kernels = params["encoder"]["layers"]["attention"]
    assert not np.intersect1d(kernels["query"]["kernel"], kernels["key"]["kernel"]).size > 1000
