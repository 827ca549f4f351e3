"""Parameters without a class in `transformers`: side files if a class has the rest, otherwise our own format."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertjax.config.fields import settings_of
from bertjax.config.heads import HeadsConfig
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf import native_format
from bertjax.hf import save as save_module
from bertjax.hf.export_plan import plan_export
from bertjax.hf.native_format import HEAD_BY_MODULE
from bertjax.hf.pretrained import load_pretrained
from bertjax.hf.save import save_pretrained
from bertjax.models.model import HEADS, abstract_params, count_params
from bertjax.types import Params

SIZES: dict[str, Any] = dict(
    vocab_size=30, hidden_size=12, num_layers=3, num_heads=2, intermediate_size=20, max_position_embeddings=10
)
CONFIG = EncoderConfig(**SIZES, padded_vocab_size=64, span_positions=7, span_position_size=5)
SPAN_HEADS = ("mlm", "span_boundary")
# No class of transformers has this: rotary positions, pre-norm and shared groups in a "bert".
MIXTURE = EncoderConfig(
    **{**SIZES, "num_layers": 2},
    padded_vocab_size=64,
    attention_position="rotary",
    norm_placement="pre",
    num_groups=2,
    inner_layers=2,
    embedding_size=8,
    labels=("no", "yes", "maybe"),
)


def random_params(config: EncoderConfig, heads: tuple[str, ...]) -> Params:
    draw = np.random.default_rng(0).standard_normal
    return jax.tree.map(lambda leaf: draw(leaf.shape).astype(leaf.dtype), abstract_params(config, heads))


def without_padding(params: Params, size: int = 30) -> Params:
    return jax.tree.map(lambda leaf: leaf[:size] if leaf.shape[0] == 64 else leaf, params)


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)


@pytest.fixture
def folder(tmp_path: Path, unverified: None) -> Path:
    save_pretrained(tmp_path / "out", random_params(CONFIG, SPAN_HEADS), CONFIG, heads=SPAN_HEADS)
    return tmp_path / "out"


def change(path: Path, **changes: Any) -> None:
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def refused(path: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_pretrained(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 900


def test_every_head_has_its_paths() -> None:
    config = dataclasses.replace(CONFIG, enhanced_decoder=True, position_embedding="none")
    assert {HEAD_BY_MODULE.get(path.split("/")[0], "") for path in native_format.param_shapes(config, HEADS)} == {
        "",
        *HEADS,
    }


def test_every_field_of_heads_has_its_readers() -> None:
    assert {head for each in settings_of(HeadsConfig).values() for head in each.heads} <= set(HEADS)


# -- side files --------------------------------------------------------------------------------------------------------


def test_a_head_without_a_class_is_restored_from_a_side_file(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "bertjax.json",
        "bertjax.safetensors",
        "config.json",
        "model.safetensors",
    ]
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    extra = load_file(folder / "bertjax.safetensors")
    assert all(name.startswith("span_head.") for name in extra) and extra["span_head.bias"].shape == (30,)
    assert not any("span" in name for name in load_file(folder / "model.safetensors"))
    model = load_pretrained(folder)
    assert model.heads == SPAN_HEADS and model.config.span_positions == 7
    expected = without_padding(random_params(CONFIG, SPAN_HEADS))
    jax.tree.map(np.testing.assert_array_equal, model.params, expected)
    card = (folder / "README.md").read_text()
    assert "the span-boundary head" in card and "span_positions" in card and "ignores" in card
    assert f"{count_params(CONFIG, SPAN_HEADS):,}" in card
    model.save_pretrained(folder.parent / "again")
    for name in ("bertjax.json", "bertjax.safetensors", "model.safetensors", "config.json", "README.md"):
        assert (folder / name).read_bytes() == (folder.parent / "again" / name).read_bytes(), name


def test_transformers_does_not_notice_the_side_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    capsys.readouterr()
    _, info = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    assert not [text for text in capsys.readouterr() if "UNEXPECTED" in text or "span" in text]


def test_plain_models_have_no_side_files(tmp_path: Path, unverified: None) -> None:
    heads = ("pooler", "mlm", "pair")
    save_pretrained(tmp_path / "out", random_params(CONFIG, heads), CONFIG, heads=heads)
    assert not list((tmp_path / "out").glob("bertjax.*"))
    assert "Sidecar" not in (tmp_path / "out" / "README.md").read_text()


def test_two_heads_of_one_name_both_come_back(tmp_path: Path, unverified: None) -> None:
    heads = ("pooler", "sequence_classification", "token_classification")
    params = random_params(CONFIG, heads)
    save_pretrained(tmp_path / "out", params, CONFIG, heads=heads)
    assert set(load_file(tmp_path / "out" / "bertjax.safetensors")) == {
        "token_head.output.weight",
        "token_head.output.bias",
    }
    model = load_pretrained(tmp_path / "out")
    assert model.heads == heads
    jax.tree.map(np.testing.assert_array_equal, model.params, without_padding(params))


def test_a_classifier_that_rides_along_keeps_its_labels(tmp_path: Path, unverified: None) -> None:
    heads = ("pooler", "mlm", "pair", "sequence_classification")
    config = dataclasses.replace(CONFIG, labels=("no", "yes", "maybe"))
    save_pretrained(tmp_path / "out", random_params(config, heads), config, heads=heads)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["BertForPreTraining"]
    model = load_pretrained(tmp_path / "out")
    assert model.heads == heads and model.config.labels == ("no", "yes", "maybe")


def test_a_parameter_of_the_encoder_without_a_name_is_an_error(tmp_path: Path) -> None:
    params = random_params(CONFIG, SPAN_HEADS)
    params["encoder"]["novelty"] = np.zeros(3, np.float32)
    params["mlm_head"]["novelty"] = np.zeros(3, np.float32)
    with pytest.raises(UserError, match="unexpected: encoder/novelty, mlm_head/novelty"):
        save_pretrained(tmp_path / "out", params, CONFIG, heads=SPAN_HEADS)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"hidden_act": "relu"}, "contradicts config.json: hidden_act is 'gelu_new' here, 'relu' there"),
        ("config.json", {"layer_norm_eps": 1e-5}, "contradicts config.json: layer_norm_eps.*remove bertjax.json"),
        ("config.json", {"hidden_act": ...}, "contradicts config.json: hidden_act"),
        ("bertjax.json", {"norm_placement": "pre"}, "contradicts config.json: norm_placement"),
        ("bertjax.json", {"num_layers": 9999}, "contradicts config.json: num_hidden_layers"),
        ("bertjax.json", {"family": "roberta"}, "family = 'roberta'; config.json is of the family 'bert'"),
        ("bertjax.json", {"span_positions": 8}, r"misshapen: span_head.position_embeddings.weight \[7, 5\]"),
        ("bertjax.json", {"span_positions": 10**6}, "misshapen: span_head.position_embeddings"),
        ("bertjax.json", {"span_positions": "many"}, "span_positions must be int, not 'many'"),
        ("bertjax.json", {"heads": ["mlm"]}, "unexpected: span_head"),
        ("bertjax.json", {"heads": ["mlm", "span_boundary", "rtd"]}, "missing: rtd_head"),
        ("bertjax.json", {"heads": ["mlm", "crystal_ball"]}, "heads must be a list of"),
        ("bertjax.json", {"heads": None}, "heads must be a list of"),
        ("bertjax.json", {"flux": 3}, "unknown key flux"),
        ("bertjax.json", {"remat": "none"}, "unknown key remat"),
    ],
)
def test_contradictions_and_nonsense(folder: Path, file: str, changes: dict[str, Any], message: str) -> None:
    change(folder / file, **changes)
    refused(folder, message)


def test_what_changes_no_output_is_no_contradiction(folder: Path) -> None:
    change(folder / "config.json", architectures=["BertModel"], dtype="bfloat16", hidden_dropout_prob=...)
    assert load_pretrained(folder).heads == SPAN_HEADS


def test_broken_side_files(folder: Path) -> None:
    tensors = load_file(folder / "bertjax.safetensors")
    save_file({**tensors, "span_head.bias": tensors["span_head.bias"] * np.nan}, folder / "bertjax.safetensors")
    refused(folder, "bertjax.safetensors do not fit the config: not finite: span_head.bias")
    (folder / "bertjax.safetensors").unlink()
    refused(folder, "bertjax.safetensors is missing")
    save_file(tensors, folder / "bertjax.safetensors")
    (folder / "bertjax.json").unlink()
    refused(folder, "bertjax.safetensors without bertjax.json")
    (folder / "bertjax.safetensors").unlink()
    assert load_pretrained(folder).heads == ("mlm",)


def test_side_files_are_not_read_through_links(folder: Path) -> None:
    (folder / "bertjax.safetensors").rename(folder.parent / "elsewhere")
    (folder / "bertjax.safetensors").symlink_to(folder.parent / "elsewhere")
    refused(folder, "outside the folder")


# -- our own format ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_mixture_is_written_in_our_own_format(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heads = ("pooler", "mlm", "sequence_classification")
    params = random_params(MIXTURE, heads)
    with caplog.at_level(logging.WARNING):
        save_pretrained(tmp_path / "out", params, MIXTURE, heads=heads)  # with the comparison of outputs
    assert "attention_position" in caplog.text and "norm_placement" in caplog.text
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert values["model_type"] == "bertjax" and values["num_groups"] == 2 and values["vocab_size"] == 30
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors["encoder.groups.1.layers.0.attention.query.weight"].shape == (12, 12)
    assert tensors["encoder.embeddings.word_embeddings.weight"].shape == (30, 8)
    model = load_pretrained(tmp_path / "out")
    assert model.heads == heads and model.config == dataclasses.replace(
        MIXTURE, family="bertjax", padded_vocab_size=None
    )
    jax.tree.map(np.testing.assert_array_equal, model.params, without_padding(params))
    card = (tmp_path / "out" / "README.md").read_text()
    assert 'AutoModelForSequenceClassification.from_pretrained("PATH_OR_NAME", trust_remote_code=True)' in card
    assert "attention_position" in card and "custom_code" in card
    model.save_pretrained(tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_placement": "pre"},
        {"attention_bias": "none"},
        {"head_size": 5},
        {"feed_forward": "glu"},
        {"type_vocab_size": 0},
        {"position_embedding": "sinusoidal"},
        {"embedding_scale": True},
        {"norm_bias": False},
        {"causal": True},
        {"local_attention": 4, "global_attn_every_n_layers": 3},
        {"position_embedding": "none", "attention_position": "disentangled"},
        {"position_offset": 2},
        {"pooler_act": "relu"},
        {"mlm_head": "bias"},
        {"mlm_act": "relu"},
    ],
)
def test_what_bert_cannot_say_is_never_left_out(changes: dict[str, Any]) -> None:
    plan = plan_export(EncoderConfig(**{**SIZES, **changes}), ("pooler", "mlm"))
    assert plan.family is None
    assert set(plan.unsupported) & set(changes) or "token_type_embeddings.weight would be empty" in plan.unsupported[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_dropout": 0.3, "activation_dropout": 0.2},
        {"initializer_range": 0.5},
        {"head_size": 6},
        {"global_rope_theta": 7.0},
        {"rtd_head": "summary"},
        {"labels": ("a", "b", "c")},
        {"compute_dtype": "bfloat16", "remat": "full"},
        {"num_groups": None, "position_buckets": 0},
    ],
)
def test_bert_ignores_keys_that_change_no_output(changes: dict[str, Any]) -> None:
    plan = plan_export(EncoderConfig(**{**SIZES, **changes}), ("pooler", "mlm"))
    assert plan.family is not None and not plan.has_sidecar


def test_an_unknown_family_is_named() -> None:
    with pytest.raises(UserError, match=r"model.family must be one of bert, .*, bertjax, not 'brt'"):
        EncoderConfig(**SIZES, family="brt")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 9999, "num_groups": None, "inner_layers": 1}, "claims 9999 layers"),
        ({"num_layers": 10**12}, r"model.num_layers must lie in \[1, 10000\]"),
        ({"num_groups": 4, "num_layers": 4}, "missing: encoder.groups.2"),
        ({"inner_layers": 9999}, "claims [0-9]+ layers"),
        ({"vocab_size": 10**9}, "misshapen"),
        ({"vocab_size": 10**30}, "model.vocab_size must be at most 2147483647"),
        ({"hidden_size": "12"}, "hidden_size must be int, not '12'"),
        ({"hidden_size": 13}, "not divisible"),
        ({"labels": ["a", "b"]}, "unknown key labels"),
        ({"id2label": {"0": 1}}, "id2label must map numbers to names"),
        ({"layer_norm_eps": "tiny"}, "layer_norm_eps must be float"),
        ({"causal": 1}, "causal must be bool"),
        ({"embedding_size": None}, "unexpected: encoder.embeddings.projection"),
        ({"compute_dtype": "bfloat16"}, "unknown key compute_dtype"),
        ({"custom_generate": "x"}, "never run"),
    ],
)
def test_broken_folders_of_our_own(tmp_path: Path, unverified: None, changes: dict[str, Any], message: str) -> None:
    save_pretrained(tmp_path / "out", random_params(MIXTURE, ("mlm",)), MIXTURE, heads=("mlm",))
    change(tmp_path / "out" / "config.json", **changes)
    refused(tmp_path / "out", message)


# -- shards ------------------------------------------------------------------------------------------------------------


def test_large_weights_are_split_and_read_by_both(tmp_path: Path, unverified: None) -> None:
    params = random_params(CONFIG, ("mlm",))
    save_pretrained(tmp_path / "out", params, CONFIG, heads=("mlm",), max_shard_bytes=3000)
    files = sorted(path.name for path in (tmp_path / "out").glob("model-*"))
    assert len(files) >= 3 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert not (tmp_path / "out" / "model.safetensors").exists()
    for name in files:
        shard = load_file(tmp_path / "out" / name)
        assert sum(array.nbytes for array in shard.values()) <= 3000 or len(shard) == 1
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * count_params(CONFIG, ("mlm",))
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(tmp_path / "out").params, without_padding(params))


def test_transformers_reads_our_shards(tmp_path: Path, unverified: None) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    save_pretrained(tmp_path / "out", random_params(CONFIG, ("mlm",)), CONFIG, heads=("mlm",), max_shard_bytes=3000)
    _, info = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
