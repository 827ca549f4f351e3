"""Lists what the devices of a compiled program send each other: every collective, its bytes, group and frequency."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from bertjax.tools.hlo import Instruction, array_bytes, array_shapes, execution_counts, parse_hlo

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)
Groups = tuple[tuple[int, ...], ...] | None
_CHANNEL = re.compile(r"\bchannel_id=(\d+)")
_LIST_GROUPS = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{[\d,]*\},?)*)\}")
_IOTA_GROUPS = re.compile(r"replica_groups=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)")
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^ )]*(?:\([\d,]*\))?)\))? \{([^}]*)\}")
_MESH_AXIS = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")
_IOTA = re.compile(r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?")
_REDUCE_SCATTER = re.compile(r"all-reduce-scatter|reduce-scatter")


class Collective(NamedTuple):
    """One operation.

    bytes    on a device: the larger of its inputs and outputs
    shapes   of its results, one per array
    groups   devices (indices in the mesh) that communicate; None = all of them in one group
    axes     mesh axes along which the devices of a group differ; empty without a mesh
    times    per step; None = in a loop of unknown length
    op_name  jax's name of the operation that it belongs to
    """

    kind: str
    bytes: int
    shapes: tuple[tuple[int, ...], ...]
    groups: Groups
    axes: tuple[str, ...]
    times: int | None
    op_name: str
    name: str

    @property
    def group_size(self) -> int | None:
        """Size of the largest group of devices; None if the groups are unknown."""
        return None if self.groups is None else max(map(len, self.groups), default=1)


def find_collectives(text: str, mesh: Mapping[str, int] | None = None) -> list[Collective]:
    """Returns the collectives of a program.

    A start and its end are one collective, and so are the parts of one that the compiler overlaps with other work.
    Groups of one device are left out.

    Args:
        text: text of the compiled program.
        mesh: sizes of the mesh axes, in order.
    """
    program = parse_hlo(text)
    counts = execution_counts(program)
    scattering = _reduce_scatter_computations(program.instructions())
    collectives: list[Collective] = []
    visited: set[tuple[str, str]] = set()
    for computation, instructions in program.computations.items():
        for each in instructions:
            kind = each.opcode.removesuffix("-start")
            if kind not in KINDS or counts[computation] == 0:
                continue
            channel = _CHANNEL.search(each.line)
            if "chain_id=" in each.line and channel:  # parts of one collective, in several fusions
                if (kind, channel[1]) in visited:
                    continue
                visited.add((kind, channel[1]))
            kind = "reduce-scatter" if kind == "all-reduce" and computation in scattering else kind
            groups = _groups(each.line)
            if groups is None or any(len(group) > 1 for group in groups):
                collectives.append(_collective(kind, each, groups, mesh, counts[computation]))
    return collectives


def totals_by_kind(collectives: Iterable[Collective]) -> dict[tuple[str, tuple[str, ...]], tuple[int, int]]:
    """Returns (kind, axes) -> (number per step, total bytes); those in loops of unknown length count once."""
    totals: defaultdict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(lambda: [0, 0])
    for each in collectives:
        times = 1 if each.times is None else each.times
        total = totals[each.kind, each.axes]
        total[0] += times
        total[1] += times * each.bytes
    return {key: (count, size) for key, (count, size) in sorted(totals.items())}


def _collective(
    kind: str, instruction: Instruction, groups: Groups, mesh: Mapping[str, int] | None, times: int | None
) -> Collective:
    sizes, shapes = array_bytes(instruction.type), array_shapes(instruction.type)
    if instruction.opcode.endswith("-start") and kind != "all-reduce":  # (inputs, outputs, ...)
        half = 1 if kind == "collective-permute" else len(sizes) // 2
        sizes, shapes = sizes[half : 2 * half], shapes[half : 2 * half]
    size = sum(sizes)
    if kind == "reduce-scatter" and instruction.opcode.startswith("reduce-scatter"):
        size *= max(map(len, groups)) if groups else 1
    axes = () if mesh is None else _axes(groups, mesh)
    return Collective(kind, size, tuple(shapes), groups, axes, times, instruction.op_name, instruction.name)


def _reduce_scatter_computations(instructions: Iterable[Instruction]) -> set[str]:
    """Returns the computations of fusions in which an all-reduce keeps one part only."""
    fusions = (each for each in instructions if each.opcode == "fusion")
    return {callee for each in fusions for _, callee in each.called if _REDUCE_SCATTER.search(callee)}


def _axes(groups: Groups, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the mesh axes in which members of some group differ."""
    sizes = tuple(mesh.values())
    if groups is None:
        return tuple(name for name, size in mesh.items() if size > 1)
    differs = np.zeros(len(sizes), bool)
    for group in groups:
        coordinates = np.stack(np.unravel_index(np.asarray(group, int), sizes))
        differs |= (coordinates != coordinates[:, :1]).any(axis=1)
    return tuple(name for name, differ in zip(mesh, differs, strict=True) if differ)


def _groups(line: str) -> Groups:
    """Parses every notation of XLA; pairs of a permutation without those that stay."""
    if match := _MESH_GROUPS.search(line):
        return _mesh_groups(match[1], match[2], match[3])
    if match := _IOTA_GROUPS.search(line):
        return tuple(map(tuple, _iota(match[1]).tolist()))
    if match := _PAIRS.search(line):
        return tuple(pair for pair in _list_groups(match[1]) if len(set(pair)) > 1)
    match = _LIST_GROUPS.search(line)
    return (_list_groups(match[1]) or None) if match else None


def _list_groups(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(part) for part in group.split(",") if part) for group in re.findall(r"\{([\d,]*)\}", text))


def _iota(text: str) -> np.ndarray:
    """Parses `[4,2]<=[2,4]T(1,0)`: arange in the second shape, transposed, reshaped to the first.

    Without the second shape, as in `[4,2]T(1,0)`: arange in this shape, transposed.
    """
    match = _IOTA.match(text)
    assert match is not None, text
    shape, source, axes = ([int(part) for part in group.split(",")] if group else None for group in match.groups())
    assert shape is not None
    numbers = np.arange(np.prod(shape)).reshape(source or shape)
    numbers = numbers if axes is None else numbers.transpose(axes)
    return numbers.reshape(shape) if source else numbers


def _mesh_groups(axes: str, devices: str | None, grouped: str) -> tuple[tuple[int, ...], ...]:
    """Parses `mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b':(2)2}`: groups along 'b'; (2)2 is its last half."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", axes)}
    numbers = np.arange(np.prod(list(sizes.values()))) if devices is None else _iota(devices).reshape(-1)
    shape: list[int] = []
    along: list[int] = []
    group_axes = {name: (int(before or 1), int(size or 0)) for name, before, size in _MESH_AXIS.findall(grouped)}
    for name, size in sizes.items():
        if name not in group_axes:
            shape.append(size)
            continue
        before, part = group_axes[name]
        part = part or size
        along.append(len(shape) + 1)
        shape += [before, part, size // (before * part)]
    rest = [axis for axis in range(len(shape)) if axis not in along]
    length = int(np.prod([shape[axis] for axis in along]))
    return tuple(map(tuple, numbers.reshape(shape).transpose(*rest, *along).reshape(-1, length).tolist()))
