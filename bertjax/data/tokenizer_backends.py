"""The two engines behind `Tokenizer`: Hugging Face `tokenizers` and Google's `sentencepiece`.

Both give plain ids for raw text, in which a literal "[MASK]" is only text, and a marked `tokenizers` twin, in which it
is the special piece.
"""

from __future__ import annotations

import functools
import json
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bertjax.data.special_tokens import TokenizerFamily
from bertjax.data.word_cache import FlatTokens, WordCache, flatten_ids, has_independent_words
from bertjax.errors import UserError

_SPACE = "▁"
_CONTROL = 3  # the piece type of sentencepiece that never matches text


class HuggingFaceBackend:
    """WordPiece, byte-level BPE, or any `tokenizer.json`; works on all cores."""

    def __init__(self, text: str) -> None:
        from tokenizers import Tokenizer

        self._text = text
        self.library = Tokenizer.from_str(text)
        self.library.no_truncation()
        self.library.no_padding()
        self.library.encode_special_tokens = True  # special pieces in raw text are split like any text
        content = json.loads(text)
        model = content["model"]
        splitter = content.get("pre_tokenizer") or {}
        bare_first = splitter.get("type") == "ByteLevel" and not splitter.get("add_prefix_space", True)
        marks = splitter.get("type") == "BertPreTokenizer"
        self._memo = WordCache(self, bare_first, marks) if has_independent_words(content) else None
        self.kind = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram"}.get(model.get("type"), "")
        self.prefix = model.get("continuing_subword_prefix") or ""

    @functools.cached_property
    def tokens(self) -> list[str]:
        """The piece of every id; raises `UserError` where an id is missing."""
        vocabulary = self.library.get_vocab(with_added_tokens=True)
        pieces = [""] * len(vocabulary)
        for piece, index in vocabulary.items():
            if index >= len(pieces):
                raise UserError(f"tokenizer: piece {piece!r} has id {index}, but there are only {len(pieces)} pieces")
            pieces[index] = piece
        return pieces

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(ids, np.int32) for ids in self.lists(texts)]

    def encode_flat(self, texts: Sequence[str]) -> FlatTokens:
        return flatten_ids(self.lists(texts)) if self._memo is None else self._memo.encode(texts)

    def lists(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.library.encode_batch_fast(texts, add_special_tokens=False)]

    def located(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        return [(found.ids, found.offsets) for found in self.library.encode_batch(texts, add_special_tokens=False)]

    @functools.cached_property
    def marked(self) -> Any:
        """The `tokenizers.Tokenizer` that recognises special pieces in text and adds the family's own."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(self._text)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def files(self, family: TokenizerFamily) -> dict[str, bytes]:
        """The canonical file, the same bytes for the same tokenizer."""
        ordered = json.dumps(json.loads(self._text), ensure_ascii=False, sort_keys=True, indent=1)
        return {"tokenizer.json": ordered.encode()}


class SentencePieceBackend:
    """A unigram model as sentencepiece trains it. `fold` lower-cases and strips accents before the model sees text."""

    def __init__(self, model: bytes, family: TokenizerFamily, fold: bool) -> None:
        import sentencepiece

        self.model, self.fold = model, fold
        self.kind, self.prefix = "unigram", ""
        self._family = family
        self.library = sentencepiece.SentencePieceProcessor(model_proto=model)

    @functools.cached_property
    def tokens(self) -> list[str]:
        return [self.library.id_to_piece(i) for i in range(self.library.get_piece_size())]

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        if self.fold:
            normalizer = _folding()
            texts = [normalizer.normalize_str(text) for text in texts]
        as_arrays = getattr(self.library, "encode_as_numpy", None)  # sentencepiece 0.2.1 gives lists only
        if as_arrays is not None:
            return as_arrays(list(texts), num_threads=_threads())
        found = self.library.encode(list(texts), out_type=int, num_threads=_threads())
        return [np.array(ids, np.int32) for ids in found]

    def encode_flat(self, texts: Sequence[str]) -> FlatTokens:
        found = self.encode(texts)
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        return lengths, np.concatenate(found) if found else np.zeros(0, np.int32)

    @functools.cached_property
    def marked(self) -> Any:
        """The same model as a `tokenizers.Tokenizer`: sentencepiece's own character table, then its scores."""
        from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

        score = self.library.get_score
        vocabulary = [(piece, score(i)) for i, piece in enumerate(self.tokens)]
        tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=self.library.unk_id(), byte_fallback=False))
        steps: list[Any] = [_folding()] if self.fold else []
        table = character_table(self.model)
        steps += [normalizers.Precompiled(table)] if table else []
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always")
        tokenizer.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme="always")
        add_special_tokens(tokenizer, self._family)
        return tokenizer

    def files(self, family: TokenizerFamily) -> dict[str, bytes]:
        return {family.sentencepiece_file: self.model}


