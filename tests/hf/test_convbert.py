"""ConvBERT: folders byte for byte, padding, the networks of ELECTRA's objective, what no class holds, refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity.compare import run_transformers
from round_trip_lab import assert_comes_back

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.errors import UserError
from bertjax.experiment.config import load_config
from bertjax.hf import save as save_module
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.pretrained import load_pretrained
from bertjax.objectives.rtd.networks import generator_config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["convbert"]
SIZES = dict(
    vocab_size=50, hidden_size=16, embedding_size=12, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
    max_position_embeddings=20, num_groups=2, initializer_range=0.3, pad_token_id=0,
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)
    torch.manual_seed(0)
    model = transformers.ConvBertForSequenceClassification(transformers.ConvBertConfig(**SIZES))
    model.save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def test_a_folder_comes_back_byte_for_byte(folder: Path) -> None:
    model, _ = assert_comes_back(folder)
    assert (model.config.num_heads, model.config.head_dim, model.config.feed_forward_groups) == (2, 4, 2)


def test_padding_changes_what_transformers_computes_and_nothing_here(folder: Path) -> None:
    ours, ids = load_pretrained(folder), np.random.default_rng(0).integers(1, 50, (1, 9))
    theirs = transformers.ConvBertForSequenceClassification.from_pretrained(folder).eval()
    padded = {"input_ids": np.pad(ids, ((0, 0), (0, 7))), "attention_mask": np.pad(np.ones_like(ids), ((0, 0), (0, 7)))}
    expected, changed = (run_transformers(theirs, each).logits.numpy() for each in ({"input_ids": ids}, padded))
    assert np.abs(changed - expected).max() > 1e-2
    np.testing.assert_allclose(np.asarray(ours(**padded).sequence_logits), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("size", "generator"), [("small", (64, 1, 32)), ("medium-small", (96, 1, 48)), ("base", (256, 2, 64))]
)
def test_the_recipe_has_the_networks_of_the_authors(size: str, generator: tuple[int, int, int]) -> None:
    """yitu-opensource/ConvBert:run_pretraining.py, get_generator_config."""
    config = generator_config(load_config(f"convbert:{size}"))
    assert (config.hidden_size, config.num_heads, config.head_dim) == generator
    assert config.intermediate_size == 4 * config.hidden_size and config.dynamic_conv_kernel_size == 9
    for architecture, heads in FAMILY.architectures.items():
        for each in (config, EncoderConfig(**preset(f"convbert-{size}"))):
            plan = plan_export(each, heads)
            assert (plan.architecture, plan.has_sidecar, plan.unsupported) == (architecture, False, ())
    plan = plan_export(EncoderConfig(**preset(f"convbert-{size}")), ("rtd",))
    assert plan.architecture == "ConvBertModel" and plan.sidecar_paths


def test_what_no_class_holds() -> None:
    config = EncoderConfig(**preset("convbert-small"))
    for changes, names in (
        ({"head_size": 32}, ("head_size",)),
        ({"attention_position": "rotary"}, ("attention_position",)),
        ({"family": "electra"}, ("head_size", "dynamic_conv_kernel_size")),
    ):
        plan = plan_export(dataclasses.replace(config, **changes), ("mlm",))
        assert plan.family is None and set(names) <= set(plan.unsupported), plan.unsupported


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conv_kernel_size": 4}, "dynamic_conv_kernel_size must be odd, not 4"),
        ({"conv_kernel_size": 0}, "head_ratio and conv_kernel_size must be at least 1"),
        ({"head_ratio": 0}, "head_ratio and conv_kernel_size must be at least 1"),
        ({"num_attention_heads": 6}, "half of model.hidden_size 16 is not divisible by model.num_heads 3"),
        ({"num_groups": 3}, "feed_forward_groups=3 must divide"),
        ({"is_decoder": True}, "only encoders are supported"),
        ({"architectures": ["ConvBertForMultipleChoice"]}, "the last state of a row may be one of padding"),
        (
            {"architectures": ["ConvBertForMultipleChoice"], "summary_type": "first", "summary_activation": "tanh"},
            "it needs summary_use_proj = true",
        ),
        (
            {"architectures": ["ConvBertForMultipleChoice"], "summary_type": "first", "summary_proj_to_labels": True},
            "the score of a choice is one number",
        ),
    ],
)
def test_other_maths_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FAMILY.parse_config(SIZES | changes)
