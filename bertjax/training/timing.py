"""Clocks of the training loop: the time between two reports, and the time that devices wait for data."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import jax

Item = TypeVar("Item")
JOIN_SECONDS = 60.0


class StepClock:
    """Seconds since the last reading, without the time spent in `paused` blocks."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._excluded = 0.0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the time of a `with` block: an evaluation, a checkpoint."""
        start = time.monotonic()
        yield
        self._excluded += time.monotonic() - start

    def lap(self) -> float:
        """Returns the seconds since the last call, and starts again."""
        now = time.monotonic()
        seconds = max(now - self._start - self._excluded, 1e-9)
        self._start, self._excluded = now, 0.0
        return seconds


class DataWaitTimer:
    """Seconds between the end of a step on the devices and the arrival of the batch that they need next.

    The loop dispatches ahead of the devices: while it waits for a batch they are often still at work, and no time is
    lost. A thread notes when each step ends, so that the loop never waits for a device. Close it at the end.
    """

    def __init__(self) -> None:
        self.has_warned = self._is_closed = False
        self._seconds = self._waited = self._idle = 0.0
        self._dispatched = 0
        self._finished = 0, time.perf_counter()  # number of steps, and the time when the last of them ended
        self._steps: SimpleQueue[Any] = SimpleQueue()
        self._thread = Thread(target=self._watch, daemon=True, name="data-wait")
        self._thread.start()

    def timed(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yields the batches, and measures how long each takes to arrive."""
        iterator = iter(batches)
        while True:
            start = time.perf_counter()
            item = next(iterator, None)
            steps, ended = self._finished
            if steps == self._dispatched:  # the devices are idle
                waited = max(time.perf_counter() - max(start, ended), 0.0)
                self._seconds, self._waited = self._seconds + waited, self._waited + waited
            if item is None:
                return
            yield item

    def dispatched(self, metrics: Any) -> None:
        """Counts a step on its way; it ends when its `metrics` are ready."""
        steps, ended = self._finished
        if steps == self._dispatched > 0:
            self._idle += time.perf_counter() - ended
        self._dispatched += 1
        self._steps.put(metrics)

    def totals(self) -> tuple[float, float]:
        """Returns the seconds for which the devices had no step, and for which there was no batch, since the start."""
        return self._idle, self._waited

    def lap(self) -> float:
        """Returns the seconds waited since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def close(self) -> None:
        """Ends the thread: one that is still in jax when Python exits aborts the process."""
        self._is_closed = True
        self._steps.put(None)
        self._thread.join(JOIN_SECONDS)  # a device may hang

    def _watch(self) -> None:
        count = 0
        while (metrics := self._steps.get()) is not None and not self._is_closed:
            with contextlib.suppress(Exception):  # the loop reads the same metrics and raises their errors
                jax.block_until_ready(metrics)
            count += 1
            self._finished = count, time.perf_counter()
