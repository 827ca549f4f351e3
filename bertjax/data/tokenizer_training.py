"""Training of vocabularies of every kind, with the same bytes on any number of threads."""

from __future__ import annotations

import functools
import hashlib
import heapq
import io
import json
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from bertjax.config.data import FIXED_VOCABULARIES
from bertjax.data.letter_tokenizers import fixed_tokenizer
from bertjax.data.sentencepiece_model import NewToken, append_tokens, compose_text
from bertjax.data.special_tokens import TokenizerFamily, family_of
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_backends import (
    Backend,
    HuggingFaceBackend,
    SentencePieceBackend,
    add_special_tokens,
    bert_pipeline,
    wordpiece_backend,
)
from bertjax.errors import UserError, one_line, require_one_of

log = logging.getLogger(__name__)

_COVERAGE = 0.9999  # share of the characters of a corpus that get their own tokens; rarer ones are [UNK]
_WARNED = 0.998  # of the characters; what is unknown beyond that is said
_MIN_FREQUENCY = 2  # single occurrences are not merged
_LINE_CHARS = 4000
_LONGEST_WORD = 100  # characters of a word that WordPiece encodes; longer ones are unknown
_LONGEST_BPE_WORD = 10_000  # a third of a second
# "▁" opens every text; in text without spaces it is so rare that it would be unknown
_UNIGRAM = {"model_type": "unigram", "required_chars": "▁"}
_LLAMA_BPE = {
    "model_type": "bpe",
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
    "split_digits": True,
    "byte_fallback": True,
}
"""Options of the tokenizers of Llama and Gemma (arXiv:2302.13971, section 2.1; arXiv:2403.08295, section 3)."""
# sentencepiece adds up float scores per thread, so another number of threads gives another vocabulary: it is fixed
_UNIGRAM_THREADS = 8
# what BERT puts spaces around
_CHINESE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def train_tokenizer(
    documents: Iterable[str],
    *,
    model: str,
    family: str,
    vocab_size: int,
    lowercase: bool | None = None,
    token_pattern: str | None = None,
    kmer: int = 6,
    seed: int = 0,
    max_chars: int = 200_000_000,
) -> Tokenizer:
    """Trains a vocabulary; equal documents give equal bytes on any number of threads.

    A small corpus gives fewer tokens than requested; `size` is the true number.

    Args:
        documents: Texts.
        model: A value of `data.tokenizer`.
        family: Family of the special tokens.
        vocab_size: Tokens, special ones included.
        lowercase: Lower-case and strip accents; None = the family's default.
        token_pattern: Regular expression of the tokens of wordlevel.
        kmer: Letters of the tokens of dna and kmers.
        seed: Seed of the sample.
        max_chars: A longer corpus is sampled by document hash; the sample is held in memory.

    Raises:
        UserError: There is no text, or `vocab_size` cannot hold the single characters.
    """
    trainers: dict[str, Callable[[list[str], TokenizerFamily, int, bool], Backend]] = {
        "wordpiece": train_wordpiece,
        "bpe": train_byte_bpe,
        "unigram": functools.partial(train_sentencepiece, options=_UNIGRAM),
        "sentencepiece_bpe": functools.partial(train_sentencepiece, options=_LLAMA_BPE),
        "wordlevel": functools.partial(train_wordlevel, pattern=token_pattern),
        "char": functools.partial(train_wordlevel, pattern=r"[\s\S]", keep_spaces=True),
    }
    require_one_of("tokenizer model", model, (*trainers, *FIXED_VOCABULARIES))
    spec = family_of(family)
    if model in FIXED_VOCABULARIES:
        return Tokenizer(fixed_tokenizer(model, kmer, spec), family, lowercase=False)
    lowercase = spec.lowercase if lowercase is None else lowercase
    sample = sample_documents(documents, max_chars, seed)
    if not any(text and not text.isspace() for text in sample):
        raise UserError("the corpus holds no text to train a tokenizer on; check data.sources")
    return Tokenizer(trainers[model](sample, spec, vocab_size, lowercase), family, lowercase)


def sample_documents(documents: Iterable[str], max_chars: int, seed: int) -> list[str]:
    """Returns about `max_chars` of text: all documents, or those whose hash is below a falling bound.

    The selection depends on texts and seed, never on their order.

    Args:
        documents: Texts.
        max_chars: Maximum characters.
        seed: Seed of the hash.
    """
    saved = list[str]()
    share, chars = 1.0, 0
    for document in documents:
        if share == 1.0 or _fraction(document, seed) < share:
            saved.append(document)
            chars += len(document)
        while chars > max_chars and len(saved) > 1:
            share /= 2
            minimum = min(saved, key=lambda text: _fraction(text, seed))
            saved = [text for text in saved if _fraction(text, seed) < share] or [minimum]
            chars = sum(map(len, saved))
    return saved


def _fraction(document: str, seed: int) -> float:
    digest = hashlib.blake2b(document.encode(), digest_size=8, salt=seed.to_bytes(16, "big")).digest()
    return int.from_bytes(digest, "big") / 2**64


