"""What both sides of a comparison give: turns of some steps each, and what follows from several of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class TimedRun(NamedTuple):
    """Steps one behind the other: seconds on the clock, from the first batch wanted to the last result there.

    `waited` are the seconds of them in which the step's batch was not there yet.
    """

    steps: int
    seconds: float
    real_tokens: int
    slots: int  # places for tokens, padding included
    waited: float = 0.0

    @property
    def seconds_per_step(self) -> float:
        return self.seconds / self.steps

    @property
    def tokens_per_second(self) -> float:
        return self.real_tokens / self.seconds


class Runner(Protocol):
    """One that trains."""

    def run(self, steps: int) -> TimedRun: ...


class MedianRange(NamedTuple):
    """The middle one of several figures, the least and the greatest."""

    median: float
    low: float
    high: float


def median_range(values: Sequence[float]) -> MedianRange:
    return MedianRange(statistics.median(values), min(values), max(values))


def interleave(sides: Sequence[Runner], turns: int, steps: int) -> list[list[TimedRun]]:
    """The turns of each side: all of them take one after the other, so that a slow minute slows all alike.

    One step before every turn is not counted: whoever waited finds its memory cold, or taken by the system meanwhile.
    """
    found: list[list[TimedRun]] = [[] for _ in sides]
    for _ in range(turns):
        for own, side in zip(found, sides, strict=True):
            side.run(1)
            own.append(side.run(steps))
    return found


def speed_ratios(ours: Sequence[TimedRun], theirs: Sequence[TimedRun]) -> MedianRange:
    """Real tokens a second of ours over theirs, turn by turn."""
    return median_range(
        [one.tokens_per_second / other.tokens_per_second for one, other in zip(ours, theirs, strict=True)]
    )
