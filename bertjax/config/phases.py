"""Phases of a run (short sequences first, for example) and the ramp of the batch size, as functions of the cursor."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from ml_collections import ConfigDict

from bertjax.config.fields import format_value
from bertjax.config.overrides import apply_overrides, copy_config, declared, flatten
from bertjax.errors import UserError

MAX_SIZES = 32
"""Upper limit of batch sizes in a ramp: each is compiled."""

_PHASE = re.compile(r"(\d+(?:\.\d+)?)(%?):(.+)", re.DOTALL)
_NEXT_SETTING = re.compile(r"(?<!\\),(?=\s*\w+(?:\.\w+)+=)")


class Phase(NamedTuple):
    """A part of the run: its first batch and its config."""

    start: int
    cfg: ConfigDict


def list_phases(cfg: ConfigDict) -> list[Phase]:
    """Returns the phases of a run, the first from batch 0; raises `UserError` for phases and ramps that cannot be."""
    settings_from = _phases(cfg)
    target = _config_at(cfg, settings_from[0][1] if settings_from else [], None).train.batch_size
    ramp = _ramp(cfg, target)
    phases = []
    for start in sorted({0, *(start for start, _ in [*settings_from, *ramp])}):
        settings = next((each for first, each in reversed(settings_from) if first <= start), [])
        batch_size = next((size for first, size in reversed(ramp) if first <= start), None)
        config = _config_at(cfg, settings, None)
        if batch_size is not None and config.train.batch_size != target:
            raise UserError(
                f"train.batch_ramp_steps: the batch still grows at step {start}, where a phase sets train.batch_size"
            )
        phases.append(Phase(start, config if batch_size is None else _config_at(cfg, settings, batch_size)))
    return phases


def phase_before(cfg: ConfigDict, step: int) -> Phase:
    """Returns the phase that a checkpoint of this step was trained in."""
    return [phase for phase in list_phases(cfg) if phase.start < max(step, 1)][-1]


def phases_of_first_steps(cfg: ConfigDict, step: int, later: ConfigDict) -> tuple[str, ...]:
    """Writes the first batches of a run as phases of another one, which continues it with other settings.

    Args:
        cfg: Config of the run.
        step: Number of these batches.
        later: Config of the run that continues it.

    Returns:
        A value of `train.phases`: settings that differ, without the schedule, which is not read again.
    """
    phases, known, after = list_phases(cfg), declared(cfg), flatten(later)
    past = []
    for phase, stop in zip(phases, [*(each.start for each in phases[1:]), step], strict=True):
        settings = [
            f"{key}={format_value(value)}"
            for key, value in flatten(phase.cfg).items()
            if known[key].phase and value != after.get(key) and not key.startswith("schedule.")
        ]
        if phase.start < step:
            past.append((min(stop, step) - phase.start, settings))
    if not any(settings for _, settings in past):
        return ()
    return tuple(f"{steps}:{','.join(settings or [f'data.seq_len={later.data.seq_len}'])}" for steps, settings in past)


def source_texts(cfg: ConfigDict) -> list[str]:
    """Returns the sources of all phases as they are written, each text once."""
    return list(dict.fromkeys(text for phase in list_phases(cfg) for text in phase.cfg.data.sources))


def _config_at(cfg: ConfigDict, settings: list[str], batch_size: int | None) -> ConfigDict:
    if not settings and batch_size is None:
        return cfg
    arguments = [f"--config.{setting}" for setting in settings]
    arguments += [] if batch_size is None else [f"--config.train.batch_size={batch_size}"]
    try:
        return apply_overrides(copy_config(cfg), arguments)
    except UserError as error:
        raise UserError(f"train.phases: {error}") from None


def _phases(cfg: ConfigDict) -> list[tuple[int, list[str]]]:
    """(first batch, settings) of every phase; the last one, the config itself, has no settings.

    Shares are added before they are rounded, so that they fit into runs of any length; in a short one, phases that come
    out at less than a step are left out.
    """
    phases: list[tuple[int, list[str]]] = []
    num_steps, end = cfg.train.num_steps, Fraction(0)
    for text in _joined(cfg.train.phases):
        match = _PHASE.fullmatch(text)
        if match is None:
            raise UserError(f"train.phases: {text!r} is not STEPS:KEY=VALUE,... such as 90%:data.seq_len=128")
        settings = [part.strip() for part in _NEXT_SETTING.split(match[3])]  # other commas are within a value
        for setting in settings:
            key = setting.partition("=")[0]
            if (each := declared(cfg).get(key)) is not None and not each.phase:
                raise UserError(f"train.phases: {key} cannot change during a run")
        share = Fraction(match[1])
        if round(share) < 1 and not (match[2] and share):
            raise UserError(f"train.phases: {text!r} lasts for less than one of the {num_steps} steps")
        start, end = round(end), end + (share / 100 * num_steps if match[2] else round(share))
        phases += [(start, settings)] if round(end) > start else []
    if end > num_steps:
        raise UserError(
            f"train.phases last for {round(end)} steps, more than train.num_steps={num_steps}; shares such as "
            "90%:data.seq_len=128 follow the length of the run"
        )
    return [*phases, (round(end), [])] if phases and round(end) < num_steps else phases


def _joined(texts: tuple[str, ...]) -> list[str]:
    """Joins settings that a comma of the command line separated from their phase: those without a length."""
    joined: list[str] = []
    for text in texts:
        if joined and not _PHASE.fullmatch(text):
            joined[-1] += f",{text}"
        else:
            joined.append(text)
    return joined


def _ramp(cfg: ConfigDict, target: int) -> list[tuple[int, int | None]]:
    """(first batch, batch size or None after it): multiples of `initial_batch_size`, each for equally many steps.

    Where there are fewer steps than sizes, some sizes are left out.
    """
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
    if smaller >= MAX_SIZES:
        raise UserError(
            f"train.initial_batch_size={train.initial_batch_size} makes {smaller + 1} batch sizes, each compiled; at "
            f"most {MAX_SIZES}: raise it"
        )
    if steps > train.num_steps:
        raise UserError(f"train.batch_ramp_steps={steps} must lie between 0 and train.num_steps={train.num_steps}")
    sizes = [(index * steps // smaller, (index + 1) * train.initial_batch_size) for index in range(smaller)]
    return [*sizes, (steps, None)]


def count_sequences_and_tokens(cfg: ConfigDict, steps: int) -> tuple[int, int]:
    """Returns (sequences, token slots) of the first `steps` batches of a run."""
    phases = list_phases(cfg)
    ends = [min(phase.start, steps) for phase in phases[1:]] + [steps]
    sequences = slots = 0
    for phase, end in zip(phases, ends, strict=True):
        count = max(end - phase.start, 0) * phase.cfg.train.batch_size
        sequences, slots = sequences + count, slots + count * phase.cfg.data.seq_len
    return sequences, slots
