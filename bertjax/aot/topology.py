"""Devices to compile for that this machine does not have: GPUs and TPU slices by name, virtual devices of its CPU."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
from typing import Any, NamedTuple

import jax

from bertjax.aot.gpu import GPUS, gpu_devices, is_gpu
from bertjax.errors import UserError
from bertjax.io.stderr import silence_stderr


class ChipSpec(NamedTuple):
    """Data sheet of a TPU (jax-ml/scaling-book:tpus.md).

    memory      bytes of HBM
    clock       cycles per second: the peak divided by what the matrix units do in a cycle
    link        bytes per second and direction of one link
    dimensions  of a slice
    unit        what the number in a slice's name counts: chips, or cores (two per chip)
    """

    memory: int
    clock: float
    link: float
    dimensions: int
    unit: str


CHIPS = {
    "v4": ChipSpec(32 << 30, 1.05e9, 4.5e10, 3, "cores"),
    "v5p": ChipSpec(95 << 30, 1.75e9, 9e10, 3, "cores"),
    "v5e": ChipSpec(16 << 30, 1.5e9, 4.5e10, 2, "chips"),
    "v6e": ChipSpec(32 << 30, 1.75e9, 9e10, 2, "chips"),
}
_DEVICE_KINDS = {
    "TPU v4": "v4",
    "TPU v5p": "v5p",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v6 lite": "v6e",
}
_SMALLEST_SLICE = {2: (2, 2), 3: (2, 2, 1)}  # by dimensions
_NAME = re.compile(r"(v\w+?)(?::(\d+(?:x\d+)+)|-(\d+))")


def chip_spec(device: Any) -> ChipSpec | None:
    """Returns the data sheet of a device; None if it is not a known TPU."""
    name = _DEVICE_KINDS.get(device.device_kind)
    return None if name is None else CHIPS[name]


def parse_topology(text: str) -> tuple[str, tuple[int, ...]]:
    """Returns (chip, shape) of `v5e:4x4`, or of the name of a slice such as `v5e-16` or `v4-32`.

    Raises:
        UserError: the text is neither, or no slice has this size.
    """
    match = _NAME.fullmatch(text.strip().lower())
    if match is None or match[1] not in CHIPS:
        raise UserError(
            f"--topology {text} is not known: write CHIP:SHAPE or the name of a slice, such as v5e:4x4, v5e-256, "
            f"v4:2x2x4, v5p-128, or GPU:HOSTSxGPUS, such as h100:1x8; chips are {', '.join((*CHIPS, *GPUS))}"
        )
    chip = CHIPS[match[1]]
    if not match[2]:
        return match[1], _slice_shape(text, int(match[3]), chip)
    shape = tuple(int(size) for size in match[2].split("x"))
    if len(shape) != chip.dimensions:
        raise UserError(f"--topology {text}: slices of {match[1]} have {chip.dimensions} dimensions")
    return match[1], shape


def topology_devices(text: str) -> list[Any]:
    """Returns the devices of GPUs or of a TPU slice; they can be compiled for, but not used.

    Raises:
        UserError: the topology is unknown, or its compiler is not installed.
    """
    return gpu_devices(text) if is_gpu(text) else tpu_devices(text)


def tpu_devices(text: str) -> list[Any]:
    """Returns the devices of a slice; they can be compiled for, but not used.

    Raises:
        UserError: the topology is unknown, or libtpu is not installed.
    """
    name, shape = parse_topology(text)
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise UserError(
            f"--topology {text} needs libtpu, the compiler for TPUs, which runs without one: pip install "
            "'bertjax[compile-tpu]' (Linux on x86-64), or use --devices N"
        )
    _configure_libtpu()
    from jax.experimental import topologies

    topology_name = f"{name}:{'x'.join(map(str, shape))}"
    options: dict[str, Any] = {"chip_config_name": "megacore"} if CHIPS[name].unit == "cores" else {}
    if math.prod(shape) < 4:
        options["chips_per_host_bounds"] = [*shape, 1][:3]
    try:
        with silence_stderr():
            topology = topologies.get_topology_desc(platform="tpu", topology_name=topology_name, **options)
            return list(topology.devices)
    except Exception as error:  # of several types
        raise UserError(f"--topology {text} ({topology_name}): {str(error).splitlines()[0]}") from error


def virtual_devices(number: int) -> list[Any]:
    """Returns CPU devices of this process; raises `UserError` if jax has started with fewer."""
    if number < 1:
        raise UserError(f"--devices must be at least 1, not {number}")
    with contextlib.suppress(RuntimeError):  # jax has started already
        jax.config.update("jax_num_cpu_devices", number)
    devices = jax.devices("cpu")
    if len(devices) < number:
        raise UserError(f"--devices {number}: jax has started with {len(devices)} devices on this CPU")
    return devices[:number]


def _slice_shape(text: str, number: int, chip: ChipSpec) -> tuple[int, ...]:
    """Computes the shape as the cloud does: doubles the shortest dimension, the last of equal ones."""
    chips = number // 2 if chip.unit == "cores" else number
    shape = list(_SMALLEST_SLICE[chip.dimensions])
    if chips < 4 and chip.dimensions == 2:
        shape = [1, chips]
    while math.prod(shape) < chips:
        shortest = max(axis for axis, size in enumerate(shape) if size == min(shape))
        shape[shortest] *= 2
    if math.prod(shape) != chips:
        raise UserError(
            f"--topology {text}: no slice has {number} {chip.unit}; sizes are powers of two, write others as a shape, "
            "such as v5p:4x4x12"
        )
    return tuple(shape)


def _configure_libtpu() -> None:
    """Keeps libtpu from querying the cloud for the machine's type and from taking the lock that a real TPU needs."""
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_MIN_LOG_LEVEL": "3",
        "TPU_STDERR_LOG_LEVEL": "3",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }.items():
        os.environ.setdefault(name, value)
