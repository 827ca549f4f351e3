"""P16 with processes: one of two is killed or halted, and the other one ends in time and names it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

PEER_TIMEOUT = 6
WORKER = """
import os
import signal
import sys
from pathlib import Path

from bertjax.config.distributed import DistributedConfig
from bertjax.runtime.process_group import connect_devices, join_processes

index, address, ready, mode = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[5]
config = DistributedConfig("none", address, 2, index, start_timeout=120, peer_timeout=int(sys.argv[4]))
with join_processes(config):
    import time
    import jax

    if mode == f"halt{index}":
        jax.distributed.shutdown = lambda: os.kill(os.getpid(), signal.SIGSTOP)
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    connect_devices(mesh)
    if mode == "slow" and index == 1:
        time.sleep(35)
    ones = jax.make_array_from_callback(
        (2,), NamedSharding(mesh, PartitionSpec("data")), lambda index: jax.numpy.ones(2)[index]
    )
    total = jax.jit(jax.numpy.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))
    while True:
        assert float(total(ones)) == 2.0
        if mode != "endless":
            break
        ready.touch()
        time.sleep(0.05)
"""


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _start(index: int, address: str, folder: Path, mode: str = "endless") -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(index), address, str(folder / f"ready{index}"), str(PEER_TIMEOUT), mode],
        stdout=subprocess.DEVNULL,
        stderr=(folder / f"err{index}").open("w"),
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"},
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "victim"),
    [
        (signal.SIGKILL, 1),
        pytest.param(signal.SIGSTOP, 1, marks=pytest.mark.weekly),
        pytest.param(signal.SIGKILL, 0, marks=pytest.mark.weekly),
        (signal.SIGSTOP, 0),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else f"process-{value}",
)
def test_the_other_one_ends_in_time_and_says_why(tmp_path: Path, how: signal.Signals, victim: int) -> None:
    address = _free_address()
    pair = [_start(index, address, tmp_path) for index in range(2)]
    try:
        end = time.monotonic() + 120
        while not all((tmp_path / f"ready{index}").exists() for index in range(2)):
            assert time.monotonic() < end and all(each.poll() is None for each in pair), (tmp_path / "err0").read_text()
            time.sleep(0.05)
        began = time.monotonic()
        pair[victim].send_signal(how)
        code = pair[1 - victim].wait(timeout=120)
        seconds = time.monotonic() - began
    finally:
        for each in pair:
            each.kill()
            each.wait()
    message = (tmp_path / f"err{1 - victim}").read_text()
    assert code == 75, message
    assert f"bertjax: process {1 - victim} of 2: process {victim}" in message, message
    assert seconds < PEER_TIMEOUT + 20


@pytest.mark.weekly
def test_a_process_that_computes_for_35_seconds_longer_is_waited_for(tmp_path: Path) -> None:
    """gloo gives up after 30 s at the first collective."""
    address = _free_address()
    pair = [_start(index, address, tmp_path, "slow") for index in range(2)]
    assert [each.wait(timeout=120) for each in pair] == [0, 0], (tmp_path / "err0").read_text()


@pytest.mark.long
@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.weekly), 1])
def test_a_process_that_halts_at_the_very_end_is_named(tmp_path: Path, victim: int) -> None:
    """All files are written, and jax's service waits for all processes to leave."""
    address = _free_address()
    pair = [_start(index, address, tmp_path, f"halt{victim}") for index in range(2)]
    try:
        code = pair[1 - victim].wait(timeout=120)
    finally:
        for each in pair:
            each.kill()
            each.wait()
    message = (tmp_path / f"err{1 - victim}").read_text()
    assert code == 75 and f"bertjax: process {1 - victim} of 2: process {victim}" in message, message
