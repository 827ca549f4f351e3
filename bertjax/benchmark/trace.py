"""Where a step's time goes: a trace of the devices' operations, each counted for the part of the step it belongs to.

The parts are the named scopes of the model and of the step. An operation that the compiler made of several is counted
for the part of its result, so that shares are near, not exact.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bertjax.runtime.hlo import Instruction, Program, parse_hlo

SCOPES = {
    "corruption": "hiding tokens",
    "embeddings": "embeddings",
    "attention": "attention: products, layout",
    "softmax": "attention: softmax",
    "feed_forward": "feed-forward",
    "convolution": "convolution",
    "dropout": "dropout",
    "layer": "norms and residuals",
    "head": "heads and losses",
    "optimizer": "clipping and optimizer",
    "figures": "figures and checks",
}
OTHER = "other"
_SCOPE = re.compile(rf"(?<![A-Za-z_])({'|'.join(SCOPES)})(?![A-Za-z_])")
_CONTAINERS = ("while", "conditional", "call")  # what they hold is in the trace, too


class StepScope(NamedTuple):
    """A part of the step and which way: `forward`, `backward`, or `update` where nothing is differentiated."""

    title: str
    way: str


def scope_of(op_name: str) -> StepScope:
    """By the innermost scope of an operation's name, such as jit(train_step)/transpose(jvp())/attention/dot_general."""
    found = _SCOPE.findall(op_name)
    way = "backward" if "transpose(" in op_name else "forward" if "jvp(" in op_name else "update"
    return StepScope(SCOPES[found[-1]] if found else OTHER, way)


def scopes_by_instruction(hlo: str) -> dict[str, StepScope]:
    """The part of every instruction of a compiled program's text, but for those that only hold others."""
    program = parse_hlo(hlo)
    parts: dict[str, StepScope] = {}
    for each in program.instructions():
        if each.opcode not in _CONTAINERS:
            parts[each.name] = scope_of(each.op_name or _most_common(program, each))
    return parts


def _most_common(program: Program, instruction: Instruction) -> str:
    """Of the names of what an instruction without one is made of."""
    found: Counter[str] = Counter()
    for role, callee in instruction.called:
        if role in ("calls", "to_apply"):
            found.update(each.op_name for each in program.computations.get(callee, ()) if each.op_name)
    return found.most_common(1)[0][0] if found else ""


def seconds_by_scope(folder: str | Path, hlo: str) -> dict[StepScope, float]:
    """Seconds of work in the newest trace below `folder`, summed over all threads or devices; `hlo` is its program."""
    parts = scopes_by_instruction(hlo)
    total: defaultdict[StepScope, float] = defaultdict(float)
    for line in _device_lines(folder):
        for name, seconds in self_times(line):
            if name in parts:
                total[parts[name]] += seconds
    return dict(total)


def self_times(events: Iterable[tuple[str, float, float]]) -> Iterator[tuple[str, float]]:
    """Of (name, start, end) of one thread: the time of each without that of the events inside it."""
    stack: list[list[Any]] = []  # name, end, seconds of its own

    def popped(until: float) -> Iterator[tuple[str, float]]:
        while stack and stack[-1][1] <= until:
            name, _, own = stack.pop()
            yield name, own

    for name, start, end in sorted(events, key=lambda event: (event[1], -event[2])):
        yield from popped(start)
        if stack:
            stack[-1][2] -= end - start
        stack.append([name, end, end - start])
    yield from popped(float("inf"))


def _device_lines(folder: str | Path) -> Iterator[list[tuple[str, float, float]]]:
    """The operations on every thread or stream; of accelerators, if the trace has some."""
    newest = max(Path(folder).rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    planes = list(jax.profiler.ProfileData.from_file(str(newest)).planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:")]
    for plane in devices or planes:
        for line in plane.lines:
            found = []
            for event in line.events:
                name = next((str(value) for key, value in event.stats if key == "hlo_op"), None)
                if name is not None:
                    start = event.start_ns * 1e-9
                    found.append((name, start, start + event.duration_ns * 1e-9))
            yield found
