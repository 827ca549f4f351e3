"""Training configs that are refused, and the messages."""

from __future__ import annotations

import re

import pytest

from bertjax.config.distributed import MeshConfig, check_batch_size
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.training.optimizer import Optimizer, parse_rules
from bertjax.training.schedule import Schedule
from bertjax.training.settings import Profile


def refused(words: str):
    return pytest.raises(UserError, match=re.escape(words))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "lion"}, "optimizer.name must be one of adamw, lamb, stable_adamw, muon, not 'lion'"),
        ({"learning_rate": 0.0}, "optimizer.learning_rate must be above 0, not 0.0"),
        ({"learning_rate": float("nan")}, "optimizer.learning_rate expects a number, not nan"),
        ({"b1": 1.0}, "optimizer.b1 must lie in [0, 1), not 1.0"),
        ({"b2": -0.1}, "optimizer.b2 must lie in [0, 1), not -0.1"),
        ({"eps": -1.0}, "optimizer.eps must be at least 0, not -1.0"),
        ({"weight_decay": -0.01}, "optimizer.weight_decay must be at least 0"),
        ({"clip_norm": -1.0}, "optimizer.clip_norm must be at least 0"),
        ({"layerwise_lr_decay": 0.0}, "optimizer.layerwise_lr_decay must lie in (0, 1), not 0.0"),
        ({"layerwise_lr_decay_top": -1}, "optimizer.layerwise_lr_decay_top must be at least 0, not -1"),
        ({"ema_decay": 1.0}, "optimizer.ema_decay must lie in (0, 1), not 1.0"),
        ({"muon_rms": -0.2, "name": "muon"}, "optimizer.muon_rms must be at least 0, not -0.2"),
        ({"muon_momentum": 1.5, "name": "muon"}, "optimizer.muon_momentum must lie in (0, 1), not 1.5"),
        (
            {"muon_rms": 0.2},
            "optimizer.muon_rms has no effect with optimizer.name=adamw (it is for muon); set it to None",
        ),
        ({"trust_exclude": (), "name": "muon"}, "optimizer.trust_exclude has no effect with optimizer.name=muon"),
        ({"decay_exclude": ("a(",)}, "optimizer.decay_exclude: 'a(' is not a regular expression"),
    ],
)
def test_optimizer(changes: dict, words: str) -> None:
    with refused(words):
        Optimizer(**changes)


@pytest.mark.parametrize("text", ["encoder/.*", "a(=1", "=0.5", "a=fast"])
def test_broken_rules_name_their_key(text: str) -> None:
    with refused(f"optimizer.lr_mults: {text!r} is not REGEX=FACTOR"):
        parse_rules((text,), "optimizer.lr_mults")


def test_rules_split_at_the_last_sign() -> None:
    assert parse_rules((r"a(?=b).*=0.5", "c=1e-2"), "k") == [(r"a(?=b).*", 0.5), ("c", 0.01)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sine", 1e-4, 0, 10), "schedule.name must be one of bert, electra, linear, polynomial, cosine, wsd, "),
        (("bert", 1e-4, 11, 10), "schedule.warmup_steps must lie in 0..train.num_steps = 10, not 11"),
        (("bert", 1e-4, -1, 10), "schedule.warmup_steps must be at least 0, not -1"),
        (("inverse_sqrt", 1e-4, 0, 10), "starts with a rise: schedule.warmup_steps must be at least 1"),
        (("slanted_triangular", 1e-4, 0, 10), "starts with a rise"),
        (("cyclical", 1e-4, 2, 10), "set schedule.warmup_steps to 0, not 2"),
    ],
)
def test_schedule(arguments: tuple, words: str) -> None:
    with refused(words):
        Schedule(**dict(zip(("name", "learning_rate", "warmup_steps", "num_steps"), arguments, strict=True)))


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        (
            "wsd",
            {"decay_steps": 101},
            "schedule.decay_steps must lie in 1..train.num_steps - schedule.warmup_steps = 100",
        ),
        ("wsd", {"decay_steps": 0}, "not 0"),
        ("wsd", {"end_lr_ratio": 1.0}, "schedule.end_lr_ratio must lie in [0, 1), not 1.0"),
        ("polynomial", {"power": 0.0}, "schedule.power must be above 0, not 0.0"),
        ("step", {"factor": 1.5}, "schedule.factor must lie in (0, 1], not 1.5"),
        ("step", {"period_steps": 0}, "schedule.period_steps must be at least 1, not 0"),
        ("cyclical", {"period_steps": 1}, "schedule.period_steps must be at least 2, not 1"),
        ("linear", {"decay_steps": 5}, "schedule.decay_steps has no effect with schedule.name=linear (it is for wsd)"),
        ("cosine", {"power": 2.0}, "schedule.power has no effect with schedule.name=cosine (it is for polynomial)"),
        ("constant", {"end_lr_ratio": 0.1}, "schedule.end_lr_ratio has no effect with schedule.name=constant"),
        ("wsd", {"factor": 0.1}, "schedule.factor has no effect with schedule.name=wsd (it is for step, exponential, "),
    ],
)
def test_what_only_some_schedules_read(name: str, settings: dict, words: str) -> None:
    with refused(words):
        Schedule(name, learning_rate=1e-4, warmup_steps=0, num_steps=100, **settings)


