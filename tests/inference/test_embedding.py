"""Vectors of texts compared with `transformers`, and their batches."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from models_lab import quick_compilation, write_folder
from tokens_lab import sentences

import bertjax
from bertjax.commands.embed import Embedder
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.errors import UserError
from bertjax.hf.pretrained import load_pretrained
from bertjax.hf.sentence_transformers import Pooling, summary_mode
from bertjax.inference.text_batches import TextEncoder, batch_by_length

TEXTS = [*sentences(3, seed=3, longest=20), "a", "The cat " * 40, "北京 <mask> naïve"]
LONGEST = 24


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


WEEKLY = [pytest.param(each, marks=pytest.mark.weekly) for each in ("roberta", "modernbert", "deberta-v2")]


@pytest.mark.parametrize("family", ["bert", "xlnet", "gpt2", *WEEKLY])
def test_vectors_as_transformers(family: str, tmp_path: Path) -> None:
    model, tokenizer = write_folder(family, tmp_path)
    states = []
    for text in TEXTS:
        encoded = tokenizer(text, return_tensors="pt", truncation=True, max_length=LONGEST)
        with torch.no_grad():
            states.append(model.base_model(**encoded).last_hidden_state[0].numpy())
    index = -1 if family in ("xlnet", "gpt2") else 0
    ours, vocabulary = load_pretrained(tmp_path), load_tokenizer(tmp_path)
    expected = {
        "mean": [state.mean(0) for state in states],
        summary_mode(ours.config): [each[index] for each in states],
    }
    for mode, vectors in expected.items():
        embedder = Embedder(ours, vocabulary, Pooling(mode, False, LONGEST), tokens=100)
        np.testing.assert_allclose(embedder(TEXTS), vectors, atol=1e-5, err_msg=mode)
        assert embedder.num_truncated == sum(len(tokenizer(text)["input_ids"]) > LONGEST for text in TEXTS) > 0
    scaled = Embedder(ours, vocabulary, Pooling("mean", True, LONGEST), tokens=100)(TEXTS)
    lengths = np.linalg.norm(expected["mean"], axis=1, keepdims=True)
    np.testing.assert_allclose(scaled, expected["mean"] / lengths, atol=1e-5)


def test_a_loaded_model_is_prepared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call reads no file and makes no embedder, but sees new weights and settings."""
    write_folder("bert", tmp_path)
    model = load_pretrained(tmp_path)
    before = bertjax.embed(model, TEXTS)
    with monkeypatch.context() as patch:
        patch.setattr("bertjax.experiment.open_model.load_tokenizer", None)
        patch.setattr("bertjax.commands.embed.Embedder", None)
        np.testing.assert_array_equal(bertjax.embed(model, TEXTS), before)
    assert np.abs(bertjax.embed(model, TEXTS, pooling="cls") - before).max() > 1e-3
    table = model.params["encoder"]["embeddings"]["word_embeddings"]
    model.params["encoder"]["embeddings"]["word_embeddings"] = jax.tree.map(lambda leaf: -leaf, table)
    assert np.abs(bertjax.embed(model, TEXTS) - before).max() > 1e-3


def test_texts_are_read_in_windows_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder("bert", tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    whole = TextEncoder(tokenizer, LONGEST)(TEXTS)
    monkeypatch.setattr("bertjax.inference.text_batches._TEXTS_PER_CALL", 3)
    parts = TextEncoder(tokenizer, LONGEST)(TEXTS)
    for name in ("ids", "types", "words", "offsets"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    assert parts.num_truncated == whole.num_truncated and len(whole) == len(TEXTS) and whole.lengths.max() == LONGEST
    assert tokenizer.engine.truncation is None, "the tokenizer itself must stay as it was"
    assert len(TextEncoder(tokenizer)([])) == 0
    empty = Embedder(load_pretrained(tmp_path), tokenizer)
    assert empty([]).shape == (0, 18) and empty([""]).shape == (1, 18)


def test_a_text_without_tokens_is_a_vector_of_zeros(tmp_path: Path) -> None:
    write_folder("gpt2", tmp_path)
    embedder = Embedder(load_pretrained(tmp_path), load_tokenizer(tmp_path))
    both = embedder(["", "a cat"])
    assert not embedder([""]).any() and not both[0].any() and np.abs(both[1]).max() > 1e-3


def test_token_types_beyond_the_table_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder("bert", tmp_path)
    embedder = Embedder(load_pretrained(tmp_path), load_tokenizer(tmp_path))
    texts = embedder._encoder(["a cat"])
    monkeypatch.setattr(embedder, "_encoder", lambda _: dataclasses.replace(texts, types=texts.types + 9))
    with pytest.raises(UserError, match="token_type_ids holds 9"):
        embedder(["a cat"])


def test_refused(tmp_path: Path) -> None:
    write_folder("bert", tmp_path)
    model, tokenizer = load_pretrained(tmp_path), load_tokenizer(tmp_path)
    with pytest.raises(UserError, match="beyond the 512 tokens"):
        Embedder(model, tokenizer, Pooling(max_length=513))
    with pytest.raises(UserError, match="leaves nothing for text in addition to 2 special tokens"):
        Embedder(model, tokenizer, Pooling(max_length=2))


def test_batches_hold_every_text_once_in_few_shapes() -> None:
    lengths = np.random.default_rng(0).integers(1, 301, 2000)
    result = list(batch_by_length(lengths, 300, 2048))
    members = np.concatenate([batch.members[: batch.num_real] for batch in result])
    assert sorted(members.tolist()) == list(range(2000))
    assert all((lengths[batch.members] <= batch.length).all() for batch in result)
    assert all(len(batch.members) * batch.length <= 2048 for batch in result)
    assert all(earlier.length >= later.length for earlier, later in itertools.pairwise(result))
    shapes = {(len(batch.members), batch.length) for batch in result}
    assert len(shapes) <= 25 and max(length for _, length in shapes) == 300
    padding = 1 - lengths.sum() / sum(len(batch.members) * batch.length for batch in result)
    assert padding < 0.25, f"{padding:.2f} of all token slots are padding"
    assert all(rows.bit_count() == 1 for rows, _ in shapes), "rows of few numbers, too"
    alone = list(batch_by_length(np.array([5000]), None, 2048))
    assert [(len(batch.members), batch.length) for batch in alone] == [(1, 6144)]
    assert [len(batch.members) for batch in batch_by_length(np.full(5, 10), None, 2048, max_batch_size=3)] == [2, 2, 1]
