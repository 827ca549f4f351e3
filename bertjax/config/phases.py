"""What changes while a run goes on: phases (short rows first) and the ramp of the batch, as closed forms of the cursor.

Needs no jax.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ml_collections import ConfigDict

from bertjax.config.overrides import apply_overrides, copy_config, declared
from bertjax.errors import UserError

MOST_SIZES = 32
"""Sizes of a ramp: each compiles a step of its own."""

_PHASE = re.compile(r"(\d+(?:\.\d+)?)(%?):(.+)", re.DOTALL)


class Phase(NamedTuple):
    """The batches from `start` on, until the next stage begins, and the config that is theirs."""

    start: int
    cfg: ConfigDict


def list_phases(cfg: ConfigDict) -> list[Phase]:
    """The stages of a run, the first from batch 0; raises `UserError` for phases and ramps that make no sense."""
    phases = _phases(cfg)
    target = _config_at(cfg, phases[0][1] if phases else [], None).train.batch_size
    ramp = _ramp(cfg, target)
    found = []
    for start in sorted({0, *(start for start, _ in [*phases, *ramp])}):
        settings = next((each for begin, each in reversed(phases) if begin <= start), [])
        rows = next((size for begin, size in reversed(ramp) if begin <= start), None)
        own = _config_at(cfg, settings, None)
        if rows is not None and own.train.batch_size != target:
            raise UserError(
                f"train.batch_ramp_steps: the batch still grows at update {start}, where a phase sets train.batch_size"
            )
        found.append(Phase(start, own if rows is None else _config_at(cfg, settings, rows)))
    return found


def _config_at(cfg: ConfigDict, settings: list[str], rows: int | None) -> ConfigDict:
    if not settings and rows is None:
        return cfg
    arguments = [f"--config.{setting}" for setting in settings]
    arguments += [] if rows is None else [f"--config.train.batch_size={rows}"]
    try:
        return apply_overrides(copy_config(cfg), arguments)
    except UserError as error:
        raise UserError(f"train.phases: {error}") from None


def _phases(cfg: ConfigDict) -> list[tuple[int, list[str]]]:
    """(first batch, settings) of every phase; the last one has none: it is the config itself."""
    found: list[tuple[int, list[str]]] = []
    start = 0
    for text in _joined(cfg.train.phases):
        match = _PHASE.fullmatch(text)
        if match is None:
            raise UserError(f"train.phases: {text!r} is not STEPS:KEY=VALUE,... such as 90%:data.seq_len=128")
        settings = [part.strip() for part in match[3].split(",")]
        for setting in settings:
            key = setting.partition("=")[0]
            if key in declared() and not declared()[key].phase:
                raise UserError(f"train.phases: {key} cannot change during a run")
        found.append((start, settings))
        steps = float(match[1]) / 100 * cfg.train.num_steps if match[2] else float(match[1])
        if round(steps) < 1:
            raise UserError(f"train.phases: {text!r} lasts for less than one of the {cfg.train.num_steps} updates")
        start += round(steps)
    if start > cfg.train.num_steps:
        raise UserError(
            f"train.phases last for {start} updates, more than train.num_steps={cfg.train.num_steps}; shares such as "
            "90%:data.seq_len=128 follow the length of the run"
        )
    return [*found, (start, [])] if found and start < cfg.train.num_steps else found


def _joined(texts: tuple[str, ...]) -> list[str]:
    """On the command line a comma separates phases and settings alike: what has no length belongs to the one before."""
    joined: list[str] = []
    for text in texts:
        if joined and not _PHASE.fullmatch(text):
            joined[-1] += f",{text}"
        else:
            joined.append(text)
    return joined


def _ramp(cfg: ConfigDict, target: int) -> list[tuple[int, int | None]]:
    """(first batch, batch size or None after it): multiples of `initial_batch_size`, each for equally many steps."""
    train = cfg.train
    if train.initial_batch_size is None:
        if train.batch_ramp_steps is not None:
            raise UserError("train.batch_ramp_steps needs train.initial_batch_size, the rows to begin with")
        return []
    steps = train.num_steps // 10 if train.batch_ramp_steps is None else train.batch_ramp_steps
    if train.initial_batch_size < 1 or target % train.initial_batch_size:
        raise UserError(
            f"train.initial_batch_size={train.initial_batch_size} must divide train.batch_size={target}, its increment"
        )
    smaller = target // train.initial_batch_size - 1
    if smaller >= MOST_SIZES:
        raise UserError(
            f"train.initial_batch_size={train.initial_batch_size} makes {smaller + 1} batch sizes, each compiled; at "
            f"most {MOST_SIZES}: raise it"
        )
    if not smaller <= steps <= train.num_steps:
        raise UserError(
            f"train.batch_ramp_steps={steps} must lie between {smaller}, the sizes before the last one, and "
            f"train.num_steps={train.num_steps}"
        )
    sizes = [(index * steps // smaller, (index + 1) * train.initial_batch_size) for index in range(smaller)]
    return [*sizes, (steps, None)]


def amounts(cfg: ConfigDict, steps: int) -> tuple[int, int]:
    """(rows, tokens with padding) of the first `steps` batches of a run."""
    found = list_phases(cfg)
    ends = [min(stage.start, steps) for stage in found[1:]] + [steps]
    rows = tokens = 0
    for stage, end in zip(found, ends, strict=True):
        seen = max(end - stage.start, 0) * stage.cfg.train.batch_size
        rows, tokens = rows + seen, tokens + seen * stage.cfg.data.seq_len
    return rows, tokens
