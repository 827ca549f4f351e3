"""The number of this process, from the config and from the environment that launchers set."""

from __future__ import annotations

import pytest

from bertjax.config.distributed import DistributedConfig
from bertjax.errors import UserError
from bertjax.runtime import cluster
from bertjax.runtime.cluster import ProcessInfo, find_process_info

SLURM = {
    "SLURM_JOB_ID": "4097",
    "SLURM_STEP_NODELIST": "node[007-009],other1",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
BATCH_SCRIPT = {"SLURM_JOB_ID": "4097", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in os.environ:
        if name.startswith(
            ("SLURM_", "OMPI_", "PMI_", "KUBERNETES_", "JOB_COMPLETION", "TPU_", "MEGASCALE_", "JAX_CO")
        ):
            monkeypatch.delenv(name)


def set_all(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("values", [{}, BATCH_SCRIPT, SLURM | {"SLURM_NTASKS": "1"}, {"KUBERNETES_SERVICE_HOST": "x"}])
def test_one_process_alone_starts_nothing(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    set_all(monkeypatch, values)
    assert find_process_info(DistributedConfig()) is None


def test_slurm_is_left_to_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, SLURM)
    assert find_process_info(DistributedConfig()) == ProcessInfo(None, None, None, None, "slurm")
    assert find_process_info(DistributedConfig(cluster="slurm", local_devices=(0, 1))) == ProcessInfo(
        None, None, None, [0, 1], "slurm"
    )
    assert find_process_info(DistributedConfig(cluster="none")) is None


def test_open_mpi_4_is_known_to_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"})
    assert find_process_info(DistributedConfig()) == ProcessInfo(None, None, None, None, "ompi")


def test_a_tpu_slice_names_its_hosts_in_gke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_has_tpu", lambda: True)
    set_all(monkeypatch, {"TPU_WORKER_HOSTNAMES": "a,b", "MEGASCALE_NUM_SLICES": "2", "TPU_SKIP_MDS_QUERY": "1"})
    assert find_process_info(DistributedConfig()) == ProcessInfo(None, None, None, None, "gketpu")
    set_all(monkeypatch, {"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "1"})
    assert find_process_info(DistributedConfig()) is None
    monkeypatch.delenv("TPU_WORKER_HOSTNAMES")
    assert find_process_info(DistributedConfig()) is None
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY")
    assert find_process_info(DistributedConfig()) == ProcessInfo(None, None, None, None, "gcetpu")


def test_open_mpi_5_says_who_but_not_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, each of its processes would train the whole model into the same folder."""
    set_all(monkeypatch, OPEN_MPI)
    with pytest.raises(UserError, match=r"Open MPI started 4 processes.*coordinator_address=HOST:PORT"):
        find_process_info(DistributedConfig())
    assert find_process_info(DistributedConfig(coordinator_address="h:1")) == ProcessInfo("h:1", 4, 3, [1], None)


def test_the_config_says_everything_or_is_refused() -> None:
    whole = DistributedConfig(cluster="none", coordinator_address="h:1", num_processes=2, process_id=1)
    assert find_process_info(whole) == ProcessInfo("h:1", 2, 1, None, "deactivate")
    assert find_process_info(DistributedConfig(coordinator_address="h:1", num_processes=1)) is None
    with pytest.raises(UserError, match=r"num_processes and distributed\.process_id are missing"):
        find_process_info(DistributedConfig(coordinator_address="h:1"))
    with pytest.raises(UserError, match=r"distributed\.coordinator_address is missing"):
        find_process_info(DistributedConfig(num_processes=2, process_id=0))
    with pytest.raises(UserError, match="was not started by it"):
        find_process_info(DistributedConfig(cluster="slurm"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cluster": "pbs"}, "must be one of auto, none, slurm"),
        ({"coordinator_address": "host"}, "must be HOST:PORT"),
        ({"num_processes": 0}, "at least 1"),
        ({"num_processes": 2, "process_id": 2}, "must lie below"),
        ({"process_id": -1}, "at least 0"),
        ({"peer_timeout": 0}, "at least 1"),
        ({"local_devices": ("a",)}, "each a whole number"),
    ],
)
def test_settings_are_checked(wrong: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        DistributedConfig(**wrong)
