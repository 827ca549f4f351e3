"""Shared by the tests of preparation: a text, a real tokenizer that is cheap to train, and the call."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.config.data import FilterConfig
from bertjax.data.prepare import CorpusRecipe, PreparedCorpus, prepare_corpus
from bertjax.data.sentence_splitter import split_sentences
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_training import train_tokenizer

WORDS = [
    "cat",
    "dog",
    "bird",
    "river",
    "teacher",
    "garden",
    "sees",
    "likes",
    "finds",
    "opens",
    "the",
    "a",
    "red",
    "old",
]


def documents(count: int, seed: int = 0) -> list[str]:
    """Returns documents of a few lines, a pure function of the seed."""
    rng = np.random.default_rng(seed)
    lines = [" ".join(rng.choice(WORDS, 8)).capitalize() + "." for _ in range(400)]
    return [
        f"Document {number}.\n" + "\n".join(lines[index] for index in rng.integers(0, 400, rng.integers(1, 9)))
        for number in range(count)
    ]


@functools.cache
def tokenizer() -> Tokenizer:
    return train_tokenizer(documents(50), model="wordpiece", family="bert", vocab_size=120)


def prepare(
    cache_dir: Path, texts: Iterable[str], filters: FilterConfig | None = None, **changes: Any
) -> PreparedCorpus:
    options: dict[str, Any] = {
        "source_name": "toys",
        "source_digest": "toys v1",
        "tokenizer": tokenizer(),
        "split_sentences": split_sentences,
        "recipe": CorpusRecipe(0.1, filters or FilterConfig()),
        "cache_dir": cache_dir,
    }
    return prepare_corpus(texts, **(options | changes))


def digest(folder: Path) -> str:
    """Returns the digest of the names and bytes of all files of a folder."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(f"{path.relative_to(folder)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
