"""Training of WordPiece, byte-level BPE and unigram vocabularies, the same bytes on any number of threads."""

from __future__ import annotations

import hashlib
import io
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bertjax.data.special_tokens import TokenizerFamily, family_of
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_backends import (
    Backend,
    HuggingFaceBackend,
    SentencePieceBackend,
    add_special_tokens,
    append_control_tokens,
    bert_pipeline,
    wordpiece_backend,
)
from bertjax.errors import UserError, require_one_of

_COVERAGE = 0.9999  # share of the characters of a corpus that get pieces of their own; rarer ones are [UNK]
_MIN_FREQUENCY = 2  # a merge that was seen once is no regularity
_LINE_CHARS = 4000
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
    seed: int = 0,
    max_chars: int = 200_000_000,
) -> Tokenizer:
    """Train a vocabulary; equal documents give equal bytes on any number of threads.

    `model` is wordpiece, bpe or unigram; `lowercase` None is the family's habit. A corpus beyond `max_chars` characters
    is sampled by document hash and `seed`; that sample is held in memory. A small corpus gives fewer pieces than
    `vocab_size`: `size` tells the truth. Raises `UserError` for no text or no room for single characters.
    """
    trainers: dict[str, Callable[[list[str], TokenizerFamily, int, bool], Backend]] = {
        "wordpiece": train_wordpiece,
        "bpe": train_byte_bpe,
        "unigram": train_unigram,
    }
    require_one_of("tokenizer model", model, trainers)
    spec = family_of(family)
    lowercase = spec.lowercase if lowercase is None else lowercase
    sample = sample_documents(documents, max_chars, seed)
    if not any(text and not text.isspace() for text in sample):
        raise UserError("the corpus holds no text to train a tokenizer on; check data.sources")
    return Tokenizer(trainers[model](sample, spec, vocab_size, lowercase), family, lowercase)


def sample_documents(documents: Iterable[str], max_chars: int, seed: int) -> list[str]:
    """At most about `max_chars` of text: all documents, or those whose hash lies below a falling bound.

    Which documents are kept depends on their text and the seed, never on their order.
    """
    kept = list[str]()
    share, chars = 1.0, 0
    for document in documents:
        if share == 1.0 or _fraction(document, seed) < share:
            kept.append(document)
            chars += len(document)
        while chars > max_chars and len(kept) > 1:
            share /= 2
            least = min(kept, key=lambda text: _fraction(text, seed))
            kept = [text for text in kept if _fraction(text, seed) < share] or [least]
            chars = sum(map(len, kept))
    return kept


def _fraction(document: str, seed: int) -> float:
    digest = hashlib.blake2b(document.encode(), digest_size=8, salt=seed.to_bytes(16, "big")).digest()
    return int.from_bytes(digest, "big") / 2**64


def train_wordpiece(
    documents: list[str], family: TokenizerFamily, vocab_size: int, lowercase: bool
) -> HuggingFaceBackend:
    """BERT's recipe. The trainer numbers characters in hash order and breaks ties by number, so they are given."""
    import tokenizers
    from tokenizers import models, trainers

    scratch = tokenizers.Tokenizer(models.WordPiece(unk_token=family.roles["unk"]))
    bert_pipeline(scratch, lowercase)
    given = [*family.first, *_alphabet(documents, scratch.normalizer, vocab_size, len(family.special))]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size - len(family.last),
        min_frequency=_MIN_FREQUENCY,
        special_tokens=given,
        limit_alphabet=0,  # no others than the given ones
        show_progress=False,
    )
    scratch.train_from_iterator(documents, trainer, length=len(documents))
    pieces = sorted(scratch.get_vocab().items(), key=lambda item: item[1])
    names = [name for name, _ in pieces] + list(family.last)
    return wordpiece_backend(names, family, lowercase)


def _alphabet(documents: list[str], normalizer: Any, vocab_size: int, num_special: int) -> list[str]:
    """The single-character pieces, by code point: word openers, then "##" continuations of those that can continue.

    Takes the most frequent characters up to `_COVERAGE`, but never more than half of the vocabulary.
    Raises `UserError` where that would leave more than half of the text unknown.
    """
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(normalizer.normalize_str(document))
    letters = {c: n for c, n in counts.items() if not c.isspace() and c != "\ufffd"}
    wanted, covered, used = _COVERAGE * sum(letters.values()), 0, 0
    chosen: list[str] = []
    for letter in sorted(letters, key=lambda c: (-letters[c], c)):
        used += 1 + _continues(letter)
        if covered >= wanted or used > (vocab_size - num_special) // 2:
            break
        chosen.append(letter)
        covered += letters[letter]
    if covered < wanted / 2:
        raise _too_small(vocab_size, num_special + 2 * sum(1 + _continues(letter) for letter in letters))
    chosen.sort()
    return chosen + ["##" + c for c in chosen if _continues(c)]


