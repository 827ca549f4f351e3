"""Pipelines of consecutive training phases, with another sequence length or batch size from some cursor on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bertjax.data.pipeline import ALL_SEQUENCES, Pipeline, Prefetcher, ProcessShare, SequenceIndex, all_sequences
from bertjax.types import Batch


class PhaseBatches(NamedTuple):
    """Batches from cursor `start` on: the stream of `pipeline` from `first_sequence` on."""

    start: int
    first_sequence: int
    pipeline: Pipeline


class PhasedPipeline:
    """One stream of batches over several phases, with random access.

    Args:
        phases: phases by increasing `start`; the first starts at 0.
        share: which sequences of the global batches this process prefetches.
    """

    def __init__(self, phases: Sequence[PhaseBatches], share: ProcessShare = all_sequences) -> None:
        self.phases, self.share = tuple(phases), share

    @property
    def sequences_per_epoch(self) -> dict[str, int]:
        """Sequences of the first epoch of each source, in the last phase that reads it."""
        return {name: count for phase in self.phases for name, count in phase.pipeline.sequences_per_epoch.items()}

    def mixture_lines(self, num_steps: int) -> list[str]:
        """Returns a line with share and epochs of every source over a run, none for a single source."""
        sequences: dict[str, int] = {}
        epochs: dict[str, float] = {}
        stops = [*(phase.start for phase in self.phases[1:]), num_steps]
        for phase, stop in zip(self.phases, stops, strict=True):
            end = phase.first_sequence + (stop - phase.start) * phase.pipeline.batch_size
            before, after = phase.pipeline.num_used(phase.first_sequence), phase.pipeline.num_used(end)
            for name, length in phase.pipeline.sequences_per_epoch.items():
                count = after[name] - before[name]
                sequences[name] = sequences.get(name, 0) + count
                epochs[name] = epochs.get(name, 0.0) + count / length
        total = max(sum(sequences.values()), 1)
        lines = [
            f"{name}: {sequences[name] / total:.2%} of the sequences, {epochs[name]:.3g} epochs" for name in epochs
        ]
        return lines if len(lines) > 1 else []

    def batch(self, cursor: int, sequences: SequenceIndex = ALL_SEQUENCES) -> Batch:
        """Returns batch number `cursor` >= 0, or some of its sequences."""
        phase = self._phase_at(cursor)
        return phase.pipeline.batch(cursor - phase.start, sequences, phase.first_sequence)

    def prefetch(self, start_cursor: int, stop_cursor: int) -> Prefetcher:
        """Returns an iterator over (cursor, this process's share of the batch) for the cursors [start, stop)."""

        def local_batch(cursor: int) -> Batch:
            return self.batch(cursor, self.share(self._phase_at(cursor).pipeline.batch_size))

        return Prefetcher(local_batch, start_cursor, stop_cursor)

    def _phase_at(self, cursor: int) -> PhaseBatches:
        return next(phase for phase in reversed(self.phases) if phase.start <= cursor)