def train_wordpiece(
    documents: list[str], family: TokenizerFamily, vocab_size: int, lowercase: bool
) -> HuggingFaceBackend:
    """Trains BERT's WordPiece. The trainer breaks ties by character numbers in hash order, so these are fixed here.

    Args:
        documents: Texts.
        family: Family of the special tokens.
        vocab_size: Tokens, special ones included.
        lowercase: Lower-case and strip accents.
    """
    scratch = tokenizers.Tokenizer(models.WordPiece(unk_token=family.roles["unk"]))
    bert_pipeline(scratch, lowercase)
    if not lowercase:
        scratch.normalizer = _composing([scratch.normalizer])
    inputs = [*family.first, *_alphabet(documents, scratch.normalizer, vocab_size, len(family.special))]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size - len(family.last),
        min_frequency=_MIN_FREQUENCY,
        special_tokens=inputs,
        limit_alphabet=0,  # no others than the given ones
        show_progress=False,
    )
    scratch.train_from_iterator(
        _without_endless_words(documents, scratch, _LONGEST_WORD), trainer, length=len(documents)
    )
    tokens = sorted(scratch.get_vocab().items(), key=lambda item: item[1])
    names = [name for name, _ in tokens] + list(family.last)
    backend = wordpiece_backend(names, family, lowercase)
    if lowercase:  # which decomposes text to strip its accents
        return backend
    tokenizer = tokenizers.Tokenizer.from_str(backend.marked.to_str())
    tokenizer.normalizer = scratch.normalizer
    return HuggingFaceBackend(tokenizer.to_str())


