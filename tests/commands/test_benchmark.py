"""`bertjax benchmark`: consistent metrics, another implementation on the same text, and clear error messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab import Lab

from bertjax.config.defaults import base_config
from bertjax.runtime.platform import cpu_multiplies_bfloat16
from bertjax.tools import measured_step

QUICK = ("--repeats", "2", "--steps", "3", "--warmup", "1")


@pytest.mark.long
def test_the_metrics_of_a_step(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.run("benchmark", *QUICK, "--out", tmp_path / "metrics.json", "--config.data.packing=best_fit") == 0
    result, printed = json.loads((tmp_path / "metrics.json").read_text()), capsys.readouterr().out
    step, speed = result["seconds_per_step"], result["tokens_per_second"]
    assert 0.0 < step["low"] <= step["median"] <= step["high"] and result["repeats"] == 2
    real = 8 * 32 * (1.0 - result["padding"])
    assert speed["low"] * step["low"] <= 1.2 * real and speed["high"] * step["high"] >= 0.8 * real
    assert result["flops_per_second"] == pytest.approx(result["flops_per_token"] * speed["median"])
    assert (
        result["mfu"] is None and result["compile_seconds"] > 0.0 and result["peak_bytes"] > result["state_bytes"] > 0
    )
    work = result["work_seconds"]
    assert {"attention: matmuls, layout", "feed-forward", "heads and losses", "clipping and optimizer"} <= set(work)
    assert work["feed-forward"]["backward"] > 0.0
    for line in ("real tokens/s", "model FLOPs", "compile", "share of the work", "dropout"):
        assert line in printed
    assert "baseline" not in printed


@pytest.mark.long
@pytest.mark.parametrize("example_format", ["block", "nsp_pairs"])
def test_a_peer_in_turns(lab: Lab, tmp_path: Path, example_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*QUICK, "--baseline", "hf", "--no-compile", "--out", tmp_path / "metrics.json")
    arguments += (f"--config.data.example_format={example_format}",)
    assert lab.run("benchmark", *arguments) == 0
    result, (printed, errors) = json.loads((tmp_path / "metrics.json").read_text()), capsys.readouterr()
    peer = result["baseline"]
    modes = {"float32, eager", *(["bfloat16 autocast, eager"] if cpu_multiplies_bfloat16() else [])}
    assert set(peer["trials"]) == modes and all(f"transformers: trying {mode}" in errors for mode in modes)
    assert "preparing the text" in errors and "repeat 2 of 2, 3 steps" in errors and "instead of" not in errors
    assert isinstance(peer["trials"]["float32, eager"], float) and peer["attention"] == "sdpa"
    assert peer["mode"] in peer["trials"] and 0.0 <= peer["padding"] < 0.9
    ratio = peer["ratio"]
    assert 0.0 < ratio["low"] <= ratio["median"] <= ratio["high"]
    assert "ratio" in printed and "<- used" in printed


def test_a_batch_that_does_not_fit_is_halved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = base_config()
    cfg.model.preset, cfg.train.batch_size, cfg.data.seq_len = "bert-tiny", 256, 512
    needed = measured_step.step_bytes(measured_step.encoder_config(cfg), 30_522, 256 * 512)
    assert 256 * 512 * 30_522 * 12 < needed < 1.5 * 256 * 512 * 30_522 * 12  # the logits are most of it
    monkeypatch.setattr(measured_step, "_COMPARED_SECONDS", 1e9)
    for available, size in ((None, 256), (2 * needed, 256), (needed, 128), (needed // 3, 32), (1, 8)):
        cfg.train.batch_size = 256
        monkeypatch.setattr(measured_step, "available_bytes", lambda available=available: available)
        measured_step.fit_batch(cfg, 30_522, devices=8)
        assert cfg.train.batch_size == size
        assert (f"train.batch_size={size} instead of 256" in capsys.readouterr().err) == (size < 256)
    monkeypatch.undo()
    monkeypatch.setattr(measured_step.os, "cpu_count", lambda: 2)
    cfg.train.batch_size = 256
    measured_step.fit_batch(cfg, 30_522, devices=8)
    assert cfg.train.batch_size == 8 and "a step of transformers would take about 87 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "0"], "--repeats must be at least 1, not 0"),
        (["--out", "/nowhere/at/all.json"], "no folder /nowhere/at for --out"),
        (
            ["--baseline", "hf", "--config.objective.name=rtd"],
            "no training for objective",
        ),
        (
            [
                "--baseline",
                "hf",
                "--config.data.example_format=sop_pairs",
            ],
            "second objective",
        ),
        (
            ["--baseline", "hf", "--config.model.norm_placement=pre"],
            "no class of",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(
    lab: Lab, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab.run("benchmark", *arguments) == 2
    assert message in capsys.readouterr().err
