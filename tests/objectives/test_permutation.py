"""XLNet's targets, their order and visibility, against the sequential rules written in numpy."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from masking_lab import assert_distribution, assert_share, runs_of

from bertjax.errors import UserError
from bertjax.objectives.plm.objective import Plm
from bertjax.objectives.plm.permutation import (
    NUM_DRAWS,
    SequencePart,
    permutation_ranks,
    sample_order,
    sample_targets,
)

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
P, GOAL = 256, 43
PUBLISHED = Plm((256, 256), 85, 256, mem_len=384, example_format="segments")
BY_WORDS = Plm((256, 256), 85, 256, mem_len=384, whole_words=True, example_format="segments")


@functools.cache
def compiled(config: Plm, maximum: int) -> Callable:
    return jit(lambda part: sample_targets(part, config, maximum))


def drawn_part(rows: int, width: int = P, goal: int = GOAL, seed: int = 0, share: float = 0.7) -> SequencePart:
    rng = np.random.default_rng(seed)
    starts = jnp.asarray(rng.random((rows, width)) < share)
    bits = jax.random.bits(jax.random.key(seed), (NUM_DRAWS, rows, width))
    return SequencePart(starts, jnp.full(rows, width), jnp.full(rows, goal), bits)


def fractions(bits: np.ndarray) -> np.ndarray:
    return ((bits >> 8).astype(np.float32) * np.float32(2.0**-24)).astype(np.float32)


def slow_spans(part: dict, row: int, config: Plm, goal: int) -> np.ndarray:
    """One context after another, with the random numbers of the position at which each begins."""
    starts, length = part["starts"][row], int(part["lengths"][row])
    length_noise, position_noise = (fractions(bits[row]) for bits in part["bits"][:2])
    shares = 1.0 / np.arange(1, config.max_ngram + 1)
    limits = np.cumsum(shares / shares.sum()).astype(np.float32)
    hidden, current = np.zeros(len(starts), bool), 0
    while current < length and hidden.sum() < goal:
        n = min(1 + int((length_noise[current] >= limits[:-1]).sum()), goal - hidden.sum())
        context = n * config.mask_alpha // config.mask_beta
        left = min(int(position_noise[current] * np.float32(context)), context - 1)
        begin = current + left
        while begin < length and not starts[begin]:
            begin += 1
        if begin >= length:
            break
        end, words = begin + 1, 1
        while end < length:
            if not config.whole_words or starts[end]:
                words += 1
                if words > n:
                    break
            end += 1
        if end >= length:
            break
        hidden[begin : min(end, begin + goal - hidden.sum())] = True
        current = end + context - left
    return hidden


@pytest.mark.parametrize(
    ("config", "width", "goal", "share"),
    [
        (PUBLISHED, P, GOAL, 0.7),
        (BY_WORDS, P, GOAL, 0.5),
        (Plm((50,), 20, 50, mask_alpha=3, mask_beta=2, max_ngram=3), 50, 20, 0.3),
        (Plm((50,), 8, 50, mask_alpha=1, mask_beta=1, max_ngram=16, whole_words=True), 50, 8, 0.9),
    ],
)
def test_spans_are_those_of_the_sequential_rule(config: Plm, width: int, goal: int, share: float) -> None:
    """All spans of the rule are chosen, and single tokens complete the goal exactly."""
    part = drawn_part(300, width, goal, share=share)
    rng = np.random.default_rng(3)
    part = part._replace(lengths=jnp.asarray(rng.integers(goal + 4, width + 1, 300)))
    part = part._replace(starts=part.starts & (jnp.arange(width)[None, :] < part.lengths[:, None]))
    result, part = jax.device_get((compiled(config, goal)(part), part._asdict()))
    topped_up = 0
    for row in range(300):
        spans = slow_spans(part, row, config, goal)
        assert not (spans & ~result[row]).any()
        assert result[row].sum() == goal and not result[row][part["lengths"][row] :].any()
        free = (np.arange(width) < part["lengths"][row]) & ~spans
        low = (width - 1).bit_length()
        # random words, then the position
        keys = (part["bits"][2][row].astype(np.int64) >> low) << low | np.arange(width)
        rest = np.flatnonzero(free)[np.argsort(keys[free])][: goal - spans.sum()]
        np.testing.assert_array_equal(np.flatnonzero(result[row] & ~spans), np.sort(rest))
        topped_up += len(rest)
    assert topped_up > 0


@pytest.mark.long
def test_rates_are_those_of_the_original() -> None:
    """An independent generator agrees per position of the row: spans, and the tokens that complete them."""
    rows, rng = 3000, np.random.default_rng(7)
    part = drawn_part(rows)
    result = np.asarray(compiled(PUBLISHED, GOAL)(part))
    assert (result.sum(1) == GOAL).all()
    bits = rng.integers(0, 2**32, (2, rows, P), dtype=np.uint64).astype(np.uint32)
    other = {"starts": np.asarray(part.starts), "lengths": np.full(rows, P), "bits": bits}
    spans = np.stack([slow_spans(other, row, PUBLISHED, GOAL) for row in range(rows)])
    share = spans.sum() / (rows * GOAL)
    assert 0.80 < share < 0.84  # about 35 of 43
    # positions of spans: hits per position, of two samples of rows
    expected = spans + (~spans) * ((GOAL - spans.sum(1)) / (P - spans.sum(1)))[:, None]
    difference = result.mean(0) - expected.mean(0)
    error = np.sqrt(result.var(0) / rows + expected.var(0) / rows)
    assert np.abs(difference / error).max() < 4.5


@pytest.mark.long
def test_lengths_of_spans_are_drawn_in_proportion_to_their_inverse() -> None:
    """The first span of rows in which every token begins a word, where no single token can extend it."""
    rows = 4000
    part = drawn_part(rows, goal=5, share=1.1)
    result = np.asarray(compiled(Plm((P,), 5, P, max_ngram=5), 5)(part))
    lengths = np.array([last - first + 1 for row in result for first, last in runs_of(row)[:1]])
    shares = 1.0 / np.arange(1, 6)
    assert_distribution(np.bincount(lengths, minlength=6)[1:], shares / shares.sum())
    # a span of n is anywhere in the first 6 n positions: of 5, the last possible one is 29
    first = result.argmax(1)[lengths == 5]
    assert_distribution(np.bincount(first, minlength=30), np.full(30, 1 / 30))


def test_nothing_is_chosen_where_there_is_no_goal_or_no_token() -> None:
    part = drawn_part(3)
    part = part._replace(goals=jnp.asarray([0, GOAL, 0]), lengths=jnp.asarray([P, P, 0]))
    np.testing.assert_array_equal(compiled(PUBLISHED, GOAL)(part).sum(1), [0, GOAL, 0])


def test_orders_are_uniform() -> None:
    """All 24 orders of the first four positions, and the rank of the first position of 256."""
    rows = 6000
    order = np.asarray(sample_order(jax.random.bits(jax.random.key(1), (rows, P)), P))
    assert (order >= 0).all() and all(len(set(row)) == P for row in order[:50].tolist())
    ranks = order[:, :4].argsort(1) @ np.array([64, 16, 4, 1])
    _, counts = np.unique(ranks, return_counts=True)
    assert_distribution(counts, np.full(24, 1 / 24))
    when = (order < order[:, :1]).sum(1) // 16
    assert_distribution(np.bincount(when, minlength=16), np.full(16, 1 / 16))
    assert_share((order[:, 3] < order[:, 200]).sum(), rows, 0.5)


def test_blocks_come_one_after_the_other_and_are_permuted_alike() -> None:
    order = np.asarray(sample_order(jax.random.bits(jax.random.key(2), (40, 60)), 15)).reshape(40, 4, 15)
    assert (order[:, :-1].max(2) < order[:, 1:].min(2)).all()
    ranks = order.argsort(2)
    np.testing.assert_array_equal(ranks, np.broadcast_to(ranks[:, :1], ranks.shape))
    assert len({tuple(row) for row in ranks[:, 0].tolist()}) == 40


def slow_perm_mask(index: np.ndarray, hidden: np.ndarray, functional: np.ndarray, parts: tuple[int, ...]) -> np.ndarray:
    """The original's `perm_mask` (1 = must not see), part by part, cell by cell."""
    size = sum(parts)
    mask, begin = np.ones((size, size), int), 0
    for width in parts:
        for i in range(begin, begin + width):
            mask[i, :begin] = 0
            for j in range(begin, begin + width):
                ordinary_i = not hidden[i] and not functional[i]
                ordinary_j = not hidden[j] and not functional[j]
                rank_i, rank_j = (-1 if ordinary_i else index[i]), (-1 if ordinary_j else index[j])
                is_target = hidden[i] and not functional[i]
                blocked = (rank_i if is_target else rank_i + 1) <= rank_j and not ordinary_j
                mask[i, j] = int(blocked)
        begin += width
    return mask


