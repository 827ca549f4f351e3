"""Untrusted folders: references to code, to the network or to other files are refused or ignored (P32).

Only files of that folder may be opened, and no process or connection may be started.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertjax.config.model import EncoderConfig
from bertjax.data.tokenizer_io import load_tokenizer, save_huggingface_tokenizer
from bertjax.data.tokenizer_training import train_tokenizer
from bertjax.errors import UserError
from bertjax.experiment.load import load_source_model
from bertjax.hf import save as save_module
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.pretrained import load_pretrained
from bertjax.hf.save import save_pretrained
from bertjax.models.model import abstract_params
from bertjax.runtime.platform import start_backend

CONFIG = EncoderConfig(
    vocab_size=60, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=12, max_position_embeddings=10
)
FORBIDDEN = (
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "pickle.find_class",
    "urllib",
)
watching: list[str] = []
"""Forbidden events so far; a test fails if it is not empty."""


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if watching and (event.startswith(FORBIDDEN) or (event == "import" and arguments[0] == "strangers_module")):
        watching.append(f"{event} {arguments}")


sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def nothing_happens() -> Iterator[None]:
    """Python reports every connection, process and unpickled name, whichever code causes it."""
    watching.append("begin")
    try:
        yield
        assert watching == ["begin"]
    finally:
        watching.clear()


def test_the_watch_sees_what_it_must() -> None:
    import pickle
    import socket

    pickle.loads(pickle.dumps(os.getcwd))
    with socket.socket() as probe, pytest.raises(OSError):
        probe.connect(("127.0.0.1", 1))
    assert any(each.startswith("pickle.find_class") for each in watching)
    assert any(each.startswith("socket.connect") for each in watching)
    del watching[1:]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    start_backend()  # which a process of its own watches
    folder = tmp_path_factory.mktemp("made") / "model"
    draw = np.random.default_rng(0).standard_normal
    params = jax.tree.map(lambda leaf: draw(leaf.shape).astype(leaf.dtype), abstract_params(CONFIG, ("mlm",)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(save_module, "_compare_outputs", lambda *_: None)
        save_pretrained(folder, params, CONFIG, heads=("mlm",))
    tokenizer = train_tokenizer(["the cat sees the dog"] * 3, model="wordpiece", family="bert", vocab_size=60)
    save_huggingface_tokenizer(tokenizer, folder, 10)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A complete model with an untrusted module next to it."""
    path = tmp_path / "model"
    path.mkdir()
    for file in made.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    for name in ("modeling_stranger", "configuration_stranger", "tokenization_stranger", "strangers_module"):
        (path / f"{name}.py").write_text("raise SystemExit('executed')\n")
    monkeypatch.chdir(path)
    return path


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_plain_folder_loads(folder: Path) -> None:
    assert load_pretrained(folder).heads == ("mlm",)
    assert load_source_model(folder).tokenizer.size <= 60


def test_an_adapter_that_is_not_applied_is_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    load_pretrained(folder)
    assert not caplog.text
    (folder / "adapter_config.json").write_text("{}")
    load_pretrained(folder)
    assert "adapter_config.json is not read: the weights are those without the adapter" in caplog.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"auto_map": {"AutoModel": "modeling_stranger.Model"}}, "auto_map"),
        ({"auto_map": {"AutoModel": "stranger/repository--modeling.Model"}}, "auto_map"),
        ({"auto_map": None}, "auto_map"),
        ({"trust_remote_code": True}, "auto_map"),
        ({"custom_generate": "stranger/repository"}, "auto_map"),
        ({"_attn_implementation": "stranger/kernel"}, "_attn_implementation = 'stranger/kernel'"),
        ({"attn_implementation": "stranger/kernel@main:function"}, "code from elsewhere"),
        ({"_attn_implementation_internal": "stranger/kernel"}, "code from elsewhere"),
        ({"attn_implementation": {"": "sdpa", "encoder": "stranger/kernel"}}, "code from elsewhere"),
        ({"experts_implementation": "stranger/kernel"}, "code from elsewhere"),
        ({"quantization_config": {"quant_method": "stranger"}}, "quantization_config"),
        ({"model_type": "stranger/repository"}, "model_type 'stranger/repository' is not supported"),
        ({"model_type": "../../strangers_module"}, "is not supported"),
        ({"hidden_act": "strangers_module.activation"}, "hidden_act"),
        ({"hidden_act": "__import__('os').system('true')"}, "hidden_act"),
        ({"position_embedding_type": "strangers_module"}, "position_embedding_type"),
    ],
)
def test_what_asks_for_code_is_refused(folder: Path, changes: dict[str, Any], words: str) -> None:
    edit(folder / "config.json", **changes)
    with pytest.raises(UserError) as caught:
        load_pretrained(folder)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"_name_or_path": "stranger/repository"},
        {"architectures": ["strangers_module"]},
        {"architectures": ["stranger/repository--Model"]},
        {"base_model_name_or_path": "https://example.invalid/model", "backbone": "stranger/repository"},
        {"tokenizer_class": "strangers_module.Tokenizer", "transformers_version": "4.57.0"},
        {"_attn_implementation": "eager", "_attn_implementation_autoset": True},
        {"torch_dtype": "strangers_module", "use_kernels": True},
    ],
)
def test_names_of_other_repositories_are_not_looked_up(folder: Path, changes: dict[str, Any]) -> None:
    """They do not affect the numbers of a model: it is read from its files alone."""
    edit(folder / "config.json", **changes)
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(folder).params, load_pretrained(folder).params)


