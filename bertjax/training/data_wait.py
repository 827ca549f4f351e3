"""How long the devices have nothing to do because the next batch is not there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import jax

Item = TypeVar("Item")
SECONDS_TO_END = 60.0


class DataWaitTimer:
    """Seconds between the end of a step on the devices and the arrival of the batch that they need next.

    The loop runs ahead of the devices: while it waits for a batch they are often at work still, and nothing is lost. So
    a thread of its own notes when each step ends; nobody waits for a device on that account. Close it at the end.
    """

    def __init__(self) -> None:
        self.has_warned = self._is_closed = False
        self._seconds = 0.0
        self._sent = 0
        self._ended = 0, time.perf_counter()  # how many steps, and when the last one of them
        self._steps: SimpleQueue[Any] = SimpleQueue()
        self._thread = Thread(target=self._watch, daemon=True, name="waiting")
        self._thread.start()

    def each(self, batches: Iterable[Item]) -> Iterator[Item]:
        """The same batches."""
        iterator = iter(batches)
        while True:
            began = time.perf_counter()
            item = next(iterator, None)
            self._arrived(began, time.perf_counter())
            if item is None:
                return
            yield item

    def _arrived(self, began: float, now: float) -> None:
        steps, at = self._ended
        if steps == self._sent:
            self._seconds += max(now - max(began, at), 0.0)

    def sent(self, figures: Any) -> None:
        """A step is on its way; its end is when `figures` are there."""
        self._sent += 1
        self._steps.put(figures)

    def lap(self) -> float:
        """Seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def close(self) -> None:
        """Ends the thread: one that is still in jax when Python ends would take the process down with an abort."""
        self._is_closed = True
        self._steps.put(None)
        self._thread.join(SECONDS_TO_END)  # not for ever: a device may hang

    def _watch(self) -> None:
        count = 0
        while (figures := self._steps.get()) is not None and not self._is_closed:
            with contextlib.suppress(Exception):  # the loop reads them, too, and that is where it belongs
                jax.block_until_ready(figures)
            count += 1
            self._ended = count, time.perf_counter()
