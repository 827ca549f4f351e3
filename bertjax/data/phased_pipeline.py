"""Pipelines that follow each other: rows of another length, or more of them in a batch, from some cursor on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bertjax.data.pipeline import ALL_SEQUENCES, Pipeline, Prefetcher, ProcessShare, SequenceIndex, all_sequences
from bertjax.types import Batch


class PhaseBatches(NamedTuple):
    """The batches from cursor `start` on: the rows of `pipeline`'s stream from `first_row` on."""

    start: int
    first_sequence: int
    pipeline: Pipeline


class PhasedPipeline:
    """One sequence of batches over several legs, the first of which starts at 0; any batch can be asked for.

    What is prefetched is the `share` of this process: each reads only its own rows of the global batches.
    """

    def __init__(self, phases: Sequence[PhaseBatches], share: ProcessShare = all_sequences) -> None:
        self.phases, self.share = tuple(phases), share

    @property
    def rows_per_epoch(self) -> dict[str, int]:
        """Rows of each source's first epoch, as the last leg reads it."""
        return self.phases[-1].pipeline.rows_per_epoch

    def batch(self, cursor: int, rows: SequenceIndex = ALL_SEQUENCES) -> Batch:
        """Batch number `cursor` >= 0, or only some of its rows."""
        leg = self._leg(cursor)
        return leg.pipeline.batch(cursor - leg.start, rows, leg.first_sequence)

    def prefetch(self, start_cursor: int, stop_cursor: int, depth: int = 2) -> Prefetcher:
        """Iterate over (cursor, this process's share of the batch) for the cursors [start, stop).

        Up to `depth` of them are made ahead by a thread.
        """

        def own(cursor: int) -> Batch:
            return self.batch(cursor, self.share(self._leg(cursor).pipeline.batch_size))

        return Prefetcher(own, start_cursor, stop_cursor, depth)

    def _leg(self, cursor: int) -> PhaseBatches:
        return next(leg for leg in reversed(self.phases) if leg.start <= cursor)
