"""Objective configs that are refused, and the messages."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bertjax.errors import UserError
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.mlm import Mlm
from bertjax.objectives.rtd.objective import Rtd


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"mask_unit": "words"},
            "objective.masking.mask_unit must be one of token, whole_word, ngram, ngram_window, span, frequency, not",
        ),
        (
            {"mask_rounding": "floor"},
            "objective.masking.mask_rounding must be one of round, ceil, random, random_words, bernoulli, not",
        ),
        ({"replacement_unit": "row"}, "objective.masking.replacement_unit must be one of token, word, span, not 'row'"),
        (
            {"random_token_distribution": "bigram"},
            "objective.masking.random_token_distribution must be one of uniform, unigram, not 'bigram'",
        ),
        ({"mask_rate_final": 0.0}, "objective.masking.mask_rate_final must lie in (0, 1], not 0.0"),
        ({"max_span": 0}, "objective.masking.max_span must lie in [1, 64], not 0"),
        ({"max_ngram": 17}, "objective.masking.max_ngram must lie in [1, 16], not 17"),
        ({"span_geometric_p": 1.0}, "objective.masking.span_geometric_p must lie in (0, 1), not 1.0"),
        (
            {"frequency_power": -1.0},
            "objective.masking.frequency_power must be at least 0, not -1.0",
        ),
        (
            {"mask_unit": "span", "mask_rounding": "bernoulli"},
            "objective.masking.mask_rounding=bernoulli needs objective.masking.mask_unit=token, not span",
        ),
        (
            {"mask_rounding": "random_words"},
            "objective.masking.mask_rounding=random_words needs objective.masking.mask_unit=whole_word, not token",
        ),
        (
            {"mask_unit": "span", "with_replacement": True},
            "objective.masking.with_replacement needs objective.masking.mask_unit=token",
        ),
        (
            {"replacement_unit": "word"},
            "objective.masking.replacement_unit=word needs an objective.masking.mask_unit of whole words, not token",
        ),
        ({"mask_unit": "ngram_window", "mask_rate_final": 0.3}, "set objective.masking.mask_rate_final=None"),
        ({"mask_rate": 0.0}, "objective.masking.mask_rate must lie in (0, 1], not 0.0"),
        ({"mask_rate": 1.5}, "objective.masking.mask_rate must lie in (0, 1], not 1.5"),
        ({"max_predictions": 0}, "objective.masking.max_predictions must be at least 1, not 0"),
        (
            {"mask_token_rate": -0.1},
            "objective.masking.mask_token_rate must be at least 0, not -0.1",
        ),
        ({"mask_token_rate": 0.8, "random_token_rate": 0.3}, "sum to at most 1, not 0.8 and 0.3"),
    ],
)
def test_masking_that_makes_no_sense_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        Masking(**changes)


def test_shares_may_fill_everything() -> None:
    Masking(mask_rate=1.0, mask_token_rate=0.9, random_token_rate=0.1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mlm_weight": -1.0}, "objective.mlm.mlm_weight must be at least 0, not -1.0"),
        ({"pair_weight": -1.0}, "objective.mlm.pair_weight must be at least 0, not -1.0"),
        ({"span_boundary_weight": -1.0}, "objective.mlm.span_boundary_weight must be at least 0, not -1.0"),
    ],
)
def test_an_objective_that_makes_no_sense_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        Mlm(Masking(), **changes)


@pytest.mark.parametrize("objective", [Mlm, Rtd])
def test_pairs_are_classified_where_the_text_comes_in_pairs(objective: type[Mlm | Rtd]) -> None:
    def summary(**values: Any) -> str:
        return objective(Masking(), **values).summary

    assert "prediction" not in summary() + summary(example_format="sop_pairs", pair_weight=0.0)
    assert "and next-sentence prediction (" in summary(example_format="nsp_pairs")
    assert "and sentence-order prediction (" in summary(example_format="sop_pairs")
    with pytest.raises(UserError, match=r"needs data.example_format to be one of block, .*sop_pairs, not 'stream'"):
        objective(Masking()).check_example_format("stream")
