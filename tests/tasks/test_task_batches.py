"""Batches of a task: every window once per epoch, in static shapes, at any position; and predictions back from them."""

from __future__ import annotations

import dataclasses
import itertools
import time
import types
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.counter_rng import permutation
from bertjax.errors import UserError
from bertjax.experiment.task_feed import _lengths
from bertjax.tasks.batch_layout import (
    choose_batch_sizes,
    pack_batches,
    pack_rows,
    scatter_token_values,
    scatter_window_values,
)
from bertjax.tasks.batches import EvalBatches, TaskBatches, choose_packed_length
from bertjax.tasks.features import Features, Targets

VOCAB = 1000
TARGETS = ("target_ids", "target_segment_ids", "target_position_ids")


def windows(count: int, longest: int = 30, seed: int = 0, **labels: np.ndarray) -> Features:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, longest + 1, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    tokens = rng.integers(1, VOCAB, total).astype(np.int32)
    summary_position = rng.integers(0, 3, count).astype(np.int32)
    values = {
        "class_labels": rng.integers(0, 5, count).astype(np.int32),
        "score_labels": rng.normal(size=count).astype(np.float32),
        "token_labels": rng.integers(-1, 4, total).astype(np.int32),
        "start_labels": rng.integers(0, 3, count).astype(np.int32),
        "end_labels": rng.integers(0, 3, count).astype(np.int32),
    }
    types = rng.integers(0, 3, total).astype(np.int8)
    return Features(tokens, offsets, types, np.arange(count, dtype=np.int32), summary_position, values | labels)


def with_targets(count: int, longest: int = 30, seed: int = 0) -> Features:
    """Returns windows with targets of about their length."""
    features = windows(count, longest, seed)
    rng = np.random.default_rng(seed)
    lengths = np.clip(features.lengths + rng.integers(-3, 4, count), 1, None)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(1, VOCAB, offsets[-1]).astype(np.int32)
    return dataclasses.replace(features, labels={}, targets=Targets(tokens, offsets))


def check_targets(features: Features, batch: Any) -> list[int]:
    """Checks that target example i of every sequence is that of source example i; returns the numbers."""
    visited = []
    for row, numbers in enumerate(batch["example_numbers"]):
        for prefix, side in (("", features), ("target_", features.targets)):
            column, ids = 0, batch[f"{prefix}ids" if prefix else "input_ids"][row]
            for slot, number in enumerate(numbers[numbers >= 0]):
                length = int(side.offsets[number + 1] - side.offsets[number])
                there, here = slice(column, column + length), slice(side.offsets[number], side.offsets[number + 1])
                assert ids[there].tolist() == side.tokens[here].tolist()
                assert (batch[f"{prefix}segment_ids"][row, there] == slot + 1).all()
                assert batch[f"{prefix}position_ids"][row, there].tolist() == list(range(length))
                column += length
            assert (ids[column:] == 7).all() and not batch[f"{prefix}segment_ids"][row, column:].any()
        visited += numbers[numbers >= 0].tolist()
    return visited


@pytest.mark.parametrize(
    ("options", "shapes", "padding"),
    [({}, 1, 0.5), ({"packing": False}, 1, 0.6), ({"packing": False, "group_by_length": True}, 3, 0.35)],
)
def test_windows_with_targets(options: dict[str, Any], shapes: int, padding: float) -> None:
    features = with_targets(203)
    loader = batches(features, seq_len=32, target_len=40, num_batch_shapes=3 if shapes > 1 else 1, **options)
    for epoch in range(2):
        cursors = range(epoch * loader.steps_per_epoch, (epoch + 1) * loader.steps_per_epoch)
        visited = [number for cursor in cursors for number in check_targets(features, loader.batch(cursor))]
        assert sorted(visited) == list(range(203))
    made = {tuple(loader.batch(cursor)[name].shape for name in ("input_ids", "target_ids")) for cursor in range(26)}
    assert len(made) == shapes == len(loader.lengths)
    assert loader.padding < padding and len(loader.side_padding) == 2
    slots = sum(loader.batch(step)[name].size for step in range(26) for name in ("input_ids", "target_ids"))
    assert loader.padding == pytest.approx(1 - features.num_tokens / slots)
    again = batches(features, seq_len=32, target_len=40, num_batch_shapes=3 if shapes > 1 else 1, **options)
    assert all(np.array_equal(again.batch(30)[name], loader.batch(30)[name]) for name in TARGETS)


