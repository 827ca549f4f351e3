"""Settings that drop documents from a corpus."""

from __future__ import annotations

import dataclasses
import unicodedata
from typing import Any

from bertjax.errors import UserError

SCRIPTS = (
    "arabic", "armenian", "bengali", "cyrillic", "devanagari", "ethiopic", "georgian", "greek", "gujarati", "gurmukhi",
    "han", "hangul", "hebrew", "hiragana", "kannada", "katakana", "khmer", "lao", "latin", "malayalam", "mongolian",
    "myanmar", "sinhala", "tamil", "telugu", "thai", "tibetan",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class FilterConfig:
    """`scripts` () looks at none; `script_share` is the least share of the letters that they must make up."""

    deduplicate: bool = False
    min_chars: int = 0
    max_chars: int | None = None
    scripts: tuple[str, ...] = ()
    script_share: float = 0.5

    def __post_init__(self) -> None:
        if self.min_chars < 0:
            raise UserError(f"data.min_chars must be at least 0, not {self.min_chars}")
        if self.max_chars is not None and self.max_chars < max(self.min_chars, 1):
            raise UserError(
                f"data.max_chars={self.max_chars} leaves no document: it must be at least 1 and data.min_chars="
                f"{self.min_chars}"
            )
        unknown = [script for script in self.scripts if script not in SCRIPTS]
        if unknown:
            raise UserError(f"data.scripts: {', '.join(unknown)} is none of {', '.join(SCRIPTS)}")
        if not 0.0 < self.script_share <= 1.0:
            raise UserError(f"data.script_share must lie above 0 and not above 1, not {self.script_share}")

    @property
    def fingerprint(self) -> list[Any]:
        """Equal for configs that leave out the same documents; empty for the one that leaves out none."""
        scripts = [sorted(set(self.scripts)), float(self.script_share), unicodedata.unidata_version]
        parts: list[Any] = [["duplicates"]] if self.deduplicate else []
        parts += [["min", self.min_chars]] if self.min_chars else []
        parts += [["max", self.max_chars]] if self.max_chars is not None else []
        return parts + ([["scripts", *scripts]] if self.scripts else [])
