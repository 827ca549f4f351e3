"""Averages of weights from the run to the export: exponential averages, and averages of the last checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lab import Finished, Lab
from safetensors.numpy import load_file

from bertjax.experiment.averaging import last_steps
from bertjax.training import logging, loop
from bertjax.training.run_context import RunContext

AVERAGED = ("--config.optimizer.ema_decay=0.5", "--config.optimizer.name=lamb")


def exported(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


class Crash(Exception):
    """Simulates a power cut: no signal, no chance to save."""


@pytest.fixture(scope="module")
def averaged(lab: Lab) -> Path:
    workdir = lab.folder / "averaged"
    assert lab.run("pretrain", "--workdir", workdir, *AVERAGED) == 0
    return workdir


@pytest.mark.long
def test_a_resumed_average_is_that_of_the_run_that_was_never_stopped(
    lab: Lab, averaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workdir, advance = lab.folder / "averaged-resumed", logging.Console.advance

    def crash(self: logging.Console, step: int) -> None:
        advance(self, step)
        if step == 5:
            raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(logging.Console, "advance", crash)
        lab.run("pretrain", "--workdir", workdir, *AVERAGED)
    assert lab.run("pretrain", "--workdir", workdir, *AVERAGED) == 0
    assert same(exported(workdir / "export"), exported(averaged / "export"))


@pytest.mark.long
def test_the_average_is_evaluated_and_exported_unless_declined(
    lab: Lab, averaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab.run("evaluate", "--workdir", averaged) == 0
    of_average = capsys.readouterr().out
    last = json.loads((averaged / "metrics.jsonl").read_text().splitlines()[-1])
    assert f"mlm {last['eval/mlm_loss']:.3f} nats" in of_average
    declined = ["--config.eval.use_ema=false", "--config.train.num_steps=8", *AVERAGED]
    assert lab.run("pretrain", "--workdir", averaged, *declined) == 0  # no steps remain; config.json is rewritten
    assert lab.run("export", "--workdir", averaged, "--out", tmp_path / "last") == 0
    capsys.readouterr()
    assert lab.run("evaluate", "--workdir", averaged) == 0
    assert capsys.readouterr().out != of_average
    assert lab.run("pretrain", "--workdir", averaged, *AVERAGED) == 0
    assert not same(exported(tmp_path / "last"), exported(averaged / "export"))


@pytest.mark.long
def test_the_last_checkpoints_are_averaged(
    lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (4, 6, 8):
        assert lab.run("export", "--workdir", finished.workdir, "--out", tmp_path / str(step), "--step", step) == 0
    capsys.readouterr()
    arguments = ("export", "--workdir", finished.workdir, "--average-last")
    assert lab.run(*arguments, 3, "--out", tmp_path / "mean") == 0
    assert "exported the average of steps 4, 6, 8 to" in capsys.readouterr().out
    parts = [exported(tmp_path / str(step)) for step in (4, 6, 8)]
    for name, value in exported(tmp_path / "mean").items():
        np.testing.assert_allclose(value, np.mean([part[name] for part in parts], axis=0), rtol=1e-6, atol=1e-8)
    card = (tmp_path / "mean" / "README.md").read_text()
    assert "8 (the average of steps 4, 6, 8)" in card and "mlm_loss" not in card
    assert lab.run(*arguments, 2, "--step", 6, "--out", tmp_path / "two") == 0
    assert "the average of steps 4, 6 to" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stored", "count", "expected"),
    [
        (range(2, 11, 2), 5, (8, 10)),
        (range(1, 21), 5, (16, 17, 18, 19, 20)),
        (range(1, 21), 2, (19, 20)),
        (range(1, 21), 1, (20,)),
        ((3, 6), 5, (6,)),
    ],
)
def test_only_the_last_part_of_a_run_is_averaged(
    stored: tuple[int, ...], count: int, expected: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    cfg: Any = SimpleNamespace(export=SimpleNamespace(average_last=count))
    checkpoints: Any = SimpleNamespace(all_steps=lambda: list(stored))
    assert last_steps(cfg, checkpoints, stored[-1]) == expected
    assert ("in the last fifth of the run" in caplog.text) == (len(expected) < count)


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--average-last", 4], "--average-last 4 needs 4 checkpoints, but"),
        (["--average-last", 3, "--step", 6], "needs 3 checkpoints up to step 6, but"),
        (["--average-last", 2, "--step", 5], "no checkpoint of step 5"),
        (["--average-last", 0], "--average-last must be at least 1, not 0"),
    ],
)
def test_too_few_checkpoints_are_refused(
    flags: list, words: str, lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab.run("export", "--workdir", finished.workdir, "--out", tmp_path / "out", *flags) == 2
    message = capsys.readouterr().err
    assert words in message and message.count("\n") == 1
    assert not (tmp_path / "out").exists()


def untrained(run: RunContext, state: object) -> tuple:
    """Replaces the training loop in tests of what happens before and after it."""
    return state, {}


@pytest.mark.long
def test_a_loaded_run_begins_its_average_anew(
    lab: Lab, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "train", untrained)
    arguments = ("--config.optimizer.ema_decay=0.5", f"--config.init_from={finished.workdir}")
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *arguments) == 0
    assert same(exported(tmp_path / "run" / "export"), exported(finished.workdir / "export"))


@pytest.mark.long
def test_a_run_may_go_on_with_another_schedule(
    lab: Lab, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in ModernBERT, whose decay phase is a separate run."""
    monkeypatch.setattr(loop, "train", untrained)
    shutil.copytree(finished.workdir, tmp_path / "run")
    decay = ("--config.schedule.name=wsd", "--config.schedule.decay_steps=2", "--config.schedule.end_lr_ratio=0.1")
    assert lab.run("pretrain", "--workdir", tmp_path / "run", "--config.train.num_steps=10", *decay) == 0
    printed = capsys.readouterr().out
    assert "schedule.decay_steps: None -> 2" in printed and "schedule.name: bert -> wsd" in printed
    assert "0.000e+00 before, 1.000e-02 now; of the last one (9): 3.636e-03" in printed  # 0.1 + 0.9 (1 - sqrt(1 / 2))
