"""DeBERTa on the Hub beyond the parity table: buckets, gradients, side files, unusual files, refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
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
from safetensors.numpy import load_file, save_file

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from parity.compare import random_params  # noqa: E402

from bertjax.config.model import EncoderConfig  # noqa: E402
from bertjax.config.presets import preset  # noqa: E402
from bertjax.errors import UserError  # noqa: E402
from bertjax.hf import save as save_module  # noqa: E402
from bertjax.hf.keymaps import FAMILIES  # noqa: E402
from bertjax.hf.pretrained import load_pretrained  # noqa: E402
from bertjax.hf.save import save_pretrained  # noqa: E402
from bertjax.models.disentangled_attention import log_bucket  # noqa: E402

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "max_position_embeddings": 16,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "initializer_range": 0.2,
}
V2 = {"share_att_key": True, "position_buckets": 6, "norm_rel_ebd": "layer_norm", "conv_kernel_size": 3}
IDS = np.random.default_rng(1).integers(1, VOCAB, (2, 11))


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the comparison of outputs on export, which compiles two more models."""
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)


def test_buckets_are_theirs() -> None:
    theirs = transformers.models.deberta_v2.modeling_deberta_v2.make_log_bucket_position
    for buckets, far in [(256, 512), (2, 9), (3, 40), (5, 33), (6, 17), (32, 64), (48, 50), (64, 1000), (320, 512)]:
        distances = np.arange(1 - far, far)
        expected = theirs(torch.tensor(distances), buckets, far).long().numpy()
        np.testing.assert_array_equal(log_bucket(distances, buckets, far), expected, str((buckets, far)))


@pytest.mark.long
@pytest.mark.parametrize(
    "version",
    [
        pytest.param("v1", marks=pytest.mark.long),
        "v2",
        pytest.param("v2 with projections of its own", marks=pytest.mark.long),
    ],
)
def test_loss_and_gradients_are_torchs(tmp_path: Path, version: str) -> None:
    if version == "v1":
        config = transformers.DebertaConfig(**SIZES | {"max_relative_positions": 5})
        theirs = transformers.DebertaForMaskedLM(config)
    else:
        more = V2 if version == "v2" else V2 | {"share_att_key": False, "conv_kernel_size": 0, "embedding_size": 20}
        theirs = transformers.DebertaV2ForMaskedLM(transformers.DebertaV2Config(**SIZES | more))
    theirs, batch = perturbed(theirs), masked_batch()
    expected = theirs(**torch_inputs(batch, token_types=False), labels=torch_labels(batch)).loss
    ours = loaded(theirs, tmp_path)
    assert_same_gradients(ours, theirs, masked_lm_loss(ours, batch), expected)


@pytest.mark.long
@pytest.mark.parametrize("family", ["deberta", "deberta-v2"])
def test_the_decoder_comes_back_and_transformers_does_without(tmp_path: Path, unverified: None, family: str) -> None:
    values = FAMILIES[family].parse_config(SIZES | ({} if family == "deberta" else V2))
    config = dataclasses.replace(values, enhanced_decoder=True)
    params = random_params(config, ("mlm", "rtd"))
    save_pretrained(tmp_path, params, config, heads=("mlm", "rtd"))
    ours = load_pretrained(tmp_path)
    assert ours.config.enhanced_decoder and ours.heads == ("mlm", "rtd")
    np.testing.assert_array_equal(
        ours.params["decoder_positions"]["embedding"], params["decoder_positions"]["embedding"]
    )
    name = "DebertaForMaskedLM" if family == "deberta" else "DebertaV2ForMaskedLM"
    theirs, info = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor(IDS), output_hidden_states=True)
    result = ours(IDS, output_hidden_states=True)
    np.testing.assert_allclose(result.hidden_states[-1], expected.hidden_states[-1], atol=2e-5)
    assert np.abs(result.mlm_logits - expected.logits.numpy()).max() > 0.01  # theirs come from the last layer
    plain = dataclasses.replace(ours, config=dataclasses.replace(config, enhanced_decoder=False))
    plain.params = {key: value for key, value in ours.params.items() if key != "decoder_positions"}
    np.testing.assert_allclose(plain(IDS).mlm_logits, expected.logits, atol=2e-5)


