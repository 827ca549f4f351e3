import hashlib
import threading
import time
import types

import numpy as np
import pytest

from bertjax.data.corpus import Corpus, offsets
from bertjax.data.counter_rng import CounterRng
from bertjax.data.formats import make_format
from bertjax.data.pipeline import MixtureSource, Pipeline, Prefetcher
from bertjax.errors import UserError

SPECIAL_IDS = types.SimpleNamespace(pad_id=1, cls_id=2, sep_id=3)
FIRST_ID = 10
VOCABULARY = 100_000


def corpus_of(num_documents, first_id=FIRST_ID, seed=0):
    draws = CounterRng("toy", seed)
    sizes = 1 + draws.integers(np.full(num_documents, 8))
    lengths = 1 + draws.integers(np.full(sizes.sum(), 14))
    ids = np.arange(first_id, first_id + lengths.sum(), dtype=np.int32)
    return Corpus([ids], lengths, offsets(sizes), np.zeros(0, np.int64), f"toy {seed}")


def source_of(name="a", num_documents=30, form="nsp_pairs", weight=None, first_id=FIRST_ID, dupe_factor=3, **settings):
    corpus = corpus_of(num_documents, first_id, seed=len(name) + num_documents)
    options = {"seq_len": 24, "seed": 1, "special_ids": SPECIAL_IDS, "dupe_factor": dupe_factor}
    return MixtureSource(name, make_format(form, corpus, **(options | settings)), weight)


def pipeline_of(*sources, batch_size=16, seed=5, vocab_size=VOCABULARY):
    return Pipeline(sources, batch_size=batch_size, seed=seed, vocab_size=vocab_size)


def mixed():
    return pipeline_of(source_of("a", 30, weight=3.0), source_of("bb", 12, weight=1.0, first_id=50_000))


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        assert np.array_equal(one[name], other[name]), name


def pairs():
    return pipeline_of(source_of())


def blocks():
    return pipeline_of(source_of(form="block"))


@pytest.mark.parametrize("make", [mixed, pairs, blocks])
def test_a_batch_depends_on_no_earlier_request(make):
    in_order = [make().batch(cursor) for cursor in range(40)]
    pipeline = make()
    for cursor in np.random.default_rng(0).permutation(40):
        assert_equal(pipeline.batch(int(cursor)), in_order[cursor])
    assert not np.array_equal(in_order[0]["input_ids"], in_order[1]["input_ids"])


GOLDEN = {mixed: "27c33d88b2a168d7", pairs: "3cf257b04758cf38", blocks: "0f5e50c1117765bb"}


@pytest.mark.parametrize(("make", "golden"), GOLDEN.items())
def test_batches_are_always_the_same(make, golden):
    """Changed digests change the batches of all runs that are resumed later."""
    pipeline, digest = make(), hashlib.sha256()
    for cursor in (0, 1, 10, 1000):
        for name, array in sorted(pipeline.batch(cursor).items()):
            digest.update(name.encode() + array.astype(array.dtype.newbyteorder("<")).tobytes())
    assert digest.hexdigest()[:16] == golden


@pytest.mark.parametrize("form", ["nsp_pairs", "sop_pairs", "block", "full_sentences"])
def test_copies_of_an_example_in_a_batch_are_distinguished(form):
    batch = pipeline_of(source_of(num_documents=3, form=form), batch_size=64).batch(0)
    examples = np.stack([batch["example_ids"][:, 0], batch["example_epochs"][:, 0]])
    assert len(np.unique(examples[0])) < 64 == np.unique(examples, axis=1).shape[1]


def test_hosts_share_a_batch():
    pipeline = mixed()
    for cursor in range(12):
        whole = pipeline.batch(cursor)
        parts = [pipeline.batch(cursor, slice(i, i + 4)) for i in range(0, 16, 4)]
        assert_equal({name: np.concatenate([part[name] for part in parts]) for name in whole}, whole)


def test_threads_do_not_disturb_each_other():
    expected = [mixed().batch(cursor) for cursor in range(60)]
    pipeline, result = mixed(), {}

    def ask(first):
        for cursor in range(first, 60, 4):
            result[cursor] = pipeline.batch(cursor)

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for cursor in range(60):
        assert_equal(result[cursor], expected[cursor])


