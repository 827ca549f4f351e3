"""Detects which of how many processes this is: from the config, else from the environment that a launcher sets.

`jax.distributed.initialize` knows the launchers as well, but it starts a service even for one process, and not all of
them leave it enough to find the first process. So the process count is read here, and jax is called by the launcher's
name only where there can be several processes.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from bertjax.config.distributed import DistributedConfig
from bertjax.errors import UserError, named

AUTO = "ompi", "slurm", "gketpu", "gcetpu", "k8s"
"""Launchers that `distributed.cluster=auto` looks for, by jax's names and in its order."""
SLURM = "SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"
RANKS = {
    "Open MPI": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "MPI": ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"),
    "SLURM": ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"),
}
"""Number of processes, index of this one, and its index on this host, of launchers that do not name the first host."""
GOOGLE_PCI_VENDOR = "0x1ae0"


def advice() -> str:
    """Returns what the user can do about processes that do not find each other."""
    return (
        f"set {named('config.distributed.coordinator_address', 'HOST:PORT')} of the first process (and num_processes, "
        f"process_id, where the launcher does not set them), or {named('config.distributed.cluster', 'none')} if these "
        "processes are independent"
    )


class ProcessInfo(NamedTuple):
    """Arguments of `jax.distributed.initialize`; None = jax asks the launcher."""

    coordinator_address: str | None
    num_processes: int | None
    process_id: int | None
    local_device_ids: list[int] | None
    cluster_detection_method: str | None


def find_process_info(config: DistributedConfig) -> ProcessInfo | None:
    """Returns how this process joins the others, None for a single process.

    Raises:
        UserError: There are several processes, but not enough is known to join them.
    """
    if config.coordinator_address is not None or config.process_id is not None or config.num_processes is not None:
        return _from_config(config)
    if config.cluster == "none":
        return None
    for name in AUTO if config.cluster == "auto" else (config.cluster,):
        count = _count_processes(name)
        if count != 0:
            return None if count == 1 else ProcessInfo(None, None, None, config.device_ids, name)
    if config.cluster != "auto":
        raise UserError(f"distributed.cluster={config.cluster}, but this process was not started by it; {advice()}")
    for launcher, (size, *_) in RANKS.items():
        if int(os.environ.get(size, 1)) > 1:
            raise UserError(f"{launcher} started {os.environ[size]} processes, but does not name the first: {advice()}")
    return None


def _from_config(config: DistributedConfig) -> ProcessInfo | None:
    """Completes the values of the config by the ranks that the launcher sets."""
    count, index, devices = config.num_processes, config.process_id, config.device_ids
    for size, rank, local_rank in RANKS.values():
        if size in os.environ and rank in os.environ:
            count = int(os.environ[size]) if count is None else count
            index = int(os.environ[rank]) if index is None else index
            if devices is None and local_rank in os.environ:
                devices = [int(os.environ[local_rank])]  # one device per process, as in jax's own clusters
            break
    if count == 1:
        return None
    values = {"coordinator_address": config.coordinator_address, "num_processes": count, "process_id": index}
    missing = [f"distributed.{name}" for name, value in values.items() if value is None]
    if missing:
        raise UserError(
            f"several processes need distributed.coordinator_address, num_processes and process_id: "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        )
    method = {"none": "deactivate", "auto": None}.get(config.cluster, config.cluster)
    return ProcessInfo(config.coordinator_address, count, index, devices, method)


def _count_processes(launcher: str) -> int | None:
    """Returns the number of processes; 0 = not started by this launcher, None = only jax can ask it."""
    env = os.environ
    if launcher == "slurm":
        return int(env["SLURM_NTASKS"]) if all(name in env for name in SLURM) else 0
    if launcher == "ompi":
        return int(env["OMPI_COMM_WORLD_SIZE"]) if "OMPI_MCA_orte_hnp_uri" in env else 0
    if launcher == "mpi4py":
        return None if find_spec("mpi4py") else 0
    if launcher == "k8s":  # a pod without an index is not part of a job
        is_job = "KUBERNETES_SERVICE_HOST" in env and "JOB_COMPLETION_INDEX" in env
        return None if is_job and find_spec("kubernetes") else 0
    if not _has_tpu():
        return 0
    hosts = env.get("TPU_PROCESS_ADDRESSES", env.get("TPU_WORKER_HOSTNAMES"))
    if launcher == "gketpu":
        return 0 if hosts is None else len(hosts.split(",")) * int(env.get("MEGASCALE_NUM_SLICES") or 1)
    return 0 if "TPU_SKIP_MDS_QUERY" in env else None  # gcetpu: the metadata server has the count


def _has_tpu() -> bool:
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    return find_spec("libtpu") is not None and any(path.read_text().strip() == GOOGLE_PCI_VENDOR for path in vendors)
