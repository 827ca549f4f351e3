"""SqueezeBERT: groups of channels in both directions, what they save, what they rule out, refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from round_trip_lab import assert_comes_back

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.errors import UserError
from bertjax.experiment.growth import _require_growth
from bertjax.experiment.shrink import smaller_config
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES
from bertjax.models.model import abstract_params, count_params
from bertjax.training.flops import flops_per_token

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["squeezebert"]
SIZES = dict(
    vocab_size=50, hidden_size=16, embedding_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20
)
GROUPED = EncoderConfig(
    vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=24, attention_groups=2,
    feed_forward_groups=4,
)  # fmt: skip
DENSE = dataclasses.replace(GROUPED, attention_groups=1, feed_forward_groups=1)


def test_a_folder_comes_back_byte_for_byte(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.SqueezeBertConfig(**SIZES)
    transformers.SqueezeBertForSequenceClassification(config).save_pretrained(tmp_path / "theirs")
    model, _ = assert_comes_back(tmp_path / "theirs")
    assert model.params["encoder"]["layers"]["attention"]["query"]["kernel"].shape == (2, 4, 16)


def test_groups_save_weights_and_operations() -> None:
    saved = 2 * (3 * 16 * 16 // 2 + 2 * 16 * 24 * 3 // 4)
    assert count_params(DENSE, ()) - count_params(GROUPED, ()) == saved
    assert flops_per_token(DENSE, 1.0, 1.0) - flops_per_token(GROUPED, 1.0, 1.0) == 6 * saved
    shapes = abstract_params(GROUPED, ())["encoder"]["layers"]["feed_forward"]
    assert shapes["intermediate"]["kernel"].shape == (2, 4, 24) and shapes["output"]["kernel"].shape == (2, 6, 16)


def test_groups_neither_grow_nor_shrink() -> None:
    assert smaller_config(GROUPED, 1, {}).num_layers == 1
    for field, key in (("num_heads", "attention_groups=2"), ("intermediate_size", "feed_forward_groups=4")):
        with pytest.raises(UserError, match=f"{field} cannot be pruned: with {key} each has its own share"):
            smaller_config(GROUPED, 2, {field: 2})
    _require_growth(GROUPED, dataclasses.replace(GROUPED, num_layers=4), "tile")
    with pytest.raises(UserError, match="with attention_groups only num_layers can grow"):
        _require_growth(GROUPED, dataclasses.replace(GROUPED, intermediate_size=48), "tile")


def test_groups_divide_what_they_split() -> None:
    with pytest.raises(UserError, match="attention_groups=3 must divide the widths 16"):
        dataclasses.replace(GROUPED, attention_groups=3)
    with pytest.raises(UserError, match="feed_forward_groups=16 must divide the widths 16, 24"):
        dataclasses.replace(GROUPED, feed_forward_groups=16)


def test_the_preset_is_held_by_every_class() -> None:
    for architecture, heads in FAMILY.architectures.items():
        plan = plan_export(EncoderConfig(**preset("squeezebert")), heads)
        assert (plan.architecture, plan.has_sidecar, plan.unsupported) == (architecture, False, ())
    plan = plan_export(EncoderConfig(**preset("squeezebert") | {"family": "bert"}), ("mlm",))
    assert plan.unsupported == ("attention_groups", "feed_forward_groups")


def test_other_maths_is_refused() -> None:
    for changes, message in (
        ({"k_groups": 2}, "k_groups = 2 is not supported: it must be q_groups = 4"),
        ({"v_groups": 1}, "v_groups = 1 is not supported"),
        ({"output_groups": 2}, "output_groups = 2 is not supported: it must be intermediate_groups = 4"),
        ({"q_groups": 2}, "k_groups = 4 is not supported"),
        ({"post_attention_groups": 2}, "the layer after attention is dense"),
        ({"embedding_size": 8}, "embeddings are as wide as the layers"),
        ({"is_decoder": True}, "only encoders are supported"),
    ):
        with pytest.raises(UserError, match=message):
            FAMILY.parse_config(SIZES | changes)
