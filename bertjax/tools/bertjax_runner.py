"""Runs the train step for the benchmark: loader, dispatch and order of calls of the training loop, without logging.

A profiler trace gives the time of every named scope of the step.
"""

from __future__ import annotations

import contextlib
import functools
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.data import from_config
from bertjax.data.from_config import Prepared
from bertjax.experiment import build
from bertjax.runtime import platform
from bertjax.tools.hlo import StepScope, scopes_by_instruction
from bertjax.tools.interleaved_timing import TimedRun
from bertjax.training.flops import bytes_per_device
from bertjax.training.sharding import local_sequences, put_batch
from bertjax.training.timing import DataWaitTimer
from bertjax.types import Batch


class BertjaxRunner:
    """Trains the last phase of a config on its own text, from the first batch on. Close it at the end."""

    def __init__(self, exp: build.Experiment, prepared: Prepared):
        self.exp, self._program = exp, exp.programs[-1]
        pipeline = from_config.training_pipeline(exp.cfg, prepared, functools.partial(local_sequences, mesh=exp.mesh))
        self._steps_per_dispatch = exp.cfg.train.steps_per_dispatch
        self._pipeline = pipeline.prefetch(self._program.phase.start, self._program.phase.start + (1 << 40))
        self._timer = DataWaitTimer()
        self._batches = self._timer.timed(self._pipeline)
        self._state = exp.init_state()
        self.state_bytes = bytes_per_device(self._state, exp.mesh)
        self.compile_seconds, self.compiled = self._compile(self._next())
        self.peak_bytes = 0

    def _next(self) -> list[Batch]:
        """Returns the batches of one dispatch."""
        return [batch for _, (_, batch) in zip(range(self._steps_per_dispatch), self._batches, strict=False)]

    def _put(self, batches: list[Batch]) -> Any:
        arrays = [put_batch(batch, self.exp.mesh) for batch in batches]
        return arrays if self._steps_per_dispatch > 1 else arrays[0]

    def _compile(self, batches: list[Batch]) -> tuple[float, Any]:
        """Returns the seconds to trace and compile without a cache, and the compiled step or steps."""
        step = self._program.train_steps if self._steps_per_dispatch > 1 else self._program.train_step
        with jax.set_mesh(self.exp.mesh), platform.compile_cache_disabled():
            arrays = self._put(batches)
            began = time.perf_counter()
            compiled = step.compile(self._state, self.exp.frozen, arrays)
            return time.perf_counter() - began, compiled

    @property
    def step_bytes(self) -> int | None:
        """Bytes per device that the step needs in addition to the state; None where the backend does not report it."""
        analysis = self.compiled.jitted.memory_analysis()
        return None if analysis is None else analysis.temp_size_in_bytes

    def run(self, steps: int) -> TimedRun:
        """Trains at least `steps` steps: whole dispatches of `train.steps_per_dispatch`."""
        self._timer.lap()
        counts: list[Any] = []
        slots = 0
        began = time.perf_counter()
        with jax.set_mesh(self.exp.mesh):
            for _ in range(-(-steps // self._steps_per_dispatch)):
                batches = self._next()
                metrics = self._step(batches)
                self._timer.dispatched(metrics)
                counts.append(metrics["real_tokens"])
                slots += sum(batch["segment_ids"].size for batch in batches)
        jax.block_until_ready(metrics)
        seconds = time.perf_counter() - began
        self.peak_bytes = self.peak_bytes or _peak_bytes(self.exp.mesh)  # before another process uses the device
        real_tokens = int(np.sum(jax.device_get(counts)))
        steps = len(counts) * self._steps_per_dispatch
        return TimedRun(steps, seconds, real_tokens, slots, min(self._timer.lap(), seconds))

    def _step(self, batches: list[Batch]) -> Any:
        self._state, metrics = self.compiled(self._state, self.exp.frozen, self._put(batches))
        return metrics

    def trace(self, steps: int) -> dict[StepScope, float]:
        """Returns the device seconds per step of each scope, from a profiler trace of at least `steps` steps."""
        dispatches = [self._next() for _ in range(-(-steps // self._steps_per_dispatch))]
        with tempfile.TemporaryDirectory(prefix="bertjax-trace-") as folder, jax.set_mesh(self.exp.mesh):
            with jax.profiler.trace(folder):
                for batches in dispatches:
                    metrics = self._step(batches)
                jax.block_until_ready(metrics)
            scopes = seconds_by_scope(folder, self.compiled.jitted.as_text())
        traced = len(dispatches) * self._steps_per_dispatch
        return {scope: seconds / traced for scope, seconds in scopes.items()}

    def examples(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields the examples of the following batches without padding, endlessly."""
        for _, batch in self._batches:
            yield from split_examples(batch)

    def close(self) -> None:
        """Closes the pipeline and the timer."""
        with contextlib.suppress(Exception):
            self._pipeline.close()
        self._timer.close()


def split_examples(batch: Batch) -> Iterator[dict[str, np.ndarray]]:
    """Yields the packed examples of a batch.

    Args:
        batch: `input_ids`, `segment_ids`, `token_type_ids` [B, S] and, optionally, `pair_labels` [B, E].

    Yields:
        `input_ids` and `token_type_ids` [tokens of the example] and, if present, `pair_labels` [].
    """
    for row, segments in enumerate(batch["segment_ids"]):
        for number in range(1, int(segments.max(initial=0)) + 1):
            tokens = segments == number
            example = {name: batch[name][row][tokens] for name in ("input_ids", "token_type_ids")}
            if "pair_labels" in batch:
                example["pair_labels"] = batch["pair_labels"][row][number - 1]
            yield example


def _peak_bytes(mesh: jax.sharding.Mesh) -> int:
    """Returns the peak of the fullest device, or of this process where devices do not report it."""
    stats = [device.memory_stats() or {} for device in mesh.local_devices]
    peaks = [each["peak_bytes_in_use"] for each in stats if "peak_bytes_in_use" in each]
    unit = 1 if sys.platform == "darwin" else 1024
    return max(peaks) if peaks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def seconds_by_scope(folder: str | Path, hlo: str) -> dict[StepScope, float]:
    """Returns the seconds in the newest trace below `folder`, summed over threads or devices; `hlo` is its program."""
    scopes = scopes_by_instruction(hlo)
    total: defaultdict[StepScope, float] = defaultdict(float)
    for line in _device_lines(folder):
        for name, seconds in self_times(line):
            if name in scopes:
                total[scopes[name]] += seconds
    return dict(total)


def self_times(events: Iterable[tuple[str, float, float]]) -> Iterator[tuple[str, float]]:
    """Yields the time of each (name, start, end) of a thread without that of the events inside it."""
    stack: list[list[Any]] = []  # name, end, self time

    def finished(until: float) -> Iterator[tuple[str, float]]:
        while stack and stack[-1][1] <= until:
            name, _, seconds = stack.pop()
            yield name, seconds

    for name, start, end in sorted(events, key=lambda event: (event[1], -event[2])):
        yield from finished(start)
        if stack:
            stack[-1][2] -= end - start
        stack.append([name, end, end - start])
    yield from finished(float("inf"))


def _device_lines(folder: str | Path) -> Iterator[list[tuple[str, float, float]]]:
    """Yields the operations of every thread or stream; of accelerators only, if the trace has any."""
    newest = max(Path(folder).rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    planes = list(jax.profiler.ProfileData.from_file(str(newest)).planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:")]
    for plane in devices or planes:
        for line in plane.lines:
            events = []
            for event in line.events:
                name = next((str(value) for key, value in event.stats if key == "hlo_op"), None)
                if name is not None:
                    start = event.start_ns * 1e-9
                    events.append((name, start, start + event.duration_ns * 1e-9))
            yield events
