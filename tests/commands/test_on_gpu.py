"""scripts/on_gpu.py: its jobs are existing commands, finished jobs are not repeated, and the table shows targets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from lab import load_script

from bertjax.config.overrides import apply_overrides, load_config
from bertjax.config.parse import check

METRICS = {
    "tokens_per_second": {"median": 550e3},
    "seconds_per_step": {"median": 0.12},
    "mfu": 0.4,
    "data_wait": 0.001,
    "compile_seconds": 30.0,
    "peak_bytes": 2**34,
    "baseline": {"ratio": {"median": 1.7}},
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(Path(__file__).parents[2] / "scripts" / "on_gpu.py")


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["on_gpu.py", *map(str, arguments)])
    return script.main()


@pytest.mark.parametrize("smoke", [False, True])
def test_the_config_of_every_benchmark_is_one(script: ModuleType, tmp_path: Path, smoke: bool) -> None:
    options = SimpleNamespace(out=tmp_path, text="builtin:python-docs", vocab_size=0, smoke=smoke, repeats=5, steps=20)
    jobs = script.Plan(options).jobs()
    assert len({job.name for job in jobs}) == len(jobs) > 20
    for job in jobs:
        if "--config" in job.command:
            cfg = load_config(job.command[job.command.index("--config") + 1])
            check(apply_overrides(cfg, [each for each in job.command if each.startswith("--config.")]))
        else:
            assert all((script.ROOT / each).exists() for each in job.command if each.endswith(".py"))


def test_jobs_run_once_failures_are_reported_and_targets_shown(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[str, str]] = []

    def start(command: list[str], **settings: Any) -> SimpleNamespace:
        if "-c" in command:  # the versions
            return SimpleNamespace(stdout="jax 1")
        if "--out" not in command:
            settings["stdout"].write("no kernel here\n")
            return SimpleNamespace(returncode=3)
        out = Path(command[command.index("--out") + 1])
        started.append((out.stem, settings["env"].get("XLA_FLAGS", "")))
        out.write_text(json.dumps(METRICS))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(script.subprocess, "run", start)
    monkeypatch.setattr(script.shutil, "which", lambda name: None)
    only = ["--only", "kernels", "bert-base-against-*", "bert-base-no-command*"]
    assert run(script, monkeypatch, "--out", tmp_path, "--smoke", *only) == 1
    assert [name for name, _ in started] == ["bert-base-against-hf", "bert-base-no-command-buffers"]
    assert "--xla_gpu_enable_command_buffer=" in started[1][1] and "command_buffer" not in started[0][1]
    table = (tmp_path / "table.md").read_text()
    assert (
        "| bert-base-against-hf | 550,000 | 500 k, 840 k | 1.10, 0.65 | 40.0 % | 120.0 | 0.10 % | 30 | 16.0 |" in table
    )
    assert "1.70 (target 1.5)" in table and "| kernels | **failed**: no kernel here |" in table
    assert "the numbers mean nothing" in table

    run(script, monkeypatch, "--out", tmp_path, "--smoke", *only)
    assert len(started) == 2  # failed jobs run again, finished ones do not
    assert (
        run(script, monkeypatch, "--out", tmp_path, "--smoke", "--only", "bert-base-no*", "--again", "bert-base-no*")
        == 0
    )
    assert len(started) > 2
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run(script, monkeypatch, "--out", tmp_path, "--only", "bert-huge")
    assert "unknown job bert-huge" in capsys.readouterr().err
