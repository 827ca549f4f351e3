"""Sentences of words to pieces and back: a label on the first piece of every word, none on the others."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from bertjax.config.task import TaskConfig
from bertjax.data.corpus import offsets as ends_of
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.word_cache import FlatTokens, flatten_ids
from bertjax.finetuning.features import Features, require_tokens, truncation_note
from bertjax.finetuning.readers.examples import WordExamples
from bertjax.finetuning.readers.load import encode_labels
from bertjax.finetuning.templates import (
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
    """Features of sentences, one window each, and where their words are.

    words: the words of every sentence · word_offsets int64 [n + 1], where each sentence begins in the words of all ·
    first_piece int64 [words], the place in `features.tokens` of the piece that speaks for a word, -1 where none was
    kept (cut off, or a word without pieces) · labels: the names · ids: of the sentences · notes: what there is to say.
    """

    features: Features
    words: list[list[str]]
    word_offsets: np.ndarray
    first_token_of_word: np.ndarray
    labels: tuple[str, ...]
    ids: list[str]
    notes: tuple[str, ...]

    def predicted_tags(self, predictions: np.ndarray) -> list[list[str]]:
        """The tag of every word, by the numbers int [total] predicted for `features.tokens`.

        Words that the model did not see are O, or the first label where there is no O.
        """
        default = self.labels.index(OUTSIDE) if OUTSIDE in self.labels else 0
        seen = self.first_token_of_word >= 0
        numbers = np.full(len(self.first_token_of_word), default)
        numbers[seen] = np.asarray(predictions)[self.first_token_of_word[seen]]
        names = [self.labels[number] for number in numbers.tolist()]
        ends = self.word_offsets.tolist()
        return [names[begin:end] for begin, end in itertools.pairwise(ends)]


def token_data(config: TaskConfig, examples: WordExamples, tokenizer: Tokenizer, labels: Sequence[str]) -> TokenData:
    """The features of token classification; a sentence beyond `task.max_length` loses its last words.

    Raises `UserError` for unknown tags.
    """
    template = find_template(tokenizer, is_pair=False)
    lengths, ids = encode_words(tokenizer, list(itertools.chain.from_iterable(examples.words)))
    word_offsets = ends_of(list(map(len, examples.words)))
    piece_begins = ends_of(lengths)
    part = TokenRanges(ids, piece_begins[word_offsets[:-1]], np.diff(piece_begins[word_offsets]))
    whole, part = part, part.cut(np.minimum(part.lengths, config.max_length - template.num_special))
    tokens, offsets, types, summary_position = assemble_windows(template, [part])
    require_tokens(offsets, np.arange(len(examples)), examples.places)

    sentence = np.repeat(np.arange(len(examples)), np.diff(word_offsets))
    place = piece_begins[:-1] - part.starts[sentence]  # of the first piece of every word, in its text
    is_seen = (lengths > 0) & (place < part.lengths[sentence])
    begin = offsets[:-1] + range_begins(template, [part], 0)
    first_token_of_word = np.where(is_seen, begin[sentence] + place, -1)

    values = {}
    if examples.tags is not None:
        numbers = encode_labels(
            labels, itertools.chain.from_iterable(examples.tags), examples.places, sentence.tolist()
        )
        values["token_labels"] = np.full(len(tokens), -1, np.int32)
        values["token_labels"][first_token_of_word[is_seen]] = numbers[is_seen]
    notes = [*examples.notes, *_cut_notes(config, whole, part, lengths, is_seen)]
    features = Features(tokens, offsets, types, np.arange(len(examples), dtype=np.int32), summary_position, values)
    return TokenData(
        features, examples.words, word_offsets, first_token_of_word, tuple(labels), examples.ids, tuple(notes)
    )


def _cut_notes(
    config: TaskConfig, whole: TokenRanges, part: TokenRanges, lengths: np.ndarray, is_seen: np.ndarray
) -> list[str]:
    num_empty = int((lengths == 0).sum())
    num_lost = int((~is_seen).sum()) - num_empty
    num_truncated = int((part.lengths < whole.lengths).sum())
    why = f"task.max_length={config.max_length}; {num_lost:,} words are not seen"
    notes = truncation_note(num_truncated, len(part.lengths), why, "sentences")
    if num_empty:
        notes.append(f"{num_empty:,} words have no pieces (the tokenizer drops their characters) and no prediction")
    return notes


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> FlatTokens:
    """The pieces of words that stand in sentences: their numbers int64 [n], and the ids int32 end to end.

    Every word is encoded by itself, as transformers does with `is_split_into_words`: no piece goes over the end of a
    word. Byte-level BPE takes it with a blank in front (transformers: `add_prefix_space=True`), so that words look as
    they do inside a text. Words that come again are asked for once.
    """
    places: dict[str, int] = {}
    which = np.fromiter((places.setdefault(word, len(places)) for word in words), np.int64, len(words))
    blank = " " if _needs_blank(tokenizer) else ""
    found = []
    distinct = list(places)
    for begin in range(0, len(distinct), TEXTS_PER_CALL):
        group = [[blank + word] for word in distinct[begin : begin + TEXTS_PER_CALL]]
        encodings = tokenizer.engine.encode_batch_fast(group, is_pretokenized=True, add_special_tokens=False)
        found.append(flatten_ids([encoding.ids for encoding in encodings]))
    lengths, ids = concatenate(found)
    begins = ends_of(lengths)[:-1]
    return lengths[which], ids[runs(begins[which], lengths[which])]


def _needs_blank(tokenizer: Tokenizer) -> bool:
    """Whether a word without a blank before it would be taken for the rest of another one."""
    splitter = tokenizer.engine.pre_tokenizer
    if splitter is None:
        return False
    bare, behind_blank = (splitter.pre_tokenize_str(text)[0][0] for text in ("a", " a"))
    return behind_blank.startswith(_BLANKS) and not bare.startswith(_BLANKS)
