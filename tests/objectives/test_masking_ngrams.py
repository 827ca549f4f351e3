"""ALBERT's and DeBERTa's n-grams: the sequential rules, token by token, and their statistics."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from masking_lab import (
    CLS,
    SEP,
    UNK,
    assert_distribution,
    assert_share,
    chosen_of,
    examples_of,
    jit,
    keys_of,
    mask_batch,
    noise_of,
    runs_of,
    text_rows,
    words_of,
)

from bertjax.objectives.masking.selection import sample_ngram_lengths
from bertjax.objectives.masking.tokens import LENGTH, ORDER, WINDOWS
from bertjax.types import Vocabulary

S = 128


def lengths_of(noise: np.ndarray, maximum: int) -> np.ndarray:
    """Returns the lengths that uniform noise draws, by the cumulative sums of 1, 1/2, 1/3, ..."""
    shares = 1.0 / np.arange(1, maximum + 1)
    limits = (np.cumsum(shares) / shares.sum()).astype(np.float32)[:-1]
    return 1 + (noise[..., None] >= limits).sum(-1)


def albert(words: list[list[int]], noise: np.ndarray, lengths: np.ndarray, budget: int) -> set[int]:
    """google-research/albert:create_pretraining_data.py, with sets."""
    taken: set[int] = set()
    for start in sorted(range(len(words)), key=lambda start: noise[words[start][0]]):
        if len(taken) >= budget:
            break
        n = lengths[words[start][0]]
        while n > 1 and len(taken) + sum(map(len, words[start : start + n])) > budget:
            n -= 1
        ngram = {token for word in words[start : start + n] for token in word}
        if len(taken) + len(ngram) <= budget and not taken & ngram:
            taken |= ngram
    return taken


def deberta(words: list[list[int]], noise: np.ndarray, maximum: int, budget: int) -> set[int]:
    """microsoft/DeBERTa:DeBERTa/apps/tasks/mlm_task.py; `noise` [2, windows] draws lengths and positions."""
    hidden, offset, window = np.zeros(len(words), bool), 0, 0
    while offset < len(words):
        n = int(lengths_of(noise[0, window], maximum))
        context = min(n * 6, len(words) - offset)
        start = offset + int(np.floor(noise[1, window] * np.float32(context)))
        end = min(start + n, len(words))
        offset, window = max(offset + context, end), window + 1
        hidden[start:end] = True
    taken: set[int] = set()
    for word in (word for word, is_hidden in zip(words, hidden, strict=True) if is_hidden):
        taken |= set(word)
        if len(taken) >= budget:
            break
    return taken


@pytest.mark.parametrize(
    "packed", [pytest.param(False, marks=pytest.mark.weekly), pytest.param(True, marks=pytest.mark.long)]
)
def test_alberts_ngrams_are_those_of_the_sequential_rule(
    batches: Callable, vocabulary: Vocabulary, packed: bool
) -> None:
    for seed in range(5):
        batch = batches(seed, packed, 32)
        order, length = noise_of(batch, seed, ORDER), lengths_of(noise_of(batch, seed, LENGTH), 3)
        result = chosen_of(mask_batch(batch, vocabulary, seed, mask_unit="ngram"))
        expected = np.zeros_like(result)
        for row, index, columns in examples_of(batch):
            words = words_of(batch["input_ids"][row, columns], vocabulary.starts_word, True)
            budget = min(20, max(1, round(0.15 * len(columns))))
            expected[row, columns[sorted(albert(words, order[row, index], length[row, index], budget))]] = True
        np.testing.assert_array_equal(result, expected)


@pytest.mark.long
def test_alberts_ngrams_hold_for_long_words_and_large_shares(batches: Callable, vocabulary: Vocabulary) -> None:
    """Words of five tokens on average, half of the text masked: many n-grams overlap and many are shortened."""
    rng = np.random.default_rng(0)
    other = Vocabulary(**{**vars(vocabulary), "starts_word": rng.random(200) < 0.2})
    wrong = total = 0
    for seed in range(4):
        batch = batches(seed, True, 32)
        order, length = noise_of(batch, seed, ORDER), lengths_of(noise_of(batch, seed, LENGTH), 3)
        changes = {"mask_rate": 0.5, "max_predictions": 64, "predictions": S}
        result = chosen_of(mask_batch(batch, other, seed, mask_unit="ngram", **changes))
        for row, index, columns in examples_of(batch):
            words = words_of(batch["input_ids"][row, columns], other.starts_word, True)
            budget = max(1, round(0.5 * len(columns)))
            expected = albert(words, order[row, index], length[row, index], budget)
            assert result[row, columns].sum() <= budget
            wrong += set(np.flatnonzero(result[row, columns]).tolist()) != expected
            total += 1
    assert wrong <= 0.02 * total  # a row that needs more passes masks a few tokens less


def test_lengths_of_ngrams() -> None:
    """Probabilities in proportion to 1 / n, mean 1.636 (google-research/albert:create_pretraining_data.py)."""
    noise = jax.random.uniform(jax.random.key(0), (40_000,))
    counts = np.bincount(np.asarray(sample_ngram_lengths(noise, 3)), minlength=4)[1:]
    shares = np.array([6, 3, 2]) / 11
    np.testing.assert_allclose(shares, [0.5455, 0.2727, 0.1818], atol=5e-5)
    np.testing.assert_allclose(shares @ [1, 2, 3], 1.636, atol=5e-4)
    assert_distribution(counts, shares)


@pytest.mark.long
def test_alberts_first_ngram_begins_anywhere(vocabulary: Vocabulary, pack: Callable) -> None:
    """A budget of one n-gram: its first word is uniform over the text, its length as drawn."""
    single = Vocabulary(**{**vars(vocabulary), "starts_word": np.ones(200, bool)})
    firsts, lengths = [], []
    for seed in range(20):
        batch = text_rows(pack, 64, 24, seed)
        result = chosen_of(mask_batch(batch, single, seed, mask_unit="ngram", mask_rate=3 / 24, predictions=3))
        for row in result:
            first, last = runs_of(row)[0]
            if len(runs_of(row)) == 1 and first < 20:
                firsts.append(first)
                lengths.append(last - first + 1)
    counts = np.bincount(firsts, minlength=20)[1:20]
    assert_distribution(counts, np.full(19, 1 / 19))
    assert set(lengths) == {3}  # one n-gram of three, or several adjacent ones: the budget is spent


@pytest.mark.long
def test_the_budget_of_ngrams_is_spent(batches: Callable, vocabulary: Vocabulary) -> None:
    """Shorter n-grams fill what longer ones leave, so that an example with short words uses its whole budget."""
    single = Vocabulary(**{**vars(vocabulary), "starts_word": np.ones(200, bool)})
    for seed in range(5):
        batch = batches(seed, True, 32)
        result = chosen_of(mask_batch(batch, single, seed, mask_unit="ngram"))
        for row, _, columns in examples_of(batch):
            candidates = (~np.isin(batch["input_ids"][row, columns], (CLS, SEP))).sum()
            assert result[row, columns].sum() == min(candidates, max(1, round(0.15 * len(columns))))


@pytest.mark.parametrize(("packed", "maximum"), [pytest.param(False, 3, marks=pytest.mark.long), (True, 3), (True, 1)])
def test_debertas_ngrams_are_those_of_the_sequential_rule(
    batches: Callable, vocabulary: Vocabulary, packed: bool, maximum: int
) -> None:
    windows = S // 6 + 1
    draw = jit(
        jax.vmap(jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, jnp.uint32(WINDOWS)), (2 * windows,))))
    )
    for seed in range(4):
        batch = batches(seed, packed, 16)
        noise = np.asarray(draw(keys_of(batch, seed))).reshape(*batch["example_ids"].shape, 2, windows)
        result = chosen_of(
            mask_batch(batch, vocabulary, seed, mask_unit="ngram_window", max_ngram=maximum, allow_mask_unk=False)
        )
        expected = np.zeros_like(result)
        for row, index, columns in examples_of(batch):
            ids = batch["input_ids"][row, columns]
            known = np.where(ids == UNK, SEP, ids)  # neither is masked, and both end a word
            words = words_of(known, vocabulary.starts_word, maximum > 1)
            budget = min(20, max(1, round(0.15 * len(columns))))
            expected[row, columns[sorted(deberta(words, noise[row, index], maximum, budget))]] = True
        np.testing.assert_array_equal(result, expected)


@pytest.mark.long
def test_debertas_windows_mask_a_sixth_and_stop_before_the_end(vocabulary: Vocabulary, pack: Callable) -> None:
    """16.7 % of the words until 15 % are reached: on average at 89 % of the text (measured on the authors' code)."""
    single = Vocabulary(**{**vars(vocabulary), "starts_word": np.ones(200, bool)})
    batch = text_rows(pack, 64, 512, 1)
    last, early, full = [], [], []
    for seed in range(6):
        result = chosen_of(mask_batch(batch, single, seed, 85, mask_unit="ngram_window", max_predictions=85))
        last += [np.flatnonzero(row).max() / 512 for row in result]
        early.append(result[:, 1:301].sum())
        full.append(result.sum(1))
    assert abs(np.mean(last) - 0.89) < 0.02
    # Of n in every max(6 n, offset + n) words; offsets 0 .. 6n - 1 move the next window by n - 1 at most.
    shares, step = np.array([6, 3, 2]) / 11, []
    for n in (1, 2, 3):
        step.append(np.mean([max(6 * n, offset + n) for offset in range(6 * n)]))
    expected = (shares @ [1, 2, 3]) / (shares @ step)
    assert abs(np.sum(early) / (6 * 64 * 300) - expected) < 0.003
    assert np.concatenate(full).max() <= 77 + 2  # the last n-gram's words end with the budget


@pytest.mark.long
def test_an_ngram_crosses_sep_but_not_an_example(vocabulary: Vocabulary, pack: Callable) -> None:
    """ALBERT leaves specials out of its list of words, so that the next word may follow [SEP].

    Two of the words a, b and c are masked, and n is 1 or 2 (2/3, 1/3). {a, b} results from a first and n = 2 (1/9),
    from a first and b next (1/9), from b first with n = 1 and a next (1/9). If [SEP] stopped an n-gram it would be
    5/18.
    """
    single = Vocabulary(**{**vars(vocabulary), "starts_word": np.ones(200, bool)})
    text = np.array([CLS, 7, SEP, 8, 9, SEP], np.int32)
    batch = pack([[text, text]] * 64, 12, [[2 * row, 2 * row + 1] for row in range(64)])
    across = 0
    for seed in range(20):
        result = chosen_of(mask_batch(batch, single, seed, 12, mask_unit="ngram", mask_rate=0.3, max_ngram=2)).reshape(
            128, 6
        )
        assert (result.sum(-1) == 2).all()
        across += (result[:, 1] & result[:, 3]).sum()
    assert_share(across, 20 * 128, 1 / 3)
