"""Masked tokens: which and how many are chosen, what replaces them, and from which numbers they are drawn."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from masking_lab import (
    CLS,
    CONTINUATION,
    MASK,
    PAD,
    SEP,
    UNK,
    chosen_of,
    jit,
    keys_of,
    noise_of,
    num_predictions_by_length,
    words_of,
)

from bertjax.config.model import EncoderConfig
from bertjax.objectives.masking.corrupt import mask_tokens, selected_positions
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.masking.tokens import ORDER
from bertjax.objectives.mlm import Mlm
from bertjax.types import Vocabulary

B, S, M = 8, 128, 60
MaskBatch = Callable[..., dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def mask_batch(vocabulary: Vocabulary) -> MaskBatch:
    """`mask_batch(batch, seed, mask_unit=...)` on numpy arrays; compiled once for every config and shape."""

    @functools.cache
    def compiled(config: Masking) -> Callable:
        return jit(lambda batch, keys: mask_tokens(batch, keys, config, vocabulary, M))

    def run(batch: dict, seed: int = 0, **changes) -> dict[str, np.ndarray]:
        return jax.device_get(compiled(Masking(**changes))(batch, keys_of(batch, seed)))

    return run


def greedy(words: list[list[int]], noise: np.ndarray, budget: int) -> set[int]:
    """Words in random order, each taken if it still fits; others are skipped."""
    taken: set[int] = set()
    for word in sorted(words, key=lambda word: noise[word[0]]):
        if len(taken) + len(word) <= budget:
            taken.update(word)
    return taken


def expected_choice(batch: dict, seed: int, vocabulary: Vocabulary, unit: str) -> np.ndarray:
    """The sequential rule, one example after another."""
    noise = noise_of(batch, seed, ORDER)
    chosen = np.zeros((len(batch["input_ids"]), S), bool)
    for row, segments in enumerate(batch["segment_ids"]):
        for index in range(segments.max()):
            columns = np.flatnonzero(segments == index + 1)
            budget = min(20, max(1, round(0.15 * len(columns))))
            words = words_of(batch["input_ids"][row, columns], vocabulary.starts_word, unit == "whole_word")
            chosen[row, columns[sorted(greedy(words, noise[row, index], budget))]] = True
    return chosen


@pytest.fixture(scope="module")
def batches(pack: Callable, example: Callable) -> Callable:
    """`batches(seed, packed)`: eight rows of 128, up to three examples of very different lengths in each."""

    def build(seed: int, packed: bool) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        maximum, longest = (3, S // 3) if packed else (1, S)
        rows = [
            [example(rng, int(rng.integers(3, longest + 1))) for _ in range(rng.integers(1, maximum + 1))]
            for _ in range(B - 1)
        ]
        # A row without padding (two tokens short of 128), where only the example separates words.
        rows.append([np.maximum(example(rng, longest), CONTINUATION) for _ in range(maximum)])
        identities = [[int(i) for i in rng.integers(0, 2**32, len(row))] for row in rows]
        return pack(rows, S, identities)

    return build


@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31 - 1))
@pytest.mark.parametrize("packed", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("unit", ["token", "whole_word"])
def test_the_choice_is_that_of_the_sequential_rule(
    mask_batch: MaskBatch, batches: Callable, vocabulary: Vocabulary, unit: str, packed: bool, seed: int
) -> None:
    batch = batches(seed, packed)
    expected = expected_choice(batch, seed, vocabulary, unit)
    np.testing.assert_array_equal(chosen_of(mask_batch(batch, seed, mask_unit=unit)), expected)


@pytest.mark.long
def test_the_whole_word_rule_holds_for_long_words(pack: Callable, example: Callable, vocabulary: Vocabulary) -> None:
    """Words of five tokens on average, many longer than the whole budget."""
    rng = np.random.default_rng(0)
    other = Vocabulary(**{**vars(vocabulary), "starts_word": rng.random(200) < 0.2})
    batch = pack([[example(rng, S)] for _ in range(64)], S, [[row] for row in range(64)])
    hidden = jit(lambda batch, keys: mask_tokens(batch, keys, Masking(mask_unit="whole_word"), other, M))(
        batch, keys_of(batch, 0)
    )
    np.testing.assert_array_equal(chosen_of(jax.device_get(hidden)), expected_choice(batch, 0, other, "whole_word"))


def test_budgets_are_the_authors() -> None:
    result = num_predictions_by_length(Masking(max_predictions=100), 512)
    assert (result[128], result[512]) == (19, 77)
    assert (result[0], result[1], result[3]) == (0, 1, 1)
    assert (result[10], result[30], result[50], result[70]) == (
        2,
        4,
        8,
        10,
    )  # Python rounds 1.5, 4.5, 7.5 and 10.5 to even
    assert num_predictions_by_length(Masking(max_predictions=20), 512).max() == 20
    assert result.dtype == np.int32 and result.shape == (513,)


def test_the_budget_is_spent_and_never_overdrawn(
    mask_batch: MaskBatch, batches: Callable, vocabulary: Vocabulary
) -> None:
    batch = batches(5, packed=True)
    allowed = num_predictions_by_length(Masking(), S)
    for unit in ("token", "whole_word"):
        chosen = chosen_of(mask_batch(batch, mask_unit=unit))
        for row, segments in enumerate(batch["segment_ids"]):
            for index in range(1, segments.max() + 1):
                inside = segments == index
                candidates = inside & ~np.isin(batch["input_ids"][row], (CLS, SEP))
                expected = min(allowed[inside.sum()], candidates.sum())
                count = (chosen[row] & inside).sum()
                assert count == expected if unit == "token" else count <= expected


def test_only_specials_that_the_authors_exclude_are_never_chosen(
    mask_batch: MaskBatch, pack: Callable, example: Callable
) -> None:
    rng = np.random.default_rng(0)
    batch = pack([[example(rng, S - 10)] for _ in range(B)], S, [[row] for row in range(B)])
    everything = chosen_of(mask_batch(batch, mask_rate=1.0, max_predictions=S))
    np.testing.assert_array_equal(
        everything.sum(1), np.minimum((~np.isin(batch["input_ids"], (PAD, CLS, SEP))).sum(1), M)
    )
    assert not np.isin(batch["input_ids"][everything], (PAD, CLS, SEP)).any()
    assert (batch["input_ids"][everything] == UNK).any()


def test_whole_words_are_hidden_whole(mask_batch: MaskBatch, batches: Callable, vocabulary: Vocabulary) -> None:
    any_long = False
    for seed in range(3):
        batch = batches(seed, packed=True)
        chosen = chosen_of(mask_batch(batch, seed, mask_unit="whole_word"))
        for row, segments in enumerate(batch["segment_ids"]):
            for index in range(1, segments.max() + 1):
                columns = np.flatnonzero(segments == index)
                for word in words_of(batch["input_ids"][row, columns], vocabulary.starts_word, True):
                    masked = chosen[row, columns[word]]
                    assert masked.all() or not masked.any()
                    any_long |= len(word) > 2 and bool(masked.all())
    assert any_long


def test_shares_of_mask_random_and_unchanged(mask_batch: MaskBatch, batches: Callable, vocabulary: Vocabulary) -> None:
    before, after = [], []
    for seed in range(40):
        batch = batches(seed, packed=False)
        hidden = mask_batch(batch, seed)
        chosen = chosen_of(hidden)
        np.testing.assert_array_equal(hidden["input_ids"][~chosen], batch["input_ids"][~chosen])
        np.testing.assert_array_equal(hidden["original_ids"], batch["input_ids"])
        before.append(batch["input_ids"][chosen])
        after.append(hidden["input_ids"][chosen])
    old, new = np.concatenate(before), np.concatenate(after)
    share = 0.1 / vocabulary.size  # a random token may be the mask or the same again
    for result, expected in (((new == MASK).mean(), 0.8 + share), ((new == old).mean(), 0.1 + share)):
        assert abs(result - expected) < 4 * np.sqrt(expected * (1 - expected) / len(old))


def test_random_tokens_come_from_the_whole_true_vocabulary(
    mask_batch: MaskBatch, pack: Callable, example: Callable, vocabulary: Vocabulary
) -> None:
    rng = np.random.default_rng(0)
    drawn = []
    for seed in range(12):
        batch = pack([[example(rng, S)] for _ in range(B)], S, [[row] for row in range(B)])
        hidden = mask_batch(batch, seed, mask_rate=1.0, max_predictions=M, mask_token_rate=0.0, random_token_rate=1.0)
        drawn.append(hidden["input_ids"][chosen_of(hidden)])
    drawn = np.concatenate(drawn)
    counts = np.bincount(drawn, minlength=vocabulary.size)
    assert len(counts) == vocabulary.size  # never the padding of the vocabulary
    expected = len(drawn) / vocabulary.size
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = vocabulary.size - 1
    assert abs(statistic - freedom) < 4 * np.sqrt(2 * freedom)  # uniform, neither uneven nor too even
    assert (counts[:5] > 0).all()  # specials too


@pytest.mark.long
def test_the_mask_of_an_example_does_not_know_its_row(mask_batch: MaskBatch, pack: Callable, example: Callable) -> None:
    """Alone, packed with others, in another row, after other neighbors: the same mask."""
    rng = np.random.default_rng(3)
    texts = [example(rng, int(n)) for n in (20, 33, 41, 12, 57, 30)]

    def hidden_texts(rows: list[list[int]], unit: str, maximum: int = 3) -> dict[int, tuple[list[int], list[int]]]:
        rows = rows + [[]] * (B - len(rows))
        batch = pack([[texts[i] for i in row] for row in rows], S, [[1000 + i for i in row] for row in rows], maximum)
        hidden = mask_batch(batch, mask_unit=unit)
        result = {}
        for row, members in enumerate(rows):
            for index, i in enumerate(members):
                inside = batch["segment_ids"][row] == index + 1
                result[i] = hidden["input_ids"][row, inside].tolist(), chosen_of(hidden)[row, inside].tolist()
        return result

    for unit in ("token", "whole_word"):
        alone = hidden_texts([[i] for i in range(6)], unit, maximum=1)
        assert any(sum(chosen) > 2 for _, chosen in alone.values())
        assert hidden_texts([[0, 1, 2], [3, 4, 5]], unit) == alone
        assert hidden_texts([[5, 3], [2, 4], [1, 0]], unit) == alone


def test_two_examples_with_the_same_text_are_hidden_differently(
    mask_batch: MaskBatch, pack: Callable, example: Callable
) -> None:
    text = example(np.random.default_rng(0), 60)
    chosen = chosen_of(mask_batch(pack([[text, text]] + [[]] * (B - 1), S, [[1, 2]] + [[]] * (B - 1), 3)))[0]
    assert (chosen[:60] != chosen[60:120]).any()


def test_gathered_positions_are_in_order_and_padded_with_zeros(mask_batch: MaskBatch, batches: Callable) -> None:
    batch = batches(1, packed=True)
    hidden = mask_batch(batch)
    for row in range(B):
        count = int(hidden["masked_weights"][row].sum())
        assert hidden["masked_weights"][row].tolist() == [1.0] * count + [0.0] * (M - count)
        positions = hidden["masked_positions"][row]
        assert (np.diff(positions[:count]) > 0).all() and not positions[count:].any()
        np.testing.assert_array_equal(hidden["masked_ids"][row, :count], batch["input_ids"][row, positions[:count]])
        assert not hidden["masked_ids"][row, count:].any()
    assert (hidden["masked_positions"].dtype, hidden["masked_ids"].dtype) == (np.int32, np.int32)
    assert hidden["masked_weights"].dtype == np.float32


def test_gather_chosen_takes_the_first_ones() -> None:
    chosen = jnp.asarray([[0, 1, 0, 1, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], bool)
    positions, weights = selected_positions(chosen, 2)
    np.testing.assert_array_equal(positions, [[1, 3], [4, 0], [0, 0]])
    np.testing.assert_array_equal(weights, [[1, 1], [1, 0], [0, 0]])


@pytest.mark.parametrize("dynamic", [True, False])
def test_dynamic_masks_follow_the_cursor_and_static_ones_the_draw(
    vocabulary: Vocabulary, batches: Callable, dynamic: bool
) -> None:
    config = Mlm(Masking(dynamic=dynamic))
    objective = config.build({"model": EncoderConfig(vocab_size=200, padded_vocab_size=256)}, vocabulary)
    corrupt = jit(objective.corrupt)
    batch = batches(0, packed=True)

    def hidden(cursor: int, draw: int, seed: int = 0) -> list:
        drawn = {**batch, "example_draws": np.full_like(batch["example_draws"], draw)}
        out = jax.device_get(corrupt(drawn, jax.random.key(seed), np.int32(cursor)))
        return out["input_ids"].tolist()

    assert hidden(3, 1) == hidden(3, 1)
    assert hidden(3, 1) != hidden(3, 1, seed=1)
    assert (hidden(3, 1) != hidden(4, 1)) == dynamic
    assert (hidden(3, 1) != hidden(3, 2)) == (not dynamic)
