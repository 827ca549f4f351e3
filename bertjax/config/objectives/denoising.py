"""Configs of the objectives that rebuild text: span corruption, infilling, TSDAE and RetroMAE. Needs no jax."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
from ml_collections import ConfigDict

from bertjax.config.fields import phase_setting, setting
from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.base import ObjectiveConfig
from bertjax.config.objectives.masking import MaskingConfig
from bertjax.config.objectives.seq2seq import EncoderDecoderObjectiveConfig
from bertjax.errors import UserError

_EXAMPLE_FORMATS = ("block", "doc_sentences")
"""Formats whose examples are [CLS], text, [SEP]."""
_SPECIALS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanCorruptionConfig(EncoderDecoderObjectiveConfig, group="objective.span_corruption"):
    """Span corruption (T5, arXiv:1910.10683, section 3.1.4); the defaults are T5's."""

    title = "span corruption"
    objective_class = "bertjax.objectives.denoising.span_corruption:SpanCorruption"
    uses = ()
    example_formats = _EXAMPLE_FORMATS
    loss_titles: ClassVar[dict[str, str]] = {"span_corruption": "Dropped spans"}
    needs_mask_token = False

    noise_density: float = setting(0.15, above=0.0, below=1.0, help="Share of the tokens that are dropped.")
    mean_span: float = setting(3.0, at_least=1.0, help="Mean length of the dropped spans, in tokens.")
    num_sentinels: int = setting(
        100,
        at_least=1,
        help="Tokens <extra_id_0>, ... that stand for dropped spans; a tokenizer with fewer gets so many new ones.",
    )
    seq_len: int = setting(128, help="Tokens per sequence before corruption.", key=False)

    @classmethod
    def needed_sentinels(cls, cfg: ConfigDict) -> int:
        return cfg.objective.span_corruption.num_sentinels

    def check(self) -> None:
        most = int(self.spans(np.arange(self.seq_len + 1))[1].max())
        if most > self.num_sentinels:
            raise UserError(
                f"objective.span_corruption.num_sentinels={self.num_sentinels} is too small: a sequence of "
                f"data.seq_len={self.seq_len} tokens has up to {most} dropped spans"
            )

    def spans(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns dropped tokens and spans of texts of these lengths, special tokens not counted; int64 [n] each.

        As google-research/text-to-text-transfer-transformer:t5/data/preprocessors.py, random_spans_noise_mask; there
        one token at least stays and one is dropped. A text of one token stays whole.
        """
        exact = np.float32
        noise = np.round(lengths.astype(exact) * exact(self.noise_density)).astype(np.int64)
        noise = np.where(lengths > 1, np.clip(noise, 1, np.maximum(lengths - 1, 1)), 0)
        spans = np.maximum(np.round(noise.astype(exact) / exact(self.mean_span)).astype(np.int64), 1)
        return noise, np.where(noise > 0, np.minimum(spans, lengths - noise), 0)

    def tower_lengths(self, seq_len: int, max_examples: int) -> dict[str, int]:
        """Returns the most tokens that remain, and that targets have; exact for one example per sequence."""
        lengths = np.arange(max(seq_len - _SPECIALS, 1) + 1)
        noise, spans = self.spans(lengths)
        bounds = []
        for sizes in (lengths - noise + spans + _SPECIALS, noise + spans + 1):
            # With E examples the sum of sizes is at most per_token x tokens + E x intercept.
            per_token = float(sizes[-1] - sizes[0]) / lengths[-1]
            intercept = float((sizes - per_token * lengths).max())
            packed = per_token * (seq_len - _SPECIALS * max_examples) + intercept * max_examples
            bounds.append(int(sizes.max()) if max_examples == 1 else int(np.floor(packed + 1e-6)))
        return {"model": min(bounds[0], seq_len), "decoder": bounds[1]}

    @property
    def summary(self) -> str:
        return f"{self.title} ({self.noise_density:.0%} of the tokens, spans of {self.mean_span:g})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class InfillingConfig(EncoderDecoderObjectiveConfig, group="objective.infilling"):
    """Text infilling and sentence permutation (BART, arXiv:1910.13461, section 2.2); the defaults are BART's."""

    title = "text infilling"
    objective_class = "bertjax.objectives.denoising.infilling:Infilling"
    uses = ()
    example_formats = _EXAMPLE_FORMATS
    loss_titles: ClassVar[dict[str, str]] = {"infilling": "Original text"}

    mask_rate: float = setting(
        0.3, at_least=0.0, below=1.0, help="Sum of the lengths of the masked spans, as a share of the tokens."
    )
    mean_span: float = setting(
        3.0,
        above=0.0,
        at_most=20.0,
        help="Mean of the Poisson distribution of span lengths; each span becomes one mask token, a span of length 0 "
        "inserts one.",
    )
    permute_sentences: bool = setting(
        True, help="Put the sentences, which full stops end, into a random order before masking."
    )

    @property
    def summary(self) -> str:
        permuted = " and sentence permutation" if self.permute_sentences else ""
        return f"{self.title}{permuted} ({self.mask_rate:.0%} of the tokens, spans of {self.mean_span:g})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TsdaeConfig(EncoderDecoderObjectiveConfig, group="objective.tsdae"):
    """TSDAE (arXiv:2104.06979): a decoder rebuilds a text from one vector; the encoder is exported."""

    title = "denoising auto-encoder of sentences"
    objective_class = "bertjax.objectives.denoising.tsdae:Tsdae"
    uses = ()
    example_formats = _EXAMPLE_FORMATS
    loss_titles: ClassVar[dict[str, str]] = {"tsdae": "Original text"}
    needs_mask_token = False

    deletion_rate: float = setting(
        0.6, at_least=0.0, below=1.0, help="Probability that a word is deleted before the encoder; one word stays."
    )
    pooling: str = setting(
        "first", choices=("first", "mean"), help="Vector of a text: its first token, or the mean of all tokens."
    )

    @property
    def summary(self) -> str:
        return f"{self.title} (TSDAE, {self.deletion_rate:.0%} of the words deleted)"

    @property
    def embedding_pooling(self) -> str:
        return self.pooling


@dataclasses.dataclass(frozen=True)
class RetroMaeConfig(ObjectiveConfig, group="objective.retromae"):
    """RetroMAE (arXiv:2205.12035): masked tokens, and one layer that rebuilds a text from its first token."""

    title = "masked auto-encoder of texts"
    objective_class = "bertjax.objectives.denoising.retromae:RetroMae"
    example_formats = _EXAMPLE_FORMATS
    loss_titles: ClassVar[dict[str, str]] = {"mlm": "Masked tokens", "retromae": "Text from its first token"}

    masking: MaskingConfig
    decoder_mask_rate: float = phase_setting(
        0.5,
        at_least=0.0,
        below=1.0,
        help="Share of the tokens that each token of the decoder does not see, another choice for each (0.5 to 0.7).",
    )

    @property
    def summary(self) -> str:
        return f"{self.title} (RetroMAE, {self.decoder_mask_rate:.0%} masked in the decoder; {self.masking.summary})"

    @property
    def embedding_pooling(self) -> str:
        return "first"

    def check_model(self, model: EncoderConfig) -> None:
        if model.causal or model.attention_position == "relative":
            raise UserError(
                "objective.name=retromae embeds a text by its first token, which sees all others: not with "
                "model.causal=true or model.attention_position=relative"
            )
