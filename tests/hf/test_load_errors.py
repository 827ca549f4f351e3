"""Damaged, foreign or hostile folders: one line that names the error; no code is run, and no value is assumed."""

from __future__ import annotations

import json
import os
import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import params_to_tensors
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.keymaps.bert import make_keymap
from bertjax.hf.load import describe_nearest
from bertjax.hf.pretrained import load_pretrained
from bertjax.models.model import abstract_params

HEADS = ("pooler", "mlm", "pair")

CONFIG = {
    "architectures": ["BertForPreTraining"],
    "model_type": "bert",
    "vocab_size": 30,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 10,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
}
OURS = EncoderConfig(
    vocab_size=30, hidden_size=12, num_layers=2, num_heads=2, intermediate_size=20, max_position_embeddings=10
)
WORDS = "bert.embeddings.word_embeddings.weight"
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


def random_params() -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal
    return jax.tree.map(lambda leaf: draw(leaf.shape).astype(leaf.dtype), abstract_params(OURS, HEADS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    write(path, params_to_tensors(make_keymap(OURS), random_params(), OURS, HEADS))
    return path


def write(path: Path, tensors: dict[str, np.ndarray] | None = None, **changes: Any) -> None:
    values = {**CONFIG, **changes}
    (path / "config.json").write_text(json.dumps(values))
    if tensors is not None:
        save_file(tensors, path / "model.safetensors")


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    return load_file(path / "model.safetensors")


def refused(path: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_pretrained(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 900


def test_whole_numbers_are_no_weights(folder: Path) -> None:
    """Buffers are ignored by name; any other tensor of whole numbers would be a cast of who knows what."""
    tensors = tensors_of(folder) | {"bert.embeddings.position_ids": np.arange(10)[None]}
    write(folder, tensors)
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(folder).params, random_params())
    write(folder, tensors | {QUERY: tensors[QUERY].view(np.int32), WORDS: tensors[WORDS] > 0})
    refused(folder, rf"do not fit the config: not floating-point numbers: {WORDS} \(bool\), {QUERY} \(int32\)$")


def test_the_plain_folder_loads(folder: Path) -> None:
    model = load_pretrained(folder)
    assert model.heads == HEADS
    jax.tree.map(np.testing.assert_array_equal, model.params, random_params())


# -- config.json -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key' is not supported"),
        ({"is_decoder": True}, "is_decoder"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"hidden_act": "mish"}, "hidden_act = 'mish'.*known are gelu"),
        ({"hidden_act": ["gelu"]}, "hidden_act"),
        ({"auto_map": {"AutoModel": "somebody/model--code.Model"}}, "auto_map.*never run"),
        ({"quantization_config": {}}, "quantization_config"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        (
            {"model_type": "rwkv"},
            "'rwkv' is not supported; the nearest is bert, with the same keys and tensors.*supported: bert",
        ),
        (
            {"model_type": "longformer", "attention_window": [4]},
            "the nearest is bert, without the keys attention_window; supported: bert",
        ),
        ({"model_type": ["bert"]}, "model_type"),
        ({"architectures": "BertModel"}, "architectures must be a list"),
        ({"hidden_size": "12"}, "hidden_size must be a whole number, not '12'"),
        ({"hidden_size": True}, "hidden_size must be a whole number"),
        ({"num_attention_heads": 5}, "not divisible"),
        ({"hidden_size": 1e18}, "hidden_size must be a whole number"),
        ({"hidden_size": 10**18}, "hidden_size"),
        ({"layer_norm_eps": 10**400}, "layer_norm_eps must be a finite number"),
        ({"layer_norm_eps": "tiny"}, "layer_norm_eps must be a finite number"),
        ({"vocab_size": 31}, r"misshapen: bert.embeddings.word_embeddings.weight \[30, 12\] instead of \[31, 12\]"),
        ({"num_hidden_layers": 3}, "missing: bert.encoder.layer.2.attention"),
        ({"num_hidden_layers": 1}, "unexpected: bert.encoder.layer.1.attention"),
        ({"num_hidden_layers": 10**12}, "config.json: model.num_layers must lie in"),
        ({"vocab_size": 10**15}, "config.json: model.vocab_size must be at most"),
        ({"type_vocab_size": 3}, "misshapen: bert.embeddings.token_type_embeddings.weight"),
    ],
)
def test_configs_that_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    write(folder, **changes)
    refused(folder, message)


def test_absent_keys_take_the_defaults_of_the_class(tmp_path: Path) -> None:
    from bertjax.hf.keymaps.bert import FAMILY

    assert FAMILY.parse_config({}) == EncoderConfig(hidden_act="gelu", initializer="normal")


@pytest.mark.parametrize(
    ("name", "ours"), [("gelu_pytorch_tanh", "gelu_new"), ("gelu_fast", "gelu_new"), ("relu", "relu")]
)
def test_spellings_of_activations(folder: Path, name: str, ours: str) -> None:
    write(folder, hidden_act=name)
    assert load_pretrained(folder).config.hidden_act == ours


@pytest.mark.parametrize("text", ["", "[]", "{", '"bert"', "\xff", "[" * 100_000])
def test_config_that_is_not_json(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    refused(folder, "config.json")


# -- tensors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(QUERY), f"missing: {QUERY}"),
        (lambda t: t.pop("cls.predictions.bias"), "missing: cls.predictions.bias"),
        (lambda t: t.pop("bert.pooler.dense.weight"), "missing: bert.pooler.dense.weight"),
        (lambda t: t.update({"bert.extra.weight": np.ones(3, "f4")}), "unexpected: bert.extra.weight"),
        (lambda t: t.update({QUERY: t[QUERY][:-1]}), rf"misshapen: {QUERY} \[11, 12\] instead of \[12, 12\]"),
        (lambda t: t.update({QUERY: t[QUERY] * np.nan}), f"not finite: {QUERY}"),
        (lambda t: t.update({WORDS: np.where(t[WORDS] > 1, np.inf, t[WORDS])}), f"not finite: {WORDS}"),
        (lambda t: t.update({"cls.predictions.decoder.weight": t[WORDS] + 1}), "decoder.weight differs from"),
        (
            lambda t: t.update({"cls.predictions.decoder.bias": np.ones(3, "f4")}),
            r"misshapen: cls.predictions.bias \[3\]",
        ),
        (lambda t: t.update({"cls.predictions.decoder.weight": np.ones(3, "f4")}), "decoder.weight differs from"),
        (lambda t: t.update({"embeddings.word_embeddings.weight": t[WORDS]}), "two tensors are bert.embeddings"),
    ],
)
def test_tensors_that_do_not_fit(folder: Path, change: Callable[[dict[str, np.ndarray]], Any], message: str) -> None:
    tensors = tensors_of(folder)
    change(tensors)
    write(folder, tensors)
    refused(folder, message)


