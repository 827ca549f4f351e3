"""`bertjax decay`: decays from several checkpoints of one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab import Finished, Lab
from test_phases import text_file
from test_pretrain import Crash, crash_after, weights_digest

import bertjax
from bertjax.cli import main
from bertjax.config.overrides import from_json
from bertjax.config.phases import list_phases


def decay(run: Path, workdir: Path, at: tuple[int, ...], steps: int, *overrides: str) -> int:
    return main(["decay", "--run", str(run), "--at", *map(str, at), "--steps", str(steps), "--workdir", str(workdir),
                 *(f"--config.{each}" for each in overrides)])  # fmt: skip


@pytest.mark.weekly
def test_the_decay_of_a_run_in_phases_from_its_checkpoint_is_its_end(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run has a ramp of batches, shares, and a decay at its end; another length would move all three."""
    other = text_file(lab.folder / "decay.txt", 300)
    settings = (
        "--config.schedule.name=wsd",
        "--config.schedule.decay_steps=4",
        "--config.train.initial_batch_size=4",
        "--config.train.batch_ramp_steps=2",
        "--config.checkpoint.keep=9",
        f"--config.train.phases=37%:data.sources=text:{other},objective.masking.mask_rate=0.3",
    )
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *settings) == 0
    capsys.readouterr()
    assert decay(tmp_path / "run", tmp_path / "decays", (6, 4), 4) == 0
    printed = capsys.readouterr().out
    assert weights_digest(tmp_path / "decays" / "step-4") == weights_digest(tmp_path / "run")
    heading, four, six = (line.split() for line in printed.splitlines()[-3:])
    assert heading[:5] == ["from", "step", "to", "step", "loss"]
    assert four[:2] == ["4", "8"] and six[:3] == ["6", "10", "-"]  # step 6 was not evaluated
    logged = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = {each["step"]: each["eval/loss"] for each in map(json.loads, logged) if "eval/loss" in each}
    assert four[2:4] == [f"{losses[step]:.4f}" for step in (4, 8)]


@pytest.mark.long
def test_decays_on_other_text_resume(
    lab: Lab, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other text begins at its start, and what the run has read is a phase of its past."""
    changes = f"data.sources=text:{text_file(lab.folder / 'better.txt', 400)}", "objective.masking.mask_rate=0.05"
    assert decay(finished.workdir, tmp_path / "whole", (4, 6), 2, *changes) == 0
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_after(patch, 7)
        decay(finished.workdir, tmp_path / "killed", (4, 6), 2, *changes)
    capsys.readouterr()
    assert decay(finished.workdir, tmp_path / "killed", (4, 6), 2, *changes) == 0
    printed = capsys.readouterr().out
    assert "step 6 of 6 is reached" in printed and f"continuing {finished.workdir} from step 6" in printed
    for name in ("step-4", "step-6"):
        assert weights_digest(tmp_path / "killed" / name) == weights_digest(tmp_path / "whole" / name)
    cfg = from_json((tmp_path / "whole" / "step-6" / "config.json").read_text())
    past, now = list_phases(cfg)
    assert cfg.resume_from == f"{finished.workdir}@6" and now.start == 6
    assert past.cfg.data.sources == (f"text:{lab.corpus}",) and past.cfg.objective.masking.mask_rate == 0.15
    assert printed.splitlines()[-1].split()[2] == "-"  # other masks, so other losses


@pytest.mark.parametrize(
    ("at", "steps", "overrides", "words"),
    [
        ((4, 5, 7), 2, (), "--at: {workdir} has no checkpoint of step 5, 7; it has 4, 6, 8"),
        ((4,), 0, (), "--steps must be at least 1, not 0"),
        ((4,), 2, ("train.num_steps=9",), "train.num_steps follows from --run, --at and --steps; remove it"),
        ((4,), 2, ("data.seq_len=99",), "data.seq_len=99 is longer than the position table"),
        ((4,), 2, ("data.seqlen=9",), "unknown key data.seqlen"),
    ],
)
def test_unsuitable_decays_are_refused_before_any_runs(
    finished: Finished,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    at: tuple[int, ...],
    steps: int,
    overrides: tuple[str, ...],
    words: str,
) -> None:
    assert decay(finished.workdir, tmp_path / "decays", at, steps, *overrides) == 2
    assert words.format(workdir=finished.workdir) in capsys.readouterr().err
    assert not (tmp_path / "decays").exists()


def test_a_call_names_arguments(finished: Finished, tmp_path: Path) -> None:
    run = bertjax.open_run(finished.workdir)
    for at, overrides, words in (
        ([4, 5], {}, f"^at: {finished.workdir} has no checkpoint of step 5; it has 4, 6, 8$"),
        ([4], {"train.num_steps": 9}, "^train.num_steps follows from run, at and steps; remove it$"),
        ([4], {"data.seqlen": 9}, "^unknown key data.seqlen"),
    ):
        with pytest.raises(bertjax.UserError, match=words):
            bertjax.decay(run, at, 2, tmp_path / "decays", overrides)
