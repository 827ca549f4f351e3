"""The loss and its gradient in every parameter are those of torch for the same weights, masks and labels."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.hub.keymap import to_huggingface
from bertjax.hub.keymaps import FAMILIES
from bertjax.hub.load import load_pretrained
from bertjax.objectives.base import Extra
from bertjax.objectives.config import MaskingConfig, MlmConfig
from bertjax.objectives.mlm import MaskedLanguageModel
from bertjax.training.step import weighted_loss
from bertjax.types import Vocabulary

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB, ROWS, LENGTH = 61, 4, 12


def masked_batch() -> dict[str, np.ndarray]:
    """Rows of two segments, one of them padded, each with three predictions, one row with two."""
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
    return {
        "input_ids": np.where(segments > 0, hidden, 0),
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


def test_loss_and_gradients_are_torchs(tmp_path: Path) -> None:
    sizes = dict(hidden_size=36, num_hidden_layers=3, num_attention_heads=3, intermediate_size=50)
    config = transformers.BertConfig(vocab_size=VOCAB, max_position_embeddings=16, initializer_range=0.2, **sizes)
    torch.manual_seed(0)
    theirs = transformers.BertForPreTraining(config).eval()
    theirs.save_pretrained(tmp_path)
    ours, batch = load_pretrained(tmp_path), jax.tree.map(jnp.asarray, masked_batch())

    labels = np.full((ROWS, LENGTH), -100)
    for row, column in zip(*np.nonzero(batch["masked_weights"]), strict=True):
        labels[row, batch["masked_positions"][row, column]] = batch["masked_ids"][row, column]
    tensors = {
        name: torch.tensor(np.asarray(batch[name])).long() for name in ("input_ids", "token_type_ids", "segment_ids")
    }
    expected = theirs(
        tensors["input_ids"],
        attention_mask=tensors["segment_ids"],
        token_type_ids=tensors["token_type_ids"],
        labels=torch.tensor(labels),
        next_sentence_label=torch.tensor(np.asarray(batch["pair_labels"])).long(),
    ).loss
    expected.backward()

    ones = np.ones(VOCAB, bool)
    vocabulary = Vocabulary(VOCAB, VOCAB, 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), ones, ones.astype(np.int64))
    objective = MaskedLanguageModel(MlmConfig(MaskingConfig()), ours.config, vocabulary)

    def loss(params: dict) -> jax.Array:
        sums, _ = objective.loss(params, Extra({}, {}), batch, jax.random.key(0), train=False)
        return weighted_loss(sums, objective.counts(batch), objective.weights)

    value, gradient = jax.jit(jax.value_and_grad(loss))(ours.params)
    np.testing.assert_allclose(float(value), expected.item(), rtol=1e-6)
    found = to_huggingface(FAMILIES["bert"].keymap, jax.device_get(gradient), ours.config, ours.heads)
    named = dict(theirs.named_parameters())
    assert set(found) == set(named)
    for name, ours_gradient in found.items():
        expected_gradient = named[name].grad.numpy()
        if name == "bert.embeddings.word_embeddings.weight":  # torch leaves the padding row out of the gradient
            ours_gradient, expected_gradient = ours_gradient[1:], expected_gradient[1:]
        scale = max(np.abs(expected_gradient).max(), 1e-2)  # that of a key bias is zero but for rounding
        np.testing.assert_allclose(ours_gradient, expected_gradient, atol=2e-5 * scale, rtol=1e-4, err_msg=name)
