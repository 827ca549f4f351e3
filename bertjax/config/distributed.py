"""Settings of devices and processes, and how batches are divided among them."""

from __future__ import annotations

import dataclasses
import math

from bertjax.config.fields import Settings, setting
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, comma_list

AXES = ("data", "fsdp", "tensor")
CLUSTERS = ("auto", "none", "slurm", "ompi", "mpi4py", "gcetpu", "gketpu", "k8s")


@dataclasses.dataclass(frozen=True)
class DistributedConfig(Settings, group="distributed", resume=True):
    """Several processes that train one model, one per host or one per device; times are whole seconds."""

    cluster: str = setting(
        "auto",
        choices=CLUSTERS,
        help="Launcher of the processes. auto: the first found of SLURM, Open MPI up to 4, Google's TPU slices and "
        "Kubernetes jobs; none: a single process.",
    )
    coordinator_address: str | None = setting(
        None, help="HOST:PORT of the first process; None: the cluster provides it."
    )
    num_processes: int | None = setting(None, at_least=1, help="Number of processes; None: the cluster provides it.")
    process_id: int | None = setting(
        None, at_least=0, help="Index of this process, from 0; None: the cluster provides it."
    )
    local_devices: tuple[int, ...] | None = setting(
        None,
        at_least=0,
        help="Indices of this host's accelerators that this process uses, such as 0,1; None: all, or under SLURM and "
        "Open MPI the one with the local index of the process.",
    )
    start_timeout: int = setting(300, at_least=1, help="Seconds until all processes must have found each other.")
    peer_timeout: int = setting(
        100,
        at_least=1,
        help="Seconds after which a silent process counts as dead: the others exit with status 75 and can restart.",
    )
    wait_timeout: int = setting(
        86400,
        at_least=1,
        help="Seconds to wait for the first process: text preparation, a checkpoint's digests, the export.",
    )
    end_timeout: int = setting(300, at_least=1, help="Seconds that a finished process waits for the others to finish.")

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


@dataclasses.dataclass(frozen=True)
class MeshConfig(Settings, group="mesh", resume=True):
    """Devices along the axes of the mesh; the product of the three is the number of devices."""

    data: int = setting(-1, help="Sequences are split, weights are copied; -1: the remaining devices.")
    fsdp: int = setting(
        1,
        help="Sequences are split, and so are weights and optimizer state, which are gathered layer by layer; "
        "-1: the remaining devices.",
    )
    tensor: int = setting(1, help="Heads and feed-forward widths are split; -1: the remaining devices.")

    def check(self) -> None:
        sizes = self.sizes
        if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
            raise UserError(
                f"mesh.data, mesh.fsdp and mesh.tensor must be positive, at most one of them -1, not {sizes}"
            )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Sizes of the axes data, fsdp and tensor; -1 = all other devices."""
        return self.data, self.fsdp, self.tensor

    @property
    def batch_shards(self) -> int | None:
        """Number of devices that a batch is split over; None while that depends on the devices of the machine."""
        return None if -1 in (self.data, self.fsdp) else self.data * self.fsdp

    def shape(self, num_devices: int) -> tuple[int, int, int]:
        """Returns the sizes with -1 filled in; raises `UserError` if the devices do not suffice or do not divide."""
        fixed = math.prod(size for size in self.sizes if size != -1)
        named = ", ".join(f"mesh.{axis}={size}" for axis, size in zip(AXES, self.sizes, strict=True))
        if fixed > num_devices:
            raise UserError(f"{named} needs {fixed} devices, but there are {num_devices}")
        if -1 in self.sizes and num_devices % fixed:
            raise UserError(f"{named}: {num_devices} devices cannot be split by {fixed}")
        filled = [num_devices // fixed if size == -1 else size for size in self.sizes]
        return filled[0], filled[1], filled[2]

    def check_model(self, model: EncoderConfig) -> None:
        """Raises `UserError` if the tensor axis would cut through a head."""
        sizes = {"num_heads": model.num_heads, "num_key_value_heads": model.kv_heads}
        sizes |= {"intermediate_size": model.intermediate_size, "adapter_size": model.adapter_size or 0}
        for key, size in sizes.items():
            if self.tensor > 0 and size % self.tensor:
                fits = [ways for ways in range(1, min(size, 64) + 1) if size % ways == 0]
                raise UserError(f"mesh.tensor={self.tensor} does not divide model.{key}={size}; {comma_list(fits)} do")


def check_batch_size(key: str, batch_size: int, microbatches: int, shards: int) -> None:
    """Checks that a batch can be split evenly.

    Args:
        key: The config key that the message names.
        batch_size: Sequences per batch.
        microbatches: Parts of the batch, one after the other.
        shards: Devices that a part is split over.

    Raises:
        UserError: The batch cannot be split.
    """
    unit = microbatches * shards
    if batch_size < 1 or batch_size % unit:
        below = batch_size // unit * unit
        nearest = comma_list(size for size in (below, below + unit) if size > 0)
        raise UserError(
            f"{key}={batch_size} is not divisible by {unit}: train.microbatches={microbatches} times the {shards} "
            f"devices that share a batch (mesh.data * mesh.fsdp); nearest that are: {nearest}"
        )
