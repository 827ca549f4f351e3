"""Clocks of the training loop (between two reports, waiting for data), and a trace of some steps (`profile.steps`)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import jax

from bertjax.training.run_context import RunContext

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


HOW_TO_OPEN = (
    "a trace of steps {first} to {last} is in {folder}: load its perfetto_trace.json.gz at https://ui.perfetto.dev "
    "or see the tab Profile of: tensorboard --logdir {root} (pip install tensorboard tensorboard-plugin-profile)"
)
NO_TRACE = "warning: profile.steps gave no trace ({error}); the run goes on"


class Profiler:
    """Records the steps of `profile.steps` in the work directory; a `with` ends the trace with the run.

    Layout: `profile/plugins/profile/<time>/`, with `<host>.xplane.pb` for TensorBoard and `perfetto_trace.json.gz`.
    Only the first process records. A run that is resumed among these steps records the remaining ones. When a trace
    fails, the console prints why, and the run goes on.
    """

    def __init__(self, run: RunContext):
        self._steps, self._console, self._root = run.config.profile.recorded, run.console, run.workdir / "profile"
        self._waits = bool(self._steps) and jax.process_index() == 0
        self._first: int | None = None  # first step of the trace; None = not recording
        self._last = 0
        self._mark: Any = None

    def __enter__(self) -> Profiler:
        return self

    def before_dispatch(self, step: int, state: Any, count: int = 1) -> None:
        """Begins or ends the trace before the steps `step` + 1 to `step` + `count` are dispatched.

        Waits for the devices at both ends, so that the trace holds these steps alone.

        Args:
            step: Number of steps dispatched so far.
            state: State after them, perhaps not yet computed.
            count: Number of steps about to be dispatched.
        """
        if not self._waits and self._first is None:
            return
        self._unmark()
        if step + 1 >= self._steps.stop:
            jax.block_until_ready(state)
            self._waits = False
            self._end()
        elif self._waits and step + count >= self._steps.start:
            jax.block_until_ready(state)
            self._waits = False
            self._begin(step + 1)
        if self._first is not None:
            self._last = step + count
            self._mark = jax.profiler.StepTraceAnnotation("train", step_num=step + 1)
            self._mark.__enter__()

    def __exit__(self, *_: object) -> None:
        self._unmark()
        self._end()

    def _begin(self, first: int) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # one event per Python call would displace those of the devices
        try:
            jax.profiler.start_trace(str(self._root), create_perfetto_trace=True, profiler_options=options)
            self._first = first
        except (OSError, RuntimeError) as error:
            self._console.print(NO_TRACE.format(error=error))

    def _end(self) -> None:
        first, self._first = self._first, None
        if first is None:
            return
        try:
            jax.profiler.stop_trace()
            folder = max((self._root / "plugins" / "profile").iterdir(), key=lambda path: path.stat().st_mtime)
        except (OSError, RuntimeError, ValueError) as error:  # a full disk, or another file than jax expects
            self._console.print(NO_TRACE.format(error=error))
            return
        self._console.print(HOW_TO_OPEN.format(first=first, last=self._last, folder=folder, root=self._root))

    def _unmark(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
