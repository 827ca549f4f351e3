"""The length of runs with phases: a step takes as long as its tokens, and every phase is compiled."""

from __future__ import annotations

from typing import Any

import pytest

from bertjax.experiment.config import load_config
from bertjax.tools.measured_step import EVALUATION_SHARE, MeasuredStep
from bertjax.tools.plan import too_short
from bertjax.tools.run_length import Cost, run_seconds, steps_in

COST = Cost(slot_seconds=1e-4, compile_seconds=20.0)
BATCHES = {"data.seq_len": 512, "train.batch_size": 32}
PUBLISHED = load_config("bert:mini", BATCHES)  # 90 % of the steps have 128 tokens
ALONE = load_config("bert:mini", {**BATCHES, "train.phases": ()})
RAMP = load_config("bert:mini", {**BATCHES, "train.phases": (), "train.initial_batch_size": 16})  # 10 % of the steps


@pytest.mark.parametrize(
    ("cfg", "slots", "programs"),
    [
        (ALONE, 1000 * 32 * 512, 1),
        (PUBLISHED, 900 * 32 * 128 + 100 * 32 * 512, 2),
        (RAMP, 100 * 16 * 512 + 900 * 32 * 512, 2),
    ],
)
def test_counts_tokens_and_programs(cfg: Any, slots: int, programs: int) -> None:
    assert run_seconds(cfg, 1000, COST) == pytest.approx(slots * 1e-4 + 20 * programs)


def test_later_phases_have_a_speed_of_their_own() -> None:
    cost = COST._replace(later_slot_seconds=3e-4)
    assert run_seconds(PUBLISHED, 1000, cost) == pytest.approx(40 + 32 * (1e-4 * 900 * 128 + 3e-4 * 100 * 512))
    assert run_seconds(PUBLISHED, 1000, cost, start=900) == pytest.approx(20 + 1e-4 * 32 * 100 * 512)
    assert run_seconds(ALONE, 1000, cost) == run_seconds(ALONE, 1000, COST)


def test_counts_from_a_step_on() -> None:
    assert run_seconds(PUBLISHED, 1000, COST, start=400) == pytest.approx(40 + 1e-4 * 32 * (500 * 128 + 100 * 512))
    assert run_seconds(PUBLISHED, 1000, COST, start=900) == pytest.approx(20 + 1e-4 * 32 * 100 * 512)


@pytest.mark.parametrize("cfg", [ALONE, PUBLISHED, RAMP])
@pytest.mark.parametrize("start", [0, 70])
@pytest.mark.parametrize("seconds", [60.0, 601.0])
def test_the_longest_run_that_fits(cfg: Any, start: int, seconds: float) -> None:
    steps = steps_in(cfg, seconds, COST, start)
    assert run_seconds(cfg, steps, COST, start) <= seconds < run_seconds(cfg, steps + 1, COST, start)


@pytest.mark.parametrize("cfg", [ALONE, PUBLISHED])
def test_no_step_fits(cfg: Any) -> None:
    assert steps_in(cfg, 1.0, COST) == 0
    assert steps_in(cfg, 1.0, COST, 70) == 70


def test_a_measured_step_is_one_of_the_last_phase() -> None:
    """9 s per step of 512 tokens, of which 2 % are padding: 100 steps of mostly 128 take a third of that."""
    tokens = 0.98 * 32 * 512
    step = MeasuredStep("this config", PUBLISHED, 1, 1, tokens / 9, tokens, 0.25, 7.0, 1, 1, 10.0)
    alone = step._replace(cfg=ALONE)
    usable = 1 - EVALUATION_SHARE
    assert alone.seconds_of(100) == pytest.approx((10 + 900) / usable)
    assert step.seconds_of(100) == pytest.approx((20 + 90 * 9 / 4 + 10 * 9) / usable)
    assert alone.steps_in(8.5 * 60) == int((8.5 * 60 * usable - 10) / 9)
    steps = step.steps_in(8.5 * 60)
    assert step.seconds_of(steps) <= 8.5 * 60 < step.seconds_of(steps + 1)
    assert step.tokens_of(1000) == pytest.approx(0.98 * 32 * (900 * 128 + 100 * 512))
    assert "100 steps of this config take 5.8 minutes here" in str(too_short(1, step))
