"""Seconds of a run and steps that fit into a time: a phase takes as long as it has slots, and each is compiled."""

from __future__ import annotations

import bisect
import copy
from typing import NamedTuple

from ml_collections import ConfigDict

from bertjax.config.overrides import set_values
from bertjax.config.phases import Phase, list_phases


class Cost(NamedTuple):
    """Seconds of the parts of a run.

    Attributes:
        slot_seconds: seconds of training per slot of a batch, which holds a token or padding.
        compile_seconds: seconds to compile the step of a phase.
        later_slot_seconds: seconds per slot in all phases but the first that is counted; None, the same.
    """

    slot_seconds: float
    compile_seconds: float
    later_slot_seconds: float | None = None


def run_slots(cfg: ConfigDict, num_steps: int, start: int = 0) -> list[int]:
    """Returns the slots of every phase of a run that has steps.

    Args:
        cfg: the config, of a run of any length.
        num_steps: steps of the run.
        start: steps that are not counted.
    """
    if not cfg.train.phases and cfg.train.initial_batch_size is None:
        phases = [Phase(0, cfg)]
    else:
        phases = list_phases(set_values(copy.deepcopy(cfg), {"train.num_steps": max(num_steps, 1)}))
    ends = [*(phase.start for phase in phases[1:]), num_steps]
    steps = [end - max(phase.start, start) for phase, end in zip(phases, ends, strict=True)]
    return [
        count * phase.cfg.train.batch_size * phase.cfg.data.seq_len
        for phase, count in zip(phases, steps, strict=True)
        if count > 0
    ]


def run_seconds(cfg: ConfigDict, num_steps: int, cost: Cost, start: int = 0) -> float:
    """Returns the seconds of the steps of a run.

    Args:
        cfg, num_steps, start: those of `run_slots`.
        cost: seconds of its parts.
    """
    slots = run_slots(cfg, num_steps, start)
    later = cost.slot_seconds if cost.later_slot_seconds is None else cost.later_slot_seconds
    return len(slots) * cost.compile_seconds + sum(slots[:1]) * cost.slot_seconds + sum(slots[1:]) * later


def steps_in(cfg: ConfigDict, seconds: float, cost: Cost, start: int = 0) -> int:
    """Returns the steps of the longest run whose steps from `start` on take at most `seconds`; `start` if none does."""
    most = start + 1
    while run_seconds(cfg, most, cost, start) <= seconds:
        most *= 2
    fitting = range(most)
    return bisect.bisect_right(fitting, seconds, lo=start + 1, key=lambda n: run_seconds(cfg, n, cost, start)) - 1
