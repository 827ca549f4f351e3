"""Windows of texts and pairs equal those of transformers' tokenizer of the family."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokens_lab import ALL_FAMILIES, sentences, theirs, trained

from bertjax.config.model import EncoderConfig
from bertjax.config.task import TaskConfig
from bertjax.data.special_tokens import FAMILIES
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer, save_huggingface_tokenizer
from bertjax.errors import UserError
from bertjax.inference.text_batches import TextEncoder
from bertjax.tasks.features import Features, text_data, truncated_lengths
from bertjax.tasks.readers.examples import TextExamples
from bertjax.tasks.templates import find_template

FIRST, SECOND = sentences(60, seed=1), sentences(60, seed=2)


def examples(texts: list[str], pairs: list[str] | None = None, labels: list[str] | None = None) -> TextExamples:
    locations = [f"file:{number + 1}" for number in range(len(texts))]
    return TextExamples(texts, pairs, labels, None, list(map(str, range(len(texts)))), locations)


def config(**values: object) -> TaskConfig:
    return TaskConfig(**{"kind": "classification", "train": ("tsv:a",)} | values)  # type: ignore[arg-type]


def windows(features: Features, values: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(values, features.offsets[1:-1])]


def test_the_last_token_that_is_no_padding_sums_up_a_text_of_a_decoder() -> None:
    """As in the classes of transformers, whatever the tokenizer puts around a text; of encoders it is [CLS]."""
    tokenizer = trained("bert")

    def summaries(**values: Any) -> list[int]:
        fitted = tokenizer.fitted(EncoderConfig(vocab_size=320, **values))
        features = text_data(config(), examples(FIRST[:5]), fitted, ("a", "b")).features
        return (features.summary_position - np.diff(features.offsets)).tolist()

    decoder = {"causal": True, "pooling": "last", "classifier_dense": "none"}
    assert summaries(**decoder, pad_token_id=tokenizer.pad_id) == [-1] * 5
    assert summaries(**decoder, pad_token_id=tokenizer.sep_id) == [-2] * 5
    lengths = [len(tokenizer.encode_with_specials(text)) for text in FIRST[:5]]
    assert summaries(pad_token_id=tokenizer.sep_id) == [-length for length in lengths]
    assert summaries(pooling="last") == [-length for length in lengths]  # only a decoder's summary is elsewhere


@pytest.mark.parametrize(
    ("family", "sizes", "types"),
    [
        ("bert", {"type_vocab_size": 1}, (0, 0)),  # RoBERTa with a tokenizer of BERT
        ("bert", {"type_vocab_size": 2}, (0, 1)),
        ("xlnet", {"type_vocab_size": 2}, (0, 0)),  # whose <cls> is of a third type
        ("xlnet", {"type_vocab_size": 0, "attention_position": "relative", "relative_segments": True}, (0, 1)),
    ],
)
def test_types_that_the_model_has(family: str, sizes: dict[str, Any], types: tuple[int, int], tmp_path: Path) -> None:
    """The tokenizer of an export gives the model no type that its table lacks: torch would fail."""
    position = {"position_embedding": "none", "attention_bias": "none"} if family == "xlnet" else {}
    tokenizer = trained(family).fitted(EncoderConfig(vocab_size=320, **position, **sizes))
    assert tokenizer.digest == trained(family).digest
    template = find_template(tokenizer, is_pair=True)
    assert template.types == types
    assert any(kind for gap in template.gaps for _, kind in gap) == any(types)
    files = tokenizer.huggingface_files(64)
    assert ("token_type_ids" in json.loads(files["tokenizer_config.json"])["model_input_names"]) == any(types)


@pytest.mark.parametrize("family", ALL_FAMILIES)
@pytest.mark.parametrize("cut", ["longest_first", "only_first", "only_second", "single"])
def test_as_transformers(family: str, cut: str) -> None:
    first, second = FIRST, SECOND
    max_len = 24
    if cut.startswith("only"):  # the other text must leave at least one token
        first, second = FIRST, [text[:4] for text in SECOND]
        first, second = (first, second) if cut == "only_first" else (second, first)
    if family == "gpt2":  # which has no token for an empty text
        first = [text or "cat" for text in first]
    pairs = None if cut == "single" else second
    rule = "longest_first" if cut == "single" else cut
    result = text_data(
        config(max_length=max_len, truncation=rule, pair_column=pairs and "b"),
        examples(first, pairs),
        trained(family),
        (),
    )
    expected = theirs(family)(first, pairs, truncation=rule, max_length=max_len)
    features = result.features
    assert windows(features, features.tokens) == expected["input_ids"]
    if FAMILIES[family].token_types:
        assert windows(features, features.token_types) == expected["token_type_ids"]
    else:
        assert not features.token_types.any()
    whole = theirs(family)(first, pairs)["input_ids"]
    num_truncated = sum(len(ids) > max_len for ids in whole)
    assert 0 < num_truncated < 60
    assert (
        result.notes[-1].startswith(f"{num_truncated} of 60 examples (")
        and f"task.truncation={rule}" in result.notes[-1]
    )
    summary_position = features.tokens[features.offsets[:-1] + features.summary_position]
    if family == "gpt2":
        assert (features.summary_position == np.maximum(features.lengths - 1, 0)).all()
    else:
        assert (summary_position == trained(family).cls_id).all()
        assert (features.summary_position == (features.lengths - 1 if family == "xlnet" else 0)).all()
    assert features.tokens.dtype == features.summary_position.dtype == features.example.dtype == np.int32
    assert features.token_types.dtype == np.int8 and features.offsets.dtype == np.int64


def test_the_other_side_is_truncated() -> None:
    usual = trained("bert")
    spec = dataclasses.replace(usual.spec, truncation_side="left")
    tokenizer, expected = Tokenizer(usual.backend, "bert", True, spec), theirs("bert", truncation_side="left")
    texts, pairs = sentences(20, seed=3), sentences(20, seed=4)
    for config_, ours, other in (
        (config(max_length=12), examples(texts), ()),
        (config(max_length=12, pair_column="b"), examples(texts, pairs), (pairs,)),
    ):
        features = text_data(config_, ours, tokenizer, ()).features
        ids = expected(texts, *other, truncation=True, max_length=12)["input_ids"]
        assert windows(features, features.tokens) == ids
        assert ids != theirs("bert")(texts, *other, truncation=True, max_length=12)["input_ids"]
    encoded = TextEncoder(tokenizer, 12)(texts)
    cut = expected(texts, truncation=True, max_length=12)["input_ids"]
    assert [each.tolist() for each in np.split(encoded.ids, encoded.offsets[1:-1])] == cut


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "xlnet"])
def test_special_tokens_in_a_text(family: str) -> None:
    tokenizer = trained(family)
    text = f"The cat {tokenizer.tokens[tokenizer.sep_id]} sat{tokenizer.tokens[tokenizer.mask_id]}"
    result = text_data(config(), examples([text]), tokenizer, ())
    assert result.features.tokens.tolist() == theirs(family)(text)["input_ids"]


@pytest.mark.parametrize("family", ["bert", "roberta", "xlnet"])
def test_a_file_without_a_layout_gets_the_familys(tmp_path: Path, family: str) -> None:
    from tokenizers import Tokenizer

    save_huggingface_tokenizer(trained(family), tmp_path, 64)
    bare = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    bare.post_processor = None  # type: ignore[assignment]
    bare.save(str(tmp_path / "bare.json"))
    tokenizer = load_tokenizer(tmp_path / "bare.json", family=family)
    for is_pair in (False, True):
        assert find_template(tokenizer, is_pair) == find_template(trained(family), is_pair)


def test_cut_lengths_of_every_pair() -> None:
    """Token by token, as in BERT's loop: the longer text loses its last token, the second text if both are equal."""
    capacity = 7
    both = np.stack(np.meshgrid(np.arange(12), np.arange(12)), -1).reshape(-1, 2)
    first, second = truncated_lengths([both[:, 0], both[:, 1]], capacity, "longest_first")
    for (a, b), new in zip(both.tolist(), zip(first.tolist(), second.tolist(), strict=True), strict=True):
        assert sum(new) == min(a + b, capacity)
        assert new[0] <= a and new[1] <= b
        if a + b > capacity:
            assert new == (
                (a, capacity - a) if a <= capacity // 2 else (capacity - b, b) if b <= capacity // 2 else new
            )
            if min(a, b) > capacity // 2:
                assert new == ((3, 4) if a <= b else (4, 3))


