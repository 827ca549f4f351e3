"""The number of model types in the README is that of the registries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bertjax.config.extensions import ENCODER_DECODERS, FAMILIES

pytest.importorskip("transformers")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES


@pytest.mark.skipif("ultrabert" not in CONFIG_MAPPING_NAMES, reason="an older version of transformers has fewer types")
def test_the_readme_counts_the_model_types_that_are_read() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    match = re.search(r"(\d+) model types of `transformers`", readme)
    assert match is not None
    assert int(match[1]) == len({*FAMILIES.builtin, *ENCODER_DECODERS.builtin} & CONFIG_MAPPING_NAMES.keys())
