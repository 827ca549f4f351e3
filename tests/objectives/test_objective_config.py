"""What the objective's config refuses, and in which words."""

from __future__ import annotations

import re

import pytest

from bertjax.objectives.config import MaskingConfig, MlmConfig
from bertjax.types import UserError


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unit": "words"}, "objective.masking must be one of token, whole_word, not 'words'"),
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
        ({"pair": "sop"}, "objective.pair must be one of none, nsp, not 'sop'"),
        ({"mlm_weight": -1.0}, "objective.mlm_weight and objective.pair_weight must not be negative"),
        ({"pair_weight": -1.0}, "objective.mlm_weight and objective.pair_weight must not be negative"),
    ],
)
def test_an_objective_that_makes_no_sense_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        MlmConfig(MaskingConfig(), **changes)


def test_a_pair_loss_needs_rows_of_pairs() -> None:
    MlmConfig(MaskingConfig(), pair="nsp").check_form("nsp_pairs")
    for form in ("block", "nsp_pairs"):
        MlmConfig(MaskingConfig(), pair="none").check_form(form)
    with pytest.raises(UserError, match=r"^objective.pair=nsp needs data.form to be nsp_pairs, not 'block'$"):
        MlmConfig(MaskingConfig(), pair="nsp").check_form("block")
    with pytest.raises(UserError, match=r"objective.pair=none needs data.form to be block or nsp_pairs, not 'stream'"):
        MlmConfig(MaskingConfig(), pair="none").check_form("stream")
