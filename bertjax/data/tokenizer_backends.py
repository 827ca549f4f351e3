"""The engines of `Tokenizer`: Hugging Face `tokenizers` and Google's `sentencepiece`.

Both return plain ids for raw text, in which a literal "[MASK]" is only text, and a `tokenizers` twin that recognizes
special tokens.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.data.sentencepiece_model import (
    UNMATCHED,
    NewToken,
    append_tokens,
    check_texts,
    is_ambiguous,
    order_tokens,
    read_spec,
    translate_model,
)
from bertjax.data.special_tokens import TokenizerFamily
from bertjax.data.word_cache import FlatTokens, WordCache, flatten_ids, has_independent_words
from bertjax.errors import UserError, shortened

KINDS = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram", "WordLevel": "wordlevel"}
"""Kind of tokenizer by the type of the model in its `tokenizer.json`."""
_MOST_UNUSED = 10_000  # ids without a token


class HuggingFaceBackend:
    """WordPiece, byte-level BPE, or any `tokenizer.json`; uses all cores."""

    rules_version = b""  # differs where the same files give other ids than in an earlier release

    def __init__(self, text: str) -> None:
        from tokenizers import Tokenizer

        self._text = text
        content = json.loads(text)
        model = content["model"]
        by_merges = model.get("type") == "BPE" and not model.get("ignore_merges")  # which make no special token
        self.library = Tokenizer.from_str(text if by_merges else _without_special_names(content))
        self.library.no_truncation()
        self.library.no_padding()
        self.library.encode_special_tokens = True  # special tokens in raw text are split like any text
        splitter = content.get("pre_tokenizer") or {}
        bare_first = splitter.get("type") == "ByteLevel" and not splitter.get("add_prefix_space", True)
        marks = splitter.get("type") == "BertPreTokenizer"
        self._memo = WordCache(self, bare_first, marks) if has_independent_words(content) else None
        self.kind = KINDS.get(model.get("type"), "")
        self.prefix = model.get("continuing_subword_prefix") or ""

    @functools.cached_property
    def tokens(self) -> list[str]:
        """Returns the token of every id, a name that no text has where none is; raises `UserError` for a shared id."""
        return tokens_by_id(self.marked.get_vocab(with_added_tokens=True))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of every text, int32 [tokens], without special tokens."""
        return [np.array(ids, np.int32) for ids in self.lists(texts)]

    def encode_flat(self, texts: Sequence[str]) -> FlatTokens:
        """Returns the number of tokens of each text, int64 [n], and all ids end to end, int32 [total]."""
        return flatten_ids(self.lists(texts)) if self._memo is None else self._memo.encode(texts)

    def lists(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of every text, without special tokens."""
        return [encoding.ids for encoding in self.library.encode_batch_fast(texts, add_special_tokens=False)]

    def located(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Returns the ids of every text, and the characters [begin, end) that each of them stands for."""
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

    @property
    def special(self) -> list[str]:
        """Returns the tokens that the file marks as special."""
        return [token["content"] for token in json.loads(self._text).get("added_tokens", ()) if token["special"]]

    @property
    def unk_token(self) -> str | None:
        """Returns the token of what the model does not know."""
        model = json.loads(self._text)["model"]
        number = model.get("unk_id")
        return model.get("unk_token") if number is None else model["vocab"][number][0]

    def completed(self, family: TokenizerFamily) -> HuggingFaceBackend:
        """Returns the tokenizer with the tokens of all roles of `family` and its layouts of texts."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(self._text)
        roles = dataclasses.replace(family, first=(), last=tuple(dict.fromkeys(family.roles.values())))
        add_special_tokens(
            tokenizer, roles, opens_words='"Prepend"' in json.dumps(json.loads(self._text)["normalizer"])
        )
        return HuggingFaceBackend(tokenizer.to_str())

    def files(self, family: TokenizerFamily) -> dict[str, bytes]:
        """The canonical file, the same bytes for the same tokenizer."""
        ordered = json.dumps(json.loads(self._text), ensure_ascii=False, sort_keys=True, indent=1)
        return {"tokenizer.json": ordered.encode()}


def tokens_by_id(vocabulary: Mapping[str, int]) -> list[str]:
    """Returns the token of every id, a name that no text has where none is; raises `UserError` for a shared id."""
    size = 1 + max(vocabulary.values(), default=-1)
    if size > 2 * len(vocabulary) + _MOST_UNUSED:
        token = max(vocabulary, key=vocabulary.__getitem__)
        raise UserError(
            f"tokenizer: token {shortened(token)} has id {size - 1}, but there are only {len(vocabulary)} tokens; "
            "number them without such gaps"
        )
    tokens: list[str | None] = [None] * size
    for token, index in vocabulary.items():
        if (other := tokens[index]) is not None:
            raise UserError(
                f"tokenizer: {shortened(other)} and {shortened(token)} have one id, {index}; remove one of the two "
                "from the vocabulary or the added tokens"
            )
        tokens[index] = token
    return [f"<no token {index}>" if token is None else token for index, token in enumerate(tokens)]


def fold_added_tokens(content: dict[str, Any]) -> dict[str, Any]:
    """Returns a `tokenizer.json` whose model has all added tokens: else their ids follow the size of the model."""
    model, added = dict(content["model"]), sorted(content.get("added_tokens", ()), key=lambda token: token["id"])
    if isinstance(model["vocab"], Mapping):
        model["vocab"] = {**{token["content"]: token["id"] for token in added}, **model["vocab"]}
    else:
        model["vocab"] = [*model["vocab"], *([t["content"], 0.0] for t in added if t["id"] >= len(model["vocab"]))]
    return {**content, "model": model}


def _without_special_names(content: dict[str, Any]) -> str:
    """Returns a `tokenizer.json` whose model cannot match special tokens: it would take them for words."""
    added = content.get("added_tokens", ())
    special = {token["content"] for token in added if token["special"]}

    def name(token: str) -> str:
        return UNMATCHED + token if token in special else token

    model = fold_added_tokens(content)["model"]
    entries = model["vocab"]
    if isinstance(entries, Mapping):
        model["vocab"] = {name(token): index for token, index in entries.items()}
    else:
        model["vocab"] = [[name(token), score] for token, score in entries]
    if model.get("unk_token") is not None:
        model["unk_token"] = name(model["unk_token"])
    others = [token for token in added if not token["special"]]
    return json.dumps({**content, "model": model, "added_tokens": others, "post_processor": None})


class SentencePieceBackend:
    """A sentencepiece model. `fold` lower-cases and strips accents before the model sees text.

    The model is translated for `tokenizers`, and the translation decides: it is what an export holds. sentencepiece
    itself encodes the texts that it reads in the same way, several times as fast.
    """

    rules_version = b"translated"

    def __init__(self, model: bytes, family: TokenizerFamily, fold: bool) -> None:
        import sentencepiece

        self.model, self.fold = model, fold
        self.spec = read_spec(model)
        self.kind, self.prefix = "bpe" if self.spec.kind == "bpe" else "unigram", ""
        self._family = family
        self.library = sentencepiece.SentencePieceProcessor(model_proto=model)

    @property
    def tokens(self) -> list[str]:
        """All tokens by id."""
        return list(self.spec.tokens)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of every text, int32 [tokens], without special tokens."""
        if self.fold:
            normalizer = _folding()
            texts = [normalizer.normalize_str(text) for text in texts]
        results = self._encode_fast(texts)
        ambiguous = [index for index, text in enumerate(texts) if is_ambiguous(text)]
        if ambiguous:
            encodings = self._raw.encode_batch_fast([texts[index] for index in ambiguous], add_special_tokens=False)
            for index, encoding in zip(ambiguous, encodings, strict=True):
                results[index] = np.array(encoding.ids, np.int32)
        return results

    def _encode_fast(self, texts: Sequence[str]) -> list[np.ndarray]:
        as_arrays = getattr(self.library, "encode_as_numpy", None)  # sentencepiece 0.2.1 gives lists only
        if as_arrays is not None:
            return as_arrays(list(texts), num_threads=_threads())
        results = self.library.encode(list(texts), out_type=int, num_threads=_threads())
        return [np.array(ids, np.int32) for ids in results]

    def encode_flat(self, texts: Sequence[str]) -> FlatTokens:
        """Returns the number of tokens of each text, int64 [n], and all ids end to end, int32 [total]."""
        results = self.encode(texts)
        lengths = np.fromiter(map(len, results), np.int64, len(results))
        return lengths, np.concatenate(results) if results else np.zeros(0, np.int32)

    @functools.cached_property
    def _raw(self) -> Any:
        """Returns the translation for folded text, in which special tokens are only text."""
        return translate_model(self.spec.without_controls, None)

    @functools.cached_property
    def marked(self) -> Any:
        """Returns the translation that recognizes special tokens and adds the family's."""
        tokenizer = translate_model(self.spec, _folding() if self.fold else None)
        add_special_tokens(tokenizer, self._family, opens_words=self.spec.always_opens_word)
        return tokenizer

    def find_mismatch(self) -> str | None:
        """Returns a text that the translation reads differently than sentencepiece, if there is one."""
        texts = check_texts(self.spec)
        encodings = self._raw.encode_batch_fast(texts, add_special_tokens=False)
        results = zip(texts, encodings, self._encode_fast(texts), strict=True)
        return next((text for text, encoding, ids in results if encoding.ids != ids.tolist()), None)

    @property
    def special(self) -> list[str]:
        """Returns the control tokens of the model."""
        return [
            t for t, renamed in zip(self.spec.tokens, self.spec.without_controls.tokens, strict=True) if t != renamed
        ]

    @property
    def unk_token(self) -> str | None:
        """The token of unknown characters."""
        return self.tokens[self.library.unk_id()]

    def completed(self, family: TokenizerFamily) -> SentencePieceBackend:
        """Returns the tokenizer with the tokens of all roles of `family` and its layouts of texts."""
        needed = (*family.roles.values(), *family.sentinels)
        absent = dict.fromkeys(token for token in needed if token not in self.spec.tokens)
        return SentencePieceBackend(append_tokens(self.model, [NewToken(token) for token in absent]), family, self.fold)

    def files(self, family: TokenizerFamily) -> dict[str, bytes]:
        """Returns the sentencepiece model under the name that the family gives it."""
        return {family.sentencepiece_file: self.model}

    def exported_files(self, family: TokenizerFamily) -> dict[str, bytes]:
        """Returns the model as the class of `transformers` expects it, none where that class gives other ids."""
        if not family.file_first:
            return self.files(family)
        if self.spec.tokens[-len(family.last) :] != family.last:  # it puts these last, but words were added after them
            return {}
        others = {*family.first, *family.last} - {*family.file_first}
        return {family.sentencepiece_file: order_tokens(self.model, family.file_first, without=others)}


Backend = HuggingFaceBackend | SentencePieceBackend


def _threads() -> int:
    """Returns the threads for sentencepiece; one if `tokenizers` is limited to one, as in worker processes."""
    alone = os.environ.get("TOKENIZERS_PARALLELISM", "").lower() in ("0", "false", "off", "no")
    return 1 if alone else os.cpu_count() or 1


def _folding() -> Any:
    from tokenizers import normalizers

    # NFC only puts Hangul together again, which the rules of a model do in sentencepiece, not in `tokenizers`
    return normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.NFC()]
    )


