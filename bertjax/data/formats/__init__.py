"""Example formats: how the text of a corpus becomes sequences. Formats know nothing of objectives.

Those with one example per sequence can be packed: several examples per sequence.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from bertjax.data.corpus import Corpus
from bertjax.data.counter_rng import IntArray
from bertjax.data.formats.base import EpochPlanCache, ExampleFormat, FormatSettings, PackableFormat
from bertjax.data.formats.contiguous import BlockFormat, SentenceFormat
from bertjax.data.formats.sentence_pairs import PairFormat
from bertjax.data.formats.xlnet_segments import StreamFormat, XLNetSegmentFormat
from bertjax.data.packing import WINDOW, PackPlan, count_packed_sequences, plan_packing
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


class PackedFormat(ExampleFormat):
    """Sequences of up to `settings.max_examples` examples each; every epoch packs them in another way.

    Attention, positions and losses separate the examples of a sequence by `segment_ids` and `example_positions`: the
    gradients of an example are those of the example alone.
    """

    def __init__(self, unpacked: PackableFormat, window: int) -> None:
        self.settings, self.unpacked = unpacked.settings, unpacked
        self._limits: dict[str, Any] = {
            "seq_len": unpacked.settings.seq_len,
            "max_examples": unpacked.settings.max_examples,
            "window": window,
        }
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()
        self._plans: EpochPlanCache[int, PackPlan] = EpochPlanCache(self._plan)

    def num_sequences(self, epoch: int) -> int:
        draw = epoch % self.period
        with self._lock:
            if draw not in self._counts:
                self._counts[draw] = count_packed_sequences(self.unpacked.lengths(draw), **self._limits)
            return self._counts[draw]

    @property
    def period(self) -> int:
        return self.unpacked.period

    def plan_ahead(self, epoch: int) -> None:
        self._plans.start(epoch)

    def sequences(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        numbers, counts = self._plans.get(epoch).find(indices)
        return self.unpacked.examples(epoch, numbers, counts)

    def padding(self, epoch: int) -> float:
        """Returns the share of padding among the token slots of an epoch."""
        slots = self.num_sequences(epoch) * self.settings.seq_len
        return 1.0 - float(self.unpacked.lengths(epoch).sum(dtype=np.int64)) / slots

    def _plan(self, epoch: int) -> PackPlan:
        return plan_packing(self.unpacked.lengths(epoch), **self._limits, seed=self.settings.seed, epoch=epoch)
