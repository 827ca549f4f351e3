"""What every objective's config has in common. Needs no jax, so that a wrong config is refused at once."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from bertjax.config.model import EncoderConfig

TEXT_FORMATS = ("block", "doc_sentences", "full_sentences")
"""Row forms of one segment, in the order of the text."""

SENTENCE_OBJECTIVE_FORMATS = {
    "none": (*TEXT_FORMATS, "nsp_pairs", "sop_pairs"),
    "nsp": ("nsp_pairs",),
    "sop": ("sop_pairs",),
}
"""Which row forms every kind of pair loss can read."""


@runtime_checkable
class ObjectiveConfig(Protocol):
    """What every objective's config can tell before anything is built."""

    def check_example_format(self, form: str) -> None:
        """Raises `UserError` when rows of this form lack what the loss needs."""

    def check_model(self, model: EncoderConfig) -> None:
        """Raises `UserError` for an encoder that cannot learn this."""
