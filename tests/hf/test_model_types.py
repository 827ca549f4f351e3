"""The model types of the registries are those of the README, and their classes those of `transformers`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bertjax.config.extensions import ENCODER_DECODERS, FAMILIES
from bertjax.hf.keymaps import FAMILIES as KEYMAPS

pytest.importorskip("transformers")

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES


@pytest.mark.skipif("ultrabert" not in CONFIG_MAPPING_NAMES, reason="an older version of transformers has fewer types")
def test_the_readme_counts_the_model_types_that_are_read() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    match = re.search(r"(\d+) model types of `transformers`", readme)
    assert match is not None
    assert int(match[1]) == len({*FAMILIES.builtin, *ENCODER_DECODERS.builtin} & CONFIG_MAPPING_NAMES.keys())


IN_TRANSFORMERS = [name for name in FAMILIES.builtin if KEYMAPS[name].model_type in CONFIG_MAPPING_NAMES]


@pytest.mark.parametrize("name", IN_TRANSFORMERS)
def test_transformers_has_every_class_that_a_family_names(name: str) -> None:
    family = KEYMAPS[name]
    unknown = [each for each in (*family.architectures, *family.last_token_classes) if not hasattr(transformers, each)]
    assert not unknown
