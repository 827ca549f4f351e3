"""Parity cases: a model of unusual sizes, its classes and its inputs. Imported without torch or jax."""

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

    Both functions take the model and the batch (`input_ids`, `attention_mask` and, where the model has types,
    `token_type_ids`, numpy int64 [B, S]) and return named arrays; equal names are compared.

    Args:
        name: prefix of the compared quantities.
        transformers: (model of `transformers`, batch) -> arrays.
        bertjax: (PretrainedModel, batch) -> arrays.
    """

    name: str
    transformers: Callable[[Any, Arrays], Arrays]
    bertjax: Callable[[Any, Arrays], Arrays]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A configuration of a family and the classes of `transformers` that are compared in it.

    Args:
        family: name of the family in the table: "bert", "roberta", ...
        name: what is unusual: "3 heads of 20, tanh GELU"; unique in the family.
        config_class: class of `transformers`.
        config: its keyword arguments.
        classes: model classes of `transformers`.
        tolerance: largest absolute difference of hidden states and logits.
        batch_size: 1, or at least 3.
        seq_len: None = 17, or the number of positions if that is smaller.
        num_token_types: for drawing `token_type_ids`; None = `type_vocab_size`, 0 = without this input.
        left_padding: also compares padding on the left.
        compare_padding: False where outputs at padding are arbitrary in `transformers`; the case says why.
        reads_padding: True where other outputs of `transformers` depend on padding: its rows are run without.
        states_per_layer: hidden states of `transformers` per layer of bertjax; the last of each is compared.
        unwritten: keys of config.json that this version of `transformers` reads but does not write, or not as it read
            them; the case says why.
        calls: further calls.
        eos_id: id of the last real token of every row, which is drawn nowhere else; None = no such token.
        written_as: (beginning of a class, another): bertjax writes the class with that beginning instead.
        zero_pad: the row of padding in the word table is zero, as `transformers` draws it.
    """

    family: str
    name: str
    config_class: str
    config: Mapping[str, Any]
    classes: tuple[str, ...]
    tolerance: float = TOLERANCE
    batch_size: int = 3
    seq_len: int | None = None
    num_token_types: int | None = None
    left_padding: bool = False
    compare_padding: bool = True
    reads_padding: bool = False
    states_per_layer: int = 1
    unwritten: tuple[str, ...] = ()
    calls: tuple[ExtraCall, ...] = ()
    eos_id: int | None = None
    written_as: tuple[str, str] = ("", "")
    zero_pad: bool = False

    @property
    def paddings(self) -> tuple[str, ...]:
        """Paddings that are compared: none, and the sides on which tokens are added."""
        return ("none", "right", "left") if self.left_padding else ("none", "right")


def draw_batch(
    case: Case, padding: str, vocab_size: int, max_length: int, num_token_types: int, pad_id: int, seed: int = 1
) -> Arrays:
    """Draws random ids, int64 [B, S]; of the first three sequences none, about half and all but one token are padding.

    The pad id occurs at padding only: some families compute positions from it.

    Args:
        case: shapes.
        padding: none, right or left.
        vocab_size: upper bound of the ids.
        max_length: upper bound of the default length.
        num_token_types: 0 = no `token_type_ids`.
        pad_id: negative = none.
        seed: seed of the draws.
    """
    draw = np.random.default_rng(seed).integers
    length = min(17, max_length) if case.seq_len is None else case.seq_len
    ids = draw(0, vocab_size - 1, (case.batch_size, length))
    ids += (ids >= pad_id) & (pad_id >= 0)
    mask = np.ones(ids.shape, np.int64)
    half = max(1, (length + 1) // 2)
    lengths = (length, half, 1) if case.batch_size > 1 else (half,)
    for index, real in enumerate(lengths if padding != "none" else ()):
        mask[index, slice(real, None) if padding == "right" else slice(0, length - real)] = 0
    if case.eos_id is not None:
        ids[ids == case.eos_id] = (max(pad_id, case.eos_id) + 1) % vocab_size
        np.put_along_axis(ids, mask.cumsum(axis=1).argmax(axis=1)[:, None], case.eos_id, axis=1)
    batch = {"input_ids": np.where(mask > 0, ids, max(pad_id, 0)), "attention_mask": mask}
    if num_token_types:
        batch["token_type_ids"] = draw(0, num_token_types, ids.shape)
    return batch


def draw_target(case: Case, padding: str, vocab_size: int) -> Arrays:
    """Draws inputs of a decoder, padded as the source, but of another length.

    Args:
        case: shapes.
        padding: none, right or left.
        vocab_size: upper bound of the ids.
    """
    target = draw_batch(dataclasses.replace(case, seq_len=13), padding, vocab_size, 13, 0, 0, seed=2)
    return {f"decoder_{name}": array for name, array in target.items()}
