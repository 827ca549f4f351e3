"""What a config says of several processes. Needs no jax."""

from __future__ import annotations

import dataclasses

from bertjax.errors import UserError, require_one_of

CLUSTERS = ("auto", "none", "slurm", "ompi", "mpi4py", "gcetpu", "gketpu", "k8s")


@dataclasses.dataclass(frozen=True)
class DistributedConfig:
    """`distributed` of a config; None = the cluster says it. Times are seconds.

    start_timeout  until all processes have found each other
    peer_timeout   until a silent process is taken for dead, and the others end
    wait_timeout   until the others give up waiting for what the first one prepares
    end_timeout    until a process that is done stops waiting for the others
    """

    cluster: str = "auto"
    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    local_devices: tuple[str, ...] | None = None
    start_timeout: int = 300
    peer_timeout: int = 100
    wait_timeout: int = 86400
    end_timeout: int = 300

    def __post_init__(self) -> None:
        require_one_of("distributed.cluster", self.cluster, CLUSTERS)
        for name in ("start_timeout", "peer_timeout", "wait_timeout", "end_timeout"):
            if getattr(self, name) < 1:
                raise UserError(f"distributed.{name} must be at least 1 second, not {getattr(self, name)}")
        self._check_place()
        if self.local_devices is not None and not all(each.isdecimal() for each in self.local_devices):
            raise UserError(
                f"distributed.local_devices must be whole numbers such as 0,1, not {','.join(self.local_devices)}"
            )

    def _check_place(self) -> None:
        address, count, index = self.coordinator_address, self.num_processes, self.process_id
        if address is not None and not address.rpartition(":")[2].isdecimal():
            raise UserError(f"distributed.coordinator_address must be HOST:PORT, not {address!r}")
        if count is not None and count < 1:
            raise UserError(f"distributed.num_processes must be at least 1, not {count}")
        if index is not None and not 0 <= index < (index + 1 if count is None else count):
            raise UserError(
                f"distributed.process_id={index} must lie below distributed.num_processes={count}, from 0 on"
            )

    @property
    def device_ids(self) -> list[int] | None:
        return None if self.local_devices is None else [int(each) for each in self.local_devices]
