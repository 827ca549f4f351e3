"""The forms of one text that goes on from batch to batch: `segments` (XLNet) and `stream` (Transformer-XL).

The corpus is one long text, a piece for the end of each document behind it, cut into as many equal streams as a batch
has rows. Row r of batch t goes on where row r of batch t - 1 left off, so that a model may remember what it read. With
`bi_data` there are half as many streams, and the second half of the rows reads the same streams from their ends
(zihangdai/xlnet:data_utils.py, create_tfrecords).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bertjax.data.corpus import Corpus
from bertjax.data.counter_rng import CounterRng, IntArray, UInt64Array, scale
from bertjax.data.formats.base import FormatSettings, example_ids
from bertjax.errors import UserError

SPECIALS = 3  # [SEP], [SEP], [CLS]
SHORTEST = 2  # one token on each side
HALF = np.uint64(1) << np.uint64(63)  # a random word is below it half of the time


class DocumentStream:
    """The documents of a corpus end to end, each with `end_id` behind it; places count these pieces, too."""

    def __init__(self, corpus: Corpus, end_id: int) -> None:
        self._corpus, self._end_id = corpus, end_id
        self._begins = corpus.document_tokens + np.arange(corpus.num_documents + 1)

    @property
    def length(self) -> int:
        return int(self._begins[-1])

    def gather(
        self, starts: IntArray, lengths: IntArray, out: np.ndarray, columns: IntArray, rows: IntArray | None = None
    ) -> None:
        """Write slice i, of any number of documents, into row `rows[i]` (None: row i) of `out` int32 [B, S], from
        column `columns[i]` on."""
        stops = starts + lengths
        first = np.searchsorted(self._begins, starts, side="right") - 1
        many = np.where(lengths > 0, np.searchsorted(self._begins, stops, side="left") - first, 0)
        own = np.repeat(np.arange(len(starts)), many)
        document = np.repeat(first - np.cumsum(many) + many, many) + np.arange(many.sum())
        begin = np.maximum(starts[own], self._begins[document])
        end = np.minimum(stops[own], self._begins[document + 1])
        is_last = end == self._begins[document + 1]
        sizes, column = end - begin - is_last, columns[own] + begin - starts[own]
        row = own if rows is None else rows[own]
        out[row[is_last], (column + sizes)[is_last]] = self._end_id
        text = sizes > 0
        pieces = self._corpus.read((begin - document)[text], sizes[text])
        for r, c, ids in zip(row[text].tolist(), column[text].tolist(), pieces, strict=True):
            out[r, c : c + len(ids)] = ids

    def sentences_before(self, places: IntArray) -> IntArray:
        """How many sentences begin before each place; a document's end belongs to its last sentence."""
        document = np.searchsorted(self._begins, places, side="right") - 1
        return np.searchsorted(self._corpus.sentence_tokens[:-1], places - document, side="left")

    def sentence(self, numbers: IntArray) -> IntArray:
        """Where sentences begin; the number of all sentences stands for the end of the text."""
        document = np.searchsorted(self._corpus.document_sentences, numbers, side="right") - 1
        return self._corpus.sentence_tokens[numbers] + document


class Reader(NamedTuple):
    """The streams that some rows read, int64 [n]: places [low, high) of the text, from the end where `backward`.

    All else is told in steps: how many tokens of a stream lie before.
    """

    text: DocumentStream
    low: IntArray
    high: IntArray
    backward: np.ndarray  # bool

    def starts(self, steps: IntArray, lengths: IntArray) -> IntArray:
        """Where in the text the slices of so many tokens from these steps on begin."""
        return np.where(self.backward, self.high - steps - lengths, self.low + steps)

    def cut_from(self, steps: IntArray) -> IntArray:
        """The first boundary of sentences at or behind a step, at most the end of the stream."""
        return self._steps(np.where(self.backward, self._below(self.high - steps), self._above(self.low + steps)))

    def cut_until(self, steps: IntArray) -> IntArray:
        """The last boundary at or before a step, at least the beginning of the stream."""
        return self._steps(np.where(self.backward, self._above(self.high - steps), self._below(self.low + steps)))

    def random_cut(self, after: IntArray, before: int, words: UInt64Array) -> tuple[IntArray, IntArray]:
        """How many boundaries lie inside the next `before` steps, and one of them; anything where there is none."""
        first = np.where(self.backward, self.high - after - before, self.low + after) + 1
        begin, end = self.text.sentences_before(first), self.text.sentences_before(first + before - 1)
        return end - begin, self._steps(self.text.sentence(begin + scale(words, end - begin)))

    def _steps(self, places: IntArray) -> IntArray:
        inside = np.clip(places, self.low, self.high)
        return np.where(self.backward, self.high - inside, inside - self.low)

    def _above(self, places: IntArray) -> IntArray:
        return self.text.sentence(self.text.sentences_before(places))

    def _below(self, places: IntArray) -> IntArray:
        return self.text.sentence(self.text.sentences_before(places + 1) - 1)


