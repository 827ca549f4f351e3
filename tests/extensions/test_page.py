"""`docs/extending.md`: its snippets are code of the examples, and every example has its declaration there."""

from __future__ import annotations

import re
from pathlib import Path

from extras_lab import EXTRAS

import bertjax.extensions

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")


def test_snippets_are_code_of_the_examples() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in [EXTRAS / "pyproject.toml", *EXTRAS.rglob("*.py")])
    snippets = re.findall(r"```(?:python|toml)\n(.*?)```", PAGE, re.DOTALL)
    assert len(snippets) == 7
    for snippet in snippets:
        assert [line for line in snippet.splitlines() if line not in code] == []


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in bertjax.extensions.__all__ if getattr(bertjax.extensions, name) is None] == []
    for name in ("Objective", "Attention", "Family", "EncoderDecoderFamily", "TaskKind", "SourceKind"):
        assert name in bertjax.extensions.__all__ and f"`{name}`" in PAGE