Backend = HuggingFaceBackend | SentencePieceBackend


def _threads() -> int:
    """Threads for sentencepiece; one where `tokenizers` is told the same, in the processes that prepare a corpus."""
    alone = os.environ.get("TOKENIZERS_PARALLELISM", "").lower() in ("0", "false", "off", "no")
    return 1 if alone else os.cpu_count() or 1


def _folding() -> Any:
    from tokenizers import normalizers

    return normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])


def add_special_tokens(tokenizer: Any, family: TokenizerFamily) -> None:
    """Declare the family's special pieces and its layout of one and of two texts, in place."""
    from tokenizers import AddedToken, models, processors

    eats_space = not isinstance(tokenizer.model, models.WordPiece)  # "is <mask>": it stands for " word", with the space
    tokenizer.add_special_tokens(
        [
            AddedToken(piece, lstrip=eats_space and piece == family.roles.get("mask"), normalized=False, special=True)
            for piece in family.special
        ]
    )
    if any(piece in family.single for piece in family.special):
        used = [(piece, tokenizer.token_to_id(piece)) for piece in family.special]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=family.single, pair=family.pair, special_tokens=used
        )


def wordpiece_backend(pieces: list[str], family: TokenizerFamily, lowercase: bool) -> HuggingFaceBackend:
    """A BERT tokenizer over that vocabulary, ids in order."""
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    model = models.WordPiece(vocabulary, unk_token=family.roles["unk"], max_input_chars_per_word=100)
    tokenizer = Tokenizer(model)
    bert_pipeline(tokenizer, lowercase)
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    add_special_tokens(tokenizer, family)
    return HuggingFaceBackend(tokenizer.to_str())


def bert_pipeline(tokenizer: Any, lowercase: bool) -> None:
    from tokenizers import normalizers, pre_tokenizers

    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


def append_control_tokens(model: bytes, pieces: Sequence[str]) -> bytes:
    """A sentencepiece model with control pieces behind the last id (DeBERTa's [MASK]).

    Pieces are a repeated field of the message, and protocol buffers read a repetition further on as an appendix.
    """
    for piece in pieces:
        name = piece.encode()
        message = b"\x0a" + bytes([len(name)]) + name + b"\x15" + struct.pack("<f", 0.0) + b"\x18" + bytes([_CONTROL])
        model += b"\x0a" + bytes([len(message)]) + message
    return model


def character_table(model: bytes) -> bytes:
    """The compiled normalisation rules of a sentencepiece model: field 2 of its `normalizer_spec`, field 3."""
    for number, value in _fields(model):
        if number == 3 and isinstance(value, bytes):
            return next((inner for n, inner in _fields(value) if n == 2 and isinstance(inner, bytes)), b"")
    return b""


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(number, value) of the top level of a protocol buffer message; fixed-width values are skipped."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
        elif wire == 2:
            size, at = _varint(message, at)
            yield number, message[at : at + size]
            at += size
        else:
            at += 8 if wire == 1 else 4


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
