"""GPUs to compile for that this machine does not have: their data sheets, and devices of XLA's GPU compiler."""

from __future__ import annotations

import importlib.util
import re
from typing import Any, NamedTuple

from bertjax.errors import UserError


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
_NAME = re.compile(r"(\w+)(?::(\d+)x(\d+))?")
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
    match = _NAME.fullmatch(text.strip().lower())
    return match is not None and match[1] in GPUS


def gpu_devices(text: str) -> list[Any]:
    """Returns devices that can be compiled for, but not used.

    Args:
        text: `h100` is one GPU, `h100:2x8` two hosts with eight each.

    Raises:
        UserError: jax's plugin for CUDA or cuDNN is not installed, or XLA refuses the topology.
    """
    match = _NAME.fullmatch(text.strip().lower())
    assert match is not None and match[1] in GPUS, text
    hosts, per_host = int(match[2] or 1), int(match[3] or 1)
    if hosts < 1 or per_host < 1:
        raise UserError(f"--topology {text}: give at least one host and one GPU, such as {match[1]}:1x8")
    if not any(map(_has_plugin, ("xla_cuda12", "xla_cuda13"))):
        raise UserError(
            f"--topology {text} needs jax's plugin for CUDA, which compiles without a GPU: pip install "
            "'bertjax[compile-gpu]' (Linux), or use --devices N"
        )
    from jax.experimental import topologies

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
