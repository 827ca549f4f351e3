"""Exports: complete or absent, the same bytes for the same model, never over foreign files, verified before done."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf import save as save_module
from bertjax.hf.export_plan import plan_export
from bertjax.hf.pretrained import PretrainedModel, load_pretrained
from bertjax.hf.save import ExportError, save_pretrained, verify_export
from bertjax.models.model import abstract_params, count_params

HEADS = ("pooler", "mlm", "pair")

CONFIG = EncoderConfig(
    vocab_size=30,
    padded_vocab_size=64,
    hidden_size=12,
    num_layers=2,
    num_heads=2,
    intermediate_size=20,
    max_position_embeddings=10,
    compute_dtype="bfloat16",
    remat="full",
)
CARD = {
    "name": "tiny",
    "data": ["builtin:python-docs"],
    "objective": "masked words and next sentence",
    "steps": 1200,
    "batch_size": 32,
    "seq_len": 10,
    "eval": {"mlm_loss": 3.25, "mlm_accuracy": 0.5},
}


def random_params(config: EncoderConfig = CONFIG, heads: tuple[str, ...] = HEADS, seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed).standard_normal
    return jax.tree.map(lambda leaf: draw(leaf.shape).astype(leaf.dtype), abstract_params(config, heads))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the verification in tests of something else: it compiles two models."""
    monkeypatch.setattr(save_module, "verify_export", lambda *_, **__: None)


class Words:
    """A tokenizer in memory, with the interface that the export uses."""

    def __init__(self, size: int = 30, shift: int = 0, training_shift: int = 0):
        from tokenizers import Tokenizer, models, pre_tokenizers

        self.shift, self.training_shift = shift, training_shift
        tokens = ["[UNK]", *"abcdefghijklmnopqrstuvwxyz.!?"][:size]
        self.inner = Tokenizer(models.WordPiece({p: i for i, p in enumerate(tokens)}, unk_token="[UNK]"))
        self.inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        if size > 30:
            self.inner.add_tokens([f"extra{i}" for i in range(size - 30)])

    def huggingface_files(self, max_length: int) -> dict[str, bytes]:
        config = json.dumps({"model_max_length": max_length}).encode()
        return {"tokenizer.json": self.inner.to_str().encode(), "tokenizer_config.json": config}

    def encode_with_specials(self, text: str) -> list[int]:
        return [i + self.shift for i in self.inner.encode(text).ids]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [[i + self.training_shift for i in self.inner.encode(text).ids] for text in texts]


def test_permissions_are_those_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save_pretrained(tmp_path / "out", random_params(), CONFIG, heads=HEADS, tokenizer=Words(), max_shard_bytes=2000)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert len(modes) > 4 and set(modes.values()) == {0o640}, modes


def test_round_trip_drops_the_padding_and_keeps_every_bit(tmp_path: Path) -> None:
    params = random_params()
    save_pretrained(tmp_path / "out", params, CONFIG, heads=HEADS, tokenizer=Words(), card=CARD)
    model = load_pretrained(tmp_path / "out")
    assert model.config.vocab_size == 30 and model.config.padded_vocab_size is None and model.heads == HEADS
    table = params["encoder"]["embeddings"]["word_embeddings"]["embedding"]
    expected = jax.tree.map(lambda leaf: leaf, params)
    expected["encoder"]["embeddings"]["word_embeddings"]["embedding"] = table[:30]
    expected["mlm_head"]["bias"] = params["mlm_head"]["bias"][:30]
    jax.tree.map(np.testing.assert_array_equal, model.params, expected)
    assert sorted(contents(tmp_path / "out")) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]  # no temporary file remains


