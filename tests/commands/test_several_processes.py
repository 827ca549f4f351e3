"""Two processes with four virtual devices each train one model through gloo: killed, stopped, moved to one process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from lab import Finished, Lab

from bertjax.errors import UserError

PEER_TIMEOUT = 8
"""Seconds until a silent process counts as dead; a busy machine may delay one by a few."""
PATIENCE = 300  # seconds until a test fails
SETTINGS = [
    "--config.mesh.data=-1",
    "--config.model.num_layers=1",
    "--config.train.compute_dtype=float32",
    "--config.train.num_steps=100000",
    "--config.train.log_interval_steps=1",
    "--config.schedule.name=constant",  # the same rates for any length of the run
    "--config.schedule.warmup_steps=0",
    "--config.optimizer.learning_rate=1e-3",
    "--config.eval.interval_steps=0",
    "--config.eval.fill_mask=",
    "--config.eval.num_batches=1",
    "--config.export.at_end=false",
    "--config.checkpoint.interval_steps=4",
]
NO_DROPOUT = ["--config.model.hidden_dropout=0", "--config.model.attention_dropout=0"]
QUICK = [*NO_DROPOUT, "--config.data.example_format=block"]  # half of the time is compilation


class Member(NamedTuple):
    """One of several processes, and its output."""

    process: subprocess.Popen
    out: Path
    err: Path

    def ended(self) -> int:
        return self.process.wait(timeout=PATIENCE)

    def output(self) -> str:
        return self.err.read_text(errors="replace")


END = 32  # steps of a run that is interrupted several times
Launch = Callable[..., list[Member]]


@pytest.fixture
def launch(lab: Lab, tmp_path: Path) -> Iterator[Launch]:
    """`launch(workdir, 2, 4)` starts two processes with four devices each; the end kills those that still run."""
    started: list[Member] = []

    def start(workdir: Path, count: int, devices: int, *arguments: str, last: Sequence[str] = ()) -> list[Member]:
        command = [sys.executable, "-m", "bertjax", "pretrain", "--config", str(lab.config), "--workdir", str(workdir)]
        command += [*SETTINGS, *arguments]
        if count > 1:
            command += [f"--config.distributed.coordinator_address=127.0.0.1:{_free_port()}"]
            command += [f"--config.distributed.num_processes={count}"]
            command += [f"--config.distributed.peer_timeout={PEER_TIMEOUT}", "--config.distributed.end_timeout=20"]
        flags = re.sub(r"(?<=device_count=)\d+", str(devices), os.environ["XLA_FLAGS"])
        members = []
        for index in range(count):
            out, err = (tmp_path / f"{len(started)}.{kind}" for kind in ("out", "err"))
            extra = [f"--config.distributed.process_id={index}"] if count > 1 else []
            extra += last if index == count - 1 else []
            process = subprocess.Popen(
                [*command, *extra],
                stdout=out.open("w"),
                stderr=err.open("w"),
                env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
            )
            members.append(Member(process, out, err))
            started.append(members[-1])
        return members

    yield start
    for member in started:
        if member.process.poll() is None:
            member.process.kill()
            member.process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def losses(workdir: Path) -> dict[int, float]:
    """Returns the losses by step, as far as they are written."""
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return {record["step"]: record["train/loss"] for record in records if "train/loss" in record}


def checkpoints(workdir: Path) -> list[int]:
    folder = workdir / "checkpoints"
    return sorted(int(each.name) for each in folder.iterdir() if each.name.isdigit()) if folder.is_dir() else []


def wait_for(members: list[Member], condition: Callable[[], object]) -> None:
    """Waits until `condition` holds; fails with the output of the processes if one of them ends before."""
    end = time.monotonic() + PATIENCE
    while not condition():
        ended = [member for member in members if member.process.poll() is not None]
        assert not ended and time.monotonic() < end, "\n".join(member.output()[-3000:] for member in members)
        time.sleep(0.02)


def kill_one(members: list[Member], victim: int, how: signal.Signals) -> float:
    """Kills or halts one of two processes; returns the seconds until the other one ends."""
    other = members[1 - victim]
    began = time.monotonic()
    members[victim].process.send_signal(how)
    code = other.ended()
    seconds = time.monotonic() - began
    members[victim].process.kill()
    assert code == 75, other.output()
    return seconds


def near(actual: float, expected: float) -> bool:
    return abs(actual - expected) <= 1e-5 * abs(expected)


@pytest.mark.long
def test_a_run_loses_one_of_two_is_stopped_and_moves_to_one_process_and_back(
    lab: Lab, launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """P14 and P16 (two processes), and the promise that another number of hosts changes losses only by rounding.

    2 x 4 devices continue as such, as 1 x 8, and as 2 x 4 again; the reference is a run of one that never stopped.
    """
    whole, moved, victim = tmp_path / "whole", tmp_path / "moved", 0
    assert lab.run("pretrain", "--workdir", whole, *SETTINGS, f"--config.train.num_steps={END}") == 0
    expected = losses(whole)
    assert set(expected) == set(range(1, END + 1))

    # The first is killed in training (test_peers.py: either, killed or halted).
    pair = launch(moved, 2, 4)
    wait_for(pair, lambda: checkpoints(moved) and max(losses(moved), default=0) >= 6)
    assert kill_one(pair, victim, signal.SIGKILL) < PEER_TIMEOUT + 30
    assert f"bertjax: process {1 - victim} of 2: process {victim}" in pair[1 - victim].output()
    killed = losses(moved)

    # Its losses come back; a signal to one stops both.
    pair = launch(moved, 2, 4)
    wait_for(pair, lambda: max(losses(moved)) > max(killed))
    pair[1].process.send_signal(signal.SIGTERM)
    assert [member.ended() for member in pair] == [143, 143]
    *_, before, step = checkpoints(moved)
    assert all(f"saved at step {step}" in member.output() for member in pair)
    assert "8 x cpu of 2 processes" in pair[0].out.read_text() and "step 1/" not in pair[1].out.read_text()
    by_two = losses(moved)
    assert {each: by_two[each] for each in killed} == killed  # bit-exact
    assert step + 4 < END

    # One process repeats the last steps and adds some; two add the rest.
    shutil.rmtree(moved / "checkpoints" / str(step))
    assert lab.run("pretrain", "--workdir", moved, *SETTINGS, f"--config.train.num_steps={step + 4}") == 0
    by_one = losses(moved)
    assert list(by_one) == list(range(1, step + 5)) and by_one != by_two
    assert {each: by_one[each] for each in range(1, before + 1)} == {
        each: by_two[each] for each in range(1, before + 1)
    }
    assert all(near(by_one[each], by_two[each]) for each in range(before + 1, step + 1))
    assert [member.ended() for member in launch(moved, 2, 4, f"--config.train.num_steps={END}")] == [0] * 2
    result = losses(moved)
    assert set(result) == set(expected)
    assert all(near(result[each], expected[each]) for each in expected)


@pytest.mark.long
def test_processes_that_differ_train_nothing_and_leave_nothing(launch: Launch, tmp_path: Path) -> None:
    """One of two processes has another learning rate: both report the key before the first step."""
    pair = launch(tmp_path / "run", 2, 2, *QUICK, last=["--config.optimizer.learning_rate=0.5"])
    assert [member.ended() for member in pair] == [2, 2]
    assert all("process 1: config.optimizer.learning_rate 0.5 instead of 0.001" in each.output() for each in pair)
    assert not (tmp_path / "run").exists()


@pytest.mark.weekly
def test_a_second_run_in_a_work_directory_is_refused_while_any_process_of_the_first_lives(
    lab: Lab, launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workdir = tmp_path / "run"
    pair = launch(workdir, 2, 4, *QUICK)
    wait_for(pair, lambda: checkpoints(workdir))
    arguments = [*SETTINGS, *QUICK]
    assert lab.run("pretrain", "--workdir", workdir, *arguments) == 2
    pair[1].process.send_signal(signal.SIGSTOP)
    pair[0].process.kill()
    pair[0].ended()
    assert lab.run("pretrain", "--workdir", workdir, *arguments) == 2
    output = capsys.readouterr().err
    assert output.count("is in use by process") == 2 and f"process {pair[1].process.pid} on" in output
    pair[1].process.kill()
    pair[1].ended()
    steps = max(checkpoints(workdir)) + 1
    assert lab.run("pretrain", "--workdir", workdir, *arguments, f"--config.train.num_steps={steps}") == 0


CARRY = ["--config.model.preset=xlnet-base", "--config.objective.name=plm", "--config.data.example_format=segments"]
CARRY += ["--config.model.bi_data=true"]
SHARDED = ["--config.mesh.data=1", "--config.mesh.fsdp=-1", "--config.mesh.tensor=2", "--config.data.packing=best_fit"]
SHARDED += ["--config.optimizer.ema_decay=0.9", "--config.train.microbatches=2", "--config.export.at_end=true"]


@pytest.mark.weekly
@pytest.mark.parametrize(
    "kind", ["sharded", *(pytest.param(kind, marks=pytest.mark.weekly) for kind in ("carry", "teacher"))]
)
def test_memories_teachers_and_parts_of_weights_are_those_of_one_process(
    lab: Lab, finished: Finished, launch: Launch, tmp_path: Path, kind: str
) -> None:
    """State of several hosts besides sequences: XLNet's memory, a frozen teacher, sharded weights and averages."""
    arguments = {"carry": CARRY, "sharded": SHARDED}.get(
        kind,
        [
            "--config.objective.name=distillation",
            f"--config.objective.distillation.teacher={finished.workdir}",
            f"--config.data.tokenizer={finished.workdir}/tokenizer",
            "--config.objective.distillation.teacher_layers=1",
        ],
    )
    arguments = [*arguments, *NO_DROPOUT, "--config.train.num_steps=4"]
    members = launch(tmp_path / "two", 2, 2, *arguments)
    assert lab.run("pretrain", "--workdir", tmp_path / "one", *SETTINGS, *arguments) == 0  # with eight devices
    assert [member.ended() for member in members] == [0] * 2, members[0].output()
    by_two, by_one = (last_metrics(tmp_path / name) for name in ("two", "one"))
    assert by_two.keys() == by_one.keys()
    assert all(near(value, by_one[name]) for name, value in by_two.items())


