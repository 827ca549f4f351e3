"""RemBERT: both tables in both directions, what a class cannot hold, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from round_trip_lab import assert_comes_back

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.errors import UserError
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES
from bertjax.models.model import abstract_params
from bertjax.training.flops import flops_per_token

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["rembert"]
SIZES = dict(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20)
WIDTHS = dict(input_embedding_size=6, output_embedding_size=22)


def test_a_folder_comes_back_byte_for_byte(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.RemBertConfig(**SIZES, **WIDTHS, bos_token_id=None, eos_token_id=None)
    transformers.RemBertForMaskedLM(config).save_pretrained(tmp_path / "theirs")
    model, _ = assert_comes_back(tmp_path / "theirs")
    assert model.params["mlm_head"]["table"].shape == (50, 22)


def test_any_model_can_have_an_output_table_of_another_width() -> None:
    config = EncoderConfig(
        vocab_size=50, hidden_size=8, num_heads=2, tie_word_embeddings=False, output_embedding_size=5
    )
    shapes = abstract_params(config, ("mlm",))["mlm_head"]
    assert shapes["dense"]["kernel"].shape == (8, 5) and shapes["table"].shape == (50, 5)
    assert shapes["norm"]["scale"].shape == (5,)
    plain = EncoderConfig(vocab_size=50, hidden_size=8, num_heads=2, tie_word_embeddings=False)
    saved = 6.0 * (8 * 8 + 8 * 50 - 8 * 5 - 5 * 50)
    assert flops_per_token(plain, 1.0, 1.0) - flops_per_token(config, 1.0, 1.0) == saved


def test_a_width_without_its_table_is_refused() -> None:
    with pytest.raises(UserError, match=r"output_embedding_size=5 is the width of a table.*mlm_head=transform"):
        EncoderConfig(output_embedding_size=5, tie_word_embeddings=False, mlm_head="bias")
    with pytest.raises(UserError, match="must be more than the width 768 of the word table, or tie_word_embeddings"):
        EncoderConfig(output_embedding_size=5)


@pytest.mark.parametrize("architecture", FAMILY.architectures)
def test_the_preset_is_held_by_every_class(architecture: str) -> None:
    heads = FAMILY.architectures[architecture]
    plan = plan_export(EncoderConfig(**preset("rembert")), heads)
    assert (plan.architecture, plan.has_sidecar, plan.unsupported) == (architecture, False, ())
    for key in ("embedding_size", "output_embedding_size"):
        assert plan_export(EncoderConfig(**preset("rembert") | {key: None}), ("mlm",)).unsupported == (key,)


def test_other_maths_is_refused() -> None:
    for changes, message in (
        ({"is_decoder": True}, "only encoders are supported"),
        ({"output_embedding_size": None}, "output_embedding_size must be a whole number"),
        ({"input_embedding_size": 0}, r"embedding_size must lie in \[1, "),
    ):
        with pytest.raises(UserError, match=message):
            FAMILY.parse_config(SIZES | WIDTHS | changes)
