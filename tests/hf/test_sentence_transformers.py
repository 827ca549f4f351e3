"""Sentence vectors and the folders of sentence-transformers."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity.compare import random_params
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.pretrained import PretrainedModel, load_pretrained
from bertjax.hf.save import save_pretrained
from bertjax.hf.sentence_folders import read_pooling
from bertjax.hf.sentence_transformers import (
    Pooling,
    drop_heads,
    pool,
    save_sentence_transformers,
    scale_to_unit_length,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *["the", "cat", "dog", "sees", "likes", "a", "bird", "house"]]
CONFIG = EncoderConfig(
    vocab_size=len(WORDS), hidden_size=18, num_layers=2, num_heads=3, intermediate_size=20, max_position_embeddings=11
)
HEADS = ("pooler", "mlm")
TEXTS = ["the cat sees a dog", "a bird", "the house likes the cat the dog the bird a house a cat a dog a bird"]


def embed_ids(model: PretrainedModel, ids: Any, mask: Any = None, pooling: Pooling | None = None) -> Any:
    hidden = drop_heads(model)(ids, mask).last_hidden_state
    mask = np.ones(hidden.shape[:2], np.int32) if mask is None else np.asarray(mask, np.int32)
    pooling = pooling or Pooling()
    vectors = np.asarray(pool(hidden, mask, pooling.mode))
    return scale_to_unit_length(vectors) if pooling.normalize else vectors


def tokenizer_files() -> dict[str, bytes]:
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 11,
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    return {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": json.dumps(settings).encode()}


@pytest.fixture(scope="module")
def model() -> PretrainedModel:
    return PretrainedModel(CONFIG, random_params(CONFIG, HEADS), HEADS, tokenizer_files())


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Compiles without the expensive passes."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def batch() -> tuple[np.ndarray, np.ndarray]:
    ids = np.random.default_rng(0).integers(5, len(WORDS), (3, 7))
    mask = np.ones_like(ids)
    mask[0, 4:], mask[1, :6] = 0, 0  # padding after the text, and before it
    return ids, mask


def test_pooling_is_over_real_tokens(model: PretrainedModel) -> None:
    ids, mask = batch()
    hidden = np.asarray(model(ids, mask).last_hidden_state, np.float64)
    means = np.stack([row[real > 0].mean(0) for row, real in zip(hidden, mask, strict=True)])
    firsts = np.stack([hidden[0, 0], hidden[1, 6], hidden[2, 0]])
    for mode, expected in (("mean", means), ("cls", firsts)):
        result = embed_ids(model, ids, mask, pooling=Pooling(mode, normalize=False))
        np.testing.assert_allclose(result, expected, atol=2e-6)
        scaled = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(embed_ids(model, ids, mask, pooling=Pooling(mode)), scaled, atol=2e-6)


def test_padding_does_not_move_a_vector(model: PretrainedModel) -> None:
    ids, _ = batch()
    alone = embed_ids(model, ids[2:, :4])
    padded = embed_ids(model, ids[2:], np.array([[1, 1, 1, 1, 0, 0, 0]]))
    np.testing.assert_allclose(alone, padded, atol=2e-6)


def test_heads_are_not_computed(model: PretrainedModel) -> None:
    encoder = drop_heads(model)
    assert encoder.heads == ("pooler",) and set(encoder.params) == {"encoder", "pooler"}
    without = drop_heads(PretrainedModel(CONFIG, {"encoder": model.params["encoder"]}, ()))
    assert without.heads == ()


@pytest.mark.parametrize("pooling", [Pooling(), Pooling("cls", False, 6), Pooling("mean", False)])
def test_saved_and_read_back(model: PretrainedModel, tmp_path: Path, pooling: Pooling) -> None:
    folder = tmp_path / "out"
    save_sentence_transformers(folder, model, pooling)
    back = read_pooling(folder)
    assert (back.mode, back.normalize, back.max_length) == (pooling.mode, pooling.normalize, pooling.max_length or 11)
    loaded = load_pretrained(folder)
    assert loaded.heads == ("pooler",) and loaded.tokenizer_files == model.tokenizer_files
    np.testing.assert_allclose(
        embed_ids(loaded, *batch(), pooling=back), embed_ids(model, *batch(), pooling=pooling), atol=1e-6
    )
    card = (folder / "README.md").read_text()
    assert "library_name: sentence-transformers" in card and "SentenceTransformer(" in card
    with pytest.raises(UserError, match="overwrite"):
        save_sentence_transformers(folder, model, pooling)
    save_sentence_transformers(folder, model, pooling, overwrite=True)


def test_a_folder_saved_again_keeps_its_modules(model: PretrainedModel, tmp_path: Path) -> None:
    save_sentence_transformers(tmp_path / "out", model, Pooling("cls", False, 6))
    steps = json.loads((tmp_path / "out" / "modules.json").read_text())
    steps.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (tmp_path / "out" / "modules.json").write_text(json.dumps(steps))
    (tmp_path / "out" / "2_Dense").mkdir()
    for name in ("config.json", "model.safetensors", "pytorch_model.bin"):
        (tmp_path / "out" / "2_Dense" / name).write_bytes(name.encode())
    load_pretrained(tmp_path / "out").save_pretrained(tmp_path / "again")
    for name in ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json", "2_Dense/model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    assert not (tmp_path / "again" / "2_Dense" / "pytorch_model.bin").exists()
    assert "library_name: sentence-transformers" in (tmp_path / "again" / "README.md").read_text()
    assert load_pretrained(tmp_path / "again").module_files == load_pretrained(tmp_path / "out").module_files
    steps[2]["path"] = "../../secret"
    (tmp_path / "out" / "modules.json").write_text(json.dumps(steps))
    with pytest.raises(UserError, match="not the name of a folder"):
        load_pretrained(tmp_path / "out")


def test_a_model_prints_on_one_line(model: PretrainedModel) -> None:
    assert repr(model).startswith("PretrainedModel(bert, 2 layers of 18, ") and len(repr(model)) < 120


def test_refusals(model: PretrainedModel, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for arguments in ({"mode": "sum"}, {"max_length": 0}):
        with pytest.raises(UserError):
            Pooling(**arguments)
    with pytest.raises(UserError, match="beyond the 11 tokens"):
        save_sentence_transformers(folder, model, Pooling(max_length=12))
    with pytest.raises(UserError, match="needs the tokenizer"):
        save_sentence_transformers(folder, PretrainedModel(CONFIG, model.params, HEADS))
    assert not folder.exists()


@pytest.mark.parametrize(
    "text", ["{}", "[]", "[1]", "nonsense", '[{"idx": 0, "name": "0", "path": "../..", "type": "x.Transformer"}]']
)
def test_modules_of_strangers(tmp_path: Path, text: str) -> None:
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(UserError, match=r"modules\.json"):
        read_pooling(tmp_path)


def test_a_plain_export_has_no_pooling(model: PretrainedModel, tmp_path: Path) -> None:
    save_pretrained(tmp_path / "m", model.params, CONFIG, heads=HEADS)
    with pytest.raises(UserError, match=r"no modules\.json"):
        read_pooling(tmp_path / "m")


def test_a_row_without_tokens_is_finite() -> None:
    vectors = pool(
        jnp.ones((1, 3, 4)), jnp.zeros((1, 3), jnp.int32), "mean+mean_sqrt_len_tokens+weightedmean+lasttoken"
    )
    assert not np.asarray(vectors).any()


@pytest.mark.skipif(importlib.util.find_spec("sentence_transformers") is None, reason="an optional library")
@pytest.mark.parametrize("pooling", [Pooling(), Pooling("cls", False, 6)])
def test_the_library_gives_the_same_vectors(model: PretrainedModel, tmp_path: Path, pooling: Pooling) -> None:
    from sentence_transformers import SentenceTransformer

    save_sentence_transformers(tmp_path / "out", model, pooling)
    library = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    tokenizer = Tokenizer.from_str(model.tokenizer_files["tokenizer.json"].decode())
    tokenizer.enable_truncation(pooling.max_length or 11)
    tokenizer.enable_padding(pad_id=0)
    rows = tokenizer.encode_batch(TEXTS)
    ids, mask = np.array([row.ids for row in rows]), np.array([row.attention_mask for row in rows])
    np.testing.assert_allclose(library.encode(TEXTS), embed_ids(model, ids, mask, pooling=pooling), atol=1e-6)