def test_packing_of_sources_with_targets_is_golden() -> None:
    """Longest share of a limit first, into the sequence with least space on both sides together."""
    lengths = np.array([[[5, 2], [2, 9], [4, 4], [3, 1], [1, 1], [0, 0]]])
    assert pack_batches(lengths, (8, 10)).tolist() == [[1, 0, 2, 0, 2, 0]]
    assert pack_batches(lengths[:, :, :1], (8,)).tolist() == pack_batches(lengths[:, :, 0], 8).tolist()


@pytest.mark.parametrize(("packing", "num_lengths"), [(True, 1), (False, 3)])
def test_evaluation_sees_every_target_once(packing: bool, num_lengths: int) -> None:
    features = with_targets(1500)
    loader = EvalBatches(features, batch_size=6, pad_id=7, vocab_size=VOCAB, packing=packing, num_lengths=num_lengths)
    assert sorted(number for batch in loader for number in check_targets(features, batch)) == list(range(1500))
    assert len({batch["target_ids"].shape for batch in loader}) == num_lengths
    features.targets.tokens[features.targets.offsets[3]] = VOCAB  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"example 3 holds token id 1000"):
        batches(features)
    with pytest.raises(UserError, match=r"task.seq2seq.max_target_length: a target has \d+ tokens, but sequences"):
        batches(with_targets(45), target_len=8)


def batches(features: Features, **values: Any) -> TaskBatches:
    return TaskBatches(
        features, **{"batch_size": 8, "epochs": 2.0, "seed": 1, "pad_id": 7, "vocab_size": VOCAB} | values
    )


def check_batch(features: Features, batch: Any) -> list[int]:
    """Checks that a batch equals the features of the windows named in it; returns their numbers."""
    numbers = batch["example_numbers"]
    rows = len(batch["input_ids"])
    visited = []
    for row in range(rows):
        column = 0
        for slot, number in enumerate(numbers[row]):
            if number < 0:
                assert batch["example_weights"][row, slot] == 0
                assert (numbers[row, slot:] == -1).all()
                break
            visited.append(int(number))
            here = slice(features.offsets[number], features.offsets[number + 1])
            length = here.stop - here.start
            there = slice(column, column + length)
            assert batch["input_ids"][row, there].tolist() == features.tokens[here].tolist()
            assert batch["token_type_ids"][row, there].tolist() == features.token_types[here].tolist()
            assert (batch["segment_ids"][row, there] == slot + 1).all()
            assert batch["position_ids"][row, there].tolist() == list(range(length))
            assert batch["token_labels"][row, there].tolist() == features.labels["token_labels"][here].tolist()
            assert batch["example_positions"][row, slot] == column + features.summary_position[number]
            assert batch["example_weights"][row, slot] == 1 and batch["example_ids"][row, slot] == number
            for name in ("class_labels", "score_labels"):
                assert batch[name][row, slot] == features.labels[name][number]
            for name in ("start_labels", "end_labels"):
                assert batch[name][row, slot] == column + features.labels[name][number]
            column += length
        assert (batch["input_ids"][row, column:] == 7).all() and (batch["token_labels"][row, column:] == -1).all()
        for name in ("segment_ids", "position_ids", "token_type_ids"):
            assert not batch[name][row, column:].any()
    return visited


@pytest.mark.parametrize("packing", [True, False])
def test_every_window_once_an_epoch(packing: bool) -> None:
    features = windows(45)
    loader = batches(features, packing=packing)
    assert (loader.steps_per_epoch, loader.num_steps) == (6, 12)
    for epoch in range(2):
        visited = []
        for step in range(6):
            batch = loader.batch(6 * epoch + step)
            numbers = check_batch(features, batch)
            assert sorted(numbers) == sorted(loader.windows(6 * epoch + step)[0].tolist())
            assert len(numbers) == (8 if step < 5 else 5)
            visited += numbers
        assert sorted(visited) == list(range(45))
    assert loader.seq_len == 32 and loader.num_sequences == (loader.num_sequences if packing else 8)
    assert loader.max_examples == (loader.max_examples if packing else 1)
    assert loader.sequences_per_epoch == {"train": loader.num_sequences * 6}
    assert loader.padding == pytest.approx(1 - len(features.tokens) / (loader.num_sequences * 32 * 6))


