"""BERT folders of `transformers`, in addition to the cases of `parity`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from parity.cases import TOLERANCE, Arrays, draw_batch  # noqa: E402
from parity.compare import random_params, random_transformers_model, run_transformers  # noqa: E402
from parity.families.bert import CASES  # noqa: E402

from bertjax.config.model import EncoderConfig  # noqa: E402
from bertjax.hf import save as save_module  # noqa: E402
from bertjax.hf.pretrained import PretrainedModel, load_pretrained  # noqa: E402
from bertjax.hf.save import save_pretrained  # noqa: E402

CASE = CASES[0]
SIZES = CASE.config


@pytest.fixture(autouse=True)
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the comparison of outputs: here transformers compares, and test_save.py tests it."""
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)


def batch() -> Arrays:
    return draw_batch(CASE, "right", SIZES["vocab_size"], SIZES["max_position_embeddings"], SIZES["type_vocab_size"], 0)


def assert_agree(ours: PretrainedModel, theirs: Any, inputs: Arrays) -> None:
    expected = run_transformers(theirs, inputs, output_hidden_states=True).hidden_states[-1].numpy()
    result = np.asarray(ours(**inputs).last_hidden_state)
    assert np.abs(result - expected).max() <= TOLERANCE


def test_auto_classes_find_their_way(tmp_path: Path) -> None:
    config = EncoderConfig(
        vocab_size=50, hidden_size=24, num_layers=2, num_heads=3, intermediate_size=20, max_position_embeddings=12
    )
    heads = ("pooler", "mlm", "pair")
    save_pretrained(tmp_path / "m", random_params(config, heads), config, heads=heads)
    for task in ("Model", "ForMaskedLM", "ForPreTraining"):
        auto = transformers.AutoModel if task == "Model" else getattr(transformers, f"AutoModel{task}")
        assert type(auto.from_pretrained(tmp_path / "m")).__name__ == f"Bert{task}"


def test_position_ids_are_used(tmp_path: Path) -> None:
    model = random_transformers_model(CASE, "BertForMaskedLM")
    model.save_pretrained(tmp_path)
    inputs = batch()
    inputs["position_ids"] = np.random.default_rng(3).integers(0, 19, inputs["input_ids"].shape)
    assert_agree(load_pretrained(tmp_path), model, inputs)


def test_shards_and_half_precision_of_theirs(tmp_path: Path) -> None:
    model = random_transformers_model(CASE, "BertForPreTraining")
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").exists()
    assert_agree(load_pretrained(tmp_path / "shards"), model, batch())
    for kind in (torch.bfloat16, torch.float16):
        folder = tmp_path / str(kind)
        model.to(kind).save_pretrained(folder)
        assert_agree(load_pretrained(folder), model.float(), batch())


def test_a_head_we_do_not_have_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = random_transformers_model(CASE, "BertForMultipleChoice")
    model.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"architectures": ["BertForSomethingElse"]}))
    ours = load_pretrained(tmp_path)
    assert ours.heads == ("pooler",)
    assert "classifier" in caplog.text and "BertForSomethingElse" in caplog.text
    assert_agree(ours, model.bert, batch())


def test_a_spanbert_keeps_its_span_boundary_head(tmp_path: Path) -> None:
    """SpanBERT is a BERT to `transformers`; the head that predicts its spans is restored from the side file."""
    config = EncoderConfig(
        vocab_size=50, hidden_size=24, num_layers=2, num_heads=3, intermediate_size=20, max_position_embeddings=12,
        span_positions=7, span_position_size=10,
    )  # fmt: skip
    heads = ("mlm", "span_boundary")
    params = random_params(config, heads)
    save_pretrained(tmp_path / "m", params, config, heads=heads)
    back = load_pretrained(tmp_path / "m")
    assert back.heads == heads and (back.config.span_positions, back.config.span_position_size) == (7, 10)
    same = jax.tree.map(lambda mine, read: bool(np.array_equal(mine, read)), params, back.params)
    assert all(jax.tree.leaves(same)) and "span_head" in same
    model, info = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert type(model).__name__ == "BertForMaskedLM" and not any(info.values())
    inputs = {"input_ids": np.arange(12)[None] + 3, "attention_mask": np.ones((1, 12), np.int64)}
    result = np.asarray(back(**inputs).mlm_logits)
    assert np.abs(result - run_transformers(model.eval(), inputs).logits.numpy()).max() <= TOLERANCE
    assert "span-boundary head" in (tmp_path / "m" / "README.md").read_text()
