"""The generator's sizes by its shares, parameters that the two networks can share, and refused settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from ml_collections import ConfigDict

from bertjax.config.defaults import base_config
from bertjax.config.model import EncoderConfig, differences, encoder_config
from bertjax.config.overrides import apply_overrides, load_config
from bertjax.config.presets import preset
from bertjax.errors import UserError
from bertjax.experiment.config import parse
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.rtd.networks import generator_config
from bertjax.objectives.rtd.objective import Rtd

CONFIGS = Path(__file__).parents[2] / "configs"


def config(*overrides: str, model: str = "electra-base") -> ConfigDict:
    cfg = base_config()
    cfg.model.preset, cfg.objective.name, cfg.data.example_format = model, "rtd", "block"
    return apply_overrides(cfg, [f"--config.{setting}" for setting in overrides])


@pytest.mark.parametrize("size", ["small", "base", "large"])
def test_electras_generators_are_those_of_the_paper(size: str) -> None:
    result = generator_config(load_config(f"{CONFIGS}/electra.py:{size}"))
    assert differences(result, EncoderConfig(**preset(f"electra-{size}-generator"))) == []


def test_the_released_small_generator_is_as_wide_as_its_discriminator() -> None:
    cfg = apply_overrides(load_config(f"{CONFIGS}/electra.py:small"), ["--config.generator.width_ratio=1.0"])
    assert generator_config(cfg) == EncoderConfig(**preset("electra-small-generator-released"))


@pytest.mark.parametrize(("size", "layers"), [("xsmall", 6), ("small", 3), ("base", 6), ("large", 12)])
def test_debertas_generators_are_half_as_deep(size: str, layers: int) -> None:
    """The four files rtd_*.json of microsoft/DeBERTa:experiments/language_model."""
    cfg = load_config(f"{CONFIGS}/deberta.py:v3-{size}")
    result, model = generator_config(cfg), encoder_config(cfg)
    assert result.num_layers == layers and differences(result, model) == ["num_layers"]
    assert result.enhanced_decoder and model.rtd_head == "summary" and cfg.objective.rtd.embedding_sharing == "gdes"


def test_own_values_come_before_those_of_the_model() -> None:
    cfg = config("generator.width_ratio=0.5", "generator.num_layers=3", "generator.hidden_act=relu")
    result = generator_config(cfg)
    assert (result.hidden_size, result.num_layers, result.num_heads, result.intermediate_size) == (384, 3, 6, 1536)
    assert (result.hidden_act, result.embedding_size, result.mlm_act) == ("relu", 768, "gelu")
    narrow = generator_config(config("generator.hidden_size=96"))
    assert (narrow.num_heads, narrow.head_dim, narrow.intermediate_size) == (1, 96, 384)
    separate_table = generator_config(config("generator.hidden_size=96", "objective.rtd.embedding_sharing=none"))
    assert separate_table.embedding_dim == 96 and separate_table.embedding_size is None


def test_a_preset_is_fitted_to_the_tables_that_it_shares() -> None:
    result = generator_config(config("generator.preset=bert-mini", model="bert-base"))
    assert (result.hidden_size, result.embedding_size, result.num_layers, result.vocab_size) == (256, 768, 4, 30522)
    alone = generator_config(
        config("generator.preset=bert-mini", "objective.rtd.embedding_sharing=none", model="bert-base")
    )
    assert alone.embedding_size is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("generator.preset=bert-mini", "generator.width_ratio=0.5"), "bert-mini sets the sizes"),
        (
            ("generator.preset=distilbert",),
            r"type_vocab_size is 0 and 2; make them equal \(generator.type_vocab_size, or",
        ),
        (("generator.preset=roberta-base",), "position_offset is 2 and 0"),
        (("generator.preset=roberta-base", "objective.rtd.embedding_sharing=gdes"), "position_offset is 2 and 0"),
        (
            ("generator.preset=gpt2", "objective.rtd.embedding_sharing=none"),
            "set model.causal and generator.causal to false",
        ),
        (
            ("generator.num_layers=3", "objective.rtd.embedding_sharing=all"),
            "cannot share their weights: num_layers is 3 and 12",
        ),
        (("generator.embedding_size=64",), "embedding_dim is 64 and 768; make them equal .generator.embedding_size"),
        (("generator.width_ratio=0.0",), "generator.width_ratio must be above 0, not 0.0"),
        (
            ("generator.num_heads=5",),
            "the generator: generator.hidden_size 768 is not divisible by generator.num_heads 5",
        ),
        (
            ("generator.max_position_embeddings=64", "objective.rtd.embedding_sharing=none"),
            "longer than the generator's position table",
        ),
        (("mesh.tensor=8", "generator.width_ratio=0.25"), "mesh.tensor"),
        (
            ("objective.rtd.embedding_sharing=words",),
            "objective.rtd.embedding_sharing must be one of embeddings, gdes, none, all, not 'words'",
        ),
        (("objective.rtd.temperature=0.0",), "objective.rtd.temperature must be above 0"),
        (("objective.rtd.disc_weight=-1.0",), "objective.rtd.disc_weight must be at least 0"),
        (("objective.rtd.average_repeats=true",), "needs objective.masking.with_replacement"),
        (("model.causal=true",), "set model.causal and generator.causal to false"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(settings: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(config(*settings))


def test_networks_of_any_sizes_pass() -> None:
    parse(config("generator.preset=distilbert", "objective.rtd.embedding_sharing=none"))
    parse(config("generator.preset=deberta-v3-small", "objective.rtd.embedding_sharing=none", model="modernbert-base"))
    parse(config("objective.rtd.embedding_sharing=all"))
    parse(config("generator.depth_ratio=0.5", "objective.rtd.embedding_sharing=embeddings", model="deberta-v3-base"))


def test_streams_are_refused() -> None:
    with pytest.raises(
        UserError,
        match=r"needs data\.example_format to be one of block, .*, sop_pairs, not 'stream'",
    ):
        Rtd(Masking()).check_example_format("stream")
