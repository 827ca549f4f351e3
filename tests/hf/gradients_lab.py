"""Compares a loss and its gradient in every parameter with torch; shared by the gradient tests of the families.

A test makes a small `transformers` model, loads it with `loaded`, computes the same loss on both sides, and calls
`assert_same_gradients`. For masked words, alone or with a pair label, both losses are defined here:

    theirs = perturbed(transformers.AlbertForPreTraining(config))
    ours, batch = loaded(theirs, tmp_path), masked_batch()
    expected = theirs(**torch_inputs(batch), labels=torch_labels(batch), sentence_order_label=pair_labels(batch)).loss
    assert_same_gradients(ours, theirs, masked_lm_loss(ours, batch), expected)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.hf.keymap import params_to_tensors
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.pretrained import PretrainedModel, load_pretrained
from bertjax.objectives.base import StepInputs
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.mlm import Mlm
from bertjax.training.step import weighted_loss
from bertjax.types import Params, Vocabulary

torch = pytest.importorskip("torch")

VOCAB, ROWS, LENGTH = 61, 4, 12
Loss = Callable[[Params], jax.Array]


def masked_batch(pad_id: int = 0) -> dict[str, jax.Array]:
    """Returns rows of two segments, one of them padded, each with three predictions, one row with two."""
    draw = np.random.default_rng(0)
    ids = draw.integers(5, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    segments = np.ones_like(ids)
    segments[1, 9:] = 0
    positions = np.sort(np.stack([draw.permutation(np.arange(1, 9))[:3] for _ in range(ROWS)]), axis=1).astype(np.int32)
    weights = np.ones((ROWS, 3), np.float32)
    weights[2, 2] = 0.0
    original = np.take_along_axis(ids, positions, axis=1)
    hidden = ids.copy()
    np.put_along_axis(hidden, positions, 4, axis=1)
    hidden[2, positions[2, 2]] = ids[2, positions[2, 2]]
    batch = {
        "input_ids": np.where(segments > 0, hidden, pad_id),
        "segment_ids": segments,
        "position_ids": np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1)),
        "token_type_ids": np.where((np.arange(LENGTH) >= 6) & (segments > 0), 1, 0).astype(np.int32),
        "masked_positions": positions,
        "masked_ids": original,
        "masked_weights": weights,
        "example_positions": np.zeros((ROWS, 1), np.int32),
        "example_weights": np.ones((ROWS, 1), np.float32),
        "pair_labels": np.array([[0], [1], [1], [0]], np.int32),
    }
    return jax.tree.map(jnp.asarray, batch)


def torch_inputs(batch: dict[str, jax.Array], token_types: bool = True) -> dict[str, Any]:
    """Returns `input_ids`, `attention_mask` and, if the model has any, `token_type_ids`."""
    inputs = {"input_ids": _tensor(batch["input_ids"]), "attention_mask": _tensor(batch["segment_ids"])}
    return inputs | ({"token_type_ids": _tensor(batch["token_type_ids"])} if token_types else {})


def torch_labels(batch: dict[str, jax.Array]) -> Any:
    """Returns [B, S], -100 at positions without a prediction."""
    labels = np.full(batch["input_ids"].shape, -100)
    for row, column in zip(*np.nonzero(np.asarray(batch["masked_weights"])), strict=True):
        labels[row, batch["masked_positions"][row, column]] = batch["masked_ids"][row, column]
    return torch.tensor(labels)


def pair_labels(batch: dict[str, jax.Array]) -> Any:
    return _tensor(batch["pair_labels"])


def perturbed(theirs: Any, scale: float = 0.08, seed: int = 0) -> Any:
    """Returns the model without dropout, with random biases and norms: zeros could mask a wrong gradient."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * scale)
    return theirs.eval()


def loaded(theirs: Any, folder: Path) -> PretrainedModel:
    theirs.save_pretrained(folder)
    return load_pretrained(folder)


def masked_lm_loss(ours: PretrainedModel, batch: dict[str, jax.Array]) -> Loss:
    """Returns the mean over masked words plus, if the model has a pair head, the mean over pairs."""
    ones = np.ones(VOCAB, bool)
    vocabulary = Vocabulary(VOCAB, VOCAB, 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), ones, ones.astype(np.int64))
    config = Mlm(Masking(), example_format="nsp_pairs" if "pair" in ours.heads else "block")
    objective = config.build({"model": ours.config}, vocabulary)

    def loss(params: Params) -> jax.Array:
        sums, _ = objective.loss(params, StepInputs({}, {}), batch, jax.random.key(0), train=False)
        return weighted_loss(sums, objective.counts(batch), objective.loss_weights)

    return loss


def assert_same_gradients(
    ours: PretrainedModel, theirs: Any, loss: Loss, expected: Any, tolerance: float = 5e-5
) -> dict[str, float]:
    """`loss` of our parameters is the torch scalar `expected`, and so are all gradients; returns the gaps by name.

    A gap is relative to the largest gradient of its tensor, or to 0.01 where all are smaller (that of a key's bias is
    zero but for rounding). Rows that torch keeps out of a table's gradient (`padding_idx`) are not compared.
    """
    expected.backward()
    with jax.default_matmul_precision("float32"):
        value, gradient = jax.jit(jax.value_and_grad(loss))(ours.params)
    np.testing.assert_allclose(float(value), expected.item(), rtol=1e-6)
    result = _named(ours, gradient)
    reference = {name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.grad is not None}
    assert set(result) == set(reference)
    gaps = {}
    for name, mine in result.items():
        rows = _compared_rows(theirs, name, mine.shape[0])
        mine, yours = mine[rows], reference[name].numpy()[rows]
        gaps[name] = float(np.abs(mine - yours).max() / max(np.abs(yours).max(), 1e-2))
    worst = max(gaps, key=gaps.__getitem__)
    assert gaps[worst] <= tolerance, (worst, gaps[worst])
    return gaps


def _named(ours: PretrainedModel, gradient: Params) -> dict[str, np.ndarray]:
    keymap = FAMILIES[ours.config.family].make_keymap(ours.config)
    return params_to_tensors(keymap, jax.device_get(gradient), ours.config, ours.heads)


def _compared_rows(theirs: Any, name: str, rows: int) -> np.ndarray:
    module = theirs.get_submodule(name.rpartition(".")[0])
    padding = getattr(module, "padding_idx", None)
    return np.array([row for row in range(rows) if row != padding])


def _tensor(array: jax.Array) -> Any:
    return torch.tensor(np.asarray(array)).long()
