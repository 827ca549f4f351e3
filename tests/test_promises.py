"""Every promise of docs/promises.md names existing tests, and says which of them are long or weekly."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARKS = ("long", "weekly")
PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")


@functools.cache
def names_in(path: Path) -> dict[str, str]:
    """Returns the functions of a file, and the mark of all cases of each: `long`, `weekly` or none."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    marks = {node.name: [*map(ast.unparse, node.decorator_list)] for node in functions}
    return {
        name: next((each for each in MARKS if f"pytest.mark.{each}" in decorators), "")
        for name, decorators in marks.items()
    }


def test_every_promise_has_a_row_with_a_test() -> None:
    rows = re.findall(r"^\| (P\d+) \|([^|]+)\|([^|]+)\|([^|]*)\|$", PAGE, flags=re.MULTILINE)
    assert [number for number, *_ in rows] == [f"P{number}" for number in range(1, 35)]
    assert all("tests/" in tests or "those of P" in tests for _, _, tests, _ in rows)


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 90
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file() or name not in {"", *names_in(ROOT / path)}
    ]
    assert missing == []


def test_tests_outside_the_ordinary_suite_are_marked() -> None:
    wrong = []
    for cell in PAGE.split("|"):
        parts = re.split(rf"({'|'.join(MARKS)}):", cell)
        for mark, part in zip(["", *parts[1::2]], parts[::2], strict=True):
            named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", part)
            wrong += [f"{path}::{name}" for path, name in named if names_in(ROOT / path)[name] != mark]
    assert wrong == []


def test_no_promise_is_left_to_the_weekly_tests() -> None:
    rows = [line for line in PAGE.splitlines() if "`tests/" in line]
    assert len(rows) > 40 and [row for row in rows if "`tests/" not in row.partition("weekly:")[0]] == []