def test_a_pair_that_cannot_be_cut() -> None:
    for cut, pair in (
        ("only_first", (FIRST[:1], ["The cat sat " * 5])),
        ("only_second", (["The cat sat " * 5], ["a"])),
        ("only_first", (["a"], [". . . . ."])),  # five tokens for a capacity of five
    ):
        with pytest.raises(
            UserError, match=rf"file:1: task.truncation={cut} cannot make this pair fit task.max_length=8"
        ):
            text_data(config(max_length=8, truncation=cut, pair_column="b"), examples(*pair), trained("bert"), ())


def test_a_window_without_a_token() -> None:
    with pytest.raises(UserError, match=r"file:2: the text has no token for this tokenizer"):
        text_data(config(), examples(["cat", ""]), trained("gpt2"), ())
    assert text_data(config(), examples(["cat", ""]), trained("bert"), ()).features.lengths[1] == 2


def test_labels_and_swapped_pairs() -> None:
    some = examples(["The cat", "sat on"], ["a mat", "the fence"], ["no", "yes"])
    task = config(pair_column="b", swap_pairs=True, max_length=16)
    once = text_data(task, some, trained("bert"), ("no", "yes")).features
    assert once.labels["class_labels"].tolist() == [0, 1] and once.labels["class_labels"].dtype == np.int32
    twice = text_data(task, some, trained("bert"), ("no", "yes"), training=True).features
    assert twice.labels["class_labels"].tolist() == [0, 1, 0, 1] and twice.example.tolist() == [0, 1, 0, 1]
    expected = theirs("bert")([*some.texts, "a mat", "the fence"], ["a mat", "the fence", *some.texts])
    assert windows(twice, twice.tokens) == expected["input_ids"]
    assert windows(twice, twice.token_types) == expected["token_type_ids"]
    with pytest.raises(UserError, match=r"file:2: unknown label 'yes'"):
        text_data(task, some, trained("bert"), ("no", "maybe"))
