"""Random bytes as corpora and as prepared corpora: an explained error or an exact load, never a traceback (P28).

Hypothesis stops an example that takes longer than its deadline, so a hang is also a failure.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prepare_lab import documents, prepare, tokenizer

from bertjax.config.sources import parse_source
from bertjax.data.corpus import CorpusSplit, find_damage, open_corpus
from bertjax.data.parts import PartStore
from bertjax.data.readers import DocumentStats
from bertjax.data.sources import iter_documents
from bertjax.errors import UserError

FAST = settings(
    max_examples=60,
    deadline=timedelta(seconds=10),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FRAGMENTS = st.sampled_from(
    [b"\n", b"\n\n", b"\r\n", b"\0", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"word. ", b"\xe5\x9b\xbe"]  # noqa: RUF005
    + [b'{"text": "', b'"}\n', b'{"text": null}', b"[1", b'{"text": "\\ud800"}\n', b'{"text": "fine"}\n', b"NaN"]
)
BYTES = st.lists(st.one_of(FRAGMENTS, st.binary(max_size=8)), max_size=20).map(b"".join)


def read_or_explained(source: str, errors: str) -> None:
    reading = DocumentStats()
    try:
        result = list(iter_documents(parse_source(source), errors, reading))
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
        return
    assert len(result) == reading.documents
    for document in result:
        assert document.strip() and document.encode().decode() == document
    if result:
        lengths, ids = tokenizer().encode_flat(result)
        assert lengths.sum() == len(ids)


@FAST
@given(BYTES, st.sampled_from(["text", "lines", "files", "jsonl"]), st.sampled_from(["strict", "replace"]))
def test_any_bytes_are_read_or_explained(raw: bytes, kind: str, errors: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("a.jsonl" if kind == "jsonl" else "a.txt")
        path.write_bytes(raw)
        read_or_explained(f"{kind}:{path}", errors)


@FAST
@given(BYTES, st.integers(0, 80), st.integers(0, 255), st.booleans())
def test_any_gzip_file_is_read_or_explained(raw: bytes, position: int, value: int, cut: bool) -> None:
    packed = bytearray(gzip.compress(raw))
    position %= len(packed)
    packed[position] ^= value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt.gz"
        path.write_bytes(bytes(packed[:position] if cut else packed))
        read_or_explained(f"lines:{path}", "replace")


@settings(FAST, max_examples=15)
@given(st.binary(max_size=64), st.integers(0, 400))
def test_any_parquet_file_is_read_or_explained(raw: bytes, position: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        pq.write_table(pa.table({"text": ["one", "two"]}), path)
        whole = path.read_bytes()
        path.write_bytes(whole[: position % len(whole)] + raw + whole[position % len(whole) + len(raw) :])
        read_or_explained(f"parquet:{path}", "strict")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield prepare(tmp_path_factory.mktemp("cache"), documents(60)).folder


def contents(splits: dict[str, CorpusSplit]) -> list[list[int]]:
    opened = {name: split.open() for name, split in splits.items()}
    return [
        np.concatenate(
            [np.zeros(0, int), *split.read(split.document_tokens[:-1], np.diff(split.document_tokens))]
        ).tolist()
        for split in opened.values()
    ]


@FAST
@given(st.data())
def test_a_mutated_corpus_is_opened_exactly_or_explained(corpus: Path, data: st.DataObject) -> None:
    """Metadata, sizes and digests are checked."""
    expected = contents(open_corpus(corpus))
    names = sorted(str(path.relative_to(corpus)) for path in corpus.rglob("*") if path.is_file())
    name = data.draw(st.sampled_from(names))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / corpus.name
        shutil.copytree(corpus, copy)
        whole = (copy / name).read_bytes()
        way = data.draw(st.sampled_from(["cut", "longer", "replaced", "gone", "zeros"]))
        position = data.draw(st.integers(0, max(len(whole) - 1, 0)))
        noise = data.draw(st.binary(min_size=1, max_size=16))
        made = {
            "cut": whole[:position],
            "longer": whole[:position] + noise + whole[position:],
            "replaced": whole[:position] + noise + whole[position + len(noise) :],
            "zeros": bytes(len(whole)),
        }
        if way == "gone":
            (copy / name).unlink()
        else:
            (copy / name).write_bytes(made[way])
        try:
            result = contents(open_corpus(copy))
        except UserError as error:
            assert "\n" not in str(error) and "prepared corpus" in str(error)
            return
        assert result == expected


@settings(FAST, max_examples=30)
@given(BYTES)
def test_any_metadata_is_read_or_named_as_damage(corpus: Path, raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "meta.json").write_bytes(raw)
        assert find_damage(Path(folder)) is not None
        values = json.loads((corpus / "meta.json").read_text())
        for key in values:
            (Path(folder) / "meta.json").write_text(json.dumps(values | {key: raw.decode(errors="replace")}))
            assert find_damage(Path(folder)) is not None


@FAST
@given(st.binary(max_size=200), st.integers(0, 3))
def test_any_file_among_the_parts_is_left_out(raw: bytes, number: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"{number:08d}.npz").write_bytes(raw)
        parts = PartStore(Path(folder), 1 << 20)
        assert len(parts) == parts.documents == 0 and not list(Path(folder).iterdir())
