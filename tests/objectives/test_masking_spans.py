"""SpanBERT's spans: the sequential rule, statistics compared with the authors' loop, replacements."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import numpy as np
import pytest
from masking_lab import (
    CLS,
    MASK,
    SEP,
    assert_distribution,
    assert_share,
    chosen_of,
    examples_of,
    mask_batch,
    noise_of,
    runs_of,
    text_rows,
    words_of,
)

from bertjax.errors import UserError
from bertjax.objectives.masking.corrupt import build_alias_table
from bertjax.objectives.masking.selection import sample_lengths, span_length_probabilities
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.masking.tokens import LENGTH, ORDER
from bertjax.types import Vocabulary

S = 128
SPAN = {
    "mask_unit": "span",
    "mask_rounding": "ceil",
    "replacement_unit": "span",
    "max_predictions": S,
    "predictions": S,
}
GOLDEN = (0.2241, 0.1792, 0.1434, 0.1147, 0.0918, 0.0734, 0.0587, 0.0470, 0.0376, 0.0301)


def grow(words: list[list[int]], start: int, length: int, hidden: set[int], budget: int) -> None:
    """Masks the words from `start` on, token by token, until the budget is reached."""
    for word in words[start : start + length]:
        for token in word:
            if len(hidden) < budget:
                hidden.add(token)


def in_order(words: list[list[int]], order: np.ndarray, lengths: np.ndarray, budget: int) -> set[int]:
    """Spans at the tokens in their random order, without those that are already masked."""
    word_of = {token: number for number, word in enumerate(words) for token in word}
    hidden: set[int] = set()
    for token in sorted(word_of, key=lambda token: order[token]):
        if token not in hidden:
            grow(words, word_of[token], lengths[words[word_of[token]][0]], hidden, budget)
    return hidden


def by_rejection(words: list[list[int]], budget: int, rng: np.random.Generator) -> set[int]:
    """The authors' loop: any token, drawn again if it is masked."""
    word_of = {token: number for number, word in enumerate(words) for token in word}
    tokens, hidden = sorted(word_of), set()
    while len(hidden) < budget:
        anchor, length = rng.choice(tokens), 1 + rng.choice(10, p=span_length_probabilities(0.2, 10))
        if anchor not in hidden:
            grow(words, word_of[anchor], length, hidden, budget)
    return hidden


@pytest.mark.parametrize(
    ("packed", "rate"), [(True, 0.15), *(pytest.param(False, rate, marks=pytest.mark.long) for rate in (0.15, 0.6))]
)
def test_the_choice_is_that_of_the_sequential_rule(
    batches: Callable, vocabulary: Vocabulary, packed: bool, rate: float
) -> None:
    limits = np.cumsum(span_length_probabilities(0.2, 10))[:-1].astype(np.float32)
    for seed in range(4):
        batch = batches(seed, packed)
        order = noise_of(batch, seed, ORDER)
        lengths = 1 + (noise_of(batch, seed, LENGTH)[..., None] >= limits).sum(-1)
        result = chosen_of(mask_batch(batch, vocabulary, seed, mask_rate=rate, **SPAN))
        expected = np.zeros_like(result)
        for row, index, columns in examples_of(batch):
            words = words_of(batch["input_ids"][row, columns], vocabulary.starts_word, True)
            budget = math.ceil(rate * sum(map(len, words)))
            hidden = in_order(words, order[row, index], lengths[row, index], budget)
            expected[row, columns[sorted(hidden)]] = True
        np.testing.assert_array_equal(result, expected)


@pytest.mark.long
def test_statistics_are_those_of_the_authors_loop(vocabulary: Vocabulary, pack: Callable) -> None:
    """Runs, their lengths, their positions, cut words: rejection and a random order give the same spans."""
    batch = text_rows(pack, 64, S, 5)
    rng = np.random.default_rng(0)
    words = [words_of(ids, vocabulary.starts_word, True) for ids in batch["input_ids"]]
    ours, theirs = [], []
    for seed in range(8):
        ours += list(chosen_of(mask_batch(batch, vocabulary, seed, **SPAN)))
        for row in range(64):
            theirs.append(np.isin(np.arange(S), sorted(by_rejection(words[row], 19, rng))))

    def statistics_of(chosen: np.ndarray, number: int) -> list[float]:
        runs = np.array(runs_of(chosen))
        sizes = runs[:, 1] - runs[:, 0] + 1
        cut = sum(0 < chosen[word].sum() < len(word) for word in words[number % 64])
        return [
            len(runs),
            sizes.max(),
            (sizes == 1).sum(),
            (sizes > 8).sum(),
            chosen[:10].sum(),
            chosen[-10:].sum(),
            cut,
        ]

    one, other = (np.array([statistics_of(row, i) for i, row in enumerate(side)]) for side in (ours, theirs))
    error = np.sqrt((one.var(0) + other.var(0)) / len(one))
    assert (np.abs(one.mean(0) - other.mean(0)) <= 4.5 * error + 1e-9).all(), (one.mean(0), other.mean(0), error)


@pytest.mark.parametrize("rate", [0.15, pytest.param(0.9, marks=pytest.mark.long), 1.0])
def test_the_budget_is_met_exactly(batches: Callable, vocabulary: Vocabulary, rate: float) -> None:
    for seed in range(4):
        batch = batches(seed, packed=True)
        chosen = chosen_of(mask_batch(batch, vocabulary, seed, mask_rate=rate, **SPAN))
        assert not np.isin(batch["input_ids"][chosen], (CLS, SEP)).any() and not chosen[batch["segment_ids"] == 0].any()
        for row, _, columns in examples_of(batch):
            body = (~np.isin(batch["input_ids"][row, columns], (CLS, SEP))).sum()
            assert chosen[row, columns].sum() == math.ceil(rate * body)


