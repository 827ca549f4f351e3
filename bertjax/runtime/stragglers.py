"""Finds a process that the others wait for, by the time for which its devices have nothing to do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

WINDOW_SECONDS = 10.0
WINDOWS = 3
MIN_SHARE, MIN_RATIO = 0.1, 1.5
REPEAT_SECONDS = 3600.0


class HostTimes(NamedTuple):
    """Seconds since the start of a run.

    Attributes:
        host: Name of the host.
        idle: Seconds for which the devices had no step to run.
        data_wait: Seconds of these for which there was no batch.
    """

    host: str
    idle: float
    data_wait: float


class StragglerDetector:
    """Compares processes window by window; a step of all takes as long as that of the slowest.

    While a process makes its batch, saves or is stopped, its own devices are idle, and those of the others wait inside
    the step, which does not count as idle. A device that is slow itself cannot be told from those that wait for it.

    Args:
        read: Returns the times of every process.
        clock: Returns the time in seconds.
    """

    def __init__(self, read: Callable[[], Mapping[int, HostTimes]], clock: Callable[[], float] = time.monotonic):
        self._read, self._clock = read, clock
        self._began, self._before = clock(), dict(read())
        self._suspect, self._count = -1, 0
        self._warned: dict[int, float] = {}

    def update(self) -> tuple[dict[str, float], str | None]:
        """Returns metrics and, of a process that is newly or still the slowest, a message; both empty in a window."""
        seconds = self._clock() - self._began
        if seconds < WINDOW_SECONDS:
            return {}, None
        now = dict(self._read())
        idle = {index: (now[index].idle - each.idle) / seconds for index, each in self._before.items() if index in now}
        waited = {index: (now[index].data_wait - self._before[index].data_wait) / seconds for index in idle}
        self._began, self._before = self._clock(), now
        if len(idle) < 2:
            return {}, None
        slowest = max(idle, key=lambda index: idle[index])
        others = statistics.median(share for index, share in idle.items() if index != slowest)
        is_slow = idle[slowest] > max(MIN_SHARE, MIN_RATIO * others)
        self._count = self._count + 1 if is_slow and slowest == self._suspect else int(is_slow)
        self._suspect = slowest if is_slow else -1
        metrics = {
            "train/slowest_process": float(slowest),
            "train/slowest_idle": idle[slowest],
            "train/others_idle": others,
        }
        if self._count < WINDOWS or self._clock() - self._warned.get(slowest, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return metrics, None
        self._warned[slowest] = self._clock()
        return metrics, (
            f"warning: the others wait for process {slowest} on {now[slowest].host}: its devices were idle "
            f"{100 * idle[slowest]:.0f} % of the time, {100 * min(waited[slowest], idle[slowest]):.0f} % for lack of a "
            f"batch, those of the others {100 * others:.0f} %; is its disk slow, or its processor busy with other "
            "programs?"
        )
