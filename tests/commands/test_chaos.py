"""scripts/chaos.py on the tiny run: SIGKILLs change nothing (P1, P2, P8), and the script detects changes."""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from lab import Finished, Lab, load_script

SCRIPT = Path(__file__).parents[2] / "scripts" / "chaos.py"


@pytest.fixture(scope="module")
def chaos() -> ModuleType:
    return load_script(SCRIPT)


def run_chaos(lab: Lab, monkeypatch: pytest.MonkeyPatch, folder: Path, kills: int, steps: int) -> str:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(lab.folder / "xla"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    monkeypatch.setenv("PYTHONPATH", str(SCRIPT.parents[1]))
    settings = [f"--config.train.num_steps={steps}", "--config.eval.interval_steps=40"]
    command = [sys.executable, str(SCRIPT), "--kills", str(kills), "--folder", str(folder)]
    done = subprocess.run(
        [*command, "--config", str(lab.config), "--config.checkpoint.interval_steps=4", *settings],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long  # the ordinary suite has test_a_resumed_run_is_the_run_that_was_never_stopped
@pytest.mark.parametrize("kills", [4, pytest.param(8, marks=pytest.mark.weekly)])
def test_a_run_that_is_killed_is_the_run_that_was_not(
    kills: int, lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """P1, P2, P8: SIGKILLs during preparation, start, restore, steps, saves and export."""
    output = run_chaos(lab, monkeypatch, tmp_path, kills, steps=15 * kills)
    aimed = {moment: int(count) for moment, count, _ in re.findall(r"^(\w+) +(\d+) +(\d+)$", output, re.MULTILINE)}
    assert sum(aimed.values()) == kills and aimed["prepare"] and aimed["export"]
    assert 2 * (aimed["step"] + aimed["save"]) >= kills
    sides = re.findall(r"never stopped +(\w+)\n +killed +(\w+)", output)
    assert len(sides) == 3 and all(left == right for left, right in sides)


def test_the_moments_cover_everything_and_most_follow_progress(chaos: ModuleType) -> None:
    for kills, seed in itertools.product((4, 8, 50), range(20)):
        aims = chaos.moments(kills, random.Random(seed))
        assert len(aims) == kills and aims[0] == "prepare" and aims[-1] == "export"
        assert 2 * sum(aim in chaos.AFTER_PROGRESS for aim in aims) >= kills
    assert set(chaos.moments(50, random.Random(0))) == {"prepare", "start", "restore", "step", "save", "export"}


@pytest.mark.long
def test_chaos_notices_a_damaged_checkpoint_and_another_outcome(
    chaos: ModuleType, finished: Finished, tmp_path: Path
) -> None:
    """The script's comparison detects real differences."""
    run = chaos.Run([], tmp_path / "killed")
    run.workdir.symlink_to(finished.workdir)
    run.require_whole_checkpoints()
    before = chaos.outcome(run)
    assert run.newest() == 8 and run.logged() == 8 and len(before) == 3

    run.workdir.unlink()
    subprocess.run(["cp", "-r", str(finished.workdir), str(run.workdir)], check=True)
    assert chaos.outcome(run) == before
    metrics = run.workdir / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    record = json.loads(lines[0]) | {"train/loss": 1.0}
    metrics.write_text("\n".join([json.dumps(record), *lines[1:]]) + "\n")
    after = chaos.outcome(run)
    assert [name for name in before if before[name] != after[name]] == [f"metrics, {len(lines)} lines"]

    largest = max((run.workdir / "checkpoints" / "8" / "state").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    with pytest.raises(chaos.Failed, match="is damaged"):
        run.require_whole_checkpoints()


def test_opening_a_file_is_noticed(chaos: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    opened, never = chaos.Opened(tmp_path / "a"), chaos.Opened(tmp_path / "missing")
    assert not opened() and not never()
    (tmp_path / "a").read_text()
    assert opened() and not never()
    opened.close()
    never.close()
