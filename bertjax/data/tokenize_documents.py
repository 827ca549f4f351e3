"""Documents to token ids: sentences are found, encoded and counted. The work that preparing a corpus consists of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.data.counter_rng import IntArray
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, one_line

CHARACTERS_PER_BATCH = 1 << 20  # of documents: a second of work for a process
CHARACTERS_PER_CALL = 1 << 18  # of the sentences of one tokenizer call: what a processor's cache holds
CHARACTERS_PER_SENTENCE = 1 << 18  # longer ones are cut: tokenizers need memory in proportion, or worse

Splitter = Callable[[str], list[str]]


class TokenizedDocuments(NamedTuple):
    """Tokenized documents, end to end.

    `document_sentences` int32 [documents], 0 where a document has no token, `sentence_lengths` int32 [their sum] in
    tokens, and `ids` uint16 or int32.
    """

    document_sentences: np.ndarray
    sentence_lengths: np.ndarray
    ids: np.ndarray


class DocumentError(Exception):
    """Document number `index` of a batch cannot be tokenized; `reason` is one line."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index, self.reason = index, reason


def id_type(vocab_size: int) -> np.dtype:
    """The smallest type that holds the ids of a corpus."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)


def tokenize_documents(documents: Sequence[str], tokenizer: Tokenizer, split_sentences: Splitter) -> TokenizedDocuments:
    """Tokenizes a batch of documents.

    Args:
        documents: Texts.
        tokenizer: Tokenizer of the corpus.
        split_sentences: Splits a document into sentences.

    Raises:
        DocumentError: A document cannot be tokenized; the error has its index.
    """
    try:
        return _encode(documents, tokenizer, split_sentences)
    except Exception:
        for index, document in enumerate(documents):
            try:
                _encode([document], tokenizer, split_sentences)
            except UserError as error:
                raise DocumentError(index, str(error)) from error
            except Exception as error:  # of tokenizer libraries, which have no type of their own
                raise DocumentError(index, f"{type(error).__name__}: {one_line(error)}") from error
        raise


def _encode(documents: Sequence[str], tokenizer: Tokenizer, split_sentences: Splitter) -> TokenizedDocuments:
    sentences = [_cut(split_sentences(document)) for document in documents]
    counts = np.fromiter(map(len, sentences), np.int64, len(sentences))
    lengths, ids = _flat([sentence for group in sentences for sentence in group], tokenizer)
    document = np.repeat(np.arange(len(documents)), counts)[lengths > 0]
    return TokenizedDocuments(
        np.bincount(document, minlength=len(documents)).astype(np.int32),
        lengths[lengths > 0].astype(np.int32),
        ids.astype(id_type(tokenizer.size), copy=False),
    )


def _flat(sentences: list[str], tokenizer: Tokenizer) -> tuple[IntArray, np.ndarray]:
    """The token counts of the sentences, and all their ids end to end, none outside the vocabulary."""
    parts = batches(sentences, len(sentences), CHARACTERS_PER_CALL)
    results = [tokenizer.encode_flat(part) for part in parts]
    if not results:
        return np.zeros(0, np.int64), np.zeros(0, np.int32)
    ids = np.concatenate([ids for _, ids in results])
    if ids.size and not 0 <= ids.min() <= ids.max() < tokenizer.size:
        wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
        raise UserError(
            f"the tokenizer gave id {wrong}, outside its own vocabulary of {tokenizer.size} tokens; its files do not "
            "belong together"
        )
    return np.concatenate([lengths for lengths, _ in results]), ids


def batches(texts: Iterable[str], maximum: int, max_characters: int | None = None) -> Iterator[list[str]]:
    """Yields groups of texts.

    Args:
        texts: Texts in order.
        maximum: Maximum number of texts per group.
        max_characters: Maximum characters per group unless a single text is longer; None = a million.
    """
    max_characters = CHARACTERS_PER_BATCH if max_characters is None else max_characters
    group: list[str] = []
    characters = 0
    for text in texts:
        if group and (len(group) == maximum or characters + len(text) > max_characters):
            yield group
            group, characters = [], 0
        group.append(text)
        characters += len(text)
    if group:
        yield group


def _cut(sentences: list[str]) -> list[str]:
    """Cuts gigantic sentences (texts without any punctuation), at a space where there is one."""
    if all(len(sentence) <= CHARACTERS_PER_SENTENCE for sentence in sentences):
        return sentences
    parts: list[str] = []
    for sentence in sentences:
        begin = 0
        while len(sentence) - begin > CHARACTERS_PER_SENTENCE:
            end = sentence.rfind(" ", begin + 1, begin + CHARACTERS_PER_SENTENCE)
            end = begin + CHARACTERS_PER_SENTENCE if end < 0 else end
            parts.append(sentence[begin:end])
            begin = end
        parts.append(sentence[begin:])
    return parts