def test_weights_are_float32_untied_once_and_marked_for_torch(tmp_path: Path, unverified: None) -> None:
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), random_params())
    save_pretrained(tmp_path / "out", params, CONFIG, heads=HEADS)
    with safe_open(tmp_path / "out" / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F32"}  # noqa: SIM118
        assert not any("decoder" in name for name in file.keys())  # noqa: SIM118
    total = sum(array.size for array in load_file(tmp_path / "out" / "model.safetensors").values())
    assert total == count_params(CONFIG, HEADS)


def test_equal_parameters_give_equal_bytes(tmp_path: Path, unverified: None) -> None:
    def reversed_(tree: Any) -> Any:
        return {k: reversed_(v) for k, v in reversed(tree.items())} if isinstance(tree, dict) else jnp.asarray(tree)

    save_pretrained(tmp_path / "a", random_params(), CONFIG, heads=HEADS, card=CARD, tokenizer=Words())
    save_pretrained(tmp_path / "b", reversed_(random_params()), CONFIG, heads=HEADS[::-1], card=CARD, tokenizer=Words())
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize(
    ("heads", "architecture", "first"),
    [
        (HEADS, "BertForPreTraining", "bert.embeddings.LayerNorm.bias"),
        (("mlm",), "BertForMaskedLM", "bert.embeddings.LayerNorm.bias"),
        (("pooler", "mlm"), "BertForMaskedLM", "bert.embeddings.LayerNorm.bias"),
        (("pooler", "pair"), "BertForNextSentencePrediction", "bert.embeddings.LayerNorm.bias"),
        (("pooler",), "BertModel", "embeddings.LayerNorm.bias"),
        ((), "BertModel", "embeddings.LayerNorm.bias"),
    ],
)
def test_the_class_follows_the_heads(
    tmp_path: Path, unverified: None, heads: tuple[str, ...], architecture: str, first: str
) -> None:
    save_pretrained(tmp_path / "out", random_params(heads=heads), CONFIG, heads=heads)
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert values["architectures"] == [architecture] and values["vocab_size"] == 30
    assert min(load_file(tmp_path / "out" / "model.safetensors")) == first
    assert load_pretrained(tmp_path / "out").heads == heads


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu"])
def test_the_activation_is_named_as_they_name_it(tmp_path: Path, unverified: None, act: str) -> None:
    config = dataclasses.replace(CONFIG, hidden_act=act)
    save_pretrained(tmp_path / "out", random_params(), config, heads=HEADS)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["hidden_act"] == act
    assert load_pretrained(tmp_path / "out").config.hidden_act == act


# -- existing files ----------------------------------------------------------------------------------------------------


def test_an_empty_folder_is_used_and_another_is_not(tmp_path: Path, unverified: None) -> None:
    (tmp_path / "empty").mkdir()
    save_pretrained(tmp_path / "empty", random_params(), CONFIG, heads=HEADS)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "config.json").write_text("{}")
    (theirs / "README.md").write_text("somebody's model")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="not an export of bertjax"):
            save_pretrained(theirs, random_params(), CONFIG, heads=HEADS, overwrite=overwrite)
    assert contents(theirs) == {"config.json": b"{}", "README.md": b"somebody's model"}
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        save_pretrained(tmp_path / "file", random_params(), CONFIG, heads=HEADS)


def test_an_export_is_replaced_only_on_request_and_as_a_whole(tmp_path: Path, unverified: None) -> None:
    out = tmp_path / "out"
    save_pretrained(out, random_params(), CONFIG, heads=HEADS, tokenizer=Words())
    before = contents(out)
    with pytest.raises(UserError, match="already holds an export"):
        save_pretrained(out, random_params(seed=1), CONFIG, heads=HEADS)
    assert contents(out) == before
    save_pretrained(out, random_params(seed=1), CONFIG, heads=HEADS, overwrite=True)
    assert contents(out)["model.safetensors"] != before["model.safetensors"]
    assert "tokenizer.json" not in contents(out)  # not a mixture of two exports
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["write_sidecar", "verify_export"])
def test_a_failure_leaves_things_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(save_module, "verify_export", lambda *_, **__: None)
        save_pretrained(out, random_params(), CONFIG, heads=HEADS)
    before = contents(out)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(save_module, "verify_export", lambda *_, **__: None)
    monkeypatch.setattr(save_module, name, full)
    with pytest.raises(UserError, match="No space left on device"):
        save_pretrained(out, random_params(seed=1), CONFIG, heads=HEADS, tokenizer=Words(), overwrite=True)
    with pytest.raises(UserError, match="No space left on device"):
        save_pretrained(tmp_path / "new", random_params(seed=1), CONFIG, heads=HEADS, tokenizer=Words())
    assert contents(out) == before and [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_failed_replacement_brings_the_old_export_back(
    tmp_path: Path, unverified: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rename, failed = tmp_path / "out", os.rename, []
    save_pretrained(out, random_params(), CONFIG, heads=HEADS)
    before = contents(out)

    def fails_once(source: Path, target: Path) -> None:
        if Path(source) != out and not failed:  # the new folder, after the old one was moved away
            failed.append(source)
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails_once)
    with pytest.raises(UserError, match="Input/output error"):
        save_pretrained(out, random_params(seed=1), CONFIG, heads=HEADS, overwrite=True)
    assert contents(out) == before and [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["mlm_head"].pop("bias"), "missing: mlm_head/bias"),
        (lambda p: p.update(extra=np.zeros(3)), "unexpected: extra"),
        (lambda p: p["pair_head"].update(kernel=np.zeros((12, 3))), r"misshapen: pair_head/kernel \[12, 3\]"),
        (lambda p: p["pair_head"].update(bias=np.array([0, np.nan])), "not finite: pair_head/bias"),
    ],
)
def test_parameters_that_cannot_be_exported(tmp_path: Path, change: Any, message: str) -> None:
    params = random_params()
    change(params)
    with pytest.raises(UserError, match=message):
        save_pretrained(tmp_path / "out", params, CONFIG, heads=HEADS)
    assert list(tmp_path.iterdir()) == []


