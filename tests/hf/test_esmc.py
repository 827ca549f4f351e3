"""ESM C: folders that come back, the parts that no other family has, refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity.compare import random_params
from round_trip_lab import assert_comes_back

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.errors import UserError
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES
from bertjax.models.model import abstract_params, bind

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["esmc"]
SIZES = dict(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20)


@pytest.mark.parametrize("architecture", ["EsmcForMaskedLM", "EsmcForSequenceClassification"])
def test_a_folder_comes_back_byte_for_byte(architecture: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    getattr(transformers, architecture)(transformers.EsmcConfig(**SIZES)).save_pretrained(tmp_path / "theirs")
    assert_comes_back(tmp_path / "theirs")


def small(**values: Any) -> EncoderConfig:
    sizes = dict(vocab_size=30, hidden_size=12, num_layers=2, num_heads=3, intermediate_size=10, norm_placement="pre")
    return EncoderConfig(**sizes | {"max_position_embeddings": 8} | values)


def states(config: EncoderConfig, params: Any) -> np.ndarray:
    ids = jnp.arange(1, 8)[None]
    return np.asarray(bind(config, (), params).encoder(ids).last_hidden_state)


def test_any_model_can_norm_all_heads_together() -> None:
    values: dict[str, Any] = {"qk_norm": True, "num_key_value_heads": 1}
    attention = abstract_params(small(**values, qk_norm_over="all"), ())["encoder"]["layers"]["attention"]
    assert attention["query_norm"]["scale"].shape == (2, 12) and attention["key_norm"]["scale"].shape == (2, 4)
    assert "bias" not in attention["query_norm"] and "bias" in attention["norm"]
    of_heads = abstract_params(small(**values), ())["encoder"]["layers"]["attention"]
    assert of_heads["query_norm"]["scale"].shape == of_heads["query_norm"]["bias"].shape == (2, 4)


def test_any_model_can_have_a_last_norm_without_a_bias() -> None:
    assert abstract_params(small(last_norm_bias=False), ())["encoder"]["norm"].keys() == {"scale"}
    assert abstract_params(small(), ())["encoder"]["norm"].keys() == {"scale", "bias"}


@pytest.mark.parametrize("placement", ["post", "pre", "sandwich", "parallel", "normformer"])
def test_blocks_add_what_larger_weights_would_without_the_division(placement: str) -> None:
    divided, plain = small(norm_placement=placement, residual_depth=5), small(norm_placement=placement)
    params = random_params(plain, ())
    expected = states(plain, params)
    for block in (params["encoder"]["layers"][name] for name in ("attention", "feed_forward")):
        last = "output_norm" if "output_norm" in block else "output"
        block[last] = jax.tree.map(lambda leaf: leaf * math.sqrt(2 / 5), block[last])
    np.testing.assert_allclose(states(divided, params), expected, atol=1e-5)
    assert np.abs(states(plain, params) - expected).max() > 1e-2


REFUSED = [
    ({"num_key_value_heads": 1}, "num_key_value_heads = 1 is not supported: null and 2 are"),
    ({"head_dim": 4}, "head_dim = 4 is not supported: null and 8 are"),
    ({"hidden_size": 15}, "15 is not divisible by model.num_heads 2"),
    ({"num_attention_heads": 0}, r"num_heads must lie in \[1, "),
    ({"classifier_dropout": None}, "classifier_dropout must be a finite number"),
    ({"attention_bias": 1}, "attention_bias must be true or false"),
    ({"rope_parameters": {"rope_type": "x"}}, "rope_type = 'x' is not supported"),
    ({"is_decoder": True}, "only encoders are supported"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_is_computed_otherwise_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FAMILY.parse_config(SIZES | changes)


@pytest.mark.parametrize("architecture", FAMILY.architectures)
def test_the_preset_is_held_by_every_class(architecture: str) -> None:
    heads = FAMILY.architectures[architecture]
    plan = plan_export(EncoderConfig(**preset("esmc-300m")), heads)
    assert (plan.architecture, plan.has_sidecar, plan.unsupported) == (architecture, False, ())
    others = {"qk_norm_over": "head", "last_norm_bias": True, "residual_depth": None}
    for key, value in others.items():
        assert plan_export(EncoderConfig(**preset("esmc-300m") | {key: value}), heads).unsupported == (key,)
