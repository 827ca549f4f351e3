"""XLM and FlauBERT: folders byte for byte, rates of the classes, what is refused and what a warning names."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from parity.compare import random_transformers_model
from parity.families.xlm import CASES
from round_trip_lab import assert_comes_back

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.errors import UserError
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES

pytest.importorskip("torch")
pytest.importorskip("transformers")

SIZES = dict(vocab_size=50, emb_dim=16, n_layers=2, n_heads=2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)
def test_a_folder_comes_back_byte_for_byte(case: Any, tmp_path: Path) -> None:
    random_transformers_model(case, case.classes[0]).save_pretrained(tmp_path / "theirs")
    assert_comes_back(tmp_path / "theirs", n_langs=1)  # a model without embeddings of languages knows nothing of them


def test_only_the_sequence_classifier_has_a_rate_of_its_own() -> None:
    family = FAMILIES["xlm"]
    for name, rate in (("XLMForSequenceClassification", 0.3), ("XLMForTokenClassification", 0.2)):
        values = SIZES | {"architectures": [name], "dropout": 0.2, "summary_first_dropout": 0.3}
        config = family.parse_config(values)
        assert config.rate("classifier_dropout") == rate
        assert family.parse_config(family.render_config(config, name)) == config


@pytest.mark.parametrize("name", ["xlm-en-2048", "flaubert-base"])
def test_the_presets_are_held_by_every_class(name: str) -> None:
    family = FAMILIES[preset(name)["family"]]
    for architecture, heads in family.architectures.items():
        plan = plan_export(EncoderConfig(**preset(name)), heads)
        assert (plan.architecture, plan.has_sidecar, plan.unsupported) == (architecture, False, ())
    for changes in ({"intermediate_size": 1000}, {"hidden_act": "silu"}, {"norm_placement": "pre"}):
        assert plan_export(EncoderConfig(**preset(name) | changes), ()).family is None


def test_what_changes_training_alone_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bertjax"):
        FAMILIES["flaubert"].parse_config(SIZES | {"layerdrop": 0.2, "sinusoidal_embeddings": True, "mlm_steps": []})
    assert ["layerdrop" in each or "sinusoidal_embeddings" in each for each in caplog.messages] == [True, True]


def test_other_maths_is_refused() -> None:
    for family, changes, message in (
        ("xlm", {"n_langs": 2}, "n_langs = 2 is not supported: use_lang_emb = false is needed"),
        ("xlm", {"causal": True}, "only encoders are supported"),
        ("xlm", {"is_encoder": False}, "only encoders are supported"),
        ("xlm", {"pad_index": None}, "pad_token_id = null is not supported"),
        ("xlm", {"asm": True}, "scores are those of the whole vocabulary"),
        ("xlm", {"summary_type": "last"}, "the classifier reads summary_type = 'first'"),
        ("xlm", {"summary_activation": "tanh"}, "the classifier has no activation"),
        ("flaubert", {"pre_norm": True}, "there is a norm after every block"),
    ):
        with pytest.raises(UserError, match=message):
            FAMILIES[family].parse_config(SIZES | changes)
