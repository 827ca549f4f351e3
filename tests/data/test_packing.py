"""Best-fit-decreasing packing of examples into rows, computed on whole arrays."""

import hashlib
import tracemalloc

import numpy as np
import pytest

from bertjax.data.packing import best_fit, count_packed_sequences, plan_packing


def lengths_of(name: str, count: int, seq_len: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kinds = {
        "any": rng.integers(1, seq_len + 1, count),
        "articles": np.where(rng.random(count) < 0.8, seq_len, rng.integers(4, seq_len + 1, count)),
        "short": np.minimum(seq_len, 3 + rng.geometric(6 / seq_len, count)),
        "two": rng.choice([seq_len // 3, seq_len - seq_len // 3], count),
        "equal": np.full(count, seq_len // 2),
        "long": np.full(count, seq_len),
    }
    return kinds[name].astype(np.int32)


def one_by_one(lengths: np.ndarray, seq_len: int, maximum: int) -> list[list[int]]:
    """Plain best fit decreasing: returns the lengths in each row; of equally full rows, the emptiest is taken."""
    rows: list[list[int]] = []
    for length in sorted(lengths.tolist(), reverse=True):
        fitting = [row for row in rows if sum(row) + length <= seq_len and len(row) < maximum]
        if fitting:
            min(fitting, key=lambda row: (seq_len - sum(row), len(row))).append(length)
        else:
            rows.append([length])
    return rows


def members(plan, rows=None):
    numbers, counts = plan.find(np.arange(plan.num_sequences) if rows is None else rows)
    return np.split(numbers, np.cumsum(counts)[:-1])


KINDS = ["any", "articles", "short", "two", "equal", "long"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("seq_len", "maximum"), [(64, 64), (64, 3), (17, 2), (32, 1)])
def test_rows_are_those_of_best_fit_one_by_one(kind, seq_len, maximum):
    lengths = lengths_of(kind, 300, seq_len)
    rows = members(plan_packing(lengths, seq_len=seq_len, max_examples=maximum, seed=1, epoch=0))
    expected = [(sum(row), len(row)) for row in one_by_one(lengths, seq_len, maximum)]  # equal rows are interchangeable
    assert sorted((int(lengths[row].sum()), len(row)) for row in rows) == sorted(expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [1, 7, 100, 1000])
def test_every_example_is_once_in_rows_that_are_not_overfull(kind, window):
    lengths = lengths_of(kind, 900, 50)
    for epoch in range(2):
        plan = plan_packing(lengths, seq_len=50, max_examples=4, window=window, seed=3, epoch=epoch)
        rows = members(plan)
        assert sorted(np.concatenate(rows).tolist()) == list(range(900))
        assert max(lengths[row].sum() for row in rows) <= 50
        assert min(map(len, rows)) >= 1 and max(map(len, rows)) <= 4
        assert all(len(set((row // window).tolist())) == 1 for row in rows)  # windows are packed independently
        assert plan.num_sequences == count_packed_sequences(lengths, seq_len=50, max_examples=4, window=window)


def test_larger_windows_need_fewer_rows():
    lengths = lengths_of("any", 4000, 128)
    rows = [
        count_packed_sequences(lengths, seq_len=128, max_examples=16, window=window) for window in (1, 10, 100, 4000)
    ]
    assert rows == sorted(rows, reverse=True)
    assert 1 - lengths.sum() / (rows[-1] * 128) < 0.01


def test_a_plan_is_a_function_of_seed_and_epoch():
    """P3: and of nothing else; the digest guards it across versions."""
    lengths = lengths_of("any", 2000, 128)

    def plan(**names):
        return plan_packing(lengths, seq_len=128, max_examples=8, window=700, **({"seed": 1, "epoch": 0} | names))

    one, again = plan(), plan()
    assert np.array_equal(one.members, again.members)
    assert np.array_equal(one.begins, again.begins)
    for other in (plan(seed=2), plan(epoch=1)):
        assert other.num_sequences == one.num_sequences  # the count follows from the lengths
        assert sorted(map(tuple, members(other))) != sorted(map(tuple, members(one)))
    digest = hashlib.sha256(one.members.astype("<u4").tobytes() + one.begins.astype("<u4").tobytes())
    assert digest.hexdigest()[:16] == "4957b2e3a4a475d6"


def test_who_shares_a_row_and_where_rows_stand_is_random():
    lengths = np.repeat([30, 70], 500).astype(np.int32)  # every row has one of each
    partners, positions = np.zeros((2, 500)), np.zeros((2, 500))
    for epoch in range(2):
        rows = np.sort(
            np.stack(members(plan_packing(lengths, seq_len=100, max_examples=9, seed=0, epoch=epoch))), axis=1
        )
        order = np.argsort(rows[:, 0])
        partners[epoch], positions[epoch] = rows[order, 1], order
    for result in (partners, positions):
        assert abs(np.corrcoef(result[0], result[1])[0, 1]) < 0.2
        assert all(abs(np.corrcoef(result[epoch], np.arange(500))[0, 1]) < 0.2 for epoch in range(2))


def test_some_rows_are_found_without_the_others():
    plan = plan_packing(lengths_of("any", 500, 64), seq_len=64, max_examples=8, seed=0, epoch=0)
    whole = members(plan)
    some = np.random.default_rng(0).integers(0, plan.num_sequences, 40)
    for result, row in zip(members(plan, some), some.tolist(), strict=True):
        assert result.tolist() == whole[row].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_is_small(kind):
    lengths = lengths_of(kind, 20_000, 512)
    plan = plan_packing(lengths, seq_len=512, max_examples=64, window=1 << 12, seed=0, epoch=0)
    assert plan.num_bytes <= 8 * len(lengths) + 8


@pytest.mark.long
def test_planning_needs_little_memory_besides_the_plan():
    lengths = lengths_of("articles", 1 << 18, 512)
    tracemalloc.start()
    plan_packing(lengths, seq_len=512, max_examples=16, window=1 << 12, seed=0, epoch=0)
    assert tracemalloc.get_traced_memory()[1] < 44 * len(lengths)
    tracemalloc.stop()


def test_steps_are_as_many_as_lengths_and_not_as_examples(monkeypatch):
    """The expensive work is on whole arrays: ten times the examples do not take ten times the steps."""
    from bertjax.data import packing

    steps = []
    put = packing._Packer.put
    monkeypatch.setattr(packing._Packer, "put", lambda self, *args: steps.append(1) or put(self, *args))
    counts = np.bincount(lengths_of("any", 1000, 128), minlength=129)
    best_fit(counts, 128, 8)
    few = len(steps)
    best_fit(counts * 1000, 128, 8)
    assert len(steps) - few < 4 * few


def test_nothing_to_pack():
    plan = plan_packing(np.zeros(0, np.int32), seq_len=8, max_examples=2, seed=0, epoch=0)
    assert plan.num_sequences == count_packed_sequences(np.zeros(0, np.int32), seq_len=8, max_examples=2) == 0
