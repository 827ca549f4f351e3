"""Words added to a vocabulary of every kind: single tokens here and in `transformers`, all other ids unchanged."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from test_tokenizer import CHINESE, corpus, trained

from bertjax.data.changed_vocabulary import add_words, read_words, split_words
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer, save_tokenizer
from bertjax.data.vocab_transfer import Spelling, match_tokens
from bertjax.errors import UserError

SCRIPT = Path(__file__).parents[2] / "scripts" / "tokenizer_table.py"
WORDS = ["hypertension", "hypertensive", "tachycardia", "class"]
KINDS = [
    *(("bert", "wordpiece"), ("roberta", "bpe"), ("albert", "unigram"), ("deberta-v2", "unigram")),
    *(("xlm-roberta", "sentencepiece_bpe"), ("bert", "wordlevel"), ("Llama 2", "json"), ("Llama 3", "json")),
    *(("Qwen 2", "json"), ("GPT-NeoX", "json"), ("XLM-R", "json")),
]


def build(family: str, model: str, folder: Path) -> Tokenizer:
    if model != "json":
        return trained(family, model)
    sources = runpy.run_path(str(SCRIPT))["SOURCES"]
    sources[family].write([line for text in corpus() for line in text.split("\n")], folder, 800)
    return load_tokenizer(folder).complete(("pad", "cls", "sep", "mask"))


@pytest.mark.parametrize(("family", "model"), KINDS)
def test_added_words_are_single_tokens(family: str, model: str, tmp_path: Path) -> None:
    tokenizer = build(family, model, tmp_path)
    result = add_words(tokenizer, WORDS)
    larger = result.tokenizer
    assert set(result.added) | set(result.known) == set(WORDS) and set(WORDS[:3]) <= set(result.added)
    assert larger.tokens[: tokenizer.size] == tokenizer.tokens and larger.size == tokenizer.size + result.tokens
    assert larger.special_ids == tokenizer.special_ids and larger.spec == tokenizer.spec
    blank = Spelling(tokenizer).blank
    sizes = [len(ids) for ids in larger.encode_batch([f"{blank}{word}" for word in WORDS])]
    assert sizes == [1] * len(WORDS)
    sentence = larger.encode_batch(["a hypertension is tachycardia and hypertensive"])[0]
    assert sum(index >= tokenizer.size for index in sentence) == 3
    texts = [*corpus(), *CHINESE, "unknown 🙂 signs"]
    if tokenizer.kind != "bpe":  # its intermediate tokens, such as "hy", also join in other words
        others = [text for text in texts if not any(word in text for word in result.added)]
        assert len(others) > 9
        for before, after in zip(tokenizer.encode_batch(others), larger.encode_batch(others), strict=True):
            assert before.tolist() == after.tolist()
    parts = match_tokens(tokenizer, larger).parts
    assert parts[: tokenizer.size] == [[index] for index in range(tokenizer.size)]
    for word, index in zip(WORDS, larger.encode_batch([f"{blank}{word}" for word in WORDS]), strict=True):
        split = tokenizer.encode_batch([f"{blank}{word}"])[0].tolist()
        assert parts[index[0]] == [each for each in split if each != tokenizer.unk_id] or word in result.known
    marked = [*texts, *(f"the {word} is" for word in WORDS)]
    assert runpy.run_path(str(SCRIPT))["compare_export"](larger, marked) == len(marked)
    save_tokenizer(larger, tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").digest == larger.digest


def test_lists_of_words(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\ufeffnovel\n\n  novel \nother\n", encoding="utf-8")
    assert read_words(path) == ["novel", "other"]
    for content, message in (("a\nb c\n", r"words\.txt:2: 'b c' is several words"), ("\n \n", "holds no word")):
        path.write_text(content)
        with pytest.raises(UserError, match=message):
            read_words(path)
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match="invalid UTF-8 at byte 0"):
        read_words(path)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_words(tmp_path / "none")


def test_words_that_cannot_be_tokens() -> None:
    bert, llama = trained("bert", "wordpiece"), trained("xlm-roberta", "sentencepiece_bpe")
    with pytest.raises(UserError, match="'covid-19', \"don't\": the rules of this tokenizer split them"):
        add_words(bert, ["covid-19", "novelty", "don't"])
    with pytest.raises(UserError, match="'ab', 'cd', 'ef', 'gh', 'ij' and 1 more: the rules"):
        add_words(trained("roberta", "char"), ["ab", "cd", "ef", "gh", "ij", "kl"])
    with pytest.raises(UserError, match="all 2 words are single tokens of this tokenizer already"):
        add_words(bert, ["the", "THE"])
    with pytest.raises(UserError, match="'Ж🙂' have characters that this vocabulary lacks"):
        add_words(llama, ["Ж🙂"])
    with pytest.raises(UserError, match="would not become one token"):
        add_words(bert, ["x" * 101])
    result = add_words(bert, ["Novelty", "novelty", "the"])
    assert (result.added, result.known, result.tokens) == (["Novelty"], ["the"], 1)


def test_frequent_words_that_are_split_are_candidates() -> None:
    text = ["The novelty, the THE the of", "a Novelty 2024 covid_x zebra's Novelty"]
    bert = trained("bert", "wordpiece")
    result = split_words(text, bert, 9)
    assert result[0] == "novelty" and {"the", "2024"}.isdisjoint(result) and split_words(text, bert, 1) == ["novelty"]
    assert set(add_words(bert, result).added) == set(result)


def test_candidates_keep_their_vowel_signs() -> None:
    words = split_words(["हिंदी भाषा हिंदी e\u0301te\u0301"], trained("roberta", "bpe"), 9)
    assert words == ["हिंदी", "भाषा", "été"]
