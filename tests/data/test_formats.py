"""Compressed, columnar and archived sources: the documents of plain files, bounded memory, damage explained."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertjax.compression import ENDINGS, bare_name, split_ending
from bertjax.config.source_files import check_source, source_files
from bertjax.config.sources import parse_source, parse_task_source
from bertjax.config.task import TaskConfig
from bertjax.data.columns import read_columns
from bertjax.data.readers import DocumentStats
from bertjax.data.sources import iter_documents, source_digest
from bertjax.errors import UserError
from bertjax.tasks.readers.examples import read_examples
from bertjax.tasks.readers.tables import read_rows


def zstd(data: bytes) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as file:
        file.write(data)
    return sink.getvalue().to_pybytes()


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


def documents(text: str, errors: str = "strict", reading: DocumentStats | None = None) -> list[str]:
    return list(iter_documents(parse_source(text), errors, reading))


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    path.write_bytes(COMPRESS.get(split_ending(path.name)[1], bytes)(content.getvalue()))


def test_endings() -> None:
    assert set(COMPRESS) == set(ENDINGS)
    assert (
        bare_name("A/B.JSONL.Zst") == "a/b.jsonl" and bare_name("a.tgz") == "a.tar" and bare_name("a.gzip") == "a.gzip"
    )


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_text_is_read_from_every_compression(tmp_path: Path, ending: str) -> None:
    """Twice compressed parts end to end are one file, as the tools of these formats write them."""
    text = "One.\r\nTwo.\n\nThree é.\n"
    for name, content in (("a.txt", text), ("a.jsonl", '{"text": "x"}\n{"meta": {"body": "y"}, "text": "z"}\n')):
        parts = [content[:9].encode(), content[9:].encode()]
        (tmp_path / (name + ending)).write_bytes(b"".join(map(COMPRESS[ending], parts)))
    assert documents(f"text:{tmp_path}/a.txt{ending}") == ["One.\nTwo.", "Three é."]
    assert documents(f"lines:{tmp_path}/*.txt*") == ["One.", "Two.", "Three é."]
    assert documents(f"files:{tmp_path}/a.txt{ending}") == ["One.\nTwo.\n\nThree é."]
    reading = DocumentStats()
    assert documents(f"jsonl:{tmp_path}/a.jsonl{ending}", reading=reading) == ["x", "z"]
    assert reading.bytes == (tmp_path / f"a.jsonl{ending}").stat().st_size
    with pytest.raises(UserError, match=rf"a.jsonl{ending}:1: no field 'meta.body' \(it has text\)"):
        documents(f"jsonl:{tmp_path}/a.jsonl{ending}#meta.body")
    with pytest.raises(UserError, match=f"write jsonl:{tmp_path}/a.jsonl{ending}#FIELD"):
        check_source(parse_source(f"text:{tmp_path}/a.jsonl{ending}"))


@pytest.mark.parametrize("ending", ENDINGS)
def test_labeled_data_are_read_from_every_compression(tmp_path: Path, ending: str) -> None:
    def pack(name: str, text: str) -> str:
        (tmp_path / (name + ending)).write_bytes(COMPRESS[ending](text.encode()))
        return f"{tmp_path / name}{ending}"

    for kind, text in (
        ("tsv", "text\tlabel\nx\t1\n"),
        ("csv", "text,label\nx,1\n"),
        ("jsonl", '{"text":"x","label":1}'),
    ):
        config = TaskConfig("classification", (f"{kind}:{pack(f'a.{kind}', text)}",))
        result: Any = read_examples(config)
        assert (result.texts, result.labels) == (["x"], ["1"])
    pack("p.en", "one\n"), pack("p.de", "eins\n")
    rows = read_rows(
        parse_task_source(f"parallel:{tmp_path}/p:en-de", "task.train"), [("a", "source"), ("b", "target")]
    )
    assert list(rows) == [(f"{tmp_path}/p.en{ending}:1", ["one", "eins"])]
    words: Any = read_examples(TaskConfig("tokens", (f"conll:{pack('w.txt', 'a O' + chr(10))}",)))
    assert words.words == [["a"]]
    squad = {"id": "1", "question": "q", "answers": [{"text": "c", "answer_start": 0}]}
    text = json.dumps({"data": [{"paragraphs": [{"context": "c", "qas": [squad]}]}]})
    assert len(read_examples(TaskConfig("qa", (f"squad:{pack('s.json', text)}",), max_length=256))) == 1


@pytest.mark.parametrize("ending", ENDINGS)
def test_damage_names_file_and_line(tmp_path: Path, ending: str) -> None:
    path, name = tmp_path / f"a.txt{ending}", {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}[ending]
    whole = COMPRESS[ending](b"".join(b"%d line\n" % (i * 7919 % 9973) for i in range(20_000)))
    for broken in (whole[: len(whole) // 2], whole[:-2], b"plain text", b""):
        path.write_bytes(broken)
        with pytest.raises(
            UserError, match=rf"^{path}: broken {name} after line \d+ \(.+\); copy or compress"
        ) as caught:
            documents(f"lines:{path}")
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(UserError, match="no such file"):
        documents(f"lines:{path}")


@pytest.mark.parametrize("ending", ENDINGS)
def test_several_streams_are_read_to_the_end_or_refused(tmp_path: Path, ending: str) -> None:
    """Three of twenty documents each, zeros between them as the format of xz allows, damage where one begins."""
    path, texts = tmp_path / f"a.txt{ending}", [f"document {i}" for i in range(60)]
    streams = [COMPRESS[ending]("".join(f"{each}\n" for each in texts[i : i + 20]).encode()) for i in (0, 20, 40)]
    for padding in (b"", b"\0" * 4, b"\0" * (1 << 18)):
        path.write_bytes(padding.join([*streams, b""]))
        if padding and ending == ".zst":  # its frames have no padding
            with pytest.raises(UserError, match=f"^{path}: broken zstd"):
                documents(f"lines:{path}")
        else:
            assert documents(f"lines:{path}") == texts
    begin = len(streams[0])
    whole = b"".join(streams)
    damaged = [whole[: begin + at] + bytes([whole[begin + at] ^ 1]) + whole[begin + at + 1 :] for at in range(6)]
    for broken in (*damaged, whole[: begin + 3], whole + b"garbage"):
        path.write_bytes(broken)
        with contextlib.suppress(UserError):  # some bits of a header are of no importance
            assert documents(f"lines:{path}") == texts
    for broken in (damaged[0], whole[: begin + 3], whole + b"garbage"):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=rf"^{path}: broken \w+ after line \d+ \(.+\); copy or compress"):
            documents(f"lines:{path}")


def test_a_module_that_this_python_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(b"x"))
    monkeypatch.setitem(__import__("sys").modules, "lzma", None)
    with pytest.raises(UserError, match=r"a.txt.xz: broken xz .*this Python has no module lzma"):
        documents(f"text:{tmp_path}/a.txt.xz")


def write_table(path: Path, columns: dict[str, list[Any]], rows: int) -> None:
    """Writes a table as parquet, as the files of an Arrow stream or as an Arrow file, with groups of that many rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows, compression="none", use_dictionary=False)
        return
    writer = pa.ipc.new_file if path.stem == "file" else pa.ipc.new_stream
    with writer(path, table.schema) as out:
        out.write_table(table, max_chunksize=rows)


