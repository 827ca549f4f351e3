"""Matches between old and new tokens, across WordPiece, byte-level BPE and sentencepiece."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.data.tokenizer_training import train_tokenizer
from bertjax.data.vocab_transfer import match_tokens

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXT = "the cat sat, then the cats played again and again near the theatre. a player plays (badly) in the playing field"


def wordpiece(folder: Path, name: str, tokens: list[str], lowercase: bool = True) -> Tokenizer:
    path = folder / f"{name}.txt"
    path.write_text("".join(f"{token}\n" for token in [*BERT, *tokens]), encoding="utf-8")
    return load_tokenizer(path, lowercase=lowercase)


@functools.cache
def trained(model: str, family: str) -> Tokenizer:
    sizes = {"wordpiece": 90, "bpe": 300, "unigram": 60}
    return train_tokenizer([TEXT] * 4, model=model, family=family, vocab_size=sizes[model], lowercase=True)


def named(old: Tokenizer, new: Tokenizer, token: str) -> list[str]:
    return [old.tokens[index] for index in match_tokens(old, new).parts[new.tokens.index(token)]]


def test_another_vocabulary_of_the_same_kind(tmp_path: Path) -> None:
    letters = [*"abcdefi", *(f"##{letter}" for letter in "abcdefi"), ",", "é"]
    old = wordpiece(tmp_path, "old", [*letters, "cab", "##ab"])
    new = wordpiece(tmp_path, "new", ["cab", "##ab", "cabba", "##abba", "Cab", "##e", ",", "xyz", "dé", "##f,e"], False)
    result = match_tokens(old, new)
    tokens = [[old.tokens[index] for index in parts] for parts in result.parts]
    assert tokens[: len(BERT)] == [[token] for token in BERT]
    assert tokens[len(BERT) :] == [
        ["cab"],
        ["##ab"],
        ["cab", "##b", "##a"],  # as the old tokenizer splits the word
        ["##ab", "##b", "##a"],  # and the same inside a word
        ["cab"],  # the old vocabulary has no capitals
        ["##e"],
        [","],
        [],  # a word with unknown letters is unknown
        ["d", "##e"],  # accents are stripped, as the old tokenizer does
        ["##f", ",", "e"],  # a mark ends the word
    ]
    assert (result.matched, result.composed, result.fresh) == (9, 5, 1)


def test_equal_tokens_match_themselves(tmp_path: Path) -> None:
    old = wordpiece(tmp_path, "same", ["a", "b"])
    assert match_tokens(old, old).parts == [[index] for index in range(7)]


def test_the_beginning_of_a_word_is_recognized_in_every_spelling() -> None:
    words, byte_pairs, unigram = trained("wordpiece", "bert"), trained("bpe", "roberta"), trained("unigram", "albert")
    for old, opened, inside in ((words, "the", "##s"), (byte_pairs, "Ġthe", "s"), (unigram, "▁the", "s")):
        for new, theirs, within in ((words, "the", "##s"), (byte_pairs, "Ġthe", "s"), (unigram, "▁the", "s")):
            assert named(old, new, theirs) == [opened] and named(old, new, within) == [inside]


def test_special_tokens_are_matched_by_their_role() -> None:
    bert, roberta = trained("wordpiece", "bert"), trained("bpe", "roberta")
    for new, old, pairs in (
        (roberta, bert, {"<s>": "[CLS]", "</s>": "[SEP]", "<pad>": "[PAD]", "<unk>": "[UNK]", "<mask>": "[MASK]"}),
        (bert, roberta, {"[CLS]": "<s>", "[SEP]": "</s>", "[PAD]": "<pad>", "[UNK]": "<unk>", "[MASK]": "<mask>"}),
        (trained("unigram", "xlnet"), bert, {"<cls>": "[CLS]", "<s>": "[CLS]", "</s>": "[SEP]"}),
        (bert, trained("bpe", "gpt2"), {"[CLS]": "<|endoftext|>", "[PAD]": "<|endoftext|>"}),
    ):
        assert {token: named(old, new, token) for token in pairs} == {new: [old] for new, old in pairs.items()}
    assert named(bert, trained("unigram", "xlnet"), "<eod>") == []  # no token there has its part
    assert named(trained("bpe", "gpt2"), bert, "[MASK]") == []


def test_marks_are_words_of_their_own_only_in_wordpiece() -> None:
    words, byte_pairs = trained("wordpiece", "bert"), trained("bpe", "roberta")
    assert "Ġ(" in byte_pairs.tokens and "(" in byte_pairs.tokens
    assert named(byte_pairs, words, "(") == ["("]  # which mostly follows another character directly
    assert named(words, byte_pairs, "(") == ["("] and named(words, byte_pairs, "Ġ(") == ["("]


def test_bytes_that_are_no_text_match_only_bytes() -> None:
    byte_pairs = trained("bpe", "roberta")
    assert named(trained("bpe", "modernbert"), byte_pairs, "Ã") == ["Ã"]
    assert named(trained("wordpiece", "bert"), byte_pairs, "Ã") == []
    accents = train_tokenizer(["é è ê ë ú ó í á à ù"] * 9, model="bpe", family="roberta", vocab_size=270)
    assert "ĠÃ" in accents.tokens and named(byte_pairs, accents, "ĠÃ") == ["Ġ", "Ã"]  # half a letter after a space


def test_a_blank_alone_says_nothing_of_a_word() -> None:
    unigram, words = trained("unigram", "albert"), trained("wordpiece", "bert")
    assert "▁" in unigram.tokens and ">" not in "".join(unigram.tokens[5:])
    assert unigram.tokens[match_tokens(unigram, words).parts[words.tokens.index("cat")][0]].startswith("▁")
    new = train_tokenizer(["> > > a b c d e f"] * 9, model="wordpiece", family="bert", vocab_size=30)
    assert named(unigram, new, ">") == []


@pytest.mark.parametrize(
    "old", [("wordpiece", "bert"), ("bpe", "roberta"), ("bpe", "modernbert"), ("unigram", "albert")], ids=str
)
@pytest.mark.parametrize("new", [("wordpiece", "electra"), ("bpe", "deberta"), ("unigram", "deberta-v2")], ids=str)
def test_parts_spell_the_token(old: tuple[str, str], new: tuple[str, str]) -> None:
    """The parts of a composed token write the text of the token."""
    before, after = trained(*old), trained(*new)
    result = match_tokens(before, after)
    assert result.matched + result.composed + result.fresh == after.size and result.matched > 20
    for token, parts in zip(after.tokens, result.parts, strict=True):
        if len(parts) > 1 and token.isascii():
            written = "".join(before.tokens[part].removeprefix("##").strip("Ġ▁") for part in parts)
            assert written == token.removeprefix("##").strip("Ġ▁"), token
