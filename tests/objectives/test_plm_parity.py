"""The permutation loss, its gradient and the memory against transformers' XLNet."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plm_lab import CLS, CONFIG, SEP, B, R, Rows, S, corrupted, drawn_rows, losses

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bertjax.hf.keymap import params_to_tensors  # noqa: E402
from bertjax.hf.keymaps import FAMILIES  # noqa: E402
from bertjax.hf.pretrained import load_pretrained  # noqa: E402
from bertjax.objectives.plm.permutation import permutation_ranks  # noqa: E402
from bertjax.types import Vocabulary  # noqa: E402


def their_model(folder: Path, seed: int = 0) -> Any:
    """Saves a random XLNet of transformers."""
    sizes = {"vocab_size": 200, "d_model": 12, "n_layer": 2, "n_head": 3, "d_inner": 14, "ff_activation": "gelu_new"}
    model = transformers.XLNetLMHeadModel(
        transformers.XLNetConfig(**sizes, mem_len=16, reuse_len=R, bi_data=True, dropout=0.0)
    )
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.eval().save_pretrained(folder)
    return model


def their_inputs(batch: Rows) -> dict[str, Any]:
    functional = jnp.isin(batch["input_ids"], jnp.asarray([CLS, SEP]))
    present = np.asarray(batch["masked_weights"]) > 0
    arrays = {
        "input_ids": np.asarray(batch["input_ids"]).astype(np.int64),
        "token_type_ids": np.asarray(batch["token_type_ids"]).astype(np.int64),
        "perm_mask": 1.0 - np.asarray(permutation_ranks(batch["prediction_order"], functional, (R, R)).visible()),
        "target_mapping": np.eye(S)[np.asarray(batch["masked_positions"])] * present[..., None],
        "labels": np.where(present, np.asarray(batch["masked_ids"]), -100),
    }
    wide = ("perm_mask", "target_mapping")
    return {
        name: torch.tensor(array, dtype=torch.float32 if name in wide else torch.int64)
        for name, array in arrays.items()
    }


@pytest.mark.long
def test_loss_and_gradient_are_those_of_transformers(vocabulary: Vocabulary, tmp_path: Path) -> None:
    """`XLNetLMHeadModel` with our order and targets, over three batches with a memory, half of the rows backwards."""
    theirs = their_model(tmp_path)
    ours = load_pretrained(tmp_path)
    plain = dataclasses.replace(vocabulary, padded_size=vocabulary.size)
    objective = CONFIG.build({"model": ours.config}, plain)
    run = losses(objective)
    carry, mems = objective.init_carry(B), [torch.zeros(16, B, 12) for _ in range(2)]
    for step in range(3):
        batch = corrupted(objective, drawn_rows(step, backward=True), step)
        theirs.zero_grad()
        out = theirs(**their_inputs(batch), mems=mems, use_mems=True)
        out.loss.backward()
        mems = out.mems
        (value, (_, carry)), gradient = run(ours.params, carry, batch)
        count = float(objective.counts(batch)["plm"])
        np.testing.assert_allclose(value / count, out.loss.item(), rtol=2e-5)
        expected = np.stack([layer.numpy() for layer in mems]).transpose(2, 0, 1, 3)
        np.testing.assert_allclose(carry["memory"], expected, atol=2e-5)
        table = FAMILIES["xlnet"].make_keymap(ours.config)
        result = params_to_tensors(table, jax.device_get(gradient), ours.config, ours.heads)
        for name, parameter in theirs.named_parameters():
            reference = parameter.grad.numpy()
            np.testing.assert_allclose(
                result[name] / count, reference, atol=2e-5 * max(np.abs(reference).max(), 0.1), err_msg=name
            )
