"""Attention masks, and attention computed as in the paper."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax.config.model import EncoderConfig
from bertjax.models.attention import SelfAttention
from bertjax.models.attention_context import AttentionContext, attention_mask
from bertjax.models.model import bind
from bertjax.types import Params

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
HEADS = ("pooler", "mlm", "pair")


def seeing(segments: jax.Array) -> AttentionContext:
    return AttentionContext(segments)


@pytest.fixture(scope="module")
def attention(small: EncoderConfig, small_params: Params) -> SelfAttention:
    """Returns the attention of the first layer."""
    return bind(small, HEADS, small_params).encoder.layer(0).attention


def test_attention_never_crosses_an_example_and_never_reads_padding() -> None:
    mask = np.asarray(attention_mask(jnp.asarray([[1, 1, 2, 0], [0, 0, 0, 0]])))
    assert mask.shape == (2, 1, 4, 4)
    np.testing.assert_array_equal(
        mask[0, 0], [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 1, 0]]
    )  # a padding query sees every real key, as in Hugging Face
    assert not mask[1].any()


def test_attention_is_a_softmax_over_scaled_products(attention: SelfAttention, small: EncoderConfig) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 7, 32))
    segments = np.asarray([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 2, 2, 2, 2]])
    run = jit(lambda x, segments: attention(x, seeing(segments), None))
    result = np.asarray(run(jnp.asarray(x, jnp.float32), jnp.asarray(segments)))

    def project(module, values: np.ndarray) -> np.ndarray:
        return values @ np.asarray(module.kernel[...], np.float64) + np.asarray(module.bias[...], np.float64)

    heads = (2, 7, small.num_heads, small.head_dim)
    q, k, v = (project(part, x).reshape(heads) for part in (attention.query, attention.key, attention.value))
    scores = np.einsum("bqnh,bknh->bnqk", q, k) / np.sqrt(small.head_dim)
    same = segments[:, None, :, None] == segments[:, None, None, :]
    scores = np.where(same, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = project(attention.output, np.einsum("bnqk,bknh->bqnh", weights, v).reshape(x.shape))
    real = segments > 0
    np.testing.assert_allclose(result[real], expected[real], atol=2e-6)


def test_no_gradient_flows_between_examples_or_from_padding(attention: SelfAttention) -> None:
    segments = jnp.asarray([[1, 1, 1, 2, 2, 0]])
    x = jax.random.normal(jax.random.key(0), (1, 6, 32))
    loss = jit(jax.grad(lambda x: (attention(x, seeing(segments), None)[:, :3] ** 2).sum()))
    gradient = loss(x)
    reached = np.asarray(jnp.abs(gradient).sum(-1))[0] > 0
    np.testing.assert_array_equal(reached, [True, True, True, False, False, False])


def test_dropout_falls_on_the_probabilities(attention: SelfAttention, small: EncoderConfig) -> None:
    """At a rate near one, almost every row of probabilities is empty, and the output is the output bias."""
    x = jax.random.normal(jax.random.key(0), (1, 4, 32))
    context = seeing(jnp.ones((1, 4), jnp.int32))
    graph, params = nnx.split(attention)
    emptied = nnx.merge(graph, params)
    emptied.config = dataclasses.replace(small, attention_dropout=0.999)
    out = jit(lambda x, key: emptied(x, context, key))(x, jax.random.key(1))
    np.testing.assert_allclose(out, np.broadcast_to(attention.output.bias[...], out.shape), atol=1e-6)
