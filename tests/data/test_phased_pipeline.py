"""Pipelines of successive phases: every phase begins where its stream stopped."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bertjax.data.pipeline import ALL_SEQUENCES, PhaseBatches, PhasedPipeline


class Rows:
    """A test pipeline: batch n of b rows contains the numbers of its rows."""

    def __init__(self, rows: int, kind: int) -> None:
        self.rows, self.kind, self.batch_size = rows, kind, rows
        self.sequences_per_epoch = {"all": 100 * kind}

    def batch(self, cursor: int, sequences: slice = ALL_SEQUENCES, first_sequence: int = 0) -> dict[str, np.ndarray]:
        numbers = 1000 * self.kind + first_sequence + cursor * self.rows + np.arange(self.rows)
        return {"input_ids": numbers[sequences, None]}


@pytest.fixture
def staged() -> PhasedPipeline:
    return PhasedPipeline(
        [
            PhaseBatches(0, 0, Rows(2, 0)),
            PhaseBatches(3, 6, Rows(4, 0)),
            PhaseBatches(5, 0, Rows(3, 1)),
        ]
    )


def test_a_larger_batch_continues_after_the_smaller_ones(staged: PhasedPipeline) -> None:
    firsts = [staged.batch(cursor)["input_ids"][:, 0].tolist() for cursor in range(7)]
    assert list(itertools.chain(*firsts[:5])) == list(range(14))
    assert firsts[5:] == [[1000, 1001, 1002], [1003, 1004, 1005]]
    assert staged.sequences_per_epoch == {"all": 100}


def test_any_batch_and_any_rows_of_it_can_be_requested(staged: PhasedPipeline) -> None:
    assert staged.batch(4, slice(1, 3))["input_ids"][:, 0].tolist() == [11, 12]
    with staged.prefetch(2, 6) as batches:
        got = [(cursor, batch["input_ids"][0, 0]) for cursor, batch in batches]
    assert got == [(2, 4), (3, 6), (4, 10), (5, 1000)]


def test_every_host_reads_its_share_whatever_the_size_of_the_batch() -> None:
    """P19: four hosts, then two from cursor 4 on; every row once, and every batch equal to that of one host."""
    phases = [PhaseBatches(0, 0, Rows(4, 0)), PhaseBatches(3, 12, Rows(8, 0))]
    whole = {cursor: PhasedPipeline(phases).batch(cursor)["input_ids"][:, 0] for cursor in range(8)}
    result: dict[int, list[int]] = {cursor: [] for cursor in whole}
    for hosts, start, stop in ((4, 0, 4), (2, 4, 8)):
        for host in range(hosts):
            # a slice or numbers, as the mesh requires
            shares = {0: lambda rows, n=hosts: slice(0, rows // n)}
            share = shares.get(host, lambda rows, n=hosts, h=host: np.arange(h * rows // n, (h + 1) * rows // n))
            with PhasedPipeline(phases, share).prefetch(start, stop) as batches:
                for cursor, batch in batches:
                    result[cursor] += batch["input_ids"][:, 0].tolist()
    assert result == {cursor: rows.tolist() for cursor, rows in whole.items()}
    assert list(itertools.chain(*result.values())) == list(range(12 + 5 * 8))
