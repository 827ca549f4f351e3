"""The time that devices wait for data is measured apart from the loop's waits (reliability: a slow loader)."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from anomaly_lab import Lab, Rows
from jax.sharding import Mesh

from bertjax.training import metric_buffer, timing
from bertjax.training.timing import DataWaitTimer


class Step:
    """A device result that is ready after some seconds; None = not before `finish` is called."""

    def __init__(self, seconds: float | None):
        self.over = threading.Event()
        if seconds is not None:
            threading.Timer(seconds, self.over.set).start()

    def block_until_ready(self) -> Step:
        self.over.wait()
        return self


def arriving(times: list[float]) -> Iterator[int]:
    """Yields batches, each so many seconds after it was requested."""
    for number, seconds in enumerate(times):
        time.sleep(seconds)
        yield number


def waited(batches: list[float], steps: list[float | None]) -> tuple[float, float]:
    """Returns the seconds that the device waited, and the total."""
    began, waiting, made = time.perf_counter(), DataWaitTimer(), list[Step]()
    for number in waiting.timed(arriving(batches)):
        made.append(Step(steps[number]))
        waiting.dispatched(made[-1])
    took = time.perf_counter() - began
    for step in made:
        step.over.set()
    waiting.close()
    return waiting.lap(), took


def test_a_loop_that_runs_ahead_of_its_device_loses_nothing() -> None:
    """The loop waits for batches nearly all the time, but the device never does."""
    seconds, took = waited([0.0, 0.1, 0.1, 0.1], [None] * 4)
    assert seconds < 0.1 and took >= 0.3


def test_only_the_time_after_the_end_of_a_step_counts() -> None:
    seconds, took = waited([0.0, 0.5, 0.5], [0.2, 0.2, None])
    assert 0.1 < seconds <= took - 0.4  # 0.3 twice on an idle machine
    seconds, took = waited([0.3], [0.0])
    assert 0.29 < seconds <= took  # no step was in progress


def test_a_step_that_fails_is_over() -> None:
    class Broken(Step):
        def block_until_ready(self) -> Step:
            raise RuntimeError("the device is gone")

    waiting = DataWaitTimer()
    for _ in waiting.timed(arriving([0.0, 0.2])):
        waiting.dispatched(Broken(0.0))
    assert waiting.lap() > 0.05
    waiting.close()

    assert not waiting._thread.is_alive()


ENDING = """
import sys
import jax, jax.numpy as jnp
from bertjax.training.timing import DataWaitTimer

@jax.jit
def slow(x):
    return jax.lax.fori_loop(0, 200, lambda _, y: jnp.tanh(y @ y), x)

waiting = DataWaitTimer()
for _ in range(3):
    waiting.dispatched(slow(jnp.ones((300, 300))))
waiting.close()
assert not waiting._thread.is_alive()
sys.exit(3)
"""


@pytest.mark.long
def test_a_process_may_end_while_steps_are_under_way() -> None:
    """A thread inside jax would otherwise abort the process."""
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr


class Late(Rows):
    """Every batch is late from number 8 on."""

    def __init__(self, seconds: float):
        super().__init__({})
        self.seconds = seconds

    def prefetch(self, start_cursor: int, stop_cursor: int) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        for cursor, batch in super().prefetch(start_cursor, stop_cursor):
            time.sleep(self.seconds if cursor >= 8 else 0.0)
            yield cursor, batch


@pytest.mark.long
def test_the_share_is_written_and_a_slow_loader_warned_of_once(
    mesh_of: Callable[..., Mesh], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_buffer, "MIN_WAIT_SECONDS", 0.1)
    lab = Lab(mesh_of(1), tmp_path)
    lab.rows = Late(0.15)
    threads = threading.active_count()
    lab.run(num_steps=12, log=4, checkpoint=0)
    shares = {record["step"]: record["train/data_wait"] for record in lab.trained()}
    assert list(shares) == [4, 8, 12] and all(0.0 <= share <= 1.0 for share in shares.values())
    assert shares[12] > 0.3
    warnings = [line for line in lab.console.lines if line.startswith("warning")]
    assert len(warnings) == 1 and "the devices waited for data" in warnings[0]
    while threading.active_count() > threads:
        time.sleep(0.01)


def test_the_clock_leaves_out_what_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 106.0, 110.0, 110.0, 113.0, 113.0, 163.0, 163.0])
    monkeypatch.setattr(timing.time, "monotonic", lambda: next(times))
    clock = timing.StepClock()
    with clock.paused():
        pass
    assert clock.lap() == 6.0
    assert clock.lap() == 3.0  # the exclusion was used
    with clock.paused():
        pass
    assert 0 < clock.lap() < 1e-6  # never zero or less: rates divide by it
