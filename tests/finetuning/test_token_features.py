"""Words become tokens as in transformers with `is_split_into_words`; labels are on the first token of each word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokens_lab import ALL_FAMILIES, WORDS, theirs, trained

from bertjax.config.task import TaskConfig
from bertjax.errors import UserError
from bertjax.finetuning.readers.examples import WordExamples
from bertjax.finetuning.token_features import TokenData, encode_words, token_data

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


def test_a_space_goes_before_words_of_byte_level_tokens() -> None:
    """RoBERTa's released files add no space, so that words without one would be continuations of others."""
    from tokenizers import pre_tokenizers

    from bertjax.data.tokenizer import Tokenizer

    class Bare:
        engine = trained("roberta").engine.__class__.from_str(trained("roberta").engine.to_str())

    Bare.engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = ["The", "cat", "sat"]
    ours: Any = Bare
    assert isinstance(trained("roberta"), Tokenizer)
    assert encode_words(ours, words)[1].tolist() == encode_words(trained("roberta"), words)[1].tolist()


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
