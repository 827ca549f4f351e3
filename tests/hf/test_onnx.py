"""ONNX graphs: what onnxruntime computes alone, in a process of its own, and what cannot be a graph."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from parity.compare import random_params
from test_sentence_transformers import CONFIG, TEXTS, tokenizer_files
from tokenizers import Tokenizer

import bertjax
from bertjax.errors import UserError
from bertjax.hf.onnx_folder import compare_graph, save_onnx
from bertjax.hf.onnx_graph import OnnxModel, pool_in_torch, sample_batches, signature_of
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.safe_files import GRAPH
from bertjax.hf.save import ExportError
from bertjax.hf.sentence_transformers import POOLING_MODES, Pooling, pool, scale_to_unit_length

torch = pytest.importorskip("torch")

ALONE = """
import sys
for blocked in ("bertjax", "jax", "torch", "transformers", "onnx", "onnxscript"):
    sys.modules[blocked] = None
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
inputs = np.load(sys.argv[2])
names = [each.name for each in session.get_inputs()]
outputs = session.run(None, {name: inputs[name] for name in names})
np.savez(sys.argv[3], **dict(zip([each.name for each in session.get_outputs()], outputs)))
"""


def model_with(*heads: str, **fields: Any) -> PretrainedModel:
    config = dataclasses.replace(CONFIG, **({"labels": ("a", "b", "c")} if "sequence_classification" in heads else {}))
    config = dataclasses.replace(config, **fields)
    return PretrainedModel(config, random_params(config, heads), heads, tokenizer_files())


def run_alone(folder: Path, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs a graph in a process that has onnxruntime and numpy alone."""
    np.savez(folder / "inputs.npz", **batch)
    paths = [folder / name for name in (GRAPH, "inputs.npz", "outputs.npz")]
    subprocess.run([sys.executable, "-c", ALONE, *map(str, paths)], check=True)
    return dict(np.load(paths[2]))


@pytest.mark.long
def test_a_classifier_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The graph takes any batch and length; another model is not taken for it."""
    pytest.importorskip("onnxruntime")
    model = model_with("pooler", "sequence_classification")
    deviation, scores = save_onnx(tmp_path / "out", model)
    assert deviation.largest < 1e-5 and scores == ()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("README.md", "config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json")
    }
    assert str(Path(bertjax.__file__).parent).encode() not in (tmp_path / "out" / GRAPH).read_bytes()
    for batch in list(sample_batches(model.config, model.heads))[:2]:
        expected = model(**batch).logits
        np.testing.assert_allclose(run_alone(tmp_path / "out", batch)["logits"], expected, atol=1e-5)
    with pytest.raises(UserError, match="already holds an export"):
        save_onnx(tmp_path / "out", model)
    other = model_with("pooler", "sequence_classification")
    other.params["sequence_head"]["output"]["bias"] = np.full(3, 0.01, np.float32)
    graph = OnnxModel(tmp_path / "out" / GRAPH, signature_of(model.config, model.heads, None))
    with pytest.raises(ExportError, match=r"^onnxruntime's outputs in float32 differ from bertjax's by 0\."):
        compare_graph(other, graph, "float32")


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_sentence_encoders(dtype: str, mode: str, tmp_path: Path) -> None:
    """The graph pools; the model card says how, and how much the numbers of fewer bits differ."""
    pytest.importorskip("onnxruntime")
    model = model_with("pooler", "mlm")
    save_onnx(tmp_path / "out", model, pooling=Pooling(mode), dtype=dtype)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(11)
    encodings = tokenizer.encode_batch(TEXTS)
    batch = {"input_ids": np.array([each.ids for each in encodings])}
    batch |= {"attention_mask": np.array([each.attention_mask for each in encodings])}
    batch |= {"token_type_ids": np.array([each.type_ids for each in encodings])}
    vectors = run_alone(tmp_path / "out", batch)["sentence_embedding"]
    expected = bertjax.embed(model, TEXTS, pooling=mode, normalize=True)
    np.testing.assert_allclose(vectors, expected, atol={"float32": 1e-5, "float16": 5e-3, "int8": 0.1}[dtype])
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"| Numbers | {dtype}" in card and "`sentence_embedding`" in card and "library_name: sentence" in card
    assert (tmp_path / "out" / "1_Pooling" / "config.json").is_file()


@pytest.mark.parametrize("mode", [*POOLING_MODES, "mean+max"])
def test_pooling_in_torch(mode: str) -> None:
    """Padding lies on either side."""
    hidden = np.random.default_rng(0).normal(size=(4, 6, 5)).astype(np.float32)
    mask = np.array([[1] * 6, [1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1]], np.int32)
    expected = scale_to_unit_length(np.asarray(pool(hidden, mask, mode)))[:, :4]
    actual = pool_in_torch(torch.from_numpy(hidden), torch.from_numpy(mask), Pooling(mode, truncate_dim=4))
    np.testing.assert_allclose(actual.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (("mlm",), {"dtype": "bfloat16"}, r"dtype=bfloat16 is not one of onnx=true: float32, float16, int8"),
        (("mlm",), {"opset": 11}, r"opset=11 is none that torch.onnx writes: 18 to 23 \(default 20\)"),
    ],
)
def test_arguments_that_no_graph_has(
    model: tuple[str, ...], arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        save_onnx(tmp_path / "out", model_with(*model), **arguments)
    assert not list(tmp_path.iterdir())


def test_models_without_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertjax.hf.onnx_folder.require_onnx", lambda: None)
    for model, pooling, message in (
        (model_with("mlm", causal=True), None, "a decoder is served with its cache"),
        (model_with(), Pooling(layers=(np.tanh,)), "a graph pools tokens, and cannot hold modules after the pooling"),
        (model_with("mlm"), Pooling(prompt="p", include_prompt=False), "a graph .* cannot hold a prompt that is not"),
        (model_with(), Pooling(max_length=99), "max_length=99 is beyond the 11 tokens that the model can read"),
    ):
        with pytest.raises(UserError, match=message):
            save_onnx(tmp_path / "out", model, pooling=pooling)
    assert not list(tmp_path.iterdir())


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"^onnx=true needs onnx \(.*\); pip install 'bertjax\[onnx\]'$"):
        save_onnx(tmp_path / "out", model_with("mlm"))


def test_weights_beyond_float16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertjax.hf.onnx_folder.require_onnx", lambda: None)
    model = model_with("mlm")
    model.params = jax.tree.map(lambda leaf: np.asarray(leaf) * 1e9, model.params)
    with pytest.raises(UserError, match="beyond the range of float16"):
        save_onnx(tmp_path / "out", model, dtype="float16")
