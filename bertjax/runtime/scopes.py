"""Named scopes of the model and the step, to which the operations of a compiled program belong.

A fused operation counts for the scope of its result, so shares are approximate.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from bertjax.runtime.hlo import Instruction, Program, parse_hlo

SCOPES = {
    "corruption": "masking",
    "embeddings": "embeddings",
    "attention": "attention: matmuls, layout",
    "softmax": "attention: softmax",
    "feed_forward": "feed-forward",
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
