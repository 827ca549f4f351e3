"""Malformed text: an error that names file and line, or a count that `prepare` reports (P28)."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bertjax.data.readers as readers
from bertjax.config.sources import parse_source
from bertjax.data.readers import DocumentStats
from bertjax.data.sources import iter_documents
from bertjax.errors import UserError
from bertjax.io import jsonl


def read(text: str, errors: str = "strict") -> tuple[list[str], dict[str, int]]:
    reading = DocumentStats()
    result = list(iter_documents(parse_source(text), errors, reading))
    assert reading.documents == len(result)
    return result, {name: count for name, count in reading.facts().items() if count and name != "documents"}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(readers, "LONGEST_DOCUMENT", 64)
    return 64


def test_empty_documents_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n \t\ntwo\n\0\n")
    assert read(f"lines:{tmp_path}/a.txt") == (["one", "two"], {"empty": 3, "control_characters": 1})
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": " \\n"}\n\n{"text": "x"}\n')
    assert read(f"jsonl:{tmp_path}/a.jsonl") == (["x"], {"empty": 2})


def test_control_characters_go_and_whitespace_stays(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\0b\x07c\x7f d\te\x0cf\x1bg\n")
    assert read(f"text:{tmp_path}/a.txt") == (["abc d\te\x0cfg"], {"control_characters": 4})
    (tmp_path / "a.jsonl").write_text('{"text": "a\\u0000b"}\n')
    assert read(f"jsonl:{tmp_path}/a.jsonl") == (["ab"], {"control_characters": 1})


def test_replaced_bytes_are_counted_by_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\xfe\nca\xe9\n")
    result, facts = read(f"text:{tmp_path}/a.txt", "replace")
    assert result == ["fine\n\ufffd\ufffd\nca\ufffd"] and facts == {"invalid_lines": 2}
    with pytest.raises(UserError, match=f"{tmp_path}/a.txt:2: invalid UTF-8"):
        read(f"text:{tmp_path}/a.txt")


@pytest.mark.parametrize("kind", ["text", "lines", "files"])
@pytest.mark.parametrize("unit", ["word ", "words without a full stop\n", "x", "é", "图", "\U0001f600"])
@pytest.mark.parametrize("packed", [False, True])
def test_gigantic_documents_are_cut_and_lose_nothing(
    small: int, tmp_path: Path, kind: str, unit: str, packed: bool
) -> None:
    """P28: cuts are at spaces or line ends, otherwise between characters, and are counted."""
    text = unit * (1000 // len(unit))
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    result, facts = read(f"{kind}:{path}")
    assert "".join("".join(each.split()) for each in result) == "".join(text.split())
    if "\n" not in unit or kind != "lines":
        assert facts["cut"] == len(result) - 1 > 3
    assert max(map(len, result)) <= small
    if " " in unit:
        assert {word for each in result for word in each.split()} == set(text.split())


def test_the_lines_after_a_gigantic_one_have_their_numbers(small: int, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"first\n" + b"word " * 100 + b"\n" + b"y" * small + b"\nlast \xff\n")
    with pytest.raises(UserError, match=r"a.txt:4: invalid UTF-8 \(byte 0xff at column 6\)"):
        read(f"lines:{tmp_path}/a.txt")
    result, facts = read(f"lines:{tmp_path}/a.txt", "replace")
    assert result[-2:] == ["y" * small, "last \ufffd"] and facts["invalid_lines"] == 1


def test_a_gigantic_record_is_read_and_cut(small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' + json.dumps({"text": "word " * 100}) + "\n")
    result, facts = read(f"jsonl:{tmp_path}/a.jsonl")
    assert " ".join(result) == "x " + ("word " * 100).strip() and facts["cut"] == len(result) - 2
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 400)
    with pytest.raises(UserError, match=r"a.jsonl:2: a line of more than 400 bytes"):
        read(f"jsonl:{tmp_path}/a.jsonl")


HUGE = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from prepare_lab import prepare, tokenizer
from bertjax.data.readers import DocumentStats
from bertjax.data.sources import iter_documents
from bertjax.config.sources import parse_source
import datasets
tokenizer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
reading = DocumentStats()
documents = iter_documents(parse_source("lines:" + sys.argv[1]), "strict", reading)
made = prepare(Path(sys.argv[2]), documents, workers=int(sys.argv[3]))
assert reading.facts()["cut"] >= int(sys.argv[4]), reading
own, workers = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print((own - before) >> 10, workers >> 10)
"""


@pytest.mark.weekly
def test_a_line_of_many_megabytes_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge.txt"
    path.write_text("the cat sees a red bird and " * (200 * 1_000_000 // 28))
    command = [sys.executable, "-c", HUGE.format(tests=str(Path(__file__).parent))]
    done = subprocess.run(
        [*command, str(path), str(tmp_path / "cache"), "2", str(200 // 18)],
        check=True,
        capture_output=True,
        text=True,
    )
    more, largest_worker = map(int, done.stdout.split())  # MiB, of that one program and its children
    assert more < 450 and 0 < largest_worker < 800  # 140 and 314 of 200 MB when this test was written
