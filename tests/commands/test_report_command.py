"""`report.html` from the command line: during training, after a resume, from damaged files, and after the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from lab import Finished, Lab

from bertjax.cli import main
from bertjax.report import training_callbacks


def kinds(workdir: Path) -> list[tuple[int, str]]:
    lines = (workdir / "probes.jsonl").read_text().splitlines()
    return [(record["step"], record["kind"]) for record in map(json.loads, lines)]


def test_a_run_leaves_a_page_of_what_it_learned(finished: Finished) -> None:
    text = (finished.workdir / "report.html").read_text()
    for phrase in ("Step 8 of 8, done", "unigram baseline", "the cat", 'id="attention"', 'id="neighbors"'):
        assert phrase in text, phrase
    result = kinds(finished.workdir)
    assert result[0] == (0, "run")
    assert [each for each in result if each[1] == "fill_mask"] == [(4, "fill_mask"), (8, "fill_mask")]
    assert [each for each in result if each[1] == "attention"] == [(4, "attention"), (8, "attention")]
    assert [each for each in result if each[1] == "memory"] == [(4, "memory"), (8, "memory")]
    assert "warning: " not in finished.printed
    assert finished.printed.rstrip().endswith(f"report: {finished.workdir}/report.html"), "the last line says what next"


def test_the_page_tells_what_the_run_is(finished: Finished) -> None:
    run = json.loads((finished.workdir / "probes.jsonl").read_text().splitlines()[0])
    assert run["parameters"]["model"] > 1000 and run["devices"] == "1 x cpu" and run["tokens"] > 0
    (phase,) = run["phases"]
    assert phase["start"] == 0 and phase["slots"] == 8 * 32 and phase["flops"] > 0


def test_what_it_fills_in_last_is_what_the_end_of_the_run_prints(finished: Finished) -> None:
    last = json.loads(
        [line for line in (finished.workdir / "probes.jsonl").read_text().splitlines() if "fill_m" in line][-1]
    )
    printed = "  ".join(f"{token} {share:.2f}" for token, share in last["tokens"])
    assert printed in finished.printed


@pytest.mark.long
def test_the_report_changes_nothing_that_is_learned(lab: Lab, finished: Finished, tmp_path: Path) -> None:
    assert lab.run("pretrain", "--workdir", tmp_path / "run", "--config.report.enabled=false") == 0
    ours, theirs = (
        (folder / "export" / "model.safetensors").read_bytes() for folder in (tmp_path / "run", finished.workdir)
    )
    assert ours == theirs
    assert not (tmp_path / "run" / "report.html").exists() and not (tmp_path / "run" / "probes.jsonl").exists()


def test_a_run_that_was_killed_goes_on_in_its_page(lab: Lab, finished: Finished, tmp_path: Path) -> None:
    shutil.copytree(finished.workdir, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "8")
    with (tmp_path / "run" / "probes.jsonl").open("a") as file:
        file.write('{"step": 10, "kind": "memory", "host": 1}\n{"step": 12, "ki')
    assert lab.run("pretrain", "--workdir", tmp_path / "run") == 0
    assert kinds(tmp_path / "run") == kinds(finished.workdir), "what came after the checkpoint is there once"
    ours, theirs = (
        [line for line in (folder / "probes.jsonl").read_text().splitlines() if "fill_mask" in line]
        for folder in (tmp_path / "run", finished.workdir)
    )
    assert ours == theirs
    assert "Step 8 of 8, done" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.long
def test_a_broken_report_stops_no_run(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(training_callbacks, "probe_memory", broken)
    assert lab.run("pretrain", "--workdir", tmp_path / "run") == 0
    printed = capsys.readouterr().out
    assert printed.count("warning: probing the model failed (RuntimeError: out of memory)") == 1
    assert "Step 8 of 8, done" in (tmp_path / "run" / "report.html").read_text()


def test_the_command_draws_old_runs(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(finished.workdir, tmp_path / "old")
    for name in ("report.html", "probes.jsonl"):
        (tmp_path / "old" / name).unlink()
    assert main(["report", str(tmp_path / "old")]) == 0
    assert str(tmp_path / "old" / "report.html") in capsys.readouterr().out
    assert kinds(tmp_path / "old") == [(0, "run")], "what a step costs is worked out from the config"
    assert 'id="attention"' not in (tmp_path / "old" / "report.html").read_text()
    assert main(["report", str(tmp_path / "old"), "--with-probes"]) == 0
    text = (tmp_path / "old" / "report.html").read_text()
    assert 'id="attention"' in text and 'id="predictions"' in text and "the cat" in text
    once = kinds(tmp_path / "old")
    assert main(["report", str(tmp_path / "old"), "--with-probes"]) == 0
    assert kinds(tmp_path / "old") == once, "a second look replaces the first"


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "is not a work directory: it has no config.json" in capsys.readouterr().err
    assert main(["compare", str(tmp_path)]) == 2
    assert "none has a config.json" in capsys.readouterr().err


def test_runs_side_by_side(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(finished.workdir, tmp_path / "old")
    (tmp_path / "old" / "probes.jsonl").unlink()
    (tmp_path / "notes").mkdir()
    out = tmp_path / "compare.html"
    assert (
        main(["compare", str(finished.workdir), str(tmp_path / "old"), str(tmp_path / "notes"), "--out", str(out)]) == 0
    )
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines() if line.startswith(("finished", "old"))]
    assert [row[:2] for row in rows] == [["finished", "A"], ["old", "A"]]
    assert rows[0][2:] == rows[1][2:], "what an old run cost is worked out"
    assert "skipping" in printed and "notes: it has no config.json" in printed and out.exists()
    assert not (tmp_path / "old" / "probes.jsonl").exists(), "comparing writes nothing into work directories"
