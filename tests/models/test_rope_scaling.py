"""Rescaled rotations: the frequencies of `transformers`, and vectors that depend on their own text alone."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymaps.rope_parameters import parse_rope, render_rope
from bertjax.models.attention_context import make_context
from bertjax.models.rope import frequencies, frequencies_by_length, rotation, scaled_frequencies

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

HEAD, LONGEST, ORIGINAL = 16, 64, 20
DRAWN = np.random.default_rng(0).uniform(1.0, 9.0, (2, HEAD // 2)).tolist()
LISTS = {"short_factor": DRAWN[0], "long_factor": DRAWN[1], "original_max_position_embeddings": ORIGINAL}
LLAMA = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": ORIGINAL}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
TABLES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": {"rope_type": "llama3", **LLAMA},
    "yarn": YARN,
    "yarn with bounds": {**YARN, "beta_fast": 4.0, "beta_slow": 0.5, "truncate": False, "attention_factor": 1.3},
    "yarn with scales": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4},
    "yarn without a factor": {**YARN, "factor": None},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "longrope": {"rope_type": "longrope", **LISTS},
    "longrope with a factor": {"rope_type": "longrope", "factor": 8.0, **LISTS},
}


def config_of(table: dict[str, Any], **changes: Any) -> EncoderConfig:
    fields = {"max_position_embeddings": LONGEST}
    parsed = parse_rope({"rope_parameters": {"rope_theta": 70.0, **table}}, fields, "config.json", 10_000.0)
    sizes = {"hidden_size": 2 * HEAD, "num_heads": 2, "num_layers": 1, "attention_position": "rotary"}
    return EncoderConfig(**{**sizes, **fields, **parsed, **changes})


@pytest.mark.parametrize("name", TABLES)
def test_frequencies_are_those_of_transformers(name: str) -> None:
    config, table = config_of(TABLES[name]), TABLES[name]
    sizes = {"hidden_size": 2 * HEAD, "num_attention_heads": 2, "max_position_embeddings": LONGEST}
    theirs = transformers.LlamaConfig(**sizes, rope_parameters={"rope_theta": 70.0, **table})
    compute = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[config.rope_type]
    for length in (7, ORIGINAL, ORIGINAL + 1, LONGEST, LONGEST + 9):
        expected, factor = compute(theirs, seq_len=length)
        if config.rope_type in ("dynamic", "longrope"):
            ours = np.asarray(frequencies_by_length(config, 70.0, jnp.full((1, 1), length)))[0, 0]
        else:
            ours = scaled_frequencies(config, 70.0)
        np.testing.assert_allclose(ours, expected.numpy(), rtol=3e-6)
        assert config.rope_attention_factor == pytest.approx(factor, rel=1e-12)
    again = parse_rope({"rope_parameters": render_rope(config)}, {"max_position_embeddings": LONGEST}, "", 10_000.0)
    assert again == {key: getattr(config, key) for key in again} and again["rope_type"] == config.rope_type


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_a_rotation_depends_on_the_example_alone(name: str) -> None:
    """Not on its padding, nor on the other examples of its row."""
    config = config_of(TABLES[name]).replace(rope_original_length=5)
    segments = jnp.asarray([[1] * 4 + [2] * 8 + [0] * 3])
    positions = jnp.asarray([[*range(4), *range(8), *range(3)]])
    packed = make_context(config, segments, positions, False).rotation
    for start, length in ((0, 4), (4, 8)):
        alone = make_context(config, jnp.ones((1, length), int), jnp.arange(length)[None], False).rotation
        for ours, theirs in zip(packed, alone, strict=True):
            np.testing.assert_allclose(ours[:, start : start + length], theirs, atol=1e-6)


def test_local_layers_may_keep_their_rotation() -> None:
    config = config_of(TABLES["yarn"], local_attention=4, global_attn_every_n_layers=2, num_layers=3)
    ids, positions = jnp.ones((1, 9), int), jnp.arange(9)[None]
    plain = make_context(config.replace(rope_type="default"), ids, positions, True).rotation
    for layers, equal in (("all", False), ("global", True)):
        local = make_context(config.replace(rope_layers=layers), ids, positions, True).rotation
        assert np.array_equal(local[0], plain[0]) == equal


@pytest.mark.parametrize("table", [{}, TABLES["llama3"]], ids=["default", "llama3"])
@pytest.mark.parametrize("rounding", ["float16", "bfloat16"])
def test_frequencies_are_rounded_once_they_are_rescaled(table: dict[str, Any], rounding: str) -> None:
    config = config_of(table, rope_rounding=rounding)
    exact = scaled_frequencies(config, 70.0) if table else frequencies(HEAD, 70.0)
    rounded = torch.tensor(exact).to(getattr(torch, rounding)).float().numpy()
    positions = jnp.arange(9)[None]
    angles = make_context(config, jnp.ones((1, 9), int), positions, False).rotation
    for ours, theirs in zip(angles, rotation(positions, rounded), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not np.array_equal(angles[0], rotation(positions, exact)[0])


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        ({"rope_type": "proportional"}, {}, "rope_type = 'proportional' is not supported: known are default, linear"),
        ({"type": ["yarn"]}, {}, "is not supported"),
        ({"rope_type": "linear"}, {}, "rope_type = linear needs factor"),
        ({"rope_type": "llama3", "factor": 8.0}, {}, "needs high_freq_factor"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 3}, {}, "rotations of rope_type = linear do not have it"),
        ({"rope_type": "linear", "factor": "2"}, {}, "factor must be a finite number"),
        ({"rope_type": "linear", "factor": 0.0}, {}, "rope_factor must be above 0"),
        ({"rope_type": "longrope", **LISTS, "long_factor": 3}, {}, "long_factor must be a list of numbers, not 3"),
        ({"rope_type": "longrope", **LISTS, "long_factor": [1.0]}, {}, "must have 8 numbers each"),
        (YARN | {"original_max_position_embeddings": "x", "factor": None}, {}, "must be a whole number"),
        (YARN | {"original_max_position_embeddings": 1}, {}, "must be at least 2, not 1"),
        (TABLES["dynamic"], {"causal": True}, "the length of the example, which a causal model does not know"),
        (TABLES["llama3"] | {"low_freq_factor": 4.0}, {}, "must be less than rope_fast_turns"),
        (TABLES["linear"], {"attention_position": "none"}, "belongs to attention_position=rotary"),
        (TABLES["yarn"], {"global_rope_theta": 1.0}, "another base than 1"),
        (TABLES["dynamic"], {"head_size": 2}, "heads of at least 4"),
        (TABLES["dynamic"], {"rope_rounding": "float16"}, "the same for every length: not dynamic"),
    ],
)
def test_what_is_refused(table: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config_of(table, **changes)


def test_a_part_of_a_head_is_not_rescaled() -> None:
    values = {"rope_scaling": TABLES["linear"], "partial_rotary_factor": 0.5}
    with pytest.raises(UserError, match=r"partial_rotary_factor = 0.5 is not supported"):
        parse_rope(values, {"max_position_embeddings": LONGEST}, "config.json", 10_000.0)
