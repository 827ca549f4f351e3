"""Probes of a model: probabilities for every kind of attention, and nearest neighbors."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.hf.pretrained import PretrainedModel
from bertjax.models.model import init_params
from bertjax.report.probes import (
    ModelProbes,
    ProbeConfig,
    is_probe_step,
    probe_attention,
    probe_memory,
    probe_neighbors,
    run_in_thread,
)

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cats", "dogs", "birds", "##s", "of", "houses"]


class Words:
    """A tokenizer of eleven tokens, split at spaces."""

    tokens = VOCABULARY
    mask_id, unk_id, size = 4, 1, len(VOCABULARY)
    special_ids = (0, 1, 2, 3, 4)

    @property
    def engine(self) -> tokenizers.Tokenizer:
        engine = tokenizers.Tokenizer(
            tokenizers.models.WordLevel({word: index for index, word in enumerate(VOCABULARY)}, unk_token="[UNK]")
        )
        engine.add_special_tokens(VOCABULARY[:5])
        engine.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        engine.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        return engine

    def encode_with_specials(self, text: str) -> list[int]:
        return [2, *(self._id(word) for word in text.split()), 3]

    def encode_batch(self, texts: Sequence[str]) -> list[Any]:
        return [np.array([self._id(word) for word in text.split()]) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(VOCABULARY[each] for each in ids)

    def starts_word(self) -> np.ndarray:
        return np.array([not token.startswith("##") for token in VOCABULARY])

    def _id(self, word: str) -> int:
        return VOCABULARY.index(word) if word in VOCABULARY else 1


def small(name: str, **changes: Any) -> EncoderConfig:
    sizes: dict[str, Any] = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "intermediate_size": 24}
    sizes |= {
        "vocab_size": len(VOCABULARY),
        "max_position_embeddings": 32,
        "compute_dtype": "float32",
        "pad_token_id": 0,
    }
    return EncoderConfig(**{**preset(name), **sizes, **changes})


def model_of(config: EncoderConfig, heads: tuple[str, ...] = ("mlm",), seed: int = 0) -> PretrainedModel:
    config = dataclasses.replace(config, initializer_range=0.5)  # attention that varies
    return PretrainedModel(config, init_params(config, heads, jax.random.key(seed)), heads)


def shares_of(finding: tuple[str, dict[str, Any]]) -> np.ndarray:
    """Returns [L, N, T, T] of a finding."""
    kind, fields = finding
    assert kind == "attention", finding
    count = len(fields["tokens"])
    maps = [[np.frombuffer(base64.b64decode(head), np.uint8) for head in layer] for layer in fields["maps"]]
    return np.array(maps, float).reshape(fields["layers"], fields["heads"], count, count) / 255


FAMILIES = ["bert-tiny", "albert-base-v1", "deberta-v3-base", "xlnet-base", "modernbert-base", "gpt2"]


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_shares_of_every_family_sum_to_one(name: str) -> None:
    shares = shares_of(probe_attention(model_of(small(name)), Words(), "cats of dogs of birds"))
    assert shares.shape == (2, 2, 7, 7)
    assert np.abs(shares.sum(axis=-1) - 1).max() < 7 * 0.5 / 255 + 1e-6
    assert shares.std() > 0.05
    if name == "gpt2":
        assert np.triu(shares, 1).max() == 0, "a causal model looks ahead"


@pytest.mark.long
def test_layers_of_groups_that_are_not_stored_one_by_one_are_reported_as_missing() -> None:
    kind, fields = probe_attention(model_of(small("albert-base-v1", inner_layers=2)), Words(), "cats of dogs")
    assert kind == "note" and fields["about"] == "attention" and "inner_layers" in fields["text"]


@pytest.mark.long
def test_a_long_sentence_is_cut_and_one_that_is_too_long_for_the_model_is_not_shown() -> None:
    _, fields = probe_attention(model_of(small("bert-tiny")), Words(), " ".join(["cats"] * 40))
    assert len(fields["tokens"]) == 24 and fields["tokens"][:2] == ["[CLS]", "cats"]
    short = model_of(small("bert-tiny", max_position_embeddings=8))
    assert probe_attention(short, Words(), " ".join(["cats"] * 40))[0] == "note"


def test_neighbors_are_the_nearest_by_cosine() -> None:
    table = np.random.default_rng(0).normal(size=(len(VOCABULARY), 4)).astype(np.float32)
    table[6] = 3 * table[5]  # dogs and cats point in one direction
    table[7] = -table[5]
    table[2] = table[5]  # a special token must not be a neighbor
    counts = np.array([0, 0, 9, 9, 9, 5, 7, 1, 50, 60, 3])
    result = probe_neighbors(table, Words(), ("cats", "cats of", "zebra"), counts)
    assert result[0][1]["token"] == "cats" and result[0][1]["near"][0] == ["dogs", 1.0]
    assert result[0][1]["near"][-1] == ["birds", -1.0] and len(result[0][1]["near"]) == 5
    assert [kind for kind, _ in result] == ["neighbors", "note", "neighbors"], "zebra is the unknown token"
    neighbors = [fields["token"] for _, fields in probe_neighbors(table, Words(), (), counts)]
    assert neighbors == ["dogs", "cats", "houses", "birds"], "frequent words, neither short ones nor continuations"


@pytest.mark.parametrize("interval,expected", [(5, [25, 50, 75, 100]), (30, [30, 60, 90, 100]), (0, [100])])
def test_looks_are_few_and_the_end_is_one(interval: int, expected: list[int]) -> None:
    evaluations = [*range(interval, 100, interval), 100] if interval else [100]
    assert [step for step in evaluations if is_probe_step(step, interval, 100)] == expected


def test_memory_is_reported() -> None:
    kind, fields = probe_memory()
    assert kind == "memory" and 10**7 < fields["peak_host"] < 10**12
    assert fields.get("host", fields["peak_host"]) <= fields["peak_host"] * 1.05


def probe_config(**changes: Any) -> ProbeConfig:
    result = ProbeConfig(
        ("cats [MASK] dogs", "[MASK] of birds"), "cats of dogs", (), np.arange(len(VOCABULARY)), 100, 25
    )
    return result._replace(**changes)


def test_all_of_it_under_a_mesh_as_the_loop_calls_it() -> None:
    model = model_of(small("bert-tiny"))
    probes = ModelProbes({"model": (model.config, model.heads)}, lambda params, _: params, Words(), probe_config())
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        result = probes(100, jax.device_get(model.params))
        assert jax.sharding.get_abstract_mesh().axis_names == ("data",)
    kinds = [kind for kind, _ in result]
    assert kinds == ["fill_mask", "fill_mask", "attention", *["neighbors"] * 4]
    assert all(len(fields["tokens"]) == 5 for kind, fields in result if kind == "fill_mask")
    json.dumps(result)
    few = ModelProbes(probes.networks, probes.complete, Words(), probe_config(interval=5))
    assert [kind for kind, _ in few(30, model.params)] == ["fill_mask", "fill_mask"]


def test_models_that_fill_nothing_in_say_so() -> None:
    for model in (model_of(small("gpt2")), model_of(small("bert-tiny"), heads=("pooler",))):
        look = probe_config(sentence=None, interval=1)
        probes = ModelProbes({"model": (model.config, model.heads)}, lambda params, _: params, Words(), look)
        kind, fields = probes(10, model.params)[0]
        assert kind == "note" and fields["about"] == "fill_mask"


def test_what_fails_by_itself_fails_here() -> None:
    def fails() -> None:
        raise ValueError("there")

    with pytest.raises(ValueError, match="there"):
        run_in_thread(fails)
