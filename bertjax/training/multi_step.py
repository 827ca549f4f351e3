"""How many steps go to the devices at once: a small model's step is over before the host has sent the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from bertjax.config.training import LoopConfig

Batch = TypeVar("Batch")


def steps_per_dispatch(config: LoopConfig, step: int) -> int:
    """How many steps may go at once after update `step`: `train.steps_per_dispatch`, or one.

    All of them only from its multiples on, and only if nothing is due before the last of them. That depends on the
    number of the update alone: a run that was stopped goes on in the same portions, and so with the same digits.
    """
    size = config.steps_per_dispatch
    if step % size:
        return 1
    marks = config.log_interval_steps, config.eval_interval_steps, config.checkpoint_interval_steps, config.num_steps
    ends = [step + each - step % each for each in marks if each > 0]
    traced = config.profiled
    ends += [edge for edge in (traced.start - 1, traced.stop - 1) if traced and edge > step]
    return size if min(ends) >= step + size else 1


def portions(
    batches: Iterable[tuple[int, Batch]], size_at: Callable[[int], int]
) -> Iterator[tuple[list[int], list[Batch]]]:
    """(cursors, batches) of those that go together; `size_at` is asked with the cursor of each portion's first."""
    cursors: list[int] = []
    taken: list[Batch] = []
    size = 1
    for cursor, batch in batches:
        if not cursors:
            size = size_at(cursor)
        cursors.append(cursor)
        taken.append(batch)
        if len(cursors) == size:
            yield cursors, taken
            cursors, taken = [], []
    assert not cursors, cursors  # `size_at` knows where the batches end
