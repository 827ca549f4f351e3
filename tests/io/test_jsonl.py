"""Lines and JSON Lines: every error names file and line, and a log is truncated to a step."""

from __future__ import annotations

import gzip
import io
import json
import math
from pathlib import Path

import pytest

from bertjax.errors import UserError
from bertjax.io import jsonl


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "-"])
def test_objects_with_their_line_numbers(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b'\xef\xbb\xbf{"a": 1}\n\n {"b": "\xc3\xa9"}'
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    path = name if name == jsonl.STDIN else str(tmp_path / name)
    assert list(jsonl.read_jsonl(path)) == [(1, {"a": 1}), (3, {"b": "é"})]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "a.jsonl:2: broken JSON"),
        (b"[1]", "a.jsonl:2: a list where a JSON object is expected"),
        (b"true", "a.jsonl:2: true or false where"),
        (b'"\xff"', r"a.jsonl:2: invalid UTF-8 \(byte 0xff at column 2\); convert the file to UTF-8, or pray"),
        (b"[" * 100_000, "a.jsonl:2: broken JSON"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}\n" + line + b"\n")
    with pytest.raises(UserError, match=message):
        list(jsonl.read_jsonl(str(tmp_path / "a.jsonl"), advice=", or pray"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    whole = gzip.compress(b"{}\n" * 1000)
    (tmp_path / "a.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"a.gz: broken gzip after line"):
        list(jsonl.read_lines(str(tmp_path / "a.gz")))
    with pytest.raises(UserError, match="missing: cannot be read: No such file"):
        list(jsonl.read_lines(str(tmp_path / "missing")))


def test_invalid_bytes_can_be_replaced_and_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xff\nfine\n")
    stats = jsonl.ReadStats()
    assert [line for _, line in jsonl.read_lines(str(tmp_path / "a"), "replace", stats)] == ["\ufffd\n", "fine\n"]
    assert stats == jsonl.ReadStats(bytes=7, invalid_lines=1)


def test_long_lines_are_split_or_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    Path(path).write_text("word word word\nend\n")
    parts = [*jsonl.read_lines(path, max_bytes=8, split_long=True)]
    assert "".join(line for _, line in parts) == "word word word\nend\n" and [number for number, _ in parts] == [
        1,
        1,
        2,
    ]
    with pytest.raises(UserError, match="a:1: a line of more than 8 bytes"):
        list(jsonl.read_lines(path, max_bytes=8))


def test_a_log_is_rewound_to_a_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 0.1}\nnonsense\n{"step": true}\n[]\n{"step": 3, "a": 0.3}\n{"step": 2, "a"')
    log = jsonl.JsonlLog(path, 1)
    log.write(2, {"a": math.nan, "b": [math.inf, 1.0]})
    log.write(3, {"a": 0.5})
    assert [record["step"] for record in jsonl.read_log(path)] == [1, 2, 3]
    log.rewind(2)
    log.close()
    assert path.read_text() == '{"step": 1, "a": 0.1}\n{"step": 2, "a": null, "b": [null, 1.0]}\n'
    assert [json.loads(line) for line in path.read_text().splitlines()] == jsonl.read_log(path)
    assert jsonl.read_log(tmp_path / "none") == []


def test_numbers_of_a_log_are_finite(tmp_path: Path) -> None:
    """A damaged line may have a number that no float or chart can represent; drawing it would fail."""
    huge = "9" * 400
    (tmp_path / "a.jsonl").write_text(
        f'{{"step": 1, "a": {huge}, "b": 1e999, "c": NaN, "d": 2, "e": -1e308}}\n{{"step": {huge}}}\n'
    )
    assert jsonl.read_log(tmp_path / "a.jsonl") == [{"step": 1, "a": None, "b": None, "c": None, "d": 2, "e": None}]