def add_special_tokens(tokenizer: Any, family: TokenizerFamily, opens_words: bool = False) -> None:
    """Declares the family's special tokens and its layouts of one and of two texts, in place.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
        family: Family of the special tokens.
        opens_words: Text after a special token always gets a space, so that the mask token takes the one of the text.
    """
    from tokenizers import AddedToken, models, processors

    # "is <mask>": it stands for " word", with the space
    eats_space = isinstance(tokenizer.model, models.BPE | models.Unigram)
    tokenizer.add_special_tokens(
        [
            AddedToken(
                token,
                lstrip=eats_space and token == family.roles.get("mask"),
                rstrip=opens_words and token == family.roles.get("mask"),
                normalized=False,
                special=True,
            )
            for token in family.special
        ]
    )
    if any(token in family.single for token in family.special):
        others = {word.rpartition(":")[0] for word in f"{family.single} {family.pair}".split()} - {"$A", "$B"}
        tokens = dict.fromkeys([*family.special, *sorted(others)])  # Splinter has a full stop in its pairs
        used = [(token, tokenizer.token_to_id(token)) for token in tokens]
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
    """Sets the normalizer and the splitting into words of BERT's tokenizer; `lowercase` also strips accents."""
    from tokenizers import normalizers, pre_tokenizers

    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
