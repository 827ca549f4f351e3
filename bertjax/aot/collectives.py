"""What the devices of a compiled program send each other: every collective, its bytes, its group, how often it runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from bertjax.runtime.hlo import Instruction, array_bytes, array_shapes, execution_counts, parse_hlo

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)
_CHANNEL = re.compile(r"\bchannel_id=(\d+)")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)")
_OF_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^ )]*(?:\([\d,]*\))?)\))? \{([^}]*)\}")
_OF_AXIS = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")
_TILES = re.compile(r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?")
_SCATTERS = re.compile(r"all-reduce-scatter|reduce-scatter")


class Collective(NamedTuple):
    """One operation; `bytes` is the largest of what it takes and gives on a device: what a group agrees on.

    shapes   of its results, one an array: variadic ones have several
    groups   devices (places in the mesh) that work together; None = all of them in one
    axes     of the mesh along which the devices of a group differ; empty where no mesh was given
    times    a step; None where it is in a loop of unknown length
    op_name  what jax called the operation that it was made for
    """

    kind: str
    bytes: int
    shapes: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[int, ...], ...] | None
    axes: tuple[str, ...]
    times: int | None
    op_name: str
    name: str

    @property
    def group_size(self) -> int | None:
        return None if self.groups is None else max(map(len, self.groups), default=1)


def find_collectives(text: str, mesh: Mapping[str, int] | None = None) -> list[Collective]:
    """All that a program's text holds; `mesh` gives the sizes of its axes, in their order.

    A start and its end are one, and so are the pieces of one that the compiler runs beside other work. What has groups
    of one device is left out.
    """
    program = parse_hlo(text)
    counts = execution_counts(program)
    scattering = _scattering(program.instructions())
    found: list[Collective] = []
    seen: set[tuple[str, str]] = set()
    for computation, instructions in program.computations.items():
        for each in instructions:
            kind = each.opcode.removesuffix("-start")
            if kind not in KINDS or counts[computation] == 0:
                continue
            channel = _CHANNEL.search(each.line)
            if "chain_id=" in each.line and channel:  # pieces of one collective, in several fusions
                if (kind, channel[1]) in seen:
                    continue
                seen.add((kind, channel[1]))
            kind = "reduce-scatter" if kind == "all-reduce" and computation in scattering else kind
            groups = _groups(each.line)
            if groups is None or any(len(group) > 1 for group in groups):
                found.append(_collective(kind, each, groups, mesh, counts[computation]))
    return found


def totals_by_kind(found: Iterable[Collective]) -> dict[tuple[str, tuple[str, ...]], tuple[int, int]]:
    """(kind, axes) -> how many run in a step, and the bytes of all of them; those in unknown loops count once."""
    totals: defaultdict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(lambda: [0, 0])
    for each in found:
        times = 1 if each.times is None else each.times
        total = totals[each.kind, each.axes]
        total[0] += times
        total[1] += times * each.bytes
    return {key: (count, size) for key, (count, size) in sorted(totals.items())}


def _collective(
    kind: str,
    each: Instruction,
    groups: tuple[tuple[int, ...], ...] | None,
    mesh: Mapping[str, int] | None,
    times: int | None,
) -> Collective:
    sizes, shapes = array_bytes(each.type), array_shapes(each.type)
    if each.opcode.endswith("-start") and kind != "all-reduce":  # (what it takes, what it gives, ...)
        half = 1 if kind == "collective-permute" else len(sizes) // 2
        sizes, shapes = sizes[half : 2 * half], shapes[half : 2 * half]
    size = sum(sizes)
    if kind == "reduce-scatter" and each.opcode.startswith("reduce-scatter"):
        size *= max(map(len, groups)) if groups else 1
    axes = () if mesh is None else _axes(groups, mesh)
    return Collective(kind, size, tuple(shapes), groups, axes, times, each.op_name, each.name)


def _scattering(instructions: Iterable[Instruction]) -> set[str]:
    """Computations of fusions in which an all-reduce keeps one part only."""
    return {
        callee
        for each in instructions
        if each.opcode == "fusion"
        for _, callee in each.called
        if _SCATTERS.search(callee)
    }


def _axes(groups: tuple[tuple[int, ...], ...] | None, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Axes of the mesh in which members of some group differ."""
    sizes = tuple(mesh.values())
    if groups is None:
        return tuple(name for name, size in mesh.items() if size > 1)
    differs = np.zeros(len(sizes), bool)
    for group in groups:
        places = np.stack(np.unravel_index(np.asarray(group, int), sizes))
        differs |= (places != places[:, :1]).any(axis=1)
    return tuple(name for name, own in zip(mesh, differs, strict=True) if own)


def _groups(line: str) -> tuple[tuple[int, ...], ...] | None:
    """Of any way in which XLA writes them; pairs of a permutation without those that stay."""
    if found := _OF_MESH.search(line):
        return _of_mesh(found[1], found[2], found[3])
    if found := _IOTA.search(line):
        return tuple(map(tuple, _tiles(found[1]).tolist()))
    if found := _PAIRS.search(line):
        return tuple(pair for pair in _listed(found[1]) if len(set(pair)) > 1)
    found = _LISTED.search(line)
    return (_listed(found[1]) or None) if found else None


def _listed(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(part) for part in group.split(",") if part) for group in re.findall(r"\{([\d,]*)\}", text))


def _tiles(text: str) -> np.ndarray:
    """`[4,2]<=[2,4]T(1,0)`: 0, 1, 2, ... in the second shape, its axes turned, then in the first shape."""
    found = _TILES.match(text)
    assert found is not None, text
    shape, given, turned = ([int(part) for part in group.split(",")] if group else None for group in found.groups())
    assert shape is not None
    numbers = np.arange(np.prod(shape)).reshape(given or shape)
    return (numbers if turned is None else numbers.transpose(turned)).reshape(shape)


def _of_mesh(axes: str, devices: str | None, grouped: str) -> tuple[tuple[int, ...], ...]:
    """`mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b':(2)2}`: groups along 'b', of which (2)2 is the last half."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", axes)}
    total = int(np.prod(list(sizes.values())))
    numbers = (np.arange(total) if devices is None else _device_ids(devices)).reshape(-1)
    shape: list[int] = []
    along: list[int] = []
    wanted = {name: (int(before or 1), int(size or 0)) for name, before, size in _OF_AXIS.findall(grouped)}
    for name, size in sizes.items():
        if name not in wanted:
            shape.append(size)
            continue
        before, own = wanted[name]
        own = own or size
        along.append(len(shape) + 1)
        shape += [before, own, size // (before * own)]
    table = numbers.reshape(shape)
    rest = [axis for axis in range(len(shape)) if axis not in along]
    length = int(np.prod([shape[axis] for axis in along]))
    return tuple(map(tuple, table.transpose(*rest, *along).reshape(-1, length).tolist()))


def _device_ids(text: str) -> np.ndarray:
    """`[4,2]T(1,0)`: 0, 1, 2, ... in this shape, its axes turned."""
    found = _TILES.match(text)
    assert found is not None, text
    shape = [int(part) for part in found[1].split(",")]
    if found[2]:
        return _tiles(text)
    numbers = np.arange(np.prod(shape)).reshape(shape)
    return numbers.transpose([int(part) for part in found[3].split(",")]) if found[3] else numbers
