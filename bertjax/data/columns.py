"""Columns of parquet and Arrow files, a few rows at a time: the memory does not grow with files or row groups."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from bertjax.errors import UserError, comma_list, one_line
from bertjax.storage import is_url, open_binary, size_of

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 256
_BUFFER_BYTES = 1 << 20
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class Row(NamedTuple):
    """Values of the chosen columns, the number of the row from 1, and the bytes of the file up to its batch."""

    number: int
    values: tuple[Any, ...]
    bytes: int


class _Table(NamedTuple):
    schema: pa.Schema
    batches: Callable[[list[str]], Iterator[pa.RecordBatch]]
    """Yields batches that have at least the columns with these names, for `a.b` of a struct the column `a`."""
    share: Callable[[int], float]
    """Returns the share of the file that was read at a number of rows."""


def read_schema(path: str) -> pa.Schema:
    """Returns the schema of a file; raises `UserError` where it is not what its ending says."""
    with _errors(path, [0]), _open(path) as table:
        return table.schema


def read_columns(path: str, names: Sequence[str], advice: str) -> Iterator[Row]:
    """Yields the rows of a parquet file, or of an Arrow file of another ending; nothing else is decoded.

    Args:
        path: The file.
        names: Names of the columns; `translation.en` is a field of a struct.
        advice: What to do where a column is missing, for the message.

    Raises:
        UserError: The file cannot be read, or it lacks a column; names file and row.
    """
    done = [0]
    with _errors(path, done), _open(path) as table:
        size = size_of(path)
        for name in names:
            if not _has(table.schema, name):
                raise UserError(f"{path}: no column {name!r} (it has {comma_list(table.schema.names, 8)}); {advice}")
        for batch in table.batches(list(names)):
            position = int(size * table.share(done[0]))
            for values in zip(*(_column(batch, name).to_pylist() for name in names), strict=True):
                done[0] += 1
                yield Row(done[0], values, position)


@contextlib.contextmanager
def _errors(path: str, done: list[int]) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        kind = "parquet" if _is_parquet(path) else "Arrow"
        reason = getattr(error, "strerror", None) or one_line(error)
        raise UserError(f"{path}: cannot be read as {kind} after row {done[0]}: {reason}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: invalid UTF-8 after row {done[0]}; write the column again as text") from error


def _is_parquet(path: str) -> bool:
    return path.lower().endswith(".parquet")


@contextlib.contextmanager
def _open(path: str) -> Iterator[_Table]:
    import pyarrow as pa

    if _is_parquet(path):
        from pyarrow import parquet

        # Without these two it reads the chosen columns of the whole file ahead.
        with (
            _stored(path) as stored,
            parquet.ParquetFile(stored or path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file,
        ):
            rows = max(file.metadata.num_rows, 1)
            yield _Table(file.schema_arrow, lambda names: file.iter_batches(_ROWS, columns=names), lambda n: n / rows)
        return
    with _stored(path) as stored, pa.PythonFile(stored) if stored else pa.memory_map(path) as file:
        size = max(file.size(), 1)
        if file.read(6) == b"ARROW1":
            table = pa.ipc.open_file(file)
            batches = (table.get_batch(number) for number in range(table.num_record_batches))
        else:
            file.seek(max(size - len(_END_OF_STREAM), 0))
            if file.read() != _END_OF_STREAM:
                raise pa.ArrowInvalid("its end is missing: copy or save it again")
            file.seek(0)
            batches = table = pa.ipc.open_stream(file)
        parts = (batch.slice(begin, _ROWS) for batch in batches for begin in range(0, batch.num_rows, _ROWS))
        yield _Table(table.schema, lambda _: parts, lambda _: file.tell() / size)


@contextlib.contextmanager
def _stored(path: str) -> Iterator[IO[bytes] | None]:
    """Opens an object; pyarrow opens local files itself, which needs no Python per read."""
    with contextlib.nullcontext() if not is_url(path) else open_binary(path, _BUFFER_BYTES) as file:
        yield file


def _has(schema: pa.Schema, name: str) -> bool:
    if name in schema.names:
        return True
    first, *rest = name.split(".")
    inner: Any = schema.field(first).type if rest and first in schema.names else None
    for each in rest:
        index = getattr(inner, "get_field_index", lambda _: -1)(each)
        inner = inner.field(index).type if index >= 0 else None
    return inner is not None


def _column(batch: pa.RecordBatch, name: str) -> Any:
    if name in batch.schema.names:
        return batch.column(name)
    from pyarrow import compute

    first, *rest = name.split(".")
    return compute.struct_field(batch.column(first), rest)
