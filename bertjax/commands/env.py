"""Facts about this machine for a bug report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import jax

from bertjax.commands.signatures import command
from bertjax.errors import one_line
from bertjax.io.output import Results

_PACKAGES = (
    "bertjax",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "tokenizers",
    "datasets",
    "huggingface_hub",
)
_OPTIONAL = ("transformers", "torch", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
_VARIABLES = ("JAX_", "XLA_", "LIBTPU_", "TPU_", "CUDA_VISIBLE", "NCCL_")


@command
def env() -> Results:
    """Print versions, devices and settings of the environment, for a bug report.

    Returns:
        The facts by name.

    Example:
        bertjax env
    """
    facts = {"Python": platform.python_version(), "platform": platform.platform(), "CPU cores": str(os.cpu_count())}
    for name in (*_PACKAGES, *_OPTIONAL):
        version = _version(name)
        if version or name in _PACKAGES:
            facts[name] = version or "not installed"
    facts["imported from"] = str(Path(__file__).parents[1])
    facts |= {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)}
    facts["devices"] = _devices()
    width = max(map(len, facts))
    return Results(facts, [f"{name:<{width}}  {value}" for name, value in facts.items()])


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> str:
    """Returns number and kind of the devices, or why there are none: the reason is what a report is about."""
    try:
        devices = jax.devices()
    except Exception as error:
        return f"none: {one_line(error)}"
    return f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})"
