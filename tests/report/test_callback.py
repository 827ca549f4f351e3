"""Callbacks never stop a run, and receive repeated steps again after a rollback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from workdirs import usual_lines, write_workdir

from bertjax.report import training_callbacks
from bertjax.report.training_callbacks import ReportCallback


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "probes.jsonl").read_text().splitlines()]


def probe(step: int, params: Any) -> list[tuple[str, dict[str, Any]]]:
    return [("fill_mask", {"sentence": "a [MASK]", "tokens": [[params, 0.5]]})]


def test_every_evaluation_leaves_a_line_and_a_page(tmp_path: Path) -> None:
    write_workdir(tmp_path, usual_lines())
    printed: list[str] = []
    watcher = ReportCallback(tmp_path, 0, lambda: {"devices": "1 x cpu"}, probe, printed.append)
    assert "Step 100" in (tmp_path / "report.html").read_text(), "the page is there from the beginning"
    watcher(50, "first", {})
    watcher(100, "second", {})
    assert [(record["step"], record["kind"]) for record in records(tmp_path)] == [
        (0, "run"),
        (50, "fill_mask"),
        (100, "fill_mask"),
    ]
    assert "second" in (tmp_path / "report.html").read_text() and printed == []


def test_after_a_rollback_steps_are_seen_again(tmp_path: Path) -> None:
    write_workdir(tmp_path)
    watcher = ReportCallback(tmp_path, 0, dict, probe)
    for step, word in ((50, "a"), (100, "b"), (150, "c"), (100, "d")):
        watcher(step, word, {})
    assert [record["tokens"][0][0] for record in records(tmp_path)[1:]] == ["a", "d"]
    ReportCallback(tmp_path, 50, dict, probe)  # a killed run, resumed from its checkpoint
    assert [record["tokens"][0][0] for record in records(tmp_path)[1:]] == ["a"]


def test_a_probe_that_fails_is_printed_once_and_the_charts_are_drawn(tmp_path: Path) -> None:
    write_workdir(tmp_path, usual_lines())
    printed: list[str] = []
    calls: list[int] = []

    def fails(step: int, _: Any) -> list[Any]:
        calls.append(step)
        raise MemoryError("no memory\nsecond line")

    watcher = ReportCallback(tmp_path, 0, dict, fails, printed.append)
    (tmp_path / "report.html").unlink()
    watcher(50, None, {})
    watcher(100, None, {})
    expected = (
        "warning: probing the model failed (MemoryError: no memory); training continues without it (printed once)"
    )
    assert printed == [expected] and calls == [50]
    assert (tmp_path / "report.html").exists()


def test_a_page_that_cannot_be_written_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_workdir(tmp_path, usual_lines())
    printed: list[str] = []

    def fails(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(training_callbacks, "render", fails)
    watcher = ReportCallback(tmp_path, 0, dict, probe, printed.append)
    watcher(50, "a", {})
    watcher.render()
    assert len(printed) == 1 and "writing report.html failed (OSError" in printed[0]
    assert len(records(tmp_path)) == 2, "what is seen is written all the same"


def test_a_folder_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    printed: list[str] = []
    watcher = ReportCallback(tmp_path / "gone", 0, dict, probe, printed.append)
    watcher(50, "a", {})
    assert any("writing probes.jsonl failed" in text for text in printed)


def test_ctrl_c_is_no_broken_report(tmp_path: Path) -> None:
    def interrupted(step: int, _: Any) -> list[Any]:
        raise KeyboardInterrupt

    write_workdir(tmp_path)
    watcher = ReportCallback(tmp_path, 0, dict, interrupted)
    with pytest.raises(KeyboardInterrupt):
        watcher(50, None, {})


def test_facts_that_cannot_be_written_stop_no_run(tmp_path: Path) -> None:
    write_workdir(tmp_path, usual_lines())
    printed: list[str] = []
    watcher = ReportCallback(tmp_path, 0, lambda: {"devices": 1 / 0}, probe, printed.append)
    watcher(50, "a", {})
    assert len(printed) == 1 and "ZeroDivisionError" in printed[0]
    assert [record["kind"] for record in records(tmp_path)] == ["fill_mask"]
