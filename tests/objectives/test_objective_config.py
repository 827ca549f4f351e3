"""What the objective's config refuses, and in which words."""

from __future__ import annotations

import re

import pytest

from bertjax.config.objectives.masking import MaskingConfig
from bertjax.config.objectives.mlm import MlmConfig
from bertjax.errors import UserError


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"mask_unit": "words"},
            "objective.masking must be one of token, whole_word, ngram, ngram_window, span, frequency, not",
        ),
        (
            {"mask_rounding": "floor"},
            "objective.mask_count must be one of round, ceil, random, random_words, bernoulli, not",
        ),
        ({"replacement_unit": "row"}, "objective.mask_decision must be one of token, word, span, not 'row'"),
        (
            {"random_token_distribution": "bigram"},
            "objective.random_source must be one of uniform, unigram, not 'bigram'",
        ),
        ({"mask_rate_final": 0.0}, "objective.mask_rate_final must lie in (0, 1], not 0.0"),
        ({"max_span": 0}, "objective.max_span must be at least 1, not 0"),
        ({"max_ngram": 17}, "objective.max_ngram must be at most 16"),
        ({"span_geometric_p": 1.0}, "objective.span_p must lie between 0 and 1, not 1.0"),
        ({"frequency_power": -1.0}, "objective.frequency_power and objective.random_first_id must not be negative"),
        (
            {"mask_unit": "span", "mask_rounding": "bernoulli"},
            "objective.mask_count=bernoulli needs objective.masking=token, not span",
        ),
        (
            {"mask_rounding": "random_words"},
            "objective.mask_count=random_words needs objective.masking=whole_word, not token",
        ),
        (
            {"mask_unit": "span", "with_replacement": True},
            "objective.mask_with_replacement needs objective.masking=token",
        ),
        ({"replacement_unit": "word"}, "objective.mask_decision=word needs a masking of whole words, not token"),
        ({"mask_unit": "ngram_window", "mask_rate_final": 0.3}, "set no mask_rate_final"),
        ({"mask_rate": 0.0}, "objective.mask_rate must lie in (0, 1], not 0.0"),
        ({"mask_rate": 1.5}, "objective.mask_rate must lie in (0, 1], not 1.5"),
        ({"max_predictions": 0}, "objective.max_predictions must be at least 1, not 0"),
        ({"mask_token_rate": -0.1}, "objective.mask_token_rate and objective.random_token_rate must not be negative"),
        ({"mask_token_rate": 0.8, "random_token_rate": 0.3}, "sum to at most 1, not 0.8 and 0.3"),
    ],
)
def test_masking_that_makes_no_sense_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        MaskingConfig(**changes)


def test_shares_may_fill_everything() -> None:
    MaskingConfig(mask_rate=1.0, mask_token_rate=0.9, random_token_rate=0.1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pair": "order"}, "objective.pair must be one of none, nsp, sop, not 'order'"),
        ({"mlm_weight": -1.0}, "objective.mlm_weight must not be negative, not -1.0"),
        ({"pair_weight": -1.0}, "objective.pair_weight must not be negative, not -1.0"),
        ({"span_boundary": -1.0}, "objective.span_boundary must not be negative, not -1.0"),
    ],
)
def test_an_objective_that_makes_no_sense_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        MlmConfig(MaskingConfig(), **changes)


def test_a_pair_loss_needs_rows_of_pairs() -> None:
    MlmConfig(MaskingConfig(), pair="nsp").check_example_format("nsp_pairs")
    MlmConfig(MaskingConfig(), pair="sop").check_example_format("sop_pairs")
    with pytest.raises(
        UserError, match=r"^objective.pair=sop needs data.example_format to be sop_pairs, not 'nsp_pairs'$"
    ):
        MlmConfig(MaskingConfig(), pair="sop").check_example_format("nsp_pairs")
    for form in ("block", "nsp_pairs", "sop_pairs"):
        MlmConfig(MaskingConfig(), pair="none").check_example_format(form)
    with pytest.raises(UserError, match=r"^objective.pair=nsp needs data.example_format to be nsp_pairs, not 'block'$"):
        MlmConfig(MaskingConfig(), pair="nsp").check_example_format("block")
    with pytest.raises(
        UserError,
        match=r"objective.pair=none needs data.example_format to be block or .* or sop_pairs, not 'stream'",
    ):
        MlmConfig(MaskingConfig(), pair="none").check_example_format("stream")
