"""What the training step asks of an objective. One loss per file; all of it pure."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
from jaxtyping import Array

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.masking import ObjectiveConfig
from bertjax.types import Batch, Params, Sum

Key = Array


class Extra(NamedTuple):
    """What an objective is given beside its parameters.

    `frozen` is passed to the step undonated and never optimised (a teacher); `carry` belongs to the train state and its
    checkpoints (a memory): a tree of arrays whose first axis is the rows of the batch, {} where nothing is carried.
    """

    frozen: Any
    carry: Any


class Network(NamedTuple):
    """One of an objective's networks, that can be exported and looked at by itself."""

    config: EncoderConfig
    heads: tuple[str, ...]


class Pass(NamedTuple):
    """Tokens going through a network, for counting FLOPs.

    For each token of the batch, `tokens` go through it and `predicted` are scored against the vocabulary; `trained`
    says whether there is a backward pass.
    """

    config: EncoderConfig
    predicted: float
    tokens: float = 1.0
    trained: bool = True


class Objective(Protocol):
    """A pretraining objective that owns its networks and heads.

    The step minimises the sum over `weights` of weight * value / max(count, 1), with the counts of the whole global
    batch taken first, so that microbatches and devices simply add. `networks` are named; the first is what an export
    holds unless another is asked for. `passes` tell what a token of the batch costs.
    """

    weights: dict[str, float]
    networks: dict[str, Network]

    @property
    def config(self) -> ObjectiveConfig:
        """What it was told."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """What a token of the batch goes through."""

    def init(self, key: Key) -> Params:
        """Fresh parameters."""

    def new_carry(self, rows: int) -> Any:
        """What is carried into the first batch of `rows` rows; {} where nothing is."""

    def network_params(self, params: Params, name: str) -> Params:
        """The parameters of one of `networks`, complete, as `bind` wants them."""

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Hides what is to be predicted, on the whole global batch; `key` is the run's, the cursor folded in here."""

    def counts(self, batch: Batch) -> dict[str, Array]:
        """The denominators of every weighted loss, known without a forward pass."""

    def loss(self, params: Params, extra: Extra, batch: Batch, key: Key, train: bool) -> tuple[dict[str, Sum], Any]:
        """Sums of the weighted losses and of whatever else is worth showing, and the new carry.

        `train=False` means no dropout.
        """


def example_keys(key: Key, batch: Batch) -> Array:
    """A key for every example [B, E]: its identity folded into `key`, whatever row or device it stands on."""
    return jax.vmap(jax.vmap(lambda identity: jax.random.fold_in(key, identity)))(batch["example_ids"])


def encoder_inputs(batch: Batch) -> Batch:
    """What every encoder reads of a batch."""
    return {name: batch[name] for name in ("input_ids", "segment_ids", "position_ids", "token_type_ids")}