@pytest.mark.parametrize("perm_size", [12, 6, 4])
def test_who_sees_whom_is_exactly_as_in_the_original(perm_size: int) -> None:
    parts, rows = (12, 12), 20
    rng = np.random.default_rng(0)
    hidden = rng.random((rows, 24)) < 0.4
    functional = np.zeros((rows, 24), bool)
    functional[:, [17, 22, 23]] = True
    bits = jax.random.bits(jax.random.key(5), (2, rows, 12))
    drawn = np.concatenate([sample_order(part, perm_size) for part in bits], axis=1)
    order = np.where(hidden | functional, drawn, -1)
    result = np.asarray(permutation_ranks(jnp.asarray(order), jnp.asarray(functional), parts).visible())
    for row in range(rows):
        index = np.concatenate([part.argsort().argsort() for part in drawn[row].reshape(2, 12)])
        expected = slow_perm_mask(index, hidden[row], functional[row], parts)
        np.testing.assert_array_equal(result[row], expected == 0)


def test_a_golden_example() -> None:
    """By hand. Part one: t0 T1 t2 T3 with T3 predicted before T1. Part two: T4 [SEP] t6 [CLS], in the order 7 4 5."""
    order = jnp.asarray([[-1, 9, -1, 2, 5, 8, -1, 1]])
    functional = jnp.asarray([[False] * 5 + [True, False, True]])
    expected = ["1.1.....", "1.11....", "1.1.....", "1.1.....", "1111..11", "11111111", "1111..1.", "1111..11"]
    result = np.asarray(permutation_ranks(order, functional, (4, 4)).visible())[0]
    assert ["".join(".1"[int(cell)] for cell in row) for row in result] == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"perm_size": 100}, r"perm_size=100 must divide every part of a sequence: 256 and 256 tokens"),
        ({"num_predict": 506}, "num_predict=506 leaves no token to predict from: at most 252 of the 256"),
        ({"num_predict": 0}, r"objective\.plm\.num_predict must be at least 1, not 0"),
        ({"mask_alpha": 1, "mask_beta": 2}, "mask_alpha=1 must be at least objective.plm.mask_beta=2"),
        ({"mask_beta": 0}, r"objective\.plm\.mask_beta must be at least 1"),
        ({"max_ngram": 17}, "max_ngram must lie in \\[1, 16\\]"),
        (
            {"example_format": "pairs"},
            "plm needs data.example_format to be one of segments, stream, block, doc_sentences, full_sentences,",
        ),
        ({"part_lengths": (1 << 15,), "perm_size": 1 << 15}, "permutes at most 16384 tokens"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict, words: str) -> None:
    values = {"example_format": "segments", "part_lengths": (256, 256), "num_predict": 85, "perm_size": 256} | changes
    with pytest.raises(UserError, match=words):
        Plm(**values)


def test_goals_are_halves_of_what_is_predicted() -> None:
    assert PUBLISHED.num_predict_by_part == (43, 42)
    assert Plm((64,), 10, 64).num_predict_by_part == (10,)
    assert sum(Plm((100, 28), 17, 4, example_format="segments").num_predict_by_part) == 17
