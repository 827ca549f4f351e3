"""A stated roofline for programs compiled for GPUs, whose own cost model cannot be used: the time of every kernel."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bertjax.models.pallas.blocks import BLOCKS
from bertjax.tools.hlo import (
    Instruction,
    Program,
    StepScope,
    array_bytes,
    array_shapes,
    execution_counts,
    most_common_op_name,
    scope_of,
)
from bertjax.tools.topology import GpuSpec

MATMUL_SHARE = 0.7
"""Share of the peak that matrix multiplications are assumed to reach."""
ATTENTION_SHARE = 0.3
"""Share of the peak that fused attention is assumed to reach, cuDNN's and that of `models/pallas/`."""
LAUNCH_SECONDS = 2e-6
"""The shortest time of a kernel."""
_FREE = ("parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while", "conditional", "call", "after-all")
_INNER = (
    "fusion",
    "reduce",
    "reduce-window",
    "scatter",
    "select-and-scatter",
    "sort",
    "map",
    "all-reduce",
    "all-reduce-start",
)
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_ELEMENT = re.compile(r"\b([a-z]\w*)\[")
_BATCH_AXES = re.compile(r'lhs_batch_dim(?:ension)?s"?[:=][\[{]([\d,"]*)[\]}]')
# FLOPs per query, key and channel: two matmuls forward, five backward with the scores again; our kernels for gradients
# compute scores and gradients of weights each. A term of distances adds two matmuls to that of scores, and as many to
# the gradients of queries, of keys or of its table, since a block has twice as many distances as keys.
_CUDNN_FLOPS = {
    "fmhaSoftmax": 4,
    "fmhaScaleBiasSoftmax": 4,
    "fmhaSoftmaxBackward": 10,
    "fmhaScaleBiasSoftmaxBackward": 10,
}
_TRITON_FLOPS = {
    "attention_forward": 4,
    "attention_query_gradient": 6,
    "attention_key_gradient": 8,
    "relative_attention_forward": 8,
    "relative_attention_query_gradient": 14,
    "relative_attention_key_gradient": 12,
    "relative_attention_table_gradient": 12,
    "disentangled_attention_forward": 12,
    "disentangled_attention_query_gradient": 18,
    "disentangled_attention_key_gradient": 20,
    "disentangled_attention_table_gradient": 20,
}


class Kernel(NamedTuple):
    """Kernels of one instruction of a program.

    kind     matmul, attention, collective or other
    types    for a matmul: element types of its operands and its result, such as bf16 bf16 -> f32
    op_name  jax's name of the operation, of a fusion without one the most common name in it
    seconds  of all its runs in a step
    times    it runs in a step; those in loops of unknown length count once
    """

    kind: str
    types: str
    shape: tuple[int, ...]
    op_name: str
    bytes: int
    seconds: float
    times: int


def kernels(program: Program, gpu: GpuSpec, peak: float, length: int) -> list[Kernel]:
    """Returns all kernels of a program, with times by a roofline.

    A matmul takes the longer of its bytes and of its FLOPs at `MATMUL_SHARE` of the peak; attention its FLOPs at
    `ATTENTION_SHARE`; everything else its bytes at the memory's full bandwidth. Collectives have no time here.

    Args:
        program: compiled for the GPU.
        gpu: its data sheet.
        peak: FLOP/s.
        length: keys per query of fused attention.
    """
    counts = execution_counts(program)
    # Computations that are part of their caller's kernel, and conditions of loops, whose ends the compiler knows.
    inner = {
        callee
        for each in program.instructions()
        for role, callee in each.called
        if each.opcode in _INNER or role == "condition"
    }
    result = []
    for name, instructions in program.computations.items():
        if name in inner or counts[name] == 0:
            continue
        by_name = {each.name: each for each in instructions}
        times = counts[name] or 1
        for each in instructions:
            if each.opcode not in _FREE and not each.opcode.endswith("-done"):
                kernel = _kernel(each, by_name, times, moved_bytes(each, by_name, program), (gpu, peak, length))
                result.append(kernel._replace(op_name=kernel.op_name or most_common_op_name(program, each)))
    return result


def kernel_totals(items: Iterable[Kernel]) -> dict[str, tuple[int, float, int]]:
    """Returns kind -> (number per step, seconds, bytes)."""
    totals: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0])
    for each in items:
        total = totals[each.kind]
        total[0] += each.times
        total[1] += each.seconds
        total[2] += each.bytes * each.times
    return {kind: (int(count), seconds, int(size)) for kind, (count, seconds, size) in sorted(totals.items())}


def kernels_by_scope(items: Iterable[Kernel]) -> dict[tuple[StepScope, str], tuple[int, float, int]]:
    """Returns (scope, kind) -> (number per step, seconds, bytes), the longest first."""
    groups: defaultdict[tuple[StepScope, str], list[Kernel]] = defaultdict(list)
    for each in items:
        groups[scope_of(each.op_name), each.kind].append(each)
    totals = {(scope, kind): kernel_totals(group)[kind] for (scope, kind), group in groups.items()}
    return dict(sorted(totals.items(), key=lambda pair: -pair[1][1]))


def matmuls_by_type(items: Iterable[Kernel]) -> dict[str, tuple[int, float]]:
    """Returns types -> (number per step, seconds) of the matmuls, the longest first."""
    totals: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for each in items:
        if each.kind == "matmul":
            totals[each.types][0] += each.times
            totals[each.types][1] += each.seconds
    ranked = sorted(totals.items(), key=lambda pair: -pair[1][1])
    return {types: (int(count), seconds) for types, (count, seconds) in ranked}


