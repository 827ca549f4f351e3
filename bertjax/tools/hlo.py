"""Parses the text of a compiled program (HLO): its instructions, the calls among them, and how often each runs.

jaxlib offers memory and cost analyses of a program, but not its instructions: they are in its text only. Instructions
belong to the named scopes of the model and the step; a fused operation counts for the scope of its result, so shares
are approximate.
"""

from __future__ import annotations

import math
import re
from collections import Counter
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
                    times = _trip_count(program, instruction)
                    times = times + 1 if times is not None and role == "condition" else times
                counts[callee] = _add(counts[callee], _multiply(counts[name], times))
    return counts


def _trip_count(program: Program, loop: Instruction) -> int | None:
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


SCOPES = {
    "corruption": "masking",
    "embeddings": "embeddings",
    "attention": "attention: matmuls, layout",
    "softmax": "attention: softmax",
    "feed_forward": "feed-forward",
    "adapter": "feed-forward",
    "convolution": "convolution",
    "dropout": "dropout",
    "layer": "norms and residuals",
    "head": "heads and losses",
    "optimizer": "clipping and optimizer",
    "metrics": "metrics and checks",
}
OTHER = "other"
DIRECTIONS = ("forward", "backward", "update")
_SCOPE = re.compile(rf"(?<![A-Za-z_])({'|'.join(SCOPES)})(?![A-Za-z_])")
_CONTAINERS = ("while", "conditional", "call")  # their contents are in the trace as well


class StepScope(NamedTuple):
    """A named scope and a direction: `forward`, `backward`, or `update` where nothing is differentiated."""

    title: str
    direction: str


def scope_of(op_name: str) -> StepScope:
    """Returns the innermost scope in the name of an operation, e.g. jit(train_step)/transpose(jvp())/attention/dot."""
    names = _SCOPE.findall(op_name)
    direction = "backward" if "transpose(" in op_name else "forward" if "jvp(" in op_name else "update"
    return StepScope(SCOPES[names[-1]] if names else OTHER, direction)


def scopes_by_instruction(hlo: str) -> dict[str, StepScope]:
    """Returns the scope of every instruction in the text of a program, except those that only contain others.

    Copies and kernels that XLA adds may be without a name, or without a scope in it: they belong to the scope of their
    parts, else to that of an operand.
    """
    program = parse_hlo(hlo)
    scopes: dict[str, StepScope] = {}
    for each in program.instructions():  # operands come before what reads them
        if each.opcode == "parameter":
            continue
        names = [each.op_name, *op_names_of_parts(program, each)]
        known = Counter(scope for scope in map(scope_of, filter(None, names)) if scope.title != OTHER)
        scope = scope_of(each.op_name or most_common_op_name(program, each))
        if scope.title == OTHER and known:
            of_parts = known.most_common(1)[0][0]  # parts of the forward pass may be computed again in the backward one
            scope = StepScope(of_parts.title, scope.direction if each.op_name else of_parts.direction)
        elif scope.title == OTHER and not any(names):
            of_operands = (scopes[name] for name in each.operands if name in scopes)
            scope = next((one for one in of_operands if one.title != OTHER), scope)
        scopes[each.name] = scope
    containers = {each.name for each in program.instructions() if each.opcode in _CONTAINERS}
    return {name: scope for name, scope in scopes.items() if name not in containers}


def most_common_op_name(program: Program, instruction: Instruction) -> str:
    """Returns the most common name among the instructions that an unnamed one consists of."""
    names = Counter(op_names_of_parts(program, instruction))
    return names.most_common(1)[0][0] if names else ""


def op_names_of_parts(program: Program, instruction: Instruction) -> list[str]:
    """Returns the names of the operations that a fused instruction consists of."""
    computations = [callee for role, callee in instruction.called if role in ("calls", "to_apply")]
    return [each.op_name for name in computations for each in program.computations.get(name, ()) if each.op_name]
