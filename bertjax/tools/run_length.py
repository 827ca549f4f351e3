"""Seconds of a run and steps that fit into a time: slots take equally long in all phases, and each is compiled."""

from __future__ import annotations

import bisect
import copy
from typing import NamedTuple

from ml_collections import ConfigDict

from bertjax.config.overrides import set_values
from bertjax.config.phases import count_sequences_and_tokens, list_phases


class Cost(NamedTuple):
    """Seconds of the parts of a run.

    Attributes:
        slot_seconds: seconds of training per slot of a batch, which holds a token or padding.
        compile_seconds: seconds to compile the step of a phase.
    """

    slot_seconds: float
    compile_seconds: float


def run_slots(cfg: ConfigDict, num_steps: int, start: int = 0) -> tuple[int, int]:
    """Returns (slots, phases) of the steps of a run.

    Args:
        cfg: the config, of a run of any length.
        num_steps: steps of the run.
        start: steps that are not counted.
    """
    if not cfg.train.phases and cfg.train.initial_batch_size is None:
        return (num_steps - start) * cfg.train.batch_size * cfg.data.seq_len, int(num_steps > start)
    run = set_values(copy.deepcopy(cfg), {"train.num_steps": max(num_steps, 1)})
    ends = [*(phase.start for phase in list_phases(run)[1:]), num_steps]
    (_, before), (_, slots) = (count_sequences_and_tokens(run, steps) for steps in (start, num_steps))
    return slots - before, sum(end > start for end in ends)


def run_seconds(cfg: ConfigDict, num_steps: int, cost: Cost, start: int = 0) -> float:
    """Returns the seconds of the steps of a run.

    Args:
        cfg, num_steps, start: those of `run_slots`.
        cost: seconds of its parts.
    """
    slots, phases = run_slots(cfg, num_steps, start)
    return slots * cost.slot_seconds + phases * cost.compile_seconds


def steps_in(cfg: ConfigDict, seconds: float, cost: Cost, start: int = 0) -> int:
    """Returns the steps of the longest run whose steps from `start` on take at most `seconds`; `start` if none does."""
    most = start + 1
    while run_seconds(cfg, most, cost, start) <= seconds:
        most *= 2
    fitting = range(most)
    return bisect.bisect_right(fitting, seconds, lo=start + 1, key=lambda n: run_seconds(cfg, n, cost, start)) - 1