def test_files_as_microsoft_wrote_them(tmp_path: Path) -> None:
    """No prefix for the head's class, no class in config.json, a position table for the decoder, a head for v3."""
    theirs = perturbed(transformers.DebertaV2ForMaskedLM(transformers.DebertaV2Config(**SIZES, legacy=False)))
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["deberta.embeddings.position_embeddings.weight"] = np.ones((16, 36), np.float32)
    tensors["deberta.embeddings.position_ids"] = np.arange(16)[None]
    tensors["mask_predictions.dense.weight"] = np.ones((36, 36), np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    values = json.loads((tmp_path / "config.json").read_text())
    del values["architectures"]
    values["pos_att_type"] = "p2c|c2p"
    (tmp_path / "config.json").write_text(json.dumps(values))
    ours = load_pretrained(tmp_path)
    assert ours.heads == ("mlm",) and not ours.config.enhanced_decoder
    with torch.no_grad():
        np.testing.assert_allclose(ours(IDS).logits, theirs(torch.tensor(IDS)).logits, atol=2e-5)


def test_what_config_json_must_say() -> None:
    """The keys whose defaults would make it a BERT, as in microsoft/deberta-v3-base and v2-xlarge."""
    base = FAMILIES["deberta-v2"].render_config(EncoderConfig(**preset("deberta-v3-base")), "DebertaV2Model")
    expected = {
        "model_type": "deberta-v2",
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_biased_input": False,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "max_relative_positions": -1,
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "hidden_act": "gelu",
        "pooler_hidden_size": 768,
        "pooler_hidden_act": "gelu",
        "pooler_dropout": 0.0,
        "attention_head_size": 64,
        "legacy": True,
    }
    assert {key: base.get(key) for key in expected} == expected
    assert base["conv_kernel_size"] == 0 and "embedding_size" not in base
    xlarge = FAMILIES["deberta-v2"].render_config(EncoderConfig(**preset("deberta-v2-xlarge")), "DebertaV2Model")
    assert (xlarge["conv_kernel_size"], xlarge["conv_act"]) == (3, "gelu")
    first = FAMILIES["deberta"].render_config(EncoderConfig(**preset("deberta-base")), "DebertaModel")
    assert first["relative_attention"] and first["max_relative_positions"] == -1 and not first["position_biased_input"]
    assert not {"share_att_key", "position_buckets", "attention_head_size"} & first.keys()


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("deberta", {"relative_attention": False}, "pos_att_type needs relative_attention"),
        ("deberta", {"pos_att_type": "c2p|p2p"}, "known are c2p, p2c"),
        ("deberta", {"pos_att_type": 3}, "known are c2p, p2c"),
        ("deberta", {"talking_head": True}, "talking_head"),
        ("deberta", {"pooler_hidden_size": 12}, "pooler_hidden_size"),
        ("deberta", {"hidden_act": "quick_gelu"}, "hidden_act"),
        ("deberta", {"embedding_size": "wide"}, "embedding_size"),
        ("deberta-v2", {"attention_head_size": 64}, "attention_head_size"),
        ("deberta-v2", {"conv_kernel_size": 3, "conv_groups": 2}, "conv_groups"),
        ("deberta-v2", {"conv_kernel_size": 2}, "must be odd"),
        ("deberta-v2", {"position_buckets": 256}, "position_buckets 256"),
        (
            "deberta-v2",
            {"relative_attention": False, "pos_att_type": None, "norm_rel_ebd": "layer_norm"},
            "norm_rel_ebd needs",
        ),
    ],
)
def test_other_maths_is_refused(family: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FAMILIES[family].parse_config(SIZES | values)


@pytest.mark.usefixtures("unverified")
def test_v1_cannot_hold_buckets(tmp_path: Path) -> None:
    """Short rows would not show a difference: the export must not be a DebertaModel."""
    config = dataclasses.replace(FAMILIES["deberta"].parse_config(SIZES), position_buckets=6)
    save_pretrained(tmp_path, random_params(config, ()), config, heads=())
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "bertjax"