def test_shapes_and_types_are_static() -> None:
    loader = batches(windows(45), seq_len=64)
    first = loader.batch(0)
    for cursor in range(1, loader.num_steps):
        batch = loader.batch(cursor)
        assert {n: (a.shape, a.dtype) for n, a in batch.items()} == {n: (a.shape, a.dtype) for n, a in first.items()}
    assert first["input_ids"].shape == (loader.num_sequences, 64)
    assert (
        first["example_positions"].shape == first["class_labels"].shape == (loader.num_sequences, loader.max_examples)
    )
    expected = {
        "example_weights": "float32",
        "score_labels": "float32",
        "example_ids": "uint32",
        "example_epochs": "uint32",
        "example_draws": "uint32",
    }
    assert all(array.dtype == expected.get(name, "int32") for name, array in first.items())


def test_order_is_drawn_from_seed_and_epoch_or_explicit() -> None:
    features = windows(45)
    one, again, other = (batches(features, seed=seed) for seed in (1, 1, 2))
    assert [one.windows(c)[0].tolist() for c in range(12)] == [again.windows(c)[0].tolist() for c in range(12)]
    assert (
        one.windows(0)[0].tolist() != other.windows(0)[0].tolist()
        and one.windows(0)[0].tolist() != one.windows(6)[0].tolist()
    )
    orders = [np.arange(45), np.arange(45)[::-1]]
    explicit = batches(features, orders=orders)
    assert explicit.windows(0)[0].tolist() == list(range(8)) and explicit.windows(6)[0].tolist() == list(
        range(44, 36, -1)
    )
    with pytest.raises(ValueError, match="orders were given for 1 epochs, 2 are needed"):
        batches(features, orders=orders[:1])
    with pytest.raises(ValueError, match="epoch 1 must hold each of 45 windows once"):
        batches(features, orders=[orders[0], np.zeros(45, int)])


def test_epochs_need_not_be_whole_and_go_round() -> None:
    features = windows(45)
    loader = batches(features, epochs=1.5)
    assert loader.num_steps == 9
    assert loader.batch(12)["input_ids"].tolist() == loader.batch(0)["input_ids"].tolist()  # after skipped batches
    assert batches(features, epochs=0.1).num_steps == 1


