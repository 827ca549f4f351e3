"""Our side of the benchmark: the step, the loader and the order of calls of the training loop, without its writing."""

from __future__ import annotations

import contextlib
import functools
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from bertjax.benchmark.interleaved_timing import TimedRun
from bertjax.benchmark.trace import StepScope, seconds_by_scope
from bertjax.data import corpora
from bertjax.data.corpora import Prepared
from bertjax.experiment import build
from bertjax.runtime import platform
from bertjax.training.flops import bytes_per_device
from bertjax.training.sharding import local_sequences, put_batch
from bertjax.training.timing import DataWaitTimer
from bertjax.types import Batch


class BertjaxRunner:
    """The last stage of a config's run, on its own text, from the first batch on. Close it at the end."""

    def __init__(self, exp: build.Experiment, prepared: Prepared):
        self.exp, self._program = exp, exp.programs[-1]
        pipeline = corpora.training_pipeline(exp.cfg, prepared, functools.partial(local_sequences, mesh=exp.mesh))
        self._together = exp.cfg.train.steps_per_dispatch
        self._batches = pipeline.prefetch(self._program.phase.start, self._program.phase.start + (1 << 40))
        self._waiting = DataWaitTimer()
        self._rest = self._waiting.timed(self._batches)
        self._state = exp.init_state()
        self.state_bytes = bytes_per_device(self._state, exp.mesh)
        self.compile_seconds, self.compiled = self._compile(self._next())
        self.peak_bytes = 0

    def _next(self) -> list[Batch]:
        """The batches that go to the devices at once."""
        return [batch for _, (_, batch) in zip(range(self._together), self._rest, strict=False)]

    def _placed(self, batches: list[Batch]) -> Any:
        placed = [put_batch(batch, self.exp.mesh) for batch in batches]
        return placed if self._together > 1 else placed[0]

    def _compile(self, batches: list[Batch]) -> tuple[float, Any]:
        """Seconds that tracing and compiling the step, or steps, take without a cache, and what is compiled."""
        step = self._program.train_steps if self._together > 1 else self._program.train_step
        with jax.set_mesh(self.exp.mesh), platform.compile_cache_disabled():
            placed = self._placed(batches)
            began = time.perf_counter()
            compiled = step.compile(self._state, self.exp.frozen, placed)
            return time.perf_counter() - began, compiled

    @property
    def step_bytes(self) -> int | None:
        """Bytes that one device needs beside the state while the step runs; None where the backend does not tell."""
        analysis = self.compiled.jitted.memory_analysis()
        return None if analysis is None else analysis.temp_size_in_bytes

    def run(self, steps: int) -> TimedRun:
        """At least so many steps; whole portions of `train.steps_per_dispatch`."""
        self._waiting.lap()
        counts: list[Any] = []
        slots = 0
        began = time.perf_counter()
        with jax.set_mesh(self.exp.mesh):
            for _ in range(-(-steps // self._together)):
                batches = self._next()
                figures = self._step(batches)
                self._waiting.dispatched(figures)
                counts.append(figures["real_tokens"])
                slots += sum(batch["segment_ids"].size for batch in batches)
        jax.block_until_ready(figures)
        seconds = time.perf_counter() - began
        self.peak_bytes = self.peak_bytes or _peak_bytes(self.exp.mesh)  # later on, a peer may have been here
        real = int(np.sum(jax.device_get(counts)))
        return TimedRun(len(counts) * self._together, seconds, real, slots, min(self._waiting.lap(), seconds))

    def _step(self, batches: list[Batch]) -> Any:
        self._state, figures = self.compiled(self._state, self.exp.frozen, self._placed(batches))
        return figures

    def trace(self, steps: int) -> dict[StepScope, float]:
        """Seconds of the devices' work a step, by the part of the step that it belongs to."""
        portions = [self._next() for _ in range(-(-steps // self._together))]
        with tempfile.TemporaryDirectory(prefix="bertjax-trace-") as folder, jax.set_mesh(self.exp.mesh):
            jax.profiler.start_trace(folder)
            try:
                for batches in portions:
                    figures = self._step(batches)
                jax.block_until_ready(figures)
            finally:
                jax.profiler.stop_trace()
            found = seconds_by_scope(folder, self.compiled.jitted.as_text())
        made = len(portions) * self._together
        return {part: seconds / made for part, seconds in found.items()}

    def examples(self) -> Iterator[dict[str, np.ndarray]]:
        """Every example of the batches that follow, without its padding, as long as anybody asks."""
        for _, batch in self._rest:
            yield from split_examples(batch)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._batches.close()
        self._waiting.close()


def split_examples(batch: Batch) -> Iterator[dict[str, np.ndarray]]:
    """The examples of a batch's rows one by one: `input_ids`, `token_type_ids` and, if there is one, `pair_labels`."""
    for row, segments in enumerate(batch["segment_ids"]):
        for number in range(1, int(segments.max(initial=0)) + 1):
            own = segments == number
            example = {name: batch[name][row][own] for name in ("input_ids", "token_type_ids")}
            if "pair_labels" in batch:
                example["pair_labels"] = batch["pair_labels"][row][number - 1]
            yield example


def _peak_bytes(mesh: jax.sharding.Mesh) -> int:
    """Of the fullest device, or of this process where devices do not tell."""
    told = [device.memory_stats() or {} for device in mesh.local_devices]
    peaks = [stats["peak_bytes_in_use"] for stats in told if "peak_bytes_in_use" in stats]
    unit = 1 if sys.platform == "darwin" else 1024
    return max(peaks) if peaks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