TABLES = ("a.parquet", "stream.arrow", "file.arrow")


@pytest.mark.parametrize("name", TABLES)
def test_columns_of_tables(tmp_path: Path, name: str) -> None:
    texts = [f"text {i}" for i in range(600)]
    nested = [{"en": f"en {i}", "de": None} for i in range(600)]
    path, kind = tmp_path / name, "parquet" if name.endswith("parquet") else "arrow"
    write_table(path, {"text": texts, "n": [*range(600)], "translation": nested}, 290)
    reading = DocumentStats()
    assert documents(f"{kind}:{path}", reading=reading) == texts and reading.bytes == path.stat().st_size
    assert documents(f"{kind}:{tmp_path}/*#translation.en") == [each["en"] for each in nested]
    for field, message in (
        ("n", "row 1: field 'n' holds int"),
        ("translation.de", "row 1: .*nothing"),
        ("translation.fr", r"no column 'translation.fr' \(it has text, n, translation\); name yours with #FIELD"),
    ):
        with pytest.raises(UserError, match=f"{path}: {message}"):
            documents(f"{kind}:{path}#{field}")
    whole = path.read_bytes()
    for broken in (whole[:-8], whole[: len(whole) // 2], b"", b"x" * 999):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=rf"{path}: cannot be read as \w+ after row \d+: ") as caught:
            documents(f"{kind}:{path}")
        assert "\n" not in str(caught.value)


def test_parquet_is_read_by_parts_of_row_groups(tmp_path: Path) -> None:
    """Four row groups of 4 MB, and a column that is not read: memory holds a few pages."""
    import pyarrow as pa

    texts = [f"{i:08d}" * 512 for i in range(4096)]
    write_table(tmp_path / "a.parquet", {"text": texts, "other": texts[::-1]}, 1024)
    before, maximum = pa.total_allocated_bytes(), 0
    for row in read_columns(str(tmp_path / "a.parquet"), ["text"], ""):
        maximum = max(maximum, pa.total_allocated_bytes() - before)
        assert row.values[0] == texts[row.number - 1]
    assert row.number == 4096 and maximum < 8 << 20


def test_folders_of_save_to_disk(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = {"text": [f"row {i}" for i in range(9)], "label": [i % 2 for i in range(9)]}
    data = datasets.Dataset.from_dict(rows, features)
    datasets.DatasetDict({"train": data.select([8, 1, 2]), "test": data}).save_to_disk(
        str(tmp_path / "both"), num_shards={"train": 1, "test": 3}
    )
    assert documents(f"arrow:{tmp_path}/both/test") == rows["text"]
    assert documents(f"arrow:{tmp_path}/both/train/@2") == ["row 8", "row 1", "row 2"]
    source = parse_source(f"arrow:{tmp_path}/both/test")
    assert [Path(path).name for path in source_files(source)] == [f"data-{i:05d}-of-00003.arrow" for i in range(3)]
    digest = source_digest(source)
    labeled: Any = read_examples(TaskConfig("classification", (f"arrow:{tmp_path}/both/train",)))
    assert labeled.labels == ["no", "yes", "no"]
    data.to_parquet(str(tmp_path / "a.parquet"))
    labeled = read_examples(TaskConfig("classification", (f"parquet:{tmp_path}/a.parquet",)))
    assert labeled.texts == rows["text"] and labeled.labels[:2] == ["no", "yes"]
    with pytest.raises(UserError, match=r"a.parquet: no field 'x' \(it has text, label\); set task.text_column to one"):
        read_examples(TaskConfig("classification", (f"parquet:{tmp_path}/a.parquet",), text_column="x"))
    with pytest.raises(UserError, match=r"'arrow:.*both': the folder holds the splits train, test; name one, such as"):
        check_source(parse_source(f"arrow:{tmp_path}/both"))
    with pytest.raises(UserError, match=r"is a directory; name its files: arrow:.*\*\*/\*.arrow"):
        check_source(parse_source(f"arrow:{tmp_path}"))
    next((tmp_path / "both/test").glob("data-00001*")).unlink()
    with pytest.raises(UserError, match=r"data-00001-of-00003.arrow is missing, which state.json"):
        source_digest(source)
    (tmp_path / "both/test/state.json").write_text("{")
    with pytest.raises(UserError, match=r"state.json cannot be read: Expecting"):
        check_source(source)
    assert digest


MEMBERS = {
    "s/0001.txt": b"\xef\xbb\xbfOne.\r\n\r\nMore.",
    "s/0001.json": b'{"text": "json 1",\n "meta": {"body": "b1"}}',
    "s/0001.cls": b"1",
    "s/.hidden.txt": b"no",
    "s/0002.txt.gz": gzip.compress(b"Two."),
    "s/0002.json": b'{"text": "json 2", "meta": {"body": "b2"}}',
    "s/many.jsonl.xz": lzma.compress(b'{"text": "l1"}\n\n{"text": "l2"}\n'),
    "s/" + "long" * 60 + ".txt": b"Three.",
}


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tar.zst", "a.tgz"])
def test_members_of_archives(tmp_path: Path, name: str) -> None:
    write_tar(tmp_path / name, MEMBERS)
    reading = DocumentStats()
    assert documents(f"tar:{tmp_path}/{name}", reading=reading) == ["One.\n\nMore.", "Two.", "Three."]
    assert reading.bytes == (tmp_path / name).stat().st_size
    assert documents(f"tar:{tmp_path}/*#json@3") == ["json 1", "json 2"]
    assert documents(f"tar:{tmp_path}/*#json.meta.body") == ["b1", "b2"]
    assert documents(f"tar:{tmp_path}/*#jsonl") == ["l1", "l2"]
    with pytest.raises(UserError, match=rf"{name}/s/0001.json: no field 'x' \(it has text, meta\)"):
        documents(f"tar:{tmp_path}/{name}#json.x")
    with pytest.raises(
        UserError, match=rf"{name}: no member ends in .csv \(some end in .cls, .json, .*name yours with"
    ):
        documents(f"tar:{tmp_path}/{name}#csv")
    with pytest.raises(UserError, match=f"write tar:{tmp_path}/{name}#FIELD"):
        check_source(parse_source(f"text:{tmp_path}/{name}"))


def test_damaged_archives_are_no_short_ones(tmp_path: Path) -> None:
    """`tarfile` ends silently at a header that is damaged or missing, and before bytes after the end."""
    path = tmp_path / "a.tar"
    write_tar(path, {f"{i}.txt": b"%d" % i * 600 for i in range(4)})
    whole = bytearray(path.read_bytes())
    header = bytearray(whole)
    header[2 * 1536 + 3] ^= 1
    for broken, last in (
        (header, "1.txt"),
        (whole[: 2 * 1536], "1.txt"),
        (whole[: 2 * 1536 + 700], "1.txt"),
        (whole + whole, "3.txt"),
        (b"", "the start"),
        (b"no archive" * 99, "the start"),
    ):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=rf"^{path}: broken tar after {last} \(.+\); copy or pack it again"):
            documents(f"tar:{path}")
    packed = tmp_path / "b.tar.zst"
    packed.write_bytes(zstd(bytes(whole))[:-2])
    with pytest.raises(UserError, match=rf"{packed}.*: broken zstd after "):
        documents(f"tar:{packed}")
    write_tar(path, {"a.txt": b"fine", "b.txt": b"ok\n\xff"})
    with pytest.raises(UserError, match=r"a.tar/b.txt:2: invalid UTF-8 .*data.encoding_errors='replace'"):
        documents(f"tar:{path}")
    reading = DocumentStats()
    assert documents(f"tar:{path}", "replace", reading) == ["fine", "ok\n\ufffd"] and reading.invalid_lines == 1


def test_files_of_a_hub_data_set(tmp_path: Path) -> None:
    """Read by the library's builder of JSON files, so without a network."""
    for number in range(3):
        record = {"text": f"t{number}", "m": {"b": f"m{number}"}}
        record = {"text": f"t{number}", "m": {"b": f"m{number}"}}
        (tmp_path / f"part-{number}.jsonl.gz").write_bytes(gzip.compress(json.dumps(record).encode()))
    where = f"hub:json:data_files={tmp_path}/part-[01].jsonl.gz"
    assert parse_source(where).hub_parts.arguments == {"data_files": f"{tmp_path}/part-[01].jsonl.gz"}
    assert documents(where) == ["t0", "t1"] and documents(f"{where}:train#m.b@2") == ["m0", "m1"]
    one, other = (source_digest(parse_source(f"hub:json:data_files={tmp_path}/part-{i}.jsonl.gz")) for i in (0, 1))
    assert one != other
    rows = read_rows(parse_task_source(where, "task.train"), [("task.text_column", "text")])
    assert [values for _, values in rows] == [["t0"], ["t1"]]


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "parquet", "hub"])
def test_the_only_column_of_texts_is_found(tmp_path: Path, kind: str) -> None:
    """Besides label and id; two such columns, and one that holds no text, are not guessed."""
    import datasets

    def write(**columns: list[Any]) -> TaskConfig:
        data, path = datasets.Dataset.from_dict(columns), str(tmp_path / f"a.{kind}")
        if kind in ("jsonl", "hub"):
            data.to_json(path)
        elif kind == "parquet":
            data.to_parquet(path)
        else:
            data.to_csv(path, sep="\t" if kind == "tsv" else ",", index=False)
        where = f"json:data_files={path}:train" if kind == "hub" else path
        return TaskConfig("classification", (f"{kind}:{where}",), **settings)

    settings: dict[str, Any] = {}
    result: Any = read_examples(write(idx=[5, 6], sentence=["good", "bad"], label=["p", "n"]))
    assert (result.texts, result.labels) == (["good", "bad"], ["p", "n"])
    two = write(review=["good"], title=["t"], label=["p"])
    with pytest.raises(UserError, match=r"(column|field) 'text'.*task.text_column|'text'"):
        read_examples(two)
    settings = {"pair_column": "title"}
    pairs: Any = read_examples(write(title=["t"], review=["good"], label=["p"]))
    assert (pairs.texts, pairs.pairs) == (["good"], ["t"])
    settings = {"text_column": "summary"}
    with pytest.raises(UserError, match="summary"):
        read_examples(write(review=["good"], label=["p"]))


def test_the_first_record_chooses_the_column_of_all(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x", "label": "p"}\n{"review": "y", "label": "n"}\n')
    with pytest.raises(UserError, match=r"a.jsonl:2: no field 'text' \(it has review, label\)"):
        read_examples(TaskConfig("classification", (f"jsonl:{path}",)))
