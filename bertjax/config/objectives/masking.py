"""What an objective can be told, checked once. Needs no jax, so that a wrong config is refused at once."""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol, runtime_checkable

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, require_one_of

UNITS = ("token", "whole_word", "ngram", "ngram_window", "span", "frequency")
COUNTS = ("round", "ceil", "random", "random_words", "bernoulli")
DECISIONS = ("token", "word", "span")
RANDOM_SOURCES = ("uniform", "unigram")

TEXT_FORMS = ("block", "doc_sentences", "full_sentences")
"""Row forms of one segment, in the order of the text."""

PAIR_FORMS = {
    "none": (*TEXT_FORMS, "nsp_pairs", "sop_pairs"),
    "nsp": ("nsp_pairs",),
    "sop": ("sop_pairs",),
}
"""Which row forms every kind of pair loss can read."""


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """Which tokens are hidden, how many, and behind what; the defaults are BERT's.

    Every field is a key of `objective`, explained in `bertjax/config/defaults/objective.py`; `schedule_steps` is the
    length of the run, over which the rate goes from `mask_rate` to `mask_rate_final`.
    """

    unit: str = "token"
    dynamic: bool = True
    mask_rate: float = 0.15
    mask_rate_final: float | None = None
    schedule_steps: int = 1
    count: str = "round"
    max_predictions: int = 20
    mask_specials: bool = False
    mask_unknown: bool = True
    with_replacement: bool = False
    max_ngram: int = 3
    max_span: int = 10
    span_p: float = 0.2
    frequency_power: float = 0.7
    decision: str = "token"
    mask_token_rate: float = 0.8
    random_token_rate: float = 0.1
    random_source: str = "uniform"
    random_first_id: int = 0

    def __post_init__(self) -> None:
        require_one_of("objective.masking", self.unit, UNITS)
        require_one_of("objective.mask_count", self.count, COUNTS)
        require_one_of("objective.mask_decision", self.decision, DECISIONS)
        require_one_of("objective.random_source", self.random_source, RANDOM_SOURCES)
        _check_rate("mask_rate", self.mask_rate)
        _check_rate("mask_rate_final", self.last_rate)
        for name in ("max_predictions", "max_ngram", "max_span", "schedule_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"objective.{name} must be at least 1, not {getattr(self, name)}")
        if self.max_ngram > 16 or self.max_span > 64:
            raise UserError("objective.max_ngram must be at most 16 and objective.max_span at most 64 words")
        if not 0.0 < self.span_p < 1.0:
            raise UserError(f"objective.span_p must lie between 0 and 1, not {self.span_p}")
        if min(self.frequency_power, self.random_first_id) < 0:
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
        wanted = {"bernoulli": "token", "random_words": "whole_word"}.get(self.count, self.unit)
        if self.unit != wanted:
            raise UserError(f"objective.mask_count={self.count} needs objective.masking={wanted}, not {self.unit}")
        if self.with_replacement and (self.unit != "token" or self.count == "bernoulli"):
            raise UserError(
                "objective.mask_with_replacement needs objective.masking=token and a mask_count other than bernoulli"
            )
        if self.decision == "word" and self.unit in ("token", "frequency"):
            raise UserError(f"objective.mask_decision=word needs a masking of whole words, not {self.unit}")
        if self.unit == "ngram_window" and self.last_rate != self.mask_rate:
            raise UserError("objective.masking=ngram_window has windows of one size: set no mask_rate_final")

    @property
    def last_rate(self) -> float:
        """The share at the end of the run."""
        return self.mask_rate if self.mask_rate_final is None else self.mask_rate_final


def most_predictions(unit: str, count: str, rate: float, seq_len: int) -> int:
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


@runtime_checkable
class ObjectiveConfig(Protocol):
    """What every objective's config can tell before anything is built."""

    def check_form(self, form: str) -> None:
        """Raises `UserError` when rows of this form lack what the loss needs."""

    def check_model(self, model: EncoderConfig) -> None:
        """Raises `UserError` for an encoder that cannot learn this."""


@dataclasses.dataclass(frozen=True)
class MlmConfig:
    """`pair` is "nsp", "sop" or "none"; the weights multiply the means. `span_boundary` is one: 0 = no such loss.

    `predict_next`: a hidden word is predicted from the state of the token before it.
    """

    masking: MaskingConfig
    pair: str = "nsp"
    mlm_weight: float = 1.0
    pair_weight: float = 1.0
    span_boundary: float = 0.0
    predict_next: bool = False

    def __post_init__(self) -> None:
        require_one_of("objective.pair", self.pair, tuple(PAIR_FORMS))
        for name in ("mlm_weight", "pair_weight", "span_boundary"):
            if getattr(self, name) < 0.0:
                raise UserError(f"objective.{name} must not be negative, not {getattr(self, name)}")
        if self.predict_next and self.span_boundary:
            raise UserError("objective.predict_next and objective.span_boundary do not go together")

    @property
    def predicted_share(self) -> float:
        """Share of the tokens that are scored against the vocabulary, on average over the run."""
        share = (self.masking.mask_rate + self.masking.last_rate) / 2.0
        return share * (2.0 if self.span_boundary else 1.0)  # the span-boundary head scores the same words once more

    def check_model(self, model: EncoderConfig) -> None:
        if model.causal:
            raise UserError(
                "objective.name=mlm hides words from both sides, but model.causal sees only one; "
                "set objective.name=clm or model.causal=false"
            )
        if self.predict_next and model.enhanced_decoder:
            raise UserError("objective.predict_next needs model.enhanced_decoder=false: it reads the encoder itself")

    def check_form(self, form: str) -> None:
        if form not in PAIR_FORMS[self.pair]:
            raise UserError(
                f"objective.pair={self.pair} needs data.form to be {' or '.join(PAIR_FORMS[self.pair])}, not {form!r}"
            )


@dataclasses.dataclass(frozen=True)
class CausalConfig:
    """Nothing to choose: every token predicts the next one."""

    def check_model(self, model: EncoderConfig) -> None:
        if not model.causal:
            raise UserError("objective.name=clm needs model.causal=true: else every token sees what it is to predict")

    def check_form(self, form: str) -> None:
        if form not in TEXT_FORMS:
            raise UserError(f"objective.name=clm needs data.form to be {' or '.join(TEXT_FORMS)}, not {form!r}")
