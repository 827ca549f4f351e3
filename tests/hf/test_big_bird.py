"""BigBird: sparse attention up to the length at which it is full, the pooler of every class, refusals."""

from __future__ import annotations

import json
import logging
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
from bertjax.hf.pretrained import PretrainedModel, load_pretrained

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["big_bird"]
SIZES: dict[str, Any] = dict(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
SIZES |= dict(intermediate_size=20, max_position_embeddings=40)
TOKENS = dict(bos_token_id=None, eos_token_id=None, sep_token_id=None)
SPARSE = dict(
    attention_type="block_sparse", block_size=3, num_random_blocks=2
)  # (5 + 2 * 2) * 3 tokens are attended to
POSITIONS = "bert.embeddings.position_embeddings.weight"


@pytest.fixture(autouse=True)
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)


def write(folder: Path, architecture: str = "BigBirdForMaskedLM", **values: Any) -> Path:
    torch.manual_seed(0)
    config = transformers.BigBirdConfig(**SIZES | TOKENS | {"attention_type": "original_full"} | values)
    getattr(transformers, architecture)(config).save_pretrained(folder)
    return folder


def test_a_folder_comes_back_byte_for_byte(tmp_path: Path) -> None:
    assert "bert.pooler.weight" in assert_comes_back(write(tmp_path / "theirs"))[1]


@pytest.mark.parametrize("architecture", ["BigBirdForMaskedLM", "BigBirdModel"])
def test_sparse_attention_is_read_up_to_the_length_at_which_it_is_full(
    architecture: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path / "theirs", architecture, **SPARSE)
    with caplog.at_level(logging.WARNING):
        model = load_pretrained(folder)
    assert [each.message.partition(": ")[2] for each in caplog.records] == [
        "attention_type = block_sparse is not supported: of 40 positions the first 27 are read, up to which "
        "transformers attends fully as well"
    ]
    assert model.config.max_position_embeddings == 27
    with pytest.raises(UserError, match="27"):
        model(np.ones((1, 28), np.int64))
    model.save_pretrained(tmp_path / "ours")
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (written["attention_type"], written["max_position_embeddings"]) == ("original_full", 27)
    ids = torch.arange(27)[None]
    with torch.no_grad():
        full, sparse = (
            transformers.BigBirdModel.from_pretrained(each).eval()(ids).last_hidden_state
            for each in (tmp_path / "ours", folder)
        )
    np.testing.assert_array_equal(full.numpy(), sparse.numpy())


def test_short_tables_are_read_whole_and_wrong_ones_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write(tmp_path, **SPARSE | {"max_position_embeddings": 27})
    assert load_pretrained(folder).config.max_position_embeddings == 27 and not caplog.records
    for values in ({"max_position_embeddings": 30}, {"max_position_embeddings": 20}):
        old = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(old | values))
        tensors = load_file(folder / "model.safetensors")
        tensors[POSITIONS] = np.zeros((29, 16), np.float32)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(UserError, match=rf"misshapen: {POSITIONS} \[29, 16\]"):
            load_pretrained(folder)


def test_a_model_without_a_pooler_is_written_with_zeros_and_read_without(tmp_path: Path) -> None:
    model = load_pretrained(write(tmp_path / "theirs"))
    assert model.heads == ("pooler", "mlm")
    params = {name: part for name, part in model.params.items() if name != "pooler"}
    PretrainedModel(model.config, params, ("mlm",)).save_pretrained(tmp_path / "ours")
    assert not load_file(tmp_path / "ours" / "model.safetensors")["bert.pooler.weight"].any()
    assert load_pretrained(tmp_path / "ours").heads == ("mlm",)


def test_answers_are_read_without_their_head(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = load_pretrained(write(tmp_path, "BigBirdForQuestionAnswering"))
    assert model.heads == () and "BigBirdForQuestionAnswering is read without its head" in caplog.text


REFUSED = [
    ({"use_bias": False}, "use_bias = False is not supported: queries, keys and values have biases"),
    ({"attention_type": "linear"}, "attention_type = 'linear' is not supported"),
    ({"is_decoder": True}, "only encoders are supported"),
    ({"attention_type": "block_sparse", "block_size": 2.5}, "block_size must be a whole number"),
    ({"attention_type": "block_sparse", "num_random_blocks": -3}, r"max_position_embeddings must be at least 1"),
    ({"rescale_embeddings": 1}, "rescale_embeddings must be true or false"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_is_computed_otherwise_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FAMILY.parse_config(SIZES | changes)


@pytest.mark.parametrize("architecture", FAMILY.architectures)
def test_the_preset_is_held_by_every_class(architecture: str) -> None:
    config = EncoderConfig(**preset("bigbird-roberta-base"))
    plan = plan_export(config, FAMILY.architectures[architecture])
    assert (plan.architecture, plan.has_sidecar, plan.unsupported) == (architecture, False, ())
    another = EncoderConfig(**preset("bigbird-roberta-base") | {"classifier_act": "tanh"})
    plan = plan_export(another, ("sequence_classification",))
    assert plan.family is None and "classifier_act" in " ".join(plan.unsupported)
