"""Devices to compile for that this machine does not have: TPU slices by their name, or virtual ones of its own CPU."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from bertjax.errors import UserError


class ChipSpec(NamedTuple):
    """What the makers say of a TPU (jax-ml/scaling-book:tpus.md), and how many dimensions its slices have.

    memory  bytes of HBM
    clock   cycles a second, by the peak over what its matrix units do in a cycle
    link    bytes a second that one link carries, each way
    counts  what the number in a slice's name counts: chips, or cores, of which there are two a chip
    """

    memory: int
    clock: float
    link: float
    dimensions: int
    counts: str


CHIPS = {
    "v4": ChipSpec(32 << 30, 1.05e9, 4.5e10, 3, "cores"),
    "v5p": ChipSpec(95 << 30, 1.75e9, 9e10, 3, "cores"),
    "v5e": ChipSpec(16 << 30, 1.5e9, 4.5e10, 2, "chips"),
    "v6e": ChipSpec(32 << 30, 1.75e9, 9e10, 2, "chips"),
}
KINDS = {
    "TPU v4": "v4",
    "TPU v5p": "v5p",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v6 lite": "v6e",
}
"""jax's `device_kind` to the names that users know."""
_HOST = {2: (2, 2), 3: (2, 2, 1)}  # chips of the smallest slice
_NAME = re.compile(r"(v\w+?)(?::(\d+(?:x\d+)+)|-(\d+))")


def chip_spec(device: Any) -> ChipSpec | None:
    """What is known of a device's kind; None for what is no TPU of the table."""
    name = KINDS.get(device.device_kind)
    return None if name is None else CHIPS[name]


def parse_topology(text: str) -> tuple[str, tuple[int, ...]]:
    """(chip, shape) of `v5e:4x4` or of a slice's name such as `v5e-16` or `v4-32`; raises `UserError`."""
    found = _NAME.fullmatch(text.strip().lower())
    if found is None or found[1] not in CHIPS:
        raise UserError(
            f"--topology {text} is not known: write CHIP:SHAPE or a slice's name, such as v5e:4x4, v5e-256, v4:2x2x4, "
            f"v5p-128; chips are {', '.join(CHIPS)}"
        )
    chip = CHIPS[found[1]]
    if found[2]:
        shape = tuple(int(size) for size in found[2].split("x"))
        if len(shape) != chip.dimensions:
            raise UserError(f"--topology {text}: slices of {found[1]} have {chip.dimensions} dimensions")
        return found[1], shape
    return found[1], _shape_of_slice(text, int(found[3]), chip)


def tpu_devices(text: str) -> list[Any]:
    """The devices of a slice, which can be compiled for and nothing else; raises `UserError` without libtpu."""
    name, shape = parse_topology(text)
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise UserError(
            f"--topology {text} needs libtpu, the compiler for TPUs, which works without any: pip install "
            "'bertjax[ahead]' (Linux on x86-64), or take --devices N"
        )
    _settle_libtpu()
    from jax.experimental import topologies

    written = f"{name}:{'x'.join(map(str, shape))}"
    options: dict[str, Any] = {"chip_config_name": "megacore"} if CHIPS[name].counts == "cores" else {}
    if math.prod(shape) < 4:
        options["chips_per_host_bounds"] = [*shape, 1][:3]
    try:
        with _silent():
            return list(topologies.get_topology_desc(platform="tpu", topology_name=written, **options).devices)
    except Exception as error:  # of several kinds, from a library that tells what it wants in words
        raise UserError(f"--topology {text} ({written}): {str(error).splitlines()[0]}") from error


def virtual_devices(number: int) -> list[Any]:
    """So many CPU devices of this process; raises `UserError` where jax has started with fewer."""
    if number < 1:
        raise UserError(f"--devices must be at least 1, not {number}")
    with contextlib.suppress(RuntimeError):  # jax has started already
        jax.config.update("jax_num_cpu_devices", number)
    devices = jax.devices("cpu")
    if len(devices) < number:
        raise UserError(f"--devices {number}: jax has started with {len(devices)} devices on this CPU")
    return devices[:number]


def _shape_of_slice(text: str, number: int, chip: ChipSpec) -> tuple[int, ...]:
    """As the cloud cuts them: the shortest dimension is doubled, of equal ones the last."""
    chips = number // 2 if chip.counts == "cores" else number
    shape = list(_HOST[chip.dimensions])
    if chips < 4 and chip.dimensions == 2:
        shape = [1, chips]
    while math.prod(shape) < chips:
        shortest = max(place for place, size in enumerate(shape) if size == min(shape))
        shape[shortest] *= 2
    if math.prod(shape) != chips:
        raise UserError(
            f"--topology {text}: no slice has {number} {chip.counts}; sizes are powers of two, others go by their "
            "shape, such as v5p:4x4x12"
        )
    return tuple(shape)


def _settle_libtpu() -> None:
    """It would ask the cloud what machine this is, wait for an answer, and take a lock that a real TPU needs."""
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_MIN_LOG_LEVEL": "3",
        "TPU_STDERR_LOG_LEVEL": "3",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without what a library in C++ writes to standard error while it starts."""
    try:
        number = sys.stderr.fileno()
    except (AttributeError, OSError, io.UnsupportedOperation):
        yield
        return
    kept = os.dup(number)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), number)
            yield
    finally:
        os.dup2(kept, number)
        os.close(kept)
