"""Alternating measurements, the examples that the other implementation gets, and the printed lines."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tools.benchmark_report import format_scopes, format_torch
from bertjax.tools.bertjax_runner import split_examples
from bertjax.tools.hlo import StepScope
from bertjax.tools.interleaved_timing import TimedRun, interleave, median_range, speed_ratios
from bertjax.tools.torch_baseline import BaselineConfig, RunMode, TorchBaseline, TorchProcess


class Logged:
    """One side of a comparison that records when it runs."""

    def __init__(self, name: str, log: list[str]):
        self.name, self.log = name, log

    def run(self, steps: int) -> TimedRun:
        self.log.append(self.name)
        return TimedRun(steps, 2.0 * steps, 30 * steps, 40 * steps)


def test_both_sides_take_turns() -> None:
    log: list[str] = []
    ours, theirs = interleave([Logged("a", log), Logged("b", log)], 3, 5)
    assert log == ["a", "a", "b", "b"] * 3  # a warm-up step, and a measured one
    assert [run.seconds_per_step for run in ours] == [2.0] * 3 and theirs[0].tokens_per_second == 15.0


def test_a_peer_that_cannot_train_is_an_explained_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(peer: TorchBaseline, steps: int) -> TimedRun:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(TorchBaseline, "run", fails)
    peer = TorchBaseline.__new__(TorchBaseline)
    peer._examples = deque()
    away = TorchProcess.__new__(TorchProcess)
    away.versions = "transformers 5, torch 2"
    monkeypatch.setattr(away, "_call", lambda name, steps, mode: peer.trial(RunMode(*mode))[1:])
    with pytest.raises(UserError, match="torch 2 cannot train this model here: RuntimeError: no kernel"):
        away.choose_mode(with_bfloat16=True, with_compile=True)


@pytest.mark.long
def test_a_peer_that_dies_is_an_explained_end(tmp_path: Path) -> None:
    """Its process does not find the model and exits with an error code; the benchmark does not wait for it."""
    recipe = BaselineConfig(1, True, 0.15, 1e-4, 0.0, 1.0, 0)
    with pytest.raises(UserError, match=r"its process ended \(exit code 1\)"):
        TorchProcess(tmp_path / "nothing", "BertForMaskedLM", iter([]), recipe)


def test_ratios_are_taken_turn_by_turn() -> None:
    ours = [TimedRun(1, 1.0, 100, 100), TimedRun(1, 2.0, 100, 100), TimedRun(1, 4.0, 100, 100)]
    theirs = [TimedRun(1, 2.0, 100, 100), TimedRun(1, 6.0, 100, 100), TimedRun(1, 4.0, 100, 100)]
    expected = {"median": 2.0, "low": 1.0, "high": 3.0}
    assert speed_ratios(ours, theirs) == expected and median_range([3.0, 1.0, 2.0]) == expected


def test_rows_fall_apart_into_their_examples() -> None:
    batch = {
        "input_ids": np.array([[2, 7, 3, 2, 8, 9, 3, 0], [2, 5, 6, 3, 0, 0, 0, 0], [0] * 8], np.int32),
        "segment_ids": np.array([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 1, 0, 0, 0, 0], [0] * 8], np.int32),
        "token_type_ids": np.array([[0, 0, 0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 0, 0, 0, 0], [0] * 8], np.int32),
        "pair_labels": np.array([[1, 0], [1, 0], [0, 0]], np.int32),
    }
    result = list(split_examples(batch))
    assert [example["input_ids"].tolist() for example in result] == [[2, 7, 3], [2, 8, 9, 3], [2, 5, 6, 3]]
    assert [example["token_type_ids"].tolist() for example in result] == [[0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert [int(example["pair_labels"]) for example in result] == [1, 0, 1]


def test_shares_of_parts_add_up() -> None:
    parts = {
        StepScope("heads", "forward"): 1.0,
        StepScope("heads", "backward"): 2.0,
        StepScope("optimizer", "update"): 1.0,
    }
    _, heads, optimizer = format_scopes(parts)
    assert heads.split() == ["heads", "75.0%", "25.0%", "50.0%"] and optimizer.split() == [
        "optimizer",
        "25.0%",
        "25.0%",
    ]
    assert "names no operations" in format_scopes({})[0]


def test_a_way_that_did_not_run_says_why() -> None:
    spread_ = {"median": 0.05, "low": 0.04, "high": math.inf}
    lines = format_torch(
        {
            "versions": "transformers 5, torch 2",
            "attention": "sdpa",
            "mode": "float32, eager",
            "trials": {"float32, eager": 0.5, "float32, compiled": "RuntimeError: no compiler"},
            "seconds_per_step": spread_,
            "tokens_per_second": {"median": 1234.5, "low": 1.0, "high": 2.0},
            "padding": 0.25,
            "data_wait": 0.1,
            "ratio": {"median": 1.5, "low": 1.4, "high": 1.6},
        }
    )
    text = "\n".join(lines)
    assert "float32, eager               500 ms per step  <- used" in text and "no compiler" in text
    assert (
        "50.0 ms (median; 40.0 ms to never)" in text and "25.00 % padding" in text and "1.50 in real tokens/s" in text
    )
