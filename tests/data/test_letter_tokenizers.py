"""Vocabularies of letters and k-mers: ids of ESM, Nucleotide Transformer and DNABERT."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from bertjax.data.letter_tokenizers import fixed_words, longest_match
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer, save_huggingface_tokenizer, save_tokenizer
from bertjax.data.tokenizer_training import train_tokenizer
from bertjax.errors import UserError

transformers = pytest.importorskip("transformers")


def train(model: str, family: str, kmer: int = 6) -> Tokenizer:
    return train_tokenizer([], model=model, family=family, vocab_size=8, kmer=kmer)  # no text, and any size


def write_esm(folder: Path, tokens: list[str], **config: object) -> Path:
    """Writes the files of a published folder."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(tokens))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "EsmTokenizer", **config}))
    (folder / "config.json").write_text(json.dumps({"model_type": "esm"}))
    return folder


def texts(letters: str, count: int = 60) -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices(letters, k=50)) + draw.choice(["", "<mask>", " <cls>A", "é中"]) for _ in range(count)]


def test_ids_of_proteins_are_those_of_esm(tmp_path: Path) -> None:
    from transformers.models.esm.configuration_esm import get_default_vocab_list

    trained, published = train("protein", "esm"), write_esm(tmp_path / "esm", list(get_default_vocab_list()))
    assert trained.tokens == list(get_default_vocab_list())
    loaded, theirs = load_tokenizer(published), transformers.AutoTokenizer.from_pretrained(published)
    assert type(theirs).__name__ == "EsmTokenizer" and (loaded.family, loaded.spec) == ("esm", trained.spec)
    samples = texts("MKTLAVWXBZUOJx*-. <>")
    expected = theirs(samples)["input_ids"]
    for tokenizer in (trained, loaded):
        assert [tokenizer.encode_with_specials(text) for text in samples] == expected
    assert trained.engine.encode(*samples[:2]).ids == theirs(*samples[:2])["input_ids"]
    assert trained.encode_batch(["MK<mask>"])[0].tolist() == [20, 15, 3]  # raw text has no special token
    assert trained.starts_word().all()


def test_an_export_is_read_by_both_classes(tmp_path: Path) -> None:
    trained, samples = train("protein", "esm"), texts("MKTLAVJx*-. ")
    save_huggingface_tokenizer(trained, tmp_path / "export", 64)
    (tmp_path / "export" / "config.json").write_text(json.dumps({"model_type": "esm"}))
    expected = [trained.encode_with_specials(text) for text in samples]
    for auto in (transformers.AutoTokenizer, transformers.EsmTokenizer):
        assert auto.from_pretrained(tmp_path / "export")(samples)["input_ids"] == expected
    save_tokenizer(trained, tmp_path / "ours")
    for each in ("export", "ours"):
        again = load_tokenizer(tmp_path / each)
        assert (again.tokens, again.spec, again.digest) == (trained.tokens, trained.spec, trained.digest)


@pytest.mark.parametrize("has_end", [False, True])
def test_words_of_dna_are_those_of_esms_class(has_end: bool, tmp_path: Path) -> None:
    """Nucleotide Transformer's vocabulary of 6-mers, with and without an end token."""
    special = ["<unk>", "<pad>", "<mask>", "<cls>", *(["<eos>", "<bos>"] if has_end else [])]
    tokens = [*special, *fixed_words("dna", 6)]
    assert len(tokens) == (4107 if has_end else 4105)
    folder = write_esm(tmp_path / "nt", tokens, **({} if has_end else {"eos_token": None}))
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    samples = texts("ACGTACGTACGTN-x ")
    assert [ours.encode_with_specials(text) for text in samples] == theirs(samples)["input_ids"]
    assert ours.size == len(tokens) and ours.mask_id == 2


def test_words_that_overlap_are_those_of_dnabert() -> None:
    tokenizer = train("kmers", "bert", 3)
    assert tokenizer.tokens[5:10] == ["AAA", "AAT", "AAC", "AAG", "ATA"] and tokenizer.size == 5 + 4**3
    ids = tokenizer.encode_with_specials("ATC TCN GAA")
    assert [tokenizer.tokens[index] for index in ids] == ["[CLS]", "ATC", "[UNK]", "GAA", "[SEP]"]
    assert train("kmers", "bert").size == 4101


def test_dna_without_a_whole_word_has_letters() -> None:
    tokenizer = train("dna", "roberta", 3)
    words = [tokenizer.tokens[index] for index in tokenizer.encode_batch(["ATCGANTTNc"])[0]]
    assert words == ["ATC", "G", "A", "N", "T", "T", "N", "<unk>"]
    assert train("dna", "bert", 1).tokens[5:] == ["A", "T", "C", "G", "N"]


def test_the_longest_word_is_found() -> None:
    words = ["a", "ab", "abcd", "b", ".", "", "x-y", "x-"]
    pattern = re.compile(longest_match(words))
    assert pattern.findall("abcabcd.x-yx-x") == ["ab", "abcd", ".", "x-y", "x-"]
    assert len(longest_match(fixed_words("dna", 6))) < 80


def test_names_of_models() -> None:
    with pytest.raises(UserError, match="protein, dna, kmers"):
        train("letters", "esm")