def last_metrics(workdir: Path) -> dict[str, float]:
    """Returns the losses of every step, with held-out ones."""
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {f"{each['step']} {name}": each[name] for each in records for name in each if name.endswith("/loss")}


@pytest.mark.long
def test_two_processes_go_back_together_and_give_up_together(launch: Launch, tmp_path: Path) -> None:
    """Rollback uses the work directory: both must return to the same checkpoint and repeat the same batch."""
    arguments = ["--config.optimizer.learning_rate=1e37", "--config.train.on_nonfinite=rollback"]
    arguments += ["--config.train.max_nonfinite=2", "--config.checkpoint.interval_steps=1"]
    pair = launch(tmp_path / "run", 2, 2, *QUICK, *arguments)
    assert [member.ended() for member in pair] == [2, 2], pair[0].output()
    assert pair[0].out.read_text().count("went back to step") == 2
    assert "went back to step" in pair[0].output() and "(train.max_nonfinite)" in pair[0].output()


def test_a_process_that_does_not_see_the_text_prepares_its_own(lab: Lab) -> None:
    """Hosts without a shared disk; what they read must be the same."""
    from bertjax.config.overrides import load_config
    from bertjax.data import from_config
    from bertjax.experiment.processes import prepare_on_first_process
    from bertjax.runtime.process_group import ProcessGroup

    class Second(ProcessGroup):
        index, count = 1, 2

        def __init__(self) -> None: ...

        def run_on_first(self, what: str, make: Callable) -> dict:
            return {"tokenizer": "/nowhere/tokenizer", "training": {}, "held_out": {}, "digests": digests}

    cfg = load_config(str(lab.config))
    digests = from_config.prepare(cfg).digests
    assert prepare_on_first_process(cfg, Second()).digests == digests
    digests = digests | {"tokenizer": "another"}
    with pytest.raises(UserError, match=r"process 1 reads another tokenizer .*nowhere.*give all hosts the same text"):
        prepare_on_first_process(cfg, Second())


