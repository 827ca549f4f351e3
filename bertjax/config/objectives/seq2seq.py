"""Config of sequence-to-sequence learning. Needs no jax."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from bertjax.config.fields import setting
from bertjax.config.objectives.base import ObjectiveConfig


@dataclasses.dataclass(frozen=True)
class Seq2SeqConfig(ObjectiveConfig, group="objective.seq2seq"):
    """Sequence-to-sequence learning: a decoder predicts every token of a target from the source and the tokens before.

    Its batches have `target_ids`, which no example format of a corpus makes.
    """

    title = "sequence-to-sequence learning"
    objective_class = "bertjax.objectives.seq2seq:SequenceToSequence"
    uses = ()
    example_formats = ()
    loss_titles: ClassVar[dict[str, str]] = {"seq2seq": "Target tokens"}
    needs_mask_token = False

    label_smoothing: float = setting(
        0.1,
        at_least=0.0,
        below=1.0,
        phase=True,
        help="Probability that the loss gives to all other tokens together (arXiv:1706.03762: 0.1); 0: none.",
    )
