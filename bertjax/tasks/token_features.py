"""Features of token classification: the label of a word stands at its first token, its other tokens have none."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Sequence

import numpy as np

from bertjax.config.task import TaskConfig
from bertjax.data.corpus import offsets as ends_of
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_backends import HuggingFaceBackend
from bertjax.data.word_cache import FlatTokens, flatten_ids
from bertjax.tasks.features import Features, require_tokens, truncation_note
from bertjax.tasks.readers.examples import WordExamples
from bertjax.tasks.readers.labels import encode_labels
from bertjax.tasks.tag_schemes import describe_scheme, recognize_scheme
from bertjax.tasks.templates import (
    TEXTS_PER_CALL,
    TokenRanges,
    assemble_windows,
    concatenate,
    find_template,
    range_begins,
    runs,
)

OUTSIDE = "O"
_BLANKS = ("Ġ", "▁")  # how byte-level BPE and sentencepiece write the blank before a word


@dataclasses.dataclass(frozen=True, eq=False)
class TokenData:
    """Features of sentences, one window each, and the tokens of their words.

    Attributes:
        features: The windows.
        words: The words of every sentence.
        word_offsets: int64 [n + 1], where each sentence begins among all words.
        first_token_of_word: int64 [words], index into `features.tokens` of the token that carries the label; -1 if the
            word has none (truncated, or without tokens).
        labels: Names of the labels.
        notes: Remarks to print.
    """

    features: Features
    words: list[list[str]]
    word_offsets: np.ndarray
    first_token_of_word: np.ndarray
    labels: tuple[str, ...]
    notes: tuple[str, ...]

    def predicted_tags(self, predictions: np.ndarray) -> list[list[str]]:
        """Returns the tag of every word, from the label ids int [total] predicted for `features.tokens`.

        Words that the model did not read are O, or the first label if O is not a label.
        """
        default = self.labels.index(OUTSIDE) if OUTSIDE in self.labels else 0
        is_read = self.first_token_of_word >= 0
        ids = np.full(len(self.first_token_of_word), default)
        ids[is_read] = np.asarray(predictions)[self.first_token_of_word[is_read]]
        names = [self.labels[index] for index in ids.tolist()]
        return [names[begin:end] for begin, end in itertools.pairwise(self.word_offsets.tolist())]


def token_data(
    config: TaskConfig, examples: WordExamples, tokenizer: Tokenizer, labels: Sequence[str], training: bool = False
) -> TokenData:
    """Returns the features of token classification; a sentence beyond `task.max_length` loses words at its end.

    Args: as of `TaskKind.make_features`; `training` adds a remark on the scheme of the labels.

    Raises:
        UserError: a tag is unknown.
    """
    template = find_template(tokenizer, is_pair=False)
    lengths, ids = encode_words(tokenizer, list(itertools.chain.from_iterable(examples.words)))
    word_offsets = ends_of(list(map(len, examples.words)))
    token_offsets = ends_of(lengths)
    whole = TokenRanges(ids, token_offsets[word_offsets[:-1]], np.diff(token_offsets[word_offsets]))
    limit, side = config.max_length - template.num_special, tokenizer.spec.truncation_side
    part = whole.truncate(np.minimum(whole.lengths, limit), side)
    tokens, offsets, types, summary = assemble_windows(template, [part])
    require_tokens(offsets, np.arange(len(examples)), examples.locations)

    sentence = np.repeat(np.arange(len(examples)), np.diff(word_offsets))
    position = token_offsets[:-1] - part.starts[sentence]  # of the first token of every word, in its text
    is_read = (lengths > 0) & (position >= 0) & (position < part.lengths[sentence])
    begin = offsets[:-1] + range_begins(template, [part], 0)
    first_token = np.where(is_read, begin[sentence] + position, -1)

    values = {}
    if examples.tags is not None:
        tags = itertools.chain.from_iterable(examples.tags)
        label_ids = encode_labels(labels, tags, examples.locations, sentence.tolist())
        values["token_labels"] = np.full(len(tokens), -1, np.int32)
        values["token_labels"][first_token[is_read]] = label_ids[is_read]
    about_labels = [describe_scheme(recognize_scheme(labels, config.spec.tag_scheme))] if training else []
    notes = (*about_labels, *examples.notes, *_truncation_notes(config, whole, part, lengths, is_read))
    features = Features(tokens, offsets, types, np.arange(len(examples), dtype=np.int32), summary, values)
    return TokenData(features, examples.words, word_offsets, first_token, tuple(labels), notes)


def _truncation_notes(
    config: TaskConfig, whole: TokenRanges, part: TokenRanges, lengths: np.ndarray, is_read: np.ndarray
) -> list[str]:
    num_empty = int((lengths == 0).sum())
    num_truncated = int((part.lengths < whole.lengths).sum())
    reason = f"task.max_length={config.max_length}; {int((~is_read).sum()) - num_empty:,} words are not read"
    notes = truncation_note(num_truncated, len(part.lengths), reason, "sentences")
    if num_empty:
        notes.append(f"{num_empty:,} words have no tokens (the tokenizer drops their characters) and no prediction")
    return notes


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> FlatTokens:
    """Returns the token counts of the words of sentences, int64 [n], and their ids, int32 end to end.

    Every word is encoded separately, as by transformers with `is_split_into_words`, so no token crosses the end of a
    word; by `tokenizer_of_words`, as inside a text.
    """
    index: dict[str, int] = {}
    which = np.fromiter((index.setdefault(word, len(index)) for word in words), np.int64, len(words))
    engine = tokenizer_of_words(tokenizer).engine
    groups = []
    distinct = list(index)
    for begin in range(0, len(distinct), TEXTS_PER_CALL):
        group = [[word] for word in distinct[begin : begin + TEXTS_PER_CALL]]
        encodings = engine.encode_batch_fast(group, is_pretokenized=True, add_special_tokens=False)
        groups.append(flatten_ids([encoding.ids for encoding in encodings]))
    lengths, ids = concatenate(groups)
    begins = ends_of(lengths)[:-1]
    return lengths[which], ids[runs(begins[which], lengths[which])]


@functools.lru_cache(maxsize=8)
def tokenizer_of_words(tokenizer: Tokenizer) -> Tokenizer:
    """Returns the tokenizer that reads the first word of a text as any other, with a blank before it.

    Byte-level BPE without `add_prefix_space` would take it for the continuation of a word.
    """
    if not _needs_blank(tokenizer):
        return tokenizer
    content = json.loads(tokenizer.engine.to_str())
    if content["pre_tokenizer"]["type"] == "ByteLevel":
        content["pre_tokenizer"]["add_prefix_space"] = True
    else:  # after other splitters the option would put a blank before every part of a word
        steps = [{"type": "Prepend", "prepend": " "}, *([content["normalizer"]] if content["normalizer"] else [])]
        content["normalizer"] = {"type": "Sequence", "normalizers": steps}
    if "add_prefix_space" in (content["post_processor"] or {}):  # offsets of the first token
        content["post_processor"]["add_prefix_space"] = True
    backend = HuggingFaceBackend(json.dumps(content, ensure_ascii=False))
    result = Tokenizer(backend, tokenizer.family, tokenizer.lowercase, tokenizer.spec)
    result.token_types = tokenizer.token_types
    return result


def _needs_blank(tokenizer: Tokenizer) -> bool:
    """Returns whether a word without a blank before it would be taken for the continuation of another word."""
    splitter, normalizer = tokenizer.engine.pre_tokenizer, tokenizer.engine.normalizer
    if splitter is None:
        return False
    texts = [text if normalizer is None else normalizer.normalize_str(text) for text in ("a", " a")]
    bare, after_blank = (splitter.pre_tokenize_str(text)[0][0] for text in texts)
    return after_blank.startswith(_BLANKS) and not bare.startswith(_BLANKS)
