"""Attributes the time of a step to named scopes of the model and the step, from a profiler trace.

A fused operation counts for the scope of its result, so the shares are approximate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax

from bertjax.runtime.scopes import StepScope, scopes_by_instruction


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
