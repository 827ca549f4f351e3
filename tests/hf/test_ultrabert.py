"""UltraBERT: config.json and names of published folders, round trips, the head of two layers, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf import save as save_module
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.pretrained import load_pretrained
from bertjax.models.model import abstract_params
from bertjax.training.flops import flops_per_token

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["ultrabert"]
SIZES = dict(vocab_size=50, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=20)
GLOBAL, LOCAL = "full_attention", "sliding_attention"
# As published: a window, or none, and a base for each layer, and code of the authors
OLD = {"attention_windows": [3, 3, None, 3], "rope_theta": [30.0, 30.0, 90.0, 30.0]}
CODE = {"auto_map": {"AutoModel": "modeling.Model"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)
    torch.manual_seed(0)
    config = transformers.UltrabertConfig(**SIZES, **OLD, prediction_head_size=7)
    transformers.UltrabertForMaskedLM(config).save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def test_a_folder_comes_back_byte_for_byte(folder: Path, tmp_path: Path) -> None:
    load_pretrained(folder).save_pretrained(tmp_path / "ours")
    theirs, ours = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "ours"))
    assert ours.keys() == theirs.keys() and {"cls.weight", "ultrabert.norm.weight"} <= ours.keys()
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in theirs)
    values, written = (json.loads((each / "config.json").read_text()) for each in (folder, tmp_path / "ours"))
    assert {key: values[key] for key in written if not key.endswith("os_token_id")} == {
        key: value for key, value in written.items() if not key.endswith("os_token_id")
    }


def test_published_keys_and_names_of_modules_are_read(folder: Path) -> None:
    expected = load_pretrained(folder)
    values = json.loads((folder / "config.json").read_text())
    del values["layer_types"], values["rope_parameters"], values["sliding_window"]
    (folder / "config.json").write_text(json.dumps(values | OLD | CODE))
    tensors = {
        name.replace("ultrabert.", "model.").replace("cls.", "head.decoder."): array
        for name, array in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model = load_pretrained(folder)
    assert model.config == expected.config
    config = model.config
    assert (config.local_attention, config.global_attn_every_n_layers, config.first_global_layer) == (6, 3, 2)
    assert (config.local_rope_theta, config.global_rope_theta, config.prediction_head_size) == (30.0, 90.0, 7)
    theirs = transformers.UltrabertForMaskedLM.from_pretrained(folder).eval()
    ids = np.random.default_rng(0).integers(1, 50, (2, 13))
    with torch.no_grad():
        logits = theirs(torch.from_numpy(ids)).logits.numpy()
    np.testing.assert_allclose(model(ids).mlm_logits, logits, atol=2e-5)


def test_defaults_are_those_of_the_class() -> None:
    config = FAMILY.parse_config(SIZES | {"num_hidden_layers": 7})
    theirs = transformers.UltrabertConfig(**SIZES | {"num_hidden_layers": 7})
    assert [LOCAL if config.is_local(layer) else GLOBAL for layer in range(7)] == theirs.layer_types
    assert config.local_rope_theta == theirs.rope_parameters[LOCAL]["rope_theta"]
    assert config.global_rope_theta == theirs.rope_parameters[GLOBAL]["rope_theta"]
    assert (config.local_attention, config.pooling) == (2 * theirs.sliding_window, "first")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"attention_windows": [3, 3, None, 4]}, "attention_windows must have one window, or none, for each of 4 layers"),
    ({"attention_windows": [3, None]}, "attention_windows must have one window"),
    ({"attention_windows": 3}, "attention_windows must have one window"),
    ({"sliding_window": 0}, "sliding_window must be at least 1, not 0"),
    ({"rope_theta": [30.0, 31.0, 90.0, 30.0]}, "rope_theta has several bases for layers of a kind"),
    ({"rope_theta": 30.0}, "rope_theta must be a list with a base for each of 4 layers"),
    ({"rope_parameters": {"rope_theta": 30.0}}, "must be tables for full_attention and sliding_attention"),
    ({"rope_parameters": {GLOBAL: {"rope_theta": 30.0}}}, "must have a positive rope_theta for sliding_attention"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling = .* is not supported"),
    ({"layer_types": [GLOBAL, LOCAL, LOCAL, GLOBAL, LOCAL]}, "layer_types must name"),
    ({"layer_types": [LOCAL, GLOBAL, GLOBAL, LOCAL]}, "layer_types must have full_attention in every n-th layer"),
    ({"classifier_pooling": "late"}, "known are cls and mean"),
    ({"num_attention_heads": 3}, "hidden_size 16 is not a multiple of num_attention_heads 3"),
    ({"prediction_head_size": 0}, "prediction_head_size must lie in"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_other_maths_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FAMILY.parse_config(SIZES | changes)


def test_any_model_can_have_a_head_of_two_layers() -> None:
    sizes: dict[str, Any] = {"vocab_size": 50, "hidden_size": 8, "num_heads": 2, "embedding_size": 6}
    one, two = (EncoderConfig(**sizes, mlm_head=kind, prediction_head_size=5) for kind in ("transform", "two_layers"))
    shapes = abstract_params(two, ("mlm",))["mlm_head"]
    assert shapes["dense"]["kernel"].shape == (8, 5) and shapes["second"]["kernel"].shape == (5, 6)
    assert shapes.keys() == {"dense", "second", "bias"}
    assert flops_per_token(two, 1.0, 1.0) - flops_per_token(one, 1.0, 1.0) == 6.0 * (8 * 5 + 5 * 6 - 8 * 6)


def test_a_head_of_another_kind_is_not_written_as_this_class() -> None:
    config = FAMILY.parse_config(SIZES)
    assert plan_export(config, ("mlm",)).architecture == "UltrabertForMaskedLM"
    another = EncoderConfig(**{**vars(config), "mlm_head": "bias"})
    plan = plan_export(another, ("mlm",))
    assert plan.family is None and "mlm_head" in " ".join(plan.unsupported)
