"""Checks that all processes of a run start from the same code, settings, data and weights.

Every process computes its part of one program: where they differ, they would train a model that no config describes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from bertjax.config.overrides import flatten
from bertjax.experiment.build import Experiment
from bertjax.io.staging import display_path
from bertjax.runtime.process_group import ProcessGroup

_PER_PROCESS = {f"distributed.{name}" for name in ("process_id", "local_devices", "coordinator_address")}
_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint", "datasets", "tokenizers", "sentencepiece")
_JAX_OPTIONS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
)


def require_same_start(cfg: ConfigDict, workdir: Path, processes: ProcessGroup) -> None:
    """Compares what every process was started with; to be called first.

    Args:
        cfg: checked config.
        workdir: work directory of the run.
        processes: processes that train together.

    Raises:
        UserError: a process has other settings, versions or code than the first one; names them.
    """

    def describe() -> dict[str, Any]:
        settings = {f"config.{key}": value for key, value in flatten(cfg).items() if key not in _PER_PROCESS}
        return {"--workdir": display_path(workdir), **settings, **_versions(), **_code()}

    processes.require_same(
        "settings or code", describe, "Start all processes with the same command, of one installation"
    )


def require_same_inputs(exp: Experiment, digests: Mapping[str, Any], processes: ProcessGroup) -> None:
    """Compares what every process has read and decided by itself; to be called before the first step.

    Args:
        exp: the experiment: kernels and dtypes follow the hardware, and a teacher is read by every process.
        digests: digests of data, and settings that follow from them.
        processes: processes that train together.

    Raises:
        UserError: a process has other data or another model than the first one; names them.
    """

    def describe() -> dict[str, Any]:
        networks = {
            f"{name}.{field}": str(value)
            for name, network in exp.objective.networks.items()
            for field, value in dataclasses.asdict(network.config).items()
        }
        return {**digests, **exp.digests, **networks}

    processes.require_same(
        "data or model",
        describe,
        "Put what all processes read on a disk that all hosts share; set dtypes and kernels where the hosts are not of "
        "one kind (train.compute_dtype, train.result_dtype, model.attention_implementation)",
    )


def _versions() -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    python = ".".join(platform.python_version_tuple()[:2])
    options = {name: str(jax.config.values[name]) for name in _JAX_OPTIONS}
    return {"python": python, **versions, **options}


def _code() -> dict[str, str]:
    """Returns digests of the modules of bertjax, whose version says too little while it is developed."""
    folder = Path(__file__).parents[1]
    return {
        path.relative_to(folder.parent).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in sorted(folder.rglob("*.py"))
    }
