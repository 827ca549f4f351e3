"""Span-based dynamic convolution: borders of examples, FLOPs, growth, removed heads, and models that cannot have it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity.compare import random_params

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.experiment.growth import grow
from bertjax.experiment.shrink import shrink
from bertjax.models.model import bind, count_params
from bertjax.training.flops import flops_per_token

CONFIG = EncoderConfig(
    vocab_size=40, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=20, dynamic_conv_kernel_size=5
)
PLAIN = dataclasses.replace(CONFIG, dynamic_conv_kernel_size=0)
PARAMS = random_params(CONFIG, ())
LENGTHS = (6, 1, 4)
IDS = np.random.default_rng(0).integers(0, 40, (1, sum(LENGTHS)))


def states(params: Any = PARAMS, config: EncoderConfig = CONFIG, ids: Any = IDS, segments: Any = None) -> np.ndarray:
    segments = np.ones_like(ids) if segments is None else segments
    positions = np.concatenate([np.arange(len([*group])) for _, group in itertools.groupby(segments[0])])
    inputs = (jnp.asarray(each, jnp.int32) for each in (ids, segments, positions[None], np.zeros_like(ids)))
    return np.asarray(bind(config, (), jax.device_put(params)).encode(*inputs).last_hidden_state)


def test_packed_examples_and_padding_do_not_reach_each_other() -> None:
    """Each row of a packed sequence equals the example by itself, also next to padding."""
    segments = np.repeat([1, 2, 3, 0], [*LENGTHS[:2], 3, 1])[None]
    packed = states(segments=segments)
    for begin, end in ((0, 6), (6, 7), (7, 10)):
        alone = states(ids=IDS[:, begin:end])
        np.testing.assert_allclose(packed[:, begin:end], alone, atol=2e-6)
    embeds = jax.random.normal(jax.random.key(0), (1, IDS.shape[1], 16))
    inputs = [jnp.asarray(each, jnp.int32) for each in (IDS, segments, np.zeros_like(IDS), np.zeros_like(IDS))]

    def second(embeds: jax.Array) -> jax.Array:
        return bind(CONFIG, (), PARAMS).encode(*inputs, inputs_embeds=embeds).last_hidden_state[0, 6].sum()

    read = np.abs(jax.grad(second)(embeds)[0]).max(axis=-1) > 0
    assert read.tolist() == [index == 6 for index in range(IDS.shape[1])]


def test_halves_of_heads_save_weights_and_operations() -> None:
    inner, size = 8, 5
    assert count_params(PLAIN, ()) - count_params(CONFIG, ()) == 2 * (
        3 * 17 * (16 - inner) - size * 16 - 2 * 17 * inner - (inner + 1) * 2 * size
    )
    products = 3 * 16 * 16 - 5 * 16 * inner - size * (16 + inner * 2) - inner * size
    scores = 2 * (16 - inner)
    assert flops_per_token(PLAIN, 0.0, 3.0) - flops_per_token(CONFIG, 0.0, 3.0) == 6 * 2 * (products + 3 * scores)


def test_a_wider_model_computes_the_same_and_its_copies_can_be_removed() -> None:
    wider = dataclasses.replace(CONFIG, num_heads=4, head_size=4)
    params = grow(PARAMS, (), dataclasses.replace(CONFIG, head_size=4), wider, "stack")
    np.testing.assert_allclose(states(params, wider), states(), atol=2e-6)
    doubled = jax.tree.map(np.array, params)
    attention = doubled["encoder"]["layers"]["attention"]
    for kernel in (attention["output"]["kernel"], attention["convolution"]["weights"]["kernel"]):
        kernel *= 2.0  # of two copies of a head, one adds what both did
    smaller, config = shrink(doubled, (), wider, remaining={"num_heads": np.array([[1, 2], [0, 3]])})
    assert config.num_heads == 2 and config.head_output == 8
    np.testing.assert_allclose(states(smaller, config), states(), atol=2e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dynamic_conv_kernel_size": 4}, "must be odd, not 4"),
        ({"num_heads": 3}, "half of model.hidden_size 16 is not divisible by model.num_heads 3"),
        ({"causal": True}, "dynamic_conv_kernel_size sees the next token"),
        ({"decoder_layers": 1}, "cannot follow an encoder with dynamic_conv_kernel_size=5"),
        ({"attention_position": "relative", "attention_bias": "none"}, "and attention_position=relative: the conv"),
        ({"enhanced_decoder": True, "position_embedding": "none"}, "and enhanced_decoder: the convolution knows"),
    ],
)
def test_other_models_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **changes)


def test_a_decoder_goes_without() -> None:
    decoder = CONFIG.as_decoder(CONFIG)
    assert decoder.dynamic_conv_kernel_size == 0 and decoder.head_dim == 8
