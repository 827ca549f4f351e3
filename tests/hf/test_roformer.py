"""RoFormer: the table of positions in its files, the summary of a choice, long texts, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from round_trip_lab import assert_comes_back
from safetensors.numpy import load_file, save_file

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.errors import UserError
from bertjax.hf import save as save_module
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.pretrained import load_pretrained

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["roformer"]
SIZES = dict(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20)
TABLE = "roformer.encoder.embed_positions.weight"
CHOICE = {"architectures": ["RoFormerForMultipleChoice"], "summary_type": "first"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)
    torch.manual_seed(0)
    config = transformers.RoFormerConfig(**SIZES, max_position_embeddings=700)
    transformers.RoFormerForMaskedLM(config).save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def test_a_folder_comes_back_byte_for_byte(folder: Path) -> None:
    assert TABLE in assert_comes_back(folder)[1]


def test_long_texts_are_rotated_as_by_the_table(folder: Path) -> None:
    """Angles in single precision differ from those of the table by some 1e-5 at position 600."""
    ids = np.random.default_rng(0).integers(1, 50, (1, 650))
    model = transformers.RoFormerModel.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).last_hidden_state.numpy()
    np.testing.assert_allclose(load_pretrained(folder)(ids).last_hidden_state, expected, atol=2e-5)


def test_another_table_is_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[TABLE] = tensors[TABLE] + np.float32(1e-3)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"{TABLE} is not the table that bertjax computes"):
        load_pretrained(folder)


REFUSED = [
    ({"architectures": CHOICE["architectures"]}, "summary_type = 'last'.*may be padding"),
    (CHOICE | {"summary_type": "mean"}, "summary_type = 'mean'.*may be padding"),
    (CHOICE | {"summary_use_proj": True}, "summary_use_proj and summary_activation belong together"),
    (CHOICE | {"summary_activation": "tanh"}, "summary_use_proj and summary_activation belong together"),
    (CHOICE | {"summary_proj_to_labels": True}, "summary_proj_to_labels = True is not supported"),
    ({"max_position_embeddings": 10**9}, "max_position_embeddings = 1000000000: a table of more than 65536 rows"),
    ({"rotary_value": "no"}, "rotary_value must be true or false"),
    ({"is_decoder": True}, "only encoders are supported"),
    ({"architectures": ["RoFormerForMaskedLM"], "tie_word_embeddings": False}, "the output table is the word table"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_is_computed_otherwise_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FAMILY.parse_config(SIZES | changes)


def test_only_a_choice_reads_the_summary() -> None:
    assert FAMILY.parse_config(SIZES | {"architectures": ["RoFormerModel"]}).classifier_dense == "own"
    assert FAMILY.parse_config(SIZES | CHOICE).classifier_dense == "none"
    layer = {"summary_use_proj": True, "summary_activation": "gelu_new"}
    config = FAMILY.parse_config(SIZES | CHOICE | layer)
    assert (config.classifier_dense, config.classifier_act, config.pooling) == ("own", "gelu_new", "first")
    written = FAMILY.render_config(config, "RoFormerForMultipleChoice")
    assert {key: written[key] for key in layer} == layer and written["summary_type"] == "first"


@pytest.mark.parametrize("architecture", FAMILY.architectures)
def test_the_preset_is_held_by_every_class(architecture: str) -> None:
    config = EncoderConfig(**preset("roformer-chinese-base"))
    plan = plan_export(config, FAMILY.architectures[architecture])
    assert (plan.architecture, plan.has_sidecar, plan.unsupported) == (architecture, False, ())
    another = EncoderConfig(**preset("roformer-chinese-base") | {"classifier_act": "tanh"})
    plan = plan_export(another, ("sequence_classification",))
    assert plan.family is None and "classifier_act" in " ".join(plan.unsupported)
