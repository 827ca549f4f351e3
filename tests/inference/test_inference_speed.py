"""Inference next to other libraries: groups by length, turns, sides that cannot run, and the command."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from test_predictions import write_folder

from bertjax import cli
from bertjax.commands import inference_speed
from bertjax.commands.inference_speed import Side, format_table, group_by_length, measure, sample_texts


class Constant:
    """A side that takes the same time for every text, and fails after a number of turns."""

    def __init__(self, name: str, seconds: float, turns: int | None = None) -> None:
        self.name, self.error, self._seconds, self._turns = name, "", seconds, turns

    def seconds(self, texts: Sequence[int], *, together: bool) -> list[float]:
        if self._turns is not None:
            self._turns -= 1
            if self._turns < 0:
                self.error = "no memory"
                return []
        return [self._seconds * len(texts)] if together else [self._seconds] * len(texts)


def test_texts_are_grouped_by_tokens() -> None:
    lengths = np.array([16, 17, 1, 300, 64])
    assert group_by_length(lengths) == {"1-16 tokens": [0, 2], "17-64 tokens": [1, 4], "over 256": [3]}
    texts = sample_texts(["a b c " * 900, "d " * 9000])
    assert [len(text.split()) for text in texts[::128]] == [8, 8, 32]
    assert len(texts[-1].split()) == 128 and sample_texts(["one two"]) == ["one two"]


def test_turns_are_compared_to_the_first_side() -> None:
    groups = {"1-16 tokens": list(range(70)), "17-64 tokens": list(range(70, 80))}
    sides: list[Constant] = [Constant("ours", 0.5), Constant("theirs", 1.0), Constant("small", 0.1, turns=3)]
    results = measure(sides, groups, repeats=3)  # type: ignore[arg-type]
    assert results["small"] == {"error": "no memory"}
    assert results["theirs"]["ratio"] == pytest.approx(0.5) and results["ours"]["ratio"] == 1.0
    assert results["ours"]["texts_per_second"] == pytest.approx(dict.fromkeys(groups, 2.0))
    assert results["theirs"]["single_p50"] == results["theirs"]["single_p95"] == 1.0
    assert results["ours"]["first_seconds"] == pytest.approx(40.0)
    head, first, second, third = format_table(results, groups)
    assert "1-16 tokens (70)" in head and third.split() == ["small", "no", "memory"]
    assert first.split()[:4] == ["ours", "2", "2", "1.00"] and "1000.0, 1000.0 ms" in second


@pytest.mark.long
def test_a_side_that_cannot_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "texts.json").write_text(json.dumps(["a", "b"]))
    with contextlib.closing(Side("bertjax", tmp_path / "none", "embed", tmp_path / "texts.json")) as side:
        assert "no" in side.error and side.seconds([0], together=True) == []
    monkeypatch.setattr(inference_speed, "_COMMAND", "raise SystemExit(3)")
    with contextlib.closing(Side("bertjax", tmp_path, "embed", tmp_path / "texts.json")) as side:
        assert side.error == "its process ended (exit code 3)"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give a config with --config, or a model with --inference"),
        (["--config", "bert:tiny", "--inference", "model"], "give a config with --config, or a model with --inference"),
        (["--inference", "/nowhere"], "/nowhere"),
        (
            ["--inference", "model", "--baseline", "hf", "--steps", "3"],
            "--baseline, --steps: not read with --inference",
        ),
        (["--config", "bert:tiny", "--texts", "a.txt"], "--texts: not read with --config"),
        (["--inference", "model", "--texts", os.devnull], "--texts holds no text"),
        (["--inference", "model", "--texts", "/no/such.txt"], "/no/such.txt"),
    ],
)
def test_what_cannot_be_measured_is_refused(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["benchmark", *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    ("head", "task"),
    [("SequenceClassification", "predict"), pytest.param("MaskedLM", "embed", marks=pytest.mark.weekly)],
)
def test_all_sides_read_the_same_texts(
    head: str, task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = ("transformers, compiled", "onnxruntime int8")
    sides = {name: side for name, side in inference_speed.SIDES.items() if name not in slow}
    monkeypatch.setattr(importlib.import_module("bertjax.commands.benchmark"), "SIDES", sides)
    write_folder(tmp_path / "model", head, ("no", "yes", "maybe"))
    (tmp_path / "texts.txt").write_text("".join(f"tea {'and coffee ' * (n % 20)}\n\n" for n in range(64)))
    flags = ["--inference", str(tmp_path / "model"), "--texts", str(tmp_path / "texts.txt"), "--repeats", "1"]
    assert cli.main(["benchmark", *flags, "--out", str(tmp_path / "out.json")]) == 0
    stored, printed = json.loads((tmp_path / "out.json").read_text()), capsys.readouterr().out
    assert stored["task"] == task and list(stored["sides"]) == list(sides)
    for name, side in stored["sides"].items():
        assert name in printed and "error" not in side, side
        assert len(side["texts_per_second"]) > 1 and side["single_p95"] > 0