def test_many_errors_make_one_short_line(folder: Path) -> None:
    write(folder, {"bert.odd.weight": np.zeros(1, "f4")})
    refused(folder, r"missing: .* and \d+ more; unexpected: bert.odd.weight")


def test_old_names_buffers_and_tied_copies_are_understood(folder: Path) -> None:
    tensors = tensors_of(folder)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
        for name, array in tensors.items()
    }
    old["bert.embeddings.position_ids"] = np.arange(10)[None]
    old["cls.predictions.decoder.weight"] = tensors[WORDS]
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")  # only the copy exists
    write(folder, old)
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(folder).params, random_params())


def test_of_two_biases_the_decoders_counts_as_in_transformers(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    bias = np.arange(30, dtype=np.float32)
    write(folder, tensors_of(folder) | {"cls.predictions.decoder.bias": bias})
    np.testing.assert_array_equal(load_pretrained(folder).params["mlm_head"]["bias"], bias)
    assert "decoder.bias differs from cls.predictions.bias; the former is used" in caplog.text


def test_stray_tensors_are_named_and_ignored(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    stray = {"global_step": np.ones((), np.int64), "classifier.weight": np.ones(3, "f4")}
    write(folder, tensors_of(folder) | stray)
    assert load_pretrained(folder).heads == HEADS
    assert "tensors that the model does not have are ignored: classifier.weight, global_step" in caplog.text
    refused_name = {"bert.encoder.layer.1.extra.weight": np.ones(3, "f4")}
    write(folder, tensors_of(folder) | refused_name)
    refused(folder, "unexpected: bert.encoder.layer.1.extra.weight")


def test_the_class_tells_the_family_where_model_type_is_absent(folder: Path) -> None:
    values = {key: value for key, value in CONFIG.items() if key != "model_type"}
    (folder / "config.json").write_text(json.dumps(values))
    assert load_pretrained(folder).heads == HEADS
    (folder / "config.json").write_text(json.dumps(values | {"architectures": ["T5Model"]}))
    refused(folder, "model_type must be a word such as bert, not None")


def test_a_file_may_hold_more_heads_than_its_class(folder: Path) -> None:
    write(folder, architectures=["BertForMaskedLM"])
    assert load_pretrained(folder).heads == HEADS
    write(folder, architectures=None)
    assert load_pretrained(folder).heads == HEADS


def test_a_model_without_pooler(folder: Path) -> None:
    tensors = {
        n.removeprefix("bert."): a for n, a in tensors_of(folder).items() if not n.startswith(("cls", "bert.pool"))
    }
    write(folder, tensors, architectures=["BertModel"])
    model = load_pretrained(folder)
    assert model.heads == ()
    out = model([[1, 2, 3]])
    assert out.pooler_output is None and out.logits is None and out.last_hidden_state.shape == (1, 3, 12)


def test_double_precision_is_narrowed(folder: Path) -> None:
    write(folder, {name: array.astype("f8") for name, array in tensors_of(folder).items()})
    params = load_pretrained(folder).params
    jax.tree.map(np.testing.assert_array_equal, params, random_params())


# -- files -------------------------------------------------------------------------------------------------------------


def test_no_folder_and_no_weights(tmp_path: Path) -> None:
    for name in ("none", "a\0b", "\ud800", "x" * 500):
        refused(tmp_path / name, "is not a folder")
    refused(tmp_path, "config.json is missing")
    write(tmp_path)
    refused(tmp_path, "neither model.safetensors nor")


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


def test_pickles_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    refused(tmp_path, "pytorch_model.bin, which is not read.*AutoModelForPreTraining.from_pretrained")
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    refused(tmp_path, "not a readable safetensors file")
    assert not (tmp_path / "exploded").exists()


def test_nothing_is_unpickled_and_no_socket_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("not while loading a model")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (socket, "socket")):
        monkeypatch.setattr(module, name, refuse)
    load_pretrained(folder)


def shards(folder: Path, names: tuple[str, str] = ("a.safetensors", "b.safetensors")) -> dict[str, Any]:
    tensors = tensors_of(folder)
    (folder / "model.safetensors").unlink()
    half = len(tensors) // 2
    index: dict[str, Any] = {"metadata": {}, "weight_map": {}}
    for name, part in zip(names, (list(tensors)[:half], list(tensors)[half:]), strict=True):
        (folder / name).parent.mkdir(exist_ok=True)
        save_file({key: tensors[key] for key in part}, folder / name)
        index["weight_map"] |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


def rewrite(folder: Path, index: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards(folder: Path) -> None:
    index = shards(folder, ("a.safetensors", "deeper/b.safetensors"))
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(folder).params, random_params())
    rewrite(folder, {"weight_map": {**index["weight_map"], "bert.more": "a.safetensors"}})
    refused(folder, "no file holds bert.more")
    for bad in ({}, {"weight_map": []}, {"weight_map": {}}, {"weight_map": {"x": 3}}, []):
        rewrite(folder, bad)
        refused(folder, "index.json")
    (folder / "a.safetensors").unlink()
    rewrite(folder, index)
    refused(folder, "a.safetensors is missing")


@pytest.mark.parametrize(
    "name",
    ["../out.safetensors", "/OUT.safetensors", "x/../../out.safetensors", "..\\out.safetensors", "link.safetensors"],
)
def test_shards_outside_the_folder_are_refused(folder: Path, name: str) -> None:
    index = shards(folder)
    outside = folder.parent / "out.safetensors"
    (folder / "a.safetensors").rename(outside)
    name = name.replace("/OUT", str(outside.with_suffix("")))
    (folder / "link.safetensors").symlink_to(outside)
    table = {key: name if file == "a.safetensors" else file for key, file in index["weight_map"].items()}
    rewrite(folder, {"weight_map": table})
    refused(folder, "not a plain file name|outside the folder")


def test_pickled_shards_are_refused(folder: Path) -> None:
    index = shards(folder)
    (folder / "a.safetensors").rename(folder / "a.bin")
    table = {key: file.replace("a.safetensors", "a.bin") for key, file in index["weight_map"].items()}
    rewrite(folder, {"weight_map": table})
    refused(folder, "'a.bin' is not a safetensors file")


def test_links_of_the_download_cache_are_followed_but_no_others(folder: Path) -> None:
    cache = folder.parent / "models--somebody--bert"
    snapshot = cache / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).rename(cache / "blobs" / name.encode().hex())
        (snapshot / name).symlink_to(Path("../../blobs") / name.encode().hex())
    assert load_pretrained(snapshot).heads == HEADS
    (cache / "blobs").rename(cache / "elsewhere")
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(Path("../../elsewhere") / b"config.json".hex())
    refused(snapshot, "outside the folder")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255), cut=st.one_of(st.none(), st.floats(0, 1)))
