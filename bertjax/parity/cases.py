"""What is compared with `transformers`: a model of unusual sizes, its classes, its inputs. Needs no torch, no jax."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

TOLERANCE = 2e-5  # float32 sums in another order
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class ExtraCall:
    """A further call of both models on the same batch, for inputs that only some families have.

    Each function gets the model and the batch (`input_ids`, `attention_mask` and, where the model has types,
    `token_type_ids`, numpy int64 [B, S]) and returns named arrays; equal names are compared.

    theirs  (transformers model, batch) -> arrays
    ours    (PretrainedModel, batch) -> arrays
    """

    name: str
    theirs: Callable[[Any, Arrays], Arrays]
    ours: Callable[[Any, Arrays], Arrays]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One configuration of a family and the classes of `transformers` that are compared in it.

    family            what tables group by: "bert", "roberta", ...
    name              what is unusual about it: "3 heads of 20, tanh GELU"; unique in the family
    config_class      class of `transformers`, and its keyword arguments
    classes           model classes of `transformers`
    tolerance         largest absolute difference allowed, of hidden states and logits
    rows              of a batch: 1, or three at least
    length            tokens of a row; None = 17, or the most that the model has positions for
    num_token_types   drawn for `token_type_ids`; None = the config's `type_vocab_size`, 0 = the input is not given
    left_padding      also with padding in front
    compare_padding   False where the outputs at padding are arbitrary in `transformers`: say why beside the case
    states_per_layer  hidden states that `transformers` keeps for one layer of ours; the last of each is compared
    unwritten         keys of config.json that this version of `transformers` reads and does not write: say why
    calls             further calls
    """

    family: str
    name: str
    config_class: str
    config: Mapping[str, Any]
    classes: tuple[str, ...]
    tolerance: float = TOLERANCE
    rows: int = 3
    length: int | None = None
    num_token_types: int | None = None
    left_padding: bool = False
    compare_padding: bool = True
    states_per_layer: int = 1
    unwritten: tuple[str, ...] = ()
    calls: tuple[ExtraCall, ...] = ()

    @property
    def paddings(self) -> tuple[str, ...]:
        return ("none", "right", "left") if self.left_padding else ("none", "right")


def draw_batch(
    case: Case, padding: str, vocab_size: int, max_length: int, num_token_types: int, pad_id: int, seed: int = 1
) -> Arrays:
    """Rows of random ids; the first three full, or with 0, about a half and all but one token of padding; int64 [B, S].

    The pad id stands at padding and nowhere else: some families count positions by it.
    """
    draw = np.random.default_rng(seed).integers
    length = min(17, max_length) if case.length is None else case.length
    ids = draw(0, vocab_size - 1, (case.rows, length))
    ids += (ids >= pad_id) & (pad_id >= 0)
    mask = np.ones(ids.shape, np.int64)
    half = max(1, (length + 1) // 2)
    real = (length, half, 1) if case.rows > 1 else (half,)
    for row, count in enumerate(real if padding != "none" else ()):
        mask[row, slice(count, None) if padding == "right" else slice(0, length - count)] = 0
    batch = {"input_ids": np.where(mask > 0, ids, max(pad_id, 0)), "attention_mask": mask}
    if num_token_types:
        batch["token_type_ids"] = draw(0, num_token_types, ids.shape)
    return batch
