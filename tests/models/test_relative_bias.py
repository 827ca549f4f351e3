"""Buckets of distances equal those of `transformers`, and biases equal those of the buckets."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.model import abstract_params
from bertjax.models.relative_bias import (
    LinearBias,
    RelativeAttentionBias,
    bias_factors,
    distance_bucket,
    make_relative_bias,
)

SIZES = {"vocab_size": 30, "hidden_size": 12, "num_layers": 1, "num_heads": 3, "intermediate_size": 8}


def biased(**values: object) -> EncoderConfig:
    return EncoderConfig(**{**SIZES, "attention_position": "relative_bias", **values})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 20), (20, 100), (64, 1000)])
def test_buckets_are_those_of_t5(buckets: int, furthest: int, causal: bool) -> None:
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = biased(relative_attention_num_buckets=buckets, relative_attention_max_distance=furthest, causal=causal)
    distances = np.arange(-9000, 9001)  # query - key
    expected = t5.T5Attention._relative_position_bucket(torch.tensor(-distances), not causal, buckets, furthest)
    assert np.array_equal(distance_bucket(distances, config), expected.numpy())


def test_a_bias_is_the_row_of_its_bucket() -> None:
    config = biased(relative_attention_num_buckets=8, relative_attention_max_distance=9)
    table = RelativeAttentionBias(config, nnx.Rngs(0))
    position = np.arange(13)
    expected = np.asarray(table.embedding[...])[distance_bucket(position[:, None] - position[None], config)]
    assert np.array_equal(table(13).scores[0], expected.transpose(2, 0, 1))


def test_factors_are_those_of_the_authors() -> None:
    """Eight and twelve heads, as listed by ofirpress/attention_with_linear_biases."""
    assert bias_factors(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert np.array_equal(bias_factors(12)[8:], np.float32(2.0) ** np.float32([-0.5, -1.5, -2.5, -3.5]))
    assert bias_factors(1).tolist() == [2.0**-8] and len(bias_factors(7)) == 7


def test_a_linear_bias_falls_on_both_sides_and_has_no_parameters() -> None:
    config = biased(relative_bias="linear")
    scores = make_relative_bias(config, nnx.Rngs(0))(5).scores
    distances = np.abs(np.arange(5)[:, None] - np.arange(5)[None])
    np.testing.assert_array_equal(scores[0], -bias_factors(3)[:, None, None] * distances)
    np.testing.assert_array_equal(LinearBias(config).at(jnp.arange(2, 4), 5).scores, scores[:, :, 2:4])
    assert "relative_attention_bias" not in abstract_params(config, ())["encoder"]


def test_buckets_that_no_distance_is_left_for_are_refused() -> None:
    with pytest.raises(UserError, match="relative_attention_max_distance must be more than 8, the distances"):
        biased(relative_attention_max_distance=8)
