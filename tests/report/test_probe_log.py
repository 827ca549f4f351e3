"""`probes.jsonl`: lines of repeated steps are removed, and no others."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from workdirs import config, usual_lines, write_workdir

from bertjax.errors import UserError
from bertjax.io.jsonl import read_log
from bertjax.report.run_record import ProbeLog, columns, read_run


def steps_and_kinds(folder: Path) -> list[tuple[int, str]]:
    return [(record["step"], record["kind"]) for record in read_log(folder / "probes.jsonl")]


def test_a_run_that_goes_on_keeps_what_came_before(tmp_path: Path) -> None:
    journal = ProbeLog(tmp_path, 0)
    journal.describe({"devices": "1 x cpu"})
    for step in (10, 20, 30):
        journal.write(step, "fill_mask", sentence="a", tokens=[])
    ProbeLog(tmp_path, 20).describe({"devices": "2 x cpu"})
    assert steps_and_kinds(tmp_path) == [(0, "run"), (10, "fill_mask"), (20, "fill_mask")]
    assert read_log(tmp_path / "probes.jsonl")[0]["devices"] == "2 x cpu"
    assert [path.name for path in tmp_path.iterdir()] == ["probes.jsonl"]


def test_a_rollback_drops_what_is_undone(tmp_path: Path) -> None:
    journal = ProbeLog(tmp_path, 0)
    journal.describe({})
    for step in (10, 20, 30):
        journal.write(step, "memory", host=1)
    journal.forget(20)
    journal.write(20, "memory", host=2)
    assert steps_and_kinds(tmp_path) == [(0, "run"), (10, "memory"), (20, "memory")]
    journal.write(10, "memory", host=3)  # earlier than the last line: it went back without a message
    assert steps_and_kinds(tmp_path) == [(0, "run"), (10, "memory"), (10, "memory")]


def test_a_line_that_was_not_finished_goes(tmp_path: Path) -> None:
    journal = ProbeLog(tmp_path, 0)
    journal.describe({})
    journal.write(10, "memory", host=1)
    with (tmp_path / "probes.jsonl").open("a") as file:
        file.write('{"step": 20, "kind": "mem')
    assert steps_and_kinds(tmp_path) == [(0, "run"), (10, "memory")]
    ProbeLog(tmp_path, 20).write(20, "memory", host=2)
    assert steps_and_kinds(tmp_path)[1:] == [(10, "memory"), (20, "memory")]


def test_numbers_that_are_none_and_any_text(tmp_path: Path) -> None:
    ProbeLog(tmp_path, 0).write(1, "seeds", rows=[{"scores": {"f1": math.nan}}], text="\u2028 é \ud800")
    (record,) = read_log(tmp_path / "probes.jsonl")
    assert record["rows"] == [{"scores": {"f1": None}}]


@pytest.mark.parametrize("text", ["", "\n\n", "[1]\n", '{"no": 1}\n', '{"step": true}\n', "\x00\xff\n", "[" * 10**5])
def test_files_of_anything_are_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "probes.jsonl").write_text(text, encoding="latin-1")
    assert read_log(tmp_path / "probes.jsonl") == []


def test_a_series_is_in_order_and_the_later_value_counts() -> None:
    result = columns([{"step": 2, "a": 1}, {"step": 1, "a": None}, {"step": 2, "a": 5, "text": "x", "flag": True}])
    assert list(result) == ["a"]
    assert result["a"].x.tolist() == [1, 2] and math.isnan(result["a"].y[0]) and result["a"].y[1] == 5
    assert result["a"].last == 5


def test_a_work_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a work directory: it has no config\.json"):
        read_run(tmp_path)
    run = read_run(write_workdir(tmp_path / "a", usual_lines()))
    assert run.step == 100 and run.num_steps == 100 and run.name == "a" and run.probes == []
    assert run.setting("model.num_heads") == 4 and run.setting("model.nothing.at_all") is None
    (tmp_path / "a" / "config.json").write_text(json.dumps([config()]))
    with pytest.raises(UserError, match="does not hold a config"):
        read_run(tmp_path / "a")
