"""Settings that drop documents from a corpus."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import unicodedata
from typing import Any

from bertjax.config.fields import Settings, is_missing, setting
from bertjax.errors import UserError

SCRIPTS = (
    "arabic", "armenian", "bengali", "cyrillic", "devanagari", "ethiopic", "georgian", "greek", "gujarati", "gurmukhi",
    "han", "hangul", "hebrew", "hiragana", "kannada", "katakana", "khmer", "lao", "latin", "malayalam", "mongolian",
    "myanmar", "sinhala", "tamil", "telugu", "thai", "tibetan",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class FilterConfig(Settings, group="data"):
    """Rules that drop documents before tokenizers are trained; `bertjax prepare` prints how many each rule drops."""

    deduplicate: bool = setting(False, help="Drop all but the first of the documents with the same text in a source.")
    near_duplicates: float | None = setting(
        None,
        at_least=0.5,
        at_most=1.0,
        help="Drop documents that share this part of their runs of five words with an earlier one in a source (Jaccard "
        "similarity, estimated by MinHash), such as 0.8; needs `bertjax[dedup]`. None: keep them.",
    )
    decontaminate: tuple[str, ...] = setting(
        (),
        help="Evaluation text, in the notation of `sources`, such as jsonl:squad/dev.jsonl#question: drop documents "
        "that share a run of 13 words with it.",
    )
    min_chars: int = setting(0, at_least=0, help="Drop shorter documents.")
    max_chars: int | None = setting(None, at_least=1, help="Drop longer documents; None: no limit.")
    scripts: tuple[str, ...] = setting(
        (), choices=SCRIPTS, help='Keep documents in these scripts only, such as "latin" or "han,hiragana"; (): any.'
    )
    script_share: float = setting(
        0.5, above=0.0, at_most=1.0, help="Share of a document's letters that must belong to `scripts`."
    )

    def check(self) -> None:
        if self.near_duplicates is not None and is_missing("rensa"):
            raise UserError("data.near_duplicates is set but rensa is missing; pip install 'bertjax[dedup]'")
        if self.max_chars is not None and self.max_chars < self.min_chars:
            raise UserError(
                f"data.max_chars={self.max_chars} leaves no document: it must be at least data.min_chars="
                f"{self.min_chars}"
            )

    @property
    def fingerprint(self) -> list[Any]:
        """Text that is equal for settings that drop the same documents; empty for those that drop none."""
        scripts = [sorted(set(self.scripts)), float(self.script_share), unicodedata.unidata_version]
        parts: list[Any] = [["duplicates"]] if self.deduplicate else []
        parts += [["near", self.near_duplicates, _near_version()]] if self.near_duplicates is not None else []
        parts += [["min", self.min_chars]] if self.min_chars else []
        parts += [["max", self.max_chars]] if self.max_chars is not None else []
        return parts + ([["scripts", *scripts]] if self.scripts else [])


def _near_version() -> str:
    """Returns the version of the library whose signatures decide; another one may drop other documents."""
    return importlib.metadata.version("rensa")
