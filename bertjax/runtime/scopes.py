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
    """Returns the scope of every instruction in the text of a program, except those that only contain others."""
    program = parse_hlo(hlo)
    return {
        each.name: scope_of(each.op_name or most_common_op_name(program, each))
        for each in program.instructions()
        if each.opcode not in _CONTAINERS
    }


def most_common_op_name(program: Program, instruction: Instruction) -> str:
    """Returns the most common name among the instructions that an unnamed one consists of."""
    names: Counter[str] = Counter()
    for role, callee in instruction.called:
        if role in ("calls", "to_apply"):
            names.update(each.op_name for each in program.computations.get(callee, ()) if each.op_name)
    return names.most_common(1)[0][0] if names else ""
