"""The processes of a run: they must start alike, and the first prepares the text for all that share a disk with it.

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

from bertjax.config.data import TOKENIZER_MODELS
from bertjax.config.overrides import flatten
from bertjax.data import from_config, tokenizer_from_config
from bertjax.data.from_config import Prepared
from bertjax.data.prepare import describe_corpus
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.errors import UserError
from bertjax.experiment.build import Experiment
from bertjax.io.hub import is_hub_name
from bertjax.io.staging import display_path
from bertjax.runtime.process_group import ProcessGroup
from bertjax.storage import is_url

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


def prepare_on_first_process(cfg: ConfigDict, processes: ProcessGroup) -> Prepared:
    """Returns tokenizer and corpora of a config.

    Only the first process reads the sources, and those that do not see its folders: hosts without a shared disk.

    Raises:
        UserError: the text cannot be prepared, or a process reads another one than the first.
    """
    if processes.count == 1:
        return from_config.prepare(cfg)
    made: list[Prepared] = []

    def describe() -> dict[str, Any]:
        made.append(from_config.prepare(cfg))
        from_config.count_sequences(cfg, made[0])
        return _description(cfg, made[0])

    described = processes.run_on_first("the prepared text", describe)
    if made:
        return made[0]
    folders = [described["tokenizer"], *described["training"].values(), *described["held_out"].values()]
    is_shared = not is_url(cfg.data.cache_dir) and all(
        is_hub_name(folder) or is_url(folder) or Path(folder).exists() for folder in folders
    )
    opened = _opened(cfg, described) if is_shared else from_config.prepare(cfg)
    if opened.digests != described["digests"]:
        raise UserError(
            f"process {processes.index} reads another tokenizer or corpus than the first one "
            f"({', '.join(folders)}); give all hosts the same text and the same tokenizer"
        )
    return opened


def _description(cfg: ConfigDict, prepared: Prepared) -> dict[str, Any]:
    """Returns paths and digests of prepared text."""
    folder = tokenizer_from_config.tokenizer_folder(cfg)
    return {
        "tokenizer": str(cfg.data.tokenizer if folder is None else folder),
        "training": {name: str(corpus.folder) for name, corpus in prepared.training.items()},
        "held_out": {name: str(corpus.folder) for name, corpus in prepared.held_out.items()},
        "digests": prepared.digests,
    }


def _opened(cfg: ConfigDict, described: Mapping[str, Any]) -> Prepared:
    """Opens the text that the first process has prepared."""
    if cfg.data.tokenizer not in TOKENIZER_MODELS:
        tokenizer = tokenizer_from_config.load_or_train_tokenizer(cfg)
    else:
        tokenizer = tokenizer_from_config.complete_tokenizer(load_tokenizer(described["tokenizer"]), cfg)
    training = {name: describe_corpus(Path(folder)) for name, folder in described["training"].items()}
    held_out = {name: describe_corpus(Path(folder)) for name, folder in described["held_out"].items()}
    return from_config.join_prepared(cfg, tokenizer, training, held_out)
