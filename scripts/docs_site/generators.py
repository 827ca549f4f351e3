"""The generated parts of the documentation, by the names of their markers."""

from __future__ import annotations

from collections.abc import Callable

from commands import all_commands

GENERATORS: dict[str, Callable[[], str]] = {"commands": all_commands}
"""Functions that return Markdown."""
