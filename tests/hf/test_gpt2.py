"""GPT-2's config.json, its buffers, and causality."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertjax.errors import UserError
from bertjax.hf.keymaps.gpt2 import FAMILY
from bertjax.hf.pretrained import load_pretrained

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 40, "n_embd": 18, "n_layer": 2, "n_head": 3, "n_positions": 12}


def test_an_inner_size_of_null_is_four_times_the_width() -> None:
    config = FAMILY.parse_config({**SIZES, "n_inner": None})
    assert config.intermediate_size == 72 and FAMILY.render_config(config, "GPT2Model")["n_inner"] is None
    other = FAMILY.parse_config({**SIZES, "n_inner": 5})
    assert other.intermediate_size == 5 and FAMILY.render_config(other, "GPT2Model")["n_inner"] == 5
    assert FAMILY.parse_config(FAMILY.render_config(other, "GPT2Model")) == other


def test_the_end_of_text_pads_where_nothing_else_is_named() -> None:
    assert FAMILY.parse_config({}).pad_token_id == 50256
    assert FAMILY.parse_config({**SIZES, "eos_token_id": 39}).pad_token_id == 39
    assert FAMILY.parse_config({**SIZES, "eos_token_id": 39, "pad_token_id": 4}).pad_token_id == 4
    assert FAMILY.parse_config(SIZES).pad_token_id == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scale_attn_weights": False}, "scale_attn_weights"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"n_inner": "5"}, "n_inner must be a whole number or null"),
        ({"activation_function": "mish"}, "activation_function"),
    ],
)
def test_what_would_change_the_maths_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"config.json: .*{message}"):
        FAMILY.parse_config({**SIZES, **values})


def test_files_of_old_with_masks_and_without_the_prefix(tmp_path: Path) -> None:
    """As in OpenAI's own upload: bare names, the causal mask as a buffer in every layer."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, eos_token_id=39)).eval()
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): array for name, array in load_file(file).items()}
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = np.tril(np.ones((1, 1, 12, 12), np.float32))
        tensors[f"h.{layer}.attn.masked_bias"] = np.asarray(-1e4, np.float32)
    save_file(tensors, file, metadata={"format": "pt"})
    ours = load_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(0, 40, (2, 12))
    with torch.no_grad():
        expected = model(torch.tensor(ids)).logits.numpy()
    assert np.abs(np.asarray(ours(ids).logits) - expected).max() <= 2e-5
    # later tokens change nothing
    later = ids.copy()
    later[:, 7:] = (later[:, 7:] + 1) % 40
    before, after = (np.asarray(ours(each).logits) for each in (ids, later))
    np.testing.assert_allclose(before[:, :7], after[:, :7], atol=1e-6)
    assert np.abs(before[:, 7:] - after[:, 7:]).max() > 1e-3
