"""MVP, PLBART and both Blenderbots: folders byte for byte, the norm of words, settings that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity.compare import random_transformers_model
from parity.families.encoder_decoder import CASES
from round_trip_lab import assert_comes_back

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.encoder_decoder.bart_variants import FAMILIES
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.pretrained import load_pretrained
from bertjax.models.model import abstract_params

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_comes_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    case = next(each for each in CASES if each.family == name)
    random_transformers_model(case, case.classes[0]).save_pretrained(tmp_path / "theirs")
    model, _ = assert_comes_back(tmp_path / "theirs")
    assert isinstance(model, PretrainedEncoderDecoder) and model.config.family == name


@pytest.mark.parametrize("name", FAMILIES)
def test_defaults_are_those_of_the_class(name: str) -> None:
    config: Any = transformers.AutoConfig.for_model(name)
    family = FAMILIES[name]
    parsed = family.parse_config(
        {"decoder_start_token_id": getattr(config, "decoder_start_token_id", None)}, "config.json"
    )
    assert family.parse_config(json.loads(config.to_json_string(use_diff=False)), "config.json") == parsed
    assert (parsed.encoder.num_layers, parsed.decoder.num_layers) == (config.encoder_layers, config.decoder_layers)
    assert parsed.encoder.intermediate_size == config.encoder_ffn_dim


def test_words_are_normed_before_positions_are_added() -> None:
    config = FAMILIES["blenderbot-small"].parse_config({"scale_embedding": True}, "config.json")
    assert (config.encoder.embedding_norm, config.decoder.embedding_norm) == ("before", "words")
    factorised = EncoderConfig(vocab_size=50, hidden_size=8, num_heads=2, embedding_size=5, embedding_norm="words")
    assert abstract_params(factorised, ())["encoder"]["embeddings"]["norm"]["scale"].shape == (5,)


def test_other_maths_is_refused() -> None:
    for name, changes, message in (
        ("mvp", {"use_prompt": True}, "use_prompt = True is not supported: prompts of every layer"),
        ("plbart", {"tie_word_embeddings": False}, "the output table is the decoder's word table"),
        ("plbart", {"normalize_before": True}, "norms follow the blocks"),
        ("blenderbot", {"normalize_embedding": True}, "the embeddings of this class decide it"),
        ("blenderbot", {"normalize_before": False}, "norms precede the blocks"),
        ("blenderbot-small", {"activation_function": "mish"}, "activation_function = 'mish'"),
    ):
        with pytest.raises(UserError, match=message):
            FAMILIES[name].parse_config(changes, "config.json")


@pytest.mark.long
def test_the_generation_of_blenderbot_is_theirs(tmp_path: Path) -> None:
    case = next(each for each in CASES if each.family == "blenderbot-small")
    theirs = random_transformers_model(case, case.classes[0])
    theirs.save_pretrained(tmp_path)
    ours: Any = load_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(3, 80, (2, 9))
    settings = {"max_new_tokens": 5, "num_beams": 2, "do_sample": False}
    expected = theirs.generate(torch.from_numpy(ids), **settings).numpy()
    np.testing.assert_array_equal(ours.generate(ids, **settings), expected)
