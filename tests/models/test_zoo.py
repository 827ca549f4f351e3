"""Published sizes have the published numbers of parameters."""

from __future__ import annotations

import dataclasses

import jax
import pytest

from bertjax.models.config import EncoderConfig
from bertjax.models.model import abstract_params, count_params
from bertjax.models.zoo import PRESETS, preset
from bertjax.types import UserError

# As Hugging Face counts them, tied weights once: BertModel, BertForPreTraining, BertForMaskedLM.
COUNTS = [
    ("bert-tiny", 30522, 4_385_920, 4_433_468, 4_416_698),
    ("bert-mini", 30522, 11_170_560, 11_267_900, 11_201_594),
    ("bert-small", 30522, 28_763_648, 29_058_876, 28_795_194),
    ("bert-medium", 30522, 41_373_184, 41_668_412, 41_404_730),
    ("bert-base", 30522, 109_482_240, 110_106_428, 109_514_298),
    ("bert-base", 28996, 108_310_272, 108_932_934, 108_340_804),
    ("bert-large", 30522, 335_141_888, 336_226_108, 335_174_458),
    ("bert-large", 28996, 333_579_264, 334_661_958, 333_610_308),
]


@pytest.mark.parametrize(("name", "vocab_size", "bare", "pretraining", "masked_lm"), COUNTS)
def test_parameter_counts(name: str, vocab_size: int, bare: int, pretraining: int, masked_lm: int) -> None:
    config = EncoderConfig(vocab_size=vocab_size, **preset(name))
    assert count_params(config, ("pooler",)) == bare
    assert count_params(config, ("pooler", "mlm", "pair")) == pretraining
    assert count_params(config, ("mlm",)) == masked_lm


def test_padding_of_the_vocabulary_is_held_but_not_counted() -> None:
    config = EncoderConfig(**preset("bert-tiny"))
    padded = dataclasses.replace(config, padded_vocab_size=30528)
    assert count_params(padded, ("mlm",)) == count_params(config, ("mlm",))
    held = sum(leaf.size for leaf in jax.tree.leaves(abstract_params(padded, ("mlm",))))
    assert held == count_params(config, ("mlm",)) + 6 * (128 + 1)  # six rows of the table, six biases


def test_every_miniature_is_there_and_can_be_built() -> None:
    grid = {f"bert-{layers}x{hidden}" for layers in (2, 4, 6, 8, 10, 12) for hidden in (128, 256, 512, 768)}
    assert grid < set(PRESETS)
    for name in PRESETS:
        assert EncoderConfig(**preset(name)).head_dim == 64
        assert preset(name)["intermediate_size"] == 4 * preset(name)["hidden_size"]
    assert preset("bert-12x768") == preset("bert-base")


def test_a_preset_is_a_copy() -> None:
    preset("bert-tiny")["num_layers"] = 99
    assert preset("bert-tiny")["num_layers"] == 2


def test_an_unknown_preset_lists_those_there_are() -> None:
    with pytest.raises(UserError, match=r"unknown model preset 'bert-huge'.*bert-tiny.*bert-large"):
        preset("bert-huge")
