"""ModernBERT's config.json in both generations of keys, settings it cannot express, and gradients against torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gradients_lab import (
    VOCAB,
    assert_same_gradients,
    loaded,
    masked_batch,
    masked_lm_loss,
    perturbed,
    torch_inputs,
    torch_labels,
)

from bertjax.errors import UserError
from bertjax.hf.keymaps.modernbert import FAMILY

transformers = pytest.importorskip("transformers")

GLOBAL, LOCAL = "full_attention", "sliding_attention"
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 20,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "pad_token_id": 0,
}


def read(**values: Any) -> Any:
    return FAMILY.parse_config({**SIZES, **values})


def pattern(*layers: int) -> list[str]:
    return [GLOBAL if layer in layers else LOCAL for layer in range(4)]


def test_the_published_config_is_that_of_both_generations() -> None:
    """As in the base model on the Hub: no list of layer types, no table of rotations."""
    config = FAMILY.parse_config(
        {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    )
    assert config == FAMILY.parse_config({})
    written = FAMILY.render_config(config, "ModernBertForMaskedLM")
    assert FAMILY.parse_config(written) == config
    assert [kind == GLOBAL for kind in written["layer_types"]] == [layer % 3 == 0 for layer in range(22)]
    assert written["global_attn_every_n_layers"] == 3 and written["local_attention"] == 128
    assert written["rope_parameters"][GLOBAL]["rope_theta"] == written["global_rope_theta"] == 160_000.0
    assert written["rope_parameters"][LOCAL]["rope_theta"] == written["local_rope_theta"] == 10_000.0


def test_either_generation_is_read_and_the_new_one_wins() -> None:
    new = {GLOBAL: {"rope_type": "default", "rope_theta": 500.0}, LOCAL: {"rope_theta": 50}}
    config = read(layer_types=pattern(0, 2), rope_parameters=new, local_attention=9)
    old = read(global_attn_every_n_layers=2, global_rope_theta=500, local_rope_theta=50.0, local_attention=9)
    assert config == old and (config.local_attention, config.global_attn_every_n_layers) == (9, 2)
    assert (config.global_rope_theta, config.local_rope_theta) == (500.0, 50.0)
    both = {"layer_types": pattern(0, 2), "global_attn_every_n_layers": 3, "rope_parameters": new}
    assert read(**both, global_rope_theta=1.0, local_rope_theta=2.0, local_attention=9) == config
    # a table without the number falls back to the old key; without a local one the global one applies (transformers 4)
    assert read(rope_parameters={GLOBAL: {"rope_type": "default"}}, global_rope_theta=7.0).global_rope_theta == 7.0
    assert read(global_rope_theta=7.0, local_rope_theta=None).local_rope_theta == 7.0


@pytest.mark.parametrize(
    ("layers", "expected"), [((0,), (128, 4)), ((0, 3), (128, 3)), ((0, 2), (128, 2)), ((0, 1, 2, 3), (0, 1))]
)
def test_a_list_of_kinds_that_is_a_period(layers: tuple[int, ...], expected: tuple[int, int]) -> None:
    config = read(layer_types=pattern(*layers))
    assert (config.local_attention, config.global_attn_every_n_layers) == expected
    assert FAMILY.parse_config(FAMILY.render_config(config, "ModernBertModel")) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layer_types": pattern(0, 1)}, "in layers 0, 1; only every n-th layer"),
        ({"layer_types": pattern(1, 3)}, "in layers 1, 3; only every n-th layer"),
        ({"layer_types": pattern()}, "in layers none; only"),
        ({"layer_types": [GLOBAL]}, "for each of 4 layers"),
        ({"layer_types": ["chunked_attention"] * 4}, "must name full_attention or sliding_attention"),
        ({"rope_parameters": {GLOBAL: {"rope_type": "yarn", "rope_theta": 1.0}}}, "rope_type = yarn needs factor"),
        ({"rope_parameters": {LOCAL: 3}}, "must hold tables"),
        ({"rope_parameters": {LOCAL: {"rope_theta": -1.0}}}, "must be positive"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling"),
        ({"local_attention": 0}, "at least 1"),
        ({"layer_types": [[GLOBAL]] * 4}, "layer_types must name"),
        ({"global_attn_every_n_layers": "3"}, "global_attn_every_n_layers must be a whole number"),
        ({"classifier_pooling": "max"}, "known are cls and mean"),
        ({"attention_bias": 1}, "attention_bias must be true or false"),
        ({"hidden_activation": "mish"}, "hidden_activation"),
    ],
)
def test_what_would_change_the_maths_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"config.json: .*{message}"):
        read(**values)


@pytest.mark.parametrize("biased", [pytest.param(False, marks=pytest.mark.weekly), True])
def test_gradients_are_torchs(tmp_path: Path, biased: bool) -> None:
    """Windows of three tokens, unequal bases; with every bias and without."""
    config = transformers.ModernBertConfig(
        **SIZES,
        max_position_embeddings=16,
        global_attn_every_n_layers=3,
        local_attention=2,
        global_rope_theta=300.0,
        local_rope_theta=20.0,
        initializer_range=0.2,
        attention_bias=biased,
        mlp_bias=biased,
        norm_bias=biased,
        classifier_bias=biased,
        decoder_bias=biased,
    )
    theirs, batch = perturbed(transformers.ModernBertForMaskedLM(config)), masked_batch()
    ours = loaded(theirs, tmp_path)
    expected = theirs(**torch_inputs(batch, token_types=False), labels=torch_labels(batch)).loss
    assert_same_gradients(ours, theirs, masked_lm_loss(ours, batch), expected)
