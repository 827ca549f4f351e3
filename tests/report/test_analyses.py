"""What commands measured of a run is a section of its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from workdirs import EVIL, Document, usual_lines, write_workdir

from bertjax.report.render import render, store_analysis

WORD = {"word": EVIL, "score": -0.5, "field": "text"}
ANALYSES: dict[str, dict[str, Any]] = {
    "explanations": {
        "about": EVIL,
        "records": [{"id": "1", "target": EVIL, "score": 2.5, "completeness_error": 0.004, "words": [WORD]}],
    },
    "layers": {
        "about": EVIL,
        "layers": {EVIL: [{"layer": n, "accuracy": [0.5 + n / 8, 0.75], "control": [0.25, 0.25]} for n in range(3)]},
    },
    "smaller": {"ONNX, int8": {"size": "22.9 MB", "scores": [["accuracy", 0.9141, 0.9132]]}},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_workdir(tmp_path / "run", usual_lines(), [])
    (folder / "checkpoints").mkdir()
    return folder


def test_results_of_commands_are_sections(run: Path) -> None:
    assert not {"explanations", "layers", "smaller"} & set(Document(render(run).read_text()).ids)
    for kind, values in ANALYSES.items():
        store_analysis(run, kind, values)  # rewrites the page
    text = (run / "report.html").read_text(encoding="utf-8")
    document = Document(text)
    assert {"explanations", "layers", "smaller", "chart-layers-accuracy"} <= set(document.ids)
    assert len(set(document.ids)) == len(document.ids) and "<img src=x" not in text
    for phrase in ("score 2.5000", "-0.5000", "0.688 ± 0.088", "22.9 MB", "0.9141", "0.9132"):
        assert phrase in text, phrase


def test_forms_of_a_model_are_kept_side_by_side(run: Path) -> None:
    render(run)
    store_analysis(run, "smaller", ANALYSES["smaller"], merge=True)
    store_analysis(run, "smaller", {"pruned (layers=4)": {"size": "4 parameters", "scores": []}}, merge=True)
    store_analysis(run, "smaller", {"ONNX, int8": {"size": "1 MB", "scores": []}}, merge=True)
    stored = json.loads((run / "analyses" / "smaller.json").read_text())
    assert {name: form["size"] for name, form in stored.items()} == {
        "ONNX, int8": "1 MB",
        "pruned (layers=4)": "4 parameters",
    }


@pytest.mark.parametrize("content", ["[]", "{", '{"about": 1}', '{"about": "", "records": [1], "layers": {"a": 2}}'])
def test_a_file_that_holds_something_else_does_not_stop_the_report(run: Path, content: str) -> None:
    (run / "analyses").mkdir()
    for kind in ANALYSES:
        (run / "analyses" / f"{kind}.json").write_text(content)
    text = render(run).read_text()
    assert ("cannot be read; run the command again" in text) == (content[0] == "{" and content != "{")


def test_other_folders_than_runs_are_left_alone(tmp_path: Path) -> None:
    for source in (tmp_path, str(tmp_path), "hub:someone/something", "s3://bucket/run", object()):
        store_analysis(source, "smaller", ANALYSES["smaller"])
    assert not list(tmp_path.iterdir())
