"""Every promise of docs/promises.md names existing tests, and says which of them are long."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")


@functools.cache
def names_in(path: Path) -> dict[str, bool]:
    """Returns the functions of a file, and whether all cases of each are long."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    return {node.name: "pytest.mark.long" in map(ast.unparse, node.decorator_list) for node in functions}


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
        if not (ROOT / path).is_file() or name not in {"": False, **names_in(ROOT / path)}
    ]
    assert missing == []


def test_tests_of_the_long_suite_alone_are_marked() -> None:
    wrong = []
    for cell in PAGE.split("|"):
        for part, long in zip(cell.partition("long:")[::2], (False, True), strict=True):
            named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", part)
            wrong += [f"{path}::{name}" for path, name in named if names_in(ROOT / path)[name] != long]
    assert wrong == []
