"""T5Gemma's encoder: both directions, with and without its decoder, the table in config.json, refusals."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.errors import UserError
from bertjax.hf import save as save_module
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.pretrained import PretrainedModel, load_pretrained

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["t5gemma"]
ENCODER = dict(
    vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
    intermediate_size=20, sliding_window=2, max_position_embeddings=32, attn_logit_softcapping=None,
)  # fmt: skip
VALUES: dict[str, Any] = {"architectures": ["T5GemmaEncoderModel"], "is_encoder_decoder": False, "encoder": ENCODER}


@pytest.fixture(autouse=True)
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)


def test_a_folder_comes_back_byte_for_byte(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.T5GemmaConfig(encoder=ENCODER, is_encoder_decoder=False, vocab_size=50, num_labels=3)
    transformers.T5GemmaForTokenClassification(config).save_pretrained(tmp_path / "theirs")
    model = load_pretrained(tmp_path / "theirs")
    assert isinstance(model, PretrainedModel) and model.config.num_labels == 3
    model.save_pretrained(tmp_path / "ours")
    theirs, ours = (load_file(tmp_path / each / "model.safetensors") for each in ("theirs", "ours"))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in theirs)
    values, written = (json.loads((tmp_path / each / "config.json").read_text()) for each in ("theirs", "ours"))
    known = values["encoder"] | {"rope_theta": 10_000.0}  # of version 4
    assert {key: known[key] for key in written["encoder"]} == written["encoder"]
    written = {key: value for key, value in written.items() if key not in ("encoder", "bos_token_id", "eos_token_id")}
    assert {key: values.get(key, 0) for key in written} == written


@pytest.mark.parametrize("name", ["T5GemmaModel", "T5GemmaForConditionalGeneration"])
def test_the_encoder_is_read_without_its_decoder(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    config = transformers.T5GemmaConfig(encoder=ENCODER, decoder=ENCODER | {"hidden_size": 12}, vocab_size=50)
    theirs = getattr(transformers, name)(config).eval()
    theirs.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING, "bertjax"):
        ours: Any = load_pretrained(tmp_path)
    assert "is read without its head" in caplog.text and "decoder.embed_tokens.weight" in caplog.text
    ids = np.random.default_rng(0).integers(3, 50, (2, 11))
    mask = (np.arange(11) < np.array([[11], [6]])).astype(np.int64)
    with torch.no_grad():
        inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        expected = theirs.get_encoder()(**inputs).last_hidden_state.numpy()
    actual = np.asarray(ours(ids, mask).last_hidden_state)
    np.testing.assert_allclose(actual[mask > 0], expected[mask > 0], atol=2e-5)


def test_keys_outside_of_the_table_count_where_transformers_reads_them(caplog: pytest.LogCaptureFixture) -> None:
    outside = {"attention_dropout": 0.3, "hidden_size": 8, "pad_token_id": 7, "initializer_range": 0.5}
    inside = {"attention_dropout": 0.1, "pad_token_id": 4, "rms_norm_eps": 1e-3, "no_key": 1}
    with caplog.at_level(logging.WARNING, "bertjax"):
        config = FAMILY.parse_config({**VALUES, **outside, "encoder": ENCODER | inside})
    assert (config.hidden_size, config.pad_token_id, config.layer_norm_eps) == (16, 4, 1e-3)
    assert (config.attention_dropout, config.initializer_range, config.causal) == (0.3, 0.5, False)
    assert "ignored: hidden_size (outside of encoder), no_key" in caplog.text


def test_the_presets_are_held_by_every_class() -> None:
    for name in ("t5gemma-2b", "t5gemma-9b"):
        for architecture, heads in FAMILY.architectures.items():
            plan = plan_export(EncoderConfig(**preset(name)), heads)
            assert (plan.architecture, plan.has_sidecar, plan.unsupported) == (architecture, False, ())
    unlike = EncoderConfig(**preset("t5gemma-2b") | {"qk_norm": True})
    assert plan_export(unlike, ()).unsupported == ("qk_norm",)


def test_other_maths_is_refused() -> None:
    for changes, message in (
        ({"encoder": [1]}, r"encoder must be a table, not \[1\]"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder must be false"),
        ({"encoder": ENCODER | {"is_decoder": True}}, "only encoders are supported"),
        ({"encoder": ENCODER | {"sliding_window": 0}}, "sliding_window must be at least 1"),
        ({"encoder": ENCODER | {"hidden_activation": "mish"}}, "hidden_activation = 'mish'"),
        ({"encoder": ENCODER | {"layer_types": ["full_attention"]}}, "layer_types must name"),
    ):
        with pytest.raises(UserError, match=message):
            FAMILY.parse_config(VALUES | changes)
    del (without := dict(VALUES))["is_encoder_decoder"]
    with pytest.raises(UserError, match="is_encoder_decoder must be false"):
        FAMILY.parse_config(without)