@pytest.mark.parametrize(
    "name", ["bert-base-uncased", "stranger/repository", "https://example.invalid/model", "hf://x/y"]
)
def test_a_name_of_a_repository_is_no_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the network enabled as far as libraries know."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.chdir(tmp_path)
    refused = r"|: \w+: is none of s3://"
    with pytest.raises(UserError, match="is not a folder; give one with config" + refused):
        load_pretrained(name)
    with pytest.raises(UserError, match="holds no model" + refused):
        load_source_model(name)
    with pytest.raises(UserError, match="no such tokenizer" + refused):
        load_tokenizer(name)


@pytest.mark.parametrize(
    "changes",
    [
        {"auto_map": {"AutoTokenizer": ["tokenization_stranger.Slow", None]}},
        {"tokenizer_class": "strangers_module.Tokenizer"},
        {"tokenizer_file": "/etc/passwd", "vocab_file": "../../secret.txt"},
    ],
)
def test_a_tokenizer_is_data(folder: Path, changes: dict[str, Any]) -> None:
    """Only the tokens and rules of `tokenizer.json` are read."""
    before = load_tokenizer(folder)
    edit(folder / "tokenizer_config.json", **changes)
    after = load_tokenizer(folder)
    assert (after.tokens, after.spec) == (before.tokens, before.spec)
    assert after.encode_with_specials("The cat [MASK]") == before.encode_with_specials("The cat [MASK]")


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "a/../../b.safetensors", "x\0.safetensors", ""]
)
def test_an_index_names_plain_files_of_the_folder(folder: Path, name: str) -> None:
    """Section 7 of the promises: archives and paths."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"not a plain file name|not a safetensors file"):
        load_pretrained(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt"])
def test_a_link_out_of_the_folder_is_not_followed(folder: Path, name: str) -> None:
    secret = folder.parent / "secret"
    secret.write_bytes((folder / name).read_bytes())
    (folder / name).unlink()
    (folder / name).symlink_to(secret)
    with pytest.raises(UserError, match="outside the folder; it is not followed"):
        load_pretrained(folder)


def test_a_header_larger_than_the_file_is_no_bomb(folder: Path) -> None:
    """It claims a hundred terabytes in one tensor."""
    claim = {"x": {"dtype": "F32", "shape": [10**13], "data_offsets": [0, 4 * 10**13]}}
    header = json.dumps(claim).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(UserError, match="not a readable safetensors file"):
        load_pretrained(folder)
    (folder / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + header)
    with pytest.raises(UserError, match="not a readable safetensors file"):
        load_pretrained(folder)
    save_file({"x": np.zeros((0, 10**9), np.float32)}, folder / "model.safetensors")
    with pytest.raises(UserError, match="missing"):
        load_pretrained(folder)


@pytest.mark.parametrize("types", [5, [["full_attention"]], "full_attention", ["sliding_attention"] * 32])
def test_layer_types_of_any_kind_are_refused_in_words(types: object) -> None:
    with pytest.raises(UserError, match="every layer is global"):
        FAMILIES["qwen2"].parse_config({"layer_types": types})
