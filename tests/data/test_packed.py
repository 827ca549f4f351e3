"""Rows of several examples: each example once, as in the unpacked form, and the same for any order of requests."""

import hashlib
import threading
import time
import types

import numpy as np
import pytest

from bertjax.data import formats
from bertjax.data.corpus import Corpus, offsets
from bertjax.data.counter_rng import CounterRng
from bertjax.data.formats import PACKABLE, make_format
from bertjax.data.formats.base import FormatSettings, assemble_sequences
from bertjax.data.pipeline import MixtureSource, Pipeline, Prefetcher
from bertjax.errors import UserError

PAD, CLS, SEP = 1, 2, 3
SPECIAL_IDS = types.SimpleNamespace(pad_id=PAD, cls_id=CLS, sep_id=SEP)
FIRST_ID, S, MAXIMUM = 10, 48, 5


def corpus_of(num_documents=30, seed=0):
    draws = CounterRng("toy", seed)
    sizes = 1 + draws.integers(np.full(num_documents, 8))
    is_long = draws.uniform(sizes.sum()) < 0.4  # so that some whole sentences leave gaps, and some are alone in a row
    lengths = np.where(
        is_long, 34 + draws.integers(np.full(len(is_long), 10)), 1 + draws.integers(np.full(len(is_long), 14))
    )
    ids = np.arange(FIRST_ID, FIRST_ID + lengths.sum(), dtype=np.int32)
    return Corpus([ids], lengths, offsets(sizes), np.zeros(0, np.int64), f"toy {seed}")


def form_of(name, packing="best_fit", corpus=None, **settings):
    options = {"seq_len": S, "seed": 1, "special_ids": SPECIAL_IDS, "dupe_factor": 3, "max_examples": MAXIMUM}
    return make_format(name, corpus or corpus_of(), packing=packing, **(options | settings))


def all_rows(form, epoch=0):
    return form.sequences(epoch, np.arange(form.num_sequences(epoch)))


def examples_of(batch):
    """Returns all fields of every example of a batch in a canonical order; checks the padding of the rows."""
    result = []
    for row in range(len(batch["input_ids"])):
        segments, weights = batch["segment_ids"][row], batch["example_weights"][row]
        count = int(segments.max())
        assert weights.tolist() == [1.0] * count + [0.0] * (len(weights) - count)
        assert (
            segments[segments > 0].tolist() == sorted(segments[segments > 0])
            and not segments[(segments > 0).sum() :].any()
        )
        for name in ("position_ids", "token_type_ids"):
            assert not batch[name][row][segments == 0].any()
        assert (batch["input_ids"][row][segments == 0] == PAD).all()
        for number in range(count):
            columns = np.flatnonzero(segments == number + 1)
            assert batch["example_positions"][row, number] == columns[0]
            assert batch["position_ids"][row][columns].tolist() == list(range(len(columns)))
            per_example = [name for name in ("example_ids", "example_draws", "pair_labels") if name in batch]
            tokens = (tuple(batch[name][row][columns].tolist()) for name in ("input_ids", "token_type_ids"))
            result.append((*(int(batch[name][row, number]) for name in per_example), *tokens))
        for name in ("example_ids", "example_epochs", "example_draws", "example_positions"):
            assert not batch[name][row, count:].any()
    return sorted(result)


@pytest.mark.parametrize("name", PACKABLE)
@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_examples_are_those_of_the_form_alone(name, epoch):
    """Identity, draw, tokens, types, labels; so masks, which are drawn from identities, agree, too."""
    alone, together = all_rows(form_of(name, "none"), epoch), all_rows(form_of(name), epoch)
    assert examples_of(together) == examples_of(alone)
    assert len(together["input_ids"]) < len(alone["input_ids"])
    assert together["segment_ids"].max() > 1
    assert together.keys() == alone.keys()
    for key, array in together.items():
        expected = alone[key].shape[1:] if alone[key].shape[1] == S else (MAXIMUM,)
        assert (array.dtype, array.shape[1:]) == (alone[key].dtype, expected), key


@pytest.mark.parametrize("name", PACKABLE)
def test_a_batch_costs_its_rows(name, monkeypatch):
    """Any rows equal those of the whole epoch, and are made without the others."""
    form = form_of(name)
    whole, some = all_rows(form), np.random.default_rng(0).permutation(form.num_sequences(0))[:6]
    sizes, examples = [], form.unpacked.examples
    monkeypatch.setattr(
        form.unpacked,
        "examples",
        lambda epoch, numbers, counts: sizes.append(len(numbers)) or examples(epoch, numbers, counts),
    )
    result = form.sequences(0, some)
    assert all(np.array_equal(result[key], whole[key][some]) for key in whole)
    assert sizes == [int(whole["example_weights"][some].sum())]


