"""What the training step asks of an objective. One loss per file; all of it pure."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
from jaxtyping import Array

from bertjax.types import Batch, Params, Sum

Key = Array


class Extra(NamedTuple):
    """What an objective keeps beside its parameters.

    `frozen` is passed to the step undonated and never optimised (a teacher, a frequency table); `carry` belongs to
    the train state and its checkpoints (a memory).
    """

    frozen: Any
    carry: Any


class Objective(Protocol):
    """A pretraining objective that owns its networks and heads.

    The step minimises the sum over `weights` of weight * value / max(count, 1), with the counts of the whole global
    batch taken first, so that microbatches and devices simply add.
    """

    weights: dict[str, float]

    def init(self, key: Key) -> tuple[Params, Extra]:
        """Fresh parameters and extra."""

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Hides what is to be predicted, on the whole global batch; `key` is the run's, the cursor folded in here."""

    def counts(self, batch: Batch) -> dict[str, Array]:
        """The denominators of every weighted loss, known without a forward pass."""

    def loss(self, params: Params, extra: Extra, batch: Batch, key: Key, train: bool) -> tuple[dict[str, Sum], Extra]:
        """Sums of the weighted losses and of whatever else is worth showing; `train=False` means no dropout."""


def example_keys(key: Key, batch: Batch) -> Array:
    """A key for every example [B, E]: its identity folded into `key`, whatever row or device it stands on."""
    return jax.vmap(jax.vmap(lambda identity: jax.random.fold_in(key, identity)))(batch["example_ids"])