def test_rows_are_the_least_that_suffice() -> None:
    features = windows(45)
    loader = batches(features)
    used = [int((loader.batch(c)["segment_ids"][:, 0] > 0).sum()) for c in range(12)]
    examples = [int((loader.batch(c)["example_numbers"] >= 0).sum(axis=1).max()) for c in range(12)]
    assert loader.num_sequences == max(used) < 8 and loader.max_examples == max(examples) > 1
    assert batches(features, sequence_multiple=4).num_sequences == -(-max(used) // 4) * 4
    more = batches(features, sizes=(10,), min_examples=11, sequence_multiple=2)
    assert (more.num_sequences, more.max_examples) == (10, 11)
    assert sorted(check_batch(features, more.batch(3))) == sorted(more.windows(3)[0].tolist())


@pytest.mark.parametrize(("num_shapes", "multiple", "divisor"), [(1, 8, 1), (3, 8, 2), (1, 16, 4)])
def test_the_length_of_packed_sequences_is_the_one_of_least_work(num_shapes: int, multiple: int, divisor: int) -> None:
    """Batches of any seed and length would have more slots, those of attention included."""
    features = windows(150)
    rules = {"sequence_multiple": divisor, "num_batch_shapes": num_shapes}
    chosen = choose_packed_length(features, 8, 128, length_multiple=multiple, width=64, **rules)
    order = [permutation(150, "length of sequences", 0, 0)]

    def work(length: int) -> float:
        made = batches(features, seq_len=length, epochs=1, orders=order, **rules)
        return sum(made.num_sequences_at(cursor) for cursor in range(19)) * length * (1 + length / 128)

    candidates = range(32, 129, multiple)
    assert chosen in candidates and chosen < 128
    assert work(chosen) == min(map(work, candidates)) < 0.9 * work(128)


def test_no_sequence_is_shorter_than_the_longest_window() -> None:
    rules = {"length_multiple": 8, "sequence_multiple": 1, "num_batch_shapes": 1, "width": 64}
    tokens, two = np.zeros(113, np.int32), np.arange(2)
    one_long = Features(tokens, np.array([0, 3, 113]), tokens.astype(np.int8), two, two, {})
    assert choose_packed_length(one_long, 32, 120, **rules) in (112, 120)
    assert choose_packed_length(one_long, 32, 110, **rules) == 110  # as long as the limit


def test_examples_that_became_longer_than_the_sequences_of_a_run() -> None:
    spec = types.SimpleNamespace(max_target_length=0)
    config = types.SimpleNamespace(packing=True, max_length=128, spec=spec, batch_size=8)
    split = types.SimpleNamespace(data=types.SimpleNamespace(features=windows(45)))
    task: Any = types.SimpleNamespace(config=config, train=split, seq_len=40)
    assert _lengths(task, 1, 1, "cpu") == (40,)  # longer than needed, as it was
    task.seq_len = 24
    with pytest.raises(UserError, match=r"has 32 tokens, rounded up, but the sequences of this run have 24"):
        _lengths(task, 1, 1, "cpu")


def test_batches_of_several_sizes() -> None:
    features = windows(300)
    one, some = batches(features), batches(features, num_batch_shapes=3, sequence_multiple=2)
    assert len(one.sizes) == 1 and len(some.sizes) == 3 and some.num_sequences == -(-one.num_sequences // 2) * 2
    used = [int((one.batch(c)["segment_ids"][:, 0] > 0).sum()) for c in range(one.num_steps)]
    for cursor, minimum in enumerate(used):
        batch = some.batch(cursor)
        assert (
            len(batch["input_ids"])
            == some.num_sequences_at(cursor)
            == min(size for size in some.sizes if size >= minimum)
        )
        assert sorted(check_batch(features, batch)) == sorted(one.windows(cursor)[0].tolist())
    assert some.sequences_per_epoch["train"] == sum(some.num_sequences_at(c) for c in range(some.steps_per_epoch))
    assert some.padding < one.padding
    assert batches(features, sizes=some.sizes, sequence_multiple=2).sequences_per_epoch == some.sequences_per_epoch
    with pytest.raises(ValueError, match="must reach"):
        batches(features, sizes=(one.num_sequences - 1,))
    with some.prefetch(0, 5) as made:
        assert [len(batch["input_ids"]) for _, batch in made] == [some.num_sequences_at(c) for c in range(5)]


def test_sizes_are_those_with_the_least_sum() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        needed_sequences = rng.integers(1, 12, 30)
        values = np.unique(needed_sequences)[:-1].tolist()
        for count in (1, 2, 3):
            chosen = [
                (*limits, int(needed_sequences.max()))
                for n in range(count)
                for limits in itertools.combinations(values, n)
            ]  # every way to choose them
            costs = [
                sum(min(size for size in limits if size >= each) for each in needed_sequences) for limits in chosen
            ]
            sizes = choose_batch_sizes(needed_sequences, count)
            assert len(sizes) <= count and sum(min(s for s in sizes if s >= each) for each in needed_sequences) == min(
                costs
            )


@pytest.mark.parametrize("rows", [slice(2, 5), np.array([0, 3, 4])])
def test_a_share_of_the_rows(rows: Any) -> None:
    features = windows(45)
    loader = batches(features, sizes=(6,), share=lambda count: rows)
    whole, part = loader.batch(4), loader.batch(4, rows)
    assert all(np.array_equal(part[name], array[rows]) for name, array in whole.items())
    with loader.prefetch(4, 6) as made:
        prefetched = list(made)
    assert [cursor for cursor, _ in prefetched] == [4, 5]
    assert all(np.array_equal(prefetched[0][1][name], array) for name, array in part.items())
    shared = EvalBatches(features, batch_size=6, pad_id=7, vocab_size=VOCAB, share=lambda count: rows)
    alone = EvalBatches(features, batch_size=6, pad_id=7, vocab_size=VOCAB)
    for one, other in zip(shared, alone, strict=True):
        assert all(np.array_equal(one[name], array[rows]) for name, array in other.items())


@pytest.mark.parametrize(("packing", "num_lengths"), [(True, 1), (False, 1), (False, 3)])
def test_evaluation_sees_every_window_once(packing: bool, num_lengths: int) -> None:
    features = windows(45)
    loader = EvalBatches(features, batch_size=6, pad_id=7, vocab_size=VOCAB, packing=packing, num_lengths=num_lengths)
    visited = [number for batch in loader for number in check_batch(features, batch)]
    assert sorted(visited) == list(range(45))
    shapes = [batch["input_ids"].shape for batch in loader]
    assert {rows for rows, _ in shapes} == {6}
    assert {length for _, length in shapes} == ({32, 16, 8} if num_lengths > 1 else {32})
    assert len({batch["class_labels"].shape for batch in loader}) == 1
    if not packing:
        lengths = features.lengths[visited]
        assert (np.diff(lengths) <= 0).all()
    assert len(loader[1:]) == len(loader) - 1 and np.array_equal(
        loader[-1]["input_ids"], loader[len(loader) - 1]["input_ids"]
    )
    with pytest.raises(IndexError):
        loader[len(loader)]


@pytest.mark.parametrize("most", [None, 1])
@pytest.mark.parametrize(
    ("lengths", "share"),
    [
        (np.random.default_rng(0).integers(1, 301, 2000), 0.96),
        (np.minimum(512, np.random.default_rng(0).exponential(60, 3000).astype(int) + 2), 0.96),
        (np.random.default_rng(0).integers(3, 40, 1000), 0.95),
        (np.full(200, 33), 0.64),
        (np.array([500] + [10] * 300), 0.7),
        (np.array([70, 3]), 0.9),
        (np.array([5]), 0.3),
    ],
)
def test_rows_hold_every_window_once_in_few_shapes(lengths: np.ndarray, share: float, most: int | None) -> None:
    batches = list(pack_rows(lengths, 2048, 384, 512, most))
    assert sorted(np.concatenate([each.numbers for each in batches])) == list(range(len(lengths)))
    for numbers, row_of, (rows, length, slots) in batches:
        tokens = np.bincount(row_of, lengths[numbers], minlength=rows)
        assert len(tokens) == rows and tokens.max() <= length <= 512
        assert np.bincount(row_of).max() <= slots and rows * length <= 2048 and (np.diff(row_of) >= 0).all()
    shapes = {each.size for each in batches}
    assert len(shapes) == len({each.size[1] for each in batches}), "rows of one length have one program"
    if most is None:
        assert len(shapes) <= 4
        assert lengths.sum() > share * sum(rows * length for _, _, (rows, length, _) in batches)
    else:
        assert {each.size[2] for each in batches} == {1}


def test_rows_are_no_longer_than_the_model_reads() -> None:
    (only,) = pack_rows(np.full(9, 40), 2048, 384, 50)
    assert only.size == (16, 50, 12) and only.row_of.tolist() == list(range(9))


def test_what_a_model_says_comes_back() -> None:
    features = windows(45)
    tokens, by_window = np.zeros(len(features.tokens), np.int32), np.zeros((45, 2))
    for batch in EvalBatches(features, batch_size=4, pad_id=7, vocab_size=VOCAB):
        scatter_token_values(features, batch, batch["input_ids"] * 2, tokens)
        scatter_window_values(batch, np.stack([batch["class_labels"], batch["score_labels"]], -1), by_window)
    assert (tokens == 2 * features.tokens).all()
    assert (by_window[:, 0] == features.labels["class_labels"]).all()
    assert np.allclose(by_window[:, 1], features.labels["score_labels"])


def test_errors() -> None:
    features = windows(45)
    features.tokens[features.offsets[3] + 1] = VOCAB
    for make in (batches, lambda f: EvalBatches(f, batch_size=4, pad_id=7, vocab_size=VOCAB)):
        with pytest.raises(UserError, match=r"example 3 holds token id 1000, but the model has 1000 tokens"):
            make(features)
    features.tokens[features.offsets[3] + 1] = -1
    with pytest.raises(UserError, match=r"example 3 holds token id -1"):
        batches(features)
    with pytest.raises(UserError, match=r"task.max_length: a window has 30 tokens, but sequences have 29"):
        batches(windows(45), seq_len=29)
    with pytest.raises(UserError, match=r"no examples left"):
        batches(windows(0))
    with pytest.raises(ValueError, match="cannot be negative"):
        batches(windows(45)).batch(-1)


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 20), min_size=7, max_size=7), min_size=1, max_size=5), st.integers(20, 50))
def test_packing_of_many_batches(lengths: list[list[int]], seq_len: int) -> None:
    """No row is overfull, and no row is opened if the window still fits elsewhere: best fit decreasing, one by one."""
    array = np.array(lengths, np.int32)
    rows = pack_batches(array, seq_len)
    for sizes, row in zip(lengths, rows.tolist(), strict=True):
        rooms: list[int] = []
        for window in np.argsort([-n for n in sizes], kind="stable").tolist():
            length = sizes[window]
            if not length:
                continue  # no window
            fitting = [index for index, space in enumerate(rooms) if space >= length]
            expected = min(fitting, key=lambda index: (rooms[index], index)) if fitting else len(rooms)
            assert row[window] == expected
            rooms = [*rooms, seq_len] if expected == len(rooms) else rooms
            rooms[expected] -= length


def test_planning_is_fast() -> None:
    """100,000 windows in 3 epochs of batches of 32."""
    features = windows(100_000, longest=60, class_labels=np.zeros(100_000, np.int32))
    began = time.process_time()
    loader = batches(features, batch_size=32, epochs=3.0, seq_len=128)
    assert time.process_time() - began < 4.0  # half a second on an idle machine
    assert loader.num_steps == 9375
