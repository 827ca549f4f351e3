"""Encoders of T5 and UMT5: what their folders hold besides, and whose class an export gets."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from parity.compare import random_transformers_model
from parity.families.t5 import CASES
from safetensors.numpy import load_file

import bertjax
import bertjax.hf.save as save_module
from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.errors import UserError
from bertjax.experiment.init_from import architecture_of
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.model_card import auto_class_of
from bertjax.hf.pretrained import PretrainedModel, load_pretrained

BY_CLASS = {case.classes[0]: case for case in reversed(CASES)}
IDS = np.random.default_rng(0).integers(1, 71, (2, 13))


@pytest.fixture(autouse=True)
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the comparison of outputs on export, which compiles two more models; tests/parity compares them."""
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)


def write(folder: Path, encoder: str, architecture: str, **changes: Any) -> Any:
    """Writes a random model of a class with the sizes of the case of an encoder; returns the model."""
    model = random_transformers_model(BY_CLASS[encoder], architecture)
    model.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return model


def test_the_encoder_of_a_folder_that_also_holds_a_decoder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = write(tmp_path, "UMT5EncoderModel", "UMT5ForConditionalGeneration")
    with caplog.at_level(logging.WARNING):
        ours = load_pretrained(tmp_path)
    assert "UMT5ForConditionalGeneration is read without its head" in caplog.text and "decoder.block.0" in caplog.text
    assert isinstance(ours, PretrainedModel) and ours.heads == ()
    with torch.no_grad():
        expected = theirs.encoder(torch.tensor(IDS)).last_hidden_state
    np.testing.assert_allclose(ours(IDS).last_hidden_state, expected, atol=2e-5)
    ours.save_pretrained(tmp_path / "encoder")
    _, info = transformers.UMT5EncoderModel.from_pretrained(tmp_path / "encoder", output_loading_info=True)
    assert not any(info.values()), info


def test_both_kinds_of_folders_of_t5(tmp_path: Path) -> None:
    """`T5EncoderModel` is a single network, `T5ForConditionalGeneration` two: embedding reads the encoder of either."""
    pair = write(tmp_path / "both", "T5EncoderModel", "T5ForConditionalGeneration")
    alone = write(tmp_path / "alone", "T5EncoderModel", "T5EncoderModel")
    alone.load_state_dict(pair.state_dict(), strict=False)
    alone.save_pretrained(tmp_path / "alone")
    encoder, both = load_pretrained(tmp_path / "alone"), load_pretrained(tmp_path / "both")
    assert isinstance(encoder, PretrainedModel) and isinstance(both, PretrainedEncoderDecoder)
    states = both(IDS, None, IDS[:, :3]).encoder_last_hidden_state
    np.testing.assert_allclose(encoder(IDS).last_hidden_state, states, atol=1e-6)
    assert architecture_of(tmp_path / "alone") == encoder.config and architecture_of(tmp_path / "both") is None
    files = tokenizer_files()
    vectors = []
    for name in ("alone", "both"):
        for file, content in files.items():
            (tmp_path / name / file).write_bytes(content)
        vectors.append(np.asarray(bertjax.embed(tmp_path / name, ["a b c", "d a"], pooling="mean")))
    np.testing.assert_allclose(*vectors, atol=1e-6)
    write(tmp_path / "bare", "T5EncoderModel", "T5Model")
    with pytest.raises(UserError, match="T5Model is not supported; T5ForConditionalGeneration is"):
        load_pretrained(tmp_path / "bare")


def tokenizer_files() -> dict[str, bytes]:
    """Returns the files of a tokenizer of letters that ends a text as T5's does."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {word: index for index, word in enumerate(["<pad>", "</s>", "<unk>", *"abcdefgh"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    return {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": json.dumps(settings).encode()}


def test_an_old_copy_of_the_word_table_and_the_bytes_of_a_round_trip(tmp_path: Path) -> None:
    write(tmp_path / "theirs", "T5EncoderModel", "T5EncoderModel")
    ours = load_pretrained(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert {name: array.tobytes() for name, array in first.items()} == {n: a.tobytes() for n, a in second.items()}
    keymap = FAMILIES["t5"].make_keymap(ours.config)
    tensors = keymap.canonicalize({"encoder.embed_tokens.weight": first["shared.weight"]}, "file")
    assert tensors.keys() == {"transformer.shared.weight"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feed_forward_proj": "swiglu-gelu"}, "feed_forward_proj = 'swiglu-gelu' is not supported"),
        ({"feed_forward_proj": "gated-mish"}, "it is 'gated-mish'"),
        ({"dense_act_fn": "silu"}, "dense_act_fn = 'silu' .*'relu' says otherwise"),
        ({"is_gated_act": True}, "is_gated_act = True"),
        ({"is_decoder": True}, "is_decoder = True .*only encoders"),
        ({"d_kv": "7"}, "d_kv must be a whole number"),
        ({"relative_attention_max_distance": 2}, "relative_attention_max_distance must be more than 8"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"config.json: .*{message}"):
        FAMILIES["t5"].parse_config({"architectures": ["T5EncoderModel"], **changes})


def test_the_class_of_an_export() -> None:
    sizes = preset("t5-v1.1-small") | {"vocab_size": 50, "num_layers": 1, "family": "mt5"}
    plan = plan_export(EncoderConfig(**sizes), ())
    assert (plan.architecture, plan.unsupported, plan.has_sidecar) == ("MT5EncoderModel", (), False)
    assert auto_class_of(plan) == "AutoModelForTextEncoding"
    assert plan.config_json["feed_forward_proj"] == "gated-gelu" and plan.config_json["d_kv"] == 64
    by_layer = plan_export(EncoderConfig(**sizes | {"relative_attention_shared": False}), ())
    assert by_layer.family is None and by_layer.unsupported == ("relative_attention_shared",)
    assert plan_export(EncoderConfig(**sizes | {"norm_bias": False, "causal": True}), ()).unsupported == ("causal",)
    gated = EncoderConfig(**sizes | {"hidden_act": "gelu"})
    rendered = plan_export(gated, ()).config_json
    assert rendered["feed_forward_proj"] == "gated-gelu_python"
    assert FAMILIES["mt5"].parse_config(rendered).hidden_act == "gelu"
    # what no class holds is in the sidecar, heads without parameters included
    assert plan_export(EncoderConfig(**preset("t5-small") | {"family": "t5"}), ("mlm",)).has_sidecar