def test_rows_hold_as_many_examples_as_they_may():
    for maximum in (1, 2, 7):
        batch = all_rows(form_of("block", max_examples=maximum))
        assert batch["segment_ids"].max() <= maximum
        assert batch["example_ids"].shape[1] == maximum
    assert form_of("block", max_examples=1).num_sequences(0) == form_of("block", "none").num_sequences(0)


@pytest.mark.parametrize("name", PACKABLE)
def test_padding_is_what_rows_leave_empty(name):
    form = form_of(name)
    assert form.padding(1) == pytest.approx(1 - (all_rows(form, 1)["segment_ids"] > 0).mean())


@pytest.mark.parametrize("name", PACKABLE)
def test_epochs_pack_the_same_examples_in_another_way(name):
    form = form_of(name, dupe_factor=1, corpus=corpus_of(200))
    one, other = all_rows(form, 0), all_rows(form, 1)
    assert examples_of(one) == examples_of(other)
    assert one["example_ids"].tolist() != other["example_ids"].tolist()
    shared = [{tuple(sorted(ids)) for ids in batch["example_ids"].tolist() if ids[1]} for batch in (one, other)]
    assert len(shared[0] & shared[1]) < 0.5 * len(shared[0])  # examples of rare lengths meet again


def test_every_epoch_is_planned_once_and_the_next_one_ahead(monkeypatch):
    planned, plan_packing = [], formats.plan_packing

    def counted(*options, **named):
        planned.append((named["epoch"], threading.current_thread().name))
        return plan_packing(*options, **named)

    monkeypatch.setattr(formats, "plan_packing", counted)
    form = form_of("nsp_pairs")
    pipeline = Pipeline([MixtureSource("a", form)], batch_size=4, seed=5, vocab_size=1 << 20)
    half = form.num_sequences(0) // 8
    for cursor in range(half):
        pipeline.batch(cursor)
    assert [epoch for epoch, _ in planned] == [0]
    pipeline.batch(half + 1)
    end = time.monotonic() + 10
    while len(planned) < 2 and time.monotonic() < end:
        time.sleep(0.005)
    assert planned[1] == (1, "epoch plan")
    for cursor in range(half, form.num_sequences(0) // 4 + half // 2):
        pipeline.batch(cursor)
    assert [epoch for epoch, _ in planned] == [0, 1]


# --- batches as a pure function of (seed, cursor) ---


def mixed_pipeline(batch_size=6, dupe_factor=3):
    forms = [
        form_of("nsp_pairs", corpus=corpus_of(30, seed), dupe_factor=dupe_factor, pack_window=40) for seed in range(2)
    ]
    sources = [MixtureSource(name, form, weight) for name, form, weight in zip("ab", forms, (3.0, 1.0), strict=True)]
    return Pipeline(sources, batch_size=batch_size, seed=5, vocab_size=1 << 20)


def single_pipeline(name="nsp_pairs", batch_size=6):
    return Pipeline([MixtureSource("a", form_of(name))], batch_size=batch_size, seed=5, vocab_size=1 << 20)


def digest_of(batch):
    digest = hashlib.sha256()
    for name, array in sorted(batch.items()):
        digest.update(name.encode() + array.astype(array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def expected():
    """Digests of 200 batches, requested in order by a single reader."""
    pipeline = mixed_pipeline()
    return [digest_of(pipeline.batch(cursor)) for cursor in range(200)]


def test_packed_batches_are_always_the_same(expected):
    """P3: a changed digest changes the batches of all runs that are resumed later."""
    assert hashlib.sha256("".join(expected[:100]).encode()).hexdigest()[:16] == "39833e5526356f30"
    assert len(set(expected)) == 200


@pytest.mark.parametrize("readers", [1, 2, 4])
def test_readers_and_their_order_change_nothing(readers, expected):
    """P3, P19: any number of threads, each starting anywhere, each with any share of the rows."""
    pipeline, result = mixed_pipeline(), {}

    def read(first):
        for cursor in reversed(range(first, 200, readers)):
            parts = [pipeline.batch(cursor, slice(row, row + 6 // readers)) for row in range(0, 6, 6 // readers)]
            result[cursor] = digest_of({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

    threads = [threading.Thread(target=read, args=(first,)) for first in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result[cursor] for cursor in range(200)] == expected


@pytest.mark.parametrize("depth", [1, 4])
def test_prefetching_changes_nothing(depth, expected):
    """P3."""
    with Prefetcher(mixed_pipeline().batch, 0, 200, depth) as ahead:
        assert [digest_of(batch) for _, batch in ahead] == expected


@pytest.mark.parametrize("name", PACKABLE)
@pytest.mark.parametrize("where", ["first", "last of an epoch", "end of an epoch", "inside epoch 3"])
def test_a_resumed_run_goes_on_where_it_stopped(name, where):
    """P4: a fresh process that starts at any batch reads what the previous process would have read."""
    form = form_of(name)
    begins = offsets([form.num_sequences(epoch) for epoch in range(5)])
    size = int(begins[1]) // 4  # the first epoch ends with a batch, or with up to three rows of the next one
    cursors = {
        "first": 1,
        "last of an epoch": int(begins[1]) // size - 1,
        "end of an epoch": int(begins[1]) // size,
        "inside epoch 3": int(begins[3] + begins[4]) // 2 // size,
    }
    going_on, resumed = single_pipeline(name, size), single_pipeline(name, size)
    for cursor in range(cursors[where]):
        going_on.batch(cursor)
    for cursor in range(cursors[where], cursors[where] + 3):
        assert digest_of(resumed.batch(cursor)) == digest_of(going_on.batch(cursor))


def test_each_epoch_holds_every_example_once_and_runs_into_the_next():
    """P2: by the identities of the examples that were read."""
    form = form_of("nsp_pairs")
    lengths = [form.num_sequences(epoch) for epoch in range(5)]
    pipeline = single_pipeline(batch_size=7)
    batches = [pipeline.batch(cursor) for cursor in range(sum(lengths) // 7)]
    stream = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    begins = offsets(lengths)
    for epoch in range(4):
        epoch_batch = {name: array[begins[epoch] : begins[epoch + 1]] for name, array in stream.items()}
        assert examples_of(epoch_batch) == examples_of(all_rows(form_of("nsp_pairs", "none"), epoch))


def test_resuming_late_costs_no_more_than_a_cycle_of_epochs(monkeypatch):
    """P5: after any number of epochs, two plans are made and one cycle of distinct epochs is counted."""
    planned, counted = [], []
    plan_packing, count_packed_sequences = formats.plan_packing, formats.count_packed_sequences
    monkeypatch.setattr(
        formats, "plan_packing", lambda *options, **named: planned.append(1) or plan_packing(*options, **named)
    )
    monkeypatch.setattr(
        formats,
        "count_packed_sequences",
        lambda *options, **named: counted.append(1) or count_packed_sequences(*options, **named),
    )
    single_pipeline().batch(10**9)
    assert len(planned) <= 2
    assert len(counted) == 3


def large_form(num_documents, name):
    lengths = np.full(3 * num_documents, 20)
    lengths[::7] = 31
    ids = np.full(lengths.sum(), FIRST_ID, np.uint16)
    corpus = Corpus([ids], lengths, np.arange(num_documents + 1) * 3, np.zeros(0, np.int64), "large")
    return form_of(name, corpus=corpus, seq_len=128, dupe_factor=2)


def seconds_to_batch(cursor, form):
    begin = time.perf_counter()
    Pipeline([MixtureSource("a", form)], batch_size=256, seed=5, vocab_size=1 << 20).batch(cursor)
    return time.perf_counter() - begin


@pytest.mark.parametrize(
    ("num_documents", "name"),
    [
        (20_000, "nsp_pairs"),
        *(pytest.param(1_000_000, name, marks=pytest.mark.weekly) for name in ("nsp_pairs", "block")),
    ],
)
def test_resuming_late_takes_no_longer(num_documents, name):
    """P5: step 10 compared with step 10,000 of a corpus of a million documents (the short version has 20,000)."""
    early, late = (seconds_to_batch(cursor, large_form(num_documents, name)) for cursor in (10, 10_000))
    assert late - early < 2.0, (early, late)


# --- formats that cannot be packed ---


@pytest.mark.parametrize("name", ["segments", "stream"])
def test_rows_that_go_on_are_refused(name):
    with pytest.raises(
        UserError, match=rf"packing=best_fit packs block, .*, sop_pairs; sequences of {name} are full: set none"
    ):
        form_of(name)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"packing": "first_fit"}, r"data\.packing must be none or best_fit, not 'first_fit'"),
        ({"max_examples": 0}, r"data\.pack_examples and data\.pack_window must be at least 1: 0, "),
        ({"pack_window": 0}, r"data\.pack_examples and data\.pack_window must be at least 1: 5, 0"),
    ],
)
def test_impossible_settings_are_refused(settings, words):
    with pytest.raises(UserError, match=words):
        form_of("block", **settings)


def test_examples_that_do_not_fit_are_refused():
    settings = FormatSettings(8, 0, PAD, CLS, SEP, 0.1, 1, False, max_examples=2)
    parts = [(np.array([0, 4]), np.array([4, 1]))]
    with pytest.raises(ValueError, match="a sequence of 8 tokens cannot hold 9"):
        assemble_sequences(corpus_of(), parts, settings, np.zeros(2, np.uint32), 0, np.array([2]))
