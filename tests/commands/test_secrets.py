"""No output contains the environment (section 7 of the promises)."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import Lab

from bertjax.objectives.mlm import Mlm
from bertjax.types import Sum

CANARY = "canary-5d1c0f2b-never-to-be-seen"
NAMES = ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "SOMETHING_OF_MINE"]
EVENTS = "--config.logging.tensorboard=true"


@pytest.fixture
def canary(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, CANARY)


def holding(*folders: Path) -> list[str]:
    """Returns the files below that have the canary in their bytes or their names."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    return [str(path) for path in files if CANARY in path.name or CANARY.encode() in path.read_bytes()]


def test_no_file_of_a_run_holds_the_environment(
    lab: Lab, tmp_path: Path, canary: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Config, metrics, events, checkpoints, export, cache, and everything that we or libraries print."""
    cache = tmp_path / "cache"
    assert lab.run("pretrain", "--workdir", tmp_path / "run", EVENTS, f"--config.data.cache_dir={cache}") == 0
    result = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.json", "metrics.jsonl", "checkpoints", "tokenizer", "tensorboard", "export"} <= result
    assert holding(tmp_path / "run", cache) == []
    assert CANARY not in "".join(capfd.readouterr())


@pytest.mark.weekly
def test_no_report_of_an_error_holds_the_environment(
    lab: Lab,
    tmp_path: Path,
    canary: None,
    fresh_programs: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    loss = Mlm.loss

    def broken(self: Mlm, *inputs: object, **named: object) -> tuple:
        sums, carry = loss(self, *inputs, **named)  # type: ignore[arg-type]
        return {**sums, "mlm": Sum(sums["mlm"].value * float("nan"), sums["mlm"].count)}, carry

    monkeypatch.setattr(Mlm, "loss", broken)
    assert lab.run("pretrain", "--workdir", tmp_path / "run", EVENTS) == 2
    assert list((tmp_path / "run" / "anomalies").glob("*.npz"))
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]
    output = "".join(capfd.readouterr())
    assert "loss is nan" in output and CANARY not in output
