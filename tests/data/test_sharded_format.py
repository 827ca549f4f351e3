"""Corpora in many shards: every example once per epoch, evenly from the shards that are read together."""

from __future__ import annotations

import functools
import gc
import hashlib
import itertools
import threading
import time
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prepare_lab import documents, prepare, tokenizer

from bertjax.data.corpus import Corpus, CorpusSplit, open_corpus
from bertjax.data.formats import make_format
from bertjax.data.pipeline import MixtureSource, Pipeline
from bertjax.data.prepare import CorpusRecipe
from bertjax.data.sharded_format import SequenceCounts, ShardedFormat

GROUP = 3


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> CorpusSplit:
    recipe = CorpusRecipe(0.0, shard_tokens=700)
    return open_corpus(prepare(tmp_path_factory.mktemp("cache"), documents(400), recipe=recipe).folder)["train"]


def make(
    corpus: CorpusSplit,
    name: str = "block",
    counts: SequenceCounts | None = None,
    group_size: int = GROUP,
    part_size: int = 1,
    **settings: object,
) -> ShardedFormat:
    options: dict[str, Any] = {"seq_len": 24, "seed": 1, "special_ids": tokenizer(), "dupe_factor": 2} | settings
    one = functools.partial(make_format, name, **options)
    return ShardedFormat(corpus, one, group_size=group_size, part_size=part_size, counts=counts)


def pipeline_of(*formats: ShardedFormat, batch_size: int = 16) -> Pipeline:
    sources = [MixtureSource(f"source{number}", each) for number, each in enumerate(formats)]
    return Pipeline(sources, batch_size=batch_size, seed=3, vocab_size=tokenizer().size)


def test_a_corpus_in_shards(corpus: CorpusSplit) -> None:
    tokens = [shard.tokens for shard in corpus.shards]
    assert len(tokens) > 2 * GROUP + 1 and all(700 <= count < 1200 for count in tokens[:-1])
    whole, begin = corpus.open(), 0
    for number, count in enumerate(tokens):
        shard = corpus.open(number, number + 1)
        assert shard.first_token == begin and shard.num_tokens == count
        begins, lengths = shard.document_tokens[:-1], np.diff(shard.document_tokens)
        assert all(map(np.array_equal, shard.read(begins, lengths), whole.read(begin + begins, lengths)))
        begin += count
    assert begin == whole.num_tokens


@pytest.mark.parametrize("packing", ["none", "best_fit"])
@pytest.mark.parametrize("name", ["block", "full_sentences", "nsp_pairs"])
def test_an_epoch_has_every_example_once(corpus: CorpusSplit, name: str, packing: str) -> None:
    form = make(corpus, name, packing=packing, max_examples=4)
    for epoch in (0, 1):
        parts = [
            make_format(
                name, corpus.open(number, number + 1), seq_len=24, seed=1, special_ids=tokenizer(), dupe_factor=2
            )
            for number in range(len(corpus.shards))
        ]
        expected = Counter(
            identity
            for part in parts
            for identity in part.sequences(epoch, np.arange(part.num_sequences(epoch)))["example_ids"].ravel().tolist()
        )
        batch = form.sequences(epoch, np.arange(form.num_sequences(epoch)))
        assert Counter(batch["example_ids"][batch["example_weights"] > 0].tolist()) == expected
        assert not form.has_sequence(epoch, form.num_sequences(epoch))
    first, second = (form.sequences(epoch, np.arange(40))["example_ids"] for epoch in (0, 2))
    assert not np.array_equal(first, second)