class StreamLayout:
    """Equal cuts of one text, one for every row of a batch, whose next rows begin `advance` tokens further."""

    def __init__(self, corpus: Corpus, settings: FormatSettings, advance: int) -> None:
        self.settings, self.advance = settings, advance
        self._corpus = corpus
        self._text = DocumentStream(corpus, settings.sep_id if settings.end_id < 0 else settings.end_id)
        rows = settings.batch_size
        if rows < 1:
            raise UserError(f"the batch size must be at least 1, not {rows}")
        if settings.bi_data and rows % 2:
            raise UserError(
                f"model.bi_data reads half of the rows backwards: train.batch_size and eval.batch_size must be even, "
                f"not {rows}"
            )
        self._number = rows // 2 if settings.bi_data else rows
        self._length = self._text.length // self._number
        if self._length < settings.seq_len:
            raise UserError(
                f"{self._text.length:,} tokens are too few for {self._number} streams with rows of "
                f"{settings.seq_len}: give more text, or lower train.batch_size, eval.batch_size or data.seq_len"
            )

    @property
    def num_sequences(self) -> int:
        """Of an epoch. The streams' ends that fill no whole row are left out: a batch's rows are at the same step."""
        batches = (self._length - self.settings.seq_len) // self.advance + 1
        return batches * self.settings.batch_size

    def find(self, indices: IntArray) -> tuple[Reader, IntArray]:
        """What reads the streams of these rows, and the steps at which the rows begin."""
        batch, row = np.divmod(indices, self.settings.batch_size)
        low = row % self._number * self._length
        return Reader(self._text, low, low + self._length, row >= self._number), batch * self.advance

    def describe(self, reader: Reader, steps: IntArray, epoch: int) -> dict[str, np.ndarray]:
        """What rows without padding have in common. The same text read backwards is another example."""
        size, one = (len(steps), self.settings.seq_len), (len(steps), 1)
        begins = np.where(reader.backward, self._text.length + reader.high - steps, reader.low + steps)
        found = {
            "segment_ids": np.ones(size, np.int32),
            "position_ids": np.tile(np.arange(size[1], dtype=np.int32), (size[0], 1)),
            "example_positions": np.full(one, size[1] - 1, np.int32),
            "example_weights": np.ones(one, np.float32),
            "example_ids": example_ids(self._corpus, begins)[:, None],
            "example_draws": np.full(one, epoch % self.settings.dupe_factor, np.uint32),
        }
        return found | ({"backward": reader.backward} if self.settings.bi_data else {})


