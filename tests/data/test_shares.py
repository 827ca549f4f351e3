"""Shares of sources by temperature, tokens, weights and epochs, and their even order."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.config.sources import parse_epochs, parse_source
from bertjax.data.mixture import ExactMixture, Mixing, mixture_shares
from bertjax.errors import UserError

FREE = (0.0, math.inf)


def shares_of(sizes, weights=None, alpha=None, limits=None, tokens=None, total=1000):
    limits = tuple(limits or [FREE] * len(sizes))
    mixing = Mixing(alpha, tokens is not None, limits, total)
    return mixture_shares(mixing, weights or [None] * len(sizes), sizes, tokens or [1.0] * len(sizes))


@pytest.mark.parametrize("alpha", [1.0, 0.7, 0.3, 0.0])
def test_temperature(alpha):
    """Section 3.1 of XLM-R: q_i = p_i ** alpha / sum of p_j ** alpha, with p_i the share of sentences."""
    sizes = [900, 90, 9, 1]
    p = np.array(sizes) / 1000
    np.testing.assert_allclose(shares_of(sizes, alpha=alpha), p**alpha / (p**alpha).sum(), rtol=1e-12)
    by_tokens = shares_of([90, 30, 3, 1], alpha=alpha, tokens=[10.0, 3.0, 3.0, 1.0])
    np.testing.assert_allclose(
        by_tokens * [10, 3, 3, 1] / (by_tokens * [10, 3, 3, 1]).sum(), p**alpha / (p**alpha).sum(), rtol=1e-12
    )


def test_weights_by_tokens():
    """Sequences of 100 and of 25 tokens: half of the tokens of each means four of the second to one of the first."""
    np.testing.assert_allclose(shares_of([10, 10], [0.5, 0.5], tokens=[100.0, 25.0]), [0.2, 0.8])
    np.testing.assert_allclose(shares_of([10, 10], [3, 1]), [0.75, 0.25])


def unimax(sizes, budget, epochs):
    """Algorithm 1 of UniMax: languages by size get equal parts of what is left, at most that many epochs."""
    taken = {}
    for position, number in enumerate(sorted(range(len(sizes)), key=lambda i: sizes[i])):
        taken[number] = min(budget / (len(sizes) - position), sizes[number] * epochs)
        budget -= taken[number]
    return np.array([taken[i] for i in range(len(sizes))])


def test_unimax_by_hand():
    """5 sequences in 4 epochs are 20, of 20 sequences 80; the 200 that are left are shared by the two others."""
    np.testing.assert_allclose(
        shares_of([1000, 5, 20, 100], alpha=0.0, limits=[(0, 4)] * 4, total=300) * 300, [100, 20, 80, 100]
    )


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=9), st.floats(0.5, 8), st.floats(0.01, 1))
def test_unimax_is_algorithm_1(sizes, epochs, fullness):
    total = max(1, int(sum(sizes) * epochs * fullness * 0.999))
    if total <= sum(sizes) * epochs:
        result = shares_of(sizes, alpha=0.0, limits=[(0, epochs)] * len(sizes), total=total)
        np.testing.assert_allclose(result * total, unimax(sizes, total, epochs), rtol=1e-9)


def test_fewest_and_most_epochs_of_single_sources():
    """Two are at their limits, and the third gets the rest."""
    result = shares_of([10, 1000, 400], [1, 8, 1], limits=[(2, 9), (0, 0.5), FREE], total=1000)
    np.testing.assert_allclose(result * 1000, [90, 500, 410])
    few = shares_of([100, 1000], [1, 999], limits=[(3, math.inf), FREE], total=1000)
    np.testing.assert_allclose(few, [0.3, 0.7])


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            [(0, 1), (0, 2)],
            r"most epochs of all sources are 30 sequences, and the run has 1,000; lower train.num_steps",
        ),
        ([(99, 200), (2, math.inf)], r"fewest epochs of all sources are 1,010 sequences, .* raise train.num_steps"),
    ],
)
def test_limits_that_no_run_of_this_length_has(limits, message):
    with pytest.raises(UserError, match=message):
        shares_of([10, 10], limits=limits)


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(1, 9), st.integers(1, 10**6)), min_size=1, max_size=12), st.data())
def test_no_prefix_is_two_sequences_off(weights, data):
    """With exact fractions: of the first n sequences, every source has n * share, fewer than 1.75 off."""
    shares = [Fraction(weight, sum(weights)) for weight in weights]
    mixture = ExactMixture([float(share) for share in shares])
    begin = data.draw(st.sampled_from([0, 2**20 + 3, 10**12]))
    source, index = mixture.locate(np.arange(begin, begin + 700))
    used = np.array(mixture.num_used(begin))
    limit = Fraction(1) if len(weights) <= 3 else Fraction(7, 4)
    slack = Fraction(begin, 10**15)  # rounding of float64
    for n in range(700):
        assert index[n] == used[source[n]]
        used[source[n]] += 1
        if n % 7 == 0:
            assert max(abs(int(u) - (begin + n + 1) * p) for u, p in zip(used, shares, strict=True)) <= limit + slack
    assert used.tolist() == mixture.num_used(begin + 700)


def test_rare_sources_keep_their_share_in_long_runs():
    mixture = ExactMixture(mixture_shares(Mixing(None, False, (FREE, FREE), 1), [1.0, 1e-9], [1, 1], [1.0, 1.0]))
    assert mixture.num_used(10**12) == [10**12 - 1000, 1000]
    assert mixture.locate(np.array([7]))[0].tolist() == [0]


def test_epochs_in_the_notation_of_sources():
    assert (
        parse_epochs("1..4", "x") == (1, 4)
        and parse_epochs("..0.5", "x") == (0, 0.5)
        and parse_epochs("..", "x") == FREE
    )
    source = parse_source("jsonl:a.jsonl@0.3#body@1..4")
    assert (source.where, source.field, source.weight, source.epochs) == ("a.jsonl", "body", 0.3, (1, 4))
    assert parse_source("text:a@..2").epochs == (0, 2) and parse_source("text:a@2.5").epochs is None
    for text in ("text:a@4..1", "text:a@..0"):
        with pytest.raises(UserError, match=f"'{text}': MAX of epochs"):
            parse_source(text)
    with pytest.raises(UserError, match=r"epochs are MIN..MAX, such as 1..4 or ..4, not '4'"):
        parse_epochs("4", "data.mixture_epochs")
