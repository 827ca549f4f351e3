"""Runs the train step for the benchmark: loader, dispatch and order of calls of the training loop, without logging."""

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
from bertjax.benchmark.trace import seconds_by_scope
from bertjax.data import from_config
from bertjax.data.from_config import Prepared
from bertjax.experiment import build
from bertjax.runtime import platform
from bertjax.runtime.scopes import StepScope
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
