"""`bertjax prepare` on malformed text: omissions are reported, and reported again when the cache is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab import Lab

import bertjax.data.corpus_report as progress_module
from bertjax.config.sources import parse_source
from bertjax.data.corpus_report import TokenizingProgress
from bertjax.data.readers import DocumentStats

DIRTY = """the cat sees the dog. the dog sees the cat.

the cat sees the dog. the dog sees the cat.

the bird\0 likes a house. the house likes a bird.

hi

Птица видит дом. Дом видит птицу. Кот видит реку.
"""
FILTERS = {"deduplicate": "true", "min_chars": 5, "scripts": "latin", "encoding_errors": "replace"}


@pytest.fixture
def dirty(lab: Lab, tmp_path: Path) -> list[str]:
    path = tmp_path / "dirty.txt"
    path.write_bytes(DIRTY.encode() + b"\n" + lab.corpus.read_bytes() + b"\n\na \xff byte that is wrong here.\n")
    keys = FILTERS | {"sources": f"text:{path}", "cache_dir": tmp_path / "cache"}
    return [f"--config.data.{key}={value}" for key, value in keys.items()]


def test_omissions_are_reported(lab: Lab, dirty: list[str], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """P28: each kind of bad input is counted, on the terminal and in the prepared folder."""
    output = [
        "1 documents left out, whose text came before (data.deduplicate)",
        "1 documents left out, shorter than data.min_chars",
        "1 documents left out, mostly in other scripts than data.scripts",
        "1 lines with invalid UTF-8, replaced by U+FFFD",
        "1 control characters removed",
    ]
    for _ in range(2):  # prepared, and read from the cache
        assert lab.run("prepare", *dirty) == 0
        printed = capsys.readouterr().out
        assert [line.strip() for line in printed.splitlines() if line.strip() in output] == output
    (meta,) = (tmp_path / "cache" / "corpora").glob("*/meta.json")
    facts = json.loads(meta.read_text())["facts"]
    assert (facts["duplicates"], facts["too_short"], facts["other_script"], facts["invalid_lines"]) == (1, 1, 1, 1)


def test_filters_are_part_of_what_a_corpus_and_its_tokenizer_are(lab: Lab, dirty: list[str], tmp_path: Path) -> None:
    """P30: neither is read from the cache of another filter."""
    assert lab.run("prepare", *dirty) == 0
    assert lab.run("prepare", *dirty, "--config.data.scripts=") == 0
    assert len(list((tmp_path / "cache" / "corpora").iterdir())) == 2
    assert len(list((tmp_path / "cache" / "tokenizers").iterdir())) == 2


def test_a_bar_on_a_terminal_and_lines_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("x" * 1000)
    source, reading, lines = parse_source(f"text:{tmp_path}/a.txt"), DocumentStats(bytes=250), []
    monkeypatch.setattr(progress_module, "_SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(progress_module, "_SECONDS_BETWEEN_UPDATES", 0.0)
    with TokenizingProgress(source, reading, lines.append) as progress:
        progress(7, 3 << 20)
    assert lines == [f"tokenizing {source.text}: 7 documents, 3 MiB so far (25 % of the files)"]
    with TokenizingProgress(source, reading, lines.append, interactive=True) as progress:
        progress(7, 3 << 20)
        assert progress._bar._bar.tasks[0].percentage == 25.0
        assert progress._bar.text == "7 documents, 3 MiB"
    assert len(lines) == 1