SLOW = """
import sys, time
if any("process_id=" in argument for argument in sys.orig_argv):
    from bertjax.data.pipeline import Pipeline
    from bertjax.runtime import heartbeat
    heartbeat.WINDOW_SECONDS = 3.0
    make = Pipeline.batch
    def batch(self, *arguments):
        time.sleep(2.0 if "--config.distributed.process_id={slow}" in sys.orig_argv else 0.0)
        return make(self, *arguments)
    Pipeline.batch = batch
"""


@pytest.mark.long
@pytest.mark.parametrize("slow", [1, pytest.param(None, marks=pytest.mark.weekly)])
def test_the_process_that_the_others_wait_for_is_named(
    launch: Launch, slow: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW.format(slow=slow))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    workdir = tmp_path / "run"
    members = launch(workdir, 3, 1, *QUICK, "--config.train.batch_size=6", "--config.checkpoint.interval_steps=0")

    def compared() -> list[dict[str, float]]:
        lines = (workdir / "metrics.jsonl").read_text().splitlines(keepends=True) if losses(workdir) else []
        return [record for line in lines if line.endswith("\n") and "train/others_idle" in (record := json.loads(line))]

    wait_for(members, lambda: len(compared()) >= (4 if slow is None else 6))  # three windows make a warning
    printed = members[0].out.read_text()
    members[0].process.send_signal(signal.SIGINT)
    assert [member.ended() for member in members] == [130] * 3
    if slow is not None:
        assert f"the others wait for process {slow} on {socket.gethostname()}" in printed
        assert printed.count("the others wait for") == 1
        assert {record["train/slowest_process"] for record in compared()[1:]} == {slow}
    else:
        assert "the others wait for" not in printed
