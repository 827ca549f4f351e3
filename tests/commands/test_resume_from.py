"""Runs that start from a checkpoint of another run, with its optimizer (`resume_from`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from lab import Finished, Lab, sentences
from safetensors.numpy import load_file

from bertjax.cli import main
from bertjax.training import logging


class Crash(Exception):
    """Simulates a power cut: no signal, no chance to save."""


def records(workdir: Path) -> list[dict]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def same_weights(one: Path, other: Path) -> bool:
    first, second = (load_file(workdir / "export" / "model.safetensors") for workdir in (one, other))
    return all(np.array_equal(first[name], second[name]) for name in first | second)


@pytest.mark.long
def test_without_a_change_it_is_the_run_that_was_never_stopped(
    lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.workdir.rglob("*") if path.is_file()}
    source = f"{finished.workdir}@4"
    assert lab.run("pretrain", "--workdir", tmp_path / "run", f"--config.resume_from={source}") == 0
    assert f"continuing {finished.workdir} from step 4\n" in capsys.readouterr().out
    assert same_weights(finished.workdir, tmp_path / "run")
    losses = {each["step"]: each["train/loss"] for each in records(finished.workdir) if "train/loss" in each}
    continued = {each["step"]: each["train/loss"] for each in records(tmp_path / "run") if "train/loss" in each}
    assert continued == {step: loss for step, loss in losses.items() if step > 4}
    assert json.loads((tmp_path / "run" / "config.json").read_text())["resume_from"] == source
    assert {path: path.stat().st_mtime_ns for path in finished.workdir.rglob("*") if path.is_file()} == before


@pytest.mark.long
def test_a_last_phase_on_other_text_with_another_schedule_is_resumed(
    lab: Lab, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other run is gone by then: the new one has a state of its own."""
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join("\n".join(sentences(8, seed)) for seed in range(100, 130)) + "\n")
    parent = tmp_path / "parent"
    shutil.copytree(finished.workdir, parent)
    changes = [
        f"--config.{each}"
        for each in (
            *(f"resume_from={parent}@6", f"data.tokenizer={finished.workdir / 'tokenizer'}"),
            f"data.sources=text:{other}",
            *("train.num_steps=12", "schedule.name=wsd", "schedule.decay_steps=6", "objective.masking.mask_rate=0.3"),
        )
    ]
    assert lab.run("pretrain", "--workdir", tmp_path / "whole", *changes) == 0
    printed = capsys.readouterr().out
    for words in ("objective.masking.mask_rate: 0.15 -> 0.3", "train.num_steps: 8 -> 12", "schedule.decay_steps: "):
        assert f"  {words}" in printed
    assert "learning rate of the next step: " in printed
    rates = [each["train/learning_rate"] for each in records(tmp_path / "whole") if "train/learning_rate" in each]
    assert rates == sorted(rates, reverse=True) and rates[0] > 2 * rates[-1]

    advance = logging.Console.advance

    def crash(self: logging.Console, step: int) -> None:
        advance(self, step)
        if step == 11:
            raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(logging.Console, "advance", crash)
        lab.run("pretrain", "--workdir", tmp_path / "killed", *changes)
    shutil.rmtree(parent)
    assert lab.run("pretrain", "--workdir", tmp_path / "killed", *changes) == 0
    assert "resuming at step 10" in capsys.readouterr().out
    assert same_weights(tmp_path / "whole", tmp_path / "killed")
    card = (tmp_path / "killed" / "export" / "README.md").read_text()
    assert "parent from step 6" in card and f"{6 * 8 * 32:,}" in card


@pytest.mark.parametrize(
    ("source", "settings", "words"),
    [
        ("@5", (), "has no checkpoint of step 5; it has 4, 6, 8"),
        ("", (), "is not RUN@STEP, a work directory and a step; {workdir} has the steps 4, 6, 8"),
        ("/nothing@4", (), "{workdir}/nothing is not a work directory"),
        ("@8", (), "train.num_steps=8 counts the steps of that run, too; set it above 8"),
        ("@4", ("init_from=model",), "init_from and resume_from both set the state to start from"),
        ("@4", ("model.num_heads=2",), "@4 is another model: num_heads 4 there, 2 here"),
        ("@4", ("data.vocab_size=100",), "has another tokenizer: set --config.data.tokenizer={workdir}/tokenizer"),
        ("@4", ("optimizer.name=muon",), "does not fit this run's model or optimizer"),
    ],
)
def test_unsuitable_checkpoints_are_refused_and_leave_no_folder(
    lab: Lab,
    finished: Finished,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    source: str,
    settings: tuple[str, ...],
    words: str,
) -> None:
    values = [f"resume_from={finished.workdir}{source}", *settings]
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *(f"--config.{each}" for each in values)) == 2
    assert words.format(workdir=finished.workdir) in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_tasks_refuse_it(lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", "finetune/classification", "--workdir", str(tmp_path / "run")]
    assert main(["finetune", *arguments, f"--config.resume_from={finished.workdir}@4"]) == 2
    assert "resume_from is for pretraining" in capsys.readouterr().err
