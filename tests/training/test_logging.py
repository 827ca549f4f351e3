"""Logged metrics: files that survive a kill, and lines for people."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bertjax.io.jsonl import JsonlLog
from bertjax.training.logging import (
    Console,
    duration,
    eval_line,
    train_line,
)

METRICS = {
    "train/loss": 7.25,
    "train/mlm_loss": 6.5,
    "train/mlm_accuracy": 0.125,
    "train/pair_loss": 0.75,
    "train/pair_accuracy": 0.5,
    "train/learning_rate": 1e-4,
    "train/tokens_per_second": 12345.0,
    "train/padding": 0.0625,
    "train/eta_seconds": 3725.0,
}
EVAL = {"eval/mlm_loss": 5.0, "eval/mlm_unigram_loss": 6.5, "eval/mlm_accuracy": 0.25}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_object_a_line_readable_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = JsonlLog(path, 0)
    writer.write(10, {"train/loss": 1.5})
    assert lines(path) == [{"step": 10, "train/loss": 1.5}]
    writer.write(20, {"train/loss": math.nan, "train/grad_norm": math.inf, "eval/loss": 2})
    writer.close()
    assert lines(path)[1] == {"step": 20, "train/loss": None, "train/grad_norm": None, "eval/loss": 2}


def test_a_resumed_run_drops_the_steps_it_makes_again_and_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 10, "a": 1}\n{"step": 20, "a": 2}\n\n{"step": 30, "a": 3}\n{"step": 4')
    writer = JsonlLog(path, 20)
    writer.write(25, {"a": 9})
    writer.close()
    assert lines(path) == [{"step": 10, "a": 1}, {"step": 20, "a": 2}, {"step": 25, "a": 9}]
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_torn_line_of_a_kept_step_is_dropped_too(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 10, "a": 1}\n{"step": 20, "a": 2')
    JsonlLog(path, 20).close()
    assert lines(path) == [{"step": 10, "a": 1}]


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture) -> None:
    console = Console(0, 500, interactive=False)
    console.advance(3)
    console.train(100, METRICS)
    console.print("eval at step [100]: fine")
    console.close()
    out = capsys.readouterr().out
    assert out.splitlines() == [f"step 100/500  {train_line(METRICS)}", "eval at step [100]: fine"]
    assert "\x1b" not in out


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    console = Console(0, 500, interactive=True)
    console.advance(3)
    console.train(100, METRICS)
    console.print("eval at step [100]: fine")
    console.close()
    out = capsys.readouterr().out
    assert "eval at step [100]: fine" in out and "100/500" in out


def test_the_line_of_a_window() -> None:
    assert train_line(METRICS) == (
        "loss 7.250  mlm 6.500 acc 0.125  pair 0.750 acc 0.500  lr 1.00e-04  12.3k tokens/s  padding 6.2 %"
        "  ETA 1 h 02 m"
    )
    alone = {name: value for name, value in METRICS.items() if "pair" not in name} | {"train/mfu": 0.4567}
    assert "pair" not in train_line(alone) and "MFU 45.7 %" in train_line(alone)
    assert train_line(alone | {"train/loss": 6.5}).startswith("loss 6.500 acc 0.125  lr"), "one loss is printed once"


def test_the_line_of_an_evaluation_shows_the_baseline() -> None:
    line = eval_line(EVAL)
    assert line == "mlm 5.000 nats, 1.500 better than guessing by frequency (6.500)  accuracy 0.250"
    pairs = {"eval/news/pair_loss": 0.5, "eval/news/pair_accuracy": 0.75}
    of_news = {name.replace("eval/", "eval/news/"): value for name, value in EVAL.items()} | pairs
    assert eval_line(of_news, "eval/news") == line + "  pair loss 0.500, accuracy 0.750"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 m 00 s"), (184, "3 m 04 s"), (3599.6, "1 h 00 m"), (93784, "26 h 03 m")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("rate", "text"), [(999.0, "999 t"), (1500.0, "1.5k t"), (2_345_678.0, "2.35M t")])
def test_rates_are_short(rate: float, text: str) -> None:
    assert f"  {text}okens/s" in train_line({**METRICS, "train/tokens_per_second": rate})