def test_mutated_files_give_an_error_or_a_model(folder: Path, position: float, value: int, cut: float | None) -> None:
    path = folder / "model.safetensors"
    original = path.read_bytes()
    header = 8 + int.from_bytes(original[:8], "little")
    data = bytearray(original)
    data[int(position * header)] = value  # the bytes after the header are numbers: any of them form a model
    path.write_bytes(bytes(data[: int(cut * len(data))]) if cut is not None else bytes(data))
    try:
        load_pretrained(folder)
    except UserError as error:
        assert "\n" not in str(error)
    finally:
        path.write_bytes(original)


# -- running -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": [[1, 30]]}, "input_ids holds 30; the model has ids 0 to 29"),
        ({"input_ids": [[-1, 3]]}, "input_ids holds -1"),
        ({"input_ids": [[1.0, 2.0]]}, "whole numbers"),
        ({"input_ids": [1, 2]}, r"shape \[sequences, tokens\]"),
        ({"input_ids": [[]]}, "whole numbers"),
        ({"input_ids": [[1, 2], [3]]}, "sequences of different lengths"),
        ({"input_ids": [[1] * 11]}, "a sequence has 11 tokens; the model has 10 positions"),
        ({"input_ids": [[1, 2]], "token_type_ids": [[0, 2]]}, "token_type_ids holds 2; the model has ids 0 to 1"),
        ({"input_ids": [[1, 2]], "position_ids": [[0, 10]]}, "position_ids holds 10"),
        ({"input_ids": [[1, 2]], "position_ids": [[0]]}, r"position_ids has shape \[1, 1\]; input_ids have \[1, 2\]"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1, 2]]}, "attention_mask must hold 0 and 1"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1]]}, "attention_mask must hold 0 and 1 in shape"),
    ],
)
def test_inputs_that_are_refused(folder: Path, inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_pretrained(folder)(**inputs)


def test_the_nearest_family_is_the_one_with_most_of_the_tensors() -> None:
    encoder = [f"roberta.encoder.layer.{layer}.attention.self.{name}.weight" for layer in (0, 1) for name in "qkv"]
    entries = FAMILIES["mpnet"].make_keymap(FAMILIES["mpnet"].parse_config({})).entries
    tensors = [entry.tensor.replace("{L}", "0").removeprefix("mpnet.") for entry in entries]
    values = {"model_type": "mpnet2", "relative_attention_num_buckets": 32, "experts": 4}
    assert describe_nearest(values, tensors) == "the nearest is mpnet, without the keys experts"
    assert describe_nearest(values, [f"model.{name}" for name in tensors if "pooler" not in name]).startswith(
        "the nearest is mpnet, without the keys experts"
    )
    missing = describe_nearest(values, [name for name in tensors if "bias.weight" not in name])
    assert missing.endswith("with the tensors encoder.relative_attention_bias.weight")
    assert describe_nearest({"model_type": "whisper", "d_model": 3}, encoder) == ""
