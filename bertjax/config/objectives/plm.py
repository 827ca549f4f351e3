"""What permutation language modelling can be told, checked once. Needs no jax."""

from __future__ import annotations

import dataclasses
import math

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.base import TEXT_FORMATS
from bertjax.errors import UserError

STREAM_FORMATS = ("segments", "stream")
"""Forms whose rows go on from one batch to the next: there is something to remember."""
FORMS = (*STREAM_FORMATS, *TEXT_FORMATS)
_SPECIALS = 3  # tokens of a part that may be special, and so no targets
_WIDEST_PART = 1 << 14  # the order of prediction keeps at least 17 random bits beside the position


@dataclasses.dataclass(frozen=True)
class PlmConfig:
    """XLNet's objective (zihangdai/xlnet:data_utils.py); the defaults are those of its released code.

    Attributes:
        part_lengths: tokens of the parts of a sequence; each part is permuted separately and attends to all earlier
            parts.
        num_predict: tokens predicted in a full sequence, M.
        perm_size: tokens that are permuted together; the blocks of a part are predicted one after the other.
        mem_len: tokens of earlier sequences that every layer caches; 0 = none.
        max_ngram: longest span of targets; n is drawn with probability proportional to 1 / n.
        mask_alpha: a span of n lies in a context of n * mask_alpha // mask_beta tokens.
        whole_words: spans are n words; False = n tokens from the start of a word on, as in the released code.
    """

    form: str
    part_lengths: tuple[int, ...]
    num_predict: int
    perm_size: int
    mem_len: int = 0
    max_ngram: int = 5
    mask_alpha: int = 6
    mask_beta: int = 1
    whole_words: bool = False
    bi_data: bool = False

    def __post_init__(self) -> None:
        self.check_example_format(self.form)
        for name in ("num_predict", "perm_size", "max_ngram", "mask_beta"):
            if getattr(self, name) < 1:
                raise UserError(f"objective.{name} must be at least 1, not {getattr(self, name)}")
        if self.max_ngram > 16:
            raise UserError(f"objective.max_ngram must be at most 16, not {self.max_ngram}")
        if self.mask_alpha < self.mask_beta:
            raise UserError(
                f"objective.mask_alpha={self.mask_alpha} must be at least objective.mask_beta={self.mask_beta}: a span "
                "lies inside its context"
            )
        if max(self.part_lengths) > _WIDEST_PART:
            raise UserError(f"objective.name=plm permutes at most {_WIDEST_PART} tokens, not {max(self.part_lengths)}")
        for part, goal in zip(self.part_lengths, self.num_predict_by_part, strict=True):
            if part % self.perm_size:
                raise UserError(
                    f"objective.perm_size={self.perm_size} must divide every part of a row: "
                    f"{' and '.join(map(str, self.part_lengths))} tokens (model.reuse_len cuts rows of form segments)"
                )
            if goal > part - _SPECIALS - 1:
                raise UserError(
                    f"objective.num_predict={self.num_predict} leaves no token to predict from: at most "
                    f"{part - _SPECIALS - 1} of the {part} tokens of a part"
                )

    @property
    def num_predict_by_part(self) -> tuple[int, ...]:
        """Tokens predicted in each part: 43 and 42 of 85."""
        total = sum(self.part_lengths)
        ends = [
            math.ceil(self.num_predict * sum(self.part_lengths[: i + 1]) / total) for i in range(len(self.part_lengths))
        ]
        return tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))

    @property
    def predicted_share(self) -> float:
        """Share of the tokens that are scored against the vocabulary."""
        return self.num_predict / sum(self.part_lengths)

    def check_example_format(self, form: str) -> None:
        if form not in FORMS:
            raise UserError(f"objective.name=plm needs data.example_format to be {', '.join(FORMS)}, not {form!r}")

    def check_model(self, model: EncoderConfig) -> None:
        """Raises `UserError` for an encoder that has no two streams, or would see what it must not."""
        faults = [
            (
                model.attention_position != "relative",
                "model.attention_position must be relative: a target knows its place, but not its word; not "
                f"{model.attention_position}",
            ),
            (model.position_embedding != "none", "model.position_embedding must be none: targets have no embeddings"),
            (model.causal, "model.causal must be false: the order of prediction is not that of the text"),
            (model.conv_kernel_size > 0, "model.conv_kernel_size must be 0: it would show targets their own words"),
            (self.mem_len > 0 and model.inner_layers > 1, "model.inner_layers must be 1: a memory has a state a layer"),
            (
                self.form == "segments" and model.type_vocab_size in (1, 2),
                "model.type_vocab_size must be 0 (XLNet) or at least 3: rows of form segments have three token types",
            ),
            (
                model.bi_data and self.form not in STREAM_FORMATS,
                f"model.bi_data needs data.example_format to be {' or '.join(STREAM_FORMATS)}, not {self.form}",
            ),
        ]
        for is_fault, words in faults:
            if is_fault:
                raise UserError(f"objective.name=plm: {words}")
