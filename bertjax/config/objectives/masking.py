"""What an objective can be told, checked once. Needs no jax, so that a wrong config is refused at once."""

from __future__ import annotations

import dataclasses
import math

from bertjax.errors import UserError, require_one_of

UNITS = ("token", "whole_word", "ngram", "ngram_window", "span", "frequency")
COUNTS = ("round", "ceil", "random", "random_words", "bernoulli")
DECISIONS = ("token", "word", "span")
RANDOM_SOURCES = ("uniform", "unigram")


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """Which tokens are hidden, how many, and behind what; the defaults are BERT's.

    Every field is a key of `objective`, explained in `bertjax/config/defaults/objective.py`; `schedule_steps` is the
    length of the run, over which the rate goes from `mask_rate` to `mask_rate_final`.
    """

    mask_unit: str = "token"
    dynamic: bool = True
    mask_rate: float = 0.15
    mask_rate_final: float | None = None
    schedule_steps: int = 1
    mask_rounding: str = "round"
    max_predictions: int = 20
    allow_mask_special: bool = False
    allow_mask_unk: bool = True
    with_replacement: bool = False
    max_ngram: int = 3
    max_span: int = 10
    span_geometric_p: float = 0.2
    frequency_power: float = 0.7
    replacement_unit: str = "token"
    mask_token_rate: float = 0.8
    random_token_rate: float = 0.1
    random_token_distribution: str = "uniform"
    min_random_id: int = 0

    def __post_init__(self) -> None:
        require_one_of("objective.masking", self.mask_unit, UNITS)
        require_one_of("objective.mask_count", self.mask_rounding, COUNTS)
        require_one_of("objective.mask_decision", self.replacement_unit, DECISIONS)
        require_one_of("objective.random_source", self.random_token_distribution, RANDOM_SOURCES)
        _check_rate("mask_rate", self.mask_rate)
        _check_rate("mask_rate_final", self.last_rate)
        for name in ("max_predictions", "max_ngram", "max_span", "schedule_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"objective.{name} must be at least 1, not {getattr(self, name)}")
        if self.max_ngram > 16 or self.max_span > 64:
            raise UserError("objective.max_ngram must be at most 16 and objective.max_span at most 64 words")
        if not 0.0 < self.span_geometric_p < 1.0:
            raise UserError(f"objective.span_p must lie between 0 and 1, not {self.span_geometric_p}")
        if min(self.frequency_power, self.min_random_id) < 0:
            raise UserError("objective.frequency_power and objective.random_first_id must not be negative")
        shares = (self.mask_token_rate, self.random_token_rate)
        if min(shares) < 0.0 or sum(shares) > 1.0 + 1e-6:
            raise UserError(
                "objective.mask_token_rate and objective.random_token_rate must not be negative and sum to at most 1, "
                f"not {shares[0]} and {shares[1]}"
            )
        self._check_mixture()

    def _check_mixture(self) -> None:
        """Choices that only some units can be given."""
        wanted = {"bernoulli": "token", "random_words": "whole_word"}.get(self.mask_rounding, self.mask_unit)
        if self.mask_unit != wanted:
            raise UserError(
                f"objective.mask_count={self.mask_rounding} needs objective.masking={wanted}, not {self.mask_unit}"
            )
        if self.with_replacement and (self.mask_unit != "token" or self.mask_rounding == "bernoulli"):
            raise UserError(
                "objective.mask_with_replacement needs objective.masking=token and a mask_count other than bernoulli"
            )
        if self.replacement_unit == "word" and self.mask_unit in ("token", "frequency"):
            raise UserError(f"objective.mask_decision=word needs a masking of whole words, not {self.mask_unit}")
        if self.mask_unit == "ngram_window" and self.last_rate != self.mask_rate:
            raise UserError("objective.masking=ngram_window has windows of one size: set no mask_rate_final")

    @property
    def last_rate(self) -> float:
        """The share at the end of the run."""
        return self.mask_rate if self.mask_rate_final is None else self.mask_rate_final


def default_max_predictions(unit: str, count: str, rate: float, seq_len: int) -> int:
    """Room for the predictions of an example of `seq_len` tokens that a run never misses.

    Where their number is random this is six standard deviations above the mean, words of two pieces on average.
    """
    wanted = max(1, round(rate * seq_len))
    if count in ("random", "ceil"):
        wanted = math.floor(rate * seq_len) + 1
    if count in ("bernoulli", "random_words"):
        pieces = 1 if count == "bernoulli" else 2
        wanted = math.ceil(rate * seq_len + 6.0 * math.sqrt(pieces * rate * (1.0 - rate) * seq_len)) + pieces
    if unit == "ngram_window":
        wanted += 8  # the last word is taken whole
    return min(wanted, seq_len)


def _check_rate(key: str, rate: float) -> None:
    if not 0.0 < rate <= 1.0:
        raise UserError(f"objective.{key} must lie in (0, 1], not {rate}")
