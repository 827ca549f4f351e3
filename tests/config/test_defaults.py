"""The declared keys are complete and agree with BERT, and every config of the project agrees with them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from ml_collections import FieldReference

from bertjax.config.defaults import base_config
from bertjax.config.fields import PRESET
from bertjax.config.model import NETWORK_GROUPS, OF_TOKENIZER, EncoderConfig, encoder_config
from bertjax.config.overrides import apply_overrides, declared, from_json, load_config, to_json
from bertjax.config.presets import preset

CONFIGS = Path(__file__).parents[2] / "configs"
# the tokenizer, data.packing, the objective, train.compute_dtype and train.result_dtype set these, and keys of an
# extension
FROM_ELSEWHERE = {*OF_TOKENIZER, "compute_dtype", "result_dtype"}
FROM_ELSEWHERE |= {"attention_settings", "cross_attention_hidden_size", "masked_next_token", "max_examples"}
SPECS = [
    f"{path}:{size}" if size else str(path)
    for path in sorted(CONFIGS.glob("*.py"))
    for size in runpy.run_path(str(path)).get("SIZES", ("",))
]


def test_model_declares_every_field_of_the_encoder() -> None:
    names = {name for name in vars(EncoderConfig()) if name not in FROM_ELSEWHERE}
    others = {"model": set(), "generator": {"width_ratio", "depth_ratio"}, "decoder": {"sharing", "start_token"}}
    for group in NETWORK_GROUPS:
        values = dict(base_config()[group])
        assert names | others[group] | {"preset"} == values.keys()
        assert {values[name] for name in names} == {PRESET}


def test_defaults_are_berts_recipe() -> None:
    config = base_config()
    assert (config.train.num_steps, config.train.batch_size, config.schedule.warmup_steps) == (1_000_000, 256, 10_000)
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.b1, optimizer.b2, optimizer.eps) == (1e-4, 0.9, 0.999, 1e-6)
    assert (optimizer.weight_decay, optimizer.clip_norm, optimizer.bias_correction) == (0.01, 1.0, False)
    objective = config.objective
    assert (objective.masking.mask_rate, objective.masking.mask_token_rate, objective.masking.random_token_rate) == (
        0.15,
        0.8,
        0.1,
    )
    assert (config.data.short_seq_prob, config.data.vocab_size, config.schedule.name) == (0.1, 30522, "bert")


def test_every_key_has_a_help_and_a_default_that_is_allowed() -> None:
    for key, each in declared().items():
        if key.startswith(("objective.", "task.")):
            continue
        assert each.help.endswith("."), f"{key}: one or two sentences"
        assert each.check(key, each.default) == each.default, key
        if each.nullable:
            assert "None" in each.help, f"{key}: what None means"


def test_what_a_key_follows_gives_its_default() -> None:
    for key, each in declared().items():
        if each.follows is not None:
            source, function = each.follows
            assert function(declared()[source].default) == each.default, key


def test_none_in_the_model_is_a_value_and_not_the_presets() -> None:
    config = base_config()
    config.model.preset = "albert-base-v2"
    model = encoder_config(config)
    assert (model.embedding_size, model.num_groups) == (128, 1)
    apply_overrides(config, ["--config.model.embedding_size=None", "--config.model.num_groups=None"])
    model = encoder_config(config)
    assert (model.embedding_size, model.num_groups) == (None, None)
    apply_overrides(config, ["--config.model.embedding_size=preset"])
    assert encoder_config(from_json(to_json(config))).embedding_size == 128


def test_short_runs_are_not_spent_on_evaluations() -> None:
    config = apply_overrides(load_config(f"{CONFIGS}/bert.py:mini"), ["--config.train.num_steps=100"])
    assert (config.eval.interval_steps, config.checkpoint.interval_steps, config.train.log_interval_steps) == (100,) * 3
    config = apply_overrides(base_config(), ["--config.train.num_steps=100", "--config.eval.interval_steps=1"])
    assert (config.eval.interval_steps, config.checkpoint.interval_steps, config.train.log_interval_steps) == (
        1,
        100,
        10,
    )


def test_a_base_config_is_new_and_locked_each_time() -> None:
    one, other = base_config(), base_config()
    one.train.num_steps = 3
    assert other.schedule.warmup_steps == 10_000
    with pytest.raises(AttributeError):
        other.model.layers = 3


@pytest.mark.parametrize("spec", [str(path) for path in sorted(CONFIGS.glob("*.py"))])
def test_intervals_never_reach_zero(spec: str) -> None:
    for num_steps in (1, 2, 99, 100, 101, 1_000_000):
        config = apply_overrides(load_config(spec), [f"--config.train.num_steps={num_steps}"])
        for interval in (config.train.log_interval_steps, config.eval.interval_steps, config.checkpoint.interval_steps):
            assert interval >= 1, num_steps
        assert 0 <= config.schedule.warmup_steps <= num_steps


@pytest.mark.parametrize("spec", SPECS)
def test_every_config_loads_and_its_model_is_published(spec: str) -> None:
    config = load_config(spec)
    sizes = preset(config.model.preset)
    EncoderConfig(vocab_size=config.data.vocab_size, **sizes)
    assert to_json(config) == to_json(load_config(spec))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("tiny", (2, 128, 2, 30522, True)),
        ("base", (12, 768, 12, 30522, True)),
        ("6x512", (6, 512, 8, 30522, True)),
        ("large-cased", (24, 1024, 16, 28996, False)),
    ],
)
def test_bert_sizes(size: str, expected: tuple) -> None:
    config = load_config(f"{CONFIGS}/bert.py:{size}")
    sizes = preset(config.model.preset)
    result = (sizes["num_layers"], sizes["hidden_size"], sizes["num_heads"], config.data.vocab_size)
    assert (*result, config.data.lowercase) == expected


def test_no_two_keys_are_one_reference() -> None:
    """Two names of one reference would be set together; a derived key needs `get_oneway_ref`."""
    for spec in SPECS[:2]:
        config = load_config(spec)
        fields = [
            id(field)
            for group in config.values()
            if hasattr(group, "items")
            for _, field in group.items(preserve_field_references=True)
            if isinstance(field, FieldReference)
        ]
        assert len(fields) == len(set(fields))
