"""Timed runs of two or more trainers, interleaved, and the statistics over them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from bertjax.io.stderr import note


class TimedRun(NamedTuple):
    """Consecutive steps, timed from the request for the first batch to the last result.

    slots      token slots, padding included
    data_wait  seconds in which the next batch was not ready
    """

    steps: int
    seconds: float
    real_tokens: int
    slots: int
    data_wait: float = 0.0

    @property
    def seconds_per_step(self) -> float:
        """Mean seconds per step."""
        return self.seconds / self.steps

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second, padding not counted."""
        return self.real_tokens / self.seconds


class Runner(Protocol):
    """A trainer that is timed."""

    def run(self, steps: int) -> TimedRun:
        """Trains `steps` steps and returns their time."""


def median_range(values: Sequence[float]) -> dict[str, float]:
    """Returns the median and the range of at least one value."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def interleave(runners: Sequence[Runner], repeats: int, steps: int) -> list[list[TimedRun]]:
    """Returns the timed runs of each runner; they alternate, so that a slow minute slows all of them.

    Args:
        runners: trainers.
        repeats: timed runs per runner.
        steps: per timed run. One more step before each is not counted: its memory has left the caches meanwhile.
    """
    runs: list[list[TimedRun]] = [[] for _ in runners]
    for repeat in range(repeats):
        note(f"repeat {repeat + 1} of {repeats}, {steps} {'step' if steps == 1 else 'steps'}")
        for timed, runner in zip(runs, runners, strict=True):
            runner.run(1)
            timed.append(runner.run(steps))
    return runs


def speed_ratios(runs: Sequence[TimedRun], baseline: Sequence[TimedRun]) -> dict[str, float]:
    """Returns the ratio of real tokens per second, pair by pair."""
    return median_range([a.tokens_per_second / b.tokens_per_second for a, b in zip(runs, baseline, strict=True)])
