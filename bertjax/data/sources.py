"""Streams of documents from sources `KIND:WHERE[#FIELD][@WEIGHT]`.

Hub data sets stream through `datasets`; files have their readers in `readers.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from bertjax.config.registry import import_object
from bertjax.config.source_files import check_source, source_entries, source_files
from bertjax.config.sources import HubData, Source, parse_source
from bertjax.data.readers import DocumentStats, clean_documents, field_text
from bertjax.errors import UserError
from bertjax.io.hub import explain_hub_error
from bertjax.storage import is_url


def iter_documents(source: Source, errors: str = "strict", reading: DocumentStats | None = None) -> Iterator[str]:
    """Yields the non-empty documents of a source in order, one at a time.

    Trailing whitespace of every line and control characters are removed; newlines stay, because a line is a paragraph
    or a sentence.

    Args:
        source: Parsed source.
        errors: `strict` (invalid UTF-8 raises) or `replace`.
        reading: Counts, updated while reading.

    Raises:
        UserError: A file cannot be read or is invalid; the message names file and line.
    """
    if errors not in ("strict", "replace"):
        raise UserError(f"data.encoding_errors must be strict or replace, not {errors!r}")
    reading = DocumentStats() if reading is None else reading
    check_source(source)
    read = import_object(source.spec.documents, f"{source.key}: {source.text!r}")
    paths = source_files(source) if source.spec.is_file else [source.where]
    results: Iterator[str] = (text for path in paths for text in read(path, source.field, errors, reading))
    yield from clean_documents(results, reading)


def read_builtin(where: str, field: str | None, errors: str, reading: DocumentStats) -> Iterator[str]:
    """Yields the documents of a corpus that comes with Python. Args: as of `read_hub`."""
    from bertjax.data.builtin import iter_python_docs

    yield from iter_python_docs()


def builtin_digest(where: str) -> bytes:
    """Returns the digests of the documents."""
    documents = iter_documents(parse_source(f"builtin:{where}"))
    return b"".join(hashlib.sha256(document.encode()).digest() for document in documents)


def read_hub(where: str, field: str | None, errors: str, reading: DocumentStats) -> Iterator[str]:
    """Yields a field of every row of a Hugging Face data set, as a stream.

    Args:
        where: NAME[:CONFIG[:SPLIT]], CONFIG or data_files=PATTERN.
        field: Name of the field.
        errors: `strict` or `replace`.
        reading: Counts, updated.

    Raises:
        UserError: The Hub has no such data, or cannot be reached.
    """
    data = parse_source(f"hub:{where}").hub_parts
    rows, row = open_hub_data(data, streaming=True), 0
    try:
        for row, record in enumerate(rows, 1):
            yield field_text(record, f"hub data set {data.name}, row {row}", field, errors, reading)
    except (UserError, GeneratorExit):
        raise
    except Exception as error:  # every layer below has its own errors: network, unknown name, broken file
        raise UserError(_explain_hub_error(data, row, error)) from error


def open_hub_data(data: HubData, streaming: bool = False) -> Any:
    """Returns the `datasets.Dataset` of a split, streamed or in the cache; raises `UserError` if there is none."""
    import datasets

    try:
        return datasets.load_dataset(data.name, split=data.split, streaming=streaming, **data.arguments)
    except Exception as error:
        raise UserError(_explain_hub_error(data, 0, error)) from error


def _explain_hub_error(data: HubData, row: int, error: Exception) -> str:
    when = f"after row {row}" if row else "at the start"
    advice = "check the name, the config, the split and the network, or give local files"
    return f"{data} failed {when}: {explain_hub_error(error)}; {advice}"


def source_digest(source: Source) -> str:
    """Returns the SHA-256 (hex) of a source's content: equal for equal bytes under any path.

    Hub data sets are identified by name, config, split and the revision that the hub reports, without loading them, and
    objects of a store by the last part of the name, size and tag (an ETag or MD5): an ETag may differ for equal bytes.
    """
    total = hashlib.sha256(f"{source.kind}\0{source.field or ''}\0".encode())
    if not source.spec.is_file:
        total.update(import_object(source.spec.digest, f"{source.key}: {source.text!r}")(source.where))
    for path, entry in source_entries(source).items():
        is_object = is_url(path)
        total.update(repr((path.rpartition("/")[2], *entry)).encode() if is_object else _file_digest(path))
    return total.hexdigest()


def _file_digest(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def hub_digest(where: str) -> bytes:
    """Returns name, config, split and the revision that the hub reports.

    Raises:
        UserError: the Hub has no such data, or cannot be reached.
    """
    import datasets

    data = parse_source(f"hub:{where}").hub_parts
    try:
        builder = datasets.load_dataset_builder(data.name, **data.arguments)
    except Exception as error:
        raise UserError(_explain_hub_error(data, 0, error)) from error
    return repr((*data, str(builder.base_path), str(builder.hash))).encode()


def is_held_out(document: str, fraction: float) -> bool:
    """Returns whether a document belongs to the validation split, a function of its text alone."""
    return held_out_number(document) < fraction * 2**64


def held_out_number(document: str) -> int:
    """Returns the number below 2^64 of a text; documents with the least ones are held out."""
    digest = hashlib.blake2b(document.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
