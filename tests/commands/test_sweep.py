"""`--seeds` and `--grid` of `bertjax pretrain`: runs next to each other, resumed, and compared on one page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab import Lab
from test_pretrain import Crash, crash_after, weights_digest

import bertjax

GRID = ("--grid", "optimizer.learning_rate=1e-6,1e-2", "--seeds", "0,1")


@pytest.mark.long
def test_a_grid_over_seeds_resumes_and_is_compared(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "grid"
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_after(patch, 6)  # in the first run
        lab.run("pretrain", "--workdir", folder, *GRID)
    capsys.readouterr()
    assert lab.run("pretrain", "--workdir", folder, *GRID) == 0
    printed = capsys.readouterr().out
    assert printed.count("resuming at step") == 1
    low, high = json.loads((folder / "sweep.json").read_text())
    assert high["settings"] == {"optimizer.learning_rate": "1e-2"} and list(high["seeds"]) == ["0", "1"]
    losses = [high["seeds"][seed]["eval/loss"] for seed in "01"]
    assert all(low["seeds"][seed]["eval/loss"] > high["seeds"][seed]["eval/loss"] for seed in "01")
    assert f"* learning_rate=1e-2: loss {sum(losses) / 2:.4f} +- " in printed
    page = (folder / "compare.html").read_text()
    assert "learning_rate=1e-2/" in page and "seed-1" in page
    assert lab.run("pretrain", "--workdir", tmp_path / "alone", "--config.seed=1") == 0
    assert weights_digest(folder / "learning_rate=1e-2" / "seed-1") == weights_digest(tmp_path / "alone")
    capsys.readouterr()
    (again,) = bertjax.sweep(lab.config, folder, seeds=[0, 1], grid={"optimizer.learning_rate": ["1e-2"]})
    assert again.mean("eval/loss") == sum(losses) / 2
    assert "step" not in capsys.readouterr().out, "a finished run is not opened again"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--seeds", "1,x"), "--seeds 1,x is not a list of whole numbers"),
        (("--seeds", "1,1"), "--seeds names a seed twice: 1, 1"),
        (("--grid", "train.num_step=1,2"), "did you mean train.num_steps"),
        (("--grid", "train.num_steps"), "--grid 'train.num_steps=' is not KEY=VALUE,VALUE"),
        (("--grid", "seed=1,2"), "--grid 'seed=1,2' is not KEY=VALUE,VALUE"),
        (("--grid", "train.num_steps=4,0"), "train.num_steps must be at least 1"),
        (("--grid", "seed=1", "--grid", "seed=2"), "--grid names a key twice"),
    ],
)
def test_an_unsuitable_grid_is_refused_before_any_run(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
) -> None:
    assert lab.run("pretrain", "--workdir", tmp_path / "grid", *flags) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "grid").exists()
