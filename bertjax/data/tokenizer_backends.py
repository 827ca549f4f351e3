"""The engines of `Tokenizer`: Hugging Face `tokenizers` and Google's `sentencepiece`.

Both return plain ids for raw text, in which a literal "[MASK]" is only text, and a `tokenizers` twin that recognizes
special tokens.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.data.sentencepiece_model import UNMATCHED, check_texts, is_ambiguous, read_spec, translate_model
from bertjax.data.special_tokens import TokenizerFamily
from bertjax.data.word_cache import FlatTokens, WordCache, flatten_ids, has_independent_words
from bertjax.errors import UserError


class HuggingFaceBackend:
    """WordPiece, byte-level BPE, or any `tokenizer.json`; uses all cores."""

    rules_version = b""  # differs where the same files give other ids than in an earlier release

    def __init__(self, text: str) -> None:
        from tokenizers import Tokenizer

        self._text = text
        content = json.loads(text)
        model = content["model"]
        self.library = Tokenizer.from_str(_without_special_names(content) if model.get("type") == "Unigram" else text)
        self.library.no_truncation()
        self.library.no_padding()
        self.library.encode_special_tokens = True  # special tokens in raw text are split like any text
        splitter = content.get("pre_tokenizer") or {}
        bare_first = splitter.get("type") == "ByteLevel" and not splitter.get("add_prefix_space", True)
        marks = splitter.get("type") == "BertPreTokenizer"
        self._memo = WordCache(self, bare_first, marks) if has_independent_words(content) else None
        self.kind = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram"}.get(model.get("type"), "")
        self.prefix = model.get("continuing_subword_prefix") or ""

    @functools.cached_property
    def tokens(self) -> list[str]:
        """Returns the token of every id; raises `UserError` if an id is missing."""
        vocabulary = self.marked.get_vocab(with_added_tokens=True)
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


def _without_special_names(content: Mapping[str, Any]) -> str:
    """Returns a unigram `tokenizer.json` whose model cannot match special tokens: it would take them for words."""
    special = {token["id"] for token in content.get("added_tokens", ()) if token["special"]}
    names = [
        [UNMATCHED + name if index in special else name, score]
        for index, (name, score) in enumerate(content["model"]["vocab"])
    ]
    added = [token for token in content.get("added_tokens", ()) if not token["special"]]
    model = {**content["model"], "vocab": names}
    return json.dumps({**content, "model": model, "added_tokens": added, "post_processor": None})


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
        return list(self.spec.tokens)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
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

    def files(self, family: TokenizerFamily) -> dict[str, bytes]:
        return {family.sentencepiece_file: self.model}


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

    eats_space = not isinstance(tokenizer.model, models.WordPiece)  # "is <mask>": it stands for " word", with the space
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