def test_defaults_of_schedules_follow_the_run() -> None:
    assert (
        Schedule("wsd", learning_rate=1e-4, warmup_steps=0, num_steps=100).decay,
        Schedule("wsd", learning_rate=1e-4, warmup_steps=95, num_steps=100).decay,
    ) == (10, 5)
    assert Schedule("wsd", learning_rate=1e-4, warmup_steps=3, num_steps=3).decay == 1
    assert (
        Schedule("step", learning_rate=1e-4, warmup_steps=0, num_steps=99).period,
        Schedule("cyclical", learning_rate=1e-4, warmup_steps=0, num_steps=1).period,
    ) == (25, 2)
    assert (
        Schedule("bert", learning_rate=1e-4, warmup_steps=0, num_steps=9).end,
        Schedule("slanted_triangular", learning_rate=1e-4, warmup_steps=1, num_steps=9).end,
    ) == (0, 1 / 32)


@pytest.mark.parametrize("sizes", [(-1, -1, 1), (0, 1, 1), (1, -2, 1)])
def test_mesh_sizes_are_positive_and_one_may_be_the_rest(sizes: tuple) -> None:
    with refused(f"must be positive, at most one of them -1, not {sizes}"):
        MeshConfig(*sizes)


def test_mesh_shapes() -> None:
    assert MeshConfig().shape(8) == (8, 1, 1)
    assert MeshConfig(2, -1, 2).shape(8) == (2, 2, 2)
    assert MeshConfig(2, 2, 1).shape(8) == (2, 2, 1)  # fewer than the run has
    assert (MeshConfig(2, 4, 1).batch_shards, MeshConfig(-1, 4, 1).batch_shards) == (8, None)
    with refused("mesh.data=4, mesh.fsdp=4, mesh.tensor=1 needs 16 devices, but there are 8"):
        MeshConfig(4, 4, 1).shape(8)
    with refused("mesh.data=-1, mesh.fsdp=3, mesh.tensor=1: 8 devices cannot be split by 3"):
        MeshConfig(-1, 3, 1).shape(8)


def test_the_tensor_axis_never_cuts_through_a_head() -> None:
    MeshConfig(1, 1, 4).check_model(EncoderConfig())
    with refused("mesh.tensor=8 does not divide model.num_heads=12; 1, 2, 3, 4, 6, 12 do"):
        MeshConfig(1, 1, 8).check_model(EncoderConfig())
    with refused("mesh.tensor=4 does not divide model.num_key_value_heads=3; 1, 3 do"):
        MeshConfig(1, 1, 4).check_model(EncoderConfig(num_key_value_heads=3))
    with refused("mesh.tensor=3 does not divide model.intermediate_size=64; 1, 2, 4, 8, 16, 32, 64 do"):
        MeshConfig(1, 1, 3).check_model(EncoderConfig(intermediate_size=64))


def test_rows_must_be_dealt_evenly() -> None:
    check_batch_size("train.batch_size", 64, 4, 8)
    with refused("train.batch_size=50 is not divisible by 32: train.microbatches=4 times the 8 devices"):
        check_batch_size("train.batch_size", 50, 4, 8)
    with pytest.raises(UserError, match=r"nearest that are: 32, 64$"):
        check_batch_size("train.batch_size", 50, 4, 8)
    with pytest.raises(UserError, match=r"nearest that are: 32$"):
        check_batch_size("train.batch_size", 0, 4, 8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": "10"}, "profile.steps='10' is not FIRST:LAST, two steps counted from 1, such as 10:15"),
        ({"steps": "5:4"}, "profile.steps='5:4' is not FIRST:LAST"),
        ({"steps": "0:4"}, "profile.steps='0:4' is not FIRST:LAST"),
        ({"steps": "11:12"}, "profile.steps=11:12 starts after the last step, train.num_steps=10"),
    ],
)
def test_profile(changes: dict, words: str) -> None:
    with refused(words):
        Profile(**changes, num_steps=10)