@pytest.mark.parametrize("form", ["block", "nsp_pairs"])
def test_each_epoch_holds_every_row_once_and_runs_into_the_next(form):
    source = source_of(form=form)
    pipeline = pipeline_of(source, batch_size=7)
    lengths = [source.format.num_sequences(epoch) for epoch in range(5)]
    batches = [pipeline.batch(cursor) for cursor in range(sum(lengths) // 7)]
    rows = np.concatenate([batch["input_ids"] for batch in batches])
    draws = np.concatenate([batch["example_draws"] for batch in batches])
    begins = offsets(lengths)
    for epoch in range(4):
        here = slice(begins[epoch], begins[epoch + 1])
        whole = source.format.sequences(epoch, np.arange(lengths[epoch]))["input_ids"]
        assert sorted(rows[here].tolist()) == sorted(whole.tolist())
        assert (draws[here] == epoch % 3).all()
    assert pipeline.sequences_per_epoch == {"a": lengths[0]}


@pytest.mark.parametrize("form", ["block", "nsp_pairs"])
def test_the_next_epoch_is_planned_in_the_second_half_of_this_one(form, monkeypatch):
    source = source_of(form=form)
    pipeline = pipeline_of(source, batch_size=1)
    planned, prepare, rows = [], source.format.plan_ahead, source.format.num_sequences(0)
    monkeypatch.setattr(source.format, "plan_ahead", lambda epoch: planned.append(epoch) or prepare(epoch))
    pipeline.batch(rows // 2 - 2)
    assert planned == []
    pipeline.batch(rows // 2 + 2)
    assert planned == [1]
    wait_until(lambda: 1 in source.format._orders._futures and source.format._orders._futures[1].done())
    assert_equal(pipeline.batch(rows), pipeline_of(source_of(form=form), batch_size=1).batch(rows))


def test_sources_are_mixed_by_weight():
    pipeline = mixed()
    batches = [pipeline.batch(cursor) for cursor in range(256)]  # one period of the pattern
    is_second = np.concatenate([batch["input_ids"][:, 1] for batch in batches]) >= 50_000
    assert is_second.mean() == 0.25
    one_epoch = pipeline.sources[0].format.num_sequences(0)
    firsts = np.concatenate([batch["example_ids"][:, 0] for batch in batches])[~is_second][:one_epoch]
    assert len(np.unique(firsts)) == one_epoch


def test_without_weights_sources_are_mixed_by_size():
    sources = source_of("a", 300), source_of("bb", 100, first_id=50_000)
    pipeline = pipeline_of(*sources)
    rows = [source.format.num_sequences(0) for source in sources]
    ids = np.concatenate([pipeline.batch(cursor)["input_ids"][:, 1] for cursor in range(256)])
    assert abs((ids >= 50_000).mean() - rows[1] / sum(rows)) < 0.001


def test_seeds_give_other_batches():
    one, other = (pipeline_of(source_of(seed=seed)).batch(0) for seed in (1, 2))
    assert not np.array_equal(one["input_ids"], other["input_ids"])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((1.0, None), "every source a weight or none: bb lacks one"),
        ((1.0, 0.0), "weight of source bb must be a positive number"),
        ((1.0, float("nan")), "weight of source bb must be a positive number"),
    ],
)
def test_weights_that_cannot_be_mixed(weights, message):
    with pytest.raises(UserError, match=message):
        pipeline_of(source_of("a", weight=weights[0]), source_of("bb", weight=weights[1]))


def test_sources_must_agree_and_hold_something():
    with pytest.raises(UserError, match=r"data\.sources is empty"):
        pipeline_of()
    with pytest.raises(UserError, match="source none has no sequences"):
        pipeline_of(source_of("none", 0))
    with pytest.raises(UserError, match="same format and seq_len"):
        pipeline_of(source_of("a"), source_of("bb", seq_len=32))
    with pytest.raises(UserError, match="batch size"):
        pipeline_of(source_of(), batch_size=0)


def test_ids_outside_the_vocabulary_are_named():
    pipeline = pipeline_of(source_of("a"), source_of("bb", first_id=50_000), vocab_size=50_000)
    with pytest.raises(UserError, match=r"source bb contains token id 5\d+ \(example \d+\).* 50000 tokens"):
        for cursor in range(20):
            pipeline.batch(cursor)
    largest = max(pipeline_of(source_of("a")).batch(cursor)["input_ids"].max() for cursor in range(20))
    assert all(pipeline_of(source_of("a"), vocab_size=largest + 1).batch(cursor) for cursor in range(20))
    with pytest.raises(UserError, match=f"token id {largest} "):
        _ = [pipeline_of(source_of("a"), vocab_size=largest).batch(cursor) for cursor in range(20)]


# --- evaluation ---


@pytest.mark.parametrize("make", [mixed, lambda: pipeline_of(source_of(num_documents=5))])
def test_evaluation_counts_every_row_once(make):
    pipeline = make()
    batches = list(pipeline.eval_batches(10_000))
    shapes = {name: array.shape for name, array in pipeline.batch(0).items()}
    assert all({name: array.shape for name, array in batch.items()} == shapes for batch in batches)
    for source in pipeline.sources:
        rows = source.format.sequences(0, np.arange(source.format.num_sequences(0)))
        result = np.concatenate([batch["input_ids"][batch["example_weights"][:, 0] > 0] for batch in batches])
        mine = [row for row in result.tolist() if row in rows["input_ids"].tolist()]
        assert sorted(mine) == sorted(rows["input_ids"].tolist())
    assert sum(batch["example_weights"].sum() for batch in batches) == sum(pipeline.sequences_per_epoch.values())


def test_a_host_without_a_row_of_its_own_has_an_empty_batch_all_the_same():
    """P19: the others wait for it."""
    pipeline = pipeline_of(source_of(num_documents=1), batch_size=64)
    assert pipeline.sequences_per_epoch["a"] < 48
    (whole,) = pipeline.eval_batches(5)
    (last,) = pipeline.eval_batches(5, slice(48, 64))
    assert_equal(last, {name: array[48:] for name, array in whole.items()})


def test_empty_rows_are_all_padding():
    pipeline = pipeline_of(source_of(num_documents=1), batch_size=64)
    (batch,) = pipeline.eval_batches(5)
    used = pipeline.sequences_per_epoch["a"]
    assert 0 < used < 64
    assert (batch["input_ids"][used:] == SPECIAL_IDS.pad_id).all()
    for name, array in batch.items():
        if name != "input_ids":
            assert not array[used:].any(), name
        assert array.dtype == pipeline.batch(0)[name].dtype


def test_evaluation_takes_the_first_rows_and_is_shared_by_hosts():
    pipeline = pipeline_of(source_of())
    batches = list(pipeline.eval_batches(2))
    assert_equal(batches[1], pipeline.batch(1))
    halves = [list(pipeline.eval_batches(2, rows)) for rows in (slice(0, 8), slice(8, 16))]
    for whole, first, second in zip(batches, *halves, strict=True):
        assert_equal({name: np.concatenate([first[name], second[name]]) for name in whole}, whole)


# --- prefetching ---


def test_prefetching_changes_nothing():
    pipeline = mixed()
    with Prefetcher(pipeline.batch, 3, 30, depth=4) as ahead:
        for expected, (cursor, batch) in zip(range(3, 30), ahead, strict=True):
            assert cursor == expected
            assert_equal(batch, pipeline.batch(cursor))
        assert next(ahead, None) is None


def test_no_more_than_depth_is_made_ahead():
    made = []
    with Prefetcher(lambda cursor: made.append(cursor) or {}, 0, 100, depth=3) as ahead:
        assert next(ahead)[0] == 0
        wait_until(lambda: len(made) == 4)
        time.sleep(0.05)
        assert made == [0, 1, 2, 3]


def test_errors_come_where_their_batch_would_have():
    def make(cursor):
        if cursor == 2:
            raise UserError("batch 2 is bad")
        return {}

    ahead = Prefetcher(make, 0, 9, depth=5)
    assert [next(ahead)[0], next(ahead)[0]] == [0, 1]
    for _ in range(2):
        with pytest.raises(UserError, match="batch 2"):
            next(ahead)


def test_closing_stops_the_thread():
    ahead = Prefetcher(mixed().batch, 0, 10**9)
    next(ahead)
    ahead.close()
    assert not ahead._thread.is_alive()
    assert next(ahead, None) is None
    ahead.close()


def test_closing_wakes_a_consumer_that_waits():
    go = threading.Event()
    ahead = Prefetcher(lambda cursor: go.wait(10) and {}, 0, 5, depth=1)
    ended = []
    consumer = threading.Thread(target=lambda: ended.append(next(ahead, None)))
    consumer.start()
    time.sleep(0.05)
    threading.Timer(0.1, go.set).start()
    ahead.close()
    consumer.join(5)
    assert ended == [None]


def test_waiting_is_measured():
    with Prefetcher(lambda cursor: time.sleep(0.1) or {}, 0, 2, depth=2) as ahead:
        next(ahead)
        assert 0.05 < ahead.waited_seconds < 10
        wait_until(lambda: ahead._is_done)
        before = ahead.waited_seconds
        next(ahead)
        assert ahead.waited_seconds - before < 0.09


def wait_until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
