"""Example formats: how the text of a corpus becomes sequences. Formats know nothing of objectives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from bertjax.data.corpus import Corpus
from bertjax.data.formats.base import ExampleFormat, FormatSettings, PackableFormat
from bertjax.data.formats.contiguous import BlockFormat, SentenceFormat
from bertjax.data.formats.packed import PackedFormat
from bertjax.data.formats.sentence_pairs import PairFormat
from bertjax.data.formats.xlnet_segments import StreamFormat, XLNetSegmentFormat
from bertjax.data.packing import WINDOW
from bertjax.errors import UserError
from bertjax.types import Vocabulary

PACKABLE: dict[str, Callable[[Corpus, FormatSettings], PackableFormat]] = {
    "block": BlockFormat,
    "full_sentences": functools.partial(SentenceFormat, crossing=True),
    "doc_sentences": functools.partial(SentenceFormat, crossing=False),
    "nsp_pairs": functools.partial(PairFormat, rule="nsp"),
    "sop_pairs": functools.partial(PairFormat, rule="sop"),
}
"""Formats with one example per sequence, which can be packed."""

FORMATS: dict[str, Callable[[Corpus, FormatSettings], ExampleFormat]] = {
    **PACKABLE,
    "segments": XLNetSegmentFormat,
    "stream": StreamFormat,
}

__all__ = ["FORMATS", "ExampleFormat", "FormatSettings", "make_format"]


def make_format(
    name: str,
    corpus: Corpus,
    *,
    special_ids: Vocabulary,
    packing: str = "none",
    pack_window: int = WINDOW,
    max_examples: int = 1,
    **settings: Any,
) -> ExampleFormat:
    """Makes a format over a corpus.

    Args:
        name: a key of `FORMATS`.
        corpus: the tokenized text.
        special_ids: a vocabulary, or a tokenizer.
        packing: "none", or "best_fit" for several examples per sequence.
        pack_window: examples that are packed together.
        max_examples: most examples per packed sequence (E).
        **settings: the other fields of `FormatSettings`.

    Raises:
        UserError: the name is unknown, a setting is out of range, or the tokenizer lacks a special token.
    """
    if name not in FORMATS:
        raise UserError(f"data.example_format {name!r} is unknown; known are {', '.join(sorted(FORMATS))}")
    for role in ("pad_id", "cls_id", "sep_id"):
        if getattr(special_ids, role) < 0:
            raise UserError(f"data.example_format {name} needs a tokenizer with a {role[:3]} token; this one has none")
    chosen = FormatSettings(
        pad_id=special_ids.pad_id,
        cls_id=special_ids.cls_id,
        sep_id=special_ids.sep_id,
        max_examples=1 if packing == "none" else max_examples,
        **settings,
    )
    if chosen.dupe_factor < 1:
        raise UserError(f"dupe_factor must be at least 1, not {chosen.dupe_factor}")
    if not 0 <= chosen.short_seq_prob <= 1:
        raise UserError(f"short_seq_prob must lie in [0, 1], not {chosen.short_seq_prob}")
    if packing == "none":
        return FORMATS[name](corpus, chosen)
    if packing != "best_fit":
        raise UserError(f"data.packing must be none or best_fit, not {packing!r}")
    if name not in PACKABLE:
        raise UserError(f"data.packing=best_fit packs {', '.join(PACKABLE)}; sequences of {name} are full: set none")
    if min(max_examples, pack_window) < 1:
        raise UserError(f"data.pack_examples and data.pack_window must be at least 1: {max_examples}, {pack_window}")
    return PackedFormat(PACKABLE[name](corpus, chosen), pack_window)
