"""scripts/on_gpu.py: its jobs are existing commands, rows are measured once and past a crash, and targets are shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from lab import load_script

from bertjax.config.overrides import apply_overrides, load_config
from bertjax.experiment.config import parse as check

SCRIPTS = Path(__file__).parents[2] / "scripts"
METRICS = {
    "tokens_per_second": {"median": 550e3},
    "seconds_per_step": {"median": 0.12},
    "mfu": 0.4,
    "data_wait": 0.001,
    "compile_seconds": 30.0,
    "peak_bytes": 2**34,
    "batch_size": 128,
}
TORCH_METRICS = METRICS | {"tokens_per_second": {"median": 275e3}, "batch_size": 64}


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield load_script(SCRIPTS / "on_gpu.py")


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["on_gpu.py", *map(str, arguments)])
    return script.main()


@pytest.mark.parametrize("smoke", [False, True])
def test_the_config_of_every_benchmark_is_one(script: ModuleType, tmp_path: Path, smoke: bool) -> None:
    options = SimpleNamespace(out=tmp_path, text="builtin:python-docs", vocab_size=0, smoke=smoke, repeats=5, steps=20)
    jobs = script.Plan(options).jobs()
    names = [name for job in jobs for name in {job.name, *job.parts}]
    assert len(set(names)) == len(names) > 30
    for job in jobs:
        assert all((script.ROOT / each).exists() for each in job.command if each.endswith(".py"))
        for row in job.rows:
            cfg = load_config(str(script.ROOT / "configs" / row.config))
            check(apply_overrides(cfg, [f"--config.{each}" for each in row.overrides]))
        if "--config" in job.command:
            cfg = load_config(job.command[job.command.index("--config") + 1])
            check(apply_overrides(cfg, [each for each in job.command if each.startswith("--config.")]))


@pytest.mark.long
def test_rows_are_measured_once_and_past_a_crash_failures_reported_and_targets_shown(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure_steps = load_script(SCRIPTS / "measure_steps.py")
    started: list[str] = []
    measured: list[str] = []

    def measure(row: dict[str, Any]) -> dict[str, Any]:
        measured.append(row["name"])
        if row["name"] == "bert-large":
            raise SystemExit  # the process ends without a result
        if row["name"] == "bert-base-rbg":
            raise ValueError("no | such bits")
        return TORCH_METRICS if row["name"].startswith("torch-") else METRICS

    def start(command: list[str], **settings: Any) -> SimpleNamespace:
        started.append(settings["env"].get("XLA_FLAGS", ""))
        if Path(command[1]).name != "measure_steps.py":
            settings["stdout"].write("no kernel here\n")
            return SimpleNamespace(returncode=3)
        file = Path(command[2])
        try:
            measure_steps.measure_all(json.loads(file.read_text()), file, measure)
        except SystemExit:
            return SimpleNamespace(returncode=-11)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(script.subprocess, "run", start)
    monkeypatch.setattr(script.shutil, "which", lambda name: None)
    only = ["--only", "kernels", "steps", "torch", "bert-base-rbg", "bert-base-no-command*"]
    assert run(script, monkeypatch, "--out", tmp_path, "--smoke", *only) == 1
    three = ["bert-base", "bert-large", "modernbert-base"]  # in two processes
    assert measured == [*three, "torch-bert-base", "bert-base-rbg", "bert-base-no-command-buffers"]
    assert ["command_buffer" in flags for flags in started] == [False] * 5 + [True]
    table = (tmp_path / "table.md").read_text().splitlines()
    ours = (
        "| bert-base | 550,000 | 500 k, 840 k | 1.10, 0.65 | 40.0 % | 120.0 | 0.10 % | 30 | 16.0 | 2.00 (target 1.5) |"
    )
    assert table[table.index(ours) + 1].startswith("| torch-bert-base (64 sequences) | 275,000 |  |  | 20.0 % |")
    assert "| kernels | **failed**: no kernel here | 0 |" in table
    assert "| bert-large | **failed**: its process ended | |" in table
    assert "| bert-base-rbg | **failed**: ValueError: no / such bits | |" in table
    assert any("the numbers mean nothing" in line for line in table)

    measured.clear()
    run(script, monkeypatch, "--out", tmp_path, "--smoke", *only)
    assert measured == ["bert-large", "bert-base-rbg"]  # what failed runs again, what has a result does not
    again = ["--only", "bert-base", "kernels*", "--again", "bert-ba*e"]
    assert run(script, monkeypatch, "--out", tmp_path, "--smoke", *again) == 1
    assert measured[2:] == ["bert-base"]
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run(script, monkeypatch, "--out", tmp_path, "--only", "bert-huge")
    assert "unknown job bert-huge" in capsys.readouterr().err
