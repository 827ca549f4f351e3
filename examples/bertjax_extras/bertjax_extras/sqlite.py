"""Tables of SQLite: `sqlite:corpus.db#body` as a corpus, `sqlite:labeled.db` as labeled examples."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from bertjax.extensions import SourceKind, UserError

SQLITE = SourceKind(
    "a database whose only table with the columns holds a document, or an example, per row",
    documents="bertjax_extras.sqlite:read_documents",
    rows="bertjax_extras.sqlite:read_rows",
    has_field=True,
)


def read_documents(path: str, field: str, errors: str, stats: Any) -> Iterator[str]:
    """Yields the texts of a column."""
    for _, (text,) in _select(path, [field]):
        yield text


def read_rows(path: str, columns: Sequence[tuple[str, str]], header: bool | None, errors: str) -> Iterator[Any]:
    """Yields the location and the values of every row."""
    for number, values in _select(path, [name for _, name in columns]):
        yield f"{path}: row {number}", list(values)


def _select(path: str, columns: list[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            fitting = [
                table
                for table in tables
                if {*columns} <= {row[1] for row in database.execute(f"PRAGMA table_info({_quoted(table)})")}
            ]
            if len(fitting) != 1:
                raise UserError(
                    f"{path}: {len(fitting)} tables have the columns {', '.join(columns)} (tables: {', '.join(tables)})"
                )
            chosen = ", ".join(map(_quoted, columns))
            yield from enumerate(database.execute(f"SELECT {chosen} FROM {_quoted(fitting[0])} ORDER BY rowid"), 1)
    except sqlite3.Error as error:
        raise UserError(f"{path}: cannot be read as a SQLite database: {error}") from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
