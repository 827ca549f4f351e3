"""Words become tokens as in transformers with `is_split_into_words`; labels are on the first token of each word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokens_lab import ALL_FAMILIES, WORDS, theirs, trained

from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_backends import HuggingFaceBackend
from bertjax.data.tokenizer_io import load_tokenizer, save_huggingface_tokenizer
from bertjax.errors import UserError
from bertjax.tasks.readers.examples import WordExamples
from bertjax.tasks.token_features import TokenData, encode_words, token_data, tokenizer_of_words

LABELS = ("B-X", "I-X", "O")
SENTENCES = [
    list(part) for part in np.split(np.random.default_rng(0).choice([*WORDS, "naïve", "北京"], 200), range(7, 200, 9))
]
LONG = [["unbelievably"] * 40, ["cat"], ["seventeen", "\u200b", "dogs"]]


def data(family: str, sentences: list[list[str]], tags: list[list[str]] | None = None, max_len: int = 32) -> TokenData:
    locations = [f"file:{number + 1}" for number in range(len(sentences))]
    ids = list(map(str, range(len(sentences))))
    config = TaskConfig("tokens", ("conll:a",), max_length=max_len)
    return token_data(config, WordExamples(sentences, tags, ids, locations), trained(family), LABELS)


def tags_of(sentences: list[list[str]]) -> list[list[str]]:
    rng = np.random.default_rng(1)
    return [[str(rng.choice(LABELS)) for _ in sentence] for sentence in sentences]


def aligned(words: list[int | None], tags: list[str]) -> list[int]:
    """Returns the labels of the tokens, by the words that transformers assigns them to."""
    return [
        LABELS.index(tags[word]) if word is not None and word not in words[:index] else -1
        for index, word in enumerate(words)
    ]


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_as_transformers(family: str) -> None:
    sentences = SENTENCES + LONG
    tags = tags_of(sentences)
    result = data(family, sentences, tags)
    features = result.features
    byte_level = family in ("roberta", "gpt2", "deberta", "modernbert")
    tokenizer = theirs(family, add_prefix_space=True) if byte_level else theirs(family)
    for index, sentence in enumerate(sentences):
        expected = tokenizer(sentence, is_split_into_words=True, truncation=True, max_length=32)
        here = slice(features.offsets[index], features.offsets[index + 1])
        assert features.tokens[here].tolist() == expected["input_ids"]
        assert features.labels["token_labels"][here].tolist() == aligned(expected.word_ids(), tags[index])


@pytest.mark.parametrize("family", ["roberta", "deberta-v3", "xlnet"])
def test_words_look_as_they_do_in_a_text(family: str) -> None:
    lengths, ids = encode_words(trained(family), ["The", "cat", "sat"])
    assert ids.tolist() == theirs(family)(" The cat sat", add_special_tokens=False)["input_ids"]
    assert lengths.sum() == len(ids)


_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"
_SPLIT = {"type": "Split", "pattern": {"Regex": _GPT2_WORDS}, "behavior": "Isolated", "invert": False}
_BARE = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    "splitter",
    [_BARE, {"type": "Sequence", "pretokenizers": [_SPLIT, _BARE | {"use_regex": False}]}],
    ids=["RoBERTa", "Qwen"],
)
def test_an_export_reads_the_first_word_as_training_did(splitter: dict[str, Any], tmp_path: Path) -> None:
    """Published byte-level tokenizers put no blank before a text: its first word would continue another one."""
    from transformers import AutoTokenizer

    content = json.loads(trained("roberta").engine.to_str())
    content["pre_tokenizer"] = splitter
    content["post_processor"] = {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False}
    content["post_processor"] |= {"sep": ["</s>", 2], "cls": ["<s>", 0]}
    bare = Tokenizer(HuggingFaceBackend(json.dumps(content)), "roberta", False)
    words = ["unbelievably", "cat", "isn't", "sat"]
    lengths, ids = encode_words(bare, words)
    assert ids.tolist() == encode_words(trained("roberta"), words)[1].tolist()
    save_huggingface_tokenizer(tokenizer_of_words(bare), tmp_path, max_length=64)
    exported = AutoTokenizer.from_pretrained(tmp_path)
    assert exported(words, is_split_into_words=True, add_special_tokens=False)["input_ids"] == ids.tolist()
    text = exported(" ".join(words), add_special_tokens=False, return_offsets_mapping=True)
    assert text["input_ids"] == ids.tolist()
    starts = [text["offset_mapping"][token][0] for token in (lengths.cumsum() - lengths).tolist()]
    assert starts == [0, 13, 17, 23]
    assert tokenizer_of_words(load_tokenizer(tmp_path)).digest == load_tokenizer(tmp_path).digest


def test_predictions_come_back_as_words() -> None:
    tags = tags_of(SENTENCES)
    result = data("bert", SENTENCES, tags, max_len=128)
    labels = result.features.labels["token_labels"]
    assert result.predicted_tags(np.where(labels < 0, 0, labels)) == tags
    assert result.notes == ()
    assert [LABELS[i] for i in labels[result.first_token_of_word]] == [tag for sentence in tags for tag in sentence]


def test_words_that_are_not_seen() -> None:
    result = data("bert", LONG, tags_of(LONG), max_len=12)
    num_tokens = len(theirs("bert").tokenize("unbelievably"))
    num_read = -(-10 // num_tokens)
    predicted = result.predicted_tags(np.zeros(len(result.features.tokens), np.int32))
    assert predicted[0] == ["B-X"] * num_read + ["O"] * (40 - num_read)
    assert predicted[2] == ["B-X", "O", "B-X"]  # the tokenizer drops the second
    lost = 40 - num_read
    assert result.notes == (
        f"1 of 3 sentences (33.3%) are too long and were cut (task.max_length=12; {lost} words are not read)",
        "1 words have no tokens (the tokenizer drops their characters) and no prediction",
    )


def test_without_tags_and_with_strange_ones() -> None:
    assert data("bert", SENTENCES).features.labels == {}
    tags = tags_of(SENTENCES)
    tags[4][2] = "B-Y"
    with pytest.raises(UserError, match=r"file:5: unknown label 'B-Y'; known are B-X, I-X, O"):
        data("bert", SENTENCES, tags)
