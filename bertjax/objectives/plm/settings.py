"""Settings of permutation language modeling."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar, TypeVar

from bertjax.config.fields import Reader, phase_setting
from bertjax.config.model import EncoderConfig, encoder_config, reuse_len
from bertjax.config.objectives import PAIR_FORMATS, STREAM_FORMATS, TEXT_FORMATS
from bertjax.errors import UserError
from bertjax.objectives.base import PairObjective

T = TypeVar("T", bound="PlmSettings")

_NUM_SPECIAL = 3  # tokens of a part that may be special and hence never targets
_MAX_PART_LENGTH = 1 << 14  # the order of prediction keeps at least 17 random bits besides the position


@dataclasses.dataclass(frozen=True)
class PlmSettings(PairObjective, group="objective.plm"):
    """XLNet's objective (zihangdai/xlnet:data_utils.py); the defaults are those of its released code.

    Attributes:
        part_lengths: tokens of the parts of a sequence; each part is permuted separately and attends to all earlier
            parts.
        mem_len: tokens of earlier sequences that every layer remembers; 0 = none.
    """

    title = "permutation language modeling"
    example_formats = (*STREAM_FORMATS, *TEXT_FORMATS, *PAIR_FORMATS)
    loss_titles: ClassVar[dict[str, str]] = {"plm": "Tokens of a permutation", "pair": "Sentence pairs"}
    can_pack = False
    two_streams = True

    part_lengths: tuple[int, ...]
    num_predict: int | None = phase_setting(
        None, help="Tokens predicted per sequence; None = a sixth of it (85 of 512).", at_least=1
    )
    perm_size: int | None = phase_setting(
        None,
        help="Tokens that are permuted together; sequences (form segments: their two parts) are cut into blocks of "
        "this size, predicted one after the other. None = one block.",
        at_least=1,
    )
    mem_len: int = 0
    max_ngram: int = phase_setting(
        3, help="Longest span of targets; the probability of n is proportional to 1 / n.", at_least=1, at_most=16
    )
    mask_alpha: int = phase_setting(
        6, at_least=1, help="A span of n lies in a context of n * mask_alpha // mask_beta tokens."
    )
    mask_beta: int = phase_setting(1, help="See mask_alpha.", at_least=1)
    whole_words: bool = phase_setting(
        False, help="Spans are n words; False = n tokens from the start of a word on, as in the released code."
    )

    @classmethod
    def read(cls: type[T], reader: Reader) -> T:
        """Makes the objective; published for 512 tokens: 85 predicted, 256 reused and permuted, 384 remembered.

        Raises:
            UserError: `model.reuse_len` does not fit streams, or a value is not allowed.
        """
        cfg = reader.cfg
        example_format, length = cfg.data.example_format, cfg.data.seq_len
        model, reused = encoder_config(cfg), reuse_len(cfg)
        if example_format == "stream" and model.reuse_len not in (None, length):
            raise UserError(
                "data.example_format=stream continues after the whole sequence: model.reuse_len must be "
                f"data.seq_len={length} or None, not {model.reuse_len}"
            )
        has_parts = example_format == "segments"
        mem_len = (3 * length // 4 if has_parts else length) if model.mem_len is None else model.mem_len
        return cls(
            part_lengths=(reused, length - reused) if has_parts else (length,),
            mem_len=mem_len if example_format in STREAM_FORMATS else 0,
            **reader.fields_of(cls),
        )

    def check(self) -> None:
        self.check_example_format(self.example_format)
        if self.mask_alpha < self.mask_beta:
            raise UserError(
                f"objective.plm.mask_alpha={self.mask_alpha} must be at least "
                f"objective.plm.mask_beta={self.mask_beta}: a span lies inside its context"
            )
        if max(self.part_lengths) > _MAX_PART_LENGTH:
            raise UserError(
                f"objective.name=plm permutes at most {_MAX_PART_LENGTH} tokens, not {max(self.part_lengths)}"
            )
        for length, num_predict in zip(self.part_lengths, self.num_predict_by_part, strict=True):
            if length % self.block_size:
                raise UserError(
                    f"objective.plm.perm_size={self.block_size} must divide every part of a sequence: "
                    f"{' and '.join(map(str, self.part_lengths))} tokens (model.reuse_len cuts sequences of form "
                    "segments)"
                )
            if num_predict > length - _NUM_SPECIAL - 1:
                raise UserError(
                    f"objective.plm.num_predict={self.num_targets} leaves no token to predict from: at most "
                    f"{length - _NUM_SPECIAL - 1} of the {length} tokens of a part"
                )

    @property
    def block_size(self) -> int:
        """The tokens that are permuted together."""
        return self.part_lengths[0] if self.perm_size is None else self.perm_size

    @property
    def num_targets(self) -> int:
        """The tokens predicted in a full sequence, M."""
        return max(sum(self.part_lengths) // 6, 1) if self.num_predict is None else self.num_predict

    @property
    def num_predict_by_part(self) -> tuple[int, ...]:
        """The tokens predicted in each part: 43 and 42 of 85."""
        total = sum(self.part_lengths)
        ends = [
            math.ceil(self.num_targets * sum(self.part_lengths[: i + 1]) / total) for i in range(len(self.part_lengths))
        ]
        return tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))

    @property
    def predicted_share(self) -> float:
        """The share of the tokens that are scored against the vocabulary."""
        return self.num_targets / sum(self.part_lengths)

    @property
    def summary(self) -> str:
        return " and ".join(filter(None, [self.title, self.sentence_objective]))

    def check_model(self, model: EncoderConfig) -> None:
        for reason in self._invalid_values(model):
            raise UserError(f"objective.name=plm: {reason}")

    def _invalid_values(self, model: EncoderConfig) -> Iterator[str]:
        if model.attention_position != "relative":
            yield (
                "model.attention_position must be relative, so that a target knows its position but not its token; "
                f"not {model.attention_position}"
            )
        if model.position_embedding != "none":
            yield "model.position_embedding must be none: targets have no embeddings"
        if model.causal:
            yield "model.causal must be false: the order of prediction is random"
        if model.conv_kernel_size > 0:
            yield "model.conv_kernel_size must be 0: it would show targets their own tokens"
        if self.mem_len > 0 and model.inner_layers > 1:
            yield "model.inner_layers must be 1: each layer has one memory"
        if self.example_format == "segments" and model.type_vocab_size in (1, 2):
            yield "model.type_vocab_size must be 0 (XLNet) or at least 3: form segments has three token types"
        if model.bi_data and self.example_format not in STREAM_FORMATS:
            yield (
                f"model.bi_data needs data.example_format to be {' or '.join(STREAM_FORMATS)}: sequences of "
                f"{self.example_format} are never reversed"
            )
