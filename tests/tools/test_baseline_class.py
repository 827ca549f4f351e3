"""The baseline of a benchmark."""

from __future__ import annotations

from bertjax.commands.benchmark import baseline_class
from bertjax.config.overrides import apply_overrides, load_config
from bertjax.experiment.config import parse


def test_a_small_trained_vocabulary_has_a_baseline() -> None:
    """The padding of ModernBERT's preset is token 50,283."""
    cfg = apply_overrides(load_config("modernbert:base"), ["--config.data.vocab_size=1000"])
    assert baseline_class(parse(cfg)) == "AutoModelForMaskedLM"
