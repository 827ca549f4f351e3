"""ESM: rounded rotations, token dropout in packed rows, contacts, round trips, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import PRESETS, preset
from bertjax.errors import UserError
from bertjax.hf import save as save_module
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.pretrained import load_pretrained
from bertjax.models.embeddings import drop_tokens

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["esm"]
SIZES = dict(vocab_size=33, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20)
VALUES = SIZES | dict(pad_token_id=1, mask_token_id=32, position_embedding_type="rotary", token_dropout=True)
ROTATION = "rotary_embeddings.inv_freq"
OTHER_NAMES = {"gamma": "weight", "beta": "bias", "encoder.layer.*.attention.self.": ""}  # version 5 writes old names


@pytest.fixture(autouse=True)
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)


def folder_of(tmp_path: Path, **changes: Any) -> Path:
    torch.manual_seed(0)
    transformers.EsmForMaskedLM(transformers.EsmConfig(**VALUES | changes)).save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def change_tensors(folder: Path, change: Any) -> dict[str, np.ndarray]:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


@pytest.mark.parametrize("rounding", ["float16", "bfloat16"])
def test_rounded_rotations_are_kept(rounding: str, tmp_path: Path) -> None:
    """At position 300 they turn by another angle."""
    folder = folder_of(tmp_path)

    def round_rotation(tensors: dict[str, np.ndarray]) -> None:
        (name,) = (each for each in tensors if each.endswith(ROTATION))
        rates = tensors.pop(name).astype(jnp.dtype(rounding)).astype(np.float32)
        of_layer = "esm.encoder.layer.{}.attention.self.rotary_embeddings.inv_freq"  # as in files before version 5
        tensors |= {of_layer.format(layer): rates.copy() for layer in range(2)}

    change_tensors(folder, round_rotation)
    ours = load_pretrained(folder)
    assert ours.config.rope_rounding == rounding
    ours.save_pretrained(tmp_path / "ours", dtype="bfloat16")
    assert load_pretrained(tmp_path / "ours").config == ours.config  # the table is not rounded again
    ours.save_pretrained(tmp_path / "exact")
    ids = np.random.default_rng(0).integers(4, 30, (1, 300))
    actual = np.asarray(ours(ids).mlm_logits)
    for each in (folder, tmp_path / "exact"):
        model = transformers.EsmForMaskedLM.from_pretrained(each).eval()
        with torch.no_grad():
            np.testing.assert_allclose(actual, model(torch.from_numpy(ids)).logits.numpy(), atol=2e-5)


def test_another_rotation_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    change_tensors(
        folder, lambda tensors: [np.multiply(tensors[n], 1.01, out=tensors[n]) for n in tensors if ROTATION in n]
    )
    with pytest.raises(
        UserError, match=r"model\.safetensors: esm\..*rotary_embeddings\.inv_freq is not 1 / rope_theta"
    ):
        load_pretrained(folder)


def test_a_file_survives_byte_for_byte(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    load_pretrained(folder).save_pretrained(tmp_path / "ours")
    contents = []
    for each in (folder, tmp_path / "ours"):
        tensors = load_file(each / "model.safetensors")
        for old, new in OTHER_NAMES.items():
            tensors = {name.replace(old, new): array for name, array in tensors.items()}
        contents.append({name: array.tobytes() for name, array in tensors.items()})
    assert contents[0] == contents[1]


def test_masks_count_in_their_own_example() -> None:
    masked = np.array([[0, 1, 0, 0, 0, 0, 1, 0], [1, 1, 0, 0, 0, 0, 0, 0]], bool)
    segments = np.array([[1, 1, 1, 1, 2, 2, 2, 0], [1, 1, 0, 0, 0, 0, 0, 0]])
    scales = np.asarray(drop_tokens(jnp.ones((2, 8, 1)), jnp.asarray(masked), jnp.asarray(segments)))[:, :, 0]
    np.testing.assert_allclose(scales[0, :7], 0.88 * np.array([4 / 3, 0, 4 / 3, 4 / 3, 1.5, 1.5, 0]), rtol=1e-6)
    assert np.isfinite(scales).all() and not scales[1, :2].any()  # `transformers` divides by zero
    alone = np.asarray(drop_tokens(jnp.ones((2, 8, 1)), jnp.asarray(masked), None))[:, :, 0]
    np.testing.assert_allclose(alone[0, 0], 0.88 * 8 / 6, rtol=1e-6)


REFUSED = [
    ({"pad_token_id": None}, "pad_token_id = null"),
    ({"is_folding_model": True}, "is_folding_model = True is not supported: structures"),
    ({"position_embedding_type": "relative_key"}, "positions are absolute or rotary"),
    ({"mask_token_id": None}, "mask_token_id must be a number: token_dropout"),
    ({"vocab_list": "x"}, "vocab_list must be a list"),
    ({"position_embedding_type": "absolute", "max_position_embeddings": 2}, "2 rows leave none"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FAMILY.parse_config(VALUES | changes)


def test_contacts_need_their_head(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    change_tensors(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if "contact" in name])
    with pytest.raises(UserError, match="the model has no contact head; its heads are mlm"):
        load_pretrained(folder).predict_contacts([[0, 5, 6, 2]])


@pytest.mark.parametrize("name", [name for name, values in PRESETS.items() if values.get("family") == "esm"])
def test_presets_are_held_by_every_class(name: str) -> None:
    config = EncoderConfig(vocab_size=33, **preset(name))
    for architecture, heads in FAMILY.architectures.items():
        plan = plan_export(config, heads)
        assert (plan.architecture, plan.has_sidecar, plan.unsupported) == (architecture, False, ())
        assert FAMILY.parse_config(json.loads(json.dumps(plan.config_json))) == config
    half = EncoderConfig(vocab_size=33, **preset(name) | {"embedding_norm": "after"})
    assert plan_export(half, ("mlm",)).family is None


def test_a_model_without_contacts_is_written_with_zeros(tmp_path: Path) -> None:
    """`transformers` would draw random ones; they are read as none."""
    folder = folder_of(tmp_path)
    change_tensors(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if "contact" in name])
    load_pretrained(folder).save_pretrained(tmp_path / "ours")
    assert load_pretrained(tmp_path / "ours").heads == ("mlm",)
    model, info = transformers.EsmForMaskedLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()) and not model.esm.contact_head.regression.weight.any()
