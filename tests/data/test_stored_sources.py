"""Text in object stores: every kind of source reads the same documents from a store as from a disk."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from bertjax.config.source_files import check_source, source_files
from bertjax.config.sources import parse_source, parse_task_source
from bertjax.data.sources import iter_documents, source_digest
from bertjax.errors import UserError
from bertjax.io.store import Store
from bertjax.storage import _ObjectFile

TEXTS = [f"document {number} with some words" for number in range(300)]
TABLE = pa.table({"id": range(len(TEXTS)), "body": TEXTS})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"memory://bucket/{tmp_path.name}")
    yield store
    store.remove(store.list())


def arrow_file() -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return sink.getvalue()


def parquet_file() -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(TABLE, sink, row_group_size=50)
    return sink.getvalue()


def tar_file() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as archive:
        for number, text in enumerate(TEXTS):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return sink.getvalue()


FILES = {
    "text:a.txt": "\n\n".join(TEXTS).encode(),
    "lines:a.txt.gz": gzip.compress("\n".join(TEXTS).encode()),
    "files:*.txt": "\n".join(TEXTS).encode(),
    "jsonl:a.jsonl#body": "".join(json.dumps({"body": text}) + "\n" for text in TEXTS).encode(),
    "parquet:a.parquet#body": parquet_file(),
    "arrow:a.arrow#body": arrow_file(),
    "tar:a.tgz": tar_file(),
}


@pytest.mark.parametrize("source", FILES)
def test_every_kind_reads_the_same_from_a_store(source: str, store: Store, tmp_path: Path) -> None:
    kind, _, where = source.partition(":")
    name, at, field = where.partition("#")
    (tmp_path / name.replace("*", "a")).write_bytes(FILES[source])
    store.write(name.replace("*", "a"), FILES[source])
    local, stored = (parse_source(f"{kind}:{root}/{name}{at}{field}@2.5") for root in (tmp_path, store.url))
    check_source(stored)
    documents = list(iter_documents(stored))
    assert documents == list(iter_documents(local)) and len(documents) in (1, len(TEXTS))
    assert stored.weight == 2.5 and source_files(stored) == [f"{store.url}/{name.replace('*', 'a')}"]


def test_labeled_examples_and_file_urls(store: Store, tmp_path: Path) -> None:
    store.write("a.tsv", b"one\t1\n")
    assert source_files(parse_task_source(f"tsv:{store.url}/a.tsv", "task.train")) == [f"{store.url}/a.tsv"]
    (tmp_path / "b.txt").write_text("here")
    assert list(iter_documents(parse_source(f"text:file://{tmp_path}/b.txt"))) == ["here"]


def test_the_digest_follows_the_object(store: Store) -> None:
    store.write("a.txt", b"one")
    source = parse_source(f"text:{store.url}/a.txt")
    first = source_digest(source)
    assert source_digest(source) == first
    store.write("a.txt", b"two")
    assert source_digest(source) != first


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.txt", "no such object"),
        ("none*.txt", "no file matches"),
        ("folder", r"for a folder write text:.*\*\*"),
    ],
)
def test_what_is_not_there_is_named(name: str, message: str, store: Store) -> None:
    store.write("folder/a.txt", b"one")
    with pytest.raises(UserError, match=rf"data.sources: .*{message}"):
        check_source(parse_source(f"text:{store.url}/{name}"))


@pytest.mark.parametrize("source", ["lines:a.txt.gz", "parquet:a.parquet#body", "tar:a.tgz"])
def test_a_stream_that_ends_early_is_no_end_of_the_text(
    source: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range that is cut short, as by a connection that is reset, is requested again, and reported in the end."""
    kind, _, where = source.partition(":")
    store.write(where.partition("#")[0], FILES[source])
    parsed = parse_source(f"{kind}:{store.url}/{where}")
    expected, complete, cut = list(iter_documents(parsed)), store._fs.cat_file, [2]

    def short(path: str, start: int | None = None, end: int | None = None, **options: object) -> bytes:
        content = complete(path, start=start, end=end)
        cut[0] -= 1
        return content[:-1] if cut[0] >= 0 else content

    monkeypatch.setattr(type(store._fs), "cat_file", lambda self, *args, **options: short(*args, **options))
    assert list(iter_documents(parsed)) == expected
    cut[0] = 10**9
    monkeypatch.setattr("bertjax.storage.PATIENCE", 0.1)
    with pytest.raises(UserError, match=rf"{store.url}.*bytes arrived"):
        list(iter_documents(parsed))


def test_a_damaged_object_is_named(store: Store) -> None:
    store.write("a.txt.gz", FILES["lines:a.txt.gz"][:-20])
    with pytest.raises(UserError, match=rf"{store.url}/a.txt.gz: broken gzip after line \d+"):
        list(iter_documents(parse_source(f"lines:{store.url}/a.txt.gz")))


def test_memory_does_not_hold_the_object(store: Store) -> None:
    store.write("a.txt", b"x" * 100_000)
    file = _ObjectFile(f"{store.url}/a.txt")
    assert file.readinto(bytearray(1000)) == 1000 and not hasattr(file, "_content")