# -- verification ------------------------------------------------------------------------------------------------------


def test_verification_sees_a_changed_tensor_a_changed_config_and_changed_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, params = tmp_path / "out", random_params()
    with monkeypatch.context() as patch:
        patch.setattr(save_module, "verify_export", lambda *_, **__: None)
        save_pretrained(out, params, CONFIG, heads=HEADS)
    verify_export(out, params, CONFIG, heads=HEADS)

    tensors = load_file(out / "model.safetensors")
    changed = {**tensors, "bert.pooler.dense.bias": np.nextafter(tensors["bert.pooler.dense.bias"], 9)}
    save_file(changed, out / "model.safetensors")
    with pytest.raises(ExportError, match=r"1 tensors, first bert\.pooler\.dense\.bias"):
        verify_export(out, params, CONFIG, heads=HEADS)
    save_file(tensors, out / "model.safetensors")

    values = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**values, "hidden_act": "gelu"}))
    with pytest.raises(ExportError, match="config"):
        verify_export(out, params, CONFIG, heads=HEADS)
    # without the check of the config, the outputs would show it
    memory = PretrainedModel(CONFIG, params, HEADS)
    with pytest.raises(ExportError, match="differs from the one in memory: last_hidden_state"):
        save_module._compare_outputs(memory, load_pretrained(out))


def test_tokenizers_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)
    with pytest.raises(ExportError, match="other ids for"):
        save_pretrained(tmp_path / "out", random_params(), CONFIG, heads=HEADS, tokenizer=Words(shift=1))
    with pytest.raises(ExportError, match="other ids than training for 'The quick"):
        save_pretrained(tmp_path / "out", random_params(), CONFIG, heads=HEADS, tokenizer=Words(training_shift=1))
    with pytest.raises(ExportError, match="35 tokens, the model's vocabulary only 30"):
        save_pretrained(tmp_path / "out", random_params(), CONFIG, heads=HEADS, tokenizer=Words(size=35))
    assert list(tmp_path.iterdir()) == []


def test_tokenizer_files_travel_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)
    (tmp_path / "tok").mkdir()
    with pytest.raises(UserError, match="holds no tokenizer file"):
        save_pretrained(tmp_path / "out", random_params(), CONFIG, heads=HEADS, tokenizer=tmp_path / "tok")
    (tmp_path / "tok" / "vocab.txt").write_bytes(b"[PAD]\r\nword\n")
    (tmp_path / "tok" / "notes.md").write_text("not a tokenizer file")
    save_pretrained(tmp_path / "out", random_params(), CONFIG, heads=HEADS, tokenizer=tmp_path / "tok")
    model = load_pretrained(tmp_path / "out")
    assert model.tokenizer_files == {"vocab.txt": b"[PAD]\r\nword\n"}
    model.save_pretrained(tmp_path / "again")
    first, again = contents(tmp_path / "out"), contents(tmp_path / "again")
    assert first == again
    model.save_pretrained(tmp_path / "again", overwrite=True)  # even over its source folder


def test_what_transformers_needs_or_leaves_out_is_one_line() -> None:
    small = {"vocab_size": 9, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "intermediate_size": 4}
    assert plan_export(EncoderConfig(**small), ("pooler", "mlm", "pair")).limitation == ""
    no_class = plan_export(EncoderConfig(**small, norm_placement="pre"), ("mlm",))
    assert no_class.limitation == (
        "transformers runs it with trust_remote_code=True, by the code in the folder: no class of the family bert "
        "holds it (norm_placement)"
    )
    sidecar = plan_export(EncoderConfig(**small), ("mlm", "rtd"))
    assert sidecar.limitation == "transformers runs it without rtd_head, which only bertjax reads"
