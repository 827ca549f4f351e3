"""Streams: rows continue each other, segments are cut like those of XLNet's authors, any batch can be requested."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from bertjax.data.corpus import Corpus, offsets
from bertjax.data.formats import make_format
from bertjax.data.formats.base import ExampleFormat
from bertjax.data.pipeline import MixtureSource, Pipeline
from bertjax.errors import UserError

PAD, CLS, SEP, END = 0, 2, 3, 4
SPECIAL_IDS = types.SimpleNamespace(pad_id=PAD, cls_id=CLS, sep_id=SEP)
FIRST_ID = 10  # token t of the corpus has the id FIRST_ID + t
ROWS, SIZE, REUSED = 6, 27, 11
TOTAL = SIZE - REUSED - 3


def corpus_of(documents: int = 90, seed: int = 0, longest: int = 9) -> tuple[Corpus, np.ndarray, np.ndarray]:
    """Returns a corpus in two chunks, its text with an end token after every document, and each sentence's number."""
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, longest, rng.integers(1, 6)) for _ in range(documents)]
    sentences = np.concatenate(lengths)
    ids = np.arange(FIRST_ID, FIRST_ID + sentences.sum(), dtype=np.int32)
    cut = sum(part.sum() for part in lengths[: documents // 2])
    counts = np.zeros(FIRST_ID + len(ids), np.int64)
    corpus = Corpus([ids[:cut], ids[cut:]], sentences, offsets([len(part) for part in lengths]), counts, "toy")
    ends = np.cumsum([part.sum() for part in lengths])
    last = np.cumsum([len(part) for part in lengths]) - 1  # the end of a document belongs to its last sentence
    text = np.insert(ids, ends, END)
    number = np.insert(np.repeat(np.arange(len(sentences)), sentences), ends, last)
    return corpus, text, number


def form_of(name: str, corpus: Corpus, **changes: Any) -> ExampleFormat:
    settings = {"seq_len": SIZE, "seed": 1, "batch_size": ROWS, "reuse_len": REUSED, "end_id": END, "dupe_factor": 3}
    return make_format(name, corpus, special_ids=SPECIAL_IDS, **settings | changes)


def all_rows(form: ExampleFormat, epoch: int = 0) -> dict[str, np.ndarray]:
    return form.sequences(epoch, np.arange(form.num_sequences(epoch)))


def streams_of(values: np.ndarray, number: int, bi_data: bool) -> np.ndarray:
    """Returns [rows, tokens]: the text cut into equal streams, and the same streams reversed."""
    length = len(values) // number
    cut = values[: length * number].reshape(number, length)
    return np.concatenate([cut, cut[:, ::-1]]) if bi_data else cut


@pytest.mark.parametrize("bi_data", [False, True])
def test_a_stream_is_the_text_from_row_to_row(bi_data: bool) -> None:
    corpus, text, _ = corpus_of()
    form = form_of("stream", corpus, bi_data=bi_data)
    batch = all_rows(form)
    streams = streams_of(text, 3 if bi_data else ROWS, bi_data)
    batches = streams.shape[1] // SIZE
    assert form.num_sequences(0) == batches * ROWS and form.num_sequences(5) == form.num_sequences(0)
    rows = batch["input_ids"].reshape(batches, ROWS, SIZE).swapaxes(0, 1).reshape(ROWS, -1)
    np.testing.assert_array_equal(rows, streams[:, : batches * SIZE])
    assert (batch["segment_ids"] == 1).all() and not batch["token_type_ids"].any()
    np.testing.assert_array_equal(batch["position_ids"][0], np.arange(SIZE))
    assert ("backward" in batch) == bi_data
    if bi_data:
        np.testing.assert_array_equal(batch["backward"], np.tile([False] * 3 + [True] * 3, batches))
    assert len(np.unique(batch["example_ids"])) == form.num_sequences(0)


def test_layout_of_segments() -> None:
    corpus, text, _ = corpus_of()
    form = form_of("segments", corpus)
    batch = all_rows(form)
    streams = streams_of(text, ROWS, False)
    batches = (streams.shape[1] - SIZE) // REUSED + 1
    assert form.num_sequences(0) == batches * ROWS
    for index, (ids, types_) in enumerate(zip(batch["input_ids"], batch["token_type_ids"], strict=True)):
        step = index // ROWS * REUSED
        np.testing.assert_array_equal(ids[:REUSED], streams[index % ROWS, step : step + REUSED])
        first, second = np.flatnonzero(ids == SEP)
        assert second == SIZE - 2 and ids[-1] == CLS and REUSED < first < second - 1
        np.testing.assert_array_equal(ids[REUSED:first], streams[index % ROWS, step + REUSED :][: first - REUSED])
        np.testing.assert_array_equal(types_, [0] * (first + 1) + [1] * (second - first) + [2])
        assert PAD not in ids
    assert {name: (array.dtype.name, array.shape[1:]) for name, array in batch.items()} == {
        "input_ids": ("int32", (SIZE,)),
        "segment_ids": ("int32", (SIZE,)),
        "position_ids": ("int32", (SIZE,)),
        "token_type_ids": ("int32", (SIZE,)),
        "example_positions": ("int32", (1,)),
        "example_weights": ("float32", (1,)),
        "example_ids": ("uint32", (1,)),
        "example_epochs": ("uint32", (1,)),
        "example_draws": ("uint32", (1,)),
    }
    assert (batch["example_positions"] == SIZE - 1).all()


def possible_pairs(sentences: np.ndarray, begin: int) -> tuple[set, set, int]:
    """Returns all (a_begin, a_end, b_begin, b_end) that the authors' `_split_a_and_b` can return.

    They are those that follow, random ones, and the number of cuts.
    """
    length = len(sentences)
    end, cuts = begin + 1, []
    while end < length:
        if sentences[end] != sentences[end - 1]:
            if end - begin >= TOTAL:
                break
            cuts.append(end)
        end += 1

    def shortened(a_end: int, b_begin: int, b_end: int) -> tuple[int, int, int, int]:
        while a_end - begin + b_end - b_begin > TOTAL:
            if a_end - begin > b_end - b_begin:
                a_end -= 1
            else:
                b_end -= 1
        return begin, a_end, b_begin, b_end

    following = {shortened(cut, cut, end) for cut in cuts}
    random = set()
    for cut in cuts or [end]:
        expected = max(1, TOTAL - (cut - begin))
        for b_begin in range(length - expected):
            first, last = b_begin, b_begin + expected
            while first > 0 and sentences[first - 1] == sentences[first]:
                first -= 1
            while last < length - 1 and sentences[last - 1] == sentences[last]:
                last += 1
            random.add(shortened(cut, first, last))
    return following, random, len(cuts)


@pytest.mark.parametrize(
    ("bi_data", "longest"),
    [(False, 9), pytest.param(True, 9, marks=pytest.mark.long), pytest.param(True, 40, marks=pytest.mark.long)],
)
def test_segments_are_among_those_of_the_authors(bi_data: bool, longest: int) -> None:
    """Every pair is one that their code could have drawn, and in half of them B follows A."""
    corpus, text, number = corpus_of(longest=longest)
    form = form_of("segments", corpus, bi_data=bi_data)
    streams = [streams_of(values, 3 if bi_data else ROWS, bi_data) for values in (text, number)]
    follows = rows_with_a_choice = 0
    for epoch in range(3):
        batch = all_rows(form, epoch)
        for index in range(0, form.num_sequences(0), 1 if longest == 9 else 31):
            ids, sentences = (values[index % ROWS] for values in streams)
            begin = index // ROWS * REUSED + REUSED
            following, random, cuts = possible_pairs(sentences, begin)
            first, second = np.flatnonzero(batch["input_ids"][index] == SEP)
            row = batch["input_ids"][index]
            a, b = row[REUSED:first].tolist(), row[first + 1 : second].tolist()
            pairs = {(tuple(ids[p:q]), tuple(ids[r:s])) for p, q, r, s in following | random}
            assert (tuple(a), tuple(b)) in pairs
            if cuts:
                rows_with_a_choice += 1
                follows += (tuple(a), tuple(b)) in {(tuple(ids[p:q]), tuple(ids[r:s])) for p, q, r, s in following}
    if longest == 9:  # random text may happen to follow; in this short text it often does
        error = 0.5 / np.sqrt(rows_with_a_choice)
        assert 0.5 - 4 * error < follows / rows_with_a_choice < 0.56 + 4 * error


def test_cuts_are_uniform() -> None:
    """Sentences of two tokens: A ends after each of them with equal probability, if B follows it."""
    sentences = np.full(20_000, 2)
    ids = np.arange(FIRST_ID, FIRST_ID + 40_000, dtype=np.int32)
    corpus = Corpus([ids], sentences, offsets([20_000]), np.zeros(FIRST_ID + 40_000, np.int64), "toy")
    batch = all_rows(form_of("segments", corpus, reuse_len=12, seq_len=27))
    first = (batch["input_ids"] == SEP).argmax(1)
    ids = batch["input_ids"]
    following = ids[np.arange(len(ids)), first + 1] == ids[np.arange(len(ids)), first - 1] + 1
    lengths = first[following] - 12
    counts = np.bincount(lengths, minlength=12)[2:12:2]
    assert counts.sum() == following.sum()
    expected = following.sum() / 5
    assert ((counts - expected) ** 2 / expected).sum() < 4 + 4.5 * np.sqrt(8)
    assert abs(following.mean() - 0.5) < 4.5 * 0.5 / np.sqrt(len(ids))


def test_any_row_can_be_requested_and_segments_are_redrawn() -> None:
    corpus, _, _ = corpus_of()
    form = form_of("segments", corpus, bi_data=True)
    whole = all_rows(form)
    chosen = np.random.default_rng(0).permutation(form.num_sequences(0))[:30]
    some = form_of("segments", corpus, bi_data=True).sequences(0, chosen)
    for name, array in whole.items():
        np.testing.assert_array_equal(some[name], array[chosen])
    later = [all_rows(form, epoch) for epoch in (1, 3)]
    assert (later[0]["input_ids"] != whole["input_ids"]).any()
    np.testing.assert_array_equal(later[0]["input_ids"][:, :REUSED], whole["input_ids"][:, :REUSED])
    np.testing.assert_array_equal(later[1]["input_ids"], whole["input_ids"])
    np.testing.assert_array_equal(later[0]["example_ids"], whole["example_ids"])
    other = all_rows(form_of("segments", corpus, bi_data=True, seed=2))
    assert (other["input_ids"] != whole["input_ids"]).any()


@pytest.mark.parametrize("name", ["segments", "stream"])
def test_batches_of_a_pipeline_are_rows_of_the_streams(name: str) -> None:
    """Batch t holds step t of every stream, in every epoch; a share of its rows has the same rows."""
    corpus, _, _ = corpus_of()
    form = form_of(name, corpus, bi_data=True)
    pipeline = Pipeline([MixtureSource("toy", form)], batch_size=ROWS, seed=5, vocab_size=len(corpus.counts))
    batches = form.num_sequences(0) // ROWS
    for cursor in (0, 1, batches - 1, batches, 2 * batches + 1):
        epoch, step = divmod(cursor, batches)
        expected = form.sequences(epoch, np.arange(step * ROWS, (step + 1) * ROWS))
        for part in (slice(None), slice(2, 5)):
            result = pipeline.batch(cursor, part)
            for key, array in expected.items():
                np.testing.assert_array_equal(result[key], array[part])
    held_out = list(pipeline.eval_batches(1000))
    assert len(held_out) == batches and all((batch["segment_ids"] > 0).all() for batch in held_out)


def test_a_tokenizer_without_an_end_token_ends_documents_by_sep() -> None:
    corpus, text, _ = corpus_of()
    rows = all_rows(form_of("stream", corpus, end_id=-1))["input_ids"]
    np.testing.assert_array_equal(rows[0], np.where(text[:SIZE] == END, SEP, text[:SIZE]))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("stream", {"batch_size": 5, "bi_data": True}, "must be even, not 5"),
        ("stream", {"batch_size": 0}, "at least 1, not 0"),
        ("stream", {"batch_size": 500}, "too few for 500 streams with sequences of 27: give more text, or lower"),
        ("segments", {"reuse_len": 23}, r"model\.reuse_len=23 must leave space in data\.seq_len=27 for two segments"),
        ("segments", {"reuse_len": 0}, r"model\.reuse_len=0"),
    ],
)
def test_streams_that_cannot_be_are_refused(name: str, changes: dict[str, Any], words: str) -> None:
    corpus, _, _ = corpus_of()
    with pytest.raises(UserError, match=words):
        form_of(name, corpus, **changes).num_sequences(0)
