"""The size of a text, and the sample of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bertjax.config.sources import parse_source
from bertjax.errors import UserError
from bertjax.tools import measured_step as module
from bertjax.tools.measured_step import SECTION, TextSize, measure_text

DOCUMENTS = [f"Document {number}.\n" + "words and Wörter 字 " * (number % 7) for number in range(200)]


def measure(tmp_path: Path, content: str, name: str = "text.txt", seconds: float = 20.0) -> TextSize:
    path = tmp_path / name
    opener = gzip.open if name.endswith(".gz") else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(content)
    return measure_text([parse_source(f"text:{path}")], "strict", tmp_path, seconds)


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_counts_bytes_and_documents(tmp_path: Path, name: str) -> None:
    size = measure(tmp_path, "\n\n".join(DOCUMENTS), name)
    assert (size.documents, size.is_exact) == (200, True)
    assert size.bytes == sum(len(each.rstrip().encode()) for each in DOCUMENTS)
    sample = [json.loads(line)["text"] for line in size.sample.read_text().splitlines()]
    assert sample == [each.rstrip() for each in DOCUMENTS]


def test_estimates_what_it_had_no_time_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "\n\n".join("word " * 50 + str(number) for number in range(30_000))
    clock = iter(range(10**6))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    size = measure(tmp_path, content, seconds=9_000)
    assert not size.is_exact
    assert size.bytes == pytest.approx(len(content), rel=0.1)
    assert size.documents == pytest.approx(30_000, rel=0.1)


def test_sample_is_a_share_of_the_whole_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_BYTES", 20_000)
    numbers = [f"{number} " + "x" * 500 for number in range(1000)]
    size = measure(tmp_path, "\n\n".join(numbers))
    drawn = [int(json.loads(line)["text"].split()[0]) for line in size.sample.read_text().splitlines()]
    assert 10 < len(drawn) < 100 and drawn == sorted(drawn)
    assert min(drawn) < 250 and max(drawn) > 750


def test_one_document_is_sampled_in_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_BYTES", 100_000)
    size = measure(tmp_path, "字" * (40 * SECTION))
    sections = [json.loads(line)["text"] for line in size.sample.read_text().splitlines()]
    assert size.documents == 1 and 1 <= len(sections) < 40 and {*map(len, sections)} == {SECTION}


def test_no_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no text in it"):
        measure(tmp_path, "\n \n\n")