def moved_bytes(instruction: Instruction, by_name: Mapping[str, Instruction], program: Program) -> int:
    """Returns the bytes that an instruction reads and writes, of slices only the part that they touch.

    Args:
        instruction: the instruction.
        by_name: the instructions of its computation.
        program: the program, with the computations of fusions.
    """
    operands = [by_name[name] for name in dict.fromkeys(instruction.operands) if name in by_name]
    if instruction.opcode != "fusion":
        written = _written(instruction, by_name)
        if instruction.opcode in ("dynamic-slice", "dynamic-update-slice"):
            return 2 * written
        return written + sum(_bytes(each) for each in operands)
    fused = {each.name: each for each in program.computations[dict(instruction.called)["calls"]]}
    root = next(each for each in fused.values() if each.line.lstrip().startswith("ROOT"))
    users: defaultdict[str, list[Instruction]] = defaultdict(list)
    for each in fused.values():
        for name in each.operands:
            users[name].append(each)
    parameters = [each for each in fused.values() if each.opcode == "parameter"]
    return _written(root, fused) + sum(_read(each, users) for each in parameters)


def _read(source: Instruction, users: Mapping[str, list[Instruction]]) -> int:
    """Returns the bytes that a fusion reads of one of its parameters, or of a bitcast of it."""
    total = 0
    for user in users.get(source.name, []):
        if user.opcode == "bitcast":
            total += _read(user, users)
        elif user.opcode == "dynamic-slice" and user.operands[0] == source.name:
            total += _bytes(user)
        elif user.opcode != "dynamic-update-slice" or user.operands[0] != source.name:
            return _bytes(source)
    return min(total, _bytes(source))


def _written(result: Instruction, by_name: Mapping[str, Instruction]) -> int:
    """Returns the bytes that a result writes; one that is changed in place only the change."""
    operands = [by_name[name] for name in result.operands if name in by_name]
    if result.opcode == "tuple":
        return sum(_written(each, by_name) for each in operands)
    if result.opcode == "bitcast" and operands:
        return _written(operands[0], by_name)
    if result.opcode == "dynamic-update-slice" and len(operands) > 1:
        return _bytes(operands[1])
    return _bytes(result)


def _bytes(instruction: Instruction) -> int:
    return sum(array_bytes(instruction.type))


def _kernel(
    instruction: Instruction,
    by_name: Mapping[str, Instruction],
    times: int,
    size: int,
    chip: tuple[GpuSpec, float, int],
) -> Kernel:
    gpu, peak, length = chip
    operands = [by_name[name] for name in dict.fromkeys(instruction.operands) if name in by_name]
    target = _TARGET.search(instruction.line)
    name = target[1] if target else ""
    shapes = array_shapes(instruction.type)
    kind, types, seconds = "other", "", size / gpu.bandwidth
    if "cublas" in name or instruction.opcode == "dot":
        left, right = array_shapes(operands[0].type)[0], array_shapes(operands[min(1, len(operands) - 1)].type)[0]
        kind, types = "matmul", _types([*operands[:2], instruction])
        axes = match[1].replace('"', "") if (match := _BATCH_AXES.search(instruction.line)) else ""
        batch = math.prod(left[int(axis)] for axis in axes.split(",") if axis)
        seconds = max(seconds, _matmul_flops(left, right, shapes[0], batch) / (MATMUL_SHARE * peak))
    elif attention := _attention_flops(name, instruction, operands, length):
        kind, seconds = "attention", attention / (ATTENTION_SHARE * peak)
    elif instruction.opcode.removesuffix("-start") in (
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "collective-permute",
    ):
        kind, seconds = "collective", 0.0
    floor = 0.0 if kind == "collective" else LAUNCH_SECONDS
    return Kernel(
        kind, types, shapes[0] if shapes else (), instruction.op_name, size, max(seconds, floor) * times, times
    )


def _matmul_flops(left: tuple[int, ...], right: tuple[int, ...], result: tuple[int, ...], batch: int) -> float:
    """Returns 2 B M N K: the sizes of the three arrays are B M K, B K N, B M N."""
    return 2.0 * math.sqrt(math.prod(left) * math.prod(right) * math.prod(result) / max(batch, 1))


def _types(operands: Iterable[Instruction]) -> str:
    *factors, result = [match[1] if (match := _ELEMENT.search(each.type)) else "?" for each in operands]
    return f"{' '.join(factors * (3 - len(factors)))} -> {result}"


def _attention_flops(target: str, instruction: Instruction, operands: Sequence[Instruction], length: int) -> float:
    """Returns the FLOPs of a fused attention kernel, 0 for other instructions.

    Args:
        target: what the instruction calls: cuDNN's kernel, or Triton, where jax's name of the operation tells ours.
        instruction: the call.
        operands: its operands. Ours are the queries [B, S, N, H] first, and last keys [B, K, N, H] or a table of
            distances with S + K rows.
        length: tokens of a sequence.
    """
    if "triton" not in target:
        flops = _CUDNN_FLOPS.get(target.removeprefix("__cudnn$"), 0)
        return flops * math.prod(array_shapes(instruction.type)[0]) * length if flops else 0.0
    kernel, _, window = instruction.op_name.split("/")[-2:][0].partition("_window")
    flops = _TRITON_FLOPS.get(kernel, 0)
    if not flops:
        return 0.0
    arrays = [shape for each in operands for shape in array_shapes(each.type) if len(shape) == 4]
    keys = arrays[-1][1] - (0 if kernel.startswith("attention") else arrays[0][1])
    if window:  # blocks on either side that hold a key of the window, and the query's own
        block = BLOCKS["triton"]
        keys = min(keys, block * (2 * math.ceil(int(window) / 2 / block) + 1))
    return float(flops * math.prod(arrays[0]) * keys)
