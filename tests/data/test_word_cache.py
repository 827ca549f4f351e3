"""Ids by words equal those of the library for every kind of tokenizer and any text."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bertjax.data.word_cache as word_memo
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_backends import HuggingFaceBackend
from bertjax.data.tokenizer_training import train_tokenizer
from bertjax.data.word_cache import has_independent_words

FAMILIES = [("bert", "wordpiece"), ("roberta", "bpe"), ("modernbert", "bpe"), ("albert", "unigram")]
PROSE = 3 * Path(__file__).read_text() + "".join(map(chr, range(33, 383)))
WORDS = ["the", "The", "don't", "word,", "(a)", "naïve", "Ünï-côde", "图书", "é", "'s", "3.14", "[MASK]", "x" * 120]
BLANKS = [" ", " ", " ", "  ", "\t", "\u00a0", "\u2028", "\x1c", "\n", "\u3000"]
TEXT = st.lists(st.one_of(st.sampled_from(WORDS), st.sampled_from(BLANKS), st.text(max_size=6)), max_size=12).map(
    "".join
)


@functools.cache
def trained(family: str, model: str) -> Tokenizer:
    return train_tokenizer([PROSE], model=model, family=family, vocab_size=330)


def same(tokenizer: Tokenizer, texts: list[str]) -> None:
    lengths, ids = tokenizer.encode_flat(texts)
    expected = tokenizer.encode_batch(texts)
    assert lengths.tolist() == [len(each) for each in expected]
    assert ids.tolist() == [number for each in expected for number in each.tolist()]


@pytest.mark.parametrize(("family", "model"), FAMILIES)
@settings(max_examples=60, deadline=None)
@given(st.lists(TEXT, max_size=6))
def test_any_text_gets_the_ids_of_the_library(family: str, model: str, texts: list[str]) -> None:
    same(trained(family, model), [text.encode(errors="replace").decode() for text in texts])


@pytest.mark.parametrize(("family", "model"), FAMILIES[:3])
def test_prose_and_a_memory_that_begins_anew(family: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_memo, "MOST_WORDS", 30)
    monkeypatch.setattr(word_memo, "_WORDS_PER_CALL", 50)
    for line in PROSE.split("\n"):
        same(trained(family, model), line.split(". "))


def test_the_library_encodes_a_word_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = train_tokenizer([PROSE], model="wordpiece", family="bert", vocab_size=330)
    same(tokenizer, ["one word and one more", "and more and more", "more, (one)"])
    texts = ["more, and (word)", "more"]
    expected = tokenizer.encode_batch(texts)

    def not_again(words: list[str]) -> list[list[int]]:
        assert not words
        return []

    monkeypatch.setattr(tokenizer.backend, "lists", not_again)
    monkeypatch.setattr(tokenizer.backend, "located", not_again)
    assert tokenizer.encode_flat(texts)[1].tolist() == np.concatenate(expected).tolist()


def content(family: str, model: str) -> dict:
    return json.loads(trained(family, model).engine.to_str())


def test_only_tokenizers_that_look_at_single_words_use_the_cache() -> None:
    for family, model in FAMILIES:
        assert has_independent_words(content(family, model)) is (model != "unigram"), family
    bert, roberta = content("bert", "wordpiece"), content("roberta", "bpe")
    replaces = {"type": "Replace", "pattern": {"String": "a b"}, "content": "c"}
    added = {"id": 9, "content": "x  y", "special": False, "lstrip": True, "rstrip": False, "normalized": True}
    assert not has_independent_words(bert | {"normalizer": replaces})
    assert not has_independent_words(bert | {"normalizer": {"type": "Sequence", "normalizers": [replaces]}})
    assert not has_independent_words(bert | {"pre_tokenizer": {"type": "Metaspace"}})
    assert not has_independent_words(bert | {"added_tokens": [added]})
    assert not has_independent_words(roberta | {"model": roberta["model"] | {"dropout": 0.1}})
    assert not has_independent_words(roberta | {"pre_tokenizer": roberta["pre_tokenizer"] | {"use_regex": False}})


def test_byte_tokens_without_a_space_before_the_first_word() -> None:
    """GPT-2's own files have `add_prefix_space` off: the first word of a text has other tokens than after a space."""
    roberta = content("roberta", "bpe")
    bare = HuggingFaceBackend(
        json.dumps(roberta | {"pre_tokenizer": roberta["pre_tokenizer"] | {"add_prefix_space": False}})
    )
    texts = ["the the word", "word", "the word the", " the"]
    lengths, ids = bare.encode_flat(texts)
    assert ids.tolist() == np.concatenate(bare.encode(texts)).tolist()
    assert lengths.tolist() == list(map(len, bare.encode(texts)))
    assert bare.encode(["word"])[0].tolist() != bare.encode([" word"])[0].tolist()