@pytest.mark.long
@pytest.mark.parametrize("name", ["stream", "segments"])
def test_streams_continue_through_the_shards_of_a_part(corpus: CorpusSplit, name: str) -> None:
    batch_size, settings = 4, {"batch_size": 4, "reuse_len": 8, "dupe_factor": 1}
    form = make(corpus, name, group_size=1, part_size=4, **settings)
    count = len(corpus.shards) // 4
    begins = [len(corpus.shards) * number // count for number in range(count + 1)]
    assert count > 1 and min(np.diff(begins)) >= 4
    parts = {}
    for first, stop in itertools.pairwise(begins):
        part = make_format(name, corpus.open(first, stop), seq_len=24, seed=1, special_ids=tokenizer(), **settings)
        for batch in range(part.num_sequences(0) // batch_size):
            rows = part.sequences(0, np.arange(batch * batch_size, (batch + 1) * batch_size))
            parts[rows["input_ids"].tobytes()] = (first, batch)
    pipeline = pipeline_of(form, batch_size=batch_size)
    orders = []
    for epoch in range(2):
        cursors = range(epoch * len(parts), (epoch + 1) * len(parts))
        order = [parts[pipeline.batch(cursor)["input_ids"].tobytes()] for cursor in cursors]
        assert sorted(order) == sorted(parts.values())
        jumps = [pair for pair in itertools.pairwise(order) if pair[0][0] != pair[1][0] or pair[1][1] != pair[0][1] + 1]
        assert len(jumps) == count - 1 and all(following[1] == 0 for _, following in jumps)
        orders.append(order)
    assert orders[0] != orders[1]


def test_identities_are_those_of_the_whole_corpus(corpus: CorpusSplit) -> None:
    whole = make_format("block", corpus.open(), seq_len=24, seed=1, special_ids=tokenizer())
    ids = [form.sequences(0, np.arange(form.num_sequences(0)))["example_ids"] for form in (whole, make(corpus))]
    assert np.array_equal(np.sort(ids[0].ravel()), np.sort(ids[1].ravel()))


def test_shards_of_a_group_are_read_evenly(corpus: CorpusSplit) -> None:
    form = make(corpus)
    size = 64
    positions = form.shard_positions(0, np.arange(size))
    assert set(np.round(positions * GROUP).astype(int)) == set(range(GROUP))
    counts = np.bincount(np.round(positions * GROUP).astype(int))
    lengths = [
        make_format("block", corpus.open(n, n + 1), seq_len=24, seed=1, special_ids=tokenizer()).num_sequences(0)
        for n in form._orders.get(0).shards(0)
    ]
    assert np.abs(counts - size * np.array(lengths) / sum(lengths)).max() < 2


def test_any_batch_can_be_read_alone(corpus: CorpusSplit) -> None:
    formats = make(corpus, "nsp_pairs"), make(corpus, "nsp_pairs", seed=5)
    in_order = pipeline_of(*formats, batch_size=48)
    batches = [in_order.batch(cursor) for cursor in range(60)]
    assert in_order.num_used(60 * 48)["source0"] > in_order.sequences_per_epoch["source0"]
    for cursor in (47, 3, 59, 20):
        alone = pipeline_of(make(corpus, "nsp_pairs"), make(corpus, "nsp_pairs", seed=5), batch_size=48).batch(cursor)
        for name, array in alone.items():
            assert np.array_equal(array, batches[cursor][name])


@pytest.mark.parametrize("processes", [2, 4])
def test_a_process_reads_its_rows_and_few_shards(corpus: CorpusSplit, processes: int) -> None:
    batch = pipeline_of(make(corpus)).batch(1)
    per_process = 16 // processes
    opened = []
    for process in range(processes):
        form = make(corpus)
        rows = slice(process * per_process, (process + 1) * per_process)
        for name, array in pipeline_of(form).batch(1, rows).items():
            assert np.array_equal(array, batch[name][rows])
        opened.append(len(form._slots))
    assert max(opened) < GROUP and sum(opened) <= GROUP + processes


def test_counts_are_remembered(corpus: CorpusSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sequences" / "counts.npy"
    expected = pipeline_of(make(corpus, counts=SequenceCounts(file)), batch_size=4)
    latest = expected.sequences_per_epoch["source0"] // 4 - 3
    for cursor in range(latest + 1):
        batch = expected.batch(cursor)
    opened: list[int] = []
    real = CorpusSplit.open

    def open_shard(self: CorpusSplit, first: int, stop: int, *, verify: bool = True) -> Corpus:
        opened.append(first)
        return real(self, first, stop, verify=verify)

    monkeypatch.setattr(CorpusSplit, "open", open_shard)
    resumed = pipeline_of(make(corpus, counts=SequenceCounts(file)), batch_size=4).batch(latest)
    assert all(np.array_equal(resumed[name], batch[name]) for name in batch)
    assert len(set(opened)) <= 2 * GROUP  # those of the group, and the next ones
    file.write_bytes(file.read_bytes()[:-5])  # a damaged file is counted again
    again = pipeline_of(make(corpus, counts=SequenceCounts(file)), batch_size=4).batch(latest)
    assert all(np.array_equal(again[name], batch[name]) for name in batch)


def test_memory_holds_few_shards(corpus: CorpusSplit) -> None:
    form = make(corpus)
    pipeline = pipeline_of(form, batch_size=8)
    for cursor in range(pipeline.sequences_per_epoch["source0"] // 8):
        pipeline.batch(cursor)
    assert len(form._formats._futures) <= 2 * GROUP < len(corpus.shards)


def test_sizes_are_estimated_from_the_first_shards(corpus: CorpusSplit) -> None:
    form = make(corpus)
    assert form.estimated_sequences(0) == pytest.approx(form.num_sequences(0), rel=0.05)
    assert form.estimated_sequences(0) == make(corpus).estimated_sequences(0)  # also before all are counted


def test_the_next_group_is_opened_ahead(corpus: CorpusSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[tuple[int, int]] = []
    form = make(corpus)
    monkeypatch.setattr(form._planned, "start", planned.append)
    group = form._orders.get(0)
    form.sequences(0, np.arange(4))
    assert not planned
    size = sum(form._count(0, shard) for shard in group.shards(0).tolist())
    form.sequences(0, np.arange(size // 2 + 1, size // 2 + 3))
    assert planned == [(0, 1)]


def test_batches_are_always_the_same(corpus: CorpusSplit) -> None:
    """A changed digest changes the batches of all runs that are resumed later."""
    pipeline, digest = (
        pipeline_of(make(corpus), make(corpus, seed=2)),
        hashlib.sha256(),
    )
    for cursor in (0, 1, 10, 100):
        for name, array in sorted(pipeline.batch(cursor).items()):
            digest.update(name.encode() + array.astype(array.dtype.newbyteorder("<")).tobytes())
    assert digest.hexdigest()[:16] == "96ba796f2762fc47"


@pytest.mark.parametrize("name", ["block", "nsp_pairs"])
def test_shards_that_were_read_are_freed(corpus: CorpusSplit, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when the garbage collector runs: their arrays are large."""
    opened: list[weakref.ref[Corpus]] = []
    real = CorpusSplit.open

    def open_shard(self: CorpusSplit, *shards: int, verify: bool = True) -> Corpus:
        result = real(self, *shards, verify=verify)
        opened.append(weakref.ref(result))
        return result

    monkeypatch.setattr(CorpusSplit, "open", open_shard)
    form = make(corpus, name, packing="best_fit", max_examples=4)
    monkeypatch.setattr(form._planned, "start", lambda key: None)
    gc.disable()
    try:
        for index in range(form.num_sequences(0)):
            form.sequences(0, np.array([index]))
        for thread in threading.enumerate():
            if thread.name == "epoch plan":  # it plans what follows in a shard
                thread.join()
        # two groups; while a slow thread opens a shard ahead, it can be opened here as well
        end = time.monotonic() + 10  # a thread that is no longer listed may still drop what it held
        while sum(each() is not None for each in opened) > 3 * GROUP and time.monotonic() < end:
            time.sleep(0.01)
        assert len(opened) > 4 * GROUP and sum(each() is not None for each in opened) <= 3 * GROUP
    finally:
        gc.enable()
