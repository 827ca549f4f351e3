"""The engines of `Tokenizer`: Hugging Face `tokenizers` and Google's `sentencepiece`.

Both return plain ids for raw text, in which a literal "[MASK]" is only text, and a `tokenizers` twin that recognizes
special tokens.
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
_CONTROL = 3  # sentencepiece's type of tokens that never match text


class HuggingFaceBackend:
    """WordPiece, byte-level BPE, or any `tokenizer.json`; uses all cores."""

    def __init__(self, text: str) -> None:
        from tokenizers import Tokenizer

        self._text = text
        self.library = Tokenizer.from_str(text)
        self.library.no_truncation()
        self.library.no_padding()
        self.library.encode_special_tokens = True  # special tokens in raw text are split like any text
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
        """Returns the token of every id; raises `UserError` if an id is missing."""
        vocabulary = self.library.get_vocab(with_added_tokens=True)
        token_list = [""] * len(vocabulary)
        for token, index in vocabulary.items():
            if index >= len(token_list):
                raise UserError(
                    f"tokenizer: token {token!r} has id {index}, but there are only {len(token_list)} tokens"
                )
            token_list[index] = token
        return token_list

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(ids, np.int32) for ids in self.lists(texts)]

    def encode_flat(self, texts: Sequence[str]) -> FlatTokens:
        return flatten_ids(self.lists(texts)) if self._memo is None else self._memo.encode(texts)

    def lists(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.library.encode_batch_fast(texts, add_special_tokens=False)]

    def located(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        return [
            (results.ids, results.offsets) for results in self.library.encode_batch(texts, add_special_tokens=False)
        ]

    @functools.cached_property
    def marked(self) -> Any:
        """Returns the `tokenizers.Tokenizer` that recognizes special tokens in text and adds the family's."""
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
    """A sentencepiece unigram model. `fold` lower-cases and strips accents before the model sees text."""

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
        results = self.library.encode(list(texts), out_type=int, num_threads=_threads())
        return [np.array(ids, np.int32) for ids in results]

    def encode_flat(self, texts: Sequence[str]) -> FlatTokens:
        results = self.encode(texts)
        lengths = np.fromiter(map(len, results), np.int64, len(results))
        return lengths, np.concatenate(results) if results else np.zeros(0, np.int32)

    @functools.cached_property
    def marked(self) -> Any:
        """Returns the model as a `tokenizers.Tokenizer`: sentencepiece's own character table, then its scores."""
        from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

        score = self.library.get_score
        vocabulary = [(token, score(i)) for i, token in enumerate(self.tokens)]
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
    """Returns the threads for sentencepiece; one if `tokenizers` is limited to one, as in worker processes."""
    alone = os.environ.get("TOKENIZERS_PARALLELISM", "").lower() in ("0", "false", "off", "no")
    return 1 if alone else os.cpu_count() or 1


def _folding() -> Any:
    from tokenizers import normalizers

    return normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])


def add_special_tokens(tokenizer: Any, family: TokenizerFamily) -> None:
    """Declares the family's special tokens and its layouts of one and of two texts, in place."""
    from tokenizers import AddedToken, models, processors

    eats_space = not isinstance(tokenizer.model, models.WordPiece)  # "is <mask>": it stands for " word", with the space
    tokenizer.add_special_tokens(
        [
            AddedToken(token, lstrip=eats_space and token == family.roles.get("mask"), normalized=False, special=True)
            for token in family.special
        ]
    )
    if any(token in family.single for token in family.special):
        used = [(token, tokenizer.token_to_id(token)) for token in family.special]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=family.single, pair=family.pair, special_tokens=used
        )


def wordpiece_backend(token_list: list[str], family: TokenizerFamily, lowercase: bool) -> HuggingFaceBackend:
    """Returns a BERT tokenizer of a vocabulary.

    Args:
        token_list: Tokens in the order of their ids.
        family: Family of the special tokens.
        lowercase: Lower-case and strip accents.
    """
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {token: index for index, token in enumerate(token_list)}
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


def append_control_tokens(model: bytes, token_list: Sequence[str]) -> bytes:
    """Returns a sentencepiece model with control tokens after the last id (DeBERTa's [MASK]).

    Tokens are a repeated field of the message, and protocol buffers append later repetitions.
    """
    for token in token_list:
        name = token.encode()
        message = b"\x0a" + bytes([len(name)]) + name + b"\x15" + struct.pack("<f", 0.0) + b"\x18" + bytes([_CONTROL])
        model += b"\x0a" + bytes([len(message)]) + message
    return model


def character_table(model: bytes) -> bytes:
    """Returns the compiled normalization rules of a sentencepiece model: field 2 of its `normalizer_spec`, field 3."""
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
