"""Text to ids and back, for every family: WordPiece and byte-level BPE (`tokenizers`), unigram (`sentencepiece`)."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.data.special_tokens import FAMILIES, ROLES, Family, family_of
from bertjax.data.tokenizer_backends import Backend
from bertjax.data.word_cache import Flat
from bertjax.errors import UserError, require_one_of
from bertjax.types import Vocabulary, padded_vocab_size

__all__ = ["FAMILIES", "Tokenizer", "load_tokenizer", "train_tokenizer"]

MODELS = ("wordpiece", "bpe", "unigram")


class Tokenizer:
    """A vocabulary with its rules. Special pieces never arise from raw text: `[MASK]` in a document is only text.

    kind: wordpiece, bpe or unigram · family: a key of `FAMILIES` · pieces: the piece of every id · size: their number ·
    pad_id, unk_id, cls_id, sep_id, mask_id: -1 where the family has none · special_ids: sorted · digest: SHA-256 (hex).
    """

    def __init__(self, backend: Backend, family: str, lowercase: bool) -> None:
        self._backend = backend
        self.family, self.lowercase = family, lowercase
        self.kind = backend.kind
        self.pieces: list[str] = backend.pieces
        self.size = len(self.pieces)
        ids = {piece: index for index, piece in enumerate(self.pieces)}
        if len(ids) != self.size:
            raise UserError(f"tokenizer: {self.size - len(ids)} pieces occur twice; every id needs a piece of its own")
        spec = family_of(family)
        absent = sorted({piece for piece in spec.roles.values() if piece not in ids})
        if absent:
            raise UserError(f"tokenizer: the family {family} needs the special pieces {', '.join(absent)}; add them")
        by_role = {role: ids[piece] for role, piece in spec.roles.items()}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (by_role.get(role, -1) for role in ROLES)
        self.special_ids = tuple(sorted({ids[piece] for piece in spec.special if piece in ids}))

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of every text, int32, without special pieces; on all cores, in order."""
        return self._backend.encode(texts)

    def encode_flat(self, texts: Sequence[str]) -> Flat:
        """The same ids end to end: the token counts of the texts int64 [n], and int32; faster, from one thread only."""
        return self._backend.encode_flat(texts)

    def encode_with_specials(self, text: str) -> list[int]:
        """The ids of one text as a model reads it: special pieces in it are recognised, the family's are added."""
        return list(self._backend.marked.encode(text).ids)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Readable text, special pieces included."""
        return self._backend.marked.decode([int(i) for i in ids], skip_special_tokens=False)

    @functools.cached_property
    def digest(self) -> str:
        total = hashlib.sha256()
        for name, content in sorted(self.files().items()):
            total.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
        return total.hexdigest()

    def starts_word(self) -> np.ndarray:
        """bool [size]: where a piece opens a word. Special pieces and Chinese characters are words of their own.

        Punctuation opens a word in WordPiece and ALBERT (and whatever has no English letter in ALBERT), as in the
        authors' code; in byte-level BPE and the other unigram families it belongs to the word before it.
        """
        from bertjax.data.word_boundaries import opens_word

        starts = np.fromiter((opens_word(piece, self) for piece in self.pieces), bool, self.size)
        starts[list(self.special_ids)] = True
        return starts

    @property
    def continuation_prefix(self) -> str:
        """What WordPiece writes in front of a piece inside a word."""
        return self._backend.prefix

    @property
    def library(self) -> Any:
        """What encodes raw text: a `tokenizers.Tokenizer` or a `SentencePieceProcessor`."""
        return self._backend.library

    @property
    def engine(self) -> Any:
        """The `tokenizers.Tokenizer` behind `encode_with_specials`, to ask its normalizer, its words and its model."""
        return self._backend.marked

    def vocabulary(self, counts: np.ndarray | None = None, multiple: int = 64) -> Vocabulary:
        """What objectives need; `counts` int64 [size] are the frequencies in the training corpus, else zeros."""
        if counts is None:
            counts = np.zeros(self.size, np.int64)
        return Vocabulary(
            size=self.size,
            padded_size=padded_vocab_size(self.size, multiple),
            pad_id=self.pad_id,
            unk_id=self.unk_id,
            cls_id=self.cls_id,
            sep_id=self.sep_id,
            mask_id=self.mask_id,
            special_ids=self.special_ids,
            starts_word=self.starts_word(),
            counts=np.asarray(counts, np.int64),
        )

    def files(self) -> dict[str, bytes]:
        """The canonical files: the model itself and one line about it."""
        about = {"family": self.family, "format": 1, "kind": self.kind, "lowercase": self.lowercase}
        return {
            **self._backend.files(family_of(self.family)),
            "bertjax_tokenizer.json": json.dumps(about, sort_keys=True).encode(),
        }

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the canonical files, each of them whole or not at all; `load_tokenizer` reads them."""
        from bertjax.data.tokenizer_files import write_files

        write_files(Path(folder), self.files())

    def save_huggingface(self, folder: str | os.PathLike[str], max_length: int) -> None:
        """Write the files that `transformers.AutoTokenizer` loads, beside whatever the folder already holds."""
        from bertjax.data.tokenizer_files import huggingface_files, write_files

        write_files(Path(folder), huggingface_files(self, self._backend, max_length))


def train_tokenizer(
    documents: Iterable[str],
    *,
    model: str,
    family: str,
    vocab_size: int,
    lowercase: bool | None = None,
    seed: int = 0,
    max_chars: int = 200_000_000,
) -> Tokenizer:
    """Train a vocabulary; equal documents give equal bytes on any number of threads.

    `model` is wordpiece, bpe or unigram; `lowercase` None is the family's habit. A corpus beyond `max_chars` characters
    is sampled by document hash and `seed`; that sample is held in memory. A small corpus gives fewer pieces than
    `vocab_size`: `size` tells the truth. Raises `UserError` for no text or no room for single characters.
    """
    from bertjax.data import tokenizer_training as training

    trainers: dict[str, Callable[[list[str], Family, int, bool], Backend]] = {
        "wordpiece": training.train_wordpiece,
        "bpe": training.train_byte_bpe,
        "unigram": training.train_unigram,
    }
    require_one_of("tokenizer model", model, trainers)
    spec = family_of(family)
    lowercase = spec.lowercase if lowercase is None else lowercase
    sample = training.sample_documents(documents, max_chars, seed)
    if not any(text and not text.isspace() for text in sample):
        raise UserError("the corpus holds no text to train a tokenizer on; check data.sources")
    return Tokenizer(trainers[model](sample, spec, vocab_size, lowercase), family, lowercase)


def load_tokenizer(path: str | os.PathLike[str], family: str | None = None, lowercase: bool | None = None) -> Tokenizer:
    """A tokenizer from a folder (ours or Hugging Face's), `tokenizer.json`, `vocab.txt`, `spiece.model` or `spm.model`.

    The family is guessed from the special pieces when it is not given; `lowercase` matters where the file does not say
    it (`vocab.txt`, sentencepiece). Only data is read, no code. Raises `UserError` for anything broken.
    """
    from bertjax.data.tokenizer_files import read_backend

    return Tokenizer(*read_backend(Path(path).expanduser(), family, lowercase))
