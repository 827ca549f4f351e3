"""Devices to compile for that this machine does not have: GPUs and TPU slices by name, virtual devices of its CPU."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from bertjax.errors import UserError
from bertjax.io.stderr import silence_stderr


class GpuSpec(NamedTuple):
    """Data sheet of a GPU (openxla/xla:xla/backends/gpu/target_config/specs; NVIDIA's data sheets).

    device_kind  as jax names it
    memory       bytes
    bandwidth    bytes per second of the memory
    link         bytes per second and direction to the other GPUs of a host
    capability   compute capability
    cores        streaming multiprocessors
    lanes        float32 lanes per core
    shared       bytes of shared memory per core; a block can have 1 KiB less
    cache        bytes of the second-level cache
    clock        GHz
    """

    device_kind: str
    memory: int
    bandwidth: int
    link: float
    capability: tuple[int, int]
    cores: int
    lanes: int
    shared: int
    cache: int
    clock: float


GPUS = {
    "a100": GpuSpec(
        "NVIDIA A100-SXM4-80GB", 85_167_243_264, 2_039_000_000_000, 3e11, (8, 0), 108, 64, 167_936, 40 << 20, 1.41
    ),
    "h100": GpuSpec(
        "NVIDIA H100 80GB HBM3", 84_942_979_072, 3_352_320_000_000, 4.5e11, (9, 0), 132, 128, 233_472, 50 << 20, 1.98
    ),
    "h200": GpuSpec(
        "NVIDIA H200", 151_397_597_184, 4_800_000_000_000, 4.5e11, (9, 0), 132, 128, 233_472, 50 << 20, 1.98
    ),
}  # fmt: skip
COMPILER_OPTIONS = {"xla_gpu_enable_triton_gemm": False}
"""Without a device nothing is autotuned, and Triton's default tiles are far slower than cuBLASLt, which GPUs use."""
_GPU_NAME = re.compile(r"(\w+)(?::(\d+)x(\d+))?")
_TARGET_CONFIG = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_core: {shared} shared_memory_per_block_optin: {shared_per_block}
  core_count: {cores} fpus_per_core: {lanes} clock_rate_ghz: {clock} l2_cache_size: {cache}
  memory_bandwidth: {bandwidth} device_memory_size: {memory}
  cuda_compute_capability {{ major: {major} minor: {minor} {features} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "{device_kind}"
"""


def gpu_spec(device: Any) -> GpuSpec | None:
    """Returns the data sheet of a device; None if it is not a known GPU."""
    return next((spec for spec in GPUS.values() if spec.device_kind == device.device_kind), None)


def is_gpu(text: str) -> bool:
    """Returns True for a topology whose chip is a known GPU."""
    match = _GPU_NAME.fullmatch(text.strip().lower())
    return match is not None and match[1] in GPUS


def gpu_devices(text: str) -> list[Any]:
    """Returns devices that can be compiled for, but not used.

    Args:
        text: `h100` is one GPU, `h100:2x8` two hosts with eight each.

    Raises:
        UserError: jax's plugin for CUDA or cuDNN is not installed, or XLA refuses the topology.
    """
    match = _GPU_NAME.fullmatch(text.strip().lower())
    assert match is not None and match[1] in GPUS, text
    hosts, per_host = int(match[2] or 1), int(match[3] or 1)
    if hosts < 1 or per_host < 1:
        raise UserError(f"--topology {text}: give at least one host and one GPU, such as {match[1]}:1x8")
    if not any(map(_has_plugin, ("xla_cuda12", "xla_cuda13"))):
        raise UserError(
            f"--topology {text} needs jax's plugin for CUDA, which compiles without a GPU: pip install "
            "'bertjax[compile-gpu]' (Linux), or use --devices N"
        )
    try:
        topology = topologies.get_topology_desc(
            platform="cuda",
            topology_name="",
            target_config=target_config(GPUS[match[1]]),
            topology=f"1x{hosts}x{per_host}",
        )
        return list(topology.devices)
    except Exception as error:  # of several types
        raise UserError(f"--topology {text}: {str(error).splitlines()[0]}") from error


def target_config(spec: GpuSpec) -> str:
    """Renders a data sheet as XLA's `GpuTargetConfigProto` in text form."""
    major, minor = spec.capability
    return _TARGET_CONFIG.format(
        **spec._asdict(),
        shared_per_block=spec.shared - 1024,
        major=major,
        minor=minor,
        features="feature_extension: ACCELERATED_FEATURES" if major >= 9 else "",
    )


def _has_plugin(name: str) -> bool:
    try:
        return importlib.util.find_spec(f"jax_plugins.{name}") is not None
    except ModuleNotFoundError:  # no plugin at all
        return False


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
_TPU_NAME = re.compile(r"(v\w+?)(?::(\d+(?:x\d+)+)|-(\d+))")


def chip_spec(device: Any) -> ChipSpec | None:
    """Returns the data sheet of a device; None if it is not a known TPU."""
    name = _DEVICE_KINDS.get(device.device_kind)
    return None if name is None else CHIPS[name]


def parse_topology(text: str) -> tuple[str, tuple[int, ...]]:
    """Returns (chip, shape) of `v5e:4x4`, or of the name of a slice such as `v5e-16` or `v4-32`.

    Raises:
        UserError: the text is neither, or no slice has this size.
    """
    match = _TPU_NAME.fullmatch(text.strip().lower())
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
