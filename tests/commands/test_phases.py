"""Sequences that grow in length and in number: one run, resumable in each phase, equal to one that never stopped."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from lab import Lab, sentences
from safetensors.numpy import load_file
from test_pretrain import Crash, crash_after, weights_digest

PHASES = (
    "--config.train.phases=50%:data.seq_len=16",
    "--config.train.initial_batch_size=4",
    "--config.train.batch_ramp_steps=2",
)


def records(workdir: Path) -> list[dict]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("step", [pytest.param(3, marks=pytest.mark.long), pytest.param(7, marks=pytest.mark.weekly)])
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
def test_batches_of_a_phase_are_shown(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    phases = "--config.train.phases=4:data.seq_len=16,objective.masking.mask_rate=0.4"
    for first, length in ((3, 16), (4, 32)):
        assert lab.run("inspect-data", phases, "--first", first, "--out", tmp_path / f"{length}.npz") == 0
        assert f"batch {first}: 8 sequences of {length}" in capsys.readouterr().out
        assert np.load(tmp_path / f"{length}.npz")["input_ids"].shape == (8, length)
    for arguments, words in (
        (("--first", 8), "the run has the batches 0 to 7"),
        (("--first", 3, "--batches", 2, "--out", tmp_path / "both.npz"), "are of phases with other shapes"),
    ):
        assert lab.run("inspect-data", phases, *arguments) == 2
        assert words in capsys.readouterr().err


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


@pytest.mark.weekly
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


@pytest.mark.long
@pytest.mark.parametrize(
    "step", [pytest.param(3, marks=pytest.mark.weekly), 7, pytest.param(9, marks=pytest.mark.weekly)]
)
def test_phases_of_other_text_resume_in_each(
    lab: Lab, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text, masks, optimizer, schedule and frozen parameters change; the second phase ends at step 6."""
    other, last = (text_file(lab.folder / f"{name}.txt", seed) for name, seed in (("other", 100), ("last", 200)))
    mixed = f"data.sources=text:{lab.corpus}@0.25,text:{other}@0.75"
    phases = (
        "--config.train.num_steps=10",
        "--config.schedule.name=constant",
        f"--config.train.phases=4:objective.masking.mask_rate=0.3,2:{mixed},optimizer.lr_mults=.*embeddings/.*=0,"
        f"optimizer.weight_decay=0,4:data.sources=text:{last},data.seq_len=24,schedule.name=cosine",
    )
    whole = lab.folder / "sources"
    if not whole.exists():
        assert lab.run("pretrain", "--workdir", whole, *phases) == 0
        printed = capsys.readouterr().out
        for line in (
            f"until step 4: batches of 8 sequences of 32 tokens of text:{lab.corpus}\n",
            f"from step 4 on: batches of 8 sequences of 32 tokens of text:{lab.corpus}@0.25, text:{other}@0.75\n",
            f"from step 6 on: batches of 8 sequences of 24 tokens of text:{last}\n",
            "last: 40.00% of the sequences",
        ):
            assert line in printed
        metrics = {key for each in records(whole) for key in each if key.endswith("/mlm_loss")}
        assert len(metrics) == 5  # of training, all held-out text, and three sources
        assert f"text:{last}" in (whole / "export" / "README.md").read_text()
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_after(patch, step)
        lab.run("pretrain", "--workdir", tmp_path / "run", *phases)
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *phases) == 0
    assert weights_digest(tmp_path / "run") == weights_digest(whole)
    last.write_text(last.read_text() + "\nMore text.\n")
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *phases) == 2
    assert "the data of this run changed since its checkpoint" in capsys.readouterr().err


@pytest.mark.long
def test_a_frozen_parameter_stays_as_it_is(lab: Lab, tmp_path: Path) -> None:
    """A phase whose factor is 0 leaves the parameter alone, decay included."""
    phases = "--config.train.phases=4:optimizer.lr_mults=,4:optimizer.lr_mults=.*word_embeddings/.*=0"
    assert lab.run("pretrain", "--workdir", tmp_path / "run", phases, "--config.checkpoint.keep=9") == 0
    words = []
    for step in ("2", "4", "8"):
        assert lab.run("export", "--workdir", tmp_path / "run", "--step", step, "--out", tmp_path / step) == 0
        words.append(load_file(tmp_path / step / "model.safetensors")["bert.embeddings.word_embeddings.weight"])
    assert (words[0] != words[1]).any() and (words[1] == words[2]).all()


def text_file(path: Path, seed: int) -> Path:
    path.write_text("\n\n".join("\n".join(sentences(8, each)) for each in range(seed, seed + 40)) + "\n")
    return path
