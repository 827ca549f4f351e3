"""The base class of the objectives' configs. Needs no jax, so that a wrong config is refused at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

from ml_collections import ConfigDict

from bertjax.config.encoder_decoder import DecoderConfig
from bertjax.config.extensions import OBJECTIVES
from bertjax.config.fields import Settings, names_where, phase_setting, read_group, setting
from bertjax.config.model import EncoderConfig, encoder_config
from bertjax.config.objectives.masking import MaskingConfig
from bertjax.config.registry import Choices
from bertjax.errors import UserError
from bertjax.types import Vocabulary

TEXT_FORMATS = ("block", "doc_sentences", "full_sentences")
"""Example formats with one segment, in the order of the text."""

SENTENCE_OBJECTIVES = {"nsp_pairs": "next-sentence prediction", "sop_pairs": "sentence-order prediction"}
"""What the labels of the example formats with two segments teach."""

PAIR_FORMATS = tuple(SENTENCE_OBJECTIVES)
"""Example formats with two segments."""

STREAM_FORMATS = ("segments", "stream")
"""Example formats whose sequences continue from one batch to the next: layers may carry a memory."""


@dataclasses.dataclass(frozen=True)
class ObjectiveChoice(Settings, group="objective"):
    """The choice of the objective."""

    name: str = setting(
        "mlm",
        choices=Choices(OBJECTIVES),
        help="mlm predicts masked tokens; clm predicts the next token; plm predicts tokens in a random order (XLNet); "
        "rtd finds the tokens that a generator replaced (ELECTRA); distillation learns from a trained model "
        "(DistilBERT, MiniLM, TinyBERT); contrastive trains sentence embeddings (SimCSE); span_corruption (T5) and "
        "infilling (BART) train an encoder-decoder to rebuild a text; tsdae and retromae train an encoder from whose "
        "embedding texts can be rebuilt; mixture divides every batch among several objectives (GPT-BERT); task is "
        "finetuning (bertjax finetune); installed packages and package.module:Class add others. With pairs of "
        "segments (data.example_format=nsp_pairs or sop_pairs), mlm, plm and rtd classify these, too.",
    )


_OF_OTHER_GROUPS: dict[str, Callable[[ConfigDict], Any]] = {
    "masking": MaskingConfig.from_config,
    "decoder": lambda cfg: read_group(cfg, DecoderConfig),
    "example_format": lambda cfg: cfg.data.example_format,
    "seq_len": lambda cfg: cfg.data.seq_len,
    "microbatches": lambda cfg: cfg.train.microbatches,
}
"""Functions that read the fields of objectives whose values are those of other groups, by name."""


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig(Settings):
    """Config of an objective, and all that other packages need to know about the objective.

    A subclass declares its keys with `setting` in a group `objective.<name>`. The other attributes of a subclass:

    Attributes:
        title: what the objective is, in words of a model card.
        objective_class: `"package.module:Class"` of the `bertjax.Objective`, imported only when it is built.
        example_formats: values of `data.example_format` that it reads.
        loss_titles: headings of its losses in reports, by name.
        metrics: what it measures besides losses, by name: (unit, meaning).
        uses: the other configs that it reads.
        needs_mask_token: the tokenizer must have a mask token.
        can_pack: several examples may share a sequence.
        two_streams: it predicts by two-stream attention, so that a network fills masks in the same way.
        uses_teacher: it learns from the model of `objective.distillation.teacher`.
        is_finetuning: it trains on the labelled examples of `task`.
    """

    title: ClassVar[str] = ""
    objective_class: ClassVar[str] = ""
    example_formats: ClassVar[tuple[str, ...]] = (*TEXT_FORMATS, *PAIR_FORMATS)
    loss_titles: ClassVar[dict[str, str]] = {}
    metrics: ClassVar[dict[str, tuple[str, str]]] = {}
    uses: ClassVar[tuple[type[Settings], ...]] = (MaskingConfig,)
    needs_mask_token: ClassVar[bool] = True
    can_pack: ClassVar[bool] = True
    two_streams: ClassVar[bool] = False
    uses_teacher: ClassVar[bool] = False
    is_finetuning: ClassVar[bool] = False

    @classmethod
    def from_config(cls, cfg: ConfigDict) -> Self:
        """Reads the objective's groups of a whole config; raises `UserError` for a value that is not allowed.

        Fields that are not keys are read by the functions in `_OF_OTHER_GROUPS`.
        """
        keys = names_where(cls, lambda each: each.key)
        names = [field.name for field in dataclasses.fields(cls) if field.name not in keys]
        return read_group(cfg, cls, **{name: _OF_OTHER_GROUPS[name](cfg) for name in names if name in _OF_OTHER_GROUPS})

    @classmethod
    def read_encoders(cls, cfg: ConfigDict, vocabulary: Vocabulary | None = None) -> dict[str, EncoderConfig]:
        """Reads the objective's encoders by their config groups; `vocabulary` is the tokenizer's, once it is known.

        Raises:
            UserError: a value is not allowed.
        """
        return {"model": encoder_config(cfg, vocabulary)}

    @classmethod
    def needed_sentinels(cls, cfg: ConfigDict) -> int:
        """Returns how many sentinels the tokenizer must have."""
        return 0

    def tower_lengths(self, seq_len: int, max_examples: int) -> dict[str, int]:
        """Returns the tokens per sequence that networks read, by the config groups of the networks.

        Args:
            seq_len: tokens per sequence before corruption.
            max_examples: most examples in a sequence.
        """
        return {"model": seq_len}

    @property
    def summary(self) -> str:
        """The title with what the values add to it."""
        return self.title

    @property
    def main_metric(self) -> str | None:
        """The held-out metric by which checkpoints are compared by default."""
        return None

    @property
    def predicts_at_mask(self) -> bool:
        """True if a masked token is predicted at its own position."""
        return True

    @property
    def embedding_pooling(self) -> str | None:
        """The pooling of the text embeddings that it trains: "first", "mean", or None where it trains none."""
        return None

    def check_model(self, model: EncoderConfig) -> None:
        """Raises `UserError` for an encoder that cannot learn this objective."""

    def check_example_format(self, example_format: str) -> None:
        """Raises `UserError` for an example format that lacks what the losses need."""
        if example_format not in self.example_formats:
            raise UserError(
                f"objective.name={self.group.rpartition('.')[2]} needs data.example_format to be one of "
                f"{', '.join(self.example_formats)}, not {example_format!r}"
            )

    def check_batch_size(self, key: str, batch_size: int, microbatches: int) -> None:
        """Raises `UserError` when a batch cannot be divided.

        Args:
            key: name of the key, for the message.
            batch_size: sequences per batch.
            microbatches: microbatches per batch.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairObjectiveConfig(ObjectiveConfig):
    """Config of an objective of tokens that also classifies pairs of segments where the text comes in pairs.

    Attributes:
        example_format: `data.example_format`.
    """

    example_format: str = "block"
    pair_weight: float = phase_setting(
        1.0,
        help="Factor of the mean loss of sentence pairs: does the second segment follow the first "
        "(data.example_format=nsp_pairs), are they in order (sop_pairs); 0 = no such head.",
        at_least=0.0,
    )

    @property
    def sentence_objective(self) -> str:
        """The classification of the pairs, in words of a model card; "" where there is none."""
        return SENTENCE_OBJECTIVES.get(self.example_format, "") if self.pair_weight else ""
