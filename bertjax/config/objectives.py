"""The choice of the objective, the example formats, and facts about objectives by their name.

No other package compares names of objectives: what it needs to know of one is an attribute of `Objective`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.extensions import OBJECTIVES as OBJECTIVES
from bertjax.config.fields import Settings, setting
from bertjax.config.registry import Choices
from bertjax.errors import UserError

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


def objective_class(name: str) -> type[Any]:
    """Returns the class of an objective, the value of `objective.name`; raises `UserError` if there is none."""
    cls: type[Any] = OBJECTIVES.load(name)
    return cls


def loss_titles() -> dict[str, str]:
    """Returns the headings of all losses by name."""
    return {loss: title for config in OBJECTIVES.usable() for loss, title in config.loss_titles.items()}


def require_pretraining(cfg: ConfigDict) -> None:
    """Raises `UserError` for the config of a task: it has no corpus, and that of the defaults is not meant."""
    if objective_class(cfg.objective.name).is_finetuning:
        raise UserError(
            f"objective.name={cfg.objective.name} is finetuning, which reads task.train and no corpus: use `bertjax "
            "finetune`, or the config of an objective of pretraining"
        )
