"""Config of masking, shared by all objectives that mask tokens. Needs no jax."""

from __future__ import annotations

import dataclasses
import math
from typing import Self

from ml_collections import ConfigDict

from bertjax.config.fields import Settings, phase_setting, read_group, setting
from bertjax.errors import UserError

MASK_UNITS = ("token", "whole_word", "ngram", "ngram_window", "span", "frequency")
MASK_ROUNDINGS = ("round", "ceil", "random", "random_words", "bernoulli")


@dataclasses.dataclass(frozen=True)
class MaskingConfig(Settings, group="objective.masking"):
    """Selection, number and replacement of masked tokens; the defaults are BERT's."""

    mask_unit: str = phase_setting(
        "token",
        help="What is masked together: single tokens, whole words, n-grams of up to max_ngram words (ALBERT), one "
        "n-gram per window of n / mask_rate words (ngram_window, DeBERTa), spans of up to max_span words (SpanBERT), "
        "or single tokens, rare ones more often (frequency, DistilBERT).",
        choices=MASK_UNITS,
    )
    dynamic: bool = phase_setting(
        True, help="New masks every time an example is read; False: masks repeat every data.dupe_factor epochs."
    )
    mask_rate: float = phase_setting(
        0.15,
        help="Share of an example's tokens that are predicted; special tokens count, even where they are never masked.",
        above=0.0,
        at_most=1.0,
    )
    mask_rate_final: float | None = phase_setting(
        None,
        help="mask_rate at the end of the run, reached linearly; None = constant. Held-out text keeps mask_rate.",
        above=0.0,
        at_most=1.0,
    )
    mask_rounding: str = phase_setting(
        "round",
        help="How the share becomes a number: round (BERT), ceil of the share of maskable tokens (SpanBERT), random = "
        "floor(share + U[0, 1)) (RoBERTa), random_words = the same of words (fairseq), bernoulli = each token "
        "independently (ModernBERT).",
        choices=MASK_ROUNDINGS,
    )
    max_predictions: int | None = phase_setting(
        None, help="Most predictions per example; None = as many as a full sequence can need.", at_least=1
    )
    allow_mask_special: bool = phase_setting(False, help="[CLS] and [SEP] may be masked (RoBERTa, ModernBERT).")
    allow_mask_unk: bool = phase_setting(True, help="Unknown tokens may be masked (all but DeBERTa and DistilBERT).")
    with_replacement: bool = phase_setting(
        False, help="Draw positions with replacement (ELECTRA); one that is drawn twice counts twice in the loss."
    )
    max_ngram: int = phase_setting(
        3, help="Longest n-gram in words; the probability of n is proportional to 1 / n.", at_least=1, at_most=16
    )
    max_span: int = phase_setting(10, help="Longest span in words.", at_least=1, at_most=64)
    span_geometric_p: float = phase_setting(
        0.2, help="p of the geometric distribution of span lengths, truncated at max_span.", above=0.0, below=1.0
    )
    frequency_power: float = phase_setting(
        0.7, help="mask_unit=frequency draws a token of count c with weight c ** -frequency_power.", at_least=0.0
    )
    mask_token_rate: float = phase_setting(0.8, help="Share of the selected tokens replaced by [MASK].", at_least=0.0)
    random_token_rate: float = phase_setting(
        0.1, help="Share of the selected tokens replaced by a random token; the rest stays as it is.", at_least=0.0
    )
    replacement_unit: str = phase_setting(
        "token",
        help="Tokens that share one such draw: each token alone, all of a word (fairseq), or adjacent ones (span).",
        choices=("token", "word", "span"),
    )
    random_token_distribution: str = phase_setting(
        "uniform",
        help="Random tokens are drawn uniformly from the vocabulary (BERT) or by their corpus counts (SpanBERT).",
        choices=("uniform", "unigram"),
    )
    min_random_id: int = phase_setting(0, help="Smallest id that is drawn as a random token (RoBERTa: 4).", at_least=0)
    seq_len: int = setting(128, help="Tokens per sequence.", key=False, at_least=1)
    schedule_steps: int = setting(1, help="Steps from mask_rate to mask_rate_final.", key=False, at_least=1)

    @classmethod
    def from_config(cls, cfg: ConfigDict) -> Self:
        """Reads the group of a whole config; raises `UserError` for a value that is not allowed."""
        return read_group(cfg, cls, seq_len=cfg.data.seq_len, schedule_steps=cfg.train.num_steps)

    def check(self) -> None:
        if self.mask_token_rate + self.random_token_rate > 1.0 + 1e-6:
            raise UserError(
                "objective.masking.mask_token_rate and objective.masking.random_token_rate must sum to at most 1, not "
                f"{self.mask_token_rate} and {self.random_token_rate}"
            )
        needed = {"bernoulli": "token", "random_words": "whole_word"}.get(self.mask_rounding, self.mask_unit)
        if self.mask_unit != needed:
            raise UserError(
                f"objective.masking.mask_rounding={self.mask_rounding} needs objective.masking.mask_unit={needed}, not "
                f"{self.mask_unit}"
            )
        if self.with_replacement and (self.mask_unit != "token" or self.mask_rounding == "bernoulli"):
            raise UserError(
                "objective.masking.with_replacement needs objective.masking.mask_unit=token and a mask_rounding other "
                "than bernoulli"
            )
        if self.replacement_unit == "word" and self.mask_unit in ("token", "frequency"):
            raise UserError(
                "objective.masking.replacement_unit=word needs an objective.masking.mask_unit of whole words, not "
                f"{self.mask_unit}"
            )
        if self.mask_unit == "ngram_window" and self.last_rate != self.mask_rate:
            raise UserError(
                "objective.masking.mask_unit=ngram_window has windows of one size: set "
                "objective.masking.mask_rate_final=None"
            )

    @property
    def last_rate(self) -> float:
        """The share at the end of the run."""
        return self.mask_rate if self.mask_rate_final is None else self.mask_rate_final

    @property
    def predicted_share(self) -> float:
        """The share of the tokens that are predicted, on average over the run."""
        return (self.mask_rate + self.last_rate) / 2.0

    @property
    def predictions_limit(self) -> int:
        """The largest number of predictions of an example."""
        if self.max_predictions is not None:
            return self.max_predictions
        return default_max_predictions(
            self.mask_unit, self.mask_rounding, max(self.mask_rate, self.last_rate), self.seq_len
        )

    @property
    def summary(self) -> str:
        """Unit and rate in words."""
        return f"{self.mask_unit}, {100.0 * self.mask_rate:g} % masked"


def default_max_predictions(mask_unit: str, mask_rounding: str, mask_rate: float, seq_len: int) -> int:
    """Computes a limit on the predictions of an example that a run never reaches.

    Where their number is random, the limit is six standard deviations above the mean, for words of two tokens.

    Args:
        mask_unit: as in `MaskingConfig`.
        mask_rounding: as in `MaskingConfig`.
        mask_rate: the largest share of tokens that are predicted.
        seq_len: tokens of the example.
    """
    limit = max(1, round(mask_rate * seq_len))
    if mask_rounding in ("random", "ceil"):
        limit = math.floor(mask_rate * seq_len) + 1
    if mask_rounding in ("bernoulli", "random_words"):
        tokens = 1 if mask_rounding == "bernoulli" else 2
        deviation = math.sqrt(tokens * mask_rate * (1.0 - mask_rate) * seq_len)
        limit = math.ceil(mask_rate * seq_len + 6.0 * deviation) + tokens
    if mask_unit == "ngram_window":
        limit += 8  # the last word is masked whole
    return min(limit, seq_len)
