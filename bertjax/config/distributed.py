"""Settings of runs of several processes."""

from __future__ import annotations

import dataclasses

from bertjax.config.fields import Settings, setting
from bertjax.errors import UserError

CLUSTERS = ("auto", "none", "slurm", "ompi", "mpi4py", "gcetpu", "gketpu", "k8s")


@dataclasses.dataclass(frozen=True)
class DistributedConfig(Settings, group="distributed"):
    """Several processes that train one model, one per host or one per device; times are whole seconds."""

    cluster: str = setting(
        "auto",
        choices=CLUSTERS,
        resume=True,
        help="Launcher of the processes. auto: the first found of SLURM, Open MPI up to 4, Google's TPU slices and "
        "Kubernetes jobs; none: a single process.",
    )
    coordinator_address: str | None = setting(
        None, resume=True, help="HOST:PORT of the first process; None: the cluster provides it."
    )
    num_processes: int | None = setting(
        None, at_least=1, resume=True, help="Number of processes; None: the cluster provides it."
    )
    process_id: int | None = setting(
        None, at_least=0, resume=True, help="Index of this process, from 0; None: the cluster provides it."
    )
    local_devices: tuple[int, ...] | None = setting(
        None,
        at_least=0,
        resume=True,
        help="Indices of this host's accelerators that this process uses, such as 0,1; None: all, or under SLURM and "
        "Open MPI the one with the local index of the process.",
    )
    start_timeout: int = setting(
        300, at_least=1, resume=True, help="Seconds until all processes must have found each other."
    )
    peer_timeout: int = setting(
        100,
        at_least=1,
        resume=True,
        help="Seconds after which a silent process counts as dead: the others exit with status 75 and can restart.",
    )
    wait_timeout: int = setting(
        86400,
        at_least=1,
        resume=True,
        help="Seconds to wait for the first process: text preparation, a checkpoint's digests, the export.",
    )
    end_timeout: int = setting(
        300, at_least=1, resume=True, help="Seconds that a finished process waits for the others to finish."
    )

    def check(self) -> None:
        address, count, index = self.coordinator_address, self.num_processes, self.process_id
        if address is not None and not address.rpartition(":")[2].isdecimal():
            raise UserError(f"distributed.coordinator_address must be HOST:PORT, not {address!r}")
        if index is not None and count is not None and index >= count:
            raise UserError(
                f"distributed.process_id={index} must lie below distributed.num_processes={count}, from 0 on"
            )

    @property
    def device_ids(self) -> list[int] | None:
        """`local_devices` as `jax.distributed.initialize` takes them."""
        return None if self.local_devices is None else list(self.local_devices)