def _without_endless_words(documents: list[str], tokenizer: Any, longest: int) -> list[str]:
    """Returns documents without words of more characters, whose training takes time in the square of their length.

    A word ends at marks and ideographs, too: only runs between blanks that hold a longer word are cut.
    """

    def shorten(run: re.Match[str]) -> str:
        text = tokenizer.normalizer.normalize_str(run[0])
        words = [text[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        short = [word for word in words if len(word) <= longest]
        return run[0] if len(short) == len(words) else " ".join(short)

    long_runs = re.compile(rf"\S{{{longest + 1},}}")
    return [long_runs.sub(shorten, document) for document in documents]


def _alphabet(documents: list[str], normalizer: Any, vocab_size: int, num_special: int) -> list[str]:
    """Returns the single-character tokens by code point: word starts, then "##" continuations where possible.

    Takes the most frequent characters up to `_COVERAGE`: those of half of the vocabulary, and beyond it Chinese
    characters and punctuation, which are words, if they are among the most frequent words. Warns if characters that
    occur remain unknown, and raises `UserError` if that would leave more than half of the text unknown.
    """
    counts, words = Counter[str](), Counter[str]()
    for document in documents:
        text = normalizer.normalize_str(document)
        counts.update(text)
        words.update(text.split())
    letters = {c: n for c, n in counts.items() if not c.isspace() and c != "\ufffd"}
    size = vocab_size - num_special
    minimum = heapq.nlargest(size, words.values())[-1] if len(words) > size > 0 else 0
    selected, covered, used, half_is_full = _COVERAGE * sum(letters.values()), 0, 0, False
    chosen: list[str] = []
    for letter in sorted(letters, key=lambda c: (-letters[c], c)):
        cost = 1 + _continues(letter)
        if covered >= selected:
            break
        half_is_full = half_is_full or used + cost > size // 2
        if half_is_full and (cost > 1 or letters[letter] < minimum or used >= size):
            continue
        used += cost
        chosen.append(letter)
        covered += letters[letter]
    if covered < selected / 2:
        raise _too_small(vocab_size, num_special + 2 * sum(1 + _continues(letter) for letter in letters))
    if covered < _WARNED * sum(letters.values()):
        log.warning(
            "%.1f %% of the characters of the corpus are unknown to a vocabulary of %d tokens: %d of %d different "
            "characters have a token; raise data.vocab_size",
            100 - 100 * covered / sum(letters.values()),
            vocab_size,
            len(chosen),
            len(letters),
        )
    chosen.sort()
    return chosen + ["##" + c for c in chosen if _continues(c)]


def _continues(letter: str) -> bool:
    """Returns whether a character can be inside a word: punctuation and Chinese characters are words."""
    code = ord(letter)
    if code < 128:
        return letter.isalnum()
    return not unicodedata.category(letter).startswith("P") and not any(a <= code <= b for a, b in _CHINESE)


def _composing(steps: list[Any]) -> Any:
    """Returns a normalizer that composes text first (NFC): file systems and keyboards also give it in parts."""
    return normalizers.Sequence([normalizers.NFC(), *steps])


def train_byte_bpe(
    documents: list[str], family: TokenizerFamily, vocab_size: int, lowercase: bool
) -> HuggingFaceBackend:
    """Trains GPT-2's byte-level BPE. Texts get a leading space: a word is the same token at the start of a sentence.

    Args: those of `train_wordpiece`.
    """
    minimum = 256 + len(family.special) + 1
    if vocab_size < minimum:
        raise _too_small(vocab_size, minimum)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = _composing([normalizers.Lowercase()] if lowercase else [])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(family.last),
        min_frequency=_MIN_FREQUENCY,
        special_tokens=list(family.first),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    words = _without_endless_words(documents, tokenizer, _LONGEST_BPE_WORD)
    tokenizer.train_from_iterator(words, trainer, length=len(words))
    return _with_last_tokens(tokenizer, family)


def train_wordlevel(
    documents: list[str],
    family: TokenizerFamily,
    vocab_size: int,
    lowercase: bool,
    pattern: str | None = None,
    keep_spaces: bool = False,
) -> HuggingFaceBackend:
    """Trains a vocabulary of whole words, the most frequent ones first; others are unknown.

    Args:
        documents, family, vocab_size, lowercase: those of `train_wordpiece`.
        pattern: Regular expression of a word; None = everything between two spaces.
        keep_spaces: Spaces are text, too.

    Raises:
        UserError: `pattern` is not a regular expression.
    """
    tokenizer = tokenizers.Tokenizer(models.WordLevel(unk_token=family.roles["unk"]))
    strips = normalizers.BertNormalizer(handle_chinese_chars=False, clean_text=False)
    tokenizer.normalizer = strips if lowercase else _composing([])
    splits: list[Any] = [] if keep_spaces else [pre_tokenizers.WhitespaceSplit()]
    if pattern is not None:
        try:
            splits.append(pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"))
        except Exception as error:  # the library raises nothing narrower
            raise UserError(f"data.token_pattern={pattern!r} is not a regular expression: {one_line(error)}") from error
        tokenizer.decoder = decoders.Fuse()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size - len(family.last), special_tokens=list(family.first), show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer, length=len(documents))
    return _with_last_tokens(tokenizer, family)


def _with_last_tokens(tokenizer: Any, family: TokenizerFamily) -> HuggingFaceBackend:
    """Adds the family's `last` tokens inside the model, as in the released vocabularies: `vocab_size` counts them."""
    content = json.loads(tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    for token in family.last:
        vocabulary.setdefault(token, len(vocabulary))
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    add_special_tokens(tokenizer, family)
    return HuggingFaceBackend(tokenizer.to_str())


def train_sentencepiece(
    documents: list[str],
    family: TokenizerFamily,
    vocab_size: int,
    lowercase: bool,
    options: Mapping[str, Any],
) -> SentencePieceBackend:
    """Trains sentencepiece's unigram model or BPE with the special tokens of a family, `last` ones after the trained.

    Args:
        documents, family, vocab_size, lowercase: those of `train_wordpiece`.
        options: Options of the trainer.
    """
    import sentencepiece

    roles = family.roles
    index = {token: number for number, token in enumerate(family.first)}
    named = (roles["unk"], roles["pad"], "<s>", "</s>")
    settings: dict[str, Any] = {
        "vocab_size": vocab_size - len([p for p in family.last if p not in index]),
        "unk_id": index.get(roles["unk"], 0),
        "unk_piece": roles["unk"],
        "pad_id": index.get(roles["pad"], -1),
        "pad_piece": roles["pad"],
        "bos_id": index.get("<s>", -1),
        "eos_id": index.get("</s>", -1),
        "control_symbols": [token for token in family.first if token not in named],
        "normalization_rule_name": "nmt_nfkc",
        "num_threads": _UNIGRAM_THREADS,
        "max_sentence_length": 8 * _LINE_CHARS,  # bytes; longer lines would be left out silently
        "minloglevel": 3,
        **options,
        **({"normalization_rule_name": "nmt_nfkc_cf"} if lowercase else {}),
    }
    model = _run_sentencepiece(sentencepiece, documents, settings, vocab_size)
    return SentencePieceBackend(append_tokens(model, [NewToken(token) for token in family.last]), family, fold=False)


def _run_sentencepiece(sentencepiece: Any, documents: list[str], settings: dict[str, Any], vocab_size: int) -> bytes:
    """Trains, and again with the largest possible size if a small corpus has fewer tokens than requested."""
    for extra in ({}, {"hard_vocab_limit": False}):
        written = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_lines(documents), model_writer=written, **settings, **extra
            )
            return compose_text(written.getvalue())
        except RuntimeError as error:
            message = " ".join(str(error).split())
        needed = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
        if needed:
            raise _too_small(vocab_size, int(needed[1]) + 1)
        if "too high" not in message:
            break
    raise UserError(f"sentencepiece cannot train on this corpus ({message}); give more text or a smaller vocabulary")


def _lines(documents: list[str]) -> Iterator[str]:
    """Yields lines in NFC, long ones split: sentencepiece drops lines above its limit."""
    for document in documents:
        for line in unicodedata.normalize("NFC", document).split("\n"):
            line = line.replace("\0", " ")
            for start in range(0, len(line), _LINE_CHARS):
                yield line[start : start + _LINE_CHARS]


def _too_small(vocab_size: int, minimum: int) -> UserError:
    return UserError(
        f"data.vocab_size {vocab_size} is too small: single characters and special tokens alone need about {minimum}; "
        f"set data.vocab_size to {minimum} or more"
    )