@pytest.mark.long
def test_a_full_row_of_512_hides_77(vocabulary: Vocabulary, pack: Callable) -> None:
    hidden = mask_batch(text_rows(pack, 4, 512), vocabulary, **{**SPAN, "predictions": 77})
    assert hidden["masked_weights"].sum(1).tolist() == [77] * 4  # ceil(0.15 * 510)


def test_lengths_are_geometric_truncated_and_scaled() -> None:
    shares = span_length_probabilities(0.2, 10)
    np.testing.assert_allclose(shares, GOLDEN, atol=5e-5)
    np.testing.assert_allclose(shares @ np.arange(1, 11), 3.797, atol=5e-4)
    drawn = np.asarray(sample_lengths(jax.random.uniform(jax.random.key(0), (40_000,)), shares))
    assert_distribution(np.bincount(drawn, minlength=11)[1:], shares)


def test_spans_of_one_length(vocabulary: Vocabulary, pack: Callable) -> None:
    """Of overlapping k-mers k neighbors are masked; where two spans meet, or the budget ends, runs differ."""
    words = Vocabulary(**{**vars(vocabulary), "starts_word": np.ones(200, bool)})
    changes = {"mask_unit": "span", "min_span": 6, "max_span": 6, "mask_rate": 0.05, "predictions": 60}
    chosen = chosen_of(mask_batch(text_rows(pack, 64, 128), words, **changes))
    edges = np.flatnonzero(np.diff(np.pad(chosen, ((0, 0), (1, 1))).ravel().astype(int)))
    lengths = edges[1::2] - edges[::2]
    assert (chosen.sum(1) == 6).all() and (lengths == 6).mean() > 0.9
    with pytest.raises(UserError, match=r"min_span=7 is above objective\.masking\.max_span=6"):
        Masking(mask_unit="span", min_span=7, max_span=6)


@pytest.mark.long
def test_a_span_begins_at_the_word_of_any_token(vocabulary: Vocabulary, pack: Callable) -> None:
    """With a budget of one token, it is the first of its word: a word of three tokens is three times as likely."""
    batch = text_rows(pack, 1, 32, 3)
    many = {name: np.repeat(value, 512, axis=0) for name, value in batch.items()}
    many["example_ids"] = np.arange(512, dtype=np.uint32)[:, None]
    counts = np.zeros(32)
    for seed in range(8):
        counts += chosen_of(mask_batch(many, vocabulary, seed, **{**SPAN, "mask_rate": 1 / 32, "predictions": 2})).sum(
            0
        )
    words = words_of(batch["input_ids"][0], vocabulary.starts_word, True)
    shares = np.zeros(32)
    shares[[word[0] for word in words]] = [len(word) / 30 for word in words]
    assert counts.sum() == 8 * 512 and not counts[shares == 0].any() and len({len(word) for word in words}) > 1
    assert_distribution(counts[shares > 0], shares[shares > 0])


@pytest.mark.long
def test_one_decision_a_span(vocabulary: Vocabulary, batches: Callable) -> None:
    """80 % of the merged spans are all [MASK], 10 % all random, 10 % unchanged."""
    kinds = np.zeros(3)
    for seed in range(30):
        batch = batches(seed, packed=True)
        hidden = mask_batch(batch, vocabulary, seed, **SPAN, random_token_distribution="unigram")
        chosen = chosen_of(hidden)
        np.testing.assert_array_equal(hidden["input_ids"][~chosen], batch["input_ids"][~chosen])
        for row, _, columns in examples_of(batch):
            for first, last in runs_of(chosen[row, columns]):
                if last - first < 3:
                    continue  # too short to distinguish random tokens from chance
                old, new = (x[row, columns[first : last + 1]] for x in (batch["input_ids"], hidden["input_ids"]))
                kind = 0 if (new == MASK).all() else 2 if (new == old).all() else 1
                assert kind != 1 or ((new == MASK).mean() < 1 and (new == old).mean() < 1)
                kinds[kind] += 1
    assert kinds.sum() > 300
    for count, share in zip(kinds, (0.8, 0.1, 0.1), strict=True):
        assert_share(count, kinds.sum(), share)


@pytest.mark.long
def test_random_tokens_are_as_frequent_as_in_the_corpus(vocabulary: Vocabulary, pack: Callable) -> None:
    rng = np.random.default_rng(0)
    counts = np.maximum(rng.zipf(1.3, 200).clip(max=5000), 60)
    counts[:5] = 0
    corpus = Vocabulary(**{**vars(vocabulary), "counts": counts.astype(np.int64)})
    rates = {"mask_token_rate": 0.0, "random_token_rate": 1.0, "random_token_distribution": "unigram", "mask_rate": 0.9}
    drawn = []
    for seed in range(24):
        batch = text_rows(pack, 16, S, seed)
        hidden = mask_batch(batch, corpus, seed, **{**SPAN, **rates})
        drawn.append(hidden["input_ids"][chosen_of(hidden)])
    result = np.bincount(np.concatenate(drawn), minlength=200)
    assert len(result) == 200 and not result[:5].any()
    assert_distribution(result[5:], counts[5:] / counts.sum())


def test_an_alias_table_has_the_weights_exactly() -> None:
    weights = np.array([0, 1, 1, 1000, 3, 0, 250_000, 7])
    keep, other = build_alias_table(weights)
    shares = keep.astype(np.float64) / len(weights)
    np.add.at(shares, other, (1.0 - keep.astype(np.float64)) / len(weights))
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=1e-7)
    assert keep[0] == keep[5] == 0
