"""Tokenizers of every family: any `tokenizer.json` (`tokenizers`), unigram and BPE of `sentencepiece`."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.data.letter_tokenizers import reads_like_esm
from bertjax.data.special_tokens import (
    DECLARED,
    FAMILIES,
    ROLES,
    SENTINEL,
    TokenizerFamily,
    complete_family,
    family_of,
)
from bertjax.data.tokenizer_backends import Backend, SentencePieceBackend, wordpiece_backend
from bertjax.data.word_cache import FlatTokens
from bertjax.data.words import opens_word
from bertjax.errors import UserError
from bertjax.types import Vocabulary, padded_vocab_size

SETTINGS_FILE = "bertjax_tokenizer.json"
FAMILY_KEY = "bertjax_family"  # in tokenizer_config.json; transformers keeps it and makes nothing of it


class Tokenizer:
    """A vocabulary with its rules. Raw text never yields special tokens: `[MASK]` in a document is only text.

    Attributes:
        backend: Its engine.
        kind: wordpiece, bpe, unigram or wordlevel.
        family: A key of the table of families, or `DECLARED`.
        spec: Its special tokens and layouts.
        token_types: Whether texts have token types; see `fitted`.
        summary_skips: Where the last token of a text sums it up: the id of those that do not; see `fitted`.
        summary_id: Where the last token with this id sums a text up: the id; see `fitted`.
        tokens: Token of every id.
        size: Number of tokens.
        pad_id, unk_id, cls_id, sep_id, mask_id: -1 if the family lacks the token.
        special_ids: Sorted ids of special tokens.
        digest: SHA-256 (hex).
    """

    def __init__(self, backend: Backend, family: str, lowercase: bool, spec: TokenizerFamily | None = None) -> None:
        self.backend = backend
        self.spec = spec = family_of(family) if spec is None else spec
        self.family, self.lowercase, self.token_types = family, lowercase, spec.token_types
        self.kind = backend.kind
        self.summary_skips: int | None = None
        self.summary_id: int | None = None
        self.tokens: list[str] = backend.tokens
        self.size = len(self.tokens)
        ids = {token: index for index, token in enumerate(self.tokens)}
        if len(ids) != self.size:
            raise UserError(f"tokenizer: {self.size - len(ids)} tokens occur twice; every id needs its own token")
        absent = sorted({token for token in spec.roles.values() if token not in ids})
        if absent:
            raise UserError(f"tokenizer: the family {family} needs the special tokens {', '.join(absent)}; add them")
        by_role = {role: ids[token] for role, token in spec.roles.items()}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (by_role.get(role, -1) for role in ROLES)
        self.special_ids = tuple(sorted({ids[token] for token in spec.special if token in ids}))

    def complete(self, roles: Sequence[str], sentinels: int = 0) -> Tokenizer:
        """Returns a tokenizer that has tokens for all roles (pad, cls, sep, mask), new ones after the last id.

        A tokenizer of no known family then also marks them as special and puts texts between [CLS] and [SEP], as
        pretraining does.

        Args:
            roles: Roles that need a token.
            sentinels: Least number of sentinels; a tokenizer with fewer gets so many.
        """
        absent = [role for role in roles if getattr(self, f"{role}_id") < 0]
        ids = self.engine.encode("a").ids
        surrounds = ids[:1] == [self.cls_id] and ids[-1:] == [self.sep_id]
        marked = {*self.spec.roles.values()} <= {*self.backend.special}
        has_sentinels = len(self.sentinel_ids) >= sentinels
        if not absent and has_sentinels and (self.family != DECLARED or (surrounds and marked)):
            return self
        spec = complete_family(self.spec, absent, 0 if has_sentinels else sentinels)
        return Tokenizer(self.backend.completed(spec), DECLARED, self.lowercase, spec)

    def fitted(self, model: EncoderConfig) -> Tokenizer:
        """Returns the tokenizer as a model reads it.

        It has no token types where the model's table lacks one of them. The text of a causal model whose summary is the
        last token is summed up by the last one that is not padding, as in classes of transformers; that of a model with
        pooling=eos by the last end token.
        """
        types = self.token_types and (
            model.relative_segments or max(self.engine.encode("a", "b").type_ids) < model.type_vocab_size
        )
        skipped = model.pad_token_id if model.causal and model.pooling == "last" else None
        summary_id = model.eos_token_id if model.pooling == "eos" else None
        if (types, skipped, summary_id) == (self.token_types, self.summary_skips, self.summary_id):
            return self
        fitted = copy.copy(self)
        fitted.token_types, fitted.summary_skips, fitted.summary_id = types, skipped, summary_id
        return fitted

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of every text, int32, without special tokens; uses all cores, keeps the order."""
        return self.backend.encode(texts)

    def encode_flat(self, texts: Sequence[str]) -> FlatTokens:
        """Returns the same ids concatenated: token counts int64 [n], and int32 ids; faster, from one thread only."""
        return self.backend.encode_flat(texts)

    def encode_with_specials(self, text: str) -> list[int]:
        """Returns the ids of one text as a model reads it: special tokens are recognized, the family's are added."""
        return list(self.backend.marked.encode(text).ids)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of ids [tokens], special tokens included."""
        return self.backend.marked.decode([int(i) for i in ids], skip_special_tokens=False)

    def decode_texts(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Returns readable texts without special tokens."""
        return list(self.backend.marked.decode_batch([list(each) for each in ids], skip_special_tokens=True))

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical files and of the version of the rules."""
        total = hashlib.sha256(self.backend.rules_version)
        for name, content in sorted(self.files().items()):
            total.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
        return total.hexdigest()

    @functools.cached_property
    def sentinel_ids(self) -> tuple[int, ...]:
        """Ids of T5's sentinels <extra_id_0>, <extra_id_1>, ..., as far as the vocabulary has them."""
        ids = {token: index for index, token in enumerate(self.tokens) if token.startswith(SENTINEL[:9])}
        names = itertools.takewhile(ids.__contains__, map(SENTINEL.format, itertools.count()))
        return tuple(ids[name] for name in names)

    def full_stop_ids(self) -> tuple[int, ...]:
        """Returns the ids of full stops: "." and "。", as a token of its own, also one that begins or ends a word."""
        stops = {f"{before}{stop}" for before in ("", "##", "\u2581", "\u0120") for stop in (".", "\u3002")}
        stops |= {"\u00e3\u0122\u0124"}  # 。 in bytes
        return tuple(index for index, token in enumerate(self.tokens) if token in stops)

    def starts_word(self) -> np.ndarray:
        """Returns bool [size]: whether a token starts a word. Special tokens and Chinese characters are words.

        Punctuation starts a word in WordPiece and ALBERT (and tokens without an English letter in ALBERT), as in the
        authors' code; in byte-level BPE and the other unigram families it belongs to the preceding word.
        """
        about = self.kind, self.family, self.continuation_prefix
        starts = np.fromiter((opens_word(token, *about) for token in self.tokens), bool, self.size)
        starts[list(self.special_ids)] = True
        return starts

    @property
    def continuation_prefix(self) -> str:
        """Prefix of WordPiece tokens inside a word."""
        return self.backend.prefix

    @property
    def library(self) -> Any:
        """Encoder of raw text: a `tokenizers.Tokenizer` or a `SentencePieceProcessor`."""
        return self.backend.library

    @property
    def engine(self) -> Any:
        """The `tokenizers.Tokenizer` of `encode_with_specials`, for its normalizer, words and model."""
        return self.backend.marked

    @property
    def _has_bert_rules(self) -> bool:
        """Returns whether `BertTokenizer`, which always has the rules of BERT, reads text as this tokenizer does."""
        if self.kind != "wordpiece":
            return False
        rules, berts = (
            json.loads(engine.to_str())
            for engine in (self.engine, wordpiece_backend(self.tokens, self.spec, self.lowercase).marked)
        )
        return all(
            _explicit(rules[part]) == _explicit(berts[part]) for part in ("normalizer", "pre_tokenizer", "model")
        )

    def vocabulary(self, counts: np.ndarray | None = None, multiple: int = 64) -> Vocabulary:
        """Returns the `Vocabulary` for objectives; `counts` int64 [size] are those of the corpus, else zeros."""
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
            sentinel_ids=self.sentinel_ids,
            full_stop_ids=self.full_stop_ids(),
            tokens=tuple(self.tokens),
        )

    def files(self) -> dict[str, bytes]:
        """The canonical files: the model itself and one line about it."""
        about = {"family": self.family, "format": 1, "kind": self.kind, "lowercase": self.lowercase}
        if self.spec != FAMILIES.get(self.family):
            spec = dataclasses.asdict(self.spec)
            usual = {"sentinels": (), "truncation_side": "right"}  # not stored, as by earlier releases
            about["special_tokens"] = {key: value for key, value in spec.items() if value != usual.get(key)}
        return {
            **self.backend.files(self.spec),
            SETTINGS_FILE: json.dumps(about, sort_keys=True).encode(),
        }

    def huggingface_files(self, max_length: int) -> dict[str, bytes]:
        """Returns the files of `AutoTokenizer.from_pretrained` for transformers 5 and 4 (special_tokens_map.json)."""
        files = {
            "tokenizer.json": self.backend.marked.to_str(pretty=True).encode(),
            **self.huggingface_facts(max_length),
        }
        if self.kind == "wordpiece" or reads_like_esm(self.backend, self.spec):
            files["vocab.txt"] = "".join(token + "\n" for token in self.tokens).encode()
        if isinstance(self.backend, SentencePieceBackend):
            files |= self.backend.exported_files(self.spec)
        return files

    def huggingface_facts(self, max_length: int) -> dict[str, bytes]:
        """Returns those of the files that do not hold the vocabulary."""
        spec = self.spec
        roles = {f"{role}_token": token for role, token in spec.roles.items()}
        config: dict[str, Any] = {
            # the generic class takes tokenizer.json as it stands; the classes of most families rebuild parts of it
            "tokenizer_class": spec.huggingface_class if self._has_bert_rules else "PreTrainedTokenizerFast",
            FAMILY_KEY: self.family,
            "model_max_length": max_length,
            "do_lower_case": self.lowercase,
            "clean_up_tokenization_spaces": False,
            "padding_side": spec.padding_side,
            "model_input_names": ["input_ids", *["token_type_ids"] * self.token_types, "attention_mask"],
            **roles,
        }
        if spec.truncation_side != "right":
            config["truncation_side"] = spec.truncation_side
        if self._has_bert_rules:
            config |= {"strip_accents": self.lowercase, "tokenize_chinese_chars": True}
        return {"tokenizer_config.json": _pretty(config), "special_tokens_map.json": _pretty(roles)}


def _explicit(rules: dict[str, Any] | None) -> dict[str, Any]:
    """Returns rules of a `tokenizer.json` with strip_accents as what its default means."""
    rules = dict(rules or {})
    if rules.get("strip_accents", False) is None:
        rules["strip_accents"] = rules["lowercase"]
    return rules


def _pretty(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=2, sort_keys=True) + "\n").encode()