class StreamFormat:
    """Text and nothing else: every row is the next `seq_len` tokens of its stream."""

    def __init__(self, corpus: Corpus, settings: FormatSettings) -> None:
        self.settings = settings
        self._streams = StreamLayout(corpus, settings, settings.seq_len)

    def num_sequences(self, epoch: int) -> int:
        return self._streams.num_sequences

    def prepare(self, epoch: int) -> None:
        """Nothing is planned: rows are in the order of the text."""

    def sequences(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        reader, steps = self._streams.find(indices)
        ids, _ = _lay_slices(reader, [(steps, np.full_like(steps, self.settings.seq_len))], self.settings.seq_len)
        rest = self._streams.describe(reader, steps, epoch)
        return {"input_ids": ids, "token_type_ids": np.zeros_like(ids)} | rest


class XLNetSegmentFormat:
    """XLNet's rows: `reuse_len` tokens that the next row does not repeat, then two segments A [SEP] B [SEP] [CLS].

    A begins where the reused tokens end. B follows A half of the time, else it is text from anywhere in the stream.
    The next row goes on behind the reused tokens, and reads again what A was made of. Token types: 0 up to A's [SEP], 1
    up to B's, 2 for [CLS].
    """

    def __init__(self, corpus: Corpus, settings: FormatSettings) -> None:
        if not 1 <= settings.reuse_len <= settings.seq_len - SPECIALS - SHORTEST:
            raise UserError(
                f"model.reuse_len={settings.reuse_len} must leave data.seq_len={settings.seq_len} room for two "
                f"segments and {SPECIALS} special pieces"
            )
        self.settings = settings
        self._streams = StreamLayout(corpus, settings, settings.reuse_len)

    def num_sequences(self, epoch: int) -> int:
        return self._streams.num_sequences

    def prepare(self, epoch: int) -> None:
        """Nothing is planned: rows are in the order of the text, segments are drawn with the batch."""

    def sequences(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        settings = self.settings
        reader, steps = self._streams.find(indices)
        begin = steps + settings.reuse_len
        parts = _split(reader, begin, settings.seq_len - settings.reuse_len - SPECIALS, self._words(epoch, indices))
        reused = (steps, np.full_like(steps, settings.reuse_len))
        ids, ends = _lay_slices(reader, [reused, *parts], settings.seq_len, gaps=(0, 1))
        row, a_end, b_end = np.arange(len(ids)), ends[1], ends[2]
        ids[row, a_end] = ids[row, b_end] = settings.sep_id
        ids[:, -1] = settings.cls_id
        types = (np.arange(settings.seq_len) > a_end[:, None]).astype(np.int32)
        types[:, -1] = 2
        return {"input_ids": ids, "token_type_ids": types} | self._streams.describe(reader, steps, epoch)

    def _words(self, epoch: int, indices: IntArray) -> UInt64Array:
        """uint64 [3, n]: the rows' random words, which come again after `dupe_factor` epochs."""
        size, draw = self.settings.batch_size, epoch % self.settings.dupe_factor
        words = np.zeros((3, len(indices)), np.uint64)
        for batch in np.unique(indices // size).tolist():
            drawn = CounterRng("segments", self.settings.seed, draw, batch).words(3 * size).reshape(3, size)
            here = indices // size == batch
            words[:, here] = drawn[:, indices[here] % size]
        return words


Slice = tuple[IntArray, IntArray]
"""Steps at which slices begin, and their lengths."""


def _split(reader: Reader, begin: IntArray, total: int, words: UInt64Array) -> tuple[Slice, Slice]:
    """A and B of `total` tokens together, as zihangdai/xlnet:data_utils.py, _split_a_and_b, draws them.

    A ends at a random boundary of sentences inside the next `total` tokens. Where there is none, A takes the sentence
    that is too long, and B is random text in any case.
    """
    length = reader.high - reader.low
    cuts, cut = reader.random_cut(begin, total, words[1])
    run_end = reader.cut_from(begin + total)
    a_end = np.where(cuts == 0, run_end, cut)
    is_random = (cuts == 0) | (words[0] < HALF)
    wanted = np.maximum(total - (a_end - begin), 1)
    anywhere = scale(words[2], length - wanted)
    b_begin = np.where(is_random, reader.cut_until(anywhere), a_end)
    b_end = np.where(is_random, np.minimum(reader.cut_from(anywhere + wanted), length - 1), run_end)
    a_length, b_length = _truncate(a_end - begin, b_end - b_begin, total)
    return (begin, a_length), (b_begin, b_length)


def _truncate(a_length: IntArray, b_length: IntArray, total: int) -> tuple[IntArray, IntArray]:
    """The longer loses its last token, B where they are equal, until both fit: in closed form."""
    excess, ahead = a_length + b_length - total, a_length - b_length
    a_alone, b_alone = np.minimum(excess, np.maximum(ahead, 0)), np.minimum(excess, np.maximum(-ahead, 0))
    shared = excess - a_alone - b_alone
    return a_length - a_alone - shared // 2, b_length - b_alone - (shared + 1) // 2


def _lay_slices(
    reader: Reader, slices: list[Slice], seq_len: int, gaps: tuple[int, ...] = ()
) -> tuple[np.ndarray, list[IntArray]]:
    """int32 [n, seq_len] with slices one behind the other, `gaps` columns apart, and the column where each ends.

    Backward rows are read forwards out of the text, and then every slice of them is turned round.
    """
    num_sequences, columns = len(reader.low), np.arange(seq_len)
    ids = np.zeros((num_sequences, seq_len), np.int32)
    source = np.tile(columns, (num_sequences, 1))
    column, ends = np.zeros(num_sequences, np.int64), []
    for (steps, lengths), gap in zip(slices, (*gaps, 0), strict=True):
        reader.text.gather(reader.starts(steps, lengths), lengths, ids, column)
        end = column + lengths
        turned = reader.backward[:, None] & (columns >= column[:, None]) & (columns < end[:, None])
        source = np.where(turned, (column + end - 1)[:, None] - columns, source)
        ends.append(end)
        column = end + gap
    return np.take_along_axis(ids, source, axis=1), ends
