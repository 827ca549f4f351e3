"""Numbers of masked tokens by family, which tokens may be masked, and what replaces them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from masking_lab import (
    CLS,
    MASK,
    PAD,
    SEP,
    UNK,
    assert_distribution,
    assert_share,
    chosen_of,
    examples_of,
    mask_batch,
    text_rows,
    words_of,
)

from bertjax.config.fields import Reader
from bertjax.config.overrides import load_config
from bertjax.errors import UserError
from bertjax.experiment.config import parse as check
from bertjax.objectives.masking.settings import Masking, default_max_predictions
from bertjax.types import Vocabulary

CONFIGS = Path(__file__).parents[2] / "configs"
S = 128
IDENTITIES = [[3, 4], [5], [6], [], [], []]
MASK_UNITS = ("token", "whole_word", "ngram", "ngram_window", "span", "frequency")
ROBERTA = {"mask_rounding": "random", "allow_mask_special": True, "min_random_id": 4}
MODERNBERT = {"mask_rounding": "bernoulli", "allow_mask_special": True, "mask_rate": 0.3}
ELECTRA = {"with_replacement": True, "mask_token_rate": 0.85, "random_token_rate": 0.0}


@pytest.mark.parametrize(
    ("spec", "maximum", "expected"),
    [
        ("bert.py:base", 77, {"mask_unit": "token", "mask_rounding": "round", "dynamic": False}),
        ("roberta.py:base", 77, {**ROBERTA, "mask_unit": "token"}),
        ("albert.py:base-v2", 20, {"mask_unit": "ngram", "max_ngram": 3, "dynamic": False}),
        (
            "spanbert.py:base",
            77,
            {
                "mask_unit": "span",
                "mask_rounding": "ceil",
                "replacement_unit": "span",
                "random_token_distribution": "unigram",
            },
        ),
        ("distilbert.py:base", 77, {"mask_unit": "frequency", "frequency_power": 0.7, "allow_mask_unk": False}),
        ("electra.py:small", 19, ELECTRA),
        ("electra.py:large", 128, {**ELECTRA, "mask_rate": 0.25}),
        ("deberta.py:v1-base", 85, {"mask_unit": "ngram_window", "max_ngram": 3, "allow_mask_unk": False}),
        ("deberta.py:v3-base", 85, {"mask_unit": "ngram_window", "max_ngram": 1, "mask_token_rate": 1.0}),
        ("modernbert.py:base", 397, {**MODERNBERT, "mask_unit": "token"}),
    ],
)
def test_every_family_hides_as_its_authors(spec: str, maximum: int, expected: dict) -> None:
    cfg = load_config(f"{CONFIGS}/{spec}")
    check(cfg)
    config = Reader(cfg)(Masking)
    assert {name: getattr(config, name) for name in expected} == expected
    assert config.predictions_limit == maximum


def test_the_capacity_is_never_exceeded() -> None:
    assert (
        default_max_predictions("token", "round", 0.15, 128) == 19
        and default_max_predictions("token", "round", 0.15, 512) == 77
    )
    assert (
        default_max_predictions("token", "random", 0.15, 512) == 77
        and default_max_predictions("span", "ceil", 0.15, 512) == 77
    )
    sigma = np.sqrt(0.3 * 0.7 * 512)
    assert 0.3 * 512 + 5.9 * sigma < default_max_predictions("token", "bernoulli", 0.3, 512) < 0.3 * 512 + 6.2 * sigma
    assert (
        default_max_predictions("token", "bernoulli", 1.0, 8) == 8
        and default_max_predictions("token", "round", 0.01, 8) == 1
    )


@pytest.mark.long
def test_robertas_number_is_random_between_two(vocabulary: Vocabulary, pack: Callable) -> None:
    """floor(76.8 + U): 77 with probability 0.8, else 76 (fairseq/data/mask_tokens_dataset.py)."""
    counts = []
    for seed in range(10):
        hidden = mask_batch(text_rows(pack, 64, 512), vocabulary, seed, 77, **ROBERTA, max_predictions=77)
        counts.append(hidden["masked_weights"].sum(1))
    counts = np.concatenate(counts)
    assert set(counts.tolist()) == {76, 77}
    assert_share((counts == 77).sum(), len(counts), 0.8)


@pytest.mark.long
def test_any_real_token_is_as_likely_as_any_other(vocabulary: Vocabulary, pack: Callable) -> None:
    """Including specials (RoBERTa) or without them (BERT); never padding."""
    rng = np.random.default_rng(0)
    text = rng.integers(5, 200, 30).astype(np.int32)
    text[[0, 17, 29]] = CLS, SEP, SEP
    batch = pack([[text] for _ in range(256)], 40, [[row] for row in range(256)])
    for changes, allowed in ((ROBERTA, np.ones(30, bool)), ({}, ~np.isin(text, (CLS, SEP)))):
        masked_texts = sum(chosen_of(mask_batch(batch, vocabulary, seed, 5, **changes)).sum(0) for seed in range(12))
        assert not masked_texts[30:].any() and not masked_texts[:30][~allowed].any()
        share = masked_texts[:30].sum() / (allowed.sum() * 12 * 256)
        for hits in masked_texts[:30][allowed]:
            assert_share(hits, 12 * 256, share)


@pytest.mark.long
def test_robertas_random_tokens_leave_out_the_first_four(vocabulary: Vocabulary, pack: Callable) -> None:
    changes = {**ROBERTA, "mask_rate": 0.9, "mask_token_rate": 0.0, "random_token_rate": 1.0, "max_predictions": S}
    drawn = []
    for seed in range(16):
        hidden = mask_batch(text_rows(pack, 16, S, seed), vocabulary, seed, S, **changes)
        drawn.append(hidden["input_ids"][chosen_of(hidden)])
    counts = np.bincount(np.concatenate(drawn), minlength=200)
    assert len(counts) == 200 and not counts[:4].any()
    assert_distribution(counts[4:], np.full(196, 1 / 196))


@pytest.mark.long
def test_fairseqs_whole_words_are_counted_in_words_and_decided_at_once(vocabulary: Vocabulary, pack: Callable) -> None:
    changes = {"mask_unit": "whole_word", "mask_rounding": "random_words", "replacement_unit": "word", "predictions": S}
    changes |= {"max_predictions": S}
    more, trials, kinds = 0, 0, np.zeros(3)
    for seed in range(12):
        batch = text_rows(pack, 32, S, seed)
        hidden = mask_batch(batch, vocabulary, seed, **changes)
        chosen = chosen_of(hidden)
        for row, ids in enumerate(batch["input_ids"]):
            words = words_of(ids, vocabulary.starts_word, True)
            taken = [word for word in words if chosen[row, word].any()]
            assert all(chosen[row, word].all() for word in taken)
            exact = 0.15 * len(words)
            more, trials = more + len(taken) - np.floor(exact) - (exact - np.floor(exact)), trials + 1
            assert np.floor(exact) <= len(taken) <= np.floor(exact) + 1
            for word in taken:
                if len(word) > 2:
                    new = hidden["input_ids"][row, word]
                    kinds[0 if (new == MASK).all() else 2 if (new == ids[word]).all() else 1] += 1
    assert abs(more) < 4.5 * 0.5 * np.sqrt(trials)
    assert kinds.sum() > 200
    for count, share in zip(kinds, (0.8, 0.1, 0.1), strict=True):
        assert_share(count, kinds.sum(), share)


@pytest.mark.long
def test_bernoulli_hides_every_token_for_itself(vocabulary: Vocabulary, pack: Callable) -> None:
    """ModernBERT: 30 % of all tokens, [CLS] and [SEP] too; a text may have no masked token."""
    per_row, per_token = [], np.zeros(S)
    for seed in range(20):
        hidden = mask_batch(text_rows(pack, 64, S), vocabulary, seed, S, **MODERNBERT)
        chosen = chosen_of(hidden)
        per_row.append(chosen.sum(1))
        per_token += chosen.sum(0)
    for hits in per_token:
        assert_share(hits, 20 * 64, 0.3)
    counts = np.concatenate(per_row)
    binomial = S * 0.3 * 0.7
    assert abs(counts.var() - binomial) < 4.5 * binomial * np.sqrt(2 / len(counts))
    short = pack([[np.array([CLS, 9, SEP], np.int32)]] * 64, 4, [[row] for row in range(64)])
    none = sum(
        (mask_batch(short, vocabulary, seed, 4, **MODERNBERT)["masked_weights"].sum(1) == 0).sum() for seed in range(8)
    )
    assert_share(none, 8 * 64, 0.7**3)


def test_where_chance_exceeds_the_capacity_every_masked_token_is_predicted(
    vocabulary: Vocabulary, pack: Callable
) -> None:
    batch = text_rows(pack, 16, S)
    hidden = mask_batch(batch, vocabulary, 0, 10, **MODERNBERT)
    assert (hidden["masked_weights"].sum(1) == 10).all()
    np.testing.assert_array_equal(hidden["input_ids"][~chosen_of(hidden)], batch["input_ids"][~chosen_of(hidden)])


@pytest.mark.parametrize(("rate", "share"), [(0.15, 0.140), (0.25, 0.221)])
def test_electras_draws_repeat_and_count_twice(
    vocabulary: Vocabulary, pack: Callable, rate: float, share: float
) -> None:
    """Golden shares of distinct positions; the weights add up to the draws."""
    changes = {**ELECTRA, "mask_rate": rate, "max_predictions": 128}
    unique, masked, times = 0, 0, []
    for seed in range(6):
        batch = text_rows(pack, 32, 512)
        hidden = mask_batch(batch, vocabulary, seed, 128, **changes)
        chosen = chosen_of(hidden)
        np.testing.assert_array_equal(hidden["masked_weights"].sum(1), round(512 * rate))
        assert not np.isin(batch["input_ids"][chosen], (CLS, SEP, PAD)).any()
        unique += chosen.sum()
        assert (
            np.isin(hidden["input_ids"][chosen], MASK).sum()
            + (hidden["input_ids"][chosen] == batch["input_ids"][chosen]).sum()
            == chosen.sum() + ((batch["input_ids"] == MASK) & chosen).sum()
        )
        masked += (hidden["input_ids"][chosen] == MASK).sum()
        times.append(hidden["masked_weights"][hidden["masked_weights"] > 0])
    n, draws = 510, round(512 * rate)
    expected = n * (1 - (1 - 1 / n) ** draws) / 512
    assert abs(expected - share) < 6e-4  # the spec's measured value
    assert abs(unique / (6 * 32 * 512) - expected) < 4.5 * np.sqrt(expected * rate / 2 / (6 * 32 * 512))
    assert_share(masked, unique, 0.85)
    twice = n * draws * (draws - 1) / 2 / n**2 * (1 - 1 / n) ** (draws - 2)
    assert_share((np.concatenate(times) == 2).sum(), 6 * 32 * n, twice / n)


@pytest.mark.long
def test_distilberts_first_choice_has_weight_count_to_minus_07(vocabulary: Vocabulary, pack: Callable) -> None:
    counts = np.full(200, 1)
    counts[5:25] = 2 ** np.arange(20) // 4
    corpus = Vocabulary(**{**vars(vocabulary), "counts": counts.astype(np.int64)})
    text = np.array([CLS, *range(5, 25), UNK, SEP], np.int32)
    batch = pack([[text] for _ in range(512)], 24, [[row] for row in range(512)])
    changes = {"mask_unit": "frequency", "allow_mask_unk": False, "max_predictions": 3}
    first, second = np.zeros(23), np.zeros(23)
    for seed in range(20):
        one = chosen_of(mask_batch(batch, corpus, seed, 3, **changes, mask_rate=1 / 23)).sum(0)
        first += one[:23]
        second += chosen_of(mask_batch(batch, corpus, seed, 3, **changes, mask_rate=2 / 23)).sum(0)[:23]
    weights = np.maximum(counts[5:25], 1) ** -0.7
    shares = weights / weights.sum()
    assert not first[[0, 21, 22]].any()
    frequent = shares * first.sum() >= 5
    assert_distribution(
        np.append(first[1:21][frequent], first[1:21][~frequent].sum()),
        np.append(shares[frequent], shares[~frequent].sum()),
    )
    # The second one is drawn by the same weights from the remaining tokens.
    both = shares + np.array(
        [sum(p * q / (1 - p) for j, p in enumerate(shares) if j != i) for i, q in enumerate(shares)]
    )
    for hits, share in zip(second[1:21], both, strict=True):
        assert_share(hits, 20 * 512, share)


@pytest.mark.long
def test_the_rate_moves_from_first_to_last(vocabulary: Vocabulary, pack: Callable) -> None:
    changes = {"mask_rate": 0.3, "mask_rate_final": 0.1, "schedule_steps": 100, "max_predictions": 39}
    batch = text_rows(pack, 4, 130)
    for cursor, expected in ((0, 39), (25, round(130 * 0.25)), (50, 26), (100, 13), (170, 13)):
        hidden = mask_batch(batch, vocabulary, 0, 39, cursor, **changes)
        assert hidden["masked_positions"].shape == (4, 39)
        assert hidden["masked_weights"].sum(1).tolist() == [expected] * 4
    steady = mask_batch(batch, vocabulary, 0, 39, 70, mask_rate=0.3, max_predictions=39)
    np.testing.assert_array_equal(
        steady["masked_positions"], mask_batch(batch, vocabulary, 0, 39, 0, **changes)["masked_positions"]
    )


@pytest.fixture(scope="module")
def twins(vocabulary: Vocabulary) -> Vocabulary:
    """Tokens 2 i and 2 i + 1 are equally frequent and both begin a word, or neither does."""
    starts = np.repeat(vocabulary.starts_word[::2], 2)
    starts[:6] = True
    return Vocabulary(**{**vars(vocabulary), "starts_word": starts, "counts": np.repeat(vocabulary.counts[::2], 2)})


def mask_by(unit: str, batch: dict, twins: Vocabulary) -> dict[str, np.ndarray]:
    """A quarter of every example, one compilation per unit: batches are six rows of up to three examples."""
    count = {"span": "ceil", "frequency": "random"}.get(unit, "round")
    changes = {
        "replacement_unit": "span",
        "random_token_distribution": "unigram",
        "mask_rate": 0.25,
        "max_predictions": 20,
    }
    return mask_batch(batch, twins, mask_unit=unit, mask_rounding=count, **changes)


@pytest.mark.parametrize(
    "unit", [pytest.param(unit, marks=[] if unit == "token" else pytest.mark.weekly) for unit in MASK_UNITS]
)
def test_the_mask_of_an_example_knows_neither_its_row_nor_its_neighbors(
    twins: Vocabulary, pack: Callable, example: Callable, unit: str
) -> None:
    """Every example has a separate budget, and its mask depends neither on its row nor on its position in it."""
    rng = np.random.default_rng(3)
    texts = [example(rng, int(n)) for n in (20, 33, 41, 12, 57, 30)]

    def masked_texts(rows: list[list[int]]) -> dict[int, list]:
        rows = rows + [[]] * (6 - len(rows))
        batch = pack([[texts[i] for i in row] for row in rows], S, [[1000 + i for i in row] for row in rows], 3)
        hidden = mask_by(unit, batch, twins)
        result = {}
        for row, index, columns in examples_of(batch):
            result[rows[row][index]] = [
                hidden["input_ids"][row, columns].tolist(),
                chosen_of(hidden)[row, columns].tolist(),
            ]
        return result

    alone = masked_texts([[i] for i in range(6)])
    assert sum(sum(chosen) for _, chosen in alone.values()) > 20
    assert masked_texts([[0, 1, 2], [3, 4, 5]]) == alone
    assert masked_texts([[5, 3], [2, 4], [1, 0]]) == alone


@pytest.mark.parametrize(
    "unit", [pytest.param(unit, marks=[] if unit in ("token", "span") else pytest.mark.long) for unit in MASK_UNITS]
)
def test_what_is_hidden_says_nothing_of_itself(twins: Vocabulary, pack: Callable, example: Callable, unit: str) -> None:
    """With another word under every mask (equally long, equally frequent), the network receives the same numbers."""
    rng = np.random.default_rng(1)
    batch = pack([[example(rng, n) for n in row] for row in ([50, 70], [128], [31], [], [], [])], S, IDENTITIES, 3)
    batch["input_ids"] = np.where(batch["input_ids"] == 5, 6, batch["input_ids"])
    hidden = mask_by(unit, batch, twins)
    covered = (hidden["input_ids"] == MASK) & (batch["input_ids"] > 5)
    assert covered.sum() > 10
    others = {**batch, "input_ids": np.where(covered, batch["input_ids"] ^ 1, batch["input_ids"])}
    again = mask_by(unit, others, twins)
    for name in set(again) - {"original_ids", "masked_ids"}:
        np.testing.assert_array_equal(again[name], hidden[name], err_msg=name)
    assert (again["masked_ids"] != hidden["masked_ids"]).sum() == covered.sum()


@pytest.mark.long
@pytest.mark.parametrize("unit", MASK_UNITS)
def test_a_text_of_specials_alone_hides_nothing(twins: Vocabulary, pack: Callable, unit: str) -> None:
    rows = [[np.array([CLS, SEP, SEP], np.int32), np.array([CLS, SEP], np.int32)], [], [], [], [], []]
    batch = pack(rows, S, IDENTITIES, 3)
    hidden = mask_by(unit, batch, twins)
    np.testing.assert_array_equal(hidden["input_ids"], batch["input_ids"])
    assert not hidden["masked_weights"].any() and not hidden["masked_positions"].any()


def test_every_unit_has_a_default_that_is_berts() -> None:
    assert Masking() == Masking(mask_unit="token", mask_rate=0.15, mask_token_rate=0.8, random_token_rate=0.1)
    assert Masking().mask_rounding == "round" and not Masking().allow_mask_special


def test_some_tokens_are_never_masked(vocabulary: Vocabulary, pack: Callable) -> None:
    """Nor drawn as random ones; other draws do not move where none is named."""
    named = Vocabulary(**{**vars(vocabulary), "tokens": tuple(f"t{index}" for index in range(200))})
    batch = text_rows(pack, 32, S, max_ids=20)
    changes: dict = {"mask_rate": 0.9, "mask_token_rate": 0.0, "random_token_rate": 1.0, "min_random_id": 4}
    for distribution in ("uniform", "unigram"):
        settings = changes | {"random_token_distribution": distribution}
        hidden = mask_batch(batch, named, 0, S, **settings, never_masked=("t7", "t12", "t150"))
        chosen = chosen_of(hidden)
        assert chosen.any() and not np.isin(batch["input_ids"][chosen], (7, 12)).any()
        assert not np.isin(hidden["input_ids"][chosen], (7, 12, 150)).any()
        assert np.isin(hidden["input_ids"], 7).sum() == np.isin(batch["input_ids"], 7).sum()
    with pytest.raises(UserError, match=r"never_masked: the tokenizer has no token X, \?"):
        mask_batch(batch, named, 0, S, never_masked=("X", "?"))
