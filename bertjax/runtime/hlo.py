"""Parses the text of a compiled program (HLO): its instructions, the calls among them, and how often each runs.

jaxlib offers memory and cost analyses of a program, but not its instructions: they are in its text only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*?[\])}]) ([a-z][\w\-]*)\(")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CALLED = re.compile(r"\b(calls|to_apply|condition|body|true_computation|false_computation)=%?([\w.\-]+)")
_CALLED_LISTS = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_TUPLE_INDEX = re.compile(r"get-tuple-element\(.*index=(\d+)")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CONSTANT = re.compile(r"constant\((-?\d+)\)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
_BITS = re.compile(r"(?:[a-z]+)(\d+)")


class Instruction(NamedTuple):
    """One line of a computation; `type` is that of the result, `line` the whole text."""

    name: str
    opcode: str
    type: str
    line: str

    @property
    def op_name(self) -> str:
        """jax's name of the operation, such as jit(train_step)/transpose(jvp())/attention/dot_general, or ""."""
        match = _OP_NAME.search(self.line)
        return match[1] if match else ""

    @property
    def called(self) -> list[tuple[str, str]]:
        """(role, computation) of everything that it calls."""
        called = _CALLED.findall(self.line)
        for names in _CALLED_LISTS.findall(self.line):
            called += [("branch", name.strip().lstrip("%")) for name in names.split(",") if name.strip()]
        return called

    @property
    def operands(self) -> list[str]:
        """Names of the operands."""
        return _OPERAND.findall(self.line.split(f" {self.opcode}(", 1)[1].split("), ", 1)[0])


class Program(NamedTuple):
    """Computations by name, and the name of the entry computation."""

    computations: Mapping[str, list[Instruction]]
    entry: str

    def instructions(self) -> Iterator[Instruction]:
        """Yields the instructions of all computations."""
        for instructions in self.computations.values():
            yield from instructions


def parse_hlo(text: str) -> Program:
    """Parses `compiled.as_text()`."""
    computations: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current.append(Instruction(match[1], match[3], match[2], line))
    return Program(computations, entry)


def execution_counts(program: Program) -> dict[str, int | None]:
    """Returns how often each computation runs in one call; None in a loop of unknown length.

    Every branch of a conditional counts, though only one runs.
    """
    counts: dict[str, int | None] = dict.fromkeys(program.computations, 0)
    if program.entry in counts:
        counts[program.entry] = 1
    for name in _callers_first(program):
        for instruction in program.computations[name]:
            for role, callee in instruction.called:
                if callee not in counts:
                    continue
                times: int | None = 1
                if instruction.opcode == "while":
                    times = trip_count(program, instruction)
                    times = times + 1 if times is not None and role == "condition" else times
                counts[callee] = _add(counts[callee], _multiply(counts[name], times))
    return counts


def trip_count(program: Program, loop: Instruction) -> int | None:
    """Returns the trip count of a `while`: XLA's `known_trip_count`, else the constant bound of a counter from 0."""
    known = _TRIP_COUNT.search(loop.line)
    if known:
        return int(known[1])
    called = dict(loop.called)
    condition = program.computations.get(called.get("condition", ""), [])
    compare = next((each for each in condition if each.opcode == "compare" and "direction=LT" in each.line), None)
    if compare is None:
        return None
    by_name = {each.name: each for each in condition}
    counter, limit = (by_name.get(name) for name in (*compare.operands, "", "")[:2])
    index = _TUPLE_INDEX.search(counter.line) if counter is not None else None
    bound = _CONSTANT.search(limit.line) if limit is not None else None
    if index is None or bound is None:
        return None
    stride = _stride(program.computations.get(called.get("body", ""), []), int(index[1]))
    return None if stride is None else max(0, -(-int(bound[1]) // stride))


def _stride(body: list[Instruction], index: int) -> int | None:
    """Returns the constant that an iteration adds to this element of its state, if there is one."""
    by_name = {each.name: each for each in body}
    root = next((each for each in body if each.line.lstrip().startswith("ROOT")), None)
    state = root.operands if root is not None and root.opcode == "tuple" else []
    new = by_name.get(state[index]) if index < len(state) else None
    if new is None or new.opcode != "add":
        return None
    constants = [_CONSTANT.search(by_name[name].line) for name in new.operands if name in by_name]
    values = [int(each[1]) for each in constants if each]
    return values[0] if len(values) == 1 and values[0] > 0 else None


def array_bytes(text: str) -> list[int]:
    """Returns the bytes of every array in the text of a type, in order; tokens are left out."""
    sizes = []
    for kind, shape in _ARRAY.findall(text):
        bits = 8 if kind == "pred" else int(match[1]) if (match := _BITS.match(kind)) else 0
        if bits:
            sizes.append(math.prod(_shape(shape)) * bits // 8)
    return sizes


def array_shapes(text: str) -> list[tuple[int, ...]]:
    """Returns the shapes of the arrays in the text of a type, in order."""
    return [_shape(shape) for _, shape in _ARRAY.findall(text)]


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(size.lstrip("<=")) for size in text.split(",") if size)


def _callers_first(program: Program) -> list[str]:
    """Returns the computations that the entry reaches, each after all of its callers."""
    finished: list[str] = []
    visited: set[str] = set()
    stack = [(program.entry, False)]
    while stack:
        name, done = stack.pop()
        if done:
            finished.append(name)
        elif name in program.computations and name not in visited:
            visited.add(name)
            stack.append((name, True))
            stack += [(callee, False) for each in program.computations[name] for _, callee in each.called]
    return finished[::-1]


def _multiply(first: int | None, second: int | None) -> int | None:
    if first == 0 or second == 0:
        return 0
    return None if first is None or second is None else first * second


def _add(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second