def _continues(letter: str) -> bool:
    """Whether a character can stand inside a word: punctuation and Chinese characters are words of their own."""
    code = ord(letter)
    if code < 128:
        return letter.isalnum()
    return not unicodedata.category(letter).startswith("P") and not any(a <= code <= b for a, b in _CHINESE)


def train_byte_bpe(
    documents: list[str], family: TokenizerFamily, vocab_size: int, lowercase: bool
) -> HuggingFaceBackend:
    """GPT-2's byte-level BPE. Texts get a leading space: a word is the same piece at the start of a sentence."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    least = 256 + len(family.special) + 1
    if vocab_size < least:
        raise _too_small(vocab_size, least)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    steps: list[Any] = [normalizers.NFC()] if not family.first else []  # ModernBERT composes accents
    steps += [normalizers.Lowercase()] if lowercase else []
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(family.last),
        min_frequency=_MIN_FREQUENCY,
        special_tokens=list(family.first),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer, length=len(documents))
    content = json.loads(tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    for (
        piece
    ) in family.last:  # inside the model as in the released vocabularies: `vocab_size` of transformers counts them
        vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    add_special_tokens(tokenizer, family)
    return HuggingFaceBackend(tokenizer.to_str())


def train_unigram(
    documents: list[str], family: TokenizerFamily, vocab_size: int, lowercase: bool
) -> SentencePieceBackend:
    """Sentencepiece's unigram model with the family's special pieces inside, `last` ones behind the trained pieces."""
    import sentencepiece

    roles = family.roles
    index = {piece: number for number, piece in enumerate(family.first)}
    named = (roles["unk"], roles["pad"], "<s>", "</s>")
    settings: dict[str, Any] = {
        "model_type": "unigram",
        "vocab_size": vocab_size - len([p for p in family.last if p not in index]),
        "unk_id": index.get(roles["unk"], 0),
        "unk_piece": roles["unk"],
        "pad_id": index.get(roles["pad"], -1),
        "pad_piece": roles["pad"],
        "bos_id": index.get("<s>", -1),
        "eos_id": index.get("</s>", -1),
        "control_symbols": [piece for piece in family.first if piece not in named],
        "normalization_rule_name": "nmt_nfkc_cf" if lowercase else "nmt_nfkc",
        "num_threads": _UNIGRAM_THREADS,
        "required_chars": "▁",  # opens every text; so rare in text without spaces that it would be unknown
        "max_sentence_length": 8 * _LINE_CHARS,  # bytes; longer lines would be left out silently
        "minloglevel": 3,
    }
    model = _run_sentencepiece(sentencepiece, documents, settings, vocab_size)
    return SentencePieceBackend(append_control_tokens(model, family.last), family, fold=False)


def _run_sentencepiece(sentencepiece: Any, documents: list[str], settings: dict[str, Any], vocab_size: int) -> bytes:
    """Train, and once more with all the pieces that a small corpus has when it has fewer than were asked for."""
    for extra in ({}, {"hard_vocab_limit": False}):
        written = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_lines(documents), model_writer=written, **settings, **extra
            )
            return written.getvalue()
        except RuntimeError as error:
            message = " ".join(str(error).split())
        needed = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
        if needed:
            raise _too_small(vocab_size, int(needed[1]) + 1)
        if "too high" not in message:
            break
    raise UserError(f"sentencepiece cannot train on this corpus ({message}); give more text or a smaller vocabulary")


def _lines(documents: list[str]) -> Iterator[str]:
    """Lines, and long ones in parts: sentencepiece leaves out what is longer than its limit."""
    for document in documents:
        for line in document.split("\n"):
            line = line.replace("\0", " ")
            for start in range(0, len(line), _LINE_CHARS):
                yield line[start : start + _LINE_CHARS]


def _too_small(vocab_size: int, least: int) -> UserError:
    return UserError(
        f"data.vocab_size {vocab_size} is too small: single characters and special pieces alone need about {least}; "
        f"set data.vocab_size to {least} or more"
    )
