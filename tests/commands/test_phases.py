"""Sequences that grow in length and in number: one run, resumable in each phase, equal to one that never stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab import Lab
from test_pretrain import Crash, crash_after, weights_digest

PHASES = (
    "--config.train.phases=50%:data.seq_len=16",
    "--config.train.initial_batch_size=4",
    "--config.train.batch_ramp_steps=2",
)


def records(workdir: Path) -> list[dict]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("step", [pytest.param(step, marks=pytest.mark.long) for step in (3, 7)])
def test_a_run_of_two_lengths_resumes_in_either(
    lab: Lab, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = lab.folder / "phases"
    if not whole.exists():
        assert lab.run("pretrain", "--workdir", whole, *PHASES) == 0
        printed = capsys.readouterr().out
        for line in (
            "until step 2: batches of 4 sequences of 16 tokens",
            "until step 4: batches of 8 sequences of 16 tokens",
            "from step 4 on: batches of 8 sequences of 32 tokens",
        ):
            assert line in printed
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_after(patch, step)
        lab.run("pretrain", "--workdir", tmp_path / "run", *PHASES)
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *PHASES) == 0
    assert f"resuming at step {step - step % 2}" in capsys.readouterr().out
    assert weights_digest(tmp_path / "run") == weights_digest(whole)
    ours, theirs = ({r["step"]: r.get("eval/loss") for r in records(w)} for w in (tmp_path / "run", whole))
    assert ours == theirs and None not in (ours[4], ours[8])


@pytest.mark.long
def test_phases_of_another_run_are_refused(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    whole = lab.folder / "phases"
    assert lab.run("pretrain", "--workdir", whole, "--config.train.phases=25%:data.seq_len=16", *PHASES[1:]) == 2
    assert "train.phases" in capsys.readouterr().err


LONGER = (
    "--config.model.preset=modernbert-base",
    "--config.data.example_format=block",
    "--config.checkpoint.keep=9",
    "--config.train.phases=50%:data.seq_len=16,train.batch_size=16,model.global_rope_theta=10000,"
    "optimizer.learning_rate=0.02",
)


@pytest.mark.long
def test_a_longer_context_in_one_run(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ModernBERT's phases: a run that stopped between phases ends like one that did not, with the last RoPE base."""
    assert lab.run("pretrain", "--workdir", tmp_path / "whole", *LONGER) == 0
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_after(patch, 5)
        lab.run("pretrain", "--workdir", tmp_path / "run", *LONGER)
    capsys.readouterr()
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *LONGER) == 0
    assert "resuming at step 4" in capsys.readouterr().out
    assert weights_digest(tmp_path / "run") == weights_digest(tmp_path / "whole")
    rates = {r["step"]: r["train/learning_rate"] for r in records(tmp_path / "run") if "train/learning_rate" in r}
    assert rates[4] > 0.02 * 0.5 and rates[6] < 0.01
    assert lab.run("export", "--workdir", tmp_path / "run", "--step", "4", "--out", tmp_path / "early") == 0
    bases = [
        json.loads((folder / "config.json").read_text())["rope_parameters"]["full_attention"]["rope_theta"]
        for folder in (tmp_path / "early", tmp_path / "run" / "export")
    ]
    assert bases == [10_000.0, 160_000.0]
