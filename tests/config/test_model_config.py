"""Model configs that are refused, and the messages."""

from __future__ import annotations

import dataclasses

import pytest

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 0}, r"model.hidden_size must lie in \[1, 1000000\], not 0"),
        ({"vocab_size": -3}, "model.vocab_size must be at least 1, not -3"),
        ({"num_layers": 0}, r"model.num_layers must lie in \[1, 10000\], not 0"),
        ({"num_heads": 0}, r"model.num_heads must lie in \[1, 1000000\], not 0"),
        ({"intermediate_size": 0}, r"model.intermediate_size must lie in \[1, 1000000\], not 0"),
        ({"max_position_embeddings": 0}, "model.max_position_embeddings must be at least 1"),
        ({"type_vocab_size": -1}, "model.type_vocab_size must be at least 0"),
        ({"unroll": 0}, "model.unroll must be at least 1"),
        ({"hidden_dropout": 1.0}, r"model.hidden_dropout must lie in \[0, 1\), not 1.0"),
        ({"attention_dropout": -0.1}, r"model.attention_dropout must lie in \[0, 1\), not -0.1"),
        ({"hidden_act": "swish"}, "model.hidden_act must be one of gelu, gelu_new, relu, silu, not 'swish'"),
        ({"initializer": "xavier"}, "model.initializer must be one of truncated_normal, normal, not 'xavier'"),
        ({"remat": "some"}, "model.remat must be one of none, full, dots, not 'some'"),
        ({"compute_dtype": "float16"}, "model.compute_dtype must be one of float32, bfloat16, not 'float16'"),
        ({"result_dtype": "float16"}, "model.result_dtype must be one of float32, bfloat16, not 'float16'"),
        ({"vocab_size": 100, "padded_vocab_size": 64}, "padded_vocab_size 64 is smaller than model.vocab_size 100"),
    ],
)
def test_what_cannot_be_built_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        EncoderConfig(**changes)


def test_heads_that_do_not_divide_the_hidden_size_are_refused_with_those_that_do() -> None:
    with pytest.raises(UserError) as caught:
        EncoderConfig(hidden_size=768, num_heads=10)
    assert str(caught.value) == (
        "model.hidden_size 768 is not divisible by model.num_heads 10; head counts that divide it: "
        "4, 6, 8, 12 (or set model.head_size)"
    )


def test_derived_sizes() -> None:
    config = EncoderConfig(vocab_size=100, hidden_size=48, num_heads=3)
    assert (config.head_dim, config.table_size) == (16, 100)
    assert dataclasses.replace(config, padded_vocab_size=128).table_size == 128
