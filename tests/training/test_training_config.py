"""What the training configs refuse, and in which words."""

from __future__ import annotations

import re

import pytest

from bertjax.training.config import (
    LoopConfig,
    MeshConfig,
    OptimizerConfig,
    ScheduleConfig,
    check_rows,
    parse_rules,
)
from bertjax.types import UserError


def refused(words: str):
    return pytest.raises(UserError, match=re.escape(words))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "lion"}, "optimizer.name must be one of adamw, not 'lion'"),
        ({"b1": 1.0}, "optimizer.b1 must lie in [0, 1), not 1.0"),
        ({"b2": -0.1}, "optimizer.b2 must lie in [0, 1), not -0.1"),
        ({"eps": -1.0}, "optimizer.eps must not be negative, not -1.0"),
        ({"weight_decay": -0.01}, "optimizer.weight_decay must not be negative"),
        ({"clip_norm": -1.0}, "optimizer.clip_norm must not be negative"),
    ],
)
def test_optimizer(changes: dict, words: str) -> None:
    with refused(words):
        OptimizerConfig(**changes)


@pytest.mark.parametrize("text", ["encoder/.*", "a(=1", "=0.5", "a=fast"])
def test_broken_rules_name_their_key(text: str) -> None:
    with refused(f"optimizer.rates: {text!r} is not REGEX=FACTOR"):
        parse_rules((text,), "optimizer.rates")


def test_rules_split_at_the_last_sign() -> None:
    assert parse_rules((r"a(?=b).*=0.5", "c=1e-2"), "k") == [(r"a(?=b).*", 0.5), ("c", 0.01)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("step", 1e-4, 0, 10), "schedule.name must be one of bert, linear, cosine, constant, not 'step'"),
        (("bert", 1e-4, 11, 10), "schedule.warmup_steps must lie in 0..train.num_steps = 10, not 11"),
        (("bert", 1e-4, -1, 10), "schedule.warmup_steps must lie in 0..train.num_steps = 10, not -1"),
        (("bert", 0.0, 1, 10), "optimizer.learning_rate must be positive, not 0.0"),
        (("bert", float("nan"), 1, 10), "optimizer.learning_rate must be positive, not nan"),
    ],
)
def test_schedule(arguments: tuple, words: str) -> None:
    with refused(words):
        ScheduleConfig(*arguments)


@pytest.mark.parametrize("sizes", [(-1, -1, 1), (0, 1, 1), (1, -2, 1)])
def test_mesh_sizes_are_positive_and_one_may_be_the_rest(sizes: tuple) -> None:
    with refused(f"must be positive, at most one of them -1, not {sizes}"):
        MeshConfig(*sizes)


def test_mesh_shapes() -> None:
    assert MeshConfig().shape(8) == (8, 1, 1)
    assert MeshConfig(2, -1, 2).shape(8) == (2, 2, 2)
    assert MeshConfig(2, 2, 1).shape(8) == (2, 2, 1)  # fewer than there are
    assert (MeshConfig(2, 4, 1).row_ways, MeshConfig(-1, 4, 1).row_ways) == (8, None)
    with refused("mesh.data=4, mesh.fsdp=4, mesh.tensor=1 needs 16 devices, but there are 8"):
        MeshConfig(4, 4, 1).shape(8)
    with refused("mesh.data=-1, mesh.fsdp=3, mesh.tensor=1: 8 devices cannot be split by 3"):
        MeshConfig(-1, 3, 1).shape(8)


def test_the_tensor_axis_never_cuts_through_a_head() -> None:
    MeshConfig(1, 1, 4).check_model(12, 3072)
    with refused("mesh.tensor=8 does not divide model.num_heads=12; 1, 2, 3, 4, 6, 12 do"):
        MeshConfig(1, 1, 8).check_model(12, 3072)
    with refused("mesh.tensor=3 does not divide model.intermediate_size=64; 1, 2, 4, 8, 16, 32, 64 do"):
        MeshConfig(1, 1, 3).check_model(12, 64)


def test_rows_must_be_dealt_evenly() -> None:
    check_rows("train.batch_size", 64, 4, 8)
    with refused("train.batch_size=50 is not divisible by 32: train.microbatches=4 times the 8 devices"):
        check_rows("train.batch_size", 50, 4, 8)
    with pytest.raises(UserError, match=r"nearest that are: 32, 64$"):
        check_rows("train.batch_size", 50, 4, 8)
    with pytest.raises(UserError, match=r"nearest that are: 32$"):
        check_rows("train.batch_size", 0, 4, 8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_steps": 0}, "train.num_steps must be at least 1, not 0"),
        ({"log_interval_steps": 0}, "train.log_interval_steps must be at least 1, not 0"),
        ({"eval_interval_steps": -1}, "eval.interval_steps must not be negative, not -1"),
        ({"checkpoint_interval_steps": -1}, "checkpoint.interval_steps must not be negative, not -1"),
        ({"profile_num_steps": -1}, "profile.num_steps must not be negative, not -1"),
    ],
)
def test_loop(changes: dict, words: str) -> None:
    settings = {"num_steps": 10, "log_interval_steps": 1, "eval_interval_steps": 0, "checkpoint_interval_steps": 0}
    with refused(words):
        LoopConfig(**{**settings, "checkpoint_interval_minutes": None, **changes})
