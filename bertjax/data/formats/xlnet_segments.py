"""Formats of continuous text: `segments` (XLNet) and `stream` (Transformer-XL).

A corpus, or some shards of a large one, is one long text, with a token after each document, cut into as many equal
streams as a batch has sequences. Sequence i of batch t continues sequence i of batch t - 1, so that a model can carry
memory. With `bi_data` there are half as many streams, and the second half of the batch reads the same streams backwards
(zihangdai/xlnet:data_utils.py, create_tfrecords).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bertjax.data.corpus import Corpus
from bertjax.data.counter_rng import CounterRng, IntArray, UInt64Array, bits_to_integers
from bertjax.data.formats.base import ExampleFormat, FormatSettings, example_ids
from bertjax.data.formats.sentence_pairs import truncate_lengths
from bertjax.errors import UserError

SPECIALS = 3  # [SEP], [SEP], [CLS]
MIN_TOKENS = 2  # one token per segment
HALF = np.uint64(1) << np.uint64(63)  # random bits are below it with probability 1/2


class DocumentStream:
    """Documents of a corpus end to end, each followed by `end_id`; positions count these tokens as well."""

    def __init__(self, corpus: Corpus, end_id: int) -> None:
        self._corpus, self._end_id = corpus, end_id
        self._begins = corpus.document_tokens + np.arange(corpus.num_documents + 1)

    @property
    def length(self) -> int:
        """Number of tokens of the stream, the token after each document included."""
        return int(self._begins[-1])

    def gather(
        self, starts: IntArray, lengths: IntArray, out: np.ndarray, columns: IntArray, rows: IntArray | None = None
    ) -> None:
        """Copies slices, each of any number of documents. Args: those of `Corpus.gather`."""
        stops = starts + lengths
        first = np.searchsorted(self._begins, starts, side="right") - 1
        counts = np.where(lengths > 0, np.searchsorted(self._begins, stops, side="left") - first, 0)
        slice_of = np.repeat(np.arange(len(starts)), counts)
        document = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        begin = np.maximum(starts[slice_of], self._begins[document])
        end = np.minimum(stops[slice_of], self._begins[document + 1])
        is_last = end == self._begins[document + 1]
        sizes, column = end - begin - is_last, columns[slice_of] + begin - starts[slice_of]
        row = slice_of if rows is None else rows[slice_of]
        out[row[is_last], (column + sizes)[is_last]] = self._end_id
        has_text = sizes > 0
        parts = self._corpus.read((begin - document)[has_text], sizes[has_text])
        for r, c, ids in zip(row[has_text].tolist(), column[has_text].tolist(), parts, strict=True):
            out[r, c : c + len(ids)] = ids

    def sentences_before(self, positions: IntArray) -> IntArray:
        """Returns the number of sentences that begin before each position; an end belongs to the last sentence."""
        document = np.searchsorted(self._begins, positions, side="right") - 1
        return np.searchsorted(self._corpus.sentence_tokens[:-1], positions - document, side="left")

    def sentence_begins(self, numbers: IntArray) -> IntArray:
        """Returns the positions at which sentences begin; the number of all sentences stands for the end."""
        document = np.searchsorted(self._corpus.document_sentences, numbers, side="right") - 1
        return self._corpus.sentence_tokens[numbers] + document


class StreamReader(NamedTuple):
    """Streams that some sequences read, int64 [n]: positions [low, high) of the text, from the end where `backward`.

    The methods count in steps: the number of tokens of the stream before a position.
    """

    text: DocumentStream
    low: IntArray
    high: IntArray
    backward: np.ndarray  # bool

    def starts(self, steps: IntArray, lengths: IntArray) -> IntArray:
        """Returns where in the text the slices of these lengths from these steps on begin."""
        return np.where(self.backward, self.high - steps - lengths, self.low + steps)

    def next_boundary(self, steps: IntArray) -> IntArray:
        """Returns the first sentence boundary at or after a step, at most the end of the stream."""
        return self._steps(np.where(self.backward, self._below(self.high - steps), self._above(self.low + steps)))

    def previous_boundary(self, steps: IntArray) -> IntArray:
        """Returns the last sentence boundary at or before a step, at least the beginning of the stream."""
        return self._steps(np.where(self.backward, self._above(self.high - steps), self._below(self.low + steps)))

    def random_boundary(self, start: IntArray, length: int, bits: UInt64Array) -> tuple[IntArray, IntArray]:
        """Draws a sentence boundary inside the next `length` steps.

        Args:
            start: int64 [n], steps.
            length: length of the search range.
            bits: uint64 [n], random bits.

        Returns:
            The number of boundaries inside the range, and one of them; arbitrary where there is none.
        """
        first = np.where(self.backward, self.high - start - length, self.low + start) + 1
        begin, end = self.text.sentences_before(first), self.text.sentences_before(first + length - 1)
        return end - begin, self._steps(self.text.sentence_begins(begin + bits_to_integers(bits, end - begin)))

    def _steps(self, positions: IntArray) -> IntArray:
        inside = np.clip(positions, self.low, self.high)
        return np.where(self.backward, self.high - inside, inside - self.low)

    def _above(self, positions: IntArray) -> IntArray:
        return self.text.sentence_begins(self.text.sentences_before(positions))

    def _below(self, positions: IntArray) -> IntArray:
        return self.text.sentence_begins(self.text.sentences_before(positions + 1) - 1)


class StreamLayout:
    """Equal cuts of one text, one per sequence of a batch; the next sequence begins `advance` tokens later."""

    def __init__(self, corpus: Corpus, settings: FormatSettings, advance: int) -> None:
        self.settings, self.advance = settings, advance
        self._corpus = corpus
        self._text = DocumentStream(corpus, settings.sep_id if settings.end_id < 0 else settings.end_id)
        batch_size = settings.batch_size
        if batch_size < 1:
            raise UserError(f"the batch size must be at least 1, not {batch_size}")
        if settings.bi_data and batch_size % 2:
            raise UserError(
                "model.bi_data reads half of the sequences backwards: train.batch_size and eval.batch_size must be "
                f"even, not {batch_size}"
            )
        self._num_streams = batch_size // 2 if settings.bi_data else batch_size
        self._length = self._text.length // self._num_streams

    @property
    def num_sequences(self) -> int:
        """Sequences of an epoch, without the ends of the streams that do not fill a sequence.

        Raises:
            UserError: The text is too short.
        """
        if self._length < self.settings.seq_len:
            raise UserError(
                f"{self._text.length:,} tokens are too few for {self._num_streams} streams with sequences of "
                f"{self.settings.seq_len}: give more text, or lower train.batch_size, eval.batch_size or data.seq_len"
            )
        batches = (self._length - self.settings.seq_len) // self.advance + 1
        return batches * self.settings.batch_size

    def find(self, indices: IntArray) -> tuple[StreamReader, IntArray]:
        """Returns the reader of these sequences, and the steps at which they begin."""
        batch, row = np.divmod(indices, self.settings.batch_size)
        low = row % self._num_streams * self._length
        return StreamReader(self._text, low, low + self._length, row >= self._num_streams), batch * self.advance

    def common_fields(self, reader: StreamReader, steps: IntArray, epoch: int) -> dict[str, np.ndarray]:
        """Returns the batch fields [B, S] of sequences without padding; text read backwards is another example.

        Args:
            reader, steps: result of `find`.
            epoch: number of the epoch.
        """
        shape, one = (len(steps), self.settings.seq_len), (len(steps), 1)
        begins = np.where(reader.backward, self._text.length + reader.high - steps, reader.low + steps)
        fields = {
            "segment_ids": np.ones(shape, np.int32),
            "position_ids": np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1)),
            "example_positions": np.full(one, shape[1] - 1, np.int32),
            "example_weights": np.ones(one, np.float32),
            "example_ids": example_ids(self._corpus, begins)[:, None],
            "example_epochs": np.full(one, epoch, np.uint32),
            "example_draws": np.full(one, epoch % self.settings.dupe_factor, np.uint32),
        }
        return fields | ({"backward": reader.backward} if self.settings.bi_data else {})


class StreamFormat(ExampleFormat):
    """Plain text: every sequence is the next `seq_len` tokens of its stream."""

    def __init__(self, corpus: Corpus, settings: FormatSettings) -> None:
        self.settings = settings
        self._layout = StreamLayout(corpus, settings, settings.seq_len)

    def num_sequences(self, epoch: int) -> int:
        return self._layout.num_sequences

    def sequences(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        reader, steps = self._layout.find(indices)
        ids, _ = _read_slices(reader, [(steps, np.full_like(steps, self.settings.seq_len))], self.settings.seq_len)
        fields = self._layout.common_fields(reader, steps, epoch)
        return {"input_ids": ids, "token_type_ids": np.zeros_like(ids)} | fields


class XLNetSegmentFormat(ExampleFormat):
    """Sequences of XLNet: `reuse_len` tokens that the next sequence does not repeat, then A [SEP] B [SEP] [CLS].

    A begins where the reused tokens end. B follows A half of the time, otherwise it is text from anywhere in the
    stream. The next sequence continues after the reused tokens, and reads the text of A again. Token types:
    0 up to A's [SEP], 1 up to B's, 2 for [CLS].
    """

    def __init__(self, corpus: Corpus, settings: FormatSettings) -> None:
        if not 1 <= settings.reuse_len <= settings.seq_len - SPECIALS - MIN_TOKENS:
            raise UserError(
                f"model.reuse_len={settings.reuse_len} must leave space in data.seq_len={settings.seq_len} for two "
                f"segments and {SPECIALS} special tokens"
            )
        self.settings = settings
        self._layout = StreamLayout(corpus, settings, settings.reuse_len)

    def num_sequences(self, epoch: int) -> int:
        return self._layout.num_sequences

    def sequences(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        settings = self.settings
        reader, steps = self._layout.find(indices)
        begin, size = steps + settings.reuse_len, settings.seq_len - settings.reuse_len - SPECIALS
        segments = _split_segments(reader, begin, size, self._random_bits(epoch, indices))
        reused = (steps, np.full_like(steps, settings.reuse_len))
        ids, ends = _read_slices(reader, [reused, *segments], settings.seq_len, gaps=(0, 1))
        row, a_end, b_end = np.arange(len(ids)), ends[1], ends[2]
        ids[row, a_end] = ids[row, b_end] = settings.sep_id
        ids[:, -1] = settings.cls_id
        types = (np.arange(settings.seq_len) > a_end[:, None]).astype(np.int32)
        types[:, -1] = 2
        return {"input_ids": ids, "token_type_ids": types} | self._layout.common_fields(reader, steps, epoch)

    def _random_bits(self, epoch: int, indices: IntArray) -> UInt64Array:
        """Returns uint64 [3, n], which repeat after `dupe_factor` epochs."""
        size, draw = self.settings.batch_size, epoch % self.settings.dupe_factor
        bits = np.zeros((3, len(indices)), np.uint64)
        for batch in np.unique(indices // size).tolist():
            drawn = CounterRng("segments", self.settings.seed, draw, batch).random_bits(3 * size).reshape(3, size)
            here = indices // size == batch
            bits[:, here] = drawn[:, indices[here] % size]
        return bits


Slice = tuple[IntArray, IntArray]
"""Steps at which slices begin, and their lengths."""


def _split_segments(reader: StreamReader, begin: IntArray, total: int, bits: UInt64Array) -> tuple[Slice, Slice]:
    """Returns A and B of `total` tokens together, by the rule of zihangdai/xlnet:data_utils.py, _split_a_and_b.

    A ends at a random sentence boundary inside the next `total` tokens. Where there is none, A takes the whole
    sentence, and B is random text in any case.
    """
    length = reader.high - reader.low
    num_boundaries, boundary = reader.random_boundary(begin, total, bits[1])
    run_end = reader.next_boundary(begin + total)
    a_end = np.where(num_boundaries == 0, run_end, boundary)
    is_random = (num_boundaries == 0) | (bits[0] < HALF)
    target = np.maximum(total - (a_end - begin), 1)
    anywhere = bits_to_integers(bits[2], length - target)
    b_begin = np.where(is_random, reader.previous_boundary(anywhere), a_end)
    b_end = np.where(is_random, np.minimum(reader.next_boundary(anywhere + target), length - 1), run_end)
    a_length, b_length = a_end - begin, b_end - b_begin
    a_length, b_length = truncate_lengths(a_length, b_length, a_length + b_length - total)
    return (begin, a_length), (b_begin, b_length)


def _read_slices(
    reader: StreamReader, slices: list[Slice], seq_len: int, gaps: tuple[int, ...] = ()
) -> tuple[np.ndarray, list[IntArray]]:
    """Returns int32 [n, seq_len] with slices one after the other, `gaps` columns apart, and the end of each.

    Backward sequences are read forwards from the text, and then every slice is reversed.
    """
    num_rows, columns = len(reader.low), np.arange(seq_len)
    ids = np.zeros((num_rows, seq_len), np.int32)
    source = np.tile(columns, (num_rows, 1))
    column, ends = np.zeros(num_rows, np.int64), []
    for (steps, lengths), gap in zip(slices, (*gaps, 0), strict=True):
        reader.text.gather(reader.starts(steps, lengths), lengths, ids, column)
        end = column + lengths
        reverse = reader.backward[:, None] & (columns >= column[:, None]) & (columns < end[:, None])
        source = np.where(reverse, (column + end - 1)[:, None] - columns, source)
        ends.append(end)
        column = end + gap
    return np.take_along_axis(ids, source, axis=1), ends
