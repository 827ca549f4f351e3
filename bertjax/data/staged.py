"""Pipelines that follow each other: rows of another length, or more of them in a batch, from some cursor on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bertjax.data.pipeline import ALL_ROWS, Pipeline, Prefetcher
from bertjax.types import Batch


class Leg(NamedTuple):
    """The batches from cursor `start` on: the rows of `pipeline`'s stream from `first_row` on."""

    start: int
    first_row: int
    pipeline: Pipeline


class StagedPipeline:
    """One sequence of batches over several legs, the first of which starts at 0; any batch can be asked for."""

    def __init__(self, legs: Sequence[Leg]) -> None:
        self.legs = tuple(legs)

    @property
    def rows_per_epoch(self) -> dict[str, int]:
        """Rows of each source's first epoch, as the last leg reads it."""
        return self.legs[-1].pipeline.rows_per_epoch

    def batch(self, cursor: int, rows: slice = ALL_ROWS) -> Batch:
        """Batch number `cursor` >= 0, or only some of its rows (one host's share)."""
        leg = next(leg for leg in reversed(self.legs) if leg.start <= cursor)
        return leg.pipeline.batch(cursor - leg.start, rows, leg.first_row)

    def prefetch(self, start_cursor: int, stop_cursor: int, depth: int = 2, rows: slice = ALL_ROWS) -> Prefetcher:
        """Iterate over (cursor, batch) for the cursors [start, stop), up to `depth` batches made ahead by a thread."""
        return Prefetcher(lambda cursor: self.batch(cursor, rows), start_cursor, stop_cursor, depth)
