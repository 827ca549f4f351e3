"""Sources: the grammar, the files that are read, and the messages of errors."""

from __future__ import annotations

import glob
import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertjax.config.source_files import check_source, source_files
from bertjax.config.sources import Source, parse_source
from bertjax.data.sources import is_held_out, iter_documents, source_digest
from bertjax.errors import UserError


def documents(text: str, errors: str = "strict") -> list[str]:
    return list(iter_documents(parse_source(text), errors))


@pytest.mark.parametrize(
    ("text", "kind", "where", "field", "weight"),
    [
        ("builtin:python-docs", "builtin", "python-docs", None, None),
        ("builtin:python-docs@0.5", "builtin", "python-docs", None, 0.5),
        ("text:a/b.txt", "text", "a/b.txt", None, None),
        ("text:a#1/b@home.txt@2", "text", "a#1/b@home.txt", None, 2.0),
        ("text:notes#draft", "text", "notes#draft", None, None),
        ("lines:C:/x.txt@1e-3", "lines", "C:/x.txt", None, 1e-3),
        ("jsonl:a.jsonl", "jsonl", "a.jsonl", "text", None),
        ("jsonl:a#b.jsonl#body", "jsonl", "a#b.jsonl", "body", None),
        ("parquet:d@2.parquet#body@.25", "parquet", "d@2.parquet", "body", 0.25),
        ("parquet:d.parquet@2#body", "parquet", "d.parquet", "body", 2.0),
        ("hub:owner/name:20220301.en:train#text@3", "hub", "owner/name:20220301.en:train", "text", 3.0),
    ],
)
def test_parse(text: str, kind: str, where: str, field: str | None, weight: float | None) -> None:
    assert parse_source(text) == Source(kind, where, field, weight, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jsnl:a.jsonl", "did you mean jsonl:?"),
        ("just-a-word", "must begin with one of builtin:"),
        ("text:", "names nothing"),
        ("text:@2", "names nothing"),
        ("text:a.txt@0", "above 0, not 0"),
        ("text:a.txt@-1", "not -1"),
        ("text:a.txt@nan", "not nan"),
        ("text:a.txt@inf", "not inf"),
    ],
)
def test_parse_errors(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        parse_source(text)


def test_a_bare_path_is_advised(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UserError, match="write text:"):
        parse_source(str(tmp_path / "a.txt"))


def test_check_says_what_to_do(tmp_path: Path) -> None:
    for name in ("a.txt", "b.parquet", "c.jsonl.gz", "d.zip"):
        (tmp_path / name).write_bytes(b"x")
    messages = {
        f"text:{tmp_path}/none.txt": "no such file",
        f"text:{tmp_path}/*.md": "no file matches",
        f"text:{tmp_path}": r"is a directory.*\*\*/\*\.txt",
        f"text:{tmp_path}/a.txt#text": "takes no #FIELD",
        f"text:{tmp_path}/b.parquet": "write parquet:",
        f"lines:{tmp_path}/c.jsonl.gz": "write jsonl:",
        f"parquet:{tmp_path}/a.txt": "is not a parquet file",
        f"files:{tmp_path}/d.zip": "archive",
        "builtin:wikipedia": "there is python-docs",
        "hub:a/b/c": "NAME as owner/name",
        "hub:a:b:c:d": r"hub:NAME\[:CONFIG",
    }
    for text, message in messages.items():
        with pytest.raises(UserError, match=message) as caught:
            check_source(parse_source(text))
        assert "\n" not in str(caught.value)
    check_source(parse_source(f"text:{tmp_path}/a.txt"))
    check_source(parse_source(f"text:{tmp_path}/*.txt"))
    check_source(parse_source("hub:owner/name"))
    check_source(parse_source("builtin:python-docs"))


def test_import_and_check_are_light(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    code = (
        "import sys; from bertjax.config.source_files import check_source\n"
        "from bertjax.config.sources import parse_source\n"
        f"check_source(parse_source({f'text:{tmp_path}/a.txt'!r})); check_source(parse_source('builtin:python-docs'))\n"
        "import bertjax.data.tokenizer\n"
        "heavy = {'datasets', 'pyarrow', 'pandas', 'tokenizers', 'sentencepiece', 'jax'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    source = parse_source(f"text:{tmp_path}/a.txt")
    times = []
    for _ in range(5):
        start = time.perf_counter()
        check_source(source)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.1


def test_globs_are_sorted_and_deep(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/er/c.txt", "a[1].txt", "no.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    result = source_files(parse_source(f"lines:{tmp_path}/**/*.txt"))
    assert result == sorted(str(tmp_path / name) for name in ("a.txt", "a[1].txt", "b.txt", "deep/er/c.txt"))
    assert documents(f"lines:{tmp_path}/a[1].txt") == ["a[1].txt"]  # an existing file takes precedence over the pattern
    assert source_files(parse_source("builtin:python-docs")) == []


def test_text_lines_and_files(tmp_path: Path) -> None:
    raw = "\ufeff\n\n  One.  \nTwo.\t\r\n \t \nThree\0.\n\n\n\u3000\n四。\n"
    (tmp_path / "a.txt").write_bytes(raw.encode())
    with gzip.open(tmp_path / "b.txt.gz", "wb") as file:
        file.write(b"Five.\n")
    assert documents(f"text:{tmp_path}/a.txt") == ["  One.\nTwo.", "Three.", "四。"]
    assert documents(f"lines:{tmp_path}/a.txt") == ["  One.", "Two.", "Three.", "四。"]
    assert documents(f"files:{tmp_path}/a.txt") == ["  One.\nTwo.\n\nThree.\n\n\n\n四。"]
    assert documents(f"text:{tmp_path}/*") == ["  One.\nTwo.", "Three.", "四。", "Five."]
    (tmp_path / "empty.txt").write_text(" \n\n")
    for kind in ("text", "lines", "files"):
        assert documents(f"{kind}:{tmp_path}/empty.txt") == []


def test_documents_do_not_run_over_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("end of a")
    (tmp_path / "b.txt").write_text("start of b")
    assert documents(f"text:{tmp_path}/*.txt") == ["end of a", "start of b"]


def test_reading_is_lazy(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\n" * 1000 + b"\xff")
    stream = iter_documents(parse_source(f"lines:{tmp_path}/a.txt"))
    assert [next(stream) for _ in range(1000)] == ["good"] * 1000
    with pytest.raises(UserError, match="1001"):
        next(stream)


def test_invalid_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"fine\n\nca\xe9 bad\n")
    with pytest.raises(
        UserError, match=rf"{path}:3: invalid UTF-8 \(byte 0xe9 at column 3\).*data.encoding_errors='replace'"
    ):
        documents(f"text:{path}")
    assert documents(f"text:{path}", "replace") == ["fine", "ca\ufffd bad"]
    with pytest.raises(UserError, match="strict or replace"):
        documents(f"text:{path}", "ignore")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "not gzip"])
def test_broken_gzip(tmp_path: Path, damage: str) -> None:
    whole = gzip.compress(b"".join(b"%d line\n" % i for i in range(9000)))
    broken = {
        "truncated": whole[: len(whole) // 2],
        "flipped": whole[:-8] + bytes(8),
        "not gzip": b"plain text",
    }[damage]
    (tmp_path / "a.txt.gz").write_bytes(broken)
    with pytest.raises(UserError, match=r"a\.txt\.gz: broken gzip after line"):
        documents(f"lines:{tmp_path}/a.txt.gz")


def test_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        json.dumps({"text": "a\r\nb ", "n": 1}) + "\n\n" + json.dumps({"text": "  "}) + '\n{"text": "\\u4f60"}'
    )
    assert documents(f"jsonl:{path}") == ["a\nb", "你"]
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write('{"body": "c"}\n')
    assert documents(f"jsonl:{tmp_path}/b.jsonl.gz#body") == ["c"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "x"', "broken JSON"),
        ('["x"]', "a list where a JSON object"),
        ('{"body": "x"}', r"no field 'text' \(it has body\)"),
        ('{"text": 3}', "holds int where text"),
        ('{"text": null}', "holds nothing where text"),
        ('{"text": "\\ud800"}', "surrogate"),
        ("[" * 100_000, "broken JSON"),
    ],
)
def test_jsonl_errors_name_the_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(UserError, match=f"{path}:2: .*{message}"):
        documents(f"jsonl:{path}")


def test_half_a_surrogate_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b"}\n')
    assert documents(f"jsonl:{tmp_path}/a.jsonl", "replace") == ["a?b"]


def test_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", " ", "c\nd"], "n": [1, 2, 3], "gap": ["x", None, "y"]}), path)
    assert documents(f"parquet:{path}") == ["a", "c\nd"]
    for field, message in (
        ("n", "row 1: field 'n' holds int"),
        ("gap", "row 2: .*nothing"),
        ("zz", "it has text, n, gap"),
    ):
        with pytest.raises(UserError, match=message):
            documents(f"parquet:{path}#{field}")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="cannot be read as parquet"):
        documents(f"parquet:{path}")


