"""The text of a compiled program (HLO): its instructions, who calls whom, and how often each runs in one call."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*?[\])}]) ([a-z][\w\-]*)\(")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_NAME = re.compile(r'op_name="([^"]*)"')
_CALLED = re.compile(r"\b(calls|to_apply|condition|body|true_computation|false_computation)=%?([\w.\-]+)")
_CALLED_LISTS = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_INDEX = re.compile(r"get-tuple-element\(.*index=(\d+)")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CONSTANT = re.compile(r"constant\((-?\d+)\)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
_BITS = re.compile(r"(?:[a-z]+)(\d+)")


class Instruction(NamedTuple):
    """One line of a computation; `type` is that of its result, `line` all of it."""

    name: str
    opcode: str
    type: str
    line: str

    @property
    def op_name(self) -> str:
        """What jax called it, such as jit(train_step)/transpose(jvp())/attention/dot_general; empty if nothing."""
        found = _NAME.search(self.line)
        return found[1] if found else ""

    @property
    def called(self) -> list[tuple[str, str]]:
        """(role, computation) of all that it calls."""
        found = _CALLED.findall(self.line)
        for names in _CALLED_LISTS.findall(self.line):
            found += [("branch", name.strip().lstrip("%")) for name in names.split(",") if name.strip()]
        return found


class Program(NamedTuple):
    """Computations by name, and the one that is the program."""

    computations: Mapping[str, list[Instruction]]
    entry: str

    def instructions(self) -> Iterator[Instruction]:
        for instructions in self.computations.values():
            yield from instructions


def parse_hlo(text: str) -> Program:
    """Of `compiled.as_text()`."""
    computations: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif current is not None and (found := _INSTRUCTION.match(line)):
            current.append(Instruction(found[1], found[3], found[2], line))
    return Program(computations, entry)


def execution_counts(program: Program) -> dict[str, int | None]:
    """How often every computation runs in one call of the program; None where a loop's length is not known.

    Of the branches of a conditional each is counted, though one runs.
    """
    counts: dict[str, int | None] = dict.fromkeys(program.computations, 0)
    order = _callers_first(program)
    if program.entry in counts:
        counts[program.entry] = 1
    for name in order:
        for instruction in program.computations[name]:
            for role, callee in instruction.called:
                if callee not in counts:
                    continue
                times: int | None = 1
                if instruction.opcode == "while":
                    times = trip_count(program, instruction)
                    times = times + 1 if times is not None and role == "condition" else times
                counts[callee] = _add(counts[callee], _times(counts[name], times))
    return counts


def trip_count(program: Program, loop: Instruction) -> int | None:
    """Of a `while`: what the compiler notes, else by the constant that its counter, from 0 on, stays below."""
    noted = _TRIPS.search(loop.line)
    if noted:
        return int(noted[1])
    called = dict(loop.called)
    condition = program.computations.get(called.get("condition", ""), [])
    below = next((each for each in condition if each.opcode == "compare" and "direction=LT" in each.line), None)
    if below is None:
        return None
    named = {each.name: each for each in condition}
    counter, limit = (named.get(name) for name in (*_operands(below), "", "")[:2])
    place = _INDEX.search(counter.line) if counter is not None else None
    most = _CONSTANT.search(limit.line) if limit is not None else None
    if place is None or most is None:
        return None
    stride = _stride(program.computations.get(called.get("body", ""), []), int(place[1]))
    return None if stride is None else max(0, -(-int(most[1]) // stride))


def _stride(body: list[Instruction], place: int) -> int | None:
    """What a turn adds to this element of what it hands on, where that is a constant."""
    named = {each.name: each for each in body}
    root = next((each for each in body if each.line.lstrip().startswith("ROOT")), None)
    handed = _operands(root) if root is not None and root.opcode == "tuple" else []
    new = named.get(handed[place]) if place < len(handed) else None
    if new is None or new.opcode != "add":
        return None
    added = [_CONSTANT.search(named[name].line) for name in _operands(new) if name in named]
    found = [int(each[1]) for each in added if each]
    return found[0] if len(found) == 1 and found[0] > 0 else None


def _operands(instruction: Instruction) -> list[str]:
    """Names of what an instruction takes."""
    taken = instruction.line.split(f" {instruction.opcode}(", 1)[1]
    return _OPERAND.findall(taken.split("), ", 1)[0])


def array_bytes(text: str) -> list[int]:
    """Bytes of every array in the text of a type, in order; tokens and what has no width are left out."""
    sizes = []
    for kind, shape in _ARRAY.findall(text):
        bits = 8 if kind == "pred" else int(found[1]) if (found := _BITS.match(kind)) else 0
        if bits:
            sizes.append(math.prod(int(size.lstrip("<=")) for size in shape.split(",") if size) * bits // 8)
    return sizes


def array_shapes(text: str) -> list[tuple[int, ...]]:
    """Shapes of the arrays in the text of a type, in order."""
    return [tuple(int(size.lstrip("<=")) for size in shape.split(",") if size) for _, shape in _ARRAY.findall(text)]


def _callers_first(program: Program) -> list[str]:
    """Computations that the entry reaches, each behind all that call it."""
    done: list[str] = []
    seen: set[str] = set()
    stack = [(program.entry, False)]
    while stack:
        name, finished = stack.pop()
        if finished:
            done.append(name)
        elif name in program.computations and name not in seen:
            seen.add(name)
            stack.append((name, True))
            stack += [(callee, False) for each in program.computations[name] for _, callee in each.called]
    return done[::-1]


def _times(first: int | None, second: int | None) -> int | None:
    if first == 0 or second == 0:
        return 0
    return None if first is None or second is None else first * second


def _add(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second
