"""Hosts of a run without a shared disk: processes of this machine, each with its own home folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lab import Lab
from stores import free_port

PEERS = ["--config.distributed.peer_timeout=8", "--config.distributed.end_timeout=20"]
LONG_RUN = ["--config.train.num_steps=16", "--config.schedule.name=constant", "--config.schedule.warmup_steps=0"]
LONG_RUN += ["--config.train.log_interval_steps=1", "--config.eval.fill_mask=", "--config.export.at_end=false"]
LONG_RUN += ["--config.mesh.data=-1", "--config.mesh.fsdp=2", "--config.train.compute_dtype=float32"]
LONG_RUN += ["--config.model.num_layers=1"]


def start(
    lab: Lab, tmp_path: Path, url: object, hosts: int, *arguments: str, devices: int = 2
) -> list[subprocess.Popen[str]]:
    """Starts a run on several hosts, each with its own disk.

    Args:
        lab: Config and text.
        tmp_path: Parent of the home folders.
        url: Work directory.
        hosts: Number of processes.
        arguments: Of `bertjax pretrain`.
        devices: Devices of all hosts together.
    """
    port, processes = free_port(), list[subprocess.Popen[str]]()
    flags = re.sub(r"(?<=device_count=)\d+", str(devices // hosts), os.environ["XLA_FLAGS"])
    for index in range(hosts):
        command = [sys.executable, "-m", "bertjax", "pretrain", "--config", str(lab.config), "--workdir", str(url)]
        command += [*LONG_RUN, "--config.data.cache_dir=~/text", *arguments]
        if hosts > 1:
            command += [f"--config.distributed.coordinator_address=127.0.0.1:{port}", *PEERS]
            command += [f"--config.distributed.num_processes={hosts}", f"--config.distributed.process_id={index}"]
        home = {"HOME": str(tmp_path / f"host{index}"), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        processes.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | home
            )
        )
    return processes


def ended(processes: list[subprocess.Popen[str]]) -> list[str]:
    outputs = [process.communicate(timeout=280)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(outputs)[-4000:]
    return outputs


def wait_for(condition: Callable[[], object], *processes: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 280
    while not condition():
        gone = [process for process in processes if process.poll() is not None]
        assert not gone and time.monotonic() < end, [process.communicate()[0][-3000:] for process in gone]
        time.sleep(0.3)  # a listing of a store takes processor time here and in its server