def test_hub_streams_and_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    requested: list[object] = []

    def fake(path: str, name: str | None, *, split: str, streaming: bool) -> object:
        requested.append((path, name, split, streaming))
        return datasets.IterableDataset.from_generator(lambda: iter([{"body": "a"}, {"body": ""}, {"body": "b\n"}]))

    monkeypatch.setattr(datasets, "load_dataset", fake)
    assert documents("hub:owner/name:en:test#body") == ["a", "b"]
    assert documents("hub:name::valid#body") == ["a", "b"]
    assert requested == [("owner/name", "en", "test", True), ("name", None, "valid", True)]
    with pytest.raises(UserError, match=r"row 1: no field 'text' \(it has body\)"):
        documents("hub:name")

    def down(*_: object, **__: object) -> object:
        raise ConnectionError("no\nroute")

    monkeypatch.setattr(datasets, "load_dataset", down)
    monkeypatch.setattr(datasets, "load_dataset_builder", down)
    with pytest.raises(UserError, match=r"hub data set 'name' .* failed at the start: no route; check the name"):
        documents("hub:name")
    with pytest.raises(UserError, match="failed at the start: no route"):
        source_digest(parse_source("hub:name"))


def test_digest_follows_the_bytes_only(tmp_path: Path) -> None:
    for name, text in (
        ("a.txt", "one"),
        ("b.txt", "two"),
        ("x/c.txt", "one"),
        ("x/d.txt", "two"),
        ("y/z.txt", "onetwo"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    base = source_digest(parse_source(f"text:{tmp_path}/*.txt"))
    assert base == source_digest(parse_source(f"text:{tmp_path}/x/*.txt@3"))
    assert base != source_digest(parse_source(f"lines:{tmp_path}/*.txt"))
    assert base != source_digest(parse_source(f"text:{tmp_path}/y/*.txt"))
    (tmp_path / "b.txt").write_text("twO")
    assert base != source_digest(parse_source(f"text:{tmp_path}/*.txt"))
    (tmp_path / "j.jsonl").write_text("{}")
    fields = {source_digest(parse_source(f"jsonl:{tmp_path}/j.jsonl#{field}")) for field in "ab"}
    assert len(fields) == 2


def test_held_out_share() -> None:
    texts = [f"document {i}" for i in range(20_000)]
    share = sum(is_held_out(text, 0.05) for text in texts) / len(texts)
    assert abs(share - 0.05) < 0.006
    assert not any(is_held_out(text, 0.0) for text in texts[:100])
    assert all(is_held_out(text, 1.0) for text in texts[:100])
    smaller = {text for text in texts if is_held_out(text, 0.01)}
    assert smaller <= {text for text in texts if is_held_out(text, 0.05)}


@pytest.mark.parametrize("kind", ["text", "jsonl", "files"])
def test_pipes_and_devices_are_refused(kind: str, tmp_path: Path) -> None:
    """Text is read more than once, and a device may never end."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/stdin")):
        with pytest.raises(UserError, match=rf"data.sources: '{kind}:.*is a pipe, socket or device"):
            check_source(parse_source(f"{kind}:{path}"))


def test_links_are_followed_once(tmp_path: Path) -> None:
    """Links to parent folders, of which a search could follow two at every level, and two names of one file."""
    inside, outside = tmp_path / "corpus" / "en", tmp_path / "elsewhere"
    inside.mkdir(parents=True)
    outside.mkdir()
    (inside / "b.txt").write_text("one\n")
    (outside / "c.txt").write_text("two\n")
    (inside / "a.txt").symlink_to("b.txt")
    (inside / "up").symlink_to(tmp_path / "corpus")
    (inside / "self").symlink_to(".")
    (tmp_path / "corpus" / "other").symlink_to(outside)
    (tmp_path / "corpus" / "broken.txt").symlink_to("nowhere")
    result = source_files(parse_source(f"text:{tmp_path}/corpus/**/*.txt"))
    assert [Path(path).resolve() for path in result] == [inside / "b.txt", outside / "c.txt"]


@pytest.mark.parametrize(
    "pattern", ["**/*.py", "*/[a-c]*.py", "**", "*/**/test_s*.py", "data/../i?/*.py", "*.md", ".*"]
)
def test_patterns_match_as_in_glob(pattern: str) -> None:
    where = str(Path(__file__).parents[1] / pattern)
    expected = sorted({path for path in glob.glob(where, recursive=True) if os.path.isfile(path)})
    try:
        assert source_files(parse_source(f"files:{where}")) == expected
    except UserError:
        assert not expected


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_line_ends_of_every_system(end: str, suffix: str, tmp_path: Path) -> None:
    path, text = tmp_path / f"a{suffix}", end.join(["one", "more", "", "two", "", "", "three", ""])
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    assert documents(f"text:{path}") == ["one\nmore", "two", "three"]
    assert documents(f"lines:{path}") == ["one", "more", "two", "three"]
    assert documents(f"files:{path}") == ["one\nmore\n\ntwo\n\n\nthree"]


def test_a_line_end_between_two_blocks(tmp_path: Path) -> None:
    """CR at the end of the first block of 128 KiB and LF at the start of the next are one line end."""
    for size in range((1 << 17) - 3, (1 << 17) + 2):
        (tmp_path / "a.txt").write_bytes(b"a" * size + b"\r\nb\r\n\r\nc\r\r\nd")
        assert documents(f"text:{tmp_path / 'a.txt'}") == ["a" * size + "\nb", "c", "d"]
