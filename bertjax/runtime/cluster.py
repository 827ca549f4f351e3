"""Which of how many processes this is: from the config, else from what the launcher left in the environment.

jax knows SLURM, Open MPI up to version 4, TPU slices on Google Compute Engine and GKE, and Kubernetes jobs
(jax/_src/clusters). It starts a cluster whenever it is asked to; we ask only where there are several processes.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple

from bertjax.config.distributed import DistributedConfig
from bertjax.errors import UserError

# Launchers that jax does not know, or not in every version: how many, which one, which one of this host.
RANKS = {
    "Open MPI": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "MPI": ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"),
    "SLURM": ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"),
}
HOW = (
    "give --config.distributed.coordinator_address=HOST:PORT of the first process (and num_processes, process_id, "
    "where the launcher does not say them), or --config.distributed.cluster=none if these processes have nothing to "
    "do with each other"
)


class ProcessInfo(NamedTuple):
    """What `jax.distributed.initialize` is told; None = jax asks the cluster."""

    coordinator_address: str | None
    num_processes: int | None
    process_id: int | None
    local_device_ids: list[int] | None
    cluster_detection_method: str | None


def find_process_info(config: DistributedConfig) -> ProcessInfo | None:
    """Where this process stands, None where it is alone; raises `UserError` when only part of it is known."""
    if config.coordinator_address is not None or config.process_id is not None or config.num_processes is not None:
        return _given(config)
    if config.cluster == "none":
        return None
    known = _known_to_jax(config.cluster)
    if known is not None:
        count = _asked(known)
        method = None if config.cluster == "auto" else config.cluster
        return None if count == 1 else ProcessInfo(None, None, None, config.device_ids, method)
    if config.cluster != "auto":
        raise UserError(f"distributed.cluster={config.cluster}, but this process was not started by it; {HOW}")
    for launcher, (size, *_) in RANKS.items():
        if int(os.environ.get(size, 1)) > 1:
            raise UserError(f"{launcher} started {os.environ[size]} processes, but not who is the first: {HOW}")
    return None


def _given(config: DistributedConfig) -> ProcessInfo | None:
    """Named by the config, completed by the launcher's ranks."""
    count, index, devices = config.num_processes, config.process_id, config.device_ids
    for size, rank, local in RANKS.values():
        if size in os.environ and rank in os.environ:
            count = int(os.environ[size]) if count is None else count
            index = int(os.environ[rank]) if index is None else index
            if devices is None and local in os.environ:
                devices = [int(os.environ[local])]  # one process a device, as jax does under its own clusters
            break
    if count == 1:
        return None
    found = {"coordinator_address": config.coordinator_address, "num_processes": count, "process_id": index}
    lacking = [f"distributed.{name}" for name, value in found.items() if value is None]
    if lacking:
        raise UserError(
            f"several processes need distributed.coordinator_address, num_processes and process_id: "
            f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing"
        )
    method = {"none": "deactivate", "auto": None}.get(config.cluster, config.cluster)
    return ProcessInfo(config.coordinator_address, count, index, devices, method)


def _known_to_jax(name: str) -> Any:
    """The cluster that jax finds around this process, None where there is none."""
    from jax._src.clusters import ClusterEnv

    if name == "auto" and "KUBERNETES_SERVICE_HOST" in os.environ and "JOB_COMPLETION_INDEX" not in os.environ:
        named = [each for each in ClusterEnv._cluster_types if each.name != "k8s"]  # a pod that is no part of a job
    else:
        named = [each for each in ClusterEnv._cluster_types if name in ("auto", each.name)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jax wants a package for Kubernetes, even of a pod that is alone
        usable = (each for each in named if name != "auto" or not each.opt_in_only_method)
        return next((each for each in usable if each.is_env_present()), None)


def _asked(cluster: Any) -> int:
    try:
        return cluster.get_process_count()
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"the cluster ({cluster.name}) does not say how many processes there are ({reason}); {HOW}"
        ) from error
