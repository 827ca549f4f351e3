"""Sentencepiece models with random options, as ours: read alike by the corpus, the probes and `transformers`."""

from __future__ import annotations

import functools
import io
import random
import unicodedata
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import sentencepiece

from bertjax.data.builtin import clean_paragraphs
from bertjax.data.sentencepiece_model import is_ambiguous
from bertjax.data.special_tokens import FAMILIES
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_backends import SentencePieceBackend
from bertjax.data.tokenizer_io import load_tokenizer, save_huggingface_tokenizer, save_tokenizer

CHINESE = ["我们今天去北京大学学习。", "北京大学的学生今天学习中文。", "今天的天气很好，我们去学习中文！"]  # noqa: RUF001
ODD = [
    *("", "  ", " a", "a ", "  lead and  trail  ", "tab\there", "a\u200bb", "\u3000wide", "line\nbreak", "\r\nx\r\ny"),
    *(
        "unknown 🙂 signs Ж and ЖЖ Ж",
        "-----=====",
        "ooooo aaaa *********",
        "THE Class ①②",
        "™️ ok",
        "a\u0308\u0323 e\u0301",
    ),
    *(
        "if (a): # b",
        "<0x41> x",
        "a [MASK] b[SEP]</s>",
        "▁▁ ▁a",
        "x" * 300,
        unicodedata.normalize("NFD", "한국어 café"),
    ),
]
ALBERT = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}


@functools.cache
def lines() -> tuple[str, ...]:
    text = [line for name in sorted(topics)[:12] for line in clean_paragraphs(topics[name])]
    return (*text, *CHINESE * 5, *("  " + line.replace(" ", "  ", 3) for line in text[:50]))


def write_model(path: Path, **options: Any) -> Path:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()),
        model_writer=written,
        **{"vocab_size": 400, "hard_vocab_limit": False, "minloglevel": 9, **ALBERT, **options},
    )
    path.write_bytes(written.getvalue())
    return path


def random_options(rng: random.Random) -> dict[str, Any]:
    return {
        "model_type": rng.choice(["unigram", "bpe", "bpe", "char"]),
        "vocab_size": rng.choice([400, 700]),
        "character_coverage": rng.choice([0.98, 0.9995, 1.0]),
        "normalization_rule_name": rng.choice(["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"]),
        "user_defined_symbols": rng.choice([[], [], [".", "("], ["<sym>", "."], ["▁▁", "<SYM>"]]),
        **{name: rng.random() < 0.5 for name in ("byte_fallback", "add_dummy_prefix", "remove_extra_whitespaces")},
        **{name: rng.random() < 0.7 for name in ("split_by_whitespace", "split_by_unicode_script", "split_by_number")},
        **{name: rng.random() < 0.3 for name in ("split_digits", "allow_whitespace_only_pieces")},
    }


def read_model(path: Path, lowercase: bool) -> Tokenizer:
    model = path.read_bytes()
    folds_itself = sentencepiece.SentencePieceProcessor(model_proto=model).normalize("A").endswith("a")
    backend = SentencePieceBackend(model, FAMILIES["albert"], fold=lowercase and not folds_itself)
    return Tokenizer(backend, "albert", lowercase)


def compare_everywhere(tokenizer: Tokenizer, model: Path, folder: Path) -> None:
    """Compares sentencepiece, the corpus, the tokenizer of probes, and `transformers` with the exported folder."""
    from transformers import PreTrainedTokenizerFast

    texts = [*lines()[:100], *CHINESE, *ODD]
    corpus = [ids.tolist() for ids in tokenizer.encode_batch(texts)]
    save_huggingface_tokenizer(tokenizer, folder / "out", 64)
    save_tokenizer(tokenizer, folder / "saved")
    exported, reloaded = PreTrainedTokenizerFast.from_pretrained(folder / "out"), load_tokenizer(folder / "saved")
    again = load_tokenizer(folder / "out")
    source = sentencepiece.SentencePieceProcessor(model_file=str(model))
    special = [tokenizer.tokens[index] for index in tokenizer.special_ids]
    for text, ids, stored, read in zip(
        texts, corpus, reloaded.encode_batch(texts), again.encode_batch(texts), strict=True
    ):
        assert stored.tolist() == read.tolist() == ids, text
        if any(token in text for token in special):  # in raw text, special tokens are text
            assert not set(ids) & (set(tokenizer.special_ids) - {tokenizer.unk_id}), text
            continue
        assert exported(text, add_special_tokens=False)["input_ids"] == ids, text
        assert tokenizer.engine.encode(text, add_special_tokens=False).ids == ids, text
        if not tokenizer.lowercase and not is_ambiguous(text):
            assert source.encode(text) == ids, text
    plain = [index for index in tokenizer.encode_with_specials("the [MASK] is made") if index > 4]
    assert plain == tokenizer.encode_batch(["the is made"])[0].tolist()  # the space before it belongs to the mask


def check_options(seed: int, folder: Path) -> bool:
    rng = random.Random(seed)
    options, lowercase = random_options(rng), rng.random() < 0.3
    try:
        model = write_model(folder / "spiece.model", **options)
    except RuntimeError:  # sentencepiece refuses the options itself
        return False
    tokenizer = read_model(model, lowercase)
    if tokenizer.backend.find_mismatch() is not None:  # words that would do this are not added to a vocabulary
        assert {"▁▁", "<SYM>", "<sym>"} & set(options["user_defined_symbols"]), options
        return False
    compare_everywhere(tokenizer, model, folder)
    return True


@pytest.mark.long
def test_random_options(tmp_path: Path) -> None:
    assert sum(check_options(seed, tmp_path) for seed in range(16)) > 6


@pytest.mark.weekly
def test_more_random_options(tmp_path: Path) -> None:
    assert sum(check_options(seed, tmp_path) for seed in range(100, 250)) > 75


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "bpe"},
        {"model_type": "bpe", "byte_fallback": True, "remove_extra_whitespaces": False},
        {"model_type": "char"},
        {"byte_fallback": True, "character_coverage": 0.98},
        {"add_dummy_prefix": False},
        {"split_by_whitespace": False},
        {"user_defined_symbols": [".", "(", ")", "£", "<eop>"]},
    ],
    ids=lambda options: " ".join(f"{name}={value}" for name, value in options.items())[:40],
)
def test_kinds_that_are_translated(tmp_path: Path, options: dict[str, Any]) -> None:
    model = write_model(tmp_path / "spiece.model", **options)
    compare_everywhere(read_model(model, lowercase=False), model, tmp_path)
